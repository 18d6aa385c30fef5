"""The folder of an experiment: who may write there, and what is written.

    hparams.json         settings in force, versions, device
    metrics.csv          a row a round; row r describes the model after r rounds
    client_metrics.csv   the final model on every client's own test examples
    summary.json         what the run came to
    diverged.json        why the run stopped, if it diverged
    events.out.tfevents… metrics.csv and settings for TensorBoard
    checkpoints/         see `simulation.records.checkpoints`
    model/               the final model, see `simulation.records.models`
    data_digests.json    what the data were, client by client or file by file
    encoding.json        which number stands for which class, category or word of a table

These files belong together, and what has changed since a run wrote it is refused. A run has an id,
which is in hparams.json, summary.json, every checkpoint and the clients' states. The two JSON files
are sealed with a digest of their own content. A checkpoint seals the rows of metrics.csv up to its
round, the clients' states as of it and the data; summary.json the rows and client_metrics.csv.
TensorBoard's files are written again from metrics.csv at every start, so nothing rests on them;
data_digests.json only helps to say what of the data differs.

TFF's release managers were measured and left. `tff.program.CSVFileReleaseManager` reads and writes
the whole file in every round (30 ms at 1,000 rows) and takes a line torn by a kill for a row;
`tff.program.TensorBoardReleaseManager` runs an operation a number (6 ms for 30 numbers, as long as
some rounds).
"""

import contextlib
import csv
import datetime
import glob
import hashlib
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import secrets
import socket
import subprocess
import time
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import filelock
import numpy as np

from simulation.errors import RunError
from simulation.records import checkpoints, files
from tff_suite import compat, writing
from tff_suite.hparams import Value

if typing.TYPE_CHECKING:
    import pandas as pd

ROUND = "round_num"
DIVERGED = "diverged.json"
# Columns of clients whose training loss is followed (--track_clients).
TRACKED = "client_loss/"
_GROUPS = ("train/", "eval/", "fairness/", "noise/", TRACKED, "time/")


