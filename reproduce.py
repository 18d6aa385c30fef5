"""Reproduces a table of a paper: runs its rows from their flag files, prints ours beside theirs.

    python reproduce.py --list
    python reproduce.py --paper=adafedadam --item=table5 --setup=synthetic --rows=fedavg,fedadam
    python reproduce.py --items=DIR --item=my_sweep
    python reproduce.py --compare DIR DIR...

What is to be run is data: `papers/<paper>/<item>.toml` names for each set-up its rows (a flag file
each), seeds, grids, columns and the rule by which a grid's best point is chosen;
`papers/<paper>/published.csv` holds the paper's numbers. Your own items are such files in a folder
of your own (docs/items.md). Every run is a `run_experiment.py` of its own, so that what is done is
skipped and what was cut off is resumed.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import NoReturn

from tff_suite import command_line, writing

if __name__ == "__main__":
    command_line.begin()

import tabulate  # noqa: E402
from absl import flags  # noqa: E402

from reproduction import changes, items, needs, readme, results, run_folders, score, search, sweep  # noqa: E402
from reproduction.items import ReproduceError  # noqa: E402
from simulation import (
    experiment_flags,  # noqa: E402
    supervisor,  # noqa: E402
)
from simulation.errors import RunError  # noqa: E402
from tasks.formats import remote  # noqa: E402
from tasks.task import DataError  # noqa: E402
from tff_suite.hparams import HparamError  # noqa: E402

FLAGS = flags.FlagValues()
flags.DEFINE_string("paper", None, "Folder under papers/.", flag_values=FLAGS)
flags.DEFINE_string("item", None, "Table or figure: a .toml of the paper.", flag_values=FLAGS)
flags.DEFINE_string(
    "items",
    None,
    "Folder with your own items, in place of --paper; docs/items.md says what is in it.",
    flag_values=FLAGS,
)
flags.DEFINE_bool(
    "full_grid",
    False,
    "Run whole grids also where the item has a [search].",
    flag_values=FLAGS,
)
flags.DEFINE_string("setup", None, "Set-up of the item; all by default.", flag_values=FLAGS)
flags.DEFINE_list("rows", None, "Rows of the set-up; all by default.", flag_values=FLAGS)
flags.DEFINE_list("seeds", None, "Seeds; the item's by default.", flag_values=FLAGS)
flags.DEFINE_string(
    "data_dir",
    None,
    "Folder or fsspec address (s3://, gs://, ...) of data, passed to the runs that read files.",
    flag_values=FLAGS,
)
flags.DEFINE_string("root_output_dir", "results/reproduce", "Where the runs go.", flag_values=FLAGS)
flags.DEFINE_float("cpus_per_run", 1, "Cores of a run.", lower_bound=0.01, flag_values=FLAGS)
flags.DEFINE_float(
    "gpus_per_run",
    0,
    "GPUs of a run; a fraction lets runs share one. With 0 runs see no GPU.",
    lower_bound=0,
    flag_values=FLAGS,
)
flags.DEFINE_float(
    "memory_gb_per_run",
    0,
    "Memory that a run is given room for, in GB; 0 is not looked at.",
    lower_bound=0,
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "jobs",
    None,
    "Most runs at a time; by default as many as there is room for.",
    lower_bound=1,
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "ray_address",
    None,
    "Ray cluster that runs go to (auto, host:port, ray://host:port); by default the cores of this "
    "machine.",
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "storage",
    None,
    "Folder or fsspec URL (s3://, gs://, ...) where runs are kept while they run, for machines "
    "without a common file system.",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "retries",
    2,
    "How often a run that failed or was lost with its machine is started again.",
    lower_bound=0,
    flag_values=FLAGS,
)
flags.DEFINE_list(
    "budget",
    None,
    "Less than the whole protocol: rounds=N, at most N of each run; hours=H or minutes=M for "
    "all runs together, shared out equally, of the first seed only unless --seeds is set: a run "
    "that it cuts short resumes next time. Every result says what it stands on.",
    flag_values=FLAGS,
)
flags.DEFINE_bool(
    "dry_run", False, "Only tell what is to be run and how long it will take.", flag_values=FLAGS
)
flags.DEFINE_list(
    "compare",
    None,
    "Compare runs instead: folders of runs, or folders that hold such folders; more may follow.",
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "column", "eval/accuracy", "Column of metrics.csv that --compare looks at.", flag_values=FLAGS
)
flags.DEFINE_bool(
    "record",
    False,
    "Copy the results into papers/ and bring its pages up to date.",
    flag_values=FLAGS,
)
flags.DEFINE_bool(
    "write_readmes",
    False,
    "Only bring the pages of papers/ and the README's headline up to date.",
    flag_values=FLAGS,
)
flags.DEFINE_bool(
    "redraw",
    False,
    "Only draw the recorded figures again from the CSV files beside them, of all papers or of "
    "--paper, --item and --setup.",
    flag_values=FLAGS,
)
flags.DEFINE_bool(
    "list",
    False,
    "List papers, items, set-ups and rows, all or those of --paper, --item and --setup, and what "
    "those take that were not run: data, found or missing, and hours.",
    flag_values=FLAGS,
)
flags.DEFINE_bool("help", False, "Print this.", flag_values=FLAGS)


# What no machine has; also keeps the product with a billion a 64-bit number.
_MOST = {"cpus_per_run": 1e5, "gpus_per_run": 1e5, "memory_gb_per_run": 1e6, "retries": 1e6}

# What is read by what runs nothing, beside where things lie.
_READ = {
    "list": {"paper", "item", "setup"},
    "write_readmes": set(),
    "redraw": {"paper", "item", "setup"},
    "compare": {"column"},
}
_PLACES = {"items", "data_dir", "root_output_dir", "flagfile"}


def parse_budget(parts: list[str] | None) -> tuple[int | None, float | None]:
    """Returns the most rounds of a run and the minutes for all runs; `None` for no limit.

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
            raise ReproduceError(
                f"--budget={part} is not understood: rounds=N, hours=H or minutes=M, above 0."
            )
        if kind == "rounds":
            rounds = max(1, int(value))
        else:
            minutes = value * (60 if kind == "hours" else 1)
    return rounds, minutes


