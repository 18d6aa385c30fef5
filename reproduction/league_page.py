"""The league's page: performance profiles, a table of methods, and what the intervals carry."""

import collections
import contextlib
import math
import pathlib
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reproduction import league_studies, looks, statistics
from reproduction.statistics import Interval
from tff_algos import registry
from tff_suite import figures, writing

PAGE, FIGURE = "README.md", "profiles.png"
_CLEARLY = (
    "*Clearly* means beyond the 95 % intervals: that of the improvement lies above 0.5, and those "
    "of other numbers do not overlap."
)
# Methods in the figure: the baseline and the best of the others.
_DRAWN = 8
# A setting with fewer values, such as a choice, has no ends.
_FEW = 8
# Columns of a final run that are no measure.
_KEYS = ("workload", "track", "method", "seed")


def summary(
    records: Sequence[Mapping[str, Any]], finals: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns a record for each method with all studies, best area first.

    Args:
      records: From `league_studies.table`.
      finals: From `league_studies.finals_of`.
    """
    costs = {m: league_studies.costs_of(records, m) for m in league_studies.MEASURES}
    if not all(found for found, _ in costs.values()):
        return []
    areas = {measure: league_studies.area(*found) for measure, found in costs.items()}
    of_final, problems = scaled_finals(finals), league_studies.counted(records)
    compared = [r for r in records if (r["workload"], r["study"]) in problems]
    found = []
    first = areas[league_studies.MEASURES[0]]
    for method in sorted(first, key=lambda name: first[name].mean, reverse=True):
        cost = registry.get(method).cost
        record: dict[str, Any] = {"method": method}
        for measure, of in areas.items():
            record |= _numbers(f"area_{measure}", of[method])
        record |= _numbers("improvement", league_studies.improvement(compared, method))
        record |= _numbers("final", of_final.get(method))
        record |= {"gradients_per_step": cost.gradients, "vectors": cost.down + cost.up}
        found.append(record)
    return found


def _numbers(name: str, interval: Interval | None) -> dict[str, Any]:
    keys = (name, f"{name}_low", f"{name}_high")
    values = ("", "", "") if interval is None else (round(value, 4) for value in interval)
    return dict(zip(keys, values, strict=True))


def scaled_finals(finals: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
    """Returns each method's interquartile mean of final test metrics, where the baseline's is 1.

    Args:
      finals: From `league_studies.finals_of`; only tuned runs count, and only workloads and seeds
        that the baseline has. Methods that lack any of these are left out.
    """
    tuned = [record for record in finals if record["track"] == "tuned"]
    values = {
        (r["method"], r["workload"], r["seed"]): next(v for k, v in r.items() if k not in _KEYS)
        for r in tuned
    }
    wanted = [key[1:] for key in values if key[0] == league_studies.BASELINE]
    workloads = list(dict.fromkeys(workload for workload, _ in wanted))
    seeds = sorted({seed for _, seed in wanted})
    arrays = {}
    for method in dict.fromkeys(r["method"] for r in tuned):
        own = [[values.get((method, w, s), math.nan) for w in workloads] for s in seeds]
        if np.isfinite(own).all():
            arrays[method] = np.array(own)
    if league_studies.BASELINE not in arrays:
        return {}
    scaled = league_studies.scaled(arrays)
    return {method: statistics.interquartile_mean(own) for method, own in scaled.items()}


def better(record: Mapping[str, Any], baseline: Mapping[str, Any]) -> bool:
    """Returns whether a method beats the baseline beyond the intervals.

    Its probability of improvement and its area of rounds must both lie above the baseline's, with
    their whole intervals.

    Args:
      record: The method's record of `summary`.
      baseline: The baseline's record.
    """
    return _is_surer(record) and _is_faster(record, baseline)


def _is_surer(record: Mapping[str, Any]) -> bool:
    return record["improvement_low"] != "" and record["improvement_low"] > 0.5


def _is_faster(record: Mapping[str, Any], baseline: Mapping[str, Any]) -> bool:
    return record["area_rounds_low"] > baseline["area_rounds_high"]


def _ending_higher(
    ranked: Sequence[Mapping[str, Any]], finals: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Returns the methods ahead of the baseline beyond both intervals in a workload's final metric.

    Args:
      ranked: Records of `summary`.
      finals: From `league_studies.finals_of`, of one workload.

    Returns:
      Method → its metric, where the baseline's is 1, best first.
    """
    found = scaled_finals(finals)
    if league_studies.BASELINE not in found:
        return {}
    ours = {record["method"] for record in ranked}
    most = found[league_studies.BASELINE].high
    ahead = {m: of.mean for m, of in found.items() if m in ours and of.low > most}
    return dict(sorted(ahead.items(), key=lambda one: one[1], reverse=True))


def at_edges(
    records: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str], list[str]]:
    """Returns which methods' best points lie at an end of a range, so that it may be too narrow.

    Args:
      records: From `league_studies.table`.
      runs: From `league_studies.runs_of`.

    Returns:
      Setting and `highest` or `lowest` → the methods whose best value was one of the two highest or
      lowest that were tried, in at least half of their studies. Settings with few values are left
      out.
    """
    tried: dict[tuple, set[float]] = {}
    for run in runs:
        for flag, value in _numbers_of(run["point"]).items():
            tried.setdefault((*league_studies.key(run), flag), set()).add(value)
    found: dict[tuple[str, str], dict[str, list[bool]]] = {}
    for record in records:
        for flag, value in _numbers_of(record["point"]).items():
            values = sorted(tried.get((*league_studies.key(record), flag), ()))
            if len(values) < _FEW:
                continue
            for end, some in (("highest", values[-2:]), ("lowest", values[:2])):
                of_end = found.setdefault((flag, end), {})
                of_end.setdefault(record["method"], []).append(value in some)
    often = {
        where: [method for method, hits in of.items() if sum(hits) * 2 >= len(hits)]
        for where, of in found.items()
    }
    return {where: methods for where, methods in often.items() if methods}


