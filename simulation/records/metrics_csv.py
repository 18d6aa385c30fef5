"""The tables of a run: metrics.csv with one row per round, client_metrics.csv with one per client.

`tff.program.CSVFileReleaseManager` was measured and rejected. It reads and writes the whole file in
every round (30 ms at 1,000 rows), and accepts a line that a kill has truncated as a row.
"""

import contextlib
import csv
import hashlib
import io
import json
import math
import os
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from simulation.errors import RunError
from simulation.records import files

if typing.TYPE_CHECKING:
    import pandas as pd

ROUND = "round_num"

# Prefix of the columns of clients whose training loss is tracked (--track_clients).
TRACKED = "client_loss/"

_GROUPS = ("train/", "eval/", "fairness/", "noise/", TRACKED, "time/")


class MetricsCsv:
    """metrics.csv, open for appending. Columns are ordered by group, then by first appearance."""

    def __init__(self, path: str, last_round: int):
        """Opens the file and removes the rows after a round.

        Args:
          path: Path of the file.
          last_round: The last round whose row is kept; -1 for none.

        Raises:
          RunError: If the file is not a table of metrics or lacks that round.
          OSError: If it cannot be written.
        """
        self._path = path
        columns, rows = kept_rows(path, last_round)
        if last_round >= 0 and (not rows or int(rows[-1][ROUND]) != last_round):
            raise RunError(
                f"{path} is damaged: it lacks rows up to round {last_round}; restore it, or choose "
                "another --experiment_name."
            )
        # Columns that only later rows fill are left out; they appear again with those rows.
        self._columns = [c for c in columns if c == ROUND or any(row[c] for row in rows)]
        rows = [{c: row[c] for c in self._columns} for row in rows]
        self._digest = hashlib.sha256()
        for row in rows:
            self._digest.update(_row_bytes(row))
        self._rewrite(rows)

    def append(self, round_num: int, values: Mapping[str, float]) -> None:
        """Adds a row and passes it to the operating system (see `sync`).

        Args:
          round_num: Number of rounds done.
          values: Column → number; other columns stay blank.
        """
        row = {ROUND: str(round_num), **{name: repr(float(v)) for name, v in values.items()}}
        new = [name for name in row if name not in self._columns]
        if new:
            self._file.close()
            rows = read_csv(self._path)[1]
            # A stable sort: within a group, columns stay in the order in which they came.
            self._columns = sorted([*self._columns, *new], key=_group)
            self._rewrite(rows)
        csv.DictWriter(self._file, self._columns, lineterminator="\n").writerow(row)
        self._file.flush()
        self._digest.update(_row_bytes(row))

    def checksum(self) -> str:
        """Returns the checksum of all rows, see `rows_digest`."""
        return self._digest.hexdigest()

    def sync(self) -> None:
        """Flushes all rows to disk; to be called before a checkpoint that relies on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _rewrite(self, rows):
        files.write_atomically(self._path, _csv_text(self._columns, rows))
        self._file = files.open_to_append(self._path, "a", encoding="utf-8", newline="")


def read_csv(path: str) -> tuple[list[str], list[dict[str, str]]]:
    """Reads metrics.csv; leaves out a last line that a kill has truncated.

    Returns:
      Columns and rows (column → text); the column `round_num` and no rows if the file is missing.

    Raises:
      RunError: If it cannot be read or is not a table of metrics.
    """
    if not os.path.lexists(path):
        return [ROUND], []
    try:
        with files.explained(path), open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except UnicodeDecodeError as e:
        raise RunError(f"{path} is damaged: {e}.") from e
    try:
        lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))
    except csv.Error as e:
        raise RunError(f"{path} is damaged: {e}.") from e
    columns, *lines = lines or [[ROUND]]
    if columns[:1] != [ROUND] or not all(map(_is_round, lines)):
        raise RunError(f"{path} is damaged: its first column must be {ROUND}, of whole numbers.")
    if len(set(columns)) < len(columns):
        raise RunError(f"{path} is damaged: two columns have the same name.")
    for line in lines:
        if len(line) != len(columns) or not all(map(_is_number, line)):
            raise RunError(f"{path} is damaged: see the row of round {line[0]}.")
    return columns, [dict(zip(columns, line, strict=True)) for line in lines]


def read_metrics(path: str) -> "pd.DataFrame":
    """Reads metrics.csv as numbers.

    Returns:
      `round_num` (int), then float columns, NaN where a row is blank.

    Raises:
      RunError: If it cannot be read or is not a table of metrics.
    """
    import pandas as pd  # Slow to import; errors in flags are reported without it.

    columns, rows = read_csv(path)
    metrics = pd.DataFrame(rows, columns=columns, dtype=object).replace("", np.nan)
    return metrics.astype({c: int if c == ROUND else float for c in columns})


def _is_round(line: Sequence[str]) -> bool:
    return bool(line) and line[0].isascii() and line[0].isdigit() and len(line[0]) <= 10


def _is_number(text: str) -> bool:
    try:
        return not text or float(text) is not None
    except ValueError:
        return False


def kept_rows(path: str, last_round: int) -> tuple[list[str], list[dict[str, str]]]:
    """Reads the rows of metrics.csv up to a round; later rows may be damaged.

    Raises:
      RunError: If the file is not a table of metrics.
    """
    try:
        # Invalid UTF-8 in later rows is harmless; in the kept rows the checksum detects it.
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            text = file.read()
    except FileNotFoundError:
        return [ROUND], []
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    columns, rows = [ROUND], []
    with contextlib.suppress(csv.Error):
        columns = list(reader.fieldnames or columns)
        for row in reader:
            if not _is_round([row.get(ROUND) or ""]) or int(row[ROUND]) > last_round:
                break
            rows.append(row)
    if columns[0] != ROUND:
        raise RunError(
            f"{path} is damaged: its first column must be {ROUND}; restore it, or choose "
            "another --experiment_name."
        )
    return columns, rows


def rows_digest(rows: Iterable[Mapping[str, str]]) -> str:
    """Returns a checksum of rows of metrics.csv, hexadecimal.

    It ignores the order of columns, and columns that are blank in these rows. So a column that
    later rows add does not change it.

    Args:
      rows: Rows, column → text.
    """
    digest = hashlib.sha256()
    for row in rows:
        digest.update(_row_bytes(row))
    return digest.hexdigest()


def _row_bytes(row):
    cells = sorted((str(name), text) for name, text in row.items() if text != "")
    return json.dumps(cells).encode()


def write_client_metrics(
    path: str,
    client_ids: Sequence[str],
    train_sizes: Sequence[int | None],
    test_sizes: Sequence[int],
    metrics: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Writes client_metrics.csv: one row per client.

    Args:
      path: Path of the file.
      client_ids: Clients' names.
      train_sizes: Training examples of each; `None` for clients that only have test data.
      test_sizes: Test examples of each.
      metrics: Metric → value of each client, float `[N]`; NaN is left blank.
      weights: Metric → weight of each client, float `[N]`. A NaN with positive weight is written
        as `nan`: the client has examples, but the result is not a number.

    Raises:
      OSError: If the file cannot be written.
    """
    columns = ["client_id", "train_examples", "test_examples", *metrics]
    rows = []
    for i, (client, train, test) in enumerate(
        zip(client_ids, train_sizes, test_sizes, strict=True)
    ):
        row = {"client_id": client, "train_examples": train, "test_examples": test}
        for name, values in metrics.items():
            nothing = np.isnan(values[i]) and not (weights and weights[name][i])
            row[name] = "" if nothing else repr(float(values[i]))
        rows.append(row)
    files.write_atomically(path, _csv_text(columns, rows))


