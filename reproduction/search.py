"""Finds a grid's best point: by whole grids, beyond their edges, or by successive halving.

Successive halving is Algorithm 1 of Jamieson, Talwalkar: "Non-stochastic Best Arm Identification
and Hyperparameter Optimization", AISTATS 2016, arXiv 1502.07943. The rungs are those of Li et al.:
"A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, arXiv 1810.05934, Algorithm 1.

First, all points of a row's grid are run for a few rounds. At each rung, one point in `factor` is
promoted: the best ones by the item's `selection`. Their runs resume from their checkpoints up to
the next rung, at `factor` times as many rounds, so no round is done twice.
If a method's rounds depend on the total number of rounds, its runs cannot resume. With `restart`
they start anew at each rung. The last rung is the whole protocol. Diverged runs are not promoted.

The cost of a search is counted in client-examples (`train/num_examples`): the examples that clients
have trained on, in all epochs, over all points and seeds. If the next rung would exceed the budget,
the search ends with the best point of the current rung.

As with whole grids, test data are not used. The search may miss the best point of the whole grid,
since it drops points that begin slowly. So the scoreboard only counts whole grids.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from reproduction import results
from reproduction.items import PlannedRun, ReproduceError, Setup, planned_runs
from reproduction.setups import point_in_words
from tff_suite.errors import FedError
from tff_suite.hparams import Settings

Point = Settings
_EXAMPLES = "train/num_examples"


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
      point: The chosen point.
      rungs: (rounds, points that reached them), first rung first.
      examples: Cost of the search in client-examples.
      share: Its rounds as a share of those of the whole grid, 0 to 1.
      stopped: Whether the budget ended it before the last rung.
    """

    point: Point
    rungs: Sequence[tuple[int, int]]
    examples: float
    share: float
    stopped: bool

    def describe(self, row: str) -> str:
        """Describes the result in a sentence."""
        steps = ", ".join(f"{points} to round {rounds}" for rounds, points in self.rungs)
        chosen = point_in_words(self.point)
        ended = " The budget ended the search." if self.stopped else ""
        return (
            f"{row}: {chosen}, found by successive halving ({steps}): {self.examples:,.0f} "
            f"client-examples, {self.share:.1%} of the rounds of the whole grid.{ended}"
        )


def beyond(setup: Setup, row: str, tried: Sequence[Point], chosen: Point) -> list[dict[str, Any]]:
    """Returns the points to try next if the best point of a row's grid lies at an edge.

    There is one such point for each setting in `setup.widen` of which the best point has the
    smallest or the largest value tried. It is the best point with the next value beyond the edge,
    at the same ratio as between the edge and its neighbour.

    Args:
      setup: The set-up.
      row: A row of it.
      tried: Points of the row that were run.
      chosen: The best of them.
    """
    found = []
    for flag in setup.widen.get("flags", ()):
        values = sorted({point[flag] for point in tried}) if flag in setup.grid.get(row, {}) else []
        for edge, neighbour in (values[:2], values[:-3:-1]) if len(values) > 1 else ():
            if chosen[flag] == edge and edge * neighbour > 0:
                # Rounded to six digits, since e.g. 0.1 * 3 is 0.30000000000000004.
                value: Any = float(f"{edge * edge / neighbour:.6g}")
                if isinstance(_in_force(setup, row, chosen, flag), int):
                    value = round(value)
                if value not in values:
                    found.append({**chosen, flag: value})
    return found


def _in_force(setup: Setup, row: str, point: Point, flag: str) -> Any:
    """Returns the value of a flag in the runs of a point; `None` if they cannot run.

    TOML's 1 may be a rate, so a value's type in the file does not say whether it is whole.
    """
    try:
        planned = planned_runs(setup, [row], {row: [point]}, setup.seeds[:1], root="")
        return planned[0].request().in_force.get(flag)
    except FedError:
        return None


def _runs(setup: Setup, row: str, point: Point) -> bool:
    """Returns whether a point's settings are valid: the grid may have reached a bound of them."""
    return all(_in_force(setup, row, point, flag) is not None for flag in point)


