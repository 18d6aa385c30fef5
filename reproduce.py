"""Reproduces a table of a paper: runs its rows from their flag files, prints ours beside theirs.

    python reproduce.py --paper=adafedadam --item=table5 --setup=synthetic --rows=fedavg,fedadam

What is to be run is data: `papers/<paper>/<item>.toml` names for each set-up its rows (a flag file
each), seeds, grids, columns and the rule by which a grid's best point is chosen;
`papers/<paper>/published.csv` holds the paper's numbers. Every run is a `run_experiment.py` of its
own, so that what is done is skipped and what was cut off goes on.
"""

import csv
import itertools
import json
import pathlib
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tabulate
from absl import flags

_REPO = pathlib.Path(__file__).resolve().parent
_PAPERS = _REPO / "papers"
# How `run_experiment.py` ends when the model is no longer finite.
_DIVERGED = 3

FLAGS = flags.FlagValues()
flags.DEFINE_string("paper", None, "Folder under papers/.", flag_values=FLAGS)
flags.DEFINE_string("item", None, "Table or figure: a .toml of the paper.", flag_values=FLAGS)
flags.DEFINE_string("setup", None, "Set-up of the item; all by default.", flag_values=FLAGS)
flags.DEFINE_list("rows", None, "Rows of the set-up; all by default.", flag_values=FLAGS)
flags.DEFINE_list("seeds", None, "Seeds; the item's by default.", flag_values=FLAGS)
flags.DEFINE_string("data_dir", None, "Passed to the runs.", flag_values=FLAGS)
flags.DEFINE_string("root_output_dir", "results/reproduce", "Where the runs go.", flag_values=FLAGS)
flags.DEFINE_float(
    "max_minutes",
    None,
    "Time for all runs together, shared out equally; a run that it cuts short is reported with the "
    "rounds it reached and goes on next time.",
    lower_bound=0.0,
    flag_values=FLAGS,
)
flags.DEFINE_bool("list", False, "List papers, items, set-ups and rows.", flag_values=FLAGS)
flags.DEFINE_bool("help", False, "Print this.", flag_values=FLAGS)


class ReproduceError(Exception):
    """A request that cannot be met; its text is one line for the user."""


class Run(NamedTuple):
    """One run of a row.

    Attributes:
      row: Name of the row.
      seed: Seed of the run.
      point: The grid's settings of the run, name to value; empty without a grid.
      folder: Folder of its results.
      command: Arguments of `run_experiment.py`.
    """

    row: str
    seed: int
    point: Mapping[str, float]
    folder: pathlib.Path
    command: list[str]


def load_item(paper: str, item: str) -> dict[str, Any]:
    """Reads `papers/<paper>/<item>.toml`.

    Raises:
      ReproduceError: If there is no such paper or item.
    """
    known = sorted({p.parent.name for p in _PAPERS.glob("*/*.toml")})
    if paper not in known:
        raise ReproduceError(f"--paper={paper} is unknown; known: {', '.join(known)}.")
    path = _PAPERS / paper / f"{item}.toml"
    if not path.exists():
        items = sorted(p.stem for p in path.parent.glob("*.toml"))
        raise ReproduceError(f"--item={item} is unknown; {paper} has: {', '.join(items)}.")
    return tomllib.loads(path.read_text())


def planned_runs(
    paper: str, item: str, setup_name: str, setup: Mapping[str, Any], rows, seeds, options
) -> Iterator[Run]:
    """Yields the runs of a set-up in order: rows, then grid points, then seeds."""
    for row in rows:
        grid = setup.get("grid", {}).get(row, {})
        for values in itertools.product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            for seed in seeds:
                name = "_".join([row, *(f"{v:g}" for v in values), f"seed{seed}"])
                root = pathlib.Path(options.root_output_dir) / paper / item / setup_name
                command = [
                    f"--flagfile=papers/{paper}/{setup['rows'][row]}",
                    *(f"--{k}={v}" for k, v in point.items()),
                    f"--seed={seed}",
                    f"--client_datasets_random_seed={seed}",
                    f"--root_output_dir={root}",
                    f"--experiment_name={name}",
                ]
                if options.data_dir:
                    command.append(f"--data_dir={options.data_dir}")
                yield Run(row, seed, point, root / name, command)


def execute(runs: list[Run], max_minutes: float | None) -> None:
    """Runs what is missing, one run after the other.

    Raises:
      ReproduceError: If a run fails; its own words stand above.
    """
    deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    for i, run in enumerate(runs):
        command = [*run.command]
        if deadline is not None:
            left = (deadline - time.monotonic()) / 60 / (len(runs) - i)
            command.append(f"--max_minutes={max(left, 0.01):.3f}")
        print(f"[{i + 1}/{len(runs)}] python run_experiment.py {shlex.join(command)}", flush=True)
        script = [sys.executable, str(_REPO / "run_experiment.py")]
        code = subprocess.run([*script, *command], cwd=_REPO).returncode
        if code == _DIVERGED:
            print(f"{run.folder.name} diverged; the others go on.", flush=True)
        elif code:
            raise ReproduceError(f"run {run.folder.name} ended with exit code {code} (see above).")


