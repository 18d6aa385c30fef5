"""Lists the runs and sweeps under a folder: progress, results and size on disk.

    python -m simulation.runs results
    python -m simulation.runs results --json

Runs that differ only in their seed share a line, with the mean and standard deviation of the main
metric. Runs that have done other numbers of rounds do not, unless the same `--stop_at` stopped
them. A folder of several runs is a sweep and has a line that counts them. The states are:

- finished, running, not started, damaged,
- resumable: the same command continues after the round shown,
- diverged: training diverged,
- other version: it was made with another version of the method, the task or TensorFlow, and cannot
  continue here.

The command changes nothing and does not import TensorFlow. `--json` prints `root`, `runs` and
`sweeps`, with each run separately, its settings, sizes in bytes and ages in seconds.
"""

import json
import math
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from tff_suite import command_line, parser

PARSER = parser.Parser(__doc__)
PARSER.positional("root", "folder to look in; by default results", required=False)
PARSER.flag("json", False, "Print JSON in place of tables.")

if __name__ == "__main__":
    command_line.begin(PARSER)


import tasks
import tff_algos
from simulation import run_hparams
from simulation.errors import RunError
from simulation.records import checkpoints, metrics_csv, outputs
from tff_suite import compat, tables, writing

# Files whose modification time is that of the run's last step.
_STEPS = ("metrics.csv", "summary.json", "hparams.json")
# Settings in which runs on one line may differ.
_PLACES = (run_hparams.MAY_CHANGE - {"stop_at", "total_rounds"}) | {
    "client_datasets_random_seed",
    "seed",
}


class Run(NamedTuple):
    """A run, as its folder shows it.

    Attributes:
      folder: Path of the folder.
      state: `finished`, `running`, `resumable`, `diverged`, `not started`, `other version` or
        `damaged`.
      round: Number of rounds done; of a resumable run, those in its checkpoint.
      total_rounds: `--total_rounds`; `None` if unknown.
      method: The method; `None` if unknown, as for the attributes that follow.
      task: The task.
      seed: `--seed`.
      metric: Column of the main metric.
      value: Its value for the final model, or the last one of an unfinished run.
      seconds_since: Seconds since the run last wrote a file.
      bytes: Size of the folder on disk.
      note: A remark of one line, or blank.
      flags: Settings in force.
      made_of: Versions, code and layers of the model, as hparams.json records them; as JSON.
    """

    folder: str
    state: str
    round: int = 0
    total_rounds: int | None = None
    method: str | None = None
    task: str | None = None
    seed: int | None = None
    metric: str | None = None
    value: float | None = None
    seconds_since: float = 0.0
    bytes: int = 0
    note: str = ""
    flags: Mapping[str, Any] = {}
    made_of: str = ""

    def told(self) -> str:
        """Returns the state as text, with the round for running, resumable and diverged runs."""
        of = f" of {self.total_rounds}" if self.total_rounds else ""
        at = {"resumable": "at", "running": "at", "diverged": "after"}.get(self.state)
        return f"{self.state} {at} round {self.round}{of}" if at else self.state


def find(root: str) -> list[Run]:
    """Returns the runs under a folder, by path, including damaged ones.

    Args:
      root: The folder. A run is a folder that holds an hparams.json or a metrics.csv.

    Raises:
      OSError: If the folder cannot be read.
    """
    os.listdir(root)  # Raises if unreadable; `os.walk` would skip it silently.
    held = _held_files()
    found = []
    for folder, subfolders, files in os.walk(root):
        if {"hparams.json", "metrics.csv"} & set(files):
            subfolders.clear()
            found.append(_read(folder, held))
        subfolders.sort()
    return found


def _read(folder: str, held: set[tuple[int, int]]) -> Run:
    """Reads one run; a run that cannot be read counts as damaged."""
    run = Run(folder, "damaged", seconds_since=_seconds_since(folder), bytes=_bytes(folder))
    try:
        return _described(run, held)
    except (RunError, OSError) as e:
        return run._replace(note=command_line.one_line(e))
    except Exception as e:  # Damaged files can have values of unexpected types.
        return run._replace(note=f"its files are damaged ({type(e).__name__})")