def whole_grid(
    setup: Setup,
    points: Mapping[str, Sequence[Point]],
    plan: Callable[[Mapping[str, Sequence[Point]]], list[PlannedRun]],
    execute: Callable[[list[PlannedRun]], Any],
) -> tuple[list[PlannedRun], dict[str, Point]]:
    """Runs rows' grids, and beyond their edges as far as `setup.widen` goes.

    Args:
      setup: The set-up.
      points: Row → points of its grid.
      plan: Function from row → points to their runs on the seeds of the rule.
      execute: Function that does the missing ones of some runs.

    Returns:
      All runs, and row → the best point. If a time limit ended runs early, no further points are
      tried.
    """
    for widenings_left in range(setup.widen.get("times", 0), -1, -1):
        runs = plan(points)
        execute(runs)
        chosen = results.choose(runs, setup)
        new = {
            row: [
                point for point in beyond(setup, row, some, chosen[row]) if _runs(setup, row, point)
            ]
            for row, some in points.items()
        }
        ended = ((run.read().summary, run) for run in runs)
        cut = any(summary and summary["rounds"] < run.rounds for summary, run in ended)
        if cut or not widenings_left or not any(new.values()):
            break
        points = {row: [*points[row], *new[row]] for row in points}
    return runs, chosen


def most_beyond(setup: Setup, row: str) -> int:
    """Returns how many points `setup.widen` may add to a row's grid."""
    grid = setup.grid.get(row, {})
    flags = [flag for flag in setup.widen.get("flags", ()) if len(grid.get(flag, ())) > 1]
    return len(flags) * setup.widen.get("times", 0)


def rungs(points: int, rounds: int, factor: int = 3, first: int | None = None) -> list[int]:
    """Returns the rounds at which points are compared; the last rung is the whole protocol.

    Args:
      points: Number of points.
      rounds: Rounds of the whole protocol.
      factor: One in this number of points is promoted.
      first: Rounds of the first rung. By default it is chosen such that fewer than `factor` points
        reach the last rung.
    """
    if first is None:
        levels = 0
        while factor ** (levels + 1) <= points:
            levels += 1
        first = math.ceil(rounds / factor**levels)
    reached = []
    while first < rounds:
        reached.append(first)
        first *= factor
    return [*reached, rounds]


def cautions(setup: Setup, runs: Sequence[PlannedRun]) -> list[str]:
    """Returns a line for each row whose points have no value in the rounds that compare them.

    Args:
      setup: The set-up.
      runs: The runs that are planned for its rows' grids.

    Raises:
      ReproduceError: If `stop_at` could end runs of a search before its last rung.
    """
    metric, found = setup.selection.get("metric", ""), []
    for row, run in {run.row: run for run in reversed(runs)}.items():
        number = len(setup.points(row))
        if number < 2:
            continue
        settings = run.request().run
        if setup.search and settings["stop_at"] is not None:
            raise ReproduceError(
                f"{setup.item} {setup.name}: {row} has stop_at={settings['stop_at']}, but a search "
                "compares its points after the same rounds; leave it out."
            )
        if metric.startswith(("train/", "time/")):  # Every round has these.
            continue
        every, whole, steps = settings["rounds_per_eval"], run.rounds, [run.rounds]
        if setup.search:
            steps = rungs_of(setup, run.row)
        for rounds in steps:
            window = rounds
            if rounds == whole:
                window = results.rounds_averaged(setup.selection, [rounds])
            if rounds // every * every <= rounds - window:
                found.append(
                    f"Points of {row} are compared after round {rounds}, but rounds_per_eval="
                    f"{every} gives no {metric} in the {window} rounds that count, so the choice "
                    "says little: lower rounds_per_eval."
                )
                break
    return found


class Grids(Protocol):
    """What a search reads of a set-up."""

    @property
    def rounds(self) -> int:
        """As of `Setup`."""

    @property
    def search(self) -> Mapping[str, Any]:
        """As of `Setup`."""

    @property
    def selection(self) -> Mapping[str, Any]:
        """As of `Setup`."""

    @property
    def rows(self) -> Mapping[str, Any]:
        """Name of a row → the row, whose `settings` may have `total_rounds`."""

    def points(self, row: str) -> list[dict[str, Any]]:
        """As of `Setup`."""


def rungs_of(setup: Grids, row: str) -> list[int]:
    """Returns the rounds at which a row's search compares its points; see `rungs`."""
    rounds = setup.rows[row].settings.get("total_rounds", setup.rounds)
    factor = setup.search.get("factor", 3)
    return rungs(len(setup.points(row)), rounds, factor, setup.search.get("rounds"))


