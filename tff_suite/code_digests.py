"""Digests of Python code and values that are the same in every process.

They cover two things. For the user's modules, and for functions in a script or notebook: the syntax
trees without docstrings, part by part: `my_task.py` → `load()` → digest. For objects such as a
loss: the values that they hold, that is closures, defaults, arguments of partials, state of
instances, and globals that functions read.

Comments, docstrings, layout, the order of definitions and of imports, and unused imports do not
change a digest. Neither do paths, hash seeds or the order of dictionaries.

The suite's own modules have versions instead, and installed packages are only named.
"""

import ast
import collections
import dataclasses
import enum
import functools
import hashlib
import importlib.machinery
import json
import linecache
import os
import pathlib
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

SUITE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# Its packages and modules; tests and examples are what a user may have written.
_OF_SUITE = frozenset(
    ("benchmarks", "reproduce", "reproduction", "run_experiment", "simulation")
    + ("tasks", "tff_algos", "tff_suite", "tools")
)
_INSTALLED = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
# Packages of one content under two names.
_SAME = {"tf_keras": "keras", "keras_core": "keras"}
# Parts of a container that are told one by one.
_FEW = 12
# Longer texts are told by a digest.
_LONG = 80
_DIGITS = 16
# Modules whose objects are of a process, and change while it works.
_OF_THE_PROCESS = frozenset(
    ("_io", "_thread", "asyncio", "concurrent", "io", "logging", "multiprocessing", "queue")
    + ("random", "socket", "subprocess", "threading", "tqdm", "weakref")
)
# What Python, and not the user, puts into a class.
_OF_CLASSES = frozenset(
    ("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__")
    + ("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__slots__", "__hash__")
    + ("__abstractmethods__", "__parameters__", "__orig_bases__", "__firstlineno__")
    + ("__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__")
)
# Classes of settings: of argparse, types and absl.
_SETTINGS = frozenset(("Namespace", "SimpleNamespace", "FlagValues", "_FlagValuesWrapper"))
_SCALARS = bool | int | float | complex | str | bytes | None | types.EllipsisType | np.generic


