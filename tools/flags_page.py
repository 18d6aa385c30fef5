"""Writes docs/flags.md: every flag of the two main commands, as they declare it.

python tools/flags_page.py
"""

import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence

REPO = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

import reproduce
import tasks
import tff_algos
from simulation import run_parser
from tff_suite import command_line, parser
from tff_suite.hparams import Hparam
from tools.method_and_task_pages import own_methods, own_tasks

PARSER = parser.Parser(__doc__)
PAGE = REPO / "docs" / "flags.md"

# Flags of every run that some methods refuse → whether a method takes them.
_BY_METHOD: dict[str, Callable[[tff_algos.MethodSpec], bool]] = {
    "clients_per_round": lambda spec: spec.draws_clients,
    "server_learning_rate": lambda spec: spec.has_server_step,
    "client_weighting": lambda spec: spec.client_weighting is not None,
    "aggregator": lambda spec: not isinstance(spec.aggregated, str),
}
_TITLES = {
    "run": "The run",
    "training": "Training on clients",
    "algorithm": "Methods",
    "task": "Tasks",
}
_INTRODUCTION = """# Flags

This page lists every flag of `run_experiment.py` and `reproduce.py`.
`python tools/flags_page.py` writes it from the declarations that `--helpfull` prints.
`python run_experiment.py --algorithm=NAME --task=NAME --help` lists only the flags that apply.

- `<task>` in a name stands for one of the tasks in the last column.
- *Source* says where a default comes from. `choice` means that the suite chose it.
- [Commands](commands.md) has the flags of every command, and the forms in which flags are written.
"""


def page() -> str:
    """Returns the page."""
    parts = [_INTRODUCTION, "## `run_experiment.py`"]
    # Packages of the user's may have registered others.
    own = {"run", "training", *own_methods(), *own_tasks()}
    owners = run_parser.flag_owners()
    for kind, title in _TITLES.items():
        found = [
            (flag, hparam, [name for k, name in owned_by if k == kind and name in own])
            for flag, (hparam, owned_by) in owners.items()
        ]
        found = [(flag, hparam, names) for flag, hparam, names in found if names]
        rows = [
            [*_described(flag, hparam), _source(hparam), _users(kind, flag, names)]
            for flag, hparam, names in (_joined(found) if kind == "task" else found)
        ]
        parts += [f"### {title}", _table(rows, [*_COLUMNS, "source", "used by"])]
    rows = [
        [*_described(flag.name, flag.hparam, flag.form), _modes(flag.name)]
        for flag in reproduce.PARSER.flags.values()
        if flag.hparam.help
    ]
    parts += ["## `reproduce.py`", _table(rows, [*_COLUMNS, "used by"])]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


_PAGE_NAMED = re.compile(r"docs/(\w+)\.md")
_COLUMNS = ("flag", "default", "range", "meaning")


def _described(flag: str, hparam: Hparam, form: str = "one") -> list[str]:
    kind = "text,..." if form == "list" else parser.kind_of(hparam)
    shown = f"`--{flag}`" if hparam.type is bool else f"`--{flag}=<{kind}>`"
    default = hparam.describe_default()
    if isinstance(hparam.default, bool):
        default = default.lower()
    text = re.sub(r"--\w+", r"`\g<0>`", hparam.help)
    return [shown, default, hparam.describe_range(), _PAGE_NAMED.sub(r"[\1](\1.md)", text)]


def _source(hparam: Hparam) -> str:
    return "" if hparam.source == "none" else hparam.source


def _joined(
    found: Iterable[tuple[str, Hparam, Sequence[str]]],
) -> list[tuple[str, Hparam, list[str]]]:
    """Returns flags of tasks; those that several tasks declare alike are one, `<task>_<name>`."""
    alike: list[tuple[str, Hparam, list[str]]] = []
    for flag, hparam, names in found:
        shared = hparam.flag or f"<task>_{flag.removeprefix(f'{names[0]}_')}"
        same = next((users for f, h, users in alike if (f, h) == (shared, hparam)), None)
        if same is None:
            alike.append((shared, hparam, list(names)))
        else:
            same += names
    return [
        (flag if len(names) > 1 else flag.replace("<task>", names[0]), hparam, names)
        for flag, hparam, names in alike
    ]


def _users(kind: str, flag: str, names: Sequence[str]) -> str:
    if flag == "data_dir":
        known = own_tasks()
        return _listed([n for n in known if tasks.get(n).needs_data], known, "task")
    if flag in _BY_METHOD:
        known = own_methods()
        return _listed([n for n in known if _BY_METHOD[flag](tff_algos.get(n))], known, "method")
    return "every run" if kind in ("run", "training") else _code(names)


def _listed(some: Sequence[str], known: Sequence[str], kind: str) -> str:
    """Returns the names, or those that are missing where these are fewer."""
    others = [name for name in known if name not in some]
    return f"every {kind} but {_code(others)}" if len(others) < len(some) else _code(some)


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _modes(flag: str) -> str:
    """Returns for what `reproduce.py` reads one of its flags."""
    read = reproduce._READ
    if flag in reproduce._PLACES:
        return "everything"
    some = [] if flag == "column" or flag in read else ["runs"]
    return ", ".join([*some, *(f"`--{m}`" for m in read if flag == m or flag in read[m])])


def _table(rows: Iterable[Sequence[str]], headers: Sequence[str]) -> str:
    lines = [headers, ["---"] * len(headers)]
    for first, *others in rows:
        # In code a sign stands for itself.
        lines.append([first, *(cell.replace("<", "&lt;").replace("|", "\\|") for cell in others)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@command_line.reported
def main(arguments: list[str]) -> int:
    """Writes the page; returns the exit code."""
    PARSER.parse(arguments)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