def read_summary(run: Run) -> dict[str, Any] | None:
    """Reads the `summary.json` of a run that has ended; `None` if it diverged and has none."""
    path = _REPO / run.folder / "summary.json"
    return json.loads(path.read_text()) if path.exists() else None


def read_metrics(run: Run) -> list[dict[str, str]]:
    """Reads the `metrics.csv` of a run."""
    with open(_REPO / run.folder / "metrics.csv", newline="") as f:
        return list(csv.DictReader(f))


def selection_value(run: Run, selection: Mapping[str, Any]) -> float:
    """Returns the number by which points of a grid are compared: less is better.

    The mean of `selection.metric` over the last `selection.last_rounds` rounds; infinite where it
    is not a number or the run diverged.
    """
    if read_summary(run) is None:
        return float("inf")
    metric = selection["metric"]
    values = [float(r[metric]) for r in read_metrics(run) if r.get(metric)]
    values = values[-selection["last_rounds"] :]
    mean = sum(values) / len(values) if values else float("nan")
    return mean if mean == mean else float("inf")


def choose(runs: list[Run], setup: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Returns for each row the best point of its grid, by the set-up's rule, over all seeds."""
    chosen = {}
    for row in dict.fromkeys(run.row for run in runs):
        points = {}
        for run in runs:
            if run.row == row:
                points.setdefault(tuple(run.point.items()), []).append(run)
        if len(points) == 1:
            chosen[row] = dict(next(iter(points)))
            continue
        rule = setup["selection"]
        scores = {p: sum(selection_value(r, rule) for r in rs) for p, rs in points.items()}
        chosen[row] = dict(min(scores, key=scores.get))
    return chosen


def _mean_and_spread(values: list[float]) -> tuple[float, float | None]:
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, None
    return mean, (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5


def results(runs: list[Run], setup: Mapping[str, Any], chosen) -> list[dict[str, Any]]:
    """Returns one record per row and column: mean over seeds, sample spread, how it came about."""
    records = []
    for row, point in chosen.items():
        best = [r for r in runs if r.row == row and dict(r.point) == point]
        summaries = [read_summary(r) for r in best]
        if None in summaries:
            raise ReproduceError(f"{row} diverged at {dict(point) or 'its settings'}; no result.")
        reached = min(s["rounds"] for s in summaries)
        seconds = sum(s["mean_round_seconds"] for s in summaries) / len(summaries)
        common = {
            "row": row,
            **{k: f"{v:g}" for k, v in point.items()},
            "seeds": " ".join(str(r.seed) for r in best),
            "rounds": reached,
            "status": "complete" if reached >= setup["rounds"] else "partial",
        }
        for column in setup["columns"]:
            values = [s["final"][column["metric"]] * column.get("scale", 1) for s in summaries]
            value, spread = _mean_and_spread(values)
            records.append({**common, "column": column["name"], "value": value, "spread": spread})
        records.append({**common, "column": "seconds_per_round", "value": seconds, "spread": None})
    return records


def published(paper: str, item: str, setup_name: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Returns the paper's numbers: (row, column) → (value, spread), as printed."""
    path = _PAPERS / paper / "published.csv"
    if not path.exists():
        return {}
    with open(path, newline="") as f:
        return {
            (r["row"], r["column"]): (r["value"], r["spread"])
            for r in csv.DictReader(f)
            if (r["item"], r["setup"]) == (item, setup_name)
        }


def format_table(records: list[dict[str, Any]], theirs, setup: Mapping[str, Any]) -> str:
    """Returns a Markdown table: a row of ours and, where there is one, the paper's below it."""

    def cell(value, spread):
        return f"{float(value):.2f}" + (f" ± {float(spread):.2f}" if spread else "")

    names = list(dict.fromkeys(r["column"] for r in records))
    rows = []
    for row in dict.fromkeys(r["row"] for r in records):
        ours = {r["column"]: r for r in records if r["row"] == row}
        first = next(iter(ours.values()))
        rates = [first.get(k, "") for k in _rate_names(records)]
        rows.append(
            [row, "ours", *rates, first["rounds"], first["seeds"]]
            + [cell(ours[n]["value"], ours[n]["spread"]) for n in names]
        )
        if any(key[0] == row for key in theirs):
            rows.append(
                [row, "paper", *("" for _ in rates), setup["rounds"], ""]
                + [cell(*theirs[row, n]) if (row, n) in theirs else "" for n in names]
            )
    headers = ["method", "", *_rate_names(records), "rounds", "seeds", *names]
    return tabulate.tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def _rate_names(records) -> list[str]:
    fixed = ("row", "seeds", "rounds", "status", "column", "value", "spread")
    return list(dict.fromkeys(k for r in records for k in r if k not in fixed))


def write_csv(path: pathlib.Path, records: list[dict[str, Any]]) -> None:
    """Writes records as CSV; a column that a record lacks stays blank."""
    names = list(dict.fromkeys(k for r in records for k in r))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as f:
        writer = csv.DictWriter(f, names)
        writer.writeheader()
        writer.writerows(records)


def grid_records(runs: list[Run], setup: Mapping[str, Any], chosen) -> list[dict[str, Any]]:
    """Returns one record per run of the grids: settings, the rule's number, results, if chosen."""
    records = []
    for run in runs:
        summary = read_summary(run)
        rounds = summary["rounds"] if summary else int(read_metrics(run)[-1]["round_num"])
        record = {"row": run.row, **run.point, "seed": run.seed, "rounds": rounds}
        if "selection" in setup:
            record["selection"] = selection_value(run, setup["selection"])
        for column in setup["columns"] if summary else ():
            record[column["name"]] = summary["final"][column["metric"]] * column.get("scale", 1)
        if summary:
            record["seconds_per_round"] = summary["mean_round_seconds"]
        record["chosen"] = dict(run.point) == chosen[run.row]
        records.append(record)
    return records


def plot(path: pathlib.Path, runs: list[Run], setup: Mapping[str, Any], chosen) -> None:
    """Draws the set-up's curve over rounds for the chosen point of each row, a line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    colours = {row: f"C{i}" for i, row in enumerate(chosen)}
    for run in runs:
        if dict(run.point) != chosen[run.row]:
            continue
        rows = [r for r in read_metrics(run) if r.get(setup["curve"])]
        label = run.row if run.seed == next(r.seed for r in runs if r.row == run.row) else None
        axes.plot(
            [int(r["round_num"]) for r in rows],
            [float(r[setup["curve"]]) for r in rows],
            color=colours[run.row],
            label=label,
        )
    axes.set(xlabel="round", ylabel=setup["curve_label"], title=setup["title"])
    axes.title.set_fontsize(9)
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def reproduce(paper: str, item: str, setup_name: str, setup: Mapping[str, Any], options) -> None:
    """Runs a set-up and prints, writes and draws its results."""
    rows = options.rows or list(setup["rows"])
    for row in rows:
        if row not in setup["rows"]:
            raise ReproduceError(
                f"--rows: {row!r} is no row of {item} {setup_name}; rows: "
                f"{', '.join(setup['rows'])}."
            )
    try:
        seeds = [int(s) for s in options.seeds] if options.seeds else setup["seeds"]
    except ValueError as e:
        raise ReproduceError(f"--seeds={','.join(options.seeds)} must be whole numbers.") from e
    if options.max_minutes is not None and not options.seeds:
        seeds = seeds[:1]
    runs = list(planned_runs(paper, item, setup_name, setup, rows, seeds, options))
    execute(runs, options.max_minutes)
    chosen = choose(runs, setup)
    records = results(runs, setup, chosen)
    theirs = published(paper, item, setup_name)
    folder = _REPO / options.root_output_dir / paper / item / setup_name
    write_csv(folder / "results.csv", records)
    write_csv(folder / "runs.csv", grid_records(runs, setup, chosen))
    plot(folder / "curves.png", runs, setup, chosen)
    print(f"\n{setup['title']}\n\n{format_table(records, theirs, setup)}\n")
    partial = sorted({(r["row"], r["rounds"]) for r in records if r["status"] == "partial"})
    if partial:
        reached = ", ".join(f"{row} {n}" for row, n in partial)
        print(
            f"The rounds differ: the paper's numbers are after {setup['rounds']} rounds, ours are "
            f"after fewer ({reached}), so they do not compare. Without --max_minutes all are done."
        )
    print(f"Table, runs and curves: {folder}/{{results.csv,runs.csv,curves.png}}")


def _list() -> None:
    for path in sorted(_PAPERS.glob("*/*.toml")):
        item = tomllib.loads(path.read_text())
        print(f"--paper={path.parent.name} --item={path.stem}: {item['title']}")
        for name, setup in item["setups"].items():
            print(f"  --setup={name} --rows={','.join(setup['rows'])}: {setup['title']}")


def main(arguments: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    try:
        if FLAGS(["reproduce.py", *arguments])[1:]:
            raise ReproduceError("only flags are understood; see --help.")
        if FLAGS.help:
            print(f"{__doc__}\n{FLAGS.get_help()}")
            return 0
        if FLAGS.list:
            _list()
            return 0
        if not FLAGS.paper or not FLAGS.item:
            raise ReproduceError("--paper and --item must be set; --list shows what there is.")
        setups = load_item(FLAGS.paper, FLAGS.item)["setups"]
        if FLAGS.setup and FLAGS.setup not in setups:
            raise ReproduceError(f"--setup={FLAGS.setup} is unknown; known: {', '.join(setups)}.")
        for name in [FLAGS.setup] if FLAGS.setup else setups:
            reproduce(FLAGS.paper, FLAGS.item, name, setups[name], FLAGS)
        return 0
    except (ReproduceError, flags.Error) as e:
        print(f"error: {' '.join(str(e).split())}", file=sys.stderr)
        return 2 if isinstance(e, flags.Error) else 1
    except KeyboardInterrupt:
        print("error: interrupted; run the same command again to go on.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