def digest(text: str | bytes) -> str:
    """Returns the first 64 bits of a SHA-256, as `#` and hexadecimal digits."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return "#" + hashlib.sha256(data).hexdigest()[:_DIGITS]


# Syntax trees.


def parts(source: str) -> dict[str, str]:
    """Returns digests of the parts of a module.

    Args:
      source: Its text.

    Returns:
      `load()`, `class Net`, `Net.call()`, `GAMMA`, `imports` or `top level` → digest. Code that
      only a main program runs (`if __name__ == '__main__':`) is left out.

    Raises:
      SyntaxError: If the text is not Python.
    """
    return {name: digest(text) for name, text in _texts(ast.parse(source)).items()}


def _texts(tree: ast.Module) -> dict[str, str]:
    found: dict[str, list[str]] = collections.defaultdict(list)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    exported = {
        c.value
        for n in tree.body
        if isinstance(n, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in n.targets)
        for c in ast.walk(n)
        if isinstance(c, ast.Constant) and isinstance(c.value, str)
    }
    imported = []
    for node in _statements(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported += _imported(node, used | exported)
        elif isinstance(node, ast.ClassDef):
            _add_class(node, node.name, found)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[f"{node.name}()"].append(_canonical(node))
        elif not _is_main(node):
            found[_assigned(node) or "top level"].append(_canonical(node))
    if imported:
        found["imports"].append("\n".join(sorted(set(imported))))
    return {name: "\n".join(texts) for name, texts in found.items()}


def _add_class(node: Any, name: str, found: Any) -> None:
    body = []
    for inner in _statements(node.body):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            found[f"{name}.{inner.name}()"].append(_canonical(inner))
        else:
            body.append(_canonical(inner))
    outside = [_canonical(n) for n in (*node.bases, *node.keywords, *node.decorator_list)]
    found[f"class {name}"].append(json.dumps([outside, body]))


def _imported(node: Any, used: Any) -> list[str]:
    """Returns the used names of an import; of a star import, all."""
    if isinstance(node, ast.Import):
        pairs = [(a.name, a.asname or a.name.split(".")[0], "") for a in node.names]
    else:
        within = "." * node.level + (node.module or "")
        pairs = [(a.name, a.asname or a.name, within) for a in node.names]
    return [f"{within}:{name} as {to}" for name, to, within in pairs if to in used or name == "*"]


def _assigned(node: ast.AST) -> str:
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    else:
        return ""
    names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    return ", ".join(dict.fromkeys(names))


def _is_main(node: ast.AST) -> bool:
    """Returns whether a statement is `if __name__ == '__main__':`, or `if TYPE_CHECKING:`."""
    if not isinstance(node, ast.If) or node.orelse:
        return False
    test = ast.unparse(node.test)
    return test in ("__name__ == '__main__'", "'__main__' == __name__") or test.endswith(
        "TYPE_CHECKING"
    )


def _statements(body: Any) -> Any:
    """Returns the statements that have an effect: no docstrings or other texts, no `pass`."""
    return [
        node
        for node in body
        if not isinstance(node, ast.Pass)
        and not (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str | type(...))
        )
    ]


# What says nothing of what is computed, or only newer versions of Python have.
_NOT_FIELDS = frozenset(("ctx", "kind", "type_comment", "type_ignores"))


def _canonical(node: Any) -> str:
    """Returns a syntax tree as text, the same in all versions of Python that have its syntax."""
    if isinstance(node, list):
        if node and all(isinstance(n, ast.stmt) for n in node):
            node = _statements(node)
        return f"[{','.join(map(_canonical, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {_scalar(node.value, whole=True)}"
    fields = [
        f"{name}={_canonical(value)}"
        for name, value in ast.iter_fields(node)
        if name not in _NOT_FIELDS and value is not None and value != []
    ]
    return f"{type(node).__name__}({','.join(fields)})"


# Modules.


def is_suites(module: str, path: str | None) -> bool:
    """Returns whether a module is the suite's own."""
    return module.split(".")[0] in _OF_SUITE and _within(path, SUITE)


def _within(path: str | None, folder: str) -> bool:
    return path is not None and os.path.realpath(path).startswith(folder + os.sep)


def _is_own(module: str, path: str | None, packages: Iterable[str] = ()) -> bool:
    """Returns whether a module is the user's: neither the suite's nor installed."""
    if not path or not path.endswith(".py") or is_suites(module, path):
        return False
    if module.split(".")[0] in packages:
        return True
    path = os.path.realpath(path)
    return not (
        path.startswith(_INSTALLED) or {"site-packages", "dist-packages"} & set(path.split(os.sep))
    )


def _path_of(name: str) -> str | None:
    """Returns the file of a module, without importing anything."""
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__file__", None)
    places, spec = None, None
    *parents, _ = names = [name[: i or None] for i in (*_dots(name), None)]
    for inner in names:
        loaded = sys.modules.get(inner)
        if loaded is not None and inner in parents:
            places = list(getattr(loaded, "__path__", ()))
            continue
        try:
            spec = importlib.machinery.PathFinder.find_spec(inner, places)
        except (ImportError, ValueError, OSError):
            return None
        if spec is None:
            return None
        places = spec.submodule_search_locations
    return None if spec is None else spec.origin


def _dots(name: str) -> list[int]:
    return [i for i, c in enumerate(name) if c == "."]


def label(module: str) -> str:
    """Returns the name of a module independently of its location: `my_tasks/blobs.py`.

    A script, notebook or console is `the program`, so that it may be renamed.
    """
    return "the program" if module == "__main__" else module.replace(".", "/") + ".py"


def _source(path: str) -> str:
    linecache.checkcache(path)
    return "".join(linecache.getlines(path))


