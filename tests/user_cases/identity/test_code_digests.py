"""Digests of a user's code: what changes them, and what must not."""

import ast
import functools
import importlib
import json
import linecache
import logging
import pathlib
import random
import subprocess
import sys
import textwrap
import threading
import types

import numpy as np
import pytest

from tff_suite import code_digests, code_texts

REPO = pathlib.Path(__file__).resolve().parents[3]
MODULE = '''
"""A task of my own."""

import functools
import math

import numpy as np
from os import path

GAMMA = 2.0
SETTINGS = {"width": 32, "names": ["a", 'b']}


def load(seed, *, scale=1.0):
    """Loads it."""
    # By seed.
    rng = np.random.default_rng(seed)
    return math.sqrt(scale) * rng.normal(size=(3, 4)) + 10_000, path.sep


@functools.lru_cache
def helper(x):
    return x + GAMMA


class Net:
    """A net."""

    width: int = 32

    def __init__(self, units=(1, 2)):
        self.units = units

    def call(self, x):
        """Calls it."""
        return [u * x for u in self.units if u > 0]


if __name__ == "__main__":
    print(load(1))
'''
SAME = {
    "docstrings": lambda s: s.replace("Loads it.", "Loads it\n\n    Args:\n      seed: It.\n    "),
    "a docstring of a class": lambda s: s.replace('"""A net."""', '"""Another text."""'),
    "no docstring": lambda s: s.replace('    """Calls it."""\n', ""),
    "comments": lambda s: s.replace("# By seed.", "# By another word.\n    # And another."),
    "a text for nobody": lambda s: s.replace("GAMMA = 2.0", 'GAMMA = 2.0\n"""Of the loss."""'),
    "quotes": lambda s: s.replace("'b'", '"b"'),
    "lines": lambda s: s.replace("(seed, *, scale=1.0)", "(\n    seed,\n    *,\n    scale=1.0,\n)"),
    "parentheses": lambda s: s.replace("return x + GAMMA", "return (x + (GAMMA))"),
    "blank lines": lambda s: s.replace("\n\n\n", "\n\n\n\n\n"),
    "numbers": lambda s: s.replace("10_000", "10000"),
    "pass": lambda s: s.replace(
        "        self.units = units", "        self.units = units\n        pass"
    ),
    "order of imports": lambda s: s.replace(
        "import functools\nimport math", "import math, functools"
    ),
    "an import that nothing uses": lambda s: s.replace("import math", "import math\nimport json"),
    "order of functions": lambda s: (
        s.replace("class Net:", "class Net:", 1)
        .replace(s[s.index("def load") : s.index("@functools")], "")
        .replace("if __name__", s[s.index("def load") : s.index("@functools")] + "\n\nif __name__")
    ),
    "what only a main program does": lambda s: s.replace("print(load(1))", "print(load(2), 3)"),
    "the whole text anew": lambda s: ast.unparse(ast.parse(s)),
}
OTHER = {
    "load()": lambda s: s.replace("+ 10_000", "+ 10_001"),
    "load() ": lambda s: s.replace("scale=1.0", "scale=1"),
    "load()  ": lambda s: s.replace("(3, 4)", "(4, 3)"),
    "helper()": lambda s: s.replace("x + GAMMA", "GAMMA - x"),
    "helper() ": lambda s: s.replace("functools.lru_cache", "functools.cache"),
    "GAMMA": lambda s: s.replace("GAMMA = 2.0", "GAMMA = 2.5"),
    "SETTINGS": lambda s: s.replace("'b'", "'c'"),
    "class Net": lambda s: s.replace("width: int = 32", "width: int = 64"),
    "class Net ": lambda s: s.replace("class Net:", "class Net(dict):"),
    "Net.__init__()": lambda s: s.replace("(1, 2)", "(2, 1)"),
    "Net.call()": lambda s: s.replace("u > 0", "u >= 0"),
    "imports": lambda s: s.replace("import math", "import cmath as math"),
    "imports ": lambda s: s.replace("from os import path", "from posix import path"),
    "top level": lambda s: s + "\nload(3)\n",
}


def parts_of(source):
    return code_texts.parts(ast.parse(source))


