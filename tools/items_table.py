"""Writes the table of `docs/items.md` from the fields of set-ups.

python tools/items_table.py
"""

import pathlib
import sys

REPO = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from tff_suite import command_line, parser
from tools import page_table

PARSER = parser.Parser(__doc__)

PAGE = REPO / "docs" / "items.md"


def table() -> str:
    """Returns a line of Markdown for each field of an item's file."""
    from reproduction import setups

    lines = ["| field | is | meaning |", "| --- | --- | --- |"]
    for name, field in setups.FIELDS.items():
        must = ". Must be set" if name in setups.REQUIRED else ""
        lines.append(f"| `{name}` | {field.kind} | {field.help}{must} |")
    return "\n".join(lines) + "\n"


def written(text: str) -> str:
    """Returns a page with its table replaced."""
    return page_table.replaced(text, "fields", table())


@command_line.reported
def main(arguments: list[str]) -> int:
    """Writes the table; returns the exit code."""
    PARSER.parse(arguments)
    PAGE.write_text(written(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