def reproduce(
    setup: items.Setup, options: flags.FlagValues, max_minutes: float | None = None
) -> None:
    """Runs a set-up and prints, writes and draws its results.

    Args:
      setup: The set-up.
      options: The flags.
      max_minutes: Its share of the time of `--budget`, for all that it runs; `None` for no limit.
    """
    rows = options.rows or list(setup.rows)
    if setup.draws and options.dry_run:
        print(f"{setup.paper} {setup.item} {setup.name}: {setup.title}: drawn without a run.\n")
        return
    for row in rows:
        if row not in setup.rows:
            raise ReproduceError(
                f"--rows: {row!r} is no row of {setup.item} {setup.name}; rows: "
                f"{', '.join(setup.rows)}."
            )
    try:
        seeds = [int(s) for s in options.seeds] if options.seeds else list(setup.seeds)
    except ValueError as e:
        raise ReproduceError(f"--seeds={','.join(options.seeds)} must be whole numbers.") from e
    rows, seeds = list(dict.fromkeys(rows)), list(dict.fromkeys(seeds))
    max_rounds, _ = parse_budget(options.budget)
    started = time.monotonic()

    def minutes_left(share=1.0):
        # Grids are run more than once: beyond their edges, and on further seeds.
        if max_minutes is None:
            return None
        return share * max(0.0, max_minutes - (time.monotonic() - started) / 60)

    resources = sweep.Resources(
        cpus=options.cpus_per_run,
        gpus=options.gpus_per_run,
        memory=int(options.memory_gb_per_run * 1e9),
        jobs=options.jobs,
        address=options.ray_address,
        storage=options.storage,
        retries=options.retries,
    )
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

    def plan(points, seeds, most_rounds=max_rounds):
        return items.planned_runs(
            setup,
            [row for row in rows if row in points],
            points,
            seeds,
            root=options.root_output_dir,
            data_dir=options.data_dir,
            max_rounds=most_rounds,
        )

    # A grid is tried on the rule's seeds; its best point is then run on the others as well.
    points = {row: setup.points(row) for row in rows}
    tried_seeds, told = seeds, []
    if any(len(some) > 1 for some in points.values()):
        of_rule = setup.selection.get("seeds", seeds)
        tried_seeds = [seed for seed in of_rule if seed in seeds]
        if not tried_seeds:
            tried_seeds = seeds
            ours, theirs = (" ".join(map(str, some)) for some in (seeds, of_rule))
            told.append(
                f"Grids' points are chosen on seed {ours}: of the item's selection.seeds, "
                f"{theirs}, none is run."
            )
            print(told[0], flush=True)
    runs = plan(points, tried_seeds)
    others = [seed for seed in seeds if seed not in tried_seeds]
    from reproduction import columns, drawing  # Their libraries take seconds to import.

    drawing.check(setup, runs)
    shown = columns.Check(setup)
    shown.before()
    if options.dry_run:
        # Which point is chosen makes no difference to the time.
        further = plan({row: points[row][:1] for row in rows}, others)
        _dry_run(setup, [*runs, *further], resources)
        return

    def execute(some, minutes=None):
        sweep.execute(some, resources, minutes, shown.after)

    if setup.search:
        if options.budget:
            raise ReproduceError(
                "--budget does not go with [search]: set search.budget, or --full_grid."
            )
        runs, chosen, found = _searched(setup, rows, points, tried_seeds, plan, execute)
        told += found
    else:
        share = len(runs) / (len(runs) + len(rows) * len(others))
        runs, chosen = search.whole_grid(
            setup,
            points,
            lambda some: plan(some, tried_seeds),
            lambda some: execute(some, minutes_left(share)),
        )
    further = plan({row: [chosen[row]] for row in rows}, seeds)
    if others or setup.search:
        execute(further, minutes_left())
    runs = list({run.folder: run for run in [*runs, *further]}.values())

    records = results.records(runs, setup, chosen)
    folder = pathlib.Path(options.root_output_dir) / setup.paper / setup.item / setup.name
    results.write_csv(folder / "results.csv", records)
    results.write_csv(folder / "runs.csv", results.grid_records(runs, setup, chosen))
    caveats = results.caveats(records, setup)
    caveats += run_folders.mixtures([run.read() for run in runs])
    caveats += [*told, *filter(None, [results.largest_difference(records, setup)])]
    text = "\n".join([setup.title, "", results.format_table(records, setup), "", *caveats])
    writing.write_atomically(folder / "table.md", f"{text}\n".encode())
    latex = results.format_table(records, setup, "latex_booktabs")
    comments = "".join(f"% {line}\n" for line in caveats)
    latex = f"% {setup.title}\n{comments}{latex}\n"
    writing.write_atomically(folder / "table.tex", latex.encode())
    drawn = drawing.draw(setup, runs, chosen, folder)
    print(f"\n{text}")
    print(f"Columns (docs/metrics.md): {results.columns_in_words(setup)}")
    named = ", ".join(pathlib.Path(path).name for path in drawn)
    print(f"In {folder}: results.csv, runs.csv, table.md, table.tex, {named}")
    if options.record:
        readme.record(setup, folder)
        print(f"Recorded in {readme.recorded_folder(setup)}.")