@pytest.mark.parametrize("edit", SAME)
def test_what_computes_nothing_makes_no_difference(edit):
    edited = SAME[edit](MODULE)
    assert edited != MODULE
    assert parts_of(edited) == parts_of(MODULE)


@pytest.mark.parametrize("part", OTHER)
def test_an_edit_is_named(part):
    before, now = parts_of(MODULE), parts_of(OTHER[part](MODULE))
    names = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    assert names == {part.strip()}


# Modules that a module reaches.


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes modules; returns what looks at a module of them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = set(sys.modules)

    def write(**texts):
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()

    def look(name):
        describer = code_digests.Describer()
        describer.module(name)
        return describer.found.code

    yield types.SimpleNamespace(write=write, look=look, folder=tmp_path)
    for name in set(sys.modules) - made:
        del sys.modules[name]


REACHED = {
    "at the top": "import helper_of_mine\n",
    "a name": "from helper_of_mine import f\nf\n",
    "in a function": "def load():\n    from helper_of_mine import f\n    return f\n",
    "in a try": "try:\n    import helper_of_mine as h\nexcept ImportError:\n    h = None\n",
    "through another": "import between\n",
    "a star": "from helper_of_mine import *\n",
}


@pytest.mark.parametrize("way", REACHED)
@pytest.mark.parametrize("loaded", [False, True])
def test_a_helper_is_reached(package, way, loaded):
    package.write(my_task=REACHED[way], between="from helper_of_mine import f\nf\n")
    package.write(helper_of_mine="def f(x):\n    return x\n")
    if loaded:
        importlib.import_module("my_task")
    before = package.look("my_task")
    assert "helper_of_mine.py" in before and "my_task.py" in before
    package.write(helper_of_mine="def f(x):\n    return x + 1\n")
    now = package.look("my_task")
    assert {m for m in now if now[m] != before[m]} == {"helper_of_mine.py"}


def test_modules_that_workers_have(package):
    package.write(my_task="import helper_of_mine\nhelper_of_mine\n", helper_of_mine="X = 1\n")
    before = code_digests.of_modules(["my_task"])
    assert before.keys() == {"the code of my_task.py", "the code of helper_of_mine.py"}
    package.write(helper_of_mine="X = 2\n")
    now = code_digests.of_modules(["my_task"])
    assert [name for name in now if now[name] != before[name]] == ["the code of helper_of_mine.py"]


def test_modules_of_a_package_are_reached_by_dots(package):
    package.write(
        mine__init="", mine__a="from . import b\nfrom .sub.c import f\nf\n", mine__b="X = 1\n"
    )
    (package.folder / "mine" / "__init__.py").write_text("from .a import f\n")
    package.write(mine__sub__c="from ..b import X\ndef f():\n    return X\n")
    (package.folder / "mine" / "sub" / "__init__.py").touch()
    found = package.look("mine.a")
    assert {"mine/a.py", "mine/b.py", "mine/sub/c.py", "mine.py"} <= found.keys()


def test_the_suite_and_what_is_installed_are_not_read(package):
    package.write(my_task="import json, numpy, tasks\nfrom tff_algos import registry\n")
    assert package.look("my_task").keys() == {"my_task.py"}


def test_the_installed_package_of_a_method_is_the_users(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "plugin_of_mine.py").write_text("def build():\n    return 1\n")
    monkeypatch.syspath_prepend(str(folder))
    describer = code_digests.Describer(packages=["plugin_of_mine"])
    describer.module("plugin_of_mine")
    assert describer.found.code.keys() == {"plugin_of_mine.py"}
    describer = code_digests.Describer()
    describer.module("plugin_of_mine")
    assert not describer.found.code


def test_what_was_changed_after_it_was_imported_is_what_is_in_memory(package):
    text = "def f(x):\n    return x * {}\n\nclass C:\n    def g(self):\n        return {}\n"
    package.write(changed_later=text.format(1, 1))
    importlib.import_module("changed_later")
    before = package.look("changed_later")["changed_later.py"]
    package.write(changed_later=text.format(2, 1))
    now = package.look("changed_later")["changed_later.py"]
    fresh = parts_of(text.format(2, 1))
    assert now["C.g()"] == before["C.g()"] == fresh["C.g()"]
    assert now["f()"] != fresh["f()"], "it does not run what the file says"


