"""The runs of a set-up: their settings, and the folders that they go to."""

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reproduction import run_folders
from reproduction.setups import PAPERS, REPO, ReproduceError, Row, Setup, words
from simulation import experiment_flags, run_hparams, run_parser
from simulation.errors import RunError
from tasks.formats import remote
from tff_suite import parser
from tff_suite.hparams import HparamError, Settings, Value


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedRun:
    """One run of a row, whether done or not.

    Attributes:
      row: Name of the row.
      seed: Seed of the run.
      point: The grid's settings of the run; empty without a grid.
      folder: Folder of its results.
      flagfile: Path of its flag file; empty if it has none.
      flags: Flag → value, which override the file.
      rounds: Rounds to train, at least.
      protocol_rounds: Rounds of the protocol, which a budget or a search's rung may cut short. A
        run that has done more than `rounds`, but no more than these, is the same run.
      home: Folder of a user's own item, in which modules of `--import` are also looked for.
      objects: Python objects given in place of a flag: `task`, `model`.
      kept: Folder that this run would have, if a run with other settings, code or data is there;
        else `None`.
    """

    row: str
    seed: int
    point: Settings
    folder: pathlib.Path
    flagfile: str
    flags: Settings
    rounds: int
    protocol_rounds: int
    home: str = ""
    objects: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kept: pathlib.Path | None = None

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.folder.name

    @property
    def command(self) -> tuple[str, ...]:
        """Arguments of `run_experiment.py`; `objects` are left out."""
        file = [f"--flagfile={self.flagfile}"] if self.flagfile else []
        return (*file, *(f"--{flag}={value}" for flag, value in self.flags.items()))

    def request(self, **more: Value) -> experiment_flags.Request:
        """Returns the run's checked settings, with those in `more` replaced.

        Raises:
          HparamError: If its flags are wrong.
        """
        if self.objects:
            flags = {k: v for k, v in self.flags.items() if k not in self.objects}
            return experiment_flags.from_python({**flags, **more}, **self.objects)
        return experiment_flags.parse([*self.command, *(f"--{k}={v}" for k, v in more.items())])

    def read(self) -> run_folders.RunFolder:
        """Returns a reader of the run's folder."""
        return run_folders.opened(self.folder)

    def beside(self, digest: str) -> "PlannedRun":
        """Returns the run with another folder, since a different run has this one.

        Args:
          digest: Digest of what differs, appended to the folder's name.
        """
        folder = self.folder.with_name(f"{self.folder.name}.{digest}")
        flags = {**self.flags, "experiment_name": folder.name}
        return dataclasses.replace(self, folder=folder, flags=flags, kept=self.folder)


def planned_runs(
    setup: Setup,
    rows: Iterable[str],
    points: Mapping[str, Sequence[Settings]],
    seeds: Iterable[int],
    *,
    root: str,
    data_dir: str | None = None,
    max_rounds: int | None = None,
) -> list[PlannedRun]:
    """Returns runs in order: rows, then grid points, then seeds.

    Args:
      setup: The set-up.
      rows: Names of rows.
      points: Row → points of its grid.
      seeds: Seeds.
      root: Folder of all results.
      data_dir: Passed to the runs of tasks that read files.
      max_rounds: If set, no run gets more rounds than this.
    """
    runs = []
    for row in rows:
        for point in points[row]:
            for seed in seeds:
                runs.append(_run(setup, setup.rows[row], point, seed, root, data_dir, max_rounds))
    _check_folders(setup, runs)
    return runs


def _check_folders(setup, runs):
    """Refuses two different runs that would share a folder."""
    known = {}
    for run in runs:
        other = known.setdefault(run.folder, run)
        if run.command != other.command and run.request().in_force != other.request().in_force:
            raise ReproduceError(
                f"{setup.item} {setup.name}: {_told(other)} and {_told(run)} would share the "
                f"folder {run.name}; give them different names, or settings that differ in their "
                "first six digits."
            )


def has_settings(request: experiment_flags.Request, recorded: Mapping[str, Any]) -> bool:
    """Returns whether a recorded run has the settings of a request.

    Args:
      request: The request.
      recorded: Flag → value, as in hparams.json.
    """
    return not other_settings(request, recorded)


def other_settings(request: experiment_flags.Request, recorded: Mapping[str, Any]) -> list[str]:
    """Returns the flags in which a recorded run differs from a request.

    Args:
      request: The request.
      recorded: Flag → value, as in hparams.json.
    """
    # A resumed run may get another `stop_at`, but its results depend on it.
    fixed = (request.in_force.keys() - run_hparams.MAY_CHANGE - {"runtime"}) | {"stop_at"}
    # A run with `tune` records what the search has chosen.
    tuned = {*request.tune}
    if tuned and not request.run["validation_fraction"]:
        tuned.add("validation_fraction")
    other = [flag for flag in fixed - tuned if recorded.get(flag) != request.in_force[flag]]
    return sorted([*other, *(flag for flag in tuned if not isinstance(recorded.get(flag), float))])


def _told(run: Any) -> str:
    point = ", ".join(f"{flag}={value}" for flag, value in run.point.items())
    return f"row {run.row!r}" + (f" with {point}" if point else "")