def _searched(setup, rows, points, seeds, plan, execute):
    """Searches the grids of rows; returns the runs, the chosen points and what is to be said."""
    wide = [row for row in rows if len(points[row]) > 1]
    runs = plan({row: points[row] for row in rows if row not in wide}, seeds)
    execute(runs)
    found = search.search(
        setup,
        wide,
        lambda some, rounds: plan(some, seeds, rounds),
        execute,
    )
    chosen = {row: found[row].point if row in found else dict(points[row][0]) for row in rows}
    runs += plan({row: points[row] for row in wide}, seeds)
    return runs, chosen, [found[row].describe(row) for row in wide]


def _check_place(setup, root) -> None:
    """Refuses runs in the folder that --record empties before it copies their results there."""
    target = readme.recorded_folder(setup).resolve()
    for part in (setup.folder, f"{setup.item}/{setup.name}"):
        if pathlib.Path(root, setup.paper, part).resolve().is_relative_to(target):
            raise ReproduceError(
                f"--record replaces all that is in {target}, and --root_output_dir={root} has the "
                "runs there; choose another --root_output_dir."
            )


def _draw(setup, options) -> None:
    """Draws a figure that needs no run."""
    folder = pathlib.Path(options.root_output_dir).absolute() / setup.paper / setup.item
    folder.mkdir(parents=True, exist_ok=True)
    data_dir = options.data_dir and items.absolute(options.data_dir)
    known = {"output": str(folder / f"{setup.name}.png"), "data_dir": data_dir}
    if options.data_dir is None and any("{data_dir}" in part for part in setup.draws):
        raise ReproduceError(f"{setup.item} {setup.name} reads data: set --data_dir.")
    command = [sys.executable, *(part.format(**known) for part in setup.draws)]
    prepare = supervisor.die_with_parent()
    if subprocess.run(command, cwd=items.REPO, preexec_fn=prepare).returncode:
        raise ReproduceError(f"{setup.item} {setup.name} could not be drawn; see above.")
    print(f"Drawn: {known['output']} and .pdf")
    if options.record:
        target = readme.recorded_folder(setup)
        target.mkdir(parents=True, exist_ok=True)
        for ending in (".png", ".csv"):
            drawn = pathlib.Path(known["output"]).with_suffix(ending)
            if drawn.exists():
                shutil.copy(drawn, target)