def _numbers_of(point: str) -> dict[str, float]:
    """Returns the settings of a point whose values are numbers."""
    found = {}
    for part in str(point).split():
        flag, _, value = part.removeprefix("--").partition("=")
        with contextlib.suppress(ValueError):
            found[flag] = float(value)
    return found


def write(
    folder: pathlib.Path,
    records: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    methods: Sequence[Mapping[str, Any]],
    finals: Sequence[Mapping[str, Any]],
    waiting: Mapping[str, Mapping[str, int]],
) -> None:
    """Writes the page and its figure.

    Args:
      folder: The league's folder.
      records: From `league_studies.table`, without methods of `waiting`.
      runs: From `league_studies.runs_of`.
      methods: From `summary`, without methods of `waiting`.
      finals: From `league_studies.finals_of`.
      waiting: From `unfinished`; named as not ranked yet.
    """
    ranked = [record for record in methods if record["method"] not in outside(folder)]
    narrow = chosen(folder)
    if ranked:
        names = [record["method"] for record in ranked]
        _draw(folder / FIGURE, of_all(records, narrow), names)
    planned = [
        path.stem for path in sorted(folder.glob("*.toml")) if not path.stem.endswith("_final")
    ]
    told = told_unfinished(waiting)
    text = "\n".join(_page(records, runs, methods, ranked, finals, planned, narrow, told))
    writing.write_atomically(folder / PAGE, text.encode())


def outside(folder: pathlib.Path) -> set[str]:
    """Returns the methods that run outside the ranking."""
    return set(_settings(folder).get("outside", ()))


def chosen(folder: pathlib.Path) -> set[str]:
    """Returns the workloads on which only the best methods of the others run."""
    workloads = _settings(folder).get("workloads", {})
    return {name for name, workload in workloads.items() if "only" in workload}


