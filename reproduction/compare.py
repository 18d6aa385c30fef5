"""Compares any runs: flags that differ, curves, and paired differences over seeds."""

import itertools
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from reproduction import comparison, plots, quantities, results, run_folders, statistics
from simulation.errors import RunError
from tff_suite import figures, tables, user_warnings, writing

_DRAWS = "client_datasets_random_seed"
# Flags that differ between runs of one experiment.
_OF_THE_RUN = (
    "seed",
    _DRAWS,
    "experiment_name",
    "root_output_dir",
    "data_dir",
)


def load_runs(folders: Iterable[str]) -> pd.DataFrame:
    """Loads runs as one table.

    Args:
      folders: Folders of runs, or folders that hold such folders at any depth.

    Returns:
      A row per run and round: `run` (its folder), `label` (the method and the settings in which
      runs of it differ), every flag in force as `flag/<name>`, then the columns of metrics.csv.
      If runs have the same label and seed, such as those before and after a change of code, a
      warning names them.

    Raises:
      RunError: If a folder holds no run, or a damaged one.
    """
    runs = run_folders.find_runs(folders)
    alike = run_folders.twins(runs)
    if alike:
        more = f" So have {len(alike) - 1} more." if alike[1:] else ""
        user_warnings.warn(
            f"{run_folders.told_twins(*alike[0])}.{more} A mean over the seeds of a label would "
            "count both: choose by `run`."
        )
    parts = []
    for run, label in zip(runs, run_folders.labels(runs), strict=True):
        flags = pd.DataFrame([{f"flag/{k}": v for k, v in run.flags.items()}])
        flags = flags.loc[flags.index.repeat(len(run.metrics))].reset_index(drop=True)
        flags.insert(0, "label", label)
        flags.insert(0, "run", run.folder)
        parts.append(pd.concat([flags, run.metrics.reset_index(drop=True)], axis=1))
    return pd.concat(parts, ignore_index=True)


def differing_flags(runs: Sequence[run_folders.RunFolder]) -> pd.DataFrame:
    """Returns the flags in which runs differ: one row per flag, one column per label.

    A cell lists all values among runs of the label. Seeds and folders are left out.
    """
    labels = run_folders.labels(runs)
    names = list(dict.fromkeys(flag for run in runs for flag in run.flags))
    rows = {}
    for name in names:
        values = [str(run.flags.get(name, "")) for run in runs]
        if name not in _OF_THE_RUN and len(set(values)) > 1:
            of_label = {}
            for label, value in zip(labels, values, strict=True):
                of_label.setdefault(label, {})[value] = None
            rows[name] = {label: ", ".join(some) for label, some in of_label.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(dict.fromkeys(labels)))


def aligned(runs: Sequence[run_folders.RunFolder], column: str) -> pd.DataFrame:
    """Returns a column of metrics.csv of all runs: index `round_num`, one column per run.

    The columns are named (label, seed). Rounds for which a run has no value are NaN.

    Raises:
      RunError: If a run lacks the column.
    """
    points = run_folders.curve(runs, column)
    return points.pivot_table(index="round_num", columns=["method", "seed"], values="value")


class Difference(NamedTuple):
    """The difference between two labels, paired over the seeds that both have.

    Attributes:
      label: One label.
      reference: The other, which is subtracted.
      round_num: Round of the comparison: the last one that all of their runs have.
      seeds: Seeds that both have, and with which neither run diverged.
      mean: Mean of the differences.
      low: Lower end of the 95 % interval (Student's t); NaN with fewer than two seeds.
      high: Its upper end.
      p: Two-sided p-value of the paired t-test after Holm's correction over all differences; NaN
        with fewer than two seeds.
    """

    label: str
    reference: str
    round_num: int
    seeds: tuple[int, ...]
    mean: float
    low: float
    high: float
    p: float