# Objects. What they are made of here lies in this module's file, so values tell them apart.


def values(thing):
    describer = code_digests.Describer()
    describer.look("it", thing)
    return describer.found.values


def closure(factor):
    return lambda y, p: factor * (y - p)


def nested(factor):
    inner = closure(factor)
    return lambda y, p: inner(y, p)


def with_default(factor):
    def loss(y, p, scale=factor):
        return scale * (y - p)

    return loss


def with_keyword(factor):
    def loss(y, p, *, scale=factor):
        return scale * (y - p)

    return loss


def plain(y, p, factor=1.0, table=None):
    return factor * (y - p), table


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, y, p):
        return self.factor * (y - p)

    def loss(self, y, p):
        return self.factor * (y - p)

    @functools.cached_property
    def found(self):
        return self.factor + 1


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, y, p):
        return self.factor * (y - p)


def array(factor):
    weights = np.ones((3, 4))
    weights[2, 3] = factor
    return weights


def decorated(factor):
    @functools.wraps(plain)
    def wrapper(*args):
        return plain(*args, factor=factor)

    return wrapper


def of_own_class(factor):
    class Loss:
        def __call__(self, y, p):
            return factor * (y - p)

    return Loss()


def of_own_attribute(factor):
    class Loss:
        scale = factor

        def __call__(self, y, p):
            return self.scale * (y - p)

    return Loss()


MADE = {
    "closure": closure,
    "closure of a class": of_own_class,
    "attribute of a class": of_own_attribute,
    "class made by a call": lambda f: type("Loss", (Scaled,), {"scale": f})(1),
    "closure in a closure": nested,
    "default": with_default,
    "default of a keyword": with_keyword,
    "partial": lambda f: functools.partial(plain, factor=f),
    "partial by place": lambda f: functools.partial(plain, 0, 0, f),
    "partial of a partial": lambda f: functools.partial(functools.partial(plain, factor=f), 1),
    "instance": Scaled,
    "method": lambda f: Scaled(f).loss,
    "instance with slots": Slotted,
    "array in a closure": lambda f: closure(array(f)),
    "array in a partial": lambda f: functools.partial(plain, table=array(f)),
    "array of another dtype": lambda f: closure(np.array([1.0, f], np.float32)),
    "number of NumPy": lambda f: closure(np.float32(f)),
    "list": lambda f: closure([1, [2, f]]),
    "dictionary": lambda f: closure({"a": {"b": f}}),
    "set": lambda f: closure({1, f}),
    "many things": lambda f: closure([*range(100), f]),
    "function in a dictionary": lambda f: closure({"loss": closure(f)}),
    "decorated": decorated,
    "cached": lambda f: functools.lru_cache(closure(f)),
    "namespace": lambda f: closure(types.SimpleNamespace(a=f)),
}


@pytest.mark.parametrize("kind", MADE)
def test_values_that_code_holds_are_seen(kind):
    make = MADE[kind]
    assert values(make(2.0)) == values(make(2.0)), "two of one kind are alike"
    assert values(make(2.0)) != values(make(3.0))


LOSSES = {"absolute": lambda y, p: abs(y - p), "squared": lambda y, p: (y - p) ** 2}
ON_ONE_LINE = [lambda y: y + 1, lambda y: y + 2]


def by_branch(is_squared):
    if is_squared:

        def loss(y, p):
            return (y - p) ** 2

    else:

        def loss(y, p):
            return abs(y - p)

    return loss


@pytest.mark.parametrize(
    ("one", "other"),
    [LOSSES.values(), ON_ONE_LINE, (by_branch(True), by_branch(False))],
    ids=["lambdas", "of one line", "by branch"],
)
def test_functions_of_one_name_are_told_apart(one, other):
    assert values(one) == values(one) != values(other)


