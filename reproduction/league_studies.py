"""The outcome of the league's studies, and how they are compared; league/RULES.md defines both."""

import collections
import contextlib
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reproduction import best_points, items, results, score, statistics
from reproduction.items import PlannedRun, ReproduceError, Setup
from reproduction.statistics import Interval
from simulation.records import outputs
from tff_algos import registry
from tff_suite.hparams import Settings

BASELINE = "fedavg"
# Costs that are counted until the target is reached.
MEASURES = ("rounds", "gradients", "vectors")
# The target is the baseline's value after this share of the rounds.
_TARGET_AT = 0.75
# Evaluations whose mean is compared with the target.
_SMOOTHED = 5
# Largest ratio to the best method in performance profiles.
MOST_RATIO = 4.0


class Study(NamedTuple):
    """The outcome of a method's search in a study.

    Attributes:
      workload: The workload.
      study: Name of its set-up, such as `study1`.
      method: The method.
      run: The run of the best point; `None` if all points diverged.
      loss: Its validation loss by the selection rule; infinite without a run.
      tried: All runs of the search.
    """

    workload: str
    study: str
    method: str
    run: PlannedRun | None
    loss: float
    tried: Sequence[PlannedRun] = ()


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


# Studies of a workload, without which there is no claim.
STUDIES = 3
_NEVER = Reached(math.inf, math.inf, math.inf)


def study(setup: Setup, method: str, root: str) -> Study | None:
    """Returns the outcome of a method's search; `None` if it has not ended.

    Args:
      setup: A study's set-up.
      method: A row of it.
      root: Folder of all results.
    """
    found = best_points.best(setup, method, root)
    if found is None:
        return None
    run = next(iter(found.runs), None)
    return Study(setup.item, setup.name, method, run, found.loss, found.tried)