def _described(run: Run, held: Any) -> Run:
    recorded = outputs.read_json(os.path.join(run.folder, "hparams.json"))
    if recorded is None:
        return run._replace(note="hparams.json is missing")
    flags = recorded["flags"]
    run = run._replace(
        method=_of(flags, "algorithm", str),
        task=_of(flags, "task", str),
        seed=_of(flags, "seed", int),
        total_rounds=_of(flags, "total_rounds", int),
        flags=flags,
        made_of=_made_of(recorded),
    )
    columns, rows = metrics_csv.read_csv(os.path.join(run.folder, "metrics.csv"))
    summary = outputs.read_json(os.path.join(run.folder, "summary.json"))
    done = int(rows[-1][metrics_csv.ROUND]) if rows else 0
    metric = outputs.primary_column(summary, columns)
    seen = [row[metric] for row in rows if row[metric]] if metric else []
    run = run._replace(round=done, metric=metric, value=_finite(seen[-1]) if seen else None)
    if _is_held(os.path.join(run.folder, ".lock"), held):
        return run._replace(state="running")
    versions = _other_versions(recorded, run)
    if summary is not None and summary["finished"]:
        done, value = int(summary["rounds"]), _finite(summary["final"].get(metric))
        return run._replace(state="finished", round=done, value=value, note=versions)
    diverged = outputs.read_json(os.path.join(run.folder, outputs.DIVERGED))
    if diverged is not None:
        return run._replace(state="diverged", note=command_line.one_line(diverged["reason"]))
    other = "begun by an earlier version of the suite"
    if not outputs.is_of_earlier_version(recorded):
        other = "; ".join(filter(None, [versions, _other_stack(recorded)]))
    if other:
        return run._replace(state="other version", note=other)
    saved = checkpoints.rounds(os.path.join(run.folder, "checkpoints"))
    if not saved:
        return run._replace(
            state="not started", note="no checkpoint yet: a start begins at round 0"
        )
    return run._replace(state="resumable", round=saved[-1])


def _of(flags: Mapping[str, Any], name: str, kind: type) -> Any:
    """Returns a flag's value.

    Raises:
      RunError: If it is missing or of another type.
    """
    if not isinstance(flags.get(name), kind):
        raise RunError(f"hparams.json is damaged: it has no --{name}")
    return flags[name]


def _finite(number: Any) -> float | None:
    value = math.nan if number is None else float(number)
    return value if math.isfinite(value) else None


def _other_versions(recorded: Mapping[str, Any], run: Any) -> str:
    """Describes a changed version of the method or task; blank if unchanged."""
    identity = recorded.get("identity") or {}
    told = []
    for kind, name, module in (("method", run.method, tff_algos), ("task", run.task, tasks)):
        made_of = identity.get(kind)
        if not isinstance(made_of, dict) or name not in module.names():
            continue
        before, now = made_of.get("version"), getattr(module.get(name), "version", 1)
        if before != now:
            told.append(f"{kind} {name} had version {before}, now has {now}")
    return "; ".join(told)


def _other_stack(recorded: Mapping[str, Any]) -> str:
    """Names the stack that an unfinished run needs, if it is not this one."""
    stack = (recorded.get("start") or {}).get("stack")
    if stack in (None, compat.stack()):
        return ""
    return f"begun on the {stack} stack, this is the {compat.stack()} one"


# Of a lock that a process holds, or (after `->`) waits for: device and inode of the file.
_LOCK = re.compile(r"\bFLOCK\s.*\s([0-9a-f]+):([0-9a-f]+):(\d+)\s", re.I)


def _held_files(locks: str = "/proc/locks") -> set[tuple[int, int]]:
    """Returns device and inode of the files that a process of this machine has locked.

    This reads the kernel's list. Trying each lock could block a run that begins at that moment.
    """
    try:
        with open(locks, encoding="ascii") as file:
            places = _LOCK.findall(file.read())
    except OSError:
        return set()
    return {(os.makedev(int(a, 16), int(b, 16)), int(inode)) for a, b, inode in places}


def _is_held(path: str, held: Any) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) in held


def _seconds_since(folder: str) -> float:
    times = []
    for name in _STEPS:
        try:
            times.append(os.stat(os.path.join(folder, name)).st_mtime)
        except OSError:
            continue
    return max(0.0, time.time() - max(times)) if times else 0.0


def _bytes(folder: str) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:  # The file was removed meanwhile.
                continue
    return total


