"""Reproduces a paper's table: runs its rows from flag files, prints our numbers beside theirs.

    python reproduce.py --list
    python reproduce.py --paper=adafedadam --item=table5 --setup=synthetic --rows=fedavg,fedadam
    python reproduce.py --items=DIR --item=my_sweep
    python reproduce.py --compare DIR DIR...

What to run is data. For each set-up, `papers/<paper>/<item>.toml` names its rows (one flag file
each), seeds, grids, columns, and the rule that chooses a grid's best point.
`papers/<paper>/published.csv` holds the paper's numbers. You can write such files in your own
folder (docs/items.md). Every run is a separate `run_experiment.py`, so finished runs are skipped
and interrupted ones resume.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import time
import types
from typing import NoReturn

from tff_suite import command_line, parser, tables, writing

if __name__ == "__main__":
    command_line.begin()


from reproduction import items, needs, readme, results, score, search, sweep
from reproduction.items import ReproduceError, UsageError
from simulation import run_checks, supervisor
from tasks.formats import remote
from tff_suite.hparams import HparamError

PARSER = parser.Parser(__doc__)
PARSER.positional("folders", "further folders of --compare", many=True, required=False)
PARSER.flag("paper", help="Folder under papers/.")
PARSER.flag("item", help="Table or figure: a .toml of the paper.")
PARSER.flag(
    "items", help="Folder with your own items, in place of --paper; see docs/items.md.", path=True
)
PARSER.flag("setup", help="Set-up of the item; all by default.")
PARSER.flag("rows", help="Rows of the set-up; all by default.", form="list")
PARSER.flag("seeds", help="Seeds; the item's by default.", form="list")
PARSER.flag("list", False, "List papers, items, set-ups and rows, with the data and hours needed.")
PARSER.flag("dry_run", False, "Only print what would run and how long it would take.")
PARSER.flag(
    "budget",
    help="Do less than the whole protocol: minutes=M or hours=H for all runs together, rounds=N "
    "for each. Repeat the command to resume.",
    form="list",
)
PARSER.flag(
    "data_dir",
    help="Folder or fsspec address (s3://, gs://, ...) of data, for the runs that read files.",
    path=True,
)
PARSER.flag("root_output_dir", "results/reproduce", "Folder of the runs.", path=True)
PARSER.flag(
    "compare",
    help="Compare runs instead: folders of runs, or folders that hold them; more may follow.",
    form="list",
)
PARSER.flag(
    "column",
    help="Column for --compare: of an item's table (default: its first one) or of metrics.csv "
    "(default: the primary metric).",
)
PARSER.flag(
    "jobs", help="Largest number of runs at a time. Default: as many as fit.", type=int, minimum=1
)
PARSER.flag("cpus_per_run", 1.0, "Cores per run.", common=False, minimum=0.01, maximum=1e5)
PARSER.flag(
    "gpus_per_run",
    0.0,
    "GPUs per run; a fraction lets runs share one. With 0, runs do not see any GPU.",
    common=False,
    minimum=0,
    maximum=1e5,
)
PARSER.flag(
    "memory_gb_per_run",
    0.0,
    "Memory that a run needs, in GB; 0 sets no limit.",
    common=False,
    minimum=0,
    maximum=1e6,
)
PARSER.flag(
    "ray_address",
    help="Ray cluster of the runs (auto, host:port, ray://host:port). Default: this machine.",
    common=False,
)
PARSER.flag(
    "storage",
    help="Folder or fsspec address for copies of runs, for machines without a shared file system.",
    common=False,
)
PARSER.flag(
    "retries",
    2,
    "How often to restart a run that failed or was lost with its machine.",
    common=False,
    minimum=0,
    maximum=1_000_000,
)
PARSER.flag("fresh", False, "Start all runs anew; existing runs are kept under other names.")
PARSER.flag(
    "figure_width",
    help="Inches of each figure, for a column of a paper: 3.25 or 6.75. Default: wide enough for "
    "its panels.",
    type=float,
    minimum=2.0,
    maximum=20.0,
    common=False,
)
PARSER.flag("full_grid", False, "Run whole grids even if the item has a [search].", common=False)
PARSER.flag("record", False, "Copy the results into papers/ and update its pages.", common=False)
PARSER.flag(
    "write_readmes",
    False,
    "Only update the pages of papers/ and the README's headline.",
    common=False,
)
PARSER.flag(
    "redraw",
    False,
    "Only draw recorded figures again from the CSV files beside them.",
    common=False,
)
PARSER.flag("all_columns", False, "Print all columns, settings and seeds in the table.")
PARSER.flag("json", False, "Print the results as JSON, and progress on standard error.")
# What `--json` prints.
_answers: list[dict] = []
# The flags in force, once `main` has read them.
FLAGS = types.SimpleNamespace()

# Flag → further flags that it uses; these commands do not run anything.
_READ = {
    "list": {"paper", "item", "setup", "json"},
    "write_readmes": set(),
    "redraw": {"paper", "item", "setup"},
    "compare": {"column", "json"},
}
_PLACES = {"items", "data_dir", "root_output_dir"}


def parse_budget(parts: list[str] | None) -> tuple[int | None, float | None]:
    """Returns the maximum rounds per run and the minutes for all runs; `None` for no limit.

    Raises:
      ReproduceError: If a part is not understood.
    """
    rounds, minutes = None, None
    for part in parts or ():
        kind, _, text = part.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if kind not in ("rounds", "hours", "minutes") or not 0 < value < float("inf"):
            raise UsageError(
                f"--budget={part} is not understood: rounds=N, hours=H or minutes=M, above 0."
            )
        if kind == "rounds":
            rounds = max(1, int(value))
        else:
            minutes = value * (60 if kind == "hours" else 1)
    return rounds, minutes


def reproduce(
    setup: items.Setup, options: types.SimpleNamespace, max_minutes: float | None = None
) -> None:
    """Runs a set-up and prints, writes and draws its results.

    Args:
      setup: The set-up.
      options: The flags.
      max_minutes: Its share of the time of `--budget`, for all its runs; `None` for no limit.
    """
    rows = options.rows or list(setup.rows)
    if setup.draws and options.dry_run:
        print(f"{setup.paper} {setup.item} {setup.name}: {setup.title}: drawn without a run.\n")
        return
    for row in rows:
        if row not in setup.rows:
            raise UsageError(
                f"--rows: {setup.item} {setup.name} has no row {row!r}; its rows: "
                f"{', '.join(setup.rows)}."
            )
    try:
        seeds = [int(s) for s in options.seeds] if options.seeds else list(setup.seeds)
    except ValueError as e:
        raise UsageError(f"--seeds={','.join(options.seeds)} must be whole numbers.") from e
    rows, seeds = list(dict.fromkeys(rows)), list(dict.fromkeys(seeds))
    max_rounds, _ = parse_budget(options.budget)
    if max_minutes is not None and not options.seeds:
        seeds = seeds[:1]
    if setup.draws:
        _draw(setup, options)
        return
    if options.record:
        _check_place(setup, options.root_output_dir)
        known = list(map(str, seeds)), max_rounds
        readme.check_loses_nothing(setup, dict.fromkeys(rows, known))
    if options.full_grid:
        setup = dataclasses.replace(setup, search={})
    from reproduction import study  # Its libraries take seconds to import.

    resources = sweep.Resources(
        cpus=options.cpus_per_run,
        gpus=options.gpus_per_run,
        memory=int(options.memory_gb_per_run * 1e9),
        jobs=options.jobs,
        address=options.ray_address,
        storage=options.storage,
        retries=options.retries,
    )
    asked = study.Study(
        setup,
        rows,
        seeds,
        options.root_output_dir,
        resources,
        options.data_dir,
        max_rounds,
        max_minutes,
        fresh=options.fresh,
    )
    if options.dry_run:
        _dry_run(asked)
        return
    try:
        outcome, folder = asked.carry_out(), asked.folder
        setup = outcome.setup
    except study.OutOfTimeError as e:
        # As of runs that --budget cuts short: what is done is kept, so this is no failure.
        print(f"{setup.item} {setup.name}: {e}")
        if options.json:
            _answers.append({**_named(setup), "stopped": str(e)})
        return
    # The files keep the table's other rows; what is printed is what was asked for.
    whole, lacking = asked.with_other_rows(outcome)
    named = _write(whole, folder, options.figure_width)
    _tell_other_rows([row for row in whole.chosen if row not in rows], lacking)
    records, caveats = outcome.records(), outcome.caveats()
    if options.json:
        content = {**_named(setup), "folder": str(folder), "files": named}
        _answers.append({**content, "caveats": caveats, "records": records})
    else:
        print(_told(setup, records, caveats, folder, named, options))
    if options.record:
        readme.record(setup, folder)
        print(f"Recorded in {readme.recorded_folder(setup)}.")


def _write(outcome, folder, width) -> list[str]:
    """Writes a set-up's tables and figures; returns the names of the files."""
    from reproduction import comparison, drawing

    setup, records = outcome.setup, outcome.records()
    results.write_csv(folder / "results.csv", records)
    comparison.write(outcome, folder)
    told = [*outcome.caveats(), *results.spread_in_words(records, setup)]
    text = "\n".join([setup.title, "", results.format_table(records, setup), "", *told])
    writing.write_atomically(folder / "table.md", f"{text}\n".encode())
    drawn = drawing.draw(setup, outcome.runs, outcome.chosen, folder, width)
    named = ["results.csv", "runs.csv", "table.md", "table.tex"]
    return [*named, *(pathlib.Path(path).name for path in drawn)]


