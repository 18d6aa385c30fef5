"""Carries out a set-up, from its plan to its results; used by `reproduce.py` and `compare`."""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reproduction import (
    best_points,
    columns,
    drawing,
    items,
    places,
    results,
    run_folders,
    score,
    search,
    sweep,
)
from reproduction.items import PlannedRun, ReproduceError, Setup, UsageError
from reproduction.setups import point_in_words
from simulation.records import outputs
from tff_suite import command_line
from tff_suite.errors import FedError
from tff_suite.hparams import Settings

Point = Settings


class OutOfTimeError(ReproduceError):
    """A search that ran out of time; the same call resumes it."""


@dataclasses.dataclass(frozen=True)
class Study:
    """The part of a set-up to run, and how to run it.

    Attributes:
      setup: The set-up.
      rows: The rows to run.
      seeds: The seeds to run.
      root: Folder of all results.
      resources: Where and how many at a time to run.
      data_dir: Passed to the runs of tasks that read files.
      max_rounds: Most rounds of a run; `None` stands for the protocol's.
      max_minutes: Minutes for all runs together; `None` for no limit.
      say: Prints or logs a line on what is done.
      fresh: Whether to start all runs over; earlier ones are kept beside.
      only_ended: Whether to start no run, and refuse rows whose runs have not ended.
    """

    setup: Setup
    rows: Sequence[str]
    seeds: Sequence[int]
    root: str
    resources: sweep.Resources
    data_dir: str | None = None
    max_rounds: int | None = None
    max_minutes: float | None = None
    say: Callable[[str], None] = command_line.say
    fresh: bool = False
    only_ended: bool = False

    @functools.cached_property
    def places(self) -> places.Places:
        """Finds the runs' folders."""
        return places.Places(self.resources, self.fresh, self.say)

    @property
    def folder(self) -> pathlib.Path:
        """The folder of tables and figures."""
        return pathlib.Path(self.root) / self.setup.paper / self.setup.item / self.setup.name

    def points(self) -> dict[str, list[dict[str, Any]]]:
        """Returns row → points of its grid."""
        return {row: self.setup.points(row) for row in self.rows}

    def tried_seeds(self) -> list[int]:
        """Returns the seeds on which grids are tried: those of `selection`, as far as they are run.

        If none of them is run, or no row has a grid, these are all seeds.
        """
        if all(len(some) == 1 for some in self.points().values()):
            return list(self.seeds)
        of_rule = self.setup.selection.get("seeds", self.seeds)
        return [seed for seed in of_rule if seed in self.seeds] or list(self.seeds)

    def plan(
        self, points: Mapping[str, Sequence[Point]], seeds: Sequence[int], rounds: int | None = None
    ) -> list[PlannedRun]:
        """Returns the runs of rows' points on seeds, with at most `rounds` rounds each.

        Raises:
          ReproduceError: See `places.Places.of`.
        """
        return self.places.of(self._by_settings(points, seeds, rounds))

    def _by_settings(self, points: Any, seeds: Any, rounds: int | None = None) -> list[PlannedRun]:
        return items.planned_runs(
            self.setup,
            [row for row in self.rows if row in points],
            points,
            seeds,
            root=self.root,
            data_dir=self.data_dir,
            max_rounds=rounds or self.max_rounds,
        )

    def planned(self) -> list[PlannedRun]:
        """Returns all runs, to estimate their time: a grid's first point stands for the chosen one.

        Raises:
          ReproduceError: If the set-up shows metrics that its runs do not write.
          HparamError: If flags of a row are wrong.
        """
        self._checked()
        points, tried = self.points(), self.tried_seeds()
        others = [seed for seed in self.seeds if seed not in tried]
        further = self.plan({row: points[row][:1] for row in self.rows}, others)
        return [*self.plan(points, tried), *further]

    def _checked(self) -> columns.Check:
        """Checks before the first run what can be checked from settings alone."""
        for line in self._told():
            self.say(line)
        drawing.check(self.setup, self._by_settings(self.points(), self.tried_seeds()))
        shown = columns.Check(self.setup)
        shown.before()
        return shown

    def _told(self) -> list[str]:
        tried, of_rule = self.tried_seeds(), self.setup.selection.get("seeds", self.seeds)
        told = search.cautions(self.setup, self._by_settings(self.points(), tried))
        if set(tried) <= set(of_rule) or all(len(some) == 1 for some in self.points().values()):
            return told
        ours, theirs = (" ".join(map(str, some)) for some in (tried, of_rule))
        return [
            *told,
            f"Points of grids are chosen on seed {ours}, since none of the item's "
            f"selection.seeds ({theirs}) is run.",
        ]

    def carry_out(self) -> "Outcome":
        """Does the missing runs and chooses the points of grids.

        Raises:
          ReproduceError: If the set-up shows metrics that its runs do not write, or runs fail.
          HparamError: If flags of a row are wrong.
        """
        if self.setup.points_of:
            # Also with `fresh` the points are those of the existing runs.
            found = places.Places(self.resources, False, self.say)
            setup, said = best_points.settled(
                self.setup, self.rows, self.root, self.say, found.of, self.data_dir
            )
            of_best = dataclasses.replace(self, setup=setup, rows=list(setup.rows)).carry_out()
            return dataclasses.replace(of_best, told=[*of_best.told, *said])
        # The rows that are run have been checked before, with all columns and figures.
        shown = columns.Check(self.setup) if self.only_ended else self._checked()
        started = time.monotonic()
        points, tried, told = self.points(), self.tried_seeds(), self._told()

        def execute(some, share=1.0):
            # Called several times: for the grid, for points beyond its edges, for further seeds.
            minutes = self.max_minutes
            if minutes is not None:
                minutes = share * max(0.0, minutes - (time.monotonic() - started) / 60)
            if self.only_ended:
                self._check_ended(some)
                return
            self.places.start_over(some)
            sweep.execute(some, self.resources, minutes, shown.after)
            if minutes is not None and self.setup.search:
                self._check_reached(some)

        others = [seed for seed in self.seeds if seed not in tried]
        if self.setup.search:
            if self.max_rounds is not None:
                raise UsageError(
                    "--budget=rounds=N cannot limit an item with [search]; set its search.budget, "
                    "or pass --full_grid."
                )
            runs, chosen, found = self._searched(points, tried, execute)
            told += found
        else:
            number = len(self.plan(points, tried))
            share = number / (number + len(self.rows) * len(others))
            runs, chosen = search.whole_grid(
                self.setup,
                points,
                lambda some: self.plan(some, tried),
                lambda some: execute(some, share),
            )
        further = self.plan({row: [chosen[row]] for row in self.rows}, self.seeds)
        if others or self.setup.search:
            execute(further)
        runs = list({run.folder: run for run in [*runs, *further]}.values())
        return Outcome(self.setup, runs, chosen, told)

    def with_other_rows(self, outcome: "Outcome") -> tuple["Outcome", list[str]]:
        """Returns the outcome with the other rows of the folder's table, so that it keeps them.

        Their seeds and rounds are those in the table. No run is started.

        Args:
          outcome: From `carry_out`.

        Returns:
          The outcome, and the rows of the table whose runs have not ended with today's settings,
          code and data.
        """
        known = {line["row"]: line for line in score.lines_of(self.folder / "results.csv")}
        others = {
            row: self._of_table(row, line)
            for row, line in known.items()
            if row in self.setup.rows and row not in self.rows
        }
        if not others:
            return outcome, []
        # All at once, as in `_searched`.
        shared = places.Places(self.resources, False, lambda line: None)
        shared.of([run for one in others.values() for run in one.asked()])
        found, lacking = {}, []
        for row, one in others.items():
            vars(one)["places"] = shared
            try:
                found[row] = one.carry_out()
            except FedError:  # Its flag file or a folder may be damaged, too.
                lacking.append(row)
        outcomes = [outcome, *found.values()]
        rows = {row: of for one in outcomes for row, of in one.setup.rows.items()}
        grid = {row: of for one in outcomes for row, of in one.setup.grid.items()}
        chosen = {row: point for one in outcomes for row, point in one.chosen.items()}
        ordered = [row for row in self.setup.rows if row in chosen]
        runs = [run for one in outcomes for run in one.runs]
        return Outcome(
            dataclasses.replace(
                outcome.setup, rows={r: rows[r] for r in self.setup.rows if r in rows}, grid=grid
            ),
            sorted(runs, key=lambda run: ordered.index(run.row)),
            {row: chosen[row] for row in ordered},
            [line for one in outcomes for line in one.told],
        ), lacking

    def _of_table(self, row: str, line: Mapping[str, str]) -> "Study":
        """Returns the study of a row by its line in results.csv."""
        rounds, protocol = (int(line.get(k) or 0) for k in ("rounds", "protocol_rounds"))
        short = 0 < rounds < protocol and not self.setup.search
        return dataclasses.replace(
            self,
            rows=[row],
            seeds=[int(seed) for seed in line["seeds"].split()],
            max_rounds=rounds if short else None,
            max_minutes=None,
            say=lambda line: None,
            fresh=False,
            only_ended=True,
        )

    def asked(self) -> list[PlannedRun]:
        """Returns the runs of rows' grids by their settings, before any folder was looked at."""
        return self._by_settings(self.points(), self.seeds)

    def _check_ended(self, runs: Sequence[PlannedRun]) -> None:
        """Refuses runs that have not ended. A search compares only runs that reached a rung."""
        for run in runs:
            cut = run.read().summary is not None and not self.setup.search
            if not (cut or sweep.is_done(run) or sweep.has_diverged(run)):
                raise ReproduceError(f"{run.name} has not ended.")

    def _check_reached(self, runs: Sequence[PlannedRun]) -> None:
        """Refuses to choose among runs of a search that ran out of time."""
        short = [
            run
            for run in runs
            if not (run.folder / outputs.DIVERGED).exists() and not sweep.is_done(run)
        ]
        if short:
            raise OutOfTimeError(
                f"Out of time: {len(short)} of {len(runs)} runs of this step of the search are "
                "unfinished, so no point is chosen; run the same command again to resume."
            )

    def _searched(self, points, seeds, execute):
        """Searches the grids of rows; returns runs, chosen points, and a sentence per search."""
        # All at once, since comparing existing runs with today's code and data takes a process.
        every = self.plan(points, seeds)
        wide = [row for row in self.rows if len(points[row]) > 1]
        execute([run for run in every if run.row not in wide])
        found = search.search(
            self.setup, wide, lambda some, rounds: self.plan(some, seeds, rounds), execute
        )
        chosen = {r: found[r].point if r in found else dict(points[r][0]) for r in self.rows}
        return every, chosen, [found[row].describe(row) for row in wide]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of a set-up.

    Attributes:
      setup: The set-up.
      runs: All runs.
      chosen: Row → the point of its grid that was chosen.
      told: Sentences on how the points were chosen.
    """

    setup: Setup
    runs: Sequence[PlannedRun]
    chosen: Mapping[str, Point]
    told: Sequence[str]

    def records(self) -> list[dict]:
        """Returns a record per row and column; see `results.records`."""
        return results.records(self.runs, self.setup, self.chosen)

    def caveats(self) -> list[str]:
        """Returns the sentences that must accompany the table."""
        records = self.records()
        found = results.caveats(records, self.setup)
        runs = [run.read() for run in self.runs]
        found += run_folders.mixtures(runs, [run.row for run in self.runs])
        found += run_folders.alike(runs, [_with_point(run) for run in self.runs])
        difference = results.largest_difference(records, self.setup)
        return [*found, *self.told, *filter(None, [difference])]


def _with_point(run: PlannedRun) -> str:
    return f"{run.row} {point_in_words(run.point)}".rstrip()