def _dry_run(setup, runs, resources) -> None:
    told_data = needs.told_data(setup, FLAGS.data_dir)
    nearest = {name: needs.of_row(setup, row) for name, row in setup.rows.items()}
    nearest = {row: (found.seconds, found.workload) for row, found in nearest.items() if found}
    compared = sweep.compare(runs, resources)
    rows = sweep.estimate(runs, setup.seconds, nearest, compared.changed.keys())
    table = [
        [e.row, e.runs, e.rounds, "" if e.seconds is None else f"{e.seconds:.3g}", e.source]
        + ["" if e.seconds is None else f"{e.rounds * e.seconds / 3600:.2f}"]
        for e in rows
    ]
    print(f"{setup.paper} {setup.item} {setup.name}: {setup.title}\n")
    headers = ["row", "runs to do", "rounds to do", "s a round", "which are", "hours"]
    print(tabulate.tabulate(table, headers, tablefmt="github", disable_numparse=True))
    print("".join(f"\n{line}" for line in sweep.tell(compared)))
    known = sum(e.rounds * e.seconds for e in rows if e.seconds is not None) / 3600
    unknown = sum(e.rounds for e in rows if e.seconds is None)
    jobs = resources.jobs or max(1, int(len(os.sched_getaffinity(0)) / resources.cpus))
    told = f"{known:.2f} hours of one run after the other, {known / jobs:.2f} with {jobs} at a time"
    if unknown:
        told += f"; {unknown} rounds of rows without a measured round are not counted"
    if any(e.source.startswith(sweep.NEAREST) for e in rows):
        told += f"; what is by a nearest measured workload is for {needs.MACHINE}"
    if told_data:
        told += f"; data: {told_data}"
    shares = {row: search.planned_share(setup, row) for row in setup.rows}
    parts = [f"{row} {share:.1%}" for row, share in shares.items() if share < 1]
    most = sum(search.most_beyond(setup, row) for row in {run.row for run in runs})
    if most:
        told += f"; grids whose best point is at an edge take up to {most} points more"
    if parts:
        told += f"; of the rounds of whole grids [search] takes a part: {', '.join(parts)}"
    print(f"\n{told}.\n")


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
        needs.paths_at(FLAGS.data_dir)  # An address that cannot be read is all there is to tell.
    for item in _asked_items():
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


def _asked_items() -> list[items.Item]:
    """Returns the item that the flags name, or all of a paper, a folder or the suite.

    Raises:
      ReproduceError: If there is none, or one is wrong.
    """
    if FLAGS.items:
        if FLAGS.paper:
            raise ReproduceError("--paper and --items name the same thing: set one of them.")
        known = {item.name: item for item in items.own_items(FLAGS.items)}
        if FLAGS.item not in (None, *known):
            raise ReproduceError(
                f"--item={FLAGS.item} is unknown; {FLAGS.items} has: {', '.join(known)}."
            )
        return [known[FLAGS.item]] if FLAGS.item else list(known.values())
    if FLAGS.item:
        if not FLAGS.paper:
            raise ReproduceError("--item needs --paper; --list shows what there is.")
        return [items.load_item(FLAGS.paper, FLAGS.item)]
    return items.all_items(FLAGS.paper)