def _tell_other_rows(kept, lacking) -> None:
    """Says which other rows the files keep, and which they no longer have."""
    if kept:
        command_line.say(f"The files keep the rows that were there: {', '.join(kept)}.")
    if lacking:
        command_line.warn(
            f"The files no longer have {', '.join(lacking)}: their runs have not ended with "
            "today's settings, code and data. Earlier runs are kept; leave out --rows to run all."
        )


def _named(setup) -> dict[str, str]:
    """Returns the name of a set-up in `--json`."""
    names = {"paper": setup.paper, "item": setup.item, "setup": setup.name}
    return {**names, "title": setup.title}


def _told(setup, records, caveats, folder, named, options) -> str:
    """Returns the report on a finished set-up: table, caveats, next steps."""
    names = results.columns_of_paper(records, setup)
    table = results.short_table(records, setup)
    if options.all_columns:
        names, table = None, results.format_table(records, setup)
    flags = ("root_output_dir", "data_dir")
    places = [f"--{flag}={getattr(options, flag)}" for flag in flags if flag in options.given]
    rest = [
        *caveats,
        *results.spread_in_words(records, setup),
        f"Columns (docs/metrics.md): {'; '.join(results.columns_in_words(setup, names))}",
        f"In {folder}: {', '.join(named)}",
    ]
    lines = [textwrap.fill(line, 100, break_long_words=False) for line in rest]
    commands = results.what_next(records, setup, places)
    return "\n".join(["", setup.title, "", table, "", *lines, "Next:", *commands])