def sweeps(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Returns folders that hold several runs → these runs."""
    within: dict[str, list[Run]] = {}
    for run in runs:
        within.setdefault(os.path.dirname(run.folder), []).append(run)
    return {folder: some for folder, some in within.items() if len(some) > 1}


def _made_of(recorded: Mapping[str, Any]) -> str:
    """Returns what a run was made of, without what differs between seeds."""
    known = recorded.get("identity")
    if not isinstance(known, dict):
        return ""
    parts = {part: known.get(part) for part in ("method", "task", "code", "values")}
    model = known.get("model") or {}
    layers = {k: v for k, v in model.items() if not k.endswith("initial weights")}
    return json.dumps([parts, layers], sort_keys=True, default=str)


def by_settings(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Yields groups of runs that differ only in their seed; a damaged run is a group by itself.

    Runs with other code, another model or other numbers of rounds done are not in one group, and no
    group has a seed twice, as runs with other data have.
    """
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        settings = {k: v for k, v in run.flags.items() if k not in _PLACES}
        # With the same `stop_at`, seeds stop after different rounds.
        stopped = run.state == "finished" and run.flags.get("stop_at") is not None
        done = "as many as it takes" if stopped else run.round
        alike = [os.path.dirname(run.folder), settings, run.made_of, done]
        key = json.dumps(alike, sort_keys=True, default=str)
        if run.state == "damaged" or any(run.seed == of.seed for of in groups.get(key, ())):
            key = run.folder
        groups.setdefault(key, []).append(run)
    yield from groups.values()


def table(runs: Sequence[Run], root: str) -> str:
    """Returns the runs as a text table, one line per group that differs only in seed, then sweeps.

    Args:
      runs: The runs.
      root: The folder to which paths are relative.
    """
    lines = []
    for group in by_settings(runs):
        seeds = sorted({run.seed for run in group if run.seed is not None})
        states = Counter(run.told() for run in group)
        told = [s if len(states) == 1 else f"{n} {s}" for s, n in states.items()]
        lines.append(
            [
                _place(group, root),
                group[0].method or "",
                group[0].task or "",
                " ".join(map(str, seeds)),
                ", ".join(told),
                _metric_of(group),
                _age(min(run.seconds_since for run in group)),
                _size(sum(run.bytes for run in group)),
            ]
        )
    headers = ["run", "method", "task", "seeds", "state", "main metric", "age", "size"]
    parts = [tables.markdown(lines, headers)]
    of_sweeps = []
    for folder, some in sweeps(runs).items():
        states = Counter(run.state for run in some)
        counted = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
        age, size = min(run.seconds_since for run in some), sum(run.bytes for run in some)
        place = os.path.relpath(folder, root)
        of_sweeps.append([place, len(some), counted, _age(age), _size(size)])
    if of_sweeps:
        parts.append(tables.markdown(of_sweeps, ["sweep", "runs", "states", "age", "size"]))
    notes: dict[str, list[str]] = {}
    for run in runs:
        if run.note:
            notes.setdefault(run.note.rstrip("."), []).append(os.path.relpath(run.folder, root))
    for note, places in notes.items():
        of = places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"
        parts.append(f"{of}: {note}.")
    return "\n\n".join(parts)


def _place(group: Any, root: str) -> str:
    """Returns the path of one or several runs, with a star in place of differing seeds."""
    paths = [os.path.relpath(run.folder, root) for run in group]
    starred = {re.sub(r"seed\d+", "seed*", path) for path in paths}
    if len(paths) == 1 or len(starred) > 1:
        return paths[0] + (f" and {len(paths) - 1} more" if paths[1:] else "")
    return starred.pop()


def _metric_of(group: Any) -> str:
    values = [run.value for run in group if run.value is not None]
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{group[0].metric} {statistics.fmean(values):.4f}{spread}"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _size(number: int) -> str:
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if number >= length:
            return f"{number / length:.1f} {unit}"
    return f"{number / 1024:.0f} KiB"


def as_json(runs: Sequence[Run], root: str) -> str:
    """Returns the runs as JSON: an object with `root`, `runs` and `sweeps`."""
    content = {
        "root": os.path.abspath(root),
        "runs": [{**run._asdict(), "flags": dict(run.flags)} for run in runs],
        "sweeps": [
            {
                "folder": folder,
                "runs": len(some),
                "states": Counter(run.state for run in some),
                "seconds_since": min(run.seconds_since for run in some),
                "bytes": sum(run.bytes for run in some),
            }
            for folder, some in sweeps(runs).items()
        ],
    }
    return writing.json_text(content)


@command_line.reported
def main(arguments: list[str]) -> int:
    """Lists the runs.

    Args:
      arguments: Command line without the program's name.

    Returns:
      The exit code: 0, or 1 if the folder cannot be read.
    """
    options = PARSER.parse(arguments)
    root = options.root or "results"
    runs = find(os.path.expanduser(root))
    if options.json:
        print(as_json(runs, root))
    elif runs:
        print(table(runs, root))
    else:
        print(f"{root} holds no run.")
    return 0


def command() -> NoReturn:
    """The console command `tff-algos-runs`."""
    command_line.begin(PARSER)
    command_line.run(main)


if __name__ == "__main__":
    command_line.run(main)
