"""The league's results: the outcome of each study, and a comparison of methods over all studies.

    python -m reproduction.league --root=results/reproduce

It reads the runs of `reproduce.py --items=league` and writes CSV files and a page into league/.
league/RULES.md defines studies, targets and the aggregation.
"""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reproduction import items, results, search
from reproduction.items import PlannedRun, ReproduceError, Setup
from simulation.records import outputs
from tff_algos import registry
from tff_suite import command_line, parser, tables, writing
from tff_suite.hparams import Settings

PARSER = parser.Parser(__doc__)
PARSER.flag("root", "results/reproduce", "Folder of all results.", path=True)
PARSER.flag("folder", help="The league's folder. Unset: league/.", path=True)
tables.add_flag(PARSER)

LEAGUE = items.REPO / "league"
BASELINE = "fedavg"
# Costs that are counted until the target is reached.
MEASURES = ("rounds", "gradients", "vectors")
# The target is the baseline's value after this share of the rounds.
_TARGET_AT = 0.75
# Largest ratio to the best method in performance profiles.
_MOST_RATIO = 4.0


class Study(NamedTuple):
    """The outcome of a method's search in a study.

    Attributes:
      workload: The workload.
      study: Name of its set-up, such as `study1`.
      method: The method.
      run: The run of the best point; `None` if all points diverged.
      loss: Its validation loss by the selection rule; infinite without a run.
    """

    workload: str
    study: str
    method: str
    run: PlannedRun | None
    loss: float


class Reached(NamedTuple):
    """The costs at which a study's best run reached the target; infinite if it did not.

    Attributes:
      rounds: Number of rounds.
      gradients: Number of gradients of single examples, in all local steps of all clients.
      vectors: Number of vectors of the model's size that each client received or sent.
    """

    rounds: float
    gradients: float
    vectors: float


_NEVER = Reached(math.inf, math.inf, math.inf)


class _UnfinishedError(Exception):
    """Not all runs of the search have reached their rung."""


def study(setup: Setup, method: str, root: str) -> Study | None:
    """Returns the outcome of a method's search; `None` if it has not ended.

    Args:
      setup: A study's set-up.
      method: A row of it.
      root: Folder of all results.
    """

    def plan(points, rounds):
        return items.planned_runs(setup, points, points, setup.seeds, root=root, max_rounds=rounds)

    def look_at(runs):
        for run in runs:
            diverged = (run.folder / outputs.DIVERGED).exists()
            if not diverged and run.read().last_round < run.rounds:
                raise _UnfinishedError

    try:
        found = search.search(setup, [method], plan, look_at)[method]
    except _UnfinishedError:
        return None
    (run,) = plan({method: [found.point]}, setup.rounds)
    if not run.read().summary:
        return Study(setup.item, setup.name, method, None, math.inf)
    loss = results.selection_value(run, setup.selection)
    return Study(setup.item, setup.name, method, run, loss)


def reached(run: PlannedRun | None, metric: str, target: float) -> Reached:
    """Returns the costs at which a run reached a target.

    Args:
      run: The run; with `None` the target is never reached.
      metric: A column of metrics.csv of which higher values are better.
      target: The value to reach.
    """
    if run is None:
        return _NEVER
    found = run.read()
    rounds, values = found.values(metric)
    (there,) = np.nonzero(values >= target)
    if not len(there):
        return _NEVER
    first = int(rounds[there[0]])
    cost = registry.get(found.method).cost
    at, examples = found.values("train/num_examples")
    return Reached(
        first,
        cost.gradients * float(examples[at <= first].sum()),
        (cost.down + cost.up) * first,
    )


def target(studies: Sequence[Study], metric: str, rounds: int) -> float:
    """Returns a workload's target: the baseline's mean at three quarters of the rounds.

    Args:
      studies: The baseline's studies of a workload.
      metric: A column of metrics.csv of which higher values are better.
      rounds: Rounds of the workload.

    Raises:
      ReproduceError: If the baseline diverged in a study.
    """
    found = []
    for of in studies:
        if of.run is None:
            raise ReproduceError(
                f"{of.workload}: {of.method} diverged in {of.study}, so there is no target."
            )
        at, values = of.run.read().values(metric)
        found.append(float(values[at <= _TARGET_AT * rounds][-1]))
    return float(np.mean(found))


def profiles(costs: Mapping[str, np.ndarray], ratios: np.ndarray) -> dict[str, np.ndarray]:
    """Returns performance profiles: Dolan, Moré, Mathematical Programming, 2002.

    Args:
      costs: Method → costs, positive or infinite, float `[problems]`.
      ratios: Ratios to the lowest cost on a problem, 1 or more, float `[n]`.

    Returns:
      Method → share of the problems on which its cost is at most each ratio times the lowest cost,
      float `[n]`. A problem that no method solves counts against all.
    """
    every = np.stack(list(costs.values()))
    least = every.min(axis=0)
    relative = np.full(every.shape, np.inf)
    np.divide(every, least, out=relative, where=np.isfinite(every))
    return {
        method: np.mean(own[:, None] <= ratios + 1e-12, axis=0)
        for method, own in zip(costs, relative, strict=True)
    }