def _check_place(setup, root) -> None:
    """Refuses runs in the folder that --record empties before it copies their results into it."""
    target = readme.recorded_folder(setup).resolve()
    for part in (setup.folder, f"{setup.item}/{setup.name}"):
        if pathlib.Path(root, setup.paper, part).resolve().is_relative_to(target):
            raise ReproduceError(
                f"--record replaces all of {target}, but --root_output_dir={root} puts the runs "
                "there; choose another --root_output_dir."
            )


def _draw(setup, options) -> None:
    """Draws a figure that does not need a run."""
    folder = pathlib.Path(options.root_output_dir).absolute() / setup.paper / setup.item
    folder.mkdir(parents=True, exist_ok=True)
    data_dir = options.data_dir and items.absolute(options.data_dir)
    known = {"output": str(folder / f"{setup.name}.png"), "data_dir": data_dir}
    if options.data_dir is None and any("{data_dir}" in part for part in setup.draws):
        raise UsageError(f"{setup.item} {setup.name} reads data: set --data_dir.")
    command = [sys.executable, *(part.format(**known) for part in setup.draws)]
    if subprocess.run(supervisor.dying_with_parent(command), cwd=items.REPO).returncode:
        raise ReproduceError(f"{setup.item} {setup.name} could not be drawn; see above.")
    print(f"Drawn: {known['output']} and .pdf")
    if options.record:
        target = readme.recorded_folder(setup)
        target.mkdir(parents=True, exist_ok=True)
        for ending in (".png", ".csv"):
            drawn = pathlib.Path(known["output"]).with_suffix(ending)
            if drawn.exists():
                shutil.copy(drawn, target)