def test_values_can_be_read():
    assert values(closure(2.5))["it, factor"] == "2.5"
    assert values(functools.partial(plain, factor=7))["it, factor"] == "7"
    assert values(Scaled(3))["it, factor"] == "3"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (closure({"a": 1, "b": 2}), closure({"b": 2, "a": 1})),
        (closure({"x", "y", "z"}), closure({"z", "y", "x"})),
        (functools.partial(plain, factor=1, table=2), functools.partial(plain, table=2, factor=1)),
        (closure("/data/one/table.csv"), closure("/home/other/table.csv")),
        (closure(pathlib.Path("/data/x.csv")), closure(pathlib.Path("/home/x.csv"))),
        (closure(np.ones((3, 4))), closure(np.asfortranarray(np.ones((3, 4))))),
        (closure(np.random.default_rng(0)), closure(np.random.default_rng(1))),
    ],
    ids=["dictionary", "set", "keywords", "path", "pathlib", "layout", "generator"],
)
def test_what_makes_no_difference(one, other):
    assert values(one) == values(other)


def test_what_belongs_to_a_process_makes_no_difference():
    logger = logging.getLogger("of a test")
    held = {"log": logger, "lock": threading.Lock(), "rng": random.Random(1)}
    before = values(closure(held))
    logger.setLevel(logging.ERROR)
    held["rng"].random()
    held["lock"].acquire()
    assert values(closure(held)) == before


def test_where_the_data_lie_makes_no_difference():
    def look(folder, name):
        describer = code_digests.Describer(places=[folder])
        describer.look("it", closure(f"{folder}/{name}"))
        return describer.found.values

    assert look("data", "a.csv") == look("/other/place", "a.csv")
    assert look("data", "a.csv") != look("data", "b.csv")


def test_what_a_cached_property_has_found_makes_no_difference():
    used, unused = Scaled(2), Scaled(2)
    assert used.found == 3 and values(used) == values(unused)


def test_what_holds_itself_ends():
    things = []
    things.append(things)
    me = Scaled(things)
    me.factor = me
    assert values(me) and values(closure(things))


# Names that functions read from their module.

OF_A_MODULE = """
    import argparse
    GAMMA = 2.0
    TABLE = (1, 2)
    CONFIG = {"gamma": 2.0, "rounds": 10}
    CACHE = {}
    args = argparse.Namespace(gamma=2.0, rounds=10)

    def helper(y):
        return y * GAMMA

    def loss(y, p):
        return helper(y) + TABLE[0] + CONFIG["gamma"] * args.gamma + len(CACHE)

    class Loss:
        width = 3
        seen = {}

        def __call__(self, y, p):
            return loss(y, p) * self.width
"""


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda m: setattr(m, "GAMMA", 3.0), True),
        (lambda m: setattr(m, "TABLE", (3, 2)), True),
        (lambda m: m.CONFIG.update(gamma=3.0), True),
        (lambda m: setattr(m.args, "gamma", 3.0), True),
        (lambda m: m.CONFIG.update(rounds=20), False),
        (lambda m: setattr(m.args, "rounds", 20), False),
        (lambda m: m.CACHE.update(a=3.0), False),
    ],
)
@pytest.mark.parametrize("name", ["loss", "Loss"])
def test_globals_that_a_loss_reads(package, name, change, differs):
    package.write(of_a_module=OF_A_MODULE)
    module = importlib.import_module("of_a_module")
    before = values(getattr(module, name))
    change(module)
    assert (values(getattr(module, name)) != before) == differs


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda kind: setattr(kind, "width", 4), True),
        (lambda kind: setattr(kind, "__call__", lambda self, y, p: y), True),
        (lambda kind: kind.seen.update(a=1), False),
    ],
)
def test_attributes_of_a_class(package, change, differs):
    package.write(of_a_module=OF_A_MODULE)
    kind = importlib.import_module("of_a_module").Loss
    before = values(kind())
    change(kind)
    assert (values(kind()) != before) == differs


def test_a_module_that_a_function_reads_through_its_name(package):
    package.write(
        settings_of_mine="GAMMA = 2.0\n",
        reads_settings="""
        import settings_of_mine
        def loss(y, p):
            return settings_of_mine.GAMMA * y
    """,
    )
    module = importlib.import_module("reads_settings")
    before = values(module.loss)
    module.settings_of_mine.GAMMA = 3.0
    assert values(module.loss) != before


# Programs: of a main program the functions count, not the whole file.