def summarize_rows(
    rows: Sequence[Mapping[str, str]], primary: str, higher_is_better: bool
) -> dict[str, Any]:
    """Summarises metrics.csv: means over the last rounds, the best round, mean seconds per round.

    Args:
      rows: Rows of metrics.csv.
      primary: Column of the task's primary metric, e.g. `eval/accuracy`.
      higher_is_better: Whether higher values of it are better.

    Returns:
      `mean_last_50` and `mean_last_100` (column → mean over those of the last 50 or 100 rounds that
      have a value), `best` and `mean_round_seconds`. The columns are the primary metric and the
      training loss, on which learning rates are tuned.
    """
    trained = [row for row in rows if int(row[ROUND]) > 0]

    def numbers(column, some):
        return [float(row[column]) for row in some if row.get(column)]

    def mean(values):
        return math.fsum(values) / len(values) if values else None

    summary = {}
    for last in (50, 100):
        columns = ("train/loss", primary)
        summary[f"mean_last_{last}"] = {c: mean(numbers(c, trained[-last:])) for c in columns}
    known = [(int(row[ROUND]), float(row[primary])) for row in rows if row.get(primary)]
    known = [(r, value) for r, value in known if math.isfinite(value)]
    pick = max if higher_is_better else min
    best = pick(known, key=lambda pair: pair[1]) if known else (None, None)
    summary["best"] = {ROUND: best[0], primary: best[1]}
    summary["mean_round_seconds"] = mean(numbers("time/round_seconds", trained))
    return summary


def _group(column):
    if column == ROUND:
        return -1
    return next((i for i, g in enumerate(_GROUPS) if column.startswith(g)), len(_GROUPS))


def _csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    cells = [[row.get(column) for column in columns] for row in rows]
    return files.csv_text([columns, *cells]).encode()