def _reproduce_all(setups) -> None:
    """Runs set-ups, each in an equal share of the time that is left of `--budget`."""
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
      ReproduceError: If an item that the flags name has no such set-up.
    """
    if not FLAGS.setup:
        return item.setups
    if FLAGS.item and FLAGS.setup not in item.setups:
        known = ", ".join(item.setups)
        raise ReproduceError(f"--setup={FLAGS.setup} is unknown; known: {known}.")
    return {name: setup for name, setup in item.setups.items() if name == FLAGS.setup}


def _parse(arguments) -> list[str]:
    """Reads the flags; returns what else is given.

    Raises:
      flags.Error: If a flag is wrong.
    """
    FLAGS.unparse_flags()
    for name in FLAGS:
        FLAGS[name].unparse()
    try:
        rest = FLAGS(["reproduce.py", *experiment_flags.expand_flagfiles(arguments)])[1:]
    except ValueError as e:  # `--noflag=value`, and HparamError of a flag file.
        raise flags.Error(str(e)) from e
    for name in ("root_output_dir", "data_dir", "items"):
        # As in the runs' own flags.
        FLAGS[name].value = FLAGS[name].value and os.path.expanduser(FLAGS[name].value)
    for name, most in _MOST.items():
        # NaN is neither less nor more than a bound.
        if not 0 <= FLAGS[name].value <= most:
            raise flags.Error(f"--{name}={FLAGS[name].value} must be at most {most:g}.")
    if FLAGS.gpus_per_run > 1 and FLAGS.gpus_per_run != int(FLAGS.gpus_per_run):
        raise flags.Error(f"--gpus_per_run={FLAGS.gpus_per_run} must be whole, or a part of one.")
    return rest


def _refuse_unread() -> None:
    """Refuses flags that what is asked for does not read.

    Raises:
      ReproduceError: If there is one.
    """
    asked = next((name for name in _READ if FLAGS[name].value), None)
    read = {asked, *_PLACES, *_READ.get(asked, set(FLAGS) - {"column"})}
    for name in FLAGS:
        if FLAGS[name].present and FLAGS[name].value and name not in read:
            among = f" with --{asked}" if asked else " without --compare"
            raise ReproduceError(f"--{name} has no meaning{among}.")


def _fail(reason, code: int) -> int:
    print(f"error: {command_line.one_line(reason)}", file=sys.stderr)
    return code


def main(arguments: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    try:
        rest = _parse(arguments)
        if rest and not FLAGS.compare:
            raise ReproduceError("only flags are understood; see --help.")
        if FLAGS.help:
            print(f"{__doc__}\n{FLAGS.get_help()}")
            return 0
        _refuse_unread()
        experiment_flags.check_place(FLAGS.root_output_dir)
        if FLAGS.items:
            # Modules that their flag files import may lie beside them.
            sys.path.append(os.path.abspath(FLAGS.items))
        if FLAGS.list:
            _list()
            return 0
        if FLAGS.write_readmes:
            _write_readmes()
            return 0
        if FLAGS.redraw:
            _redraw()
            return 0
        if FLAGS.compare:
            from reproduction import compare

            output = pathlib.Path(FLAGS.root_output_dir) / "compare"
            print(compare.report([*FLAGS.compare, *rest], FLAGS.column, output))
            return 0
        if not FLAGS.item:
            needed = "--item" if FLAGS.items else "--paper and --item"
            raise ReproduceError(f"{needed} must be set; --list shows what there is.")
        changes.start_over()
        (item,) = _asked_items()
        _reproduce_all(list(_asked_setups(item).values()))
        if FLAGS.record and not FLAGS.items:
            _write_readmes()
        return 0
    except (ReproduceError, HparamError, RunError, DataError, flags.Error) as e:
        return _fail(e, 2 if isinstance(e, flags.Error) else 1)
    except OSError as e:
        where = f"Cannot use {e.filename}: " if e.filename else ""
        return _fail(f"{where}{e.strerror or e}.", 1)
    except MemoryError as e:
        return _fail(f"Out of memory ({str(e) or 'no more is free'}).", 1)
    except KeyboardInterrupt:
        number = command_line.received()
        told = f"error: stopped by {number.name}; run the same command again to resume."
        print(told, file=sys.stderr)
        return 128 + number


def command() -> NoReturn:
    """The console command `tff-algos-reproduce`."""
    command_line.begin()
    command_line.stops_raise()
    command_line.run(main)


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
