"""The folder of an experiment: its lock, its files and their checksums.

    hparams.json         settings in force, versions, device
    metrics.csv          one row per round; row r describes the model after r rounds
    client_metrics.csv   the final model on every client's own test examples
    summary.json         results of the finished run
    diverged.json        why the run stopped, if it diverged
    events.out.tfevents… metrics.csv and settings for TensorBoard
    checkpoints/         see `simulation.records.checkpoints`
    model/               the final model, see `simulation.records.models`
    data_digests.json    digests of the data, client by client or file by file
    encoding.json        which number stands for which class, category or word of a table

These files belong together, and a file that has changed since the run wrote it is refused. A run
has an id, which is in hparams.json, summary.json, every checkpoint and the client states. Fields
named `seal` and `seals` hold checksums:

- hparams.json and summary.json each hold one of their content.
- A checkpoint holds those of the rows of metrics.csv up to its round and of the client states
  after it.
- summary.json holds those of the rows of metrics.csv and of client_metrics.csv.

TensorBoard's files are rewritten from metrics.csv at every start and have none. data_digests.json
only serves to report which part of the data differs.
"""

import contextlib
import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import secrets
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import filelock

from simulation.errors import RunError
from simulation.records import checkpoints, files, metrics_csv
from tff_suite import compat, writing
from tff_suite.hparams import Value

DIVERGED = "diverged.json"
# The field of a JSON file's checksum.
_CHECKSUM = "seal"