def smoothed(run: PlannedRun, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns rounds and the mean of a metric's last five evaluations at each.

    Args:
      run: The run.
      metric: A column of metrics.csv.

    Returns:
      Two arrays `[evaluations - 4]`; empty if there are fewer than five evaluations.
    """
    rounds, values = run.read().values(metric)
    if len(values) < _SMOOTHED:
        return rounds[:0], values[:0]
    means = np.convolve(values, np.full(_SMOOTHED, 1 / _SMOOTHED), mode="valid")
    return rounds[_SMOOTHED - 1 :], means


def reached(run: PlannedRun | None, metric: str, target: float) -> Reached:
    """Returns the costs at which a run reached a target.

    Args:
      run: The run; with `None` the target is never reached.
      metric: A column of metrics.csv of which higher values are better.
      target: The value to reach, by `smoothed`.
    """
    if run is None:
        return _NEVER
    rounds, values = smoothed(run, metric)
    (there,) = np.nonzero(values >= target)
    if not len(there):
        return _NEVER
    first, found = int(rounds[there[0]]), run.read()
    cost = registry.get(found.method).cost
    at, examples = found.values("train/num_examples")
    return Reached(
        first,
        cost.gradients * float(examples[at <= first].sum()),
        (cost.down + cost.up) * first,
    )


def target(of: Study, metric: str, rounds: int) -> float:
    """Returns the target of a study: the baseline's value at three quarters of the rounds.

    Args:
      of: The baseline's study.
      metric: A column of metrics.csv of which higher values are better.
      rounds: Rounds of the workload.

    Raises:
      ReproduceError: If the baseline diverged in the study.
    """
    if of.run is None:
        raise ReproduceError(
            f"{of.workload}: {of.method} diverged in {of.study}, so there is no target."
        )
    at, values = smoothed(of.run, metric)
    return float(values[at <= _TARGET_AT * rounds][-1])


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


def area(costs: Mapping[str, np.ndarray], workloads: Sequence[str]) -> dict[str, Interval]:
    """Returns the area under each profile from ratio 1 to the largest one, scaled to [0, 1].

    Args:
      costs: As for `profiles`.
      workloads: The workload of each problem.

    Returns:
      Method → its area with a 95 % interval, by a bootstrap over the studies of each workload.
    """
    every = np.stack(list(costs.values()))
    least = every.min(axis=0)
    of = np.array(workloads)
    found = {}
    for method, own in costs.items():
        # A problem adds the part of the ratios at which it is solved.
        part, solved = np.zeros(len(own)), np.isfinite(own)
        part[solved] = np.clip(MOST_RATIO - own[solved] / least[solved], 0.0, None)
        part /= MOST_RATIO - 1.0
        found[method] = _over_studies([part[of == workload] for workload in dict.fromkeys(of)])
    return found


def _over_studies(strata: Sequence[np.ndarray]) -> Interval:
    """Returns the mean over workloads of the mean over studies, with a bootstrap interval."""
    return statistics.bootstrap(
        strata, lambda drawn: np.mean([some.mean(axis=1) for some in drawn], axis=0)
    )


def improvement(records: Sequence[Mapping[str, Any]], method: str) -> Interval | None:
    """Returns the probability that a method has a lower validation loss than the baseline.

    Args:
      records: From `table`, of all methods.
      method: The method.

    Returns:
      The share of studies in which it is lower, where ties count half, as a mean over workloads
      with a bootstrap interval over studies. `None` if the method lacks a study of the baseline.
    """
    losses = {key(r): r["validation_loss"] for r in records}
    wins: dict[str, list[float]] = {}
    for (workload, study_name, name), theirs in losses.items():
        if name == BASELINE:
            own = losses.get((workload, study_name, method))
            if own is None:
                return None
            wins.setdefault(workload, []).append(float(own < theirs) + 0.5 * (own == theirs))
    return _over_studies([np.array(some) for some in wins.values()]) if wins else None


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
    for setup in _studies(folder):
        ended = (study(setup, method, root) for method in setup.rows)
        found += filter(None, ended)
    return found


def _studies(folder):
    """Returns the set-ups of all studies."""
    every = (setup for item in items.own_items(str(folder)) for setup in item.setups.values())
    return [setup for setup in every if setup.sample]


class Recorded(NamedTuple):
    """What a league's folder has on record, as a record per line of its CSV files.

    Attributes:
      studies: From `table`.
      runs: From `runs_of`.
      finals: From `finals_of`.
    """

    studies: Sequence[Mapping[str, Any]] = ()
    runs: Sequence[Mapping[str, Any]] = ()
    finals: Sequence[Mapping[str, Any]] = ()


def recorded(folder: pathlib.Path) -> Recorded:
    """Reads what earlier calls have written into a league's folder; cells may be numbers."""

    def read(path):
        return [{k: _cell(text) for k, text in r.items()} for r in score.lines_of(path)]

    return Recorded(
        read(folder / "studies.csv"),
        read(folder / "runs.csv"),
        [record for path in sorted(folder.glob("*_final.csv")) for record in read(path)],
    )


def _cell(text: str) -> int | float | str:
    """Returns a cell such that it is written again as it was."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _problem(record):
    return record["workload"], record["study"]


def key(record: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns what a record of `table` or `runs_of` is about: workload, study and method."""
    return (*_problem(record), record["method"])


def table(
    folder: pathlib.Path, studies: Sequence[Study], before: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Returns a record for each study: its point, its loss and its costs until the target.

    A study has no target until the baseline's part of it is complete; the cells are blank. If only
    other methods have new runs, the recorded target holds.

    Args:
      folder: The league's folder.
      studies: Its studies, as far as there are runs.
      before: The recorded studies. Those without new runs stay, unless their target has changed.
    """
    records: list[dict[str, Any]] = []
    for setup in _studies(folder):
        at = setup.item, setup.name
        here = {of.method: of for of in studies if (of.workload, of.study) == at}
        known = {r["method"]: r for r in before if _problem(r) == at}
        metric: str = setup.columns[0]["metric"]
        goal: Any = ""
        if BASELINE in here:
            goal = target(here[BASELINE], metric, setup.rounds)
        elif BASELINE in known:
            goal = known[BASELINE]["target"]
        for method in setup.rows:
            of = here.get(method)
            if of is None:
                if method in known and known[method]["target"] == goal:
                    records.append(dict(known[method]))
                continue
            took = dict.fromkeys(MEASURES, "")
            if goal != "":
                took = reached(of.run, metric, goal)._asdict()
            records.append(
                {
                    "workload": of.workload,
                    "study": of.study,
                    "method": of.method,
                    "point": "" if of.run is None else _words(of.run.point),
                    "validation_loss": of.loss,
                    "target": goal,
                    **took,
                }
            )
    return records


def _words(point: Settings) -> str:
    return " ".join(f"--{flag}={items.format_value(value)}" for flag, value in point.items())


def complete(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns the studies, as workload and name, that all methods of their workload have ended.

    Args:
      records: From `table`.
    """
    methods: dict[str, set[str]] = {}
    ended: dict[tuple[str, str], set[str]] = {}
    for r in records:
        methods.setdefault(r["workload"], set()).add(r["method"])
        if r["target"] != "":
            ended.setdefault(_problem(r), set()).add(r["method"])
    return [problem for problem, some in ended.items() if some == methods[problem[0]]]


def counted(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns the complete studies of workloads that have all studies; if none has, of every one.

    So a workload that is under way does not change what the others say.

    Args:
      records: From `table`.
    """
    problems = complete(records)
    number = collections.Counter(workload for workload, _ in problems)
    whole = [problem for problem in problems if number[problem[0]] >= STUDIES]
    return whole or problems


def costs_of(
    records: Sequence[Mapping[str, Any]], measure: str
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns method → its costs on all problems, and each problem's workload.

    Problems are the studies of `counted`. Methods that lack one of these are left out.

    Args:
      records: From `table`.
      measure: One of `MEASURES`.

    Returns:
      Method → float `[problems]`, and the workloads `[problems]`.
    """
    problems = counted(records)
    found: dict[str, dict] = {}
    for r in records:
        if _problem(r) in problems:
            found.setdefault(r["method"], {})[_problem(r)] = float(r[measure])
    costs = {
        method: np.array([own[problem] for problem in problems])
        for method, own in found.items()
        if len(own) == len(problems)
    }
    return costs, [workload for workload, _ in problems]


def finals_of(
    folder: pathlib.Path, root: str, before: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Returns a record for each final run, of tracks whose runs have all ended.

    So a track that is under way does not change what the others say, and no mean is over fewer
    seeds than the rules ask for. Diverged runs have ended, but have no record.

    Args:
      folder: The league's folder.
      root: Folder of all results.
      before: The recorded final runs. They stand for methods without new ones.

    Returns:
      Records with `workload`, `track` (`tuned` or `untuned`), `method`, `seed`, and a value for
      each column of the final item.
    """
    found = []
    for item in items.own_items(str(folder)):
        workload = item.name.removesuffix("_final")
        for setup in item.setups.values():
            if setup.sample:
                continue
            known: dict[str, list[Mapping[str, Any]]] = {}
            for r in before:
                if (r["workload"], r["track"]) == (workload, setup.name):
                    known.setdefault(r["method"], []).append(r)
            ended = {method: _ended(setup, method, root) for method in setup.rows}
            if not known and None in ended.values():
                continue
            for method, runs in ended.items():
                if runs is None:
                    found += map(dict, known.get(method, []))
                    continue
                for run in runs:
                    values = {c["name"]: results.column_value(run, c) for c in setup.columns}
                    keys = {"workload": workload, "track": setup.name}
                    found.append({**keys, "method": method, "seed": run.seed, **values})
    return found


def _ended(setup: Setup, method: str, root: str) -> list[PlannedRun] | None:
    """Returns a method's final runs that did not diverge; `None` if some have not ended."""
    if setup.points_of:
        try:
            setup, _ = best_points.settled(setup, [method], root, lambda said: None)
        except best_points.UnfinishedError:
            return None
        except ReproduceError:
            return []  # It diverged at every point.
    points = {method: setup.points(method)}
    planned = items.planned_runs(setup, [method], points, setup.seeds, root=root)
    sound = [run for run in planned if not (run.folder / outputs.DIVERGED).exists()]
    return sound if all(run.read().summary for run in sound) else None


def runs_of(
    records: Sequence[Mapping[str, Any]],
    studies: Sequence[Study],
    before: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Returns a record for every run of studies, whether it went on or not.

    Args:
      records: From `table`.
      studies: Its studies, as far as there are runs.
      before: The recorded runs. They stand for studies without new ones.
    """
    here = {(of.workload, of.study, of.method): of for of in studies}
    known: dict[tuple, list[Mapping[str, Any]]] = {}
    for r in before:
        known.setdefault(key(r), []).append(r)
    found: list[dict[str, Any]] = []
    for record in records:
        of = here.get(key(record))
        if of is None:
            found += map(dict, known.get(key(record), []))
            continue
        found += [
            {
                "workload": of.workload,
                "study": of.study,
                "method": of.method,
                "point": _words(run.point),
                "rounds": run.read().last_round,
                "diverged": (run.folder / outputs.DIVERGED).exists(),
                "validation_loss": next(reversed(run.read().values("validation/loss")[1]), ""),
            }
            for run in of.tried
        ]
    return found