def search(
    setup: Grids,
    rows: Sequence[str],
    plan: Callable[[Mapping[str, Sequence[Point]], int], list[PlannedRun]],
    execute: Callable[[list[PlannedRun]], Any],
) -> dict[str, Found]:
    """Searches the grids of rows, with all rows at the same time.

    Args:
      setup: The set-up.
      rows: Rows with a grid of more than one point.
      plan: Function from (row → points) and a number of rounds to their runs on the seeds of the
        rule.
      execute: Function that does the missing ones of some runs.

    Returns:
      Row → the result of its search.

    Raises:
      ReproduceError: If the rounds of a row depend on the total number of rounds, so that its runs
        cannot be resumed for more, and `restart` is not set.
    """
    factor, budget = setup.search.get("factor", 3), setup.search.get("budget")
    left = {row: setup.points(row) for row in rows}
    steps = {row: rungs_of(setup, row) for row in rows}
    whole = {row: steps[row][-1] for row in rows}
    anew = set()
    for row in rows:
        of_first = functools.partial(plan, {row: left[row][:1]})
        if _starts_anew(of_first, steps[row][0], whole[row]):
            anew.add(row)
            if not setup.search.get("restart"):
                raise ReproduceError(
                    f"[search]: runs of {row} cannot be resumed for more rounds, since their "
                    "rounds depend on the total number. Set restart = true to start them anew at "
                    "each rung, or pass --full_grid to run the whole grid."
                )
    histories = {row: [] for row in rows}
    found = {}
    while left:
        rung = {row: steps[row][len(histories[row])] for row in left}
        runs = {row: plan({row: left[row]}, rung[row]) for row in left}
        execute([run for some in runs.values() for run in some])
        for row in list(left):
            histories[row].append((rung[row], left[row], runs[row]))
            ranked = _ranked(runs[row], left[row], setup.selection, rung[row])
            kept = ranked[: max(1, len(ranked) // factor)]
            last = rung[row] == steps[row][-1]
            stopped = not last and _exceeds(budget, histories[row], kept, steps[row], row in anew)
            if last or stopped:
                of_row = _found(
                    setup, row, ranked[0], histories[row], whole[row], stopped, row in anew
                )
                found[row] = of_row
                del left[row]
            else:
                left[row] = kept
    return {row: found[row] for row in rows}


def _starts_anew(plan: Callable[[int], list[PlannedRun]], first: int, whole: int) -> bool:
    """Returns whether a run of fewer rounds is not the beginning of a longer one."""
    return plan(first)[0].folder != plan(whole)[0].folder


def _ranked(runs, points, selection, rounds):
    """Returns the points in ascending order of the sum of losses over seeds; stable."""

    def loss(point):
        of_point = (run for run in runs if run.point == point)
        return sum(results.selection_value(run, selection, rounds) for run in of_point)

    return sorted(points, key=loss)


def _examples(run: PlannedRun, rounds: int) -> float:
    at, values = run.read().values(_EXAMPLES)
    return float(values[at <= rounds].sum())


def _spent(history: Sequence[tuple[int, Sequence[Point], Sequence[PlannedRun]]]) -> float:
    """Returns the client-examples of a search so far."""
    reached = {run.folder: (run, rounds) for rounds, _, runs in history for run in runs}
    return sum(_examples(run, rounds) for run, rounds in reached.values())


def _exceeds(
    budget: float | None,
    history: Sequence[tuple[int, Sequence[Point], Sequence[PlannedRun]]],
    kept: Sequence[Point],
    steps: Sequence[int],
    anew: bool,
) -> bool:
    if budget is None:
        return False
    rounds, _, runs = history[-1]
    further = steps[len(history)] - (0 if anew else rounds)
    next_rung = sum(_examples(r, rounds) / rounds * further for r in runs if r.point in kept)
    return _spent(history) + next_rung > budget


def _found(
    setup: Grids,
    row: str,
    point: Point,
    history: Sequence[tuple[int, Sequence[Point], Sequence[PlannedRun]]],
    whole: int,
    stopped: bool,
    anew: bool,
) -> Found:
    counts = [(rounds, len(points)) for rounds, points, _ in history]
    share = _share(counts, len(setup.points(row)), whole, anew)
    return Found(dict(point), counts, _spent(history), share, stopped)


def _share(counts: Sequence[tuple[int, int]], points: int, whole: int, anew: bool) -> float:
    """Returns the rounds of a search as a share of those of the whole grid."""
    done, before = 0, 0
    for rounds, number in counts:
        done += number * (rounds - before)
        before = 0 if anew else rounds
    return done / (points * whole)


def planned_share(setup: Setup, row: str) -> float:
    """Returns the share of the rounds of a row's grid that its search needs; 1 without a search."""
    number = len(setup.points(row))
    if not setup.search or number < 2:
        return 1.0
    steps, factor = rungs_of(setup, row), setup.search.get("factor", 3)
    whole = steps[-1]
    counts, left = [], number
    for rounds in steps:
        counts.append((rounds, left))
        left = max(1, left // factor)
    point, seed = setup.points(row)[:1], setup.seeds[:1]

    def plan(rounds):
        return planned_runs(setup, [row], {row: point}, seed, root="", max_rounds=rounds)

    anew = bool(setup.search.get("restart")) and _starts_anew(plan, counts[0][0], whole)
    return _share(counts, number, whole, anew)
