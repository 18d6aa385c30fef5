"""A sweep of short runs in a process of its own, so that a test can kill it.

python sweep_driver.py FLAGFILE ROOT NUMBER [ADDRESS]
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from reproduction import items, sweep


def short_runs(flagfile, root, number, rounds=None):
    """Returns runs of the flag file that differ by seed, of so many rounds if that is given."""
    setup = items.Setup(
        paper="p",
        item="i",
        name="s",
        title="Short runs",
        rounds=2000,
        seeds=range(int(number)),
        rows={"fedavgm": items.Row("fedavgm", flagfile, {})},
        home=items.PAPERS / "p",
        folder="i/s",
    )
    points = {"fedavgm": [{}]}
    return items.planned_runs(setup, setup.rows, points, setup.seeds, root=root, max_rounds=rounds)


def main(flagfile, root, number, address=None):
    runs = short_runs(flagfile, root, number)
    sweep.execute(runs, sweep.Resources(address=address))


if __name__ == "__main__":
    main(*sys.argv[1:])
