"""Writes docs/what_is_checked.md: every error and warning in the source, and the tests by class.

python tools/checked_page.py
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

REPO = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from tff_suite import command_line, parser

PARSER = parser.Parser(__doc__)
PAGE = REPO / "docs" / "what_is_checked.md"
_CASES = REPO / "tests" / "user_cases"
# Heading → what its messages are in: files or folders, the first that holds a file counts.
_AREAS = {
    "Models, losses and metrics": (
        "tff_algos/keras_bridge.py",
        "tff_algos/keras_models",
        "tff_algos/tff_models.py",
        "tff_algos/model.py",
        "simulation/task_models.py",
        "tasks/models",
        "tasks/layers",
    ),
    "Methods and their settings": ("hparams.py", "tff_suite/hparams.py", "tff_algos"),
    "Tasks and data": ("tasks",),
    "Runs, their folders and resuming": ("simulation",),
    "Sweeps, tables and figures": ("reproduction", "reproduce.py"),
    "Commands": ("tff_suite", "run_experiment.py"),
}
_ERRORS = re.compile(r"(Error|_Refused)$")
# Functions that raise, or print, what they are given.
_REFUSING = re.compile(r"^_?(refuse|fail|damaged|told)$")
_WARNING = re.compile(r"^_?warn$")
# Programming errors, of those who write a method or a runtime, not of those who use one.
_INTERNAL = {"AttributeError", "KeyError", "NotImplementedError"}

_INTRODUCTION = """# What is checked

A run gives the right number, or it stops with one line that says what is wrong and what to do.
This page lists both halves: the tests of what users bring, and every refusal and warning in the
source. `python tools/checked_page.py` writes it.

A word in angle brackets stands for a value; `…` stands for longer text.
"""


class Message(NamedTuple):
    """An error or a warning.

    Attributes:
      kind: The exception's class, or `warning`.
      text: Its text.
    """

    kind: str
    text: str


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _text(node: ast.expr) -> str | None:
    """Returns the text of a string, with placeholders for values known only at run time."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else _placeholder(part.value)
            for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_text(side) for side in (node.left, node.right)]
        return None if parts == [None, None] else "".join(part or "…" for part in parts)
    return None


def _placeholder(node: ast.expr) -> str:
    name = _name(node).strip("_")
    return f"<{name}>" if name else "…"


def messages(source: str) -> Iterator[Message]:
    """Yields the errors and warnings in a module's source, in order."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise):
            call = node.exc
        elif isinstance(node, ast.Expr | ast.Return):
            call = node.value
        else:
            continue
        if not isinstance(call, ast.Call) or not call.args:
            continue
        name = _name(call.func)
        if isinstance(node, ast.Raise) and not (_ERRORS.search(name) or _REFUSING.match(name)):
            continue
        if not isinstance(node, ast.Raise) and not (_REFUSING.match(name) or _WARNING.match(name)):
            continue
        text = next((t for t in map(_text, call.args) if t and " " in t), None)
        if text is None or name in _INTERNAL:
            continue
        kind = name if _ERRORS.search(name) and name != "_Refused" else "error"
        kind = "warning" if _WARNING.match(name) else kind
        found.append((node.lineno, Message(kind, " ".join(text.split()))))
    yield from (message for _, message in sorted(found))


def _area(path: pathlib.Path) -> str:
    place = path.relative_to(REPO).as_posix()
    return next(
        area
        for area, places in _AREAS.items()
        if any(place == p or place.startswith(f"{p}/") for p in places)
    )


def _sources() -> list[pathlib.Path]:
    tops = {p.split("/")[0] for places in _AREAS.values() for p in places}
    return sorted(
        path
        for top in tops
        for path in ([REPO / top] if top.endswith(".py") else (REPO / top).rglob("*.py"))
    )


def _cases() -> list[str]:
    """Returns lines for each file of tests of user input: its subject and its tests."""
    lines = []
    for path in sorted(_CASES.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        docstring = ast.get_docstring(tree) or ""
        first = " ".join(docstring.split("\n\n")[0].split())
        lines.append(f"- {first} (`{path.relative_to(REPO).as_posix()}`)")
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                lines.append(f"    - {node.name.removeprefix('test_').replace('_', ' ')}")
    return lines


def page() -> str:
    """Returns the page."""
    areas: dict[str, dict[str, list[Message]]] = {area: {} for area in _AREAS}
    for path in _sources():
        found = list(dict.fromkeys(messages(path.read_text())))
        if found:
            areas[_area(path)][path.relative_to(REPO).as_posix()] = found
    lines = [_INTRODUCTION, "## Tests of what users bring\n", *_cases(), ""]
    for area, files in areas.items():
        lines.append(f"## {area}\n")
        for place, found in files.items():
            lines += [f"### `{place}`\n", "| kind | message |", "| --- | --- |"]
            lines += [f"| {kind} | {_in_table(text)} |" for kind, text in found]
            lines.append("")
    return "\n".join(lines)


def _in_table(text: str) -> str:
    return "`" + text.replace("`", "'").replace("|", "\\|") + "`"


@command_line.reported
def main(arguments: list[str]) -> int:
    """Writes the page; returns the exit code."""
    PARSER.parse(arguments)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