def paired_differences(runs: Sequence[run_folders.RunFolder], column: str) -> list[Difference]:
    """Compares every two labels that share a seed, seed by seed.

    Diverged runs are left out, since their last value is that of an earlier round than it seems.

    Args:
      runs: The runs.
      column: Column of metrics.csv.

    Raises:
      RunError: If a run lacks the column, if two runs have the same label and seed, or if no two
        labels share a seed and a round.
    """
    points = run_folders.curve(runs, column)
    _refuse_twins(runs)
    table = points.pivot(index="round_num", columns=["method", "seed"], values="value")
    begun = run_folders.by_name(runs)
    labels = list(dict.fromkeys(label for label, _ in begun))
    diverged = {name for name, run in begun.items() if run.diverged}
    found, lacking = [], []
    for reference, label in itertools.combinations(labels, 2):
        common, known = (
            {seed for of, seed in some if of == label}
            & {seed for of, seed in some if of == reference}
            for some in (table, begun)
        )
        seeds = sorted(s for s in common if not {(label, s), (reference, s)} & diverged)
        if common and not seeds:
            continue
        pairs = table[[(name, seed) for name in (reference, label) for seed in seeds]].dropna()
        if not seeds or pairs.empty:
            what = f"{column} in no common round" if known else "no seed in common"
            lacking.append(f"{label} and {reference} have {what}.")
            continue
        last = pairs.iloc[-1]
        change = [last[label, seed] - last[reference, seed] for seed in seeds]
        at, p = int(pairs.index[-1]), statistics.p_value(change)
        interval = statistics.interval(change)
        found.append(Difference(label, reference, at, tuple(seeds), *interval, p))
    if lacking and not found:
        raise RunError(lacking[0])
    corrected = statistics.holm([one.p for one in found])
    return [one._replace(p=p) for one, p in zip(found, corrected, strict=True)]


def cautions(runs: Sequence[run_folders.RunFolder]) -> list[str]:
    """Returns one line each on diverged runs, and on differences in data, rounds and code.

    Data may depend on the seed, so only data of runs with the same seed are compared.
    """
    labels = run_folders.labels(runs)
    lines, seeds = [], {}
    diverged = run_folders.where_ended(
        {
            (label, run.flags["seed"]): run
            for run, label in zip(runs, labels, strict=True)
            if run.diverged
        }
    )
    if diverged:
        lines.append(f"Diverged, so not in means and differences: {'; '.join(diverged)}.")
    for run, label in zip(runs, labels, strict=True):
        seeds.setdefault(run.flags["seed"], []).append((run, label))
    of_data = {seed: _kinds_of_data(some) for seed, some in seeds.items()}
    differing = [seed for seed, kinds in of_data.items() if len(kinds) > 1]
    if differing:
        kinds = "; ".join(of_data[differing[0]])
        named = "seed" if len(differing) == 1 else "seeds"
        lines.append(f"Not the same data ({named} {_listed(differing)}): {kinds}.")
    for seed, some in seeds.items():
        draws: dict[Any, dict[str, None]] = {}
        for run, label in some:
            draws.setdefault(run.flags.get(_DRAWS), {})[label] = None
        if len(draws) > 1:
            of_each = "; ".join(f"{value} of {', '.join(of)}" for value, of in draws.items())
            lines.append(
                f"Not the same draws of clients (seed {seed}): {_DRAWS}={of_each}. So the "
                "differences are not only of the methods."
            )
            break
    ends = {}
    for run, label in zip(runs, labels, strict=True):
        if not run.diverged:
            ends.setdefault(run.last_round, {})[label] = None
    if len(ends) > 1:
        of_each = "; ".join(f"{last} of {', '.join(some)}" for last, some in sorted(ends.items()))
        lines.append(
            f"Not the same number of rounds: {of_each}. Each difference is taken after the last "
            "round that its runs have in common."
        )
    commits = {}
    for run, label in zip(runs, labels, strict=True):
        if run.circumstances is not None:
            commit = (run.circumstances.commit or "unknown")[:8]
            commits.setdefault(commit, {})[label] = None
    if len(commits) > 1:
        of_each = "; ".join(f"{commit} of {', '.join(some)}" for commit, some in commits.items())
        lines.append(f"Not the same commit of the code: {of_each}.")
    return lines


def _without_spread(paired: Sequence[Difference], column: str) -> list[str]:
    """Returns a line on differences that are the same for all seeds; none if there are none."""
    alike = [
        f"{d.label} - {d.reference}"
        for d in paired
        if statistics.is_without_spread(statistics.Interval(d.mean, d.low, d.high))
    ]
    return [statistics.told_of_spread(column, alike)] if alike else []


def _listed(seeds: Iterable[int]) -> str:
    return " ".join(map(str, sorted(seeds)))


