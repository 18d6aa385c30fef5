"""Tables in Markdown, and tables that commands print row by row, or as JSON with `--json`.

    tables.markdown([["fedavg", 1.0]], ["method", "down, M"])

    PARSER = parser.Parser(__doc__)
    tables.add_flag(PARSER)

    with tables.printed(options.json, {"method": "method", "down": "down, M"}) as table:
        table.add({"method": "fedavg", "down": 1.0})

JSON is a list of the records. Numbers in it that are not finite are null.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tff_suite import parser, writing

if TYPE_CHECKING:
    import pandas as pd


def markdown(
    rows: Iterable[Sequence[Any]], headers: Sequence[str], align: Sequence[str] | None = None
) -> str:
    """Returns a table whose names may contain `|` and line breaks.

    Args:
      rows: The rows, each with a value per column.
      headers: Titles of the columns.
      align: `left` or `right` for each column; by default by its values.
    """
    import tabulate  # here, since commands import this module before they catch signals

    return tabulate.tabulate(
        [[_cell(value) if isinstance(value, str) else value for value in row] for row in rows],
        [_cell(title) for title in headers],
        tablefmt="github",
        disable_numparse=True,
        colalign=align,
    )


def of_frame(frame: "pd.DataFrame", digits: int | None = None, *, index: bool = True) -> str:
    """Returns a pandas table as `markdown` does.

    Args:
      frame: The table.
      digits: Significant digits of fractional numbers; by default all.
      index: Whether its index is the first column.
    """
    rows = [
        [f"{v:.{digits}g}" if digits and isinstance(v, float) else v for v in row]
        for row in frame.itertuples(index=index, name=None)
    ]
    return markdown(rows, [*([frame.index.name or ""] if index else []), *map(str, frame.columns)])


def add_flag(of: parser.Parser) -> None:
    """Adds `--json` to a command that prints a table."""
    of.flag("json", False, "Print the table as JSON.")


class Table:
    """A table whose records are printed one by one.

    Attributes:
      records: The records so far.
    """

    def __init__(self, as_json: bool, heads: Mapping[str, str] | None = None):
        """Initialises without printing anything yet.

        Args:
          as_json: Whether to print nothing but JSON, at the end.
          heads: Key of a record → title of its column; the keys of the first record by default.
            Other keys are in the JSON only.
        """
        self._as_json, self._heads = as_json, heads
        self.records: list[Mapping[str, Any]] = []

    def say(self, text: str) -> None:
        """Prints a line outside the table, unless JSON is printed."""
        if not self._as_json:
            print(text, flush=True)

    def add(self, record: Mapping[str, Any]) -> None:
        """Prints a record as a row; the titles before the first."""
        if not self.records:
            self._heads = self._heads or {key: key for key in record}
            self.say(f"| {' | '.join(self._heads.values())} |\n|{' --- |' * len(self._heads)}")
        self.records.append(record)
        assert self._heads is not None
        self.say(f"| {' | '.join(_cell(record.get(key, '')) for key in self._heads)} |")

    def end(self) -> None:
        """Prints the JSON, if requested."""
        if self._as_json:
            print(writing.json_text(self.records))


def _cell(value: Any) -> str:
    """Returns a value's text, which neither ends its cell nor its row."""
    return " ".join(str(value).splitlines()).replace("|", r"\|")


@contextlib.contextmanager
def printed(as_json: bool, heads: Mapping[str, str] | None = None) -> Iterator[Table]:
    """Opens a table and prints it; the arguments are those of `Table`."""
    table = Table(as_json, heads)
    yield table
    table.end()