class ExperimentFolder:
    """The folder of one experiment, locked by one process at a time.

    Used as a context manager. The operating system releases the lock even if the process is killed.
    """

    def __init__(self, root: str, name: str):
        """Initialises for `<root>/<name>`; only the `with` statement touches the file system."""
        self.path = os.path.join(root, name)
        self._made: list[str] = []
        self._lock = filelock.FileLock(self.file(".lock"))
        self._run_id: str | None = None

    def file(self, name: str) -> str:
        """Returns the path of a file or folder in it."""
        return os.path.join(self.path, name)

    def __enter__(self) -> "ExperimentFolder":
        """Makes the folder and locks it for this process.

        Raises:
          RunError: If the folder cannot be written, or another process has locked it.
        """
        with files.explained(self.path):
            self._make()
            try:
                self._lock.acquire(blocking=False)
            except filelock.Timeout as e:
                raise RunError(f"Another process is running in {self.path}.") from e
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
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
        """Removes the folders that `_make` has made for a refused run, if they are still empty."""
        if not self._made or os.listdir(self.path) != [".lock"]:
            return
        with contextlib.suppress(OSError):
            # Removed while locked: a process that waits for the lock notices that its file is gone.
            os.remove(self.file(".lock"))
            for folder in self._made:
                os.rmdir(folder)

    def set_aside(self) -> str | None:
        """Moves the contents into a new folder beside this one, which is then empty and locked.

        Returns:
          The path of the new folder; `None` if this one was empty.

        Raises:
          RunError: If it cannot be moved, or another process locks the folder meanwhile.
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

    def put_back(self, kept: str) -> bool:
        """Moves what `set_aside` moved back, if nothing was written since.

        Args:
          kept: The path that `set_aside` returned.

        Returns:
          Whether it was moved.

        Raises:
          RunError: If it cannot be moved.
        """
        with files.explained(self.path):
            if os.listdir(self.path) != [".lock"]:
                return False
            os.remove(self.file(".lock"))
            os.rmdir(self.path)
            os.rename(kept, self.path)
        return True

    def resume_point(
        self,
        settings: Mapping[str, Any],
        may_change: Iterable[str],
    ) -> tuple[checkpoints.Checkpoint | None, list[str]]:
        """Finds the checkpoint to resume from.

        Args:
          settings: Settings in force, by flag.
          may_change: Flags that may change on resumption.

        Returns:
          The newest intact checkpoint, `None` if the run has none yet, and the paths of newer ones
          that are damaged.

        Raises:
          RunError: If the folder holds another experiment or a run of an earlier version, lacks a
            file or holds one that has changed since the run wrote it.
        """
        with files.explained(self.path):
            recorded = self.read_hparams()
            checkpoint, damaged = checkpoints.load_newest(self.file("checkpoints"))
            # With a checkpoint, `check_checkpoint` checks the table later.
            rows = [] if checkpoint else metrics_csv.read_csv(self.file("metrics.csv"))[1]
        if recorded is None and (checkpoint or rows):
            raise RunError(
                f"{self.path} holds results but no hparams.json, so they may belong to another "
                "experiment; restore it, or choose another --experiment_name."
            )
        for found in (recorded and recorded["flags"], checkpoint and checkpoint.settings):
            if found is not None:
                self._compare(found, settings, frozenset(may_change))
        if checkpoint is None and any(int(row[metrics_csv.ROUND]) > 0 for row in rows):
            raise RunError(
                f"{self.path} holds rounds in metrics.csv but no checkpoint to resume from; choose "
                "another --experiment_name."
            )
        if recorded is not None:
            self._run_id = recorded["run_id"]
        return checkpoint, damaged

    def check_checkpoint(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Checks that a checkpoint and its rows of metrics.csv are this run's and unchanged.

        Raises:
          RunError: If they are not.
        """
        path = self.file("checkpoints")
        if checkpoint.checksums.get("run_id") != self._run_id:
            raise RunError(
                f"The checkpoint of round {checkpoint.round_num} in {path} does not belong to the "
                f"run of {self.file('hparams.json')}; restore this run's checkpoint, or choose "
                "another --experiment_name."
            )
        lacking = {"client_states.sqlite", "metrics.csv"} - checkpoint.checksums.keys()
        if lacking:
            raise RunError(
                f"The checkpoint of round {checkpoint.round_num} in {path} is damaged: it lacks "
                f"the checksum of {', '.join(sorted(lacking))}; restore it, or choose another "
                "--experiment_name."
            )
        # A start from round 0 rewrites row 0; if it was killed then, the row may be missing.
        if checkpoint.round_num:
            with files.explained(self.path):
                self._check_rows(checkpoint.round_num, checkpoint.checksums["metrics.csv"])

    def _check_rows(self, round_num, checksum):
        path = self.file("metrics.csv")
        if not os.path.exists(path):
            raise RunError(f"{path} is missing; restore it, or choose another --experiment_name.")
        if metrics_csv.rows_digest(metrics_csv.kept_rows(path, round_num)[1]) != checksum:
            raise RunError(
                f"{path} was changed: its rows up to round {round_num} are not those that the run "
                "wrote; restore it, or choose another --experiment_name."
            )

    @property
    def run_id(self) -> str:
        """The run's id, drawn at its first start. Results do not depend on it."""
        if self._run_id is None:
            self._run_id = secrets.token_hex(16)
        return self._run_id

    def write_data_digests(self, digests: Mapping[str, str]) -> None:
        """Writes data_digests.json unless it has these digests already."""
        try:
            same = self._read_json("data_digests.json") == digests
        except RunError:
            same = False
        if not same:
            self.write_json("data_digests.json", digests)

    def data_digests(self) -> dict[str, str]:
        """Returns the content of data_digests.json; empty if it is missing or damaged."""
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
        """Returns the number of rounds of a finished run; 0 if the run is not finished.

        To be called after `resume_point`.

        Raises:
          RunError: If summary.json is damaged or was changed.
        """
        with files.explained(self.path):
            summary = self._read_checked("summary.json")
        if summary is None:
            return 0
        kinds = {"finished": bool, "rounds": int, "seals": dict}
        if not _has(summary, kinds) or summary["rounds"] < 0:
            raise RunError(f"{self.file('summary.json')} is damaged: parts of it are missing.")
        return summary["rounds"] if summary["finished"] else 0

    def check_results(self) -> None:
        """Checks the files of a finished run.

        Raises:
          RunError: If a file has changed since the run wrote it.
        """
        with files.explained(self.path):
            summary = self._read_checked("summary.json")
            self._check_rows(summary["rounds"], summary["seals"].get("metrics.csv"))
            path = self.file("client_metrics.csv")
            if file_digest(path) != summary["seals"].get("client_metrics.csv", ""):
                raise RunError(
                    f"{path} was changed after the run wrote it; restore it, or remove "
                    f"{self.file('summary.json')} and run the same command again to rewrite both."
                )

    def _read_checked(self, name):
        """Reads a file of `write_with_checksum`; `None` if it does not exist."""
        again = (
            "; restore it, or remove it and run the same command again to rewrite it."
            if name == "summary.json"
            else "; restore it, or choose another --experiment_name."
        )
        try:
            content = self._read_json(name)
        except RunError as e:
            raise RunError(f"{str(e).rstrip('.')}{again}") from e
        if content is None:
            return None
        if name == "hparams.json" and is_of_earlier_version(content):
            kept = os.path.basename(free_place(self.path))
            raise RunError(
                f"{self.file(name)} was written by an earlier version of the suite, whose runs "
                f"cannot be resumed; start anew with --fresh (this run is then kept as {kept}), or "
                "choose another --experiment_name."
            )
        if not is_intact(content):
            raise RunError(
                f"{self.file(name)} was changed: its content does not match its checksum{again}"
            )
        if name != "hparams.json" and content.get("run_id") != self._run_id:
            raise RunError(f"{self.file(name)} belongs to another run{again}")
        return content

    def read_hparams(self) -> dict[str, Any] | None:
        """Returns the content of hparams.json, `None` if there is none.

        Raises:
          RunError: If the file is damaged or was changed, or an earlier version wrote it.
        """
        content = self._read_checked("hparams.json")
        kinds = {"flags": dict, "start": dict, "resumed": list, "identity": dict}
        if content is not None and (
            not _has({"objects": {}, **content}, {**kinds, "objects": dict})
            or not all(isinstance(value, Value) for value in content["flags"].values())
            or not _is_identity(content["identity"])
        ):
            raise RunError(
                f"{self.file('hparams.json')} is damaged: parts of it are missing; restore it, or "
                "choose another --experiment_name."
            )
        return content

    def write_with_checksum(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file with the run's id and a checksum of its content."""
        content = writing.finite_or_none({"run_id": self.run_id, **content})
        self.write_json(name, with_checksum(content))

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file; NaN and infinite numbers become null."""
        text = writing.json_text(content) + "\n"
        with files.explained(self.path):
            files.write_atomically(self.file(name), text.encode())

    def remove(self, *names: str) -> None:
        """Removes files, as far as they exist."""
        with files.explained(self.path):
            for name in names:
                if os.path.exists(self.file(name)):
                    os.remove(self.file(name))

    def _read_json(self, name):
        return read_json(self.file(name))


# Ending of the folder of a run that `--fresh` has replaced.
REPLACED = re.compile(r"\.replaced-[0-9]+$")


def free_place(path: str) -> str:
    """Returns the unused path to which `--fresh` moves a run's folder."""
    number = 1
    while os.path.lexists(f"{path}.replaced-{number}"):
        number += 1
    return f"{path}.replaced-{number}"


def read_json(path: str) -> dict[str, Any] | None:
    """Reads a file of one JSON object; returns `None` if the file does not exist.

    Raises:
      RunError: If it cannot be read or does not hold a JSON object.
    """
    if not os.path.lexists(path):
        return None
    try:
        with files.explained(path), open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (ValueError, RecursionError) as e:
        raise RunError(f"{path} is damaged: {e}.") from e
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: it must hold a JSON object.")
    return content


def _has(content: Any, kinds: Mapping[str, Any]) -> bool:
    found = ((content.get(name), kind) for name, kind in kinds.items())
    # In Python, `True` is an `int`.
    return all(isinstance(v, kind) and (kind is bool or v is not True) for v, kind in found)


def _is_identity(content: Mapping[str, Any]) -> bool:
    """Returns whether parts have the types that `simulation.identity` names; any may be absent."""
    if not all(isinstance(part, dict) for part in content.values()):
        return False
    suite = {"files": {}, "edited": [], **content.get("suite", {})}
    model, data = content.get("model", {}), content.get("data", {})
    texts = [*model.values(), data.get("digest", "")]
    counts = [value for name, value in data.items() if name != "digest"]
    return (
        _has(suite, {"files": dict, "edited": list})
        and all(isinstance(text, str) for text in [*texts, *suite["edited"]])
        and all(isinstance(count, int) for count in counts)
        and all(isinstance(parts, dict) for parts in content.get("code", {}).values())
    )


def primary_column(summary: Mapping[str, Any] | None, columns: Sequence[str]) -> str | None:
    """Returns the column of metrics.csv with the primary metric of the run's task.

    Args:
      summary: The content of summary.json, which records it; `None` if the run has not ended.
      columns: The columns of metrics.csv.

    Returns:
      What the summary names; else the first metric besides the loss, then a loss; `None` if the
      table has none of them.
    """
    best = [name for name in (summary or {}).get("best", {}) if name != metrics_csv.ROUND]
    measured = [name for name in columns if name.startswith("eval/") and name != "eval/loss"]
    known = [*best, *measured, "eval/loss", "train/loss"]
    return next((name for name in known if name in columns), None)


def file_digest(path: str) -> str | None:
    """Returns the SHA-256 of a file, hexadecimal; `None` if the file does not exist."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def is_of_earlier_version(recorded: Mapping[str, Any]) -> bool:
    """Returns whether an earlier version wrote an hparams.json, whose run cannot be resumed.

    Args:
      recorded: Its content.
    """
    if not _has(recorded, {"flags": dict, "start": dict, "resumed": list}):
        return False  # It is damaged.
    return "stack" not in recorded["start"] or not recorded.keys() >= {
        "identity",
        "run_id",
        _CHECKSUM,
    }


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a JSON file with its checksum, in place of an earlier one."""
    others = {k: v for k, v in content.items() if k != _CHECKSUM}
    text = json.dumps(others, sort_keys=True)
    return {**others, _CHECKSUM: hashlib.sha256(text.encode()).hexdigest()}


def is_intact(content: Mapping[str, Any]) -> bool:
    """Returns whether the content of a JSON file matches its checksum."""
    return content.get(_CHECKSUM) == with_checksum(content)[_CHECKSUM]


def describe_start(command: Sequence[str], device: str, round_num: int) -> dict[str, Any]:
    """Returns what affects results besides the settings: versions, commit, device, command.

    Args:
      command: The command line.
      device: The device that TensorFlow uses.
      round_num: Number of rounds done at this start.
    """
    return {
        metrics_csv.ROUND: round_num,
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
    """Returns the code's commit, with `+` appended if files differ from it; `None` outside git."""
    folder = os.path.dirname(os.path.abspath(__file__))
    describe = ["git", "-C", folder, "describe", "--always", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(
            [*describe, "--dirty=+"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
