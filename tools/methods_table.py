"""Writes the table of `docs/methods.md` from the methods' specifications.

python tools/methods_table.py
"""

import itertools
import pathlib
import sys

REPO = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from tff_suite import command_line, parser
from tools import page_table

PARSER = parser.Parser(__doc__)

PAGE = REPO / "docs" / "methods.md"


def table() -> str:
    """Returns a line of Markdown for each file of methods: names, summary, paper."""
    import tff_algos

    specs = [tff_algos.get(name) for name in tff_algos.names()]
    own = [s for s in specs if str(s.builder).startswith("tff_algos.methods.")]
    lines = ["| method | what it does | paper |", "| --- | --- | --- |"]
    for module, members in itertools.groupby(sorted(own, key=_module), key=_module):
        members = list(members)
        names = " ".join(f"`{spec.name}`" for spec in members)
        link = f"[{names}](../{module.replace('.', '/')}.py)"
        lines.append(f"| {link} | {' '.join(s.summary for s in members)} | {members[0].paper} |")
    return "\n".join(lines) + "\n"


def _module(spec):
    return spec.builder.split(":")[0]


def written(text: str) -> str:
    """Returns a page with its table replaced."""
    return page_table.replaced(text, "methods", table())


@command_line.reported
def main(arguments: list[str]) -> int:
    """Writes the table; returns the exit code."""
    PARSER.parse(arguments)
    PAGE.write_text(written(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