def _settings(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / "settings" / "league.toml"
    return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}


def own(folder: pathlib.Path) -> set[str]:
    """Returns the methods that have joined: their lines in the settings name a module."""
    methods = _settings(folder).get("methods", {})
    return {name for name, line in methods.items() if "import" in line}


def unfinished(
    records: Sequence[Mapping[str, Any]], joined: Collection[str]
) -> dict[str, dict[str, int]]:
    """Returns joined methods that lack studies of a workload which they have begun.

    A study counts once all methods have ended it. Without these methods, the others keep theirs.

    Args:
      records: From `league_studies.table`.
      joined: From `own`.

    Returns:
      Method → workload → number of studies that it has ended.
    """
    others = [record for record in records if record["method"] not in joined]
    whole = set(league_studies.complete(others))
    ended: dict[tuple[str, str], set[str]] = {}
    for record in records:
        if record["method"] in joined and record["target"] != "":
            place = record["method"], record["workload"]
            ended.setdefault(place, set()).add(record["study"])
    found: dict[str, dict[str, int]] = {}
    for (method, workload), some in ended.items():
        if {study for of, study in whole if of == workload} - some:
            found.setdefault(method, {})[workload] = len(some)
    return found


def told_unfinished(found: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Returns a sentence for each method of `unfinished`."""
    lines = []
    for method, ended in found.items():
        parts = [
            f"{number} of {league_studies.STUDIES} studies of {w}" for w, number in ended.items()
        ]
        lines.append(f"{method}: {', '.join(parts)}; not ranked yet.")
    return lines


def of_all(
    records: Sequence[Mapping[str, Any]], narrow: Collection[str]
) -> list[Mapping[str, Any]]:
    """Returns the records of workloads on which all methods run.

    Args:
      records: Studies or final runs.
      narrow: The other workloads, from `chosen`.
    """
    return [record for record in records if record["workload"] not in narrow]


def _of_best(
    records: Sequence[Mapping[str, Any]],
    finals: Sequence[Mapping[str, Any]],
    narrow: Collection[str],
) -> list[dict[str, Any]]:
    """Returns `summary` over all workloads, for the methods that run on all of them.

    It is empty until the studies of the workloads in `narrow` are done.
    """
    best = {record["method"] for record in records if record["workload"] in narrow}
    some = [record for record in records if record["method"] in best]
    if not best or not set(narrow) <= {name for name, _ in league_studies.counted(some)}:
        return []
    return summary(some, [record for record in finals if record["method"] in best])


def _draw(path: pathlib.Path, records: Sequence[Mapping[str, Any]], ranked: Sequence[str]) -> None:
    """Draws the profiles of the baseline and the best methods, one panel per measure."""
    drawn = [league_studies.BASELINE, *(m for m in ranked if m != league_studies.BASELINE)][:_DRAWN]
    seen = looks.looks_of(drawn)
    ratios = np.geomspace(1.0, league_studies.MOST_RATIO, 301)
    figure, axes = figures.grid(len(league_studies.MEASURES), sharey=True)
    for panel, measure in zip(axes, league_studies.MEASURES, strict=True):
        costs, _ = league_studies.costs_of(records, measure)
        found = league_studies.profiles(costs, ratios)
        for place, method in enumerate(drawn):
            if method in found:
                panel.plot(
                    ratios,
                    found[method],
                    color=seen[method].colour,
                    linestyle=seen[method].dashes,
                    linewidth=figures.width(place, len(drawn)),
                    label=_name(method),
                )
        panel.set(xscale="log", xlabel=f"{measure}, ratio to the best method", ylim=(-0.02, 1.02))
        figures.ticks_at(panel.xaxis, [1, 1.5, 2, 3, 4])
    axes[0].set(ylabel="share of studies")
    figures.legend(figure)
    figures.save(figure, str(path), (".png",))


def _page(
    records: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    methods: Sequence[Mapping[str, Any]],
    ranked: Sequence[Mapping[str, Any]],
    finals: Sequence[Mapping[str, Any]],
    planned: Sequence[str],
    narrow: Collection[str] = (),
    told: Sequence[str] = (),
) -> Iterator[str]:
    wide = of_all(records, narrow)
    problems = league_studies.counted(wide)
    workloads = list(dict.fromkeys(workload for workload, _ in problems))
    ended = collections.Counter(workload for workload, _ in league_studies.complete(records))
    done = [
        f"{number} of {league_studies.STUDIES} studies on `{workload}`"
        for workload, number in ended.items()
    ]
    left = [name for name in planned if ended[name] < league_studies.STUDIES]
    waiting = f" Not complete yet: {_listed(left)}." if left else ""
    ran = {r["method"] for r in wide if (r["workload"], r["study"]) in problems}
    elsewhere = sorted(ran - {r["method"] for r in methods}) if methods else []
    lacking = ""
    if elsewhere:
        names = ", ".join(map(_name, elsewhere))
        lacking = f" Not ranked, since it has not run on all of them: {names}."
    tested = {r["workload"] for r in of_all(finals, narrow) if r["track"] == "tuned"}
    best = _of_best(records, finals, narrow)
    # Where test data were used, if not yet everywhere.
    only = _listed(sorted(tested)) if tested and tested != set(workloads) else ""
    yield from (
        "# League",
        "",
        "Every method of the suite under equal tuning. [The rules](RULES.md) were committed before "
        "the first run; this page is written by `python -m reproduction.league`.",
        "",
        f"Done so far: {', '.join(done) or 'nothing'}, with {len(methods)} methods."
        f"{waiting}{lacking}",
        "",
        *(f"- {line}" for line in told),
        *[""] * bool(told),
        "## Which should I try first?",
        "",
        *_advice(ranked, workloads, len(problems), finals, narrow, best),
        "",
    )
    if ranked:
        yield from (
            "## Profiles",
            "",
            f"![Share of studies that a method finishes within a ratio of the best one]({FIGURE})",
            "",
            "The target is what tuned FedAvg reaches after three quarters of the rounds, on "
            "validation data. The left end of a curve shows how often the method is the fastest. "
            "The right end shows how often it reaches the target within "
            f"{league_studies.MOST_RATIO:g} times what the fastest takes.",
            "",
            "## Methods",
            "",
            "*Area* is the area under a method's profile; 1 means that the method was the best in "
            "every study. *Improvement* is the probability of a lower validation loss than "
            "FedAvg's in the same study. *Final* is the test metric relative to FedAvg's mean: the "
            "interquartile mean over workloads and five fresh seeds"
            f"{only and f', so far only on {only}'}. That mean leaves out the highest and the "
            "lowest quarter of the values, so a large lead on one workload counts little. "
            "[Test data](#test-data) shows each workload. *Gradients per step* and *vectors per "
            "round* are what a client computes and what it receives and sends. Intervals are at "
            "95 %, by a bootstrap over studies or seeds; with three studies they are coarse.",
            "",
            *_table(ranked),
            "",
            *_on_ranges([r for r in wide if (r["workload"], r["study"]) in problems], runs),
        )
    others = [record for record in methods if record not in ranked]
    if others:
        yield from (
            "Outside the ranking:",
            "",
            *_table(others),
            "",
        )
    if best:
        missing = sorted(set(narrow) - {r["workload"] for r in finals if r["track"] == "tuned"})
        without = f" *Final* leaves out {_listed(missing)}: no final runs yet." if missing else ""
        yield from (
            f"## The best methods, with {_listed(sorted(narrow))}",
            "",
            f"These methods also ran on {_listed(sorted(narrow))}: FedAvg, and those that are best "
            "on the other workloads. The numbers are over all workloads. Areas are relative to the "
            f"best of these methods.{without}",
            "",
            *_table(best),
            "",
        )
    for track, title in (("tuned", "Test data"), ("untuned", "Without tuning")):
        some = [record for record in finals if record["track"] == track]
        if some:
            yield from (f"## {title}", "", *_finals(some))
    yield from (
        "## Files",
        "",
        "- [studies.csv](studies.csv): the best settings of each study, and the rounds, gradients "
        "and vectors that they took to the target",
        "- [runs.csv](runs.csv): every run of every study",
        "- [summary.csv](summary.csv): the table under *Methods*",
        *(
            f"- [{name}_final.csv]({name}_final.csv): final runs on `{name}`"
            for name in dict.fromkeys(record["workload"] for record in finals)
        ),
        "",
    )


def _on_ranges(
    records: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yields what the best points say about the ranges that were searched."""
    edges = at_edges(records, runs)
    if edges:
        yield from (
            "A wider range might serve some methods better. In at least half of their studies, the "
            "best value was one of the two at an end of those tried:",
            "",
            *(
                f"- the {end} `--{flag}`: {', '.join(map(_name, methods))}"
                for (flag, end), methods in sorted(edges.items())
            ),
            "",
        )


def _advice(
    ranked: Sequence[Mapping[str, Any]],
    workloads: Sequence[str],
    studies: int,
    finals: Sequence[Mapping[str, Any]] = (),
    narrow: Collection[str] = (),
    best: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    if not workloads or studies < league_studies.STUDIES * len(workloads):
        return [
            f"No answer yet. The rules ask for {league_studies.STUDIES} studies of each workload; "
            "fewer give no interval, so nothing below is a claim."
        ]
    baseline = next((r for r in ranked if r["method"] == league_studies.BASELINE), None)
    if baseline is None:
        return ["No answer yet: FedAvg's studies are not done."]
    ahead = [record for record in ranked if better(record, baseline)]
    of_finals = _on_test_data(ranked, finals, narrow)
    where = _listed(workloads)
    if not ahead:
        told = [
            f"On {where}, no method clearly beats tuned FedAvg both in validation loss and in "
            f"rounds to the target. {_CLEARLY}"
        ]
        for what, some in (
            ("rounds to the target", [r for r in ranked if _is_faster(r, baseline)]),
            ("validation loss", [r for r in ranked if _is_surer(r)]),
        ):
            if some:
                names = ", ".join(_name(record["method"]) for record in some)
                told.append(f"Clearly better in {what} alone: {names}.")
        if any(map(_is_surer, ranked)):
            told.append(_by_chance(len(ranked) - 1, studies))
        return told + (of_finals or ["Try FedAvg first, and tune both its rates."])
    names = ", ".join(_name(record["method"]) for record in ahead)
    told = [
        f"On {where}, these clearly beat tuned FedAvg, both in validation loss and in rounds to "
        f"the target: {names}. {_CLEARLY}"
    ]
    of_best = next((r for r in best if r["method"] == league_studies.BASELINE), None)
    if of_best is not None:
        still = ", ".join(_name(record["method"]) for record in best if better(record, of_best))
        told.append(
            f"With {_listed(sorted(narrow))} as well, where only the best methods and FedAvg ran, "
            f"these do: {still or 'none'}."
        )
    told.append(_by_chance(len(ranked) - 1, studies))
    dear = [r for r in ahead if (r["gradients_per_step"], r["vectors"]) > (1, 2)]
    if dear:
        costs = ", ".join(
            f"{_name(r['method'])} ({r['gradients_per_step']} gradients per step, "
            f"{r['vectors']} vectors per round)"
            for r in dear
        )
        told.append(f"Some cost more per round than FedAvg's 1 gradient and 2 vectors: {costs}.")
    if len(workloads) == 1:
        told.append("One workload says little about another problem.")
    return told + of_finals


def _on_test_data(
    ranked: Sequence[Mapping[str, Any]],
    finals: Sequence[Mapping[str, Any]],
    narrow: Collection[str] = (),
) -> list[str]:
    """Returns a table of the methods that end above tuned FedAvg on test data; empty if none do."""
    ahead, rows = [], []
    # Of a workload without tuned runs, nothing is known of who ends above tuned FedAvg.
    tuned = [record for record in finals if record["track"] == "tuned"]
    for workload in dict.fromkeys(record["workload"] for record in tuned):
        some = [record for record in tuned if record["workload"] == workload]
        of_workload = _ending_higher(ranked, some)
        if workload not in narrow:
            ahead.append(of_workload.keys())
        metric = next(key for key in some[0] if key not in _KEYS)
        shown = [f"{_name(m)} ({of:.2f})" for m, of in of_workload.items()]
        rows.append(f"| `{workload}` | {metric} | {', '.join(shown) or 'none'} |")
    if all(row.endswith(" | none |") for row in rows):
        return []
    told = [
        "",
        "These methods clearly beat FedAvg on test data. Numbers are relative to FedAvg's.",
    ]
    if len(ahead) > 1:
        always = [_name(r["method"]) for r in ranked if all(r["method"] in some for some in ahead)]
        which = "every workload that all methods ran on" if narrow else "every workload"
        told.append(f"On {which}: {', '.join(always) or 'none'}.")
    return [*told, "", "| workload | metric | ahead |", "| --- | --- | --- |", *rows]


def _by_chance(methods: int, studies: int) -> str:
    """Returns what a win in all studies is worth: its interval has no width, however few."""
    return (
        "Chance alone gives some wins: of "
        f"{methods} methods no better than FedAvg, {methods / 2**studies:.2g} would have the lower "
        f"validation loss in all {studies} studies on average."
    )


def _listed(workloads: Sequence[str]) -> str:
    *first, last = (f"`{name}`" for name in workloads)
    return f"{', '.join(first)} and {last}" if first else last


def _name(method: str) -> str:
    return registry.get(method).display_name


def _table(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the table of methods, from `summary`."""
    areas = [f"area_{measure}" for measure in league_studies.MEASURES]
    heads = [f"area: {measure}" for measure in league_studies.MEASURES]
    heads = ["method", *heads, "improvement", "final", "gradients per step", "vectors per round"]
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for record in records:
        cells = [_cell(record, name) for name in (*areas, "improvement", "final")]
        cells += [str(record["gradients_per_step"]), str(record["vectors"])]
        yield f"| {_name(record['method'])} | {' | '.join(cells)} |"


def _cell(record: Mapping[str, Any], name: str) -> str:
    if record[name] == "":
        return ""
    low, high = record[f"{name}_low"], record[f"{name}_high"]
    if low == high:  # As with one study, or equal studies.
        return f"{record[name]:.2f}"
    return f"{record[name]:.2f} ({low:.2f} to {high:.2f})"


def _finals(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a table for each workload: mean and standard deviation over seeds."""
    for workload in dict.fromkeys(record["workload"] for record in records):
        some = [record for record in records if record["workload"] == workload]
        names = [key for key in some[0] if key not in _KEYS]
        yield from (
            f"`{workload}`, mean ± standard deviation over seeds:",
            "",
            f"| method | {' | '.join(names)} | seeds |",
            f"| --- |{' --- |' * len(names)} --- |",
        )
        table = []
        for method in dict.fromkeys(record["method"] for record in some):
            own = [record for record in some if record["method"] == method]
            columns = [np.array([record[name] for record in own]) for name in names]
            cells = [
                f"{values.mean():.4f}" + (f" ± {values.std(ddof=1):.4f}" if len(own) > 1 else "")
                for values in columns
            ]
            line = f"| {_name(method)} | {' | '.join(cells)} | {len(own)} |"
            table.append((-columns[0].mean(), line))
        yield from (line for _, line in sorted(table))
        yield ""