def _dry_run(asked) -> None:
    setup, runs, resources = asked.setup, asked.planned(), asked.resources
    told_data = needs.told_data(setup, FLAGS.data_dir)
    nearest = {name: needs.of_row(setup, row) for name, row in setup.rows.items()}
    nearest = {row: (found.seconds, found.workload) for row, found in nearest.items() if found}
    anew = asked.places.to_start_over(runs)
    rows = sweep.estimate(runs, setup.seconds, nearest, anew)
    missing = [run for run in runs if run in anew or not sweep.is_done(run)]
    for line in sweep.told_kept(missing):
        asked.say(f"{line}.")
    without = {e.row for e in rows if e.seconds is None and e.rounds}
    if without:
        found = sweep.measure([run for run in runs if run.row in without], resources)
        rows = [
            e._replace(seconds=found[e.row], source="two rounds, measured just now")
            if e.row in found
            else e
            for e in rows
        ]
    table = [
        [e.row, e.runs, e.rounds, "" if e.seconds is None else f"{e.seconds:.3g}", e.source]
        + ["unknown" if e.seconds is None else _hours(e.rounds * e.seconds / 3600)]
        for e in rows
    ]
    if FLAGS.json:
        _answers.append({**_named(setup), "data": told_data, "rows": [e._asdict() for e in rows]})
        return
    print(f"{setup.paper} {setup.item} {setup.name}: {setup.title}\n")
    headers = ["row", "runs to do", "rounds to do", "s/round", "source", "hours"]
    print(tables.markdown(table, headers))
    known = sum(e.rounds * e.seconds for e in rows if e.seconds is not None) / 3600
    unknown = sum(e.rounds for e in rows if e.seconds is None)
    jobs = resources.jobs or max(1, int(len(os.sched_getaffinity(0)) / resources.cpus))
    told = f"{_hours(known)} hours with one run at a time, {_hours(known / jobs)} with {jobs}"
    told += " at a time"
    if unknown:
        told = f"{told}, without" if known else "Unknown:"
        told += f" {unknown} rounds of rows whose time could not be measured"
    if any(e.source.startswith(sweep.NEAREST) for e in rows):
        told += f"; times by the nearest measured workload are those of {needs.MACHINE}"
    if told_data:
        told += f"; data: {told_data}"
    shares = {row: search.planned_share(setup, row) for row in setup.rows}
    parts = [f"{row} {share:.1%}" for row, share in shares.items() if share < 1]
    most = sum(search.most_beyond(setup, row) for row in {run.row for run in runs})
    if most:
        told += f"; grids whose best point is at an edge get up to {most} further points"
    if parts:
        told += f"; [search] needs this share of the rounds of whole grids: {', '.join(parts)}"
    print(f"\n{told}.\n")


def _hours(hours: float) -> str:
    """Returns a rounded number of hours, which is 0 only for exactly 0."""
    return f"{hours:.2f}" if hours >= 0.1 or not hours else f"{hours:.2g}"


def _write_readmes() -> None:
    changed = readme.write()
    print("\n".join(f"{path} is up to date now" for path in changed) or "All pages are up to date.")


def _redraw() -> None:
    """Draws recorded figures again."""
    from reproduction import drawing  # Its libraries take seconds to import.

    for item in _asked_items():
        for setup in _asked_setups(item).values():
            for path in drawing.draw_again(setup, readme.recorded_folder(setup), (".png",)):
                print(path)


# Rows of a set-up that --list names: a heat map has hundreds.
_MOST_LISTED = 30


def _list() -> None:
    if FLAGS.data_dir and remote.is_address(FLAGS.data_dir):
        needs.paths_at(FLAGS.data_dir)  # Raises if the address cannot be read.
    for item in _asked_items():
        if FLAGS.json:
            _answers.extend(map(_listed, _asked_setups(item).values()))
            continue
        where = f"--items={FLAGS.items}" if FLAGS.items else f"--paper={item.paper}"
        print(f"{where} --item={item.name}: {item.title}")
        for name, setup in _asked_setups(item).items():
            rows = list(setup.rows)
            if len(rows) > _MOST_LISTED and not FLAGS.setup:
                rows[3:] = [f"... and {len(rows) - 3} more, which --list with this --setup names"]
            of = f" --rows={','.join(rows)}" if rows else ""
            print(f"  --setup={name}{of}: {setup.title}")
            if setup.rows and not score.recorded(setup):
                told = [needs.told_data(setup, FLAGS.data_dir), needs.told_hours(setup)]
                print(f"    takes {'; '.join(filter(None, told))}")


def _listed(setup) -> dict:
    """Returns the entry of a set-up in `--list --json`."""
    is_recorded = bool(score.recorded(setup))
    takes = {"data": None, "hours": None}
    if setup.rows and not is_recorded:
        takes = {
            "data": needs.told_data(setup, FLAGS.data_dir),
            "hours": needs.told_hours(setup),
        }
    return {**_named(setup), "rows": list(setup.rows), "recorded": is_recorded, **takes}


