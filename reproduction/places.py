"""Finds the folder of each run of a sweep; changed settings, code or data lead to another folder.

A run's folder is named by its row, settings and seed. If that folder holds a run with other
settings, `.` and a digest of the settings are appended (`items.in_its_folder`). If that run has
other code or data, `.` and a digest of today's are appended. If it has more rounds than the
protocol, `.rounds=N` is. So no run replaces another, and if you take a change back, its runs are
found again.
"""

import os
import pathlib
import sys
from collections.abc import Callable, Sequence

from reproduction import changes, items, storage, sweep, tuning
from reproduction.items import REPO, PlannedRun
from simulation.errors import RunError
from simulation.records import outputs


class Places:
    """The folders of the runs of one call; compares each run with today's code and data once."""

    def __init__(self, resources: sweep.Resources, fresh: bool, say: Callable[[str], None]):
        """Initialises without comparing anything yet.

        Args:
          resources: Where to run.
          fresh: Whether to start all existing runs over, instead of comparing them.
          say: Prints a line on what was found.
        """
        self._resources, self._fresh, self._say = resources, fresh, say
        # Folder by name and settings → digest to append to it, blank if the run has that folder.
        self._endings: dict[pathlib.Path, str] = {}
        self._pulled: set[pathlib.Path] = set()
        self._started_over: set[pathlib.Path] = set()

    def of(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Returns the runs, each with its folder, and says which code or data changed.

        Raises:
          ReproduceError: If runs cannot be compared, or the storage cannot be read.
        """
        runs = self._beside_other_code([self._brought(run) for run in runs])
        return [self._beside_other_rounds(run) for run in runs]

    def _beside_other_code(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        new = [run for run in runs if run.folder not in self._endings]
        self._endings |= dict.fromkeys((run.folder for run in new), "")
        if not self._fresh:
            found = self._compared(new)
            for run, change in found.changed.items():
                self._endings[run.folder] = change.digest
            for line in told(found):
                self._say(line)
        return [
            self._brought(run.beside(ending)) if (ending := self._endings[run.folder]) else run
            for run in runs
        ]

    def _beside_other_rounds(self, run: PlannedRun) -> PlannedRun:
        if self._fresh or not items.has_other_rounds(run):
            return run
        found = items.in_its_folder(run.beside(f"rounds={run.protocol_rounds}"))
        (found,) = self._beside_other_code([self._brought(found)])
        return found

    def _brought(self, run: PlannedRun) -> PlannedRun:
        """Copies a run's folder from the storage; it may hold a run with other settings."""
        if not self._resources.storage or run.folder in self._pulled:
            return run
        self._pulled.add(run.folder)
        storage.pull(sweep.url_of(run, self._resources), run.folder, results_only=True)
        found = items.in_its_folder(run)
        return run if found.folder == run.folder else self._brought(found)

    def _compared(self, runs: Sequence[PlannedRun]) -> changes.Compared:
        if self._resources.here:
            return changes.compare(runs, changes.look_at)
        if not self._resources.address:
            return changes.compare(runs)

        def on_the_cluster(jobs):
            with sweep.with_ray(self._resources) as ray:
                task = ray.remote(max_calls=1)(_look_at).options(num_cpus=self._resources.cpus)
                return ray.get(task.remote(str(REPO), jobs))

        return changes.compare(runs, on_the_cluster)

    def to_start_over(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Returns the existing runs that `start_over` would move aside."""
        if not self._fresh:
            return []
        new = [run for run in runs if run.folder not in self._started_over]
        return [run for run in new if _has_begun(run)]

    def start_over(self, runs: Sequence[PlannedRun]) -> None:
        """Moves the runs of earlier calls aside, if all runs start over.

        Raises:
          RunError: If another process uses one.
        """
        old = self.to_start_over(runs)
        if self._fresh:
            for run in runs:
                if run.folder not in self._started_over:
                    # Where a search was stopped, its run has not begun.
                    tuning.set_aside(tuning.place_of(run.folder))
        for run in old:
            with outputs.ExperimentFolder(str(run.folder.parent), run.name) as folder:
                folder.set_aside()
            if self._resources.storage:
                storage.set_aside(sweep.url_of(run, self._resources))
        self._started_over |= {run.folder for run in runs}
        if old:
            self._say(
                f"{_named(old)} there already: run anew; the earlier results are kept as "
                f"{old[0].name}.replaced-N."
            )


def _has_begun(run: PlannedRun) -> bool:
    try:
        return bool(run.read().recorded)
    except RunError:
        return True


def _look_at(repository, jobs):
    os.chdir(repository)
    if repository not in sys.path:
        sys.path.insert(0, repository)
    return changes.look_at(jobs)


def told(found: changes.Compared) -> list[str]:
    """Returns lines on what comparing runs found."""
    lines = []
    by_reason: dict[str, list[PlannedRun]] = {}
    for run, change in found.changed.items():
        by_reason.setdefault(change.text, []).append(run)
    for reason, some in by_reason.items():
        name = some[0].beside(found.changed[some[0]].digest).name
        new = f"today's run gets its own folder, {name}"
        if len(some) > 1:
            new = f"today's runs get their own folders, such as {name}"
        lines.append(f"{_named(some)} of other code or data ({reason}): kept; {new}.")
    if found.unknown:
        lines.append(
            f"{_named(found.unknown)} of an earlier version, which recorded neither code nor "
            "versions: finished runs count, whatever has changed since."
        )
    for why in dict.fromkeys(found.unread.values()):
        some = [run for run, other in found.unread.items() if other == why]
        lines.append(f"{_named(some)} not compared with today's data and model: {why}")
    return lines


def _named(runs: Sequence[PlannedRun]) -> str:
    if len(runs) == 1:
        return f"{runs[0].name} is"
    return f"{len(runs)} runs ({runs[0].name}, ...) are"
