"""Results of runs: a record per row and column, beside the paper's numbers."""

import csv
import io
import math
import pathlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tasks
import tff_algos
from reproduction import item_files, run_folders
from reproduction.items import PAPERS, REPO, PlannedRun, ReproduceError, Setup, format_value
from tasks import directions
from tff_suite import command_line, parser, specs, tables, writing

# Columns of results.csv and runs.csv for the versions of a row's method and task.
_VERSIONS = ("method_version", "task_version")
# Beginnings of columns that are measured on test data.
_OF_TEST_DATA = ("eval/", "fairness/", "fairness_all/")


def more_is_better(selection: Mapping[str, Any]) -> bool:
    """Returns whether a set-up's rule chooses the highest mean of its metric, not the lowest.

    Raises:
      ReproduceError: If neither the rule nor the metric's name says so.
    """
    metric = selection["metric"]
    found = selection.get("higher_is_better", directions.higher_is_better(metric))
    if found is None:
        raise ReproduceError(
            f"selection: set higher_is_better to true or false; {metric} does not say which."
        )
    return found


def higher_is_better(column: Mapping[str, Any]) -> bool | None:
    """Returns whether higher values of a column are better, by its declaration, name and scale.

    `None` if neither `higher_is_better` nor the name tells. A negative scale or power turns a
    name's meaning around; a declaration is of the values as shown.
    """
    if "higher_is_better" in column:
        return column["higher_is_better"]
    higher = directions.higher_is_better(column["metric"])
    return None if higher is None else higher == keeps_order(column)


def keeps_order(column: Mapping[str, Any]) -> bool:
    """Returns whether a column is higher where its metric is, by its scale and power."""
    return (column.get("scale", 1) > 0) == (column.get("power", 1) > 0)


def reads_test_data(selection: Mapping[str, Any]) -> bool:
    """Returns whether a set-up's rule chooses points by test data."""
    return selection.get("metric", "").startswith(_OF_TEST_DATA)


def selection_value(
    run: PlannedRun, selection: Mapping[str, Any], rounds: int | None = None
) -> float:
    """Returns the number by which points of a grid are compared; lower is better.

    This is the mean of `selection.metric` over the last `selection.last_rounds` rounds, see
    `run_folders.mean_of_last`. It is negated if higher values of the metric are better. It is
    infinite if the mean is not finite or the run diverged.

    Args:
      run: The run.
      selection: The set-up's rule.
      rounds: If given, the value as of this number of rounds.

    Raises:
      ReproduceError: If a run that has ended lacks the column: a wrong name would choose the first
        point of every grid. Also if it is unknown which values of the metric are better.
    """
    found = run.read()
    if found.summary is not None and selection["metric"] not in found.columns:
        raise ReproduceError(
            f"selection: {run.folder} has no column {selection['metric']} in metrics.csv."
        )
    sign = -1.0 if more_is_better(selection) else 1.0
    if rounds is not None:
        # A run that diverged in this very round has the row, but not its evaluation.
        if found.last_round < rounds or (found.last_round == rounds and found.summary is None):
            return float("inf")
        at, values = found.values(selection["metric"])
        first = rounds - rounds_averaged(selection, [rounds])
        some = values[(at > first) & (at <= rounds)]
        if not len(some):  # Evaluations may be further apart than these rounds.
            some = values[at <= rounds][-1:]
        mean = float(some.mean()) if len(some) else float("nan")
        return sign * mean if math.isfinite(mean) else float("inf")
    if found.summary is None:
        return float("inf")
    mean = run_folders.mean_of_last(found, selection["metric"], selection["last_rounds"])
    return sign * mean if math.isfinite(mean) else float("inf")