@functools.lru_cache(maxsize=256)
def _parsed(path: str, source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


@functools.lru_cache(maxsize=256)
def _compiled(path: str, source: str) -> dict[str, list[types.CodeType]]:
    """Returns the code of all functions in a source text, by qualified name."""
    found = collections.defaultdict(list)

    def add(code: Any) -> None:
        found[code.co_qualname].append(code)
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                add(inner)

    try:
        add(compile(source, path, "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        return {}
    return found


# A flag of code since Python 3.13; before, the first constant is a docstring if it is a text.
_HAS_DOCSTRING = 0x4000000


def _same_code(a: types.CodeType, b: types.CodeType) -> bool:
    return _bytecode(a) == _bytecode(b)


@functools.lru_cache(maxsize=4096)
def _bytecode(code: types.CodeType) -> str:
    """Returns a text of what a function does, for functions without source."""
    docstring = code.co_consts[0] if code.co_consts else None
    if sys.version_info >= (3, 13) and not code.co_flags & _HAS_DOCSTRING:
        docstring = None
    constants = [
        _bytecode(c)
        if isinstance(c, types.CodeType)
        else ""
        if i == 0 and isinstance(docstring, str)
        else _constant(c)
        for i, c in enumerate(code.co_consts)
    ]
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return json.dumps([code.co_code.hex(), constants, names, code.co_argcount])


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):
        return f"set{sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({','.join(map(_constant, value))})"
    return f"{type(value).__name__} {_scalar(value, whole=True)}"


def _scalar(value: Any, whole: bool = False) -> str:
    """Returns a number or text as text; of an absolute path only its last part, unless `whole`."""
    if isinstance(value, np.generic):
        return f"{value.dtype} {value.item()!r}"
    if whole:
        return repr(value)
    if isinstance(value, bytes):
        return f"{len(value)} bytes {digest(value)}"
    if isinstance(value, str):
        # Where data lie differs from machine to machine.
        value = os.path.basename(value.rstrip("/")) if os.path.isabs(value) else value
        return repr(value) if len(value) <= _LONG else f"text {digest(value)}"
    return repr(value)


# Objects.


@dataclasses.dataclass
class Found:
    """The code and values that objects are made of.

    Attributes:
      code: `my_task.py` → `load()` → digest of its syntax tree.
      values: Description (`loss, factor`) → its value as text, or a digest (`#...`).
    """

    code: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    values: dict[str, str] = dataclasses.field(default_factory=dict)


class Describer:
    """Inspects objects, and the modules that they reach.

    Attributes:
      found: The findings so far.
      packages: Installed packages that are treated as the user's.
    """

    def __init__(
        self,
        handlers: Iterable[Callable[["Describer", str, Any], bool]] = (),
        packages: Iterable[str] = (),
        places: Iterable[str] = (),
    ):
        """Initialises the describer.

        Args:
          handlers: Functions for a library's objects. Each is called with this describer, the
            description and the object, and returns whether it has handled the object.
          packages: Installed packages that are treated as the user's.
          places: Folders that may be elsewhere the next time.
        """
        self._places = tuple(places)
        self._known: dict[int, tuple[str, Any]] = {}
        self.found = Found()
        self._handlers, self.packages = tuple(handlers), frozenset(packages)
        self._values = self.found.values
        self._seen: dict[int, tuple[str, Any]] = {}
        self._modules: set[str] = set()

    def tell(self, name: str, text: str) -> None:
        """Adds a value."""
        self._values[name] = text

    def know(self, name: str, value: Any) -> None:
        """Lets an object that is inspected elsewhere be recorded by its name only."""
        self._known[id(value)] = name, value

    def look(self, name: str, value: Any) -> None:
        """Inspects an object.

        Args:
          name: Its description.
          value: The object.
        """
        if isinstance(value, _SCALARS) and not isinstance(value, enum.Enum):
            self.tell(name, _scalar(self._without_place(value)))
        elif id(value) in self._known:
            self.tell(name, self._known[id(value)][0])
        elif any(handler(self, name, value) for handler in self._handlers):
            pass
        elif isinstance(value, np.ndarray):
            self.tell(name, describe_array(value))
        elif isinstance(value, enum.Enum):
            self.tell(name, f"{type(value).__qualname__}.{value.name}")
        elif isinstance(value, os.PathLike):
            self.look(name, os.fspath(value))
        elif isinstance(value, Mapping):
            pairs = {_key(k): v for k, v in value.items()}
            self._look_within(name, value, {f"[{k}]": pairs[k] for k in sorted(pairs)})
        elif isinstance(value, list | tuple | collections.deque):
            self._look_within(name, value, {f"[{i}]": v for i, v in enumerate(value)})
        elif isinstance(value, set | frozenset):
            self.tell(name, f"set of {len(value)} {digest(json.dumps(sorted(map(_key, value))))}")
        elif isinstance(value, types.ModuleType):
            self.module(value.__name__)
        else:
            self._look_once(name, value)

    def _without_place(self, value: Any) -> Any:
        for place in self._places:
            if isinstance(value, str) and (f"{value}/").startswith(f"{place.rstrip('/')}/"):
                return "the data folder" + value[len(place.rstrip("/")) :]
        return value

    def _look_within(self, name: str, value: Any, inner: Mapping[str, Any]) -> None:
        """Inspects the content of a container; with many entries, the whole has one digest."""
        if id(value) in self._seen:
            self.tell(name, "itself")
            return
        self._seen[id(value)] = name, value
        outer, self._values = self._values, {}
        try:
            for key, item in inner.items():
                self.look(f"{name}{key}", item)
            told = self._values
        finally:
            self._values = outer
            del self._seen[id(value)]
        if len(told) > _FEW or not told:
            kind = type(value).__name__
            self.tell(name, f"{kind} of {len(inner)} {digest(json.dumps(sorted(told.items())))}")
        else:
            self._values.update(told)

    def _look_once(self, name: str, value: Any) -> None:
        if id(value) in self._seen:
            self.tell(name, f"as {self._seen[id(value)][0]}")
            return
        self._seen[id(value)] = name, value
        if isinstance(value, functools.partial):
            self.look(name, value.func)
            for i, argument in enumerate(value.args):
                self.look(f"{name}, argument {i + 1}", argument)
            for key in sorted(value.keywords):
                self.look(f"{name}, {key}", value.keywords[key])
        elif isinstance(value, types.MethodType):
            self.look(name, value.__func__)
            self.look(f"{name}, its object", value.__self__)
        elif isinstance(value, types.FunctionType):
            self._look_at_function(name, value)
        elif isinstance(value, staticmethod | classmethod):
            self.look(name, value.__func__)
        elif isinstance(value, property):
            for function in filter(None, (value.fget, value.fset)):
                self.look(name, function)
        elif isinstance(value, type):
            self._look_at_class(name, value)
        elif callable(getattr(value, "__wrapped__", None)):  # functools.lru_cache
            self.look(name, value.__wrapped__)
        elif isinstance(value, types.BuiltinFunctionType | np.ufunc):
            module = getattr(value, "__module__", None) or ""
            self.tell(name, f"{self._called(module)} {value.__name__}()".strip())
        elif hasattr(value, "to_numpy"):  # A table or series of pandas's.
            self.tell(name, f"{type(value).__name__} {describe_array(value.to_numpy())}")
        else:
            self._look_at_instance(name, value)

    def is_users(self, value: Any) -> bool:
        """Returns whether a class or function, or an object's class, is the user's."""
        value = getattr(value, "func", getattr(value, "__func__", value))
        if isinstance(value, types.FunctionType):
            return self._is_users(value.__module__ or "", value.__code__.co_filename)
        kind = value if isinstance(value, type) else type(value)
        return self._is_users(kind.__module__, _file_of(kind))

    # Functions.

    def _look_at_function(self, name: str, function: types.FunctionType) -> None:
        module, code = function.__module__ or "", function.__code__
        shown = _qualname(function.__qualname__)
        if not self._is_users(module, code.co_filename):
            self.tell(name, f"{self._called(module)} {shown}()".strip())
            if _at_its_name(function) is not function:
                self._look_at_cells(name, function)
            return
        self.tell(name, f"{shown}()")
        if module == "__main__" or not self._has_module(module, code.co_filename):
            self._add_code(module, shown, code)
        else:
            self.module(module)
            compiled = _compiled(code.co_filename, _source(code.co_filename))
            if len(compiled.get(code.co_qualname, ())) > 1:  # The module does not tell which it is.
                self.tell(name, f"{shown}() {digest(_text_of(code))}")
        self._look_at_cells(name, function)
        self._look_at_defaults(name, function)
        self._look_at_globals(function)

    def _look_at_cells(self, name: str, function: types.FunctionType) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        for variable, cell in cells:
            try:
                content = cell.cell_contents
            except ValueError:  # It is not set (yet).
                continue
            if content is not function and variable != "__class__":
                self._look_at_used(f"{name}, {variable}", content, function, variable)

    def _look_at_used(
        self, name: str, value: Any, function: types.FunctionType, variable: str
    ) -> None:
        """Inspects a variable of a function; for settings, only those that the function reads."""
        is_settings = type(value).__name__ in _SETTINGS
        if not is_settings and not isinstance(value, Mapping):
            self.look(name, value)
            return
        keys = _keys_read(function.__code__, variable)
        if keys is None and is_settings and hasattr(value, "flag_values_dict"):
            return  # absl's flags are those of all modules.
        if keys is None:
            self.look(name, value)
        for key in sorted(keys or ()):
            missing = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
            self.look(f"{name}[{key!r}]", missing)

    def _look_at_defaults(self, name: str, function: types.FunctionType) -> None:
        code = function.__code__
        defaults = function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
        for variable, value in zip(names, defaults, strict=True):
            self.look(f"{name}, {variable}", value)
        for variable, value in sorted((function.__kwdefaults__ or {}).items()):
            self.look(f"{name}, {variable}", value)

    def _look_at_globals(self, function: types.FunctionType) -> None:
        module = function.__module__ or ""
        names = _names_of(function.__code__)
        self._look_at_imports(function)
        for variable in sorted(names & function.__globals__.keys()):
            value = function.__globals__[variable]
            if isinstance(value, types.ModuleType):
                self._look_at_module(value, names)
            elif self._counts(module, variable, value):
                self._look_at_used(f"{label(module)}, {variable}", value, function, variable)

    def _look_at_imports(self, function: types.FunctionType) -> None:
        """Inspects the modules that a function of a main program imports inside its body."""
        if function.__module__ != "__main__":
            return  # The imports of a module are followed as a whole.
        node = _node_of(function.__code__)
        for name in _imports_of(node, "__main__") if node else ():
            self.module(name)

    def _look_at_module(self, module: types.ModuleType, names: Any) -> None:
        if not self._is_users(module.__name__, getattr(module, "__file__", None)):
            return
        self.module(module.__name__)
        for variable in sorted(names & vars(module).keys()):
            value = vars(module)[variable]
            if not isinstance(value, types.ModuleType) and self._counts(
                module.__name__, variable, value
            ):
                self.look(f"{label(module.__name__)}, {variable}", value)

    def _counts(self, module: str, variable: str, value: Any) -> bool:
        """Returns whether a value adds information to the syntax tree of its module.

        Args:
          module: The module.
          variable: A global of it, or an attribute of a class: `Net.width`.
          value: The value.
        """
        if module == "__main__":
            return True
        if isinstance(value, types.FunctionType | type | functools.partial):
            return True
        if isinstance(value, staticmethod | classmethod | property):
            return True
        if isinstance(value, list | dict | set):
            # What begins empty is filled while the program runs: a cache, or a list of names.
            return not _begins_empty(module, variable)
        if isinstance(value, _SCALARS | tuple | frozenset | np.ndarray | enum.Enum):
            return True
        return self.is_users(type(value)) or type(value).__name__ in _SETTINGS

    # Classes and their instances.

    def _look_at_class(self, name: str, kind: type) -> None:
        shown = _qualname(kind.__qualname__)
        if not self._is_users(kind.__module__, _file_of(kind)):
            self.tell(name, f"{self._called(kind.__module__)} {shown}")
            return
        self.tell(name, f"class {shown}")
        module = kind.__module__
        in_file = module != "__main__" and self._has_module(module, _file_of(kind))
        if in_file:
            self.module(module)
        attributes = {} if issubclass(kind, enum.Enum) else vars(kind)
        for key, value in sorted(attributes.items()):
            made = getattr(getattr(value, "__code__", None), "co_filename", "")
            if key in _OF_CLASSES or key.startswith("_abc_") or made == "<string>":
                continue  # `<string>`: what dataclasses write.
            if isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType):
                continue
            if not in_file or self._counts(module, f"{shown}.{key}", value):
                self.look(f"{label(module)}, {shown}.{key}", value)
        for base in kind.__bases__:
            if base is not object:
                self.look(f"{name}, base {base.__name__}", base)

    def _look_at_instance(self, name: str, value: Any) -> None:
        kind = type(value)
        shown = _qualname(kind.__qualname__)
        users = self._is_users(kind.__module__, _file_of(kind))
        if users:
            self.tell(name, f"{shown} object")
            self.look(f"{name}, its class", kind)
        else:
            self.tell(name, f"{self._called(kind.__module__)} {shown} object")
            if isinstance(value, np.random.Generator | np.random.RandomState):
                return
            if kind.__module__.split(".")[0] in _OF_THE_PROCESS:
                return
        state = state_of(value)
        if not state and not users:
            text = repr(value)
            if kind.__repr__ is not object.__repr__ and " at 0x" not in text:
                self.tell(name, f"{shown} {text if len(text) <= _LONG else digest(text)}")
            return
        for key in sorted(state):
            inner = state[key]
            if key.startswith("_") and not users:
                continue
            if users or isinstance(
                inner, _SCALARS | list | tuple | dict | set | np.ndarray | types.FunctionType
            ):
                self.look(f"{name}, {key}", inner)

    # Modules.

    def module(self, name: str) -> None:
        """Adds a module's syntax trees if it is the user's, and those of all that it imports."""
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if name in self._modules:
                continue
            self._modules.add(name)
            path = _path_of(name)
            if name == "__main__" or path is None or not _is_own(name, path, self.packages):
                continue
            source = _source(path)
            tree = _parsed(path, source)
            if tree is None:
                continue
            own = {part: digest(text) for part, text in _texts(tree).items()}
            self.found.code[label(name)] = own | _of_other_code(name, path, source, own)
            waiting += _imports_of(tree, name)

    def _has_module(self, module: str, filename: str | None) -> bool:
        """Returns whether a file belongs to a module whose syntax tree is available."""
        path = _path_of(module)
        return path is not None and os.path.realpath(path) == os.path.realpath(filename or "")

    def _is_users(self, module: str, path: str | None) -> bool:
        if module == "__main__":
            return True
        if path and path.startswith("<"):  # Of a console, or made by `exec`.
            path = _path_of(module) if module in sys.modules else None
            return path is None or _is_own(module, path, self.packages)
        if path is None or not path.endswith(".py"):
            return "ipykernel" in (path or "") or "ipython" in (path or "")
        return _is_own(module, path, self.packages)

    def _called(self, module: str) -> str:
        """Returns a module's package name, since the module itself may differ between versions."""
        if is_suites(module, _path_of(module)):
            return "the suite's"
        top = module.split(".")[0]
        return _SAME.get(top, top)

    def _add_code(self, module: str, shown: str, code: Any) -> None:
        text, name = _text_of(code), f"{shown}()"
        of_module = self.found.code.setdefault(label(module), {})
        known = of_module.get(name)
        # Functions of one name, such as two lambdas.
        of_module[name] = digest(text) if known in (None, digest(text)) else digest(known + text)


def describe_array(array: np.ndarray) -> str:
    """Returns dtype, shape and a digest of an array's content."""
    array = np.asarray(array)
    shape = ", ".join(map(str, array.shape))
    content = repr(array.tolist()) if array.dtype.hasobject else np.ascontiguousarray(array).data
    data = content.encode() if isinstance(content, str) else content
    return f"{array.dtype}[{shape}] {digest(bytes(data))}"


def state_of(value: Any) -> dict[str, Any]:
    """Returns an instance's attributes, without the results of cached properties."""
    kind, state = type(value), {}
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                state[slot] = getattr(value, slot)
    state |= getattr(value, "__dict__", {})
    return {
        key: inner
        for key, inner in state.items()
        if not isinstance(getattr(kind, key, None), functools.cached_property)
    }


def _key(value: Any) -> str:
    """Returns a key of a dictionary, or a member of a set, as text."""
    if isinstance(value, _SCALARS):
        return _scalar(value, whole=True)
    if isinstance(value, tuple):
        return f"({', '.join(map(_key, value))})"
    if isinstance(value, frozenset):
        return f"set{sorted(map(_key, value))}"
    return f"{getattr(value, '__qualname__', type(value).__qualname__)}"


def _qualname(name: str) -> str:
    return name.replace(".<locals>", "").replace("<lambda>", "lambda")


def _file_of(kind: type) -> str | None:
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None)