def _kinds_of_data(runs: Any) -> list[str]:
    """Describes the different data among runs of one seed, each with its labels; or nothing."""
    kinds = {}
    for run, label in runs:
        if run.circumstances is not None:
            known = (run.circumstances.data, run.data_digest)
            kinds.setdefault(known, {})[label] = None
    words = {data for data, _ in kinds}
    if len(words) == 1 and len({digest for _, digest in kinds if digest is not None}) < 2:
        return []  # A run that left no digests tells no difference.
    return [
        f"{', '.join(some)} on {data}" + (f" (digest {digest[:8]})" if digest else "")
        for (data, digest), some in kinds.items()
    ]


def _refuse_twins(runs):
    """Refuses runs with equal settings and seed, over which a mean over seeds is meaningless."""
    for pair in run_folders.twins(runs):
        others = [*cautions(pair), *run_folders.mixtures(pair)]
        more = f" Yet they differ: {' '.join(others)}" if others else ""
        raise RunError(f"{run_folders.told_twins(*pair)}; compare one of them at a time.{more}")


def report(folders: Sequence[str], column: str | None, output: pathlib.Path) -> str:
    """Compares runs: returns Markdown, and writes aligned curves as CSV, PNG and PDF.

    For results of items, it compares the chosen points of rows by the numbers in their tables.

    Args:
      folders: Folders of runs, or folders that contain these; or folders of items' results.
      column: Column of metrics.csv, that of the primary metric by default; for items a column of
        their tables, the first one by default.
      output: Folder for the files.

    Returns:
      The Markdown.

    Raises:
      RunError: If runs can't be read or compared.
    """
    compared = _tables(folders)
    if compared:
        return _of_items(compared, column)
    runs = run_folders.find_runs(folders)
    column = column or run_folders.primary_column(runs)
    flags = differing_flags(runs)
    lines = [f"## Flags that differ ({len(runs)} runs)\n"]
    lines.append(tables.of_frame(flags) if len(flags) else "None but seeds and folders.")
    told = cautions(runs)
    if told:
        lines += ["\n## What else differs\n", *(f"- {line}" for line in told)]
    lines += [f"\n{line}" for line in [*run_folders.mixtures(runs), *run_folders.alike(runs)]]
    paired = paired_differences(runs, column)
    curves = aligned(runs, column)
    output.mkdir(parents=True, exist_ok=True)
    writing.write_atomically(output / "aligned.csv", curves.to_csv().encode())
    points = run_folders.curve(runs, column)
    drawn, _ = run_folders.without_diverged(runs, column)
    figure = plots.curves(drawn, quantity=quantities.of_column(column), title=column)
    figures.save(figure, str(output / "curves"))
    last = _last(points, runs)
    ends = [
        {
            "": label,
            "seeds": " ".join(map(str, sorted(of_label.seed))),
            "round": " to ".join(map(str, sorted({*of_label.round_num.agg(["min", "max"])}))),
            "mean": f"{mean:.4g}",
            "spread": "one seed" if spread is None else f"{spread:.4g}",
        }
        for label, of_label in last[~last.diverged].groupby("method", sort=False)
        for mean, spread in [results.mean_and_spread(of_label.value.tolist())]
    ]
    if ends:
        lines += [f"\n## {column}, last value of each run\n", _table(ends)]
    rows = [
        {
            "difference": f"{d.label} - {d.reference}",
            "after round": d.round_num,
            "seeds": " ".join(map(str, d.seeds)),
            "mean": f"{d.mean:.4g}",
            "95 % interval": f"[{d.low:.4g}, {d.high:.4g}]" if len(d.seeds) > 1 else "one seed",
            "p (Holm)": f"{d.p:.2g}" if len(d.seeds) > 1 else "",
        }
        for d in paired
    ]
    if rows:
        lines += ["\n## Differences, paired over seeds\n", _table(rows)]
        lines.append(f"\n{statistics.told_of_seeds(min(len(d.seeds) for d in paired))}")
        lines += [f"\n{line}" for line in _without_spread(paired, column)]
    lines.append(f"\nCurves: {output}/{{aligned.csv,curves.png,curves.pdf}}")
    return "\n".join(lines)


