"""Finding a grid's point: beyond its edges, and by successive halving in place of the whole grid.

Jamieson, Talwalkar: "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016, arXiv 1502.07943, Algorithm 1; with the rungs of Li et al.: "A System for Massively
Parallel Hyperparameter Tuning", MLSys 2020, arXiv 1810.05934, Algorithm 1.

All points of a row's grid are run for a few rounds. Of the points of a rung one in `factor`, those
of least training loss by the item's `selection` at that rung, go on to the next, `factor` times as
many rounds away: their own runs are resumed from their checkpoints, so no round is done twice. Runs
of a method whose rounds depend on how many there are in all start anew, if `restart` says so. The
last rung is the whole protocol. A run that diverged goes on nowhere.

What a search costs is counted in client-examples (`train/num_examples`): the examples that clients
have trained on, each epoch counted, over all points and seeds. With a budget a rung that would
exceed it is not begun, and the best point of the last rung is taken.

Test data play no part, as with whole grids. What is found need not be what the whole grid gives:
a point that begins slowly may be dropped. So the scoreboard counts whole grids only.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reproduction import results
from reproduction.items import PlannedRun, ReproduceError, Setup, format_value, planned_runs
from tff_suite.hparams import Value

Point = Mapping[str, Value]
_EXAMPLES = "train/num_examples"


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
      point: The chosen point.
      rungs: (rounds, points that reached them), first rung first.
      examples: Client-examples that the search took.
      share: The same as a share of those of the whole grid, from rounds; 1 is the whole grid.
      stopped: Whether the budget ended it before the last rung.
    """

    point: Point
    rungs: Sequence[tuple[int, int]]
    examples: float
    share: float
    stopped: bool

    def describe(self, row: str) -> str:
        """Returns it as a sentence."""
        steps = ", ".join(f"{points} to round {rounds}" for rounds, points in self.rungs)
        chosen = ", ".join(f"{flag}={format_value(v)}" for flag, v in self.point.items())
        ended = " The budget ended the search." if self.stopped else ""
        return (
            f"{row}: {chosen}, found by successive halving ({steps}): {self.examples:,.0f} "
            f"client-examples, {self.share:.1%} of the rounds of the whole grid.{ended}"
        )


def beyond(setup: Setup, row: str, tried: Sequence[Point], chosen: Point) -> list[dict[str, Value]]:
    """Returns the points to try next where the best of a row's grid lies at an edge.

    For each setting that `setup.widen` names and of which the best point has the least or the
    largest value tried, that is one point: the best one with the next value, as far beyond as the
    edge is from its neighbour, as a factor.

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
                # Six digits, for 0.1 * 3 is none.
                found.append({**chosen, flag: float(f"{edge * edge / neighbour:.6g}")})
    return found


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
      plan: Row → points to their runs on the seeds of the rule.
      execute: Runs what is missing of them.

    Returns:
      All runs, and row → the best point. After runs that time cut short nothing is tried beyond.
    """
    for widenings_left in range(setup.widen.get("times", 0), -1, -1):
        runs = plan(points)
        execute(runs)
        chosen = results.choose(runs, setup)
        new = {row: beyond(setup, row, points[row], chosen[row]) for row in points}
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
    """Returns the rounds at which points are compared, the last being the whole protocol.

    Args:
      points: Number of points.
      rounds: Rounds of the whole protocol.
      factor: One in this number of points goes on.
      first: Rounds of the first rung; by default so many that the last rung has fewer than
        `factor` points.
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


def search(
    setup: Setup,
    rows: Sequence[str],
    plan: Callable[[Mapping[str, Sequence[Point]], int], list[PlannedRun]],
    execute: Callable[[list[PlannedRun]], Any],
) -> dict[str, Found]:
    """Searches the grids of rows, all rows at a time.

    Args:
      setup: The set-up.
      rows: Rows with a grid of more than one point.
      plan: Row → points, and rounds → their runs on the seeds of the rule.
      execute: Runs what is missing of them.

    Returns:
      Row → what was found.

    Raises:
      ReproduceError: If the rounds of a row depend on how many there are in all, so that a run
        cannot be resumed for more of them, and `restart` is not set.
    """
    factor, budget = setup.search.get("factor", 3), setup.search.get("budget")
    left = {row: setup.points(row) for row in rows}
    whole = {row: setup.rows[row].settings.get("total_rounds", setup.rounds) for row in rows}
    steps = {
        row: rungs(len(left[row]), whole[row], factor, setup.search.get("rounds")) for row in rows
    }
    anew = set()
    for row in rows:
        of_first = functools.partial(plan, {row: left[row][:1]})
        if _starts_anew(of_first, steps[row][0], whole[row]):
            anew.add(row)
            if not setup.search.get("restart"):
                raise ReproduceError(
                    f"[search]: {row} asks for other rounds the more there are in all, so its runs "
                    "cannot be resumed for more of them: set restart = true, which starts them "
                    "anew in each rung, or take the whole grid, --full_grid."
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
    """Returns whether a run of fewer rounds is another run, not the beginning of a longer one."""
    return plan(first)[0].folder != plan(whole)[0].folder


def _ranked(runs, points, selection, rounds):
    """Returns the points, least sum of losses over seeds first; of equal ones the earlier."""

    def loss(point):
        of_point = (run for run in runs if run.point == point)
        return sum(results.selection_value(run, selection, rounds) for run in of_point)

    return sorted(points, key=loss)


def _examples(run, rounds) -> float:
    at, values = run.read().values(_EXAMPLES)
    return float(values[at <= rounds].sum())


def _spent(history) -> float:
    """Returns the client-examples of a search: each run as far as it got."""
    reached = {run.folder: (run, rounds) for rounds, _, runs in history for run in runs}
    return sum(_examples(run, rounds) for run, rounds in reached.values())


def _exceeds(budget, history, kept, steps, anew) -> bool:
    if budget is None:
        return False
    rounds, _, runs = history[-1]
    further = steps[len(history)] - (0 if anew else rounds)
    next_rung = sum(_examples(r, rounds) / rounds * further for r in runs if r.point in kept)
    return _spent(history) + next_rung > budget


def _found(setup, row, point, history, whole, stopped, anew) -> Found:
    counts = [(rounds, len(points)) for rounds, points, _ in history]
    share = _share(counts, len(setup.points(row)), whole, anew)
    return Found(dict(point), counts, _spent(history), share, stopped)


def _share(counts, points, whole, anew) -> float:
    """Returns the rounds of a search as a share of those of its grid."""
    done, before = 0, 0
    for rounds, number in counts:
        done += number * (rounds - before)
        before = 0 if anew else rounds
    return done / (points * whole)


def planned_share(setup: Setup, row: str) -> float:
    """Returns the share of the rounds of a row's grid that its search is to take; 1 without one."""
    number = len(setup.points(row))
    if not setup.search or number < 2:
        return 1.0
    whole = setup.rows[row].settings.get("total_rounds", setup.rounds)
    factor = setup.search.get("factor", 3)
    counts, left = [], number
    for rounds in rungs(number, whole, factor, setup.search.get("rounds")):
        counts.append((rounds, left))
        left = max(1, left // factor)
    point, seed = setup.points(row)[:1], setup.seeds[:1]

    def plan(rounds):
        return planned_runs(setup, [row], {row: point}, seed, root="", max_rounds=rounds)

    anew = bool(setup.search.get("restart")) and _starts_anew(plan, counts[0][0], whole)
    return _share(counts, number, whole, anew)