def column_value(run: PlannedRun, column: Mapping[str, Any]) -> float:
    """Returns a run's value of a column.

    Args:
      run: A run that has ended.
      column: Column of a set-up. `metric` is a column of metrics.csv. The value is that of the
        final model; with `last_rounds`, `run_folders.mean_of_last`; with `best` ("max" or "min"),
        the best value of the run. The result is (value · `scale` + `offset`) ^ `power`.

    Raises:
      ReproduceError: If the result of a finite value is not a finite number.
    """
    metric, found = column["metric"], run.read()
    if "last_rounds" in column:
        value = run_folders.mean_of_last(found, metric, column["last_rounds"])
    elif "best" in column:
        pick = {"max": max, "min": min}[column["best"]]
        # NaN cannot be compared.
        numbers = [v for v in found.values(metric)[1].tolist() if v == v]
        value = pick(numbers, default=float("nan"))
    else:
        assert found.summary is not None  # The run has ended.
        value = found.summary["final"].get(metric)
        value = float("nan") if value is None else value
    try:
        base = value * column.get("scale", 1) + column.get("offset", 0)
        result = base ** column.get("power", 1)
    except ArithmeticError:
        result = float("nan")
    # A root of a negative number is complex.
    if math.isfinite(value) and (isinstance(result, complex) or not math.isfinite(result)):
        raise ReproduceError(
            f"columns.{column['name']}: scale, offset and power give no finite number for {metric} "
            f"= {value:g} of {run.folder}; change them."
        )
    return result


def _selection_values(runs: Sequence[PlannedRun], setup: Setup) -> dict[PlannedRun, float]:
    """Returns each run's number by the selection rule; empty without a rule, which only grids need.

    If time limits ended some of a row's runs early, all its runs are compared after the same number
    of rounds. That is the number in the shortest run among the seeds that all points have. Searches
    are not affected, since they compare at their rungs.
    """
    found = {}
    if not setup.selection.keys() >= {"metric", "last_rounds"}:
        return found
    for row in dict.fromkeys(run.row for run in runs):
        of_row = [run for run in runs if run.row == row]
        seeds = {}
        for run in of_row:
            seeds.setdefault(tuple(run.point.items()), set()).add(run.seed)
        tried = set.intersection(*seeds.values())
        ended = {run: run.read().last_round for run in of_row if run.read().summary}
        reached = {rounds for run, rounds in ended.items() if run.seed in tried}
        at = min(reached) if len(reached) > 1 and not setup.search else None
        for run in of_row:
            rounds = at if run in ended and run.seed in tried else None
            found[run] = selection_value(run, setup.selection, rounds)
    return found