def _at_its_name(function: Any) -> Any:
    """Returns the object found at a function's own qualified name."""
    found = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found


def _names_of(code: types.CodeType) -> set[str]:
    """Returns the globals and attributes that a function uses, including its inner functions."""
    names = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names |= _names_of(inner)
    return names


def _node_of(code: types.CodeType) -> ast.AST | None:
    """Returns the syntax tree of a function; `None` if its source is missing or differs."""
    source = _source(code.co_filename)
    tree = _parsed(code.co_filename, source) if source else None
    if tree is None:
        return None
    compiled = _compiled(code.co_filename, source).get(code.co_qualname, ())
    if not any(c.co_firstlineno == code.co_firstlineno and _same_code(c, code) for c in compiled):
        return None
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    found = [n for n in ast.walk(tree) if isinstance(n, kinds) and _names(n, code)]
    if len(found) > 1:
        places = set(code.co_positions())
        found = [
            n
            for n in found
            if isinstance(n, ast.Lambda)
            and (n.body.lineno, n.body.end_lineno, n.body.col_offset, n.body.end_col_offset)
            in places
        ]
    return found[0] if len(found) == 1 else None


def _text_of(code: types.CodeType) -> str:
    """Returns a function's syntax tree as text, or its bytecode if there is no source."""
    node = _node_of(code)
    return _bytecode(code) if node is None else _canonical(node)