PROGRAM = '''
import sys

sys.path[:0] = [{repo!r}, {home!r}]
import functools
import json

import numpy as np

from tff_suite import code_digests
import helper_of_program

GAMMA = 2.0


def scaled(factor):
    """A loss."""

    def loss(y, p):
        return factor * helper(y - p) * GAMMA

    return loss


def helper(x):
    # In a line.
    return helper_of_program.f(x)


class Loss:
    bias = 1

    def __init__(self, table):
        self.table = table

    def __call__(self, y, p):
        return self.table * y + self.bias


describer = code_digests.Describer()
describer.look("loss", scaled(2.0))
describer.look("metric", [lambda y: y + 1, lambda y: y + 2][1])
describer.look("object", Loss(np.arange(4.0)))
describer.look("words", {{"b": {{"x", "y", "z", "w"}}, "a": frozenset(["p", "q", "r"])}})
describer.look("partial", functools.partial(Loss.__call__, y={{"k": 1, "a": 2}}))
print(json.dumps([describer.found.code, describer.found.values], sort_keys=True))
'''
EDITS = {
    "docstring": ("A loss.", "Another text.", False),
    "comment": ("In a line.", "In another line.", False),
    "a print elsewhere": ("describer = ", "print(end='')\ndescriber = ", False),
    "an unused function": ("describer = ", "def unused():\n    pass\n\n\ndescriber = ", False),
    "layout": ("factor * helper(y - p)", "(factor\n            * helper(y - p))", False),
    "the loss": ("factor * helper", "factor + helper", True),
    "a function that it calls": ("f(x)", "f(x) + 1", True),
    "a global": ("GAMMA = 2.0", "GAMMA = 3.0", True),
    "the second lambda": ("y + 2", "y + 3", True),
    "the other lambda": ("y + 1,", "y + 5,", False),
    "a method": ("self.table * y", "self.table + y", True),
    "an attribute of a class": ("bias = 1", "bias = 2", True),
    "a closure's value": ("scaled(2.0)", "scaled(2.5)", True),
    "a table": ("np.arange(4.0)", "np.arange(5.0)", True),
}


def told(folder, text, hash_seed="0", cwd=None, helper="def f(x):\n    return x\n"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "helper_of_program.py").write_text(helper)
    program = folder / "program.py"
    program.write_text(text.format(repo=str(REPO), home=str(folder)))
    ended = subprocess.run(
        [sys.executable, str(program)],
        cwd=cwd or folder,
        env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return told(tmp_path_factory.mktemp("first"), PROGRAM)


def test_programs_are_the_same_in_every_process(first, tmp_path):
    code, found = first
    assert {"the program", "helper_of_program.py"} == code.keys() and found["loss, factor"] == "2.0"
    other = tmp_path / "a" / "b"
    assert told(other, PROGRAM, hash_seed="12345", cwd="/") == first


@pytest.mark.parametrize("edit", EDITS)
def test_edits_of_a_program(first, tmp_path, edit):
    old, new, differs = EDITS[edit]
    assert PROGRAM.count(old) == 1
    assert (told(tmp_path, PROGRAM.replace(old, new)) != first) == differs


def test_an_edit_of_a_programs_helper(first, tmp_path):
    code, _ = told(tmp_path, PROGRAM, helper="def f(x):\n    return -x\n")
    assert code["helper_of_program.py"] != first[0]["helper_of_program.py"]


CELL = '''
FACTOR = 2.0

def loss(y, p):
    """A loss."""
    return FACTOR * y
'''


@pytest.mark.parametrize("has_source", [True, False])
@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [("A loss.", "Another.", False), ("FACTOR * y", "FACTOR + y", True), ("= 2.0", "= 3.0", True)],
)
def test_cells_of_a_notebook_and_lines_of_a_console(has_source, old, new, differs):
    def look(text, number):
        name = f"/tmp/ipykernel_{number}/{number}.py" if has_source else "<stdin>"
        if has_source:
            linecache.cache[name] = len(text), None, text.splitlines(True), name
        space = {"__name__": "__main__"}
        exec(compile(text, name, "exec"), space)
        describer = code_digests.Describer()
        describer.look("loss", space["loss"])
        (code,) = describer.found.code.values()
        return code, list(describer.found.values.values())

    assert (look(CELL, 1) != look(CELL.replace(old, new), 2)) == differs
    assert look(CELL, 1) == look(CELL, 3)