def _run(
    setup: Setup,
    row: Row,
    point: Settings,
    seed: int,
    root: str,
    data_dir: str | None,
    max_rounds: int | None,
) -> PlannedRun:
    settings = {**row.settings, **point}
    whole = settings.get("total_rounds", setup.rounds)
    rounds = min(whole, max_rounds or whole)
    flagfile = str(REPO / row.flagfile) if row.flagfile else ""
    flags = {**row.on_top, **point, "seed": seed, "client_datasets_random_seed": seed}
    home = "" if setup.home.parent == PAPERS else str(setup.home)
    run = PlannedRun(
        row.name, seed, point, pathlib.Path(), flagfile, flags, rounds, whole, home, setup.objects
    )
    # Settings that the flag file already has are not in the name, so sweeps share a table's runs.
    fixed = settings_of_file(row.flagfile) if row.flagfile else {}
    new = {flag: value for flag, value in settings.items() if fixed.get(flag) != value}
    name = "_".join([row.base, *words(row.name, new)])
    if rounds != whole or ("total_rounds" not in settings and fixed.get("total_rounds") != whole):
        flags["total_rounds"] = rounds
    if rounds != whole and run.request().first_other_plan(rounds, rounds, whole) is not None:
        # Such a run cannot be resumed for more rounds later, so it gets its own folder.
        name += f"_rounds={rounds}"
    in_all = {**fixed, **settings, **flags}
    if any(in_all.get(flag) == run_parser.TUNE for flag in run_parser.RATES):
        # It records numbers as its rates, so a run with given rates needs another folder.
        name += "_tuned"
    if setup.selection.get("metric", "").startswith("validation/"):
        given = run.request().run
        if not (given["validation_fraction"] or given["validation_clients"]):
            flags["validation_fraction"] = setup.validation_fraction
    name = _folder_name(name)
    if data_dir and not setup.objects.get("task") and _needs_data(run):
        flags["data_dir"] = absolute(data_dir)
    folder = pathlib.Path(root).absolute() / setup.paper / setup.folder / f"{name}_seed{seed}"
    flags |= {"root_output_dir": str(folder.parent), "experiment_name": folder.name}
    return in_its_folder(dataclasses.replace(run, folder=folder, flags=flags))


def in_its_folder(run: PlannedRun) -> PlannedRun:
    """Returns the run, with another folder if its folder holds a run with other settings."""
    try:
        recorded = run.read().recorded or {}
        flags = recorded.get("flags")
        if not isinstance(flags, dict) or has_settings(run.request(), flags):
            return run
    except (RunError, HparamError):
        return run  # The run itself says what is damaged or wrong.
    # Seeds are in the name already; without them all seeds of a row get the same digest.
    left_out = {*run_hparams.MAY_CHANGE, "seed", "client_datasets_random_seed"}
    request = run.request()
    known = {k: v for k, v in request.in_force.items() if k not in left_out}
    if request.run["stop_at"] is not None:
        known["stop_at"] = request.run["stop_at"]
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:8]
    return run.beside(digest)


def has_other_rounds(run: PlannedRun) -> bool:
    """Returns whether its folder holds a run that its number of rounds makes another one.

    That is a run beyond the rounds of the protocol, since a run cannot go back, and one whose
    rounds depend on another total number.
    """
    try:
        recorded, ended = run.read().recorded or {}, run.read().ended or {}
        flags = recorded.get("flags")
        total = flags.get("total_rounds") if isinstance(flags, dict) else None
        done = ended.get("rounds", run.read().last_round)
        if not isinstance(total, int) or not isinstance(done, int):
            return False
        compared = min(done, run.rounds)
        other = run.request().first_other_plan(compared, total, run.rounds)
        return done > run.protocol_rounds or other is not None
    except (RunError, HparamError):
        return False  # The run itself says what is damaged or wrong.


# Characters and names that can be used in folder names as they are, as all papers' rows can.
_NOT_PLAIN = re.compile(r"[^\w.=+-]+")
_PLAIN = re.compile(r"[^\s/\x00-\x1f\x7f]{1,150}")


def _folder_name(name: str) -> str:
    """Returns a valid folder name: the name itself if possible, else a short one with a digest."""
    if _PLAIN.fullmatch(name):
        return name
    digest, shown = hashlib.sha256(name.encode()).hexdigest()[:8], _NOT_PLAIN.sub("-", name)
    return f"{shown[:100]}-{digest}"


def absolute(data_dir: str) -> str:
    """Returns a `--data_dir` as an absolute path; addresses stay as they are."""
    return data_dir if remote.is_address(data_dir) else str(pathlib.Path(data_dir).absolute())


def settings_of_file(flagfile: str) -> Settings:
    """Returns flag → value of a flag file; empty if a run needs further flags.

    Raises:
      HparamError: If it, or a file that it includes, cannot be read.
    """
    return _settings_of(tuple(parser.expand_flagfiles([f"--flagfile={REPO / flagfile}"])))


@functools.cache
def _settings_of(flags):
    try:
        return experiment_flags.parse(flags).in_force
    except HparamError:
        return {}


def _needs_data(run: Any) -> bool:
    import tasks

    return tasks.get(run.request().run["task"]).needs_data
