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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import filelock

from simulation.errors import RunError
from simulation.records import checkpoints, files, metrics_csv
from tff_suite import compat, writing
from tff_suite.hparams import Value

DIVERGED = "diverged.json"


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
            rows = [] if checkpoint else metrics_csv.read_csv(self.file("metrics.csv"))[1]
        if recorded is None and (checkpoint or rows):
            raise RunError(
                f"{self.path} holds results but no hparams.json, so they may be another "
                "experiment's; restore it, or choose another --experiment_name."
            )
        for found in (recorded and recorded["flags"], checkpoint and checkpoint.settings):
            if found is not None:
                self._compare(completed(found), settings, frozenset(may_change))
        if checkpoint is None and any(int(row[metrics_csv.ROUND]) > 0 for row in rows):
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
        if metrics_csv.rows_digest(metrics_csv.kept_rows(path, round_num)[1]) != seal:
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


def describe_start(command: Sequence[str], device: str, round_num: int) -> dict[str, Any]:
    """Returns what else decides the numbers of a run: versions, commit, device, command.

    Args:
      command: The command line.
      device: What TensorFlow computes on.
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
