"""The league's results: what each study found, and how methods compare over all of them.

    python -m reproduction.league --root=results/reproduce

It reads the runs of `reproduce.py --items=league` and writes CSV files and a page into league/.
league/RULES.md has the rules: what a study is, where the target comes from, what is aggregated.
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

PARSER = parser.Parser(__doc__)
PARSER.flag("root", "results/reproduce", "Folder of all results.", path=True)
PARSER.flag("folder", help="The league's folder. Unset: league/.", path=True)
tables.add_flag(PARSER)

LEAGUE = items.REPO / "league"
BASELINE = "fedavg"
# What is counted up to the target.
MEASURES = ("rounds", "gradients", "vectors")
# The target is what the baseline reaches at this share of the rounds.
_TARGET_AT = 0.75
# Performance profiles go up to this ratio to the best.
_MOST_RATIO = 4.0


class Study(NamedTuple):
    """What the search of a method in a study came to.

    Attributes:
      workload: The workload.
      study: Name of its set-up, such as `study1`.
      method: The method.
      run: The run of the best point; `None` if all points diverged.
      loss: Its validation loss by the rule; infinite without a run.
    """

    workload: str
    study: str
    method: str
    run: PlannedRun | None
    loss: float


class Reached(NamedTuple):
    """What it took a study's best run to reach the target; infinite where it did not.

    Attributes:
      rounds: Rounds.
      gradients: Gradients of examples, in all local steps of all clients.
      vectors: Vectors of the model's size that each client received or sent.
    """

    rounds: float
    gradients: float
    vectors: float


_NEVER = Reached(math.inf, math.inf, math.inf)


class _UnfinishedError(Exception):
    """A search whose runs have not all reached their rung."""


def study(setup: Setup, method: str, root: str) -> Study | None:
    """Returns what a method's search came to; `None` if it has not ended.

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
    """Returns what a run took to reach a target.

    Args:
      run: The run; without one the target is never reached.
      metric: A column of metrics.csv, of which more is better.
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
    """Returns what a workload's target is: the baseline's mean late in its studies.

    Args:
      studies: The baseline's studies of a workload.
      metric: A column of metrics.csv, of which more is better.
      rounds: Rounds of the workload.

    Raises:
      ReproduceError: If one has no run.
    """
    found = []
    for of in studies:
        if of.run is None:
            raise ReproduceError(f"{of.workload}: {of.method} diverged in {of.study}; no target.")
        at, values = of.run.read().values(metric)
        found.append(float(values[at <= _TARGET_AT * rounds][-1]))
    return float(np.mean(found))


def profiles(costs: Mapping[str, np.ndarray], ratios: np.ndarray) -> dict[str, np.ndarray]:
    """Returns performance profiles: Dolan, Moré, Mathematical Programming, 2002.

    Args:
      costs: Method → costs, positive or infinite, float `[problems]`.
      ratios: Ratios to the best method of a problem, 1 or more, float `[n]`.

    Returns:
      Method → share of the problems on which its cost is at most so many times the least, float
      `[n]`. A problem that no method solves counts against all.
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
      costs: As of `profiles`.
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
    """Returns all studies of a league's folder that have ended."""
    found = []
    for item in items.own_items(str(folder)):
        for setup in item.setups.values():
            if setup.sample:
                ended = (study(setup, method, root) for method in setup.rows)
                found += filter(None, ended)
    return found


def table(folder: pathlib.Path, studies: Sequence[Study]) -> list[dict[str, Any]]:
    """Returns a record for each study: its point, its loss and what it took to the target.

    A workload of which the baseline's studies have not all ended has no target, and blanks.

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


def _words(point) -> str:
    return " ".join(f"--{flag}={items.format_value(value)}" for flag, value in point.items())


def costs_of(records: Sequence[Mapping[str, Any]], measure: str) -> dict[str, np.ndarray]:
    """Returns method → its costs on all problems, float `[workloads x studies]`.

    Methods that lack a problem are left out, as are problems without a target.

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
            f"{options.root} has no study that has ended; run reproduce.py --items={folder} first."
        )
    path = folder / "studies.csv"
    rows = [list(records[0]), *(list(record.values()) for record in records)]
    writing.write_atomically(path, writing.csv_text(rows).encode())
    costs = {measure: costs_of(records, measure) for measure in MEASURES}
    areas = {measure: area(of) for measure, of in costs.items() if of}
    with tables.printed(options.json) as results_:
        results_.say(f"{len(records)} studies in {path}\n")
        if not areas:
            results_.say(f"No method has all studies of the workloads that {BASELINE} has ended.")
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
