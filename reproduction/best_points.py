"""The best points of an item's searches, for rows that run again: `points_of` of a set-up.

So settings are chosen on some seeds and on validation data, and the final runs have other seeds and
may evaluate test data.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reproduction import item_files, planned_runs, results, search
from reproduction.planned_runs import PlannedRun
from reproduction.setups import ReproduceError, Setup, point_in_words
from simulation.records import outputs
from tff_suite.hparams import Settings


class Best(NamedTuple):
    """The best point of a row in a set-up.

    Attributes:
      point: The point.
      runs: Its runs, one per seed of `selection`; empty if the row diverged at every point.
      loss: Mean of their values by `results.selection_value`; infinite without runs.
      tried: The runs of all points, each folder once.
    """

    point: Settings
    runs: Sequence[PlannedRun]
    loss: float
    tried: Sequence[PlannedRun]


class UnfinishedError(ReproduceError):
    """The search of a row is unfinished."""


class _UnfinishedError(Exception):
    """Some run has not reached its last round."""


# Runs by their settings → the same runs in the folders that they have.
Placed = Callable[[Sequence[PlannedRun]], Sequence[PlannedRun]]


def best(
    setup: Setup, row: str, root: str, place: Placed = list, data_dir: str | None = None
) -> Best | None:
    """Returns the best point of a row; `None` if its runs are unfinished.

    Args:
      setup: The set-up that tries the points.
      row: A row of it.
      root: Folder of all results.
      place: Finds the runs' folders, such as `places.Places.of`, which leaves out runs of other
        code or data. By default they are taken by their names.
      data_dir: Passed to the runs of tasks that read files.
    """
    seeds = setup.selection.get("seeds", setup.seeds)
    tried: dict[pathlib.Path, PlannedRun] = {}

    def plan(points, rounds=None):
        planned = planned_runs.planned_runs(
            setup, points, points, seeds, root=root, data_dir=data_dir, max_rounds=rounds
        )
        return list(place(planned))

    def look_at(runs):
        for run in runs:
            tried.setdefault(run.folder, run)
            if (run.folder / outputs.DIVERGED).exists() or run.read().last_round >= run.rounds:
                continue
            # A run that `stop_at` stopped has done all that it will do.
            if "stopped" not in (run.read().ended or {}):
                raise _UnfinishedError

    points = setup.points(row)
    try:
        if setup.search and len(points) > 1:
            point = search.search(setup, [row], plan, look_at)[row].point
        else:
            point = search.whole_grid(setup, {row: points}, plan, look_at)[1][row]
    except _UnfinishedError:
        return None
    runs = plan({row: [point]}, setup.rounds)
    if any(not run.read().summary for run in runs):
        return Best(point, (), float("inf"), list(tried.values()))
    losses = [results.selection_value(run, setup.selection) for run in runs]
    return Best(point, runs, sum(losses) / len(losses), list(tried.values()))


def _compared_by(setup: Setup, one: Best) -> str:
    """Returns what a row's losses of several set-ups must share to be compared."""
    flags, task = one.tried[0].request().in_force, one.tried[0].request().run["task"]
    of_task = {k: v for k, v in flags.items() if k.startswith(f"{task}_") and k not in one.point}
    rule = {k: v for k, v in setup.selection.items() if k != "seeds"}
    return json.dumps([task, of_task, rule, one.tried[0].protocol_rounds], sort_keys=True)


def _tried(setup: Setup, row: str, root: str, data_dir: str | None) -> list[PlannedRun]:
    """Returns the runs of a row's points, in each folder that they may have."""
    points, seeds = {row: setup.points(row)}, setup.selection.get("seeds", setup.seeds)
    steps = search.rungs_of(setup, row) if setup.search else [None]
    planned = [
        run
        for rounds in steps
        for run in planned_runs.planned_runs(
            setup, [row], points, seeds, root=root, data_dir=data_dir, max_rounds=rounds
        )
    ]
    return list({run.folder: run for run in planned}.values())


def settled(
    setup: Setup,
    rows: Sequence[str],
    root: str,
    say: Callable[[str], None],
    place: Placed = list,
    data_dir: str | None = None,
) -> tuple[Setup, list[str]]:
    """Returns a set-up whose rows have the best points of another item, and says which.

    Args:
      setup: A set-up with `points_of`.
      rows: The rows to run.
      root: Folder of all results.
      say: Prints or logs a line on a row that is left out.
      place: As for `best`.
      data_dir: As for `best`.

    Returns:
      The set-up without `points_of`: the grid of each row is its best point among all set-ups of
      that item. Rows that diverged at every point are left out. Also a sentence per row, and one
      per set-up that chose by test data.

    Raises:
      UnfinishedError: If the searches of a row are unfinished.
      ReproduceError: If every row diverged at every point.
    """
    sources = list(item_files.read_item(setup.home / f"{setup.points_of}.toml").setups.values())
    # Whatever the searches will ask for, at once, since `place` may take a process each time.
    place(
        [
            run
            for source in sources
            for row in rows
            if row in source.rows
            for run in _tried(source, row, root, data_dir)
        ]
    )
    found, mixed = {}, []
    for row in rows:
        of_row = [source for source in sources if row in source.rows]
        every = [best(source, row, root, place, data_dir) for source in of_row]
        finished = [one for one in every if one is not None]
        if len(finished) < len(every):
            raise UnfinishedError(
                f"{setup.item} {setup.name}: the searches of {row} in {setup.points_of} are "
                f"unfinished, or were done with other code or data; run --item={setup.points_of} "
                "first."
            )
        found[row] = min(finished, key=lambda one: one.loss)
        if len({_compared_by(*one) for one in zip(of_row, finished, strict=True)}) > 1:
            mixed.append(row)
    told = []
    if mixed:
        told.append(
            f"{', '.join(mixed)}: the set-ups of {setup.points_of} differ in task, selection or "
            "rounds. Losses on different data cannot be compared; give each task its own item."
        )
        say(told[0])
    told += [
        f"{setup.points_of} chose its points by test data: {source.selection['metric']}."
        for source in sources
        if results.reads_test_data(source.selection)
    ]
    for row, one in found.items():
        if not one.runs:
            say(f"{row} is left out: it diverged at every point of {setup.points_of}.")
            continue
        point = point_in_words(one.point) or "no settings"
        told.append(f"{row}: {point}, the best point of {setup.points_of}.")
    rows = [row for row, one in found.items() if one.runs]
    if not rows:
        raise ReproduceError(
            f"{setup.item} {setup.name}: every row diverged at every point of {setup.points_of}, "
            "so no row is left to run."
        )
    grid = {row: {flag: [value] for flag, value in found[row].point.items()} for row in rows}
    kept = {row: setup.rows[row] for row in rows}
    return dataclasses.replace(setup, rows=kept, grid=grid, points_of=""), told