def _keys_read(code: types.CodeType, variable: str) -> set[str] | None:
    """Returns the keys or attributes of a variable that a function reads; `None` if unknown."""
    node = _node_of(code)
    keys: set[Any] = set()
    if node is None:
        return None
    inner = set()
    for at in ast.walk(node):
        held = getattr(at, "value", None)
        if not isinstance(held, ast.Name) or held.id != variable:
            continue
        if isinstance(at, ast.Subscript) and isinstance(at.slice, ast.Constant):
            keys.add(at.slice.value)
        elif isinstance(at, ast.Attribute) and at.attr not in ("get", "items", "values", "keys"):
            keys.add(at.attr)
        else:
            continue
        inner.add(id(held))
    others = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == variable]
    return keys if all(id(n) in inner for n in others) and _are_texts(keys) else None


def _are_texts(keys: Iterable[Any]) -> bool:
    return all(isinstance(key, str) for key in keys)


def _names(node: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno


def _of_other_code(module: str, path: str, source: str, known: Iterable[str]) -> dict[str, str]:
    """Returns digests of functions in memory that differ from those in their file.

    This happens if a file changed after it was imported.
    """
    loaded = sys.modules.get(module)
    compiled, found = _compiled(path, source), {}
    functions = []
    for value in list(vars(loaded).values()) if loaded else ():
        if isinstance(value, types.FunctionType):
            functions.append(value)
        elif isinstance(value, type) and value.__module__ == module:
            functions += [v for v in vars(value).values() if isinstance(v, types.FunctionType)]
    for function in functions:
        code = function.__code__
        if os.path.realpath(code.co_filename) != os.path.realpath(path):
            continue
        same = compiled.get(code.co_qualname, ())
        if not any(_same_code(code, other) for other in same):
            found[f"{code.co_qualname}()"] = digest(_bytecode(code))
    return found


def _imports_of(tree: ast.AST, module: str) -> list[str]:
    """Returns the names of modules that a syntax tree may import."""
    loaded = sys.modules.get(module)
    path = _path_of(module) if module != "__main__" else None
    is_package = os.path.basename(path or "") == "__init__.py"
    package = module if is_package else module.rpartition(".")[0]
    if module == "__main__":
        package = getattr(loaded, "__package__", None) or ""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    with_parents = [name[: i or None] for name in names for i in (*_dots(name), None)]
    return [name for name in dict.fromkeys(with_parents) if name and not name.endswith(".*")]


# Called with nothing, or with what makes a missing value.
_CONTAINERS = frozenset(
    ("dict", "list", "set", "defaultdict", "OrderedDict", "Counter")
    + ("WeakKeyDictionary", "WeakValueDictionary", "WeakSet")
)


@functools.lru_cache(maxsize=256)
def _empty_names(path: str, source: str) -> frozenset[str]:
    tree = _parsed(path, source)
    return frozenset(_empty_within(tree.body, "")) if tree else frozenset()


def _empty_within(body: Iterable[ast.AST], prefix: str) -> set[str]:
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names |= _empty_within(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = node.value
            empty = (isinstance(value, ast.Dict) and not value.keys) or (
                isinstance(value, ast.List | ast.Set) and not value.elts
            )
            called = ""
            if isinstance(value, ast.Call) and not value.keywords and not value.args[1:]:
                called = ast.unparse(value.func).split(".")[-1]
            if empty or called in _CONTAINERS:
                names.update(f"{prefix}{name}" for name in _assigned(node).split(", "))
    return names


def _begins_empty(module: str, variable: str) -> bool:
    path = _path_of(module)
    return path is not None and variable in _empty_names(path, _source(path))


def loaded_suite(roots: Iterable[str]) -> dict[str, str]:
    """Returns digests of the suite's files that modules reach through their imports.

    Args:
      roots: Names of modules of the suite.

    Returns:
      Path in the suite's folder → digest of its syntax tree.
    """
    found, waiting, seen = {}, list(roots), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path = _path_of(name)
        if path is None or not is_suites(name, path):
            continue
        digest_, imported = _of_file(path, os.stat(path).st_mtime_ns, name)
        found[pathlib.Path(os.path.realpath(path)).relative_to(SUITE).as_posix()] = digest_
        waiting += imported
    return dict(sorted(found.items()))


def of_modules(names: Iterable[str]) -> dict[str, str]:
    """Returns a digest of each of the user's modules that the given modules reach.

    Args:
      names: Names of modules.

    Returns:
      `the code of my_task.py` → digest.
    """
    describer = Describer()
    for name in names:
        describer.module(name)
    code = describer.found.code
    return {f"the code of {m}": digest(json.dumps(sorted(p.items()))) for m, p in code.items()}


@functools.lru_cache(maxsize=1024)
def _of_file(path: str, changed: int, name: str) -> tuple[str, tuple[str, ...]]:
    del changed
    tree = ast.parse(pathlib.Path(path).read_text(encoding="utf-8"))
    texts = _texts(tree)
    return digest(json.dumps(sorted(texts.items()))), tuple(_imports_of(tree, name))
