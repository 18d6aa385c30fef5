"""The cost of successive halving relative to whole grids, and whether it finds the best point.

    python -m benchmarks.search --items=benchmarks/sweeps

It searches the grids of items as `reproduce.py` does with their `[search]`. Runs follow one another
in this process and resume from their checkpoints. Then it runs the rest of each grid and compares
the grid's best point, by the same rule, with the one that the search found.
"""

import os
import tempfile
import time

from tff_suite import command_line, parser, tables

PARSER = parser.Parser(__doc__)
PARSER.flag("items", "benchmarks/sweeps", "Folder of items.", path=True)
PARSER.flag("folder", help="Where the runs go. Unset: a temporary folder.", path=True)
PARSER.flag("csv", help="File to write the records to.", path=True)
tables.add_flag(PARSER)

if __name__ == "__main__":
    command_line.begin(PARSER)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import run_experiment
from benchmarks import common
from reproduction import items, results, search, sweep
from reproduction.items import Setup


def measure(setup: Setup, folder: str) -> list[dict]:
    """Returns a record for each row of a set-up with a grid."""
    rows = [row for row in setup.rows if len(setup.points(row)) > 1]

    def plan(points, rounds=None):
        seeds = setup.selection.get("seeds", setup.seeds)
        return items.planned_runs(setup, points, points, seeds, root=folder, max_rounds=rounds)

    def execute(runs):
        for run in runs:
            if not sweep.is_done(run):
                run_experiment.main(list(run.command))

    started = time.process_time()
    found = search.search(setup, rows, plan, execute)
    searched = time.process_time() - started
    runs = plan({row: setup.points(row) for row in rows})
    execute(runs)
    of_grid = time.process_time() - started
    best = results.choose(runs, setup)
    records = []
    for row in rows:
        losses = {
            tuple(run.point.items()): results.selection_value(run, setup.selection)
            for run in runs
            if run.row == row
        }
        ranked = sorted(losses.values())
        own = losses[tuple(found[row].point.items())]
        records.append(
            {
                "row": row,
                "points": len(losses),
                "rungs": " ".join(f"{n}@{r}" for r, n in found[row].rungs),
                "share_of_rounds": round(found[row].share, 4),
                "processor_seconds": round(searched, 1),
                "of_grid_seconds": round(of_grid, 1),
                "found": _point(found[row].point),
                "grid": _point(best[row]),
                "loss_found": round(own, 5),
                "loss_grid": round(ranked[0], 5),
                "rank_of_found": ranked.index(own) + 1,
            }
        )
    return records


def _point(point) -> str:
    return " ".join(f"{flag}={items.format_value(value)}" for flag, value in point.items())


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the benchmark, prints the records, writes a CSV; returns the exit code."""
    options = PARSER.parse(arguments)
    with tempfile.TemporaryDirectory() as temporary, common.report(options) as table:
        for item in items.own_items(options.items):
            for setup in item.setups.values():
                for record in measure(setup, options.folder or temporary):
                    table.add(record)
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