def choose(runs: Sequence[PlannedRun], setup: Setup) -> dict[str, Mapping[str, Any]]:
    """Returns for each row the best point of its grid by the set-up's rule, over all seeds."""
    chosen: dict[str, Mapping[str, Any]] = {}
    values = _selection_values(runs, setup)
    for row in dict.fromkeys(run.row for run in runs):
        points = {}
        for run in runs:
            if run.row == row:
                points.setdefault(tuple(run.point.items()), []).append(run)
        if len(points) == 1:
            chosen[row] = dict(next(iter(points)))
            continue
        scores = {point: sum(values[run] for run in some) for point, some in points.items()}
        chosen[row] = dict(min(scores, key=scores.__getitem__))
    return chosen


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean and the sample standard deviation (`None` for a single value)."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, None
    if math.isfinite(mean) and min(values) == max(values):
        # The mean of equal numbers may be another number, and their deviation 1e-16.
        return values[0], 0.0
    return mean, (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5


def records(
    runs: Sequence[PlannedRun], setup: Setup, chosen: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns one record per row and column: mean, sample standard deviation and circumstances.

    If a run of the row has not ended or has diverged, the value is blank and `status` says why. It
    is also blank if the row's runs do not write the metric.
    """
    result = []
    for row, point in chosen.items():
        best = [run for run in runs if run.row == row and run.point == point]
        summaries = [run.read().summary for run in best]
        searched = setup.search and len(setup.points(row)) > 1
        common: dict[str, Any] = {
            "row": row,
            **{flag: format_value(value) for flag, value in point.items()},
            "seeds": " ".join(str(run.seed) for run in best),
            **_circumstances(best),
            **({"chosen_by": "search"} if searched else {}),
        }
        ended = [summary for summary in summaries if summary is not None]
        if len(ended) < len(best):
            missing = [r.seed for r, s in zip(best, summaries, strict=True) if s is None]
            status = "diverged" if all(len(run.read().rounds) for run in best) else "not run"
            common |= {"rounds": "", "status": f"{status} (seed {' '.join(map(str, missing))})"}
            result += [
                {**common, "column": column["name"], "value": None, "spread": None}
                for column in setup.columns
            ]
            continue
        rounds = [summary["rounds"] for summary in ended]
        reached, most = min(rounds), max(rounds)
        protocol = best[0].protocol_rounds
        whole = reached >= protocol and {run.seed for run in best} >= set(setup.seeds)
        common |= {
            "rounds": reached,
            "protocol_rounds": protocol,
            "status": "complete" if whole else "partial",
        }
        if most > reached:
            common["status"] += f": runs of {reached} to {most} rounds"
        for column in setup.columns:
            value = spread = None
            if any(
                column["metric"] in {*run.read().columns, *summary["final"]}
                for run, summary in zip(best, ended, strict=True)
            ):
                value, spread = mean_and_spread([column_value(run, column) for run in best])
            result.append({**common, "column": column["name"], "value": value, "spread": spread})
        seconds = [summary.get("mean_round_seconds") for summary in ended]
        measured = [s for s in seconds if s is not None]
        result.append(
            {
                **common,
                "column": "seconds_per_round",
                "value": sum(measured) / len(best) if len(measured) == len(best) else None,
                "spread": None,
            }
        )
    return result


def _circumstances(runs: Sequence[PlannedRun]) -> dict[str, str]:
    """Returns data, device, commit and versions of runs, as they recorded them."""
    found = {name: {} for name in ("data", "device", "commit", *_VERSIONS)}
    for run in runs:
        circumstances = run.read().circumstances
        if circumstances is not None:
            found["data"][circumstances.data] = None
            found["device"][circumstances.device] = None
            found["commit"][(circumstances.commit or "unknown")[:8]] = None
            for kind, version in run.read().versions.items():
                found[f"{kind}_version"][str(version)] = None
    return {name: "; ".join(values) for name, values in found.items()}


def told_versions(rows: Sequence[Mapping[str, Any]], setup: Setup) -> list[str]:
    """Returns which recorded rows are of another version of their method or task than today's.

    Rows that were recorded before there were versions are of version 1.

    Args:
      rows: `records`.
      setup: The set-up.
    """
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in dict.fromkeys(r["row"] for r in rows):
        if row not in setup.rows:
            continue
        record = next(r for r in rows if r["row"] == row)
        given = [f"--flagfile={REPO / setup.rows[row].flagfile}"]
        given += [f"--{flag}={value}" for flag, value in setup.rows[row].on_top.items()]
        for kind, flag in (("method", "algorithm"), ("task", "task")):
            versions = found.setdefault((kind, "".join(parser.values_of(flag, given)[-1:])), {})
            versions.setdefault(record.get(f"{kind}_version") or "1", []).append(row)
    lines = []
    for (kind, name), versions in found.items():
        registry = tff_algos if kind == "method" else tasks
        if name not in registry.names():
            continue
        spec = registry.get(name)
        if versions.keys() == {str(spec.version)}:
            continue
        told = [f"{version} in {', '.join(some)}" for version, some in versions.items()]
        shown = "; ".join(told) if len(told) > 1 else next(iter(versions))
        oldest = min(int(v) for of in versions for v in of.split("; ") if v.isdigit())
        changes = specs.changes(spec.history, oldest, spec.version)
        lines.append(
            f"Version of {kind} {name}: {shown}. Today's version is {spec.version}"
            + (f": {' '.join(changes)}" if changes else ".")
        )
    return lines


def grid_records(
    runs: Sequence[PlannedRun], setup: Setup, chosen: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns one record per run: settings, number by the rule, results, device and commit."""
    result = []
    values = _selection_values(runs, setup)
    for run in runs:
        found = run.read()
        summary = found.summary
        record = {"row": run.row, **run.point, "seed": run.seed}
        record["rounds"] = found.last_round if len(found.rounds) else ""
        # Where a search starts anew at each rung, a point's whole run may not have begun.
        if run in values and len(found.rounds):
            # The mean itself, which `selection_value` may have negated.
            record["selection"] = -values[run] if more_is_better(setup.selection) else values[run]
        for column in setup.columns if summary else ():
            record[column["name"]] = column_value(run, column)
        if summary:
            record["seconds_per_round"] = summary.get("mean_round_seconds")
        circumstances = found.circumstances
        if circumstances is not None:
            record["device"] = circumstances.device
            record["commit"] = (circumstances.commit or "")[:8]
            record |= {f"{kind}_version": v for kind, v in run.read().versions.items()}
        record["chosen"] = run.point == chosen[run.row]
        result.append(record)
    return result


def published(setup: Setup) -> dict[tuple[str, str], dict[str, str]]:
    """Returns the paper's numbers: (row, column) → the line of published.csv."""
    return {
        (r["row"], r["column"]): r
        for r in item_files.published_lines(setup.home)
        if (r["item"], r["setup"]) == (setup.item, setup.published)
    }


def format_cell(value: Any, spread: Any = None, digits: int | None = 2) -> str:
    """Returns text such as `1.23 ± 0.45`; blank without a value.

    Args:
      value: A number or its text.
      spread: As `value`.
      digits: Decimals; `None` for four significant digits, of the spread two.
    """
    if value in (None, ""):
        return ""
    whole, rest = (".4g", ".2g") if digits is None else (f".{digits}f",) * 2
    text = f"{float(value):{whole}}"
    return text + (f" ± {float(spread):{rest}}" if spread not in (None, "") else "")


def _digits(setup: Setup) -> dict[str, int | None]:
    """Returns column → decimals to show, for `format_cell`; two by default in the papers' items."""
    usual = 2 if setup.home.parent == PAPERS else None
    names = ["seconds_per_round", *(column["name"] for column in setup.columns)]
    return dict.fromkeys(names, usual) | {
        c["name"]: c["digits"] for c in setup.columns if "digits" in c
    }


def columns_of_paper(rows: Sequence[Mapping[str, Any]], setup: Setup) -> list[str]:
    """Returns our columns that the paper's table has; all except times if it has none of them."""
    names = [n for n in dict.fromkeys(r["column"] for r in rows) if n != "seconds_per_round"]
    known = {column for _, column in published(setup)}
    return [name for name in names if name in known] or names


def spread_in_words(rows: Sequence[Mapping[str, Any]], setup: Setup) -> list[str]:
    """Returns a sentence on what follows ± in a table; none if nothing does.

    Args:
      rows: `records`.
      setup: The set-up.
    """
    if all(r["spread"] in (None, "") for r in rows):
        return []
    printed = any(line["spread"] for line in published(setup).values())
    return [
        "± is one sample standard deviation over seeds"
        + ", in lines of the paper what it prints" * printed
        + ". In table.tex it is half of a 95 % interval."
    ]


def short_table(rows: Sequence[Mapping[str, Any]], setup: Setup) -> str:
    """Returns the paper's columns, ours and published, as a Markdown table.

    Args:
      rows: `records`.
      setup: The set-up.
    """
    return format_table(rows, setup, names=columns_of_paper(rows, setup), has_settings=False)


def format_table(
    rows: Sequence[Mapping[str, Any]],
    setup: Setup,
    *,
    names: Sequence[str] | None = None,
    has_settings: bool = True,
) -> str:
    """Returns a table with our rows, each followed by the paper's, if any.

    Args:
      rows: `records`.
      setup: The set-up.
      names: The columns to show; by default all.
      has_settings: Whether to show chosen settings and seeds.
    """
    theirs = published(setup)
    digits = _digits(setup)
    if names is None:
        names = list(dict.fromkeys(r["column"] for r in rows))
    rates = _setting_names(rows) if has_settings else []
    lines = []
    for row in dict.fromkeys(r["row"] for r in rows):
        ours = {r["column"]: r for r in rows if r["row"] == row}
        first = next(iter(ours.values()))
        rounds = first["rounds"] if first["rounds"] != "" else first["status"]
        lines.append(
            [row, "ours", *(first.get(k, "") for k in rates), rounds]
            + ([first["seeds"]] if has_settings else [])
            + [
                format_cell(ours[n]["value"], ours[n]["spread"], digits.get(n)) if n in ours else ""
                for n in names
            ]
        )
        their_row = setup.published_rows.get(row, row)
        if any(key[0] == their_row for key in theirs):
            cells = (theirs.get((their_row, n)) for n in names)
            lines.append(
                [row, "paper", *("" for _ in rates), first.get("protocol_rounds", setup.rounds)]
                + ([""] if has_settings else [])
                + [
                    format_cell(c["value"], c["spread"], digits.get(n)) if c else ""
                    for c, n in zip(cells, names, strict=True)
                ]
            )
    seeds = ["seeds"] if has_settings else []
    headers = ["method", "", *rates, "rounds", *seeds, *names]
    return tables.markdown(lines, headers)


def what_next(
    rows: Sequence[Mapping[str, Any]], setup: Setup, places: Sequence[str] = ()
) -> list[str]:
    """Returns two commands to try after a table, each as lines of at most 100 characters.

    Args:
      rows: `records`.
      setup: The set-up.
      places: Flags with the folders of data and runs.
    """
    ran = list(dict.fromkeys(r["row"] for r in rows))
    is_own = setup.home.parent != PAPERS
    of_item = f"--items={setup.home}" if is_own else f"--paper={setup.paper}"
    parts = [of_item, f"--item={setup.item}", f"--setup={setup.name}", *places]
    reproduce = command_line.calling("reproduce.py")
    command = [*reproduce, *parts]
    same = [] if len(ran) == len(setup.rows) else [f"--rows={','.join(ran)}"]
    other = next((row for row in setup.rows if row not in ran), None)
    tries = []
    if any(_is_short(r) for r in rows):
        tries.append(("all rounds:", [*command, *same]))
    if other is not None:
        tries.append(("another method:", [*command, f"--rows={other}"]))
    tries.append(("all columns:", [*command, *same, "--all_columns"]))
    tries.append(("other tables:", [*reproduce, "--list"]))
    return [command_line.to_try(title, words, 19) for title, words in tries[:2]]


_FIXED = (
    *(
        "row",
        "seeds",
        "data",
        "device",
        "commit",
        *_VERSIONS,
        "rounds",
        "protocol_rounds",
        "status",
        "chosen_by",
    ),
    *("column", "value", "spread"),
)


def _setting_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(k for r in rows for k in r if k not in _FIXED))


def write_csv(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes records as CSV; cells that a record lacks are blank."""
    names = list(dict.fromkeys(k for r in rows for k in r))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    writing.write_atomically(path, text.getvalue().encode())


def largest_difference(rows: Sequence[Mapping[str, Any]], setup: Setup) -> str:
    """Describes the largest difference to a published number, relative to that number.

    Args:
      rows: `records`.
      setup: The set-up; its `reasons` explain known differences.

    Returns:
      One or two sentences; blank if all numbers are within 1 %. Rows with fewer rounds than the
      protocol are only considered if all rows are, and then the text says so.
    """
    theirs = published(setup)
    whole = [r for r in rows if not _is_short(r)]
    rows, far = (whole, "") if whole else (rows, ", after fewer rounds,")
    differences = []
    for r in rows:
        found = theirs.get((setup.published_rows.get(r["row"], r["row"]), r["column"]))
        if found is None or r["value"] in (None, "") or not float(found["value"]):
            continue
        ours, paper = float(r["value"]), float(found["value"])
        differences.append((abs(ours - paper) / abs(paper), r["row"], r["column"], ours, paper))
    share, row, column, ours, paper = max(differences, default=(0, "", "", 0, 0))
    if share <= 0.01:
        return ""
    digits = _digits(setup)[column]
    told = f"The largest difference{far} is {row}'s {column}: "
    told += f"{format_cell(ours, digits=digits)}, paper {format_cell(paper, digits=digits)}"
    reason = _of_rows(setup.reasons.get(column, ""), {r["row"] for r in rows}, setup)
    return f"{told}. {reason}" if reason else f"{told}."


def _of_rows(reason: str, ran: Collection[str], setup: Setup) -> str:
    """Returns a reason without the sentences that name methods which did not run."""
    absent = [row for row in setup.rows if row not in ran]
    names = {*absent, *map(_display_name, absent)} - {*ran, *map(_display_name, ran)}
    of_others = re.compile(rf"\b({'|'.join(map(re.escape, sorted(names)))})\b", re.IGNORECASE)
    sentences = re.split(r"(?<=\.) (?=[A-Z])", reason)
    return " ".join(s for s in sentences if not names or not of_others.search(s))


def _display_name(row: str) -> str:
    """Returns the paper's spelling of a row's method; the row's name if it has no method."""
    known = [n for n in tff_algos.names() if re.match(rf"{re.escape(n)}(?![a-z0-9])", row)]
    return tff_algos.get(max(known, key=len)).display_name if known else row


def short_name(row: str, setup: Setup) -> str:
    """Returns a row's name without the settings that all rows of its set-up share."""
    shared = set.intersection(*(set(r.split()[1:]) for r in setup.rows))
    return " ".join(word for word in row.split() if word not in shared)


def rounds_averaged(column: Mapping[str, Any], reached: Iterable[float]) -> int:
    """Returns how many rounds a column averages: at most the second half of the shortest run.

    Args:
      column: Column of a set-up, or its `selection`.
      reached: The rounds of its runs, see `run_folders.mean_of_last`.
    """
    halves = (max(1, (int(rounds) + 1) // 2) for rounds in reached)
    return min([column.get("last_rounds", 1), *halves])


def metric_in_words(column: Mapping[str, Any], metric: str) -> str:
    """Returns how a column's numbers are made of its metric.

    Args:
      column: Column of a set-up or comparison.
      metric: How the metric is written.
    """
    if column.get("scale", 1) != 1:
        metric += f" × {column['scale']:g}"
    if "offset" in column:
        metric += f" + {column['offset']:g}"
    if "power" in column:
        metric = f"({metric})^{column['power']:g}"
    return metric


def columns_in_words(setup: Setup, names: Collection[str] | None = None) -> list[str]:
    """Returns what each column of a table is, by the names that docs/metrics.md defines.

    Args:
      setup: The set-up.
      names: The columns; by default all.
    """
    parts = []
    for column in setup.columns:
        if names is not None and column["name"] not in names:
            continue
        metric = metric_in_words(column, f"`{column['metric']}`")
        if "last_rounds" in column:
            metric += f", mean of the last {column['last_rounds']} rounds"
        elif "best" in column:
            metric += f", {column['best']} of the run"
        parts.append(f"{column['name']} {metric}")
    return parts


def caveats(rows: Sequence[Mapping[str, Any]], setup: Setup) -> list[str]:
    """Returns a line for each way in which a table differs from the paper's protocol.

    Args:
      rows: `records`.
      setup: The set-up.
    """
    lines = []
    if reads_test_data(setup.selection) and any(len(setup.points(r)) > 1 for r in setup.rows):
        lines.append(
            f"Tuned on test data: selection.metric is {setup.selection['metric']}; choose by a "
            "validation/... or train/... column."
        )
    if setup.stand_in:
        lines.append(f"A stand-in, not the paper's experiment: {setup.stand_in}.")
    short = sorted({(r["row"], r["rounds"], r["protocol_rounds"]) for r in rows if _is_short(r)})
    if short:
        alike = {(n, protocol) for _, n, protocol in short}
        # Up to three rows are named one by one.
        if len(alike) == 1 and len(short) == len({r["row"] for r in rows}) > 3:
            reached = "all rows {} of {}".format(*alike.pop())
        else:
            reached = ", ".join(f"{row} {n} of {protocol}" for row, n, protocol in short)
        if setup.paper:
            lines.append(
                f"Fewer rounds than the protocol ({reached}): do not compare these numbers with "
                "the paper's. Leave out --budget to run them all."
            )
        else:  # Of `simulation.compare`.
            lines.append(
                f"Fewer rounds than asked for ({reached}). The same call does the rest, unless "
                "stop_at ended these runs."
            )
    done = [r["rounds"] for r in rows if r["rounds"] != ""]
    if any(rounds_averaged(c, done) < c.get("last_rounds", 1) for c in setup.columns):
        lines.append("Means of the last rounds cover the second half of a run at most.")
    seeds = {len(r["seeds"].split()) for r in rows}
    if seeds and min(seeds) < len(setup.seeds):
        lines.append(f"Fewer seeds than the protocol: {min(seeds)} of {len(setup.seeds)}.")
    for row, status in dict.fromkeys((r["row"], r["status"]) for r in rows):
        if status not in ("complete", "partial"):
            lines.append(f"{row}: {status}.")
    return lines


def _is_short(record: Mapping[str, Any]) -> bool:
    return record["rounds"] != "" and record["rounds"] < record["protocol_rounds"]