def _tables(folders: Sequence[str]) -> list[comparison.Comparison]:
    """Returns the tables of items in folders; none if the folders hold only runs.

    Raises:
      RunError: If only some folders hold tables, since the others would be left out.
    """
    of_each = {folder: comparison.within(folder) for folder in folders}
    without = [folder for folder, found in of_each.items() if not found]
    if 0 < len(without) < len(of_each):
        other = next(folder for folder, found in of_each.items() if found)
        raise RunError(
            f"{without[0]} holds no table of an item, and {other} does; name the folders of the "
            "runs to compare these."
        )
    return [found for some in of_each.values() for found in some]


def _last(points: pd.DataFrame, runs: Sequence[run_folders.RunFolder]) -> pd.DataFrame:
    """Returns the last point of each run, with `diverged` as a further column."""
    last = points.loc[points.groupby(["method", "seed"], sort=False).round_num.idxmax()]
    named = run_folders.by_name(runs)
    names = zip(last.method, last.seed, strict=True)
    return last.assign(diverged=[named[name].diverged for name in names])


def as_json(folders: Sequence[str], column: str | None) -> str:
    """Compares runs as `report` does, but returns JSON and writes no files.

    Args:
      folders: As for `report`.
      column: As for `report`.

    Returns:
      For items, a list with one object each: `title`, `runs`, `differences` and `caveats`. For
      other runs, one object: `column`, `flags` that differ, the `last` value of each run (with
      `diverged`, whether it did), `differences` and `caveats`.

    Raises:
      RunError: If runs can't be read or compared.
    """
    compared = _tables(folders)
    if compared:
        content: Any = [
            {
                "title": table.title,
                "runs": table.runs.to_dict("records"),
                "differences": table.differences(column).to_dict("records"),
                "caveats": list(
                    dict.fromkeys([*table.caveats, *table.warnings(column), *_between(compared)])
                ),
            }
            for table in compared
        ]
    else:
        runs = run_folders.find_runs(folders)
        column = column or run_folders.primary_column(runs)
        points = run_folders.curve(runs, column)
        last = _last(points, runs)
        paired = paired_differences(runs, column)
        content = {
            "column": column,
            "flags": differing_flags(runs).reset_index().to_dict("records"),
            "last": last.to_dict("records"),
            "differences": [difference._asdict() for difference in paired],
            "caveats": [
                *cautions(runs),
                *run_folders.mixtures(runs),
                *run_folders.alike(runs),
                *_without_spread(paired, column),
            ],
        }
    return writing.json_text(content)


def _of_items(compared: Any, column: str | None) -> str:
    """Returns the comparison of each item, followed by one over all items if several."""
    parts = [table.report(column) for table in compared]
    methods = set.intersection(*(set(table.methods) for table in compared))
    # Of one task several calls of `simulation.compare` may have tables.
    places = {_of_task(table.folder) for table in compared}
    if len(places) < len(compared):
        parts.append(
            "Several of these tables are of one task: name a folder of each to pool tasks."
        )
    elif len(compared) > 1 and len(methods) > 1:
        parts.append(f"## Over all of these\n\n{_over_tasks(compared, column)}")
    return "\n\n".join([*parts, *_between(compared)])


def _over_tasks(compared: Any, column: str | None) -> str:
    """Returns the scores over all tasks, or why there are none."""
    try:
        means, better = comparison.over_tasks(compared, column)
    except RunError as e:  # The tables stand without it.
        return f"Not pooled. {e}"
    return (
        "Interquartile mean of the scores, and the probability that a run of the first method "
        "beats one of the second on a random task, with 95 % bootstrap intervals. Both need scores "
        "that are comparable between tasks.\n\n"
        f"{tables.of_frame(means, 4)}\n\n{tables.of_frame(better, 3)}"
    )


def _between(compared: Any) -> list[str]:
    """Returns lines on versions that differ between items, not within a single one."""
    if len(compared) < 2:
        return []
    rows = [(table.title, run) for table in compared for run in table.runs.itertuples()]
    runs = [run_folders.opened(run.run) for _, run in rows]
    return run_folders.mixtures(runs, [f"{run.row} of {title}" for title, run in rows])


def _of_task(folder: Any) -> str:
    """Returns a comparison's folder without the digest that tells calls apart."""
    parent, name = os.path.split(folder)
    return os.path.join(parent, name.partition(".")[0])


def _table(rows: Any) -> str:
    return tables.markdown([list(row.values()) for row in rows], list(rows[0]))
