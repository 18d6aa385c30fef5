"""Imports follow the arrows of the picture in `docs/design.md`, and nothing names one method."""

import ast
import functools
import graphlib
import itertools
import pathlib
import re

import pytest

_REPO = pathlib.Path(__file__).resolve().parent.parent
_FOLDERS = ("benchmarks", "reproduction", "simulation", "tasks", "tff_algos", "tff_suite", "tools")
_PICTURE = re.search(
    r"```mermaid\n(.*?)```", (_REPO / "docs" / "design.md").read_text("utf-8"), re.DOTALL
)[1].splitlines()

# Which modules a box of the picture stands for: of those that a module is within, the longest.
_BOXES = {
    "reproduce": ["reproduce"],
    "items": ["reproduction"],
    "run": ["run_experiment"],
    "experiment": ["simulation"],
    "workers": ["simulation.workers"],
    "assembly": ["simulation.assembly"],
    "measures": ["simulation.measures"],
    "rounds": ["simulation.rounds"],
    "records": ["simulation.records"],
    "flags": [
        "simulation.experiment_flags",
        "simulation.other_names",
        "simulation.run_checks",
        "simulation.run_hparams",
        "simulation.run_parser",
    ],
    "runtimes": ["simulation.runtimes"],
    "engine": ["simulation.engine"],
    "intrinsics": ["simulation.tff"],
    "device": ["simulation.device"],
    "errors": [
        "simulation.errors",
        "simulation.protocol",
        "simulation.task_models",
        "simulation.cluster",
        "simulation.supervisor",
    ],
    "methods": ["tff_algos.methods"],
    "parts": ["tff_algos.parts"],
    "round": ["tff_algos"],
    # Both commands act on data sets; a table is one.
    "datasets": [
        "tasks.datasets",
        "tasks.frames",
        "tasks.images",
        "tasks.plot",
        "tasks.prepare",
        "tasks.tables",
    ],
    "formats": ["tasks.formats"],
    "models": ["tasks.models", "tasks.layers"],
    "task": ["tasks"],
    "suite": ["tff_suite"],
}

# What a package imports to register its folder, and to offer its parts under its own name.
_OF_PACKAGES = {
    ("tff_algos", "tff_algos.methods"),
    ("tasks", "tasks.datasets"),
    ("tasks", "tasks.formats.files"),
    ("tasks", "tasks.formats.remote"),
}
# A figure of a paper that draws a function of the method.
_OF_ONE_METHOD = {("reproduction.adjustments", "tff_algos.methods.fedcada")}


@functools.cache
def imports() -> dict[str, set[str]]:
    """Returns which of the suite's modules each one imports, at its top or in a function."""
    paths = [p for folder in _FOLDERS for p in (_REPO / folder).rglob("*.py")]
    paths += [_REPO / f"{name}.py" for name in ("reproduce", "run_experiment")]
    trees = {}
    for path in paths:
        name = ".".join(path.relative_to(_REPO).with_suffix("").parts)
        trees[name.removesuffix(".__init__")] = ast.parse(path.read_text("utf-8"))
    found = {}
    for name, tree in trees.items():
        named = set()
        # What only type checkers import is imported at run time by name.
        checked = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in set(ast.walk(tree)) - checked:
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                parts = [f"{node.module}.{alias.name}" for alias in node.names]
                named |= {part if part in trees else node.module for part in parts}
        found[name] = (named & trees.keys()) - {name}
    return found


def box_of(module: str) -> str | None:
    within = [
        (len(place), box)
        for box, places in _BOXES.items()
        for place in places
        if f"{module}.".startswith(f"{place}.")
    ]
    return max(within)[1] if within else None


@functools.cache
def ways() -> set[tuple[str, str]]:
    """Returns the pairs of boxes that arrows of the picture lead from and to, over others or not.

    An arrow at a room is one at each of its boxes.
    """
    boxes, room = {}, None
    for line in _PICTURE:
        name = re.match(r" *(subgraph )?(\w+)", line)
        if name and name[1]:
            room = name[2]
        elif line.strip() == "end":
            room = None
        elif "[" in line:
            boxes[name[2]] = [name[2]]
            boxes.setdefault(room, []).append(name[2])
    found = set()
    for line in _PICTURE:
        for start, end in itertools.pairwise(re.findall(r"\w+", line) if "-->" in line else ()):
            found |= set(itertools.product(boxes[start], boxes[end]))
    for over in boxes:
        before = {a for a, b in found if b == over}
        after = {b for a, b in found if a == over}
        found |= set(itertools.product(before, after))
    return found


def test_the_picture_has_no_circle():
    boxes = {box for way in ways() for box in way}
    assert boxes == _BOXES.keys()
    assert not [box for box in boxes if (box, box) in ways()]


def test_imports_follow_the_arrows():
    against = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if box_of(module) and box_of(module) != box_of(other)
        if (box_of(module), box_of(other)) not in ways() and (module, other) not in _OF_PACKAGES
    ]
    assert not against
    assert all(other in imports()[module] for module, other in _OF_PACKAGES), "none is idle"


def test_no_modules_import_each_other_in_a_circle():
    graphlib.TopologicalSorter(imports()).prepare()


@pytest.mark.parametrize("folder", ["tff_algos.methods", "tasks.datasets"])
def test_a_file_of_the_folder_is_named_in_the_folder_only(folder):
    named = {
        (module, other)
        for module, others in imports().items()
        for other in others
        if other.startswith(f"{folder}.") and not module.startswith(f"{folder}.")
    }
    assert named == {pair for pair in _OF_ONE_METHOD if pair[1].startswith(f"{folder}.")}


def test_no_method_imports_another_methods_file():
    """What several methods share is in `tff_algos/parts`."""
    crossed = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if module.startswith("tff_algos.methods.") and other.startswith("tff_algos.methods.")
    ]
    assert not crossed