def _asked_items() -> list[items.Item]:
    """Returns the item that the flags name, or all items of a paper, a folder or the suite.

    Raises:
      ReproduceError: If there is no such item, or one is invalid.
    """
    if FLAGS.items:
        if FLAGS.paper:
            raise UsageError("--paper and --items name the same thing: set one of them.")
        known = {item.name: item for item in items.own_items(FLAGS.items)}
        if FLAGS.item not in (None, *known):
            raise UsageError(
                f"--item={FLAGS.item} is unknown; {FLAGS.items} has: {', '.join(known)}."
            )
        return [known[FLAGS.item]] if FLAGS.item else list(known.values())
    if FLAGS.item:
        if not FLAGS.paper:
            raise UsageError("--item needs --paper; --list shows all papers and items.")
        return [items.load_item(FLAGS.paper, FLAGS.item)]
    return items.all_items(FLAGS.paper)


def _reproduce_all(setups) -> None:
    """Runs set-ups, each in an equal share of the time that remains of `--budget`."""
    _, minutes = parse_budget(FLAGS.budget)
    ends = None if minutes is None else time.monotonic() + 60 * minutes
    for done, setup in enumerate(setups):
        share = None
        if ends is not None:
            share = max(0.0, ends - time.monotonic()) / 60 / (len(setups) - done)
        reproduce(setup, FLAGS, share)


def _asked_setups(item) -> dict[str, items.Setup]:
    """Returns an item's set-ups, or the one that the flags name.

    Raises:
      ReproduceError: If the item does not have this set-up.
    """
    if not FLAGS.setup:
        return item.setups
    if FLAGS.item and FLAGS.setup not in item.setups:
        known = ", ".join(item.setups)
        raise UsageError(f"--setup={FLAGS.setup} is unknown; known: {known}.")
    return {name: setup for name, setup in item.setups.items() if name == FLAGS.setup}


def _parse(arguments) -> None:
    """Reads the flags into `FLAGS`.

    Raises:
      HparamError: If a flag is wrong.
    """
    vars(FLAGS).clear()
    vars(FLAGS).update(vars(PARSER.parse(arguments)))
    if FLAGS.gpus_per_run > 1 and FLAGS.gpus_per_run != int(FLAGS.gpus_per_run):
        raise HparamError(f"--gpus_per_run={FLAGS.gpus_per_run} must be whole, or a part of one.")
    asked = next((name for name in _READ if getattr(FLAGS, name)), None)
    read = {asked, *_PLACES, *_READ.get(asked, PARSER.flags.keys() - {"column"})}
    for name in PARSER.flags:
        if name in FLAGS.given - read and getattr(FLAGS, name):
            among = f"with --{asked}" if asked else "without --compare"
            raise HparamError(f"--{name} is not used {among}.")
    if FLAGS.folders and not FLAGS.compare:
        raise HparamError(
            f"Unexpected argument {FLAGS.folders[0]!r}: flags have the form --name=value."
        )


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    _parse(arguments)
    run_checks.check_place(FLAGS.root_output_dir)
    if FLAGS.items:
        # The items' folder may contain modules that their flag files import.
        sys.path.append(os.path.abspath(FLAGS.items))
    _answers.clear()
    if FLAGS.list:
        _list()
        if FLAGS.json:
            print(writing.json_text(_answers))
        return 0
    if FLAGS.write_readmes:
        _write_readmes()
        return 0
    if FLAGS.redraw:
        _redraw()
        return 0
    if FLAGS.compare:
        from reproduction import compare

        if FLAGS.json:
            print(compare.as_json([*FLAGS.compare, *FLAGS.folders], FLAGS.column))
            return 0
        output = pathlib.Path(FLAGS.root_output_dir) / "compare"
        print(compare.report([*FLAGS.compare, *FLAGS.folders], FLAGS.column, output))
        return 0
    if not FLAGS.item and not FLAGS.items:
        raise UsageError("--paper and --item must be set; --list shows all papers and items.")
    setups = [setup for item in _asked_items() for setup in _asked_setups(item).values()]
    # With --json, only JSON may go to standard output.
    with contextlib.redirect_stdout(sys.stderr) if FLAGS.json else contextlib.nullcontext():
        _reproduce_all(setups)
        if FLAGS.record and not FLAGS.items:
            _write_readmes()
    if FLAGS.json:
        print(writing.json_text(_answers))
    return 0


def command() -> NoReturn:
    """The console command `tff-algos-reproduce`."""
    command_line.begin()
    command_line.stops_raise()
    command_line.run(main)


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