def area(costs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns the area under each profile from ratio 1 to the largest one, scaled to [0, 1].

    Args:
      costs: As for `profiles`.
    """
    every = np.stack(list(costs.values()))
    least = every.min(axis=0)
    found = {}
    for method, own in costs.items():
        solved = np.isfinite(own)
        room = np.clip(_MOST_RATIO - own[solved] / least[solved], 0.0, None)
        found[method] = float(room.sum() / (_MOST_RATIO - 1.0) / len(own))
    return found


def scaled(finals: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns final metrics divided by the baseline's mean of each workload.

    Args:
      finals: Method → float `[seeds, workloads]`.
    """
    mean = finals[BASELINE].mean(axis=0)
    return {method: values / mean for method, values in finals.items()}


def studies_of(folder: pathlib.Path, root: str) -> list[Study]:
    """Returns all completed studies of a league's folder."""
    found = []
    for item in items.own_items(str(folder)):
        for setup in item.setups.values():
            if setup.sample:
                ended = (study(setup, method, root) for method in setup.rows)
                found += filter(None, ended)
    return found


def table(folder: pathlib.Path, studies: Sequence[Study]) -> list[dict[str, Any]]:
    """Returns a record for each study: its point, its loss and its costs until the target.

    A workload has no target until all of the baseline's studies are complete; the cells are blank.

    Args:
      folder: The league's folder.
      studies: Its studies.
    """
    records = []
    for item in items.own_items(str(folder)):
        setups = [setup for setup in item.setups.values() if setup.sample]
        of_item = [of for of in studies if of.workload == item.name]
        of_baseline = [of for of in of_item if of.method == BASELINE]
        goal = None
        if setups and len(of_baseline) == len(setups):
            metric = setups[0].columns[0]["metric"]
            goal = target(of_baseline, metric, setups[0].rounds)
        for of in of_item:
            took = dict.fromkeys(MEASURES, "")
            if goal is not None:
                took = reached(of.run, metric, goal)._asdict()
            records.append(
                {
                    "workload": of.workload,
                    "study": of.study,
                    "method": of.method,
                    "point": "" if of.run is None else _words(of.run.point),
                    "validation_loss": of.loss,
                    "target": "" if goal is None else goal,
                    **took,
                }
            )
    return records


def _words(point: Settings) -> str:
    return " ".join(f"--{flag}={items.format_value(value)}" for flag, value in point.items())


def costs_of(records: Sequence[Mapping[str, Any]], measure: str) -> dict[str, np.ndarray]:
    """Returns method → its costs on all problems, float `[workloads x studies]`.

    Problems without a target are left out, and methods that lack any of the remaining problems.

    Args:
      records: From `table`.
      measure: One of `MEASURES`.
    """
    problems = dict.fromkeys((r["workload"], r["study"]) for r in records if r["target"] != "")
    found: dict[str, dict] = {}
    for r in records:
        if (r["workload"], r["study"]) in problems:
            found.setdefault(r["method"], {})[r["workload"], r["study"]] = float(r[measure])
    return {
        method: np.array([own[problem] for problem in problems])
        for method, own in found.items()
        if len(own) == len(problems)
    }


@command_line.reported
def main(arguments: list[str]) -> int:
    """Writes the results of the league's runs; returns the exit code."""
    options = PARSER.parse(arguments)
    folder = pathlib.Path(options.folder) if options.folder else LEAGUE
    records = table(folder, studies_of(folder, options.root))
    if not records:
        raise ReproduceError(
            f"{options.root} has no completed study; run reproduce.py --items={folder} first."
        )
    path = folder / "studies.csv"
    rows = [list(records[0]), *(list(record.values()) for record in records)]
    writing.write_atomically(path, writing.csv_text(rows).encode())
    costs = {measure: costs_of(records, measure) for measure in MEASURES}
    areas = {measure: area(of) for measure, of in costs.items() if of}
    with tables.printed(options.json) as results_:
        results_.say(f"{len(records)} studies in {path}\n")
        if not areas:
            results_.say(
                f"No method has completed all studies of the workloads that {BASELINE} has."
            )
            return 0
        results_.say("Area under the profile of what a method took to the target:\n")
        first = areas[MEASURES[0]]
        for method in sorted(first, key=first.__getitem__, reverse=True):
            found = {measure: round(of[method], 4) for measure, of in areas.items()}
            results_.add({"method": method, **found})
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