class ExperimentFolder:
    """The folder of one experiment, held by one process at a time.

    Used as a context manager; the lock ends with the process, however that ends.
    """

    def __init__(self, root: str, name: str):
        """Initialises for `<root>/<name>`; nothing is touched before the `with` statement."""
        self.path = os.path.join(root, name)
        self._made: list[str] = []
        self._lock = filelock.FileLock(self.file(".lock"))
        self._run_id: str | None = None

    def file(self, name: str) -> str:
        """Returns the path of a file or folder in it."""
        return os.path.join(self.path, name)

    def __enter__(self):
        """Makes the folder and takes it for this process.

        Raises:
          RunError: If the folder cannot be written or another process works there.
        """
        with files.explained(self.path):
            self._make()
            try:
                self._lock.acquire(blocking=False)
            except filelock.Timeout as e:
                raise RunError(f"Another process is running in {self.path}.") from e
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self._forget()
        self._lock.release()

    def _make(self):
        """Makes the folder, and remembers which folders had to be made for it."""
        folder = os.path.abspath(self.path)
        while not os.path.exists(folder):
            self._made.append(folder)
            folder = os.path.dirname(folder)
        os.makedirs(self.path, exist_ok=True)

    def _forget(self):
        """Removes what was made for a run that was refused, if nothing else is there by now."""
        if not self._made or os.listdir(self.path) != [".lock"]:
            return
        with contextlib.suppress(OSError):
            # While it is still held: whoever waits for it learns that the file is another one.
            os.remove(self.file(".lock"))
            for folder in self._made:
                os.rmdir(folder)

    def set_aside(self) -> str | None:
        """Moves what is in the folder beside it; the folder is then empty, and still held.

        Returns:
          The path that it has now; `None` if nothing was there.

        Raises:
          RunError: If it cannot be moved, or another process takes the folder meanwhile.
        """
        with files.explained(self.path):
            if not set(os.listdir(self.path)) - {".lock"}:
                return None
            target = free_place(self.path)
            os.rename(self.path, target)
            self._made.append(os.path.abspath(self.path))
            held, self._lock = self._lock, filelock.FileLock(self.file(".lock"))
            try:
                os.makedirs(self.path, exist_ok=True)
                self._lock.acquire(blocking=False)
            except filelock.Timeout as e:
                raise RunError(f"Another process is running in {self.path}.") from e
            finally:
                held.release()
        return target

    def resume_point(
        self,
        settings: Mapping[str, Any],
        may_change: Iterable[str],
        completed: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    ) -> tuple[checkpoints.Checkpoint | None, list[str]]:
        """Finds what to resume from.

        Args:
          settings: Settings in force, by flag.
          may_change: Flags in which a resumed run may differ.
          completed: Recorded flags → these and what was in force besides, see
            `simulation.experiment_flags.completed`.

        Returns:
          The newest whole checkpoint, `None` if the run has none yet, and the paths of newer ones
          that are damaged.

        Raises:
          RunError: If the folder holds another experiment, or lacks what it should have, or a file
            is not what the run left there.
        """
        with files.explained(self.path):
            recorded = self.read_hparams()
            checkpoint, damaged = checkpoints.load_newest(self.file("checkpoints"))
            # Beside a checkpoint, the table is checked against it.
            rows = [] if checkpoint else read_csv(self.file("metrics.csv"))[1]
        if recorded is None and (checkpoint or rows):
            raise RunError(
                f"{self.path} holds results but no hparams.json, so they may be another "
                "experiment's; restore it, or choose another --experiment_name."
            )
        for found in (recorded and recorded["flags"], checkpoint and checkpoint.settings):
            if found is not None:
                self._compare(completed(found), settings, frozenset(may_change))
        if checkpoint is None and any(int(row[ROUND]) > 0 for row in rows):
            raise RunError(
                f"{self.path} holds rounds in metrics.csv but no checkpoint to resume from; choose "
                "another --experiment_name."
            )
        if recorded is not None:
            self._run_id = recorded.get("run_id")
        return checkpoint, damaged

    def check_seal(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Checks that a checkpoint and the table that goes with it are this run's, unaltered.

        Raises:
          RunError: If they are not, or the run was begun by a version that sealed nothing.
        """
        path = self.file("checkpoints")
        found = checkpoint.seal.get("run_id")
        if found is None and self._run_id is None:
            raise RunError(
                f"{self.path} is of an earlier version, which sealed nothing, so its files cannot "
                "be trusted; end it with that version, or choose another --experiment_name."
            )
        if found != self._run_id:
            raise RunError(
                f"The checkpoint of round {checkpoint.round_num} in {path} does not belong to the "
                f"run of {self.file('hparams.json')}; restore what was there, or choose another "
                "--experiment_name."
            )
        lacking = {"client_states.sqlite", "data", "metrics.csv"} - checkpoint.seal.keys()
        if lacking:
            raise RunError(
                f"The checkpoint of round {checkpoint.round_num} in {path} is damaged: it has no "
                f"seal of {', '.join(sorted(lacking))}; restore it, or choose another "
                "--experiment_name."
            )
        # A start from round 0 writes row 0 again, so it may have got as far as removing it.
        if checkpoint.round_num:
            with files.explained(self.path):
                self._check_rows(checkpoint.round_num, checkpoint.seal["metrics.csv"])

    def _check_rows(self, round_num, seal):
        path = self.file("metrics.csv")
        if not os.path.exists(path):
            raise RunError(f"{path} is missing; restore it, or choose another --experiment_name.")
        if rows_digest(_kept_rows(path, round_num)[1]) != seal:
            raise RunError(
                f"{path} has other rows up to round {round_num} than the run wrote; restore it, or "
                "choose another --experiment_name."
            )

    @property
    def run_id(self) -> str:
        """The id of the run; made at the first start. Nothing that is computed depends on it."""
        if self._run_id is None:
            self._run_id = secrets.token_hex(16)
        return self._run_id

    def write_data_digests(self, digests: Mapping[str, str]) -> None:
        """Writes data_digests.json where it does not have these digests."""
        try:
            same = self._read_json("data_digests.json") == digests
        except RunError:
            same = False
        if not same:
            self.write_json("data_digests.json", digests)

    def data_digests(self) -> dict[str, str]:
        """Returns the content of data_digests.json; nothing if it is missing or damaged."""
        try:
            return self._read_json("data_digests.json") or {}
        except RunError:
            return {}

    def _compare(self, found, settings, may_change):
        names = [*settings, *(name for name in found if name not in settings)]
        differing = [
            f"--{name} was {found.get(name, 'absent')}, is {settings.get(name, 'absent')}"
            for name in names
            if name not in may_change and found.get(name) != settings.get(name)
        ]
        if differing:
            raise RunError(
                f"{self.path} holds another experiment ({'; '.join(differing)}); choose another "
                "--experiment_name."
            )

    def finished_rounds(self) -> int:
        """Returns the rounds of the run that was brought to its end here; 0 if none was.

        To be called after `resume_point`.

        Raises:
          RunError: If summary.json is damaged or was altered.
        """
        with files.explained(self.path):
            summary = self._read_sealed("summary.json")
        if summary is None:
            return 0
        # Versions that sealed nothing left no seals.
        kinds = {"finished": bool, "rounds": int, **({"seals": dict} if "seal" in summary else {})}
        if not _has(summary, kinds) or summary["rounds"] < 0:
            raise RunError(f"{self.file('summary.json')} is damaged: parts of it are missing.")
        return summary["rounds"] if summary["finished"] else 0

    def check_results(self) -> str:
        """Checks the files of a finished run.

        Returns:
          A warning as one line, if there is something to warn of; else nothing.

        Raises:
          RunError: If one is not what the run left there.
        """
        with files.explained(self.path):
            summary = self._read_sealed("summary.json")
            if "seal" not in summary:
                return f"{self.path} is of an earlier version, which sealed nothing: not checked."
            self._check_rows(summary["rounds"], summary["seals"].get("metrics.csv"))
            path = self.file("client_metrics.csv")
            if file_digest(path) != summary["seals"].get("client_metrics.csv", ""):
                raise RunError(
                    f"{path} is not what the run wrote; restore it, or remove "
                    f"{self.file('summary.json')} and run the same command again to have both "
                    "written again."
                )
        return ""

    def _read_sealed(self, name):
        """Reads a file of `write_sealed`, `None` if there is none.

        One without a seal is let through if it has no id of a run either: it is of an earlier
        version.
        """
        again = (
            "; restore it, or remove it and run the same command again to have it written again."
            if name == "summary.json"
            else "; restore it, or choose another --experiment_name."
        )
        try:
            content = self._read_json(name)
        except RunError as e:
            raise RunError(f"{str(e).rstrip('.')}{again}") from e
        if content is None:
            return None
        if not is_intact(content):
            raise RunError(
                f"{self.file(name)} was altered: its content does not go with its seal{again}"
            )
        if name != "hparams.json" and content.get("run_id") != self._run_id:
            raise RunError(f"{self.file(name)} belongs to another run{again}")
        return content

    def read_hparams(self) -> dict[str, Any] | None:
        """Returns the content of hparams.json, `None` if there is none.

        Raises:
          RunError: If the file is damaged or was altered.
        """
        content = self._read_sealed("hparams.json")
        kinds = {"flags": dict, "start": dict, "resumed": list}
        if content is not None and (
            not _has({"objects": {}, **content}, {**kinds, "objects": dict})
            or not all(isinstance(value, Value) for value in content["flags"].values())
        ):
            raise RunError(
                f"{self.file('hparams.json')} is damaged: parts of it are missing; restore it, or "
                "choose another --experiment_name."
            )
        return content

    def write_sealed(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file with the run's id and a digest of its content."""
        content = writing.finite_or_none({"run_id": self.run_id, **content})
        self.write_json(name, {**content, "seal": _seal_of(content)})

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file; numbers that are not finite become null."""
        text = writing.json_text(content) + "\n"
        with files.explained(self.path):
            files.write_atomically(self.file(name), text.encode())

    def remove(self, *names: str) -> None:
        """Removes files that may not be there."""
        with files.explained(self.path):
            for name in names:
                if os.path.exists(self.file(name)):
                    os.remove(self.file(name))

    def _read_json(self, name):
        return read_json(self.file(name))


# What the name of a folder ends in that another run has taken the place of.
REPLACED = re.compile(r"\.replaced-[0-9]+$")


def free_place(path: str) -> str:
    """Returns where a run's folder can be kept that another run takes the place of."""
    number = 1
    while os.path.lexists(f"{path}.replaced-{number}"):
        number += 1
    return f"{path}.replaced-{number}"


def read_json(path: str) -> dict[str, Any] | None:
    """Reads a file of one JSON object; `None` if there is no file.

    Raises:
      RunError: If it cannot be read or holds anything else.
    """
    if not os.path.lexists(path):
        return None
    try:
        with files.explained(path), open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (ValueError, RecursionError) as e:
        raise RunError(f"{path} is damaged: {e}.") from e
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: it holds no JSON object.")
    return content


def _has(content, kinds) -> bool:
    found = ((content.get(name), kind) for name, kind in kinds.items())
    # Python takes `true` for a number.
    return all(isinstance(v, kind) and (kind is bool or v is not True) for v, kind in found)


class MetricsCsv:
    """metrics.csv, open for appending. Columns are ordered by group, then by first appearance."""

    def __init__(self, path: str, last_round: int):
        """Opens the file and cuts off what comes after a round.

        Args:
          path: Path of the file.
          last_round: The last round whose row is kept; -1 for none.

        Raises:
          RunError: If the file is not one of metrics or lacks that round.
          OSError: If it cannot be written.
        """
        self._path = path
        columns, rows = _kept_rows(path, last_round)
        if last_round >= 0 and (not rows or int(rows[-1][ROUND]) != last_round):
            raise RunError(
                f"{path} is damaged: it lacks rows up to round {last_round}; restore it, or choose "
                "another --experiment_name."
            )
        # Columns of later rows only will come again.
        self._columns = [c for c in columns if c == ROUND or any(row[c] for row in rows)]
        rows = [{c: row[c] for c in self._columns} for row in rows]
        self._digest = hashlib.sha256()
        for row in rows:
            self._digest.update(_row_bytes(row))
        self._rewrite(rows)

    def append(self, round_num: int, values: Mapping[str, float]) -> None:
        """Adds a row, in the hands of the operating system when this returns.

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

    def seal(self) -> str:
        """Returns the digest of all rows, see `rows_digest`."""
        return self._digest.hexdigest()

    def sync(self) -> None:
        """Brings all rows to the disk. To be called before a checkpoint that relies on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _rewrite(self, rows):
        files.write_atomically(self._path, _csv_text(self._columns, rows))
        self._file = files.open_to_append(self._path, "a", encoding="utf-8", newline="")


def read_csv(path: str) -> tuple[list[str], list[dict[str, str]]]:
    """Reads metrics.csv; a last line without its end, torn by a kill, is left out.

    Returns:
      Columns and rows (column → text); `round_num` alone and no rows if there is no file.

    Raises:
      RunError: If it cannot be read or is not a file of metrics.
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
        raise RunError(f"{path} is damaged: it has no column {ROUND} of whole numbers.")
    if len(set(columns)) < len(columns):
        raise RunError(f"{path} is damaged: it has a column twice.")
    for line in lines:
        if len(line) != len(columns) or not all(map(_is_number, line)):
            raise RunError(f"{path} is damaged: see the row of round {line[0]}.")
    return columns, [dict(zip(columns, line, strict=True)) for line in lines]


def read_metrics(path: str) -> "pd.DataFrame":
    """Reads metrics.csv as numbers.

    Returns:
      `round_num` (int), then float columns, NaN where a row is blank.

    Raises:
      RunError: If it cannot be read or is not a file of metrics.
    """
    import pandas as pd  # Takes longer to import than a wrong flag to be reported.

    columns, rows = read_csv(path)
    metrics = pd.DataFrame(rows, columns=columns, dtype=object).replace("", np.nan)
    return metrics.astype({c: int if c == ROUND else float for c in columns})


def _is_round(line) -> bool:
    return bool(line) and line[0].isascii() and line[0].isdigit() and len(line[0]) <= 10


def _is_number(text) -> bool:
    try:
        return not text or float(text) is not None
    except ValueError:
        return False


def _kept_rows(path: str, last_round: int) -> tuple[list[str], list[dict[str, str]]]:
    """Reads the rows of metrics.csv up to a round, whatever comes after them.

    Raises:
      RunError: If the file is not one of metrics.
    """
    try:
        # Bytes that are no text may be in rows that are not kept; a digest finds others.
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
            f"{path} is damaged: it does not begin with a column {ROUND}; restore it, or choose "
            "another --experiment_name."
        )
    return columns, rows


def rows_digest(rows: Iterable[Mapping[str, str]]) -> str:
    """Returns a digest of rows of metrics.csv, hexadecimal.

    It does not depend on the order of columns, nor on columns that are blank in these rows, so that
    a column that comes later changes nothing.

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


def file_digest(path: str) -> str | None:
    """Returns the SHA-256 of a file, hexadecimal, `None` if there is none."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def is_intact(content: Mapping[str, Any]) -> bool:
    """Returns whether the content of a sealed JSON file goes with its seal.

    What has neither a seal nor the id of a run is of an earlier version, which sealed nothing.
    """
    if "seal" not in content:
        return "run_id" not in content
    return content["seal"] == _seal_of({k: v for k, v in content.items() if k != "seal"})


def _seal_of(content):
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# Of an event file: somebody may look at the run.
_SECONDS_TO_FLUSH = 10.0


class TensorBoard:
    """An event file in the run's folder: the numbers of metrics.csv, and the run's settings.

    It lies in the folder itself, since TensorBoard names a run after the folder of its events. The
    settings fill the HParams tab. No run declares the columns of that tab, so TensorBoard takes
    those of all runs that it shows.
    """

    def __init__(
        self,
        folder: str,
        rows: Iterable[Mapping[str, str]],
        *,
        settings: Mapping[str, Any] | None = None,
        first: Sequence[str] = (),
        total_rounds: int | None = None,
    ):
        """Starts again from the rows of metrics.csv, so that no step is there twice.

        Args:
          folder: Folder of the run; event files in it are removed.
          rows: Rows kept in metrics.csv.
          settings: What the HParams tab shows; what is `None` is left out.
          first: Columns that are shown once more in a group before all others.
          total_rounds: The round with which the run is a success there.

        Raises:
          OSError: If they cannot be written.
        """
        # Errors before this must come fast.
        import tensorflow as tf
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.hparams import summary

        self._first, self._total_rounds, self._last = frozenset(first), total_rounds, None
        for path in glob.glob(os.path.join(glob.escape(folder), "events.out.tfevents.*")):
            os.remove(path)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        with _tensorflows_errors():
            # TensorBoard's own writer has a thread, which on a full disk ends in a traceback.
            self._writer = tf.io.TFRecordWriter(os.path.join(folder, name))
        self._add(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._flush()
        shown = {name: value for name, value in (settings or {}).items() if value is not None}
        if shown:
            self._add_summary(summary.session_start_pb(shown), 0)
        for row in rows:
            values = {k: float(v) for k, v in row.items() if k != ROUND and v}
            self.write(int(row[ROUND]), values)

    def write(self, round_num: int, values: Mapping[str, float]) -> None:
        """Writes the scalars of a round, which can be read some time later.

        Raises:
          OSError: If these or those of an earlier round cannot be written.
        """
        from tensorboard.compat.proto import summary_pb2

        self._last = round_num
        tags = list(values.items())
        tags += [(first_tag(name), value) for name, value in tags if name in self._first]
        scalars = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in tags]
        self._add_summary(summary_pb2.Summary(value=scalars), round_num)
        if time.monotonic() > self._flushed + _SECONDS_TO_FLUSH:
            self._flush()

    def _add_summary(self, summary, step):
        from tensorboard.compat.proto import event_pb2

        event = event_pb2.Event(wall_time=time.time(), step=step)
        # The class of the summary may be TensorFlow's own.
        event.summary.ParseFromString(summary.SerializeToString())
        self._add(event)

    def _add(self, event):
        with _tensorflows_errors():
            self._writer.write(event.SerializeToString())

    def _flush(self):
        with _tensorflows_errors():
            self._writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Brings everything to the event file.

        Raises:
          OSError: If it cannot be written.
        """
        from tensorboard.plugins.hparams import api_pb2, summary

        if self._last is not None and self._last == self._total_rounds:
            success = api_pb2.Status.Value("STATUS_SUCCESS")
            self._add_summary(summary.session_end_pb(success), self._last)
        with _tensorflows_errors():
            self._writer.close()


def first_tag(column: str) -> str:
    """Returns the tag of a column in the group that TensorBoard, by the alphabet, shows first."""
    return f"at_a_glance/{column.replace('/', '_')}"


@contextlib.contextmanager
def _tensorflows_errors():
    """Turns the errors of TensorFlow, which writes the event files, into the system's."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as e:
        raise OSError(e.message) from e


def write_client_metrics(
    path: str,
    client_ids: Sequence[str],
    train_sizes: Sequence[int | None],
    test_sizes: Sequence[int],
    metrics: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Writes client_metrics.csv: a row a client.

    Args:
      path: Path of the file.
      client_ids: Clients' names.
      train_sizes: Training examples of each; `None` for clients that only test.
      test_sizes: Test examples of each.
      metrics: Metric → value of each client, float `[N]`; NaN is left blank.
      weights: Metric → weight of each client, float `[N]`. With a weight, NaN is written as `nan`:
        there was something to measure, and the result is not a number.

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
    """Summarises metrics.csv: means over last rounds, the best round, mean seconds of a round.

    Args:
      rows: Rows of metrics.csv.
      primary: Column of the metric in which the task is compared, e.g. `eval/accuracy`.
      higher_is_better: Whether more of it is better.

    Returns:
      `mean_last_50` and `mean_last_100` (column → mean over those of the last rounds that have it;
      the training loss is what learning rates are tuned on), `best` and `mean_round_seconds`.
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


def describe_start(command: Sequence[str], device: str, round_num: int) -> dict[str, Any]:
    """Returns what else decides the numbers of a run: versions, commit, device, command.

    Args:
      command: The command line.
      device: What TensorFlow computes on.
      round_num: Number of rounds done at this start.
    """
    return {
        ROUND: round_num,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "device": device,
        "git_commit": _git_commit(),
        "stack": compat.stack(),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in compat.packages()},
        },
    }


def _git_commit():
    """Returns the commit of the code, `+` added if files differ from it; `None` outside git."""
    folder = os.path.dirname(os.path.abspath(__file__))
    describe = ["git", "-C", folder, "describe", "--always", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(
            [*describe, "--dirty=+"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _group(column):
    if column == ROUND:
        return -1
    return next((i for i, g in enumerate(_GROUPS) if column.startswith(g)), len(_GROUPS))


def _csv_text(columns, rows) -> bytes:
    cells = [[row.get(column) for column in columns] for row in rows]
    return files.csv_text([columns, *cells]).encode()
