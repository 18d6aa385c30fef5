"""Checks that both stacks compute the same: every method, runtime and task.

    python -m benchmarks.stacks .venv-published/bin/python --processes=2

It runs the cases of `benchmarks.bits` on this interpreter and on the other stack's, on the same
machine. For methods, all results of training must be bit-identical: `train/...` and the arrays of
the last checkpoint. Evaluations must agree to 1e-6. The same tolerance holds for all numbers of
tasks, whose convolutions and LSTMs the two releases of TensorFlow may round differently, and of
FedLocal in the runtime `tff`. The exit code is 1 if a case does not agree.

The table has one line per method and one column per runtime. Its digests are comparable only on one
machine, since other processors sum in another order. So both stacks are run, and no digests are
stored.
"""

import csv
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from tff_suite import command_line, parser

PARSER = parser.Parser(__doc__)
PARSER.positional("other", "interpreter of the other stack")
PARSER.flag("only", help="As of benchmarks.bits.", form="repeated")
PARSER.flag("csv", help="File to write the records to.", path=True)
PARSER.flag("processes", 2, "Cases at once.", minimum=1)

if __name__ == "__main__":
    command_line.begin(PARSER)

_REPO = pathlib.Path(__file__).resolve().parent.parent
_TOLERANCE = 1e-6
_RUNTIMES = ("tff", "native", "vectorized")


ROUNDED = "same to rounding"
# Cases that need not be bit-identical. In the runtime `tff` the two releases of TensorFlow fold the
# constants of FedLocal's adaptive step differently, so that weights differ in their last digit.
# With Grappler's constant folding off on both (`tf.config.optimizer`), all bits agree.
_MAY_ROUND = ("task ", "fedlocal, tff")


def difference(
    ours: Mapping[str, Any] | None, theirs: Mapping[str, Any] | None, bitwise: bool = True
) -> str:
    """Describes how the two results of a case differ; empty if they agree.

    Args:
      ours: The result of `benchmarks.bits --apart` on this stack; `None` if the case failed.
      theirs: The same for the other stack.
      bitwise: Whether training must be bit-identical.
    """
    if ours is None or theirs is None:
        return f"fails on {'this' if ours is None else 'the other'} stack"
    if bitwise and ours["train"] != theirs["train"]:
        return "training differs"
    if ours["others"].keys() != theirs["others"].keys():
        return "other columns"
    apart = [k for k, v in ours["others"].items() if not _close(v, theirs["others"][k])]
    return f"{apart[0]} and {len(apart) - 1} more differ" if apart else ""


def _close(a, b):
    if a == b:
        return True
    try:
        return math.isclose(float(a), float(b), rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    except ValueError:  # One of them is empty, or a name.
        return False


def _results(python, flags, folder):
    path = os.path.join(folder, "found.json")
    command = [python, "-m", "benchmarks.bits", "--apart", f"--write={path}", *flags]
    subprocess.run(command, cwd=_REPO, check=False, stdout=sys.stderr)
    if not os.path.exists(path):
        raise RuntimeError(f"{python} ran no case; see its last lines above.")
    # A case that failed has no entry in the file.
    found = json.loads(pathlib.Path(path).read_text())
    os.remove(path)
    return found


def table(differences: Mapping[str, str], digests: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns the lines of the table: a case, and its digest or difference for each runtime."""
    lines = {}
    for name in sorted(differences):
        case, _, runtime = name.partition(", ")
        line = lines.setdefault(case, dict.fromkeys(("case", *_RUNTIMES), ""))
        line["case"] = case
        # For a task, the runtime is the one that `auto` chooses; it is in the first column.
        line[runtime or _RUNTIMES[0]] = differences[name] or digests[name]
    return list(lines.values())


@command_line.reported
def main(arguments: list[str]) -> int:
    """Compares the stacks and returns the exit code."""
    options = PARSER.parse(arguments)
    flags = [f"--processes={options.processes}", *(f"--only={t}" for t in options.only or ())]
    with tempfile.TemporaryDirectory() as folder:
        ours = _results(sys.executable, flags, folder)
        theirs = _results(options.other, flags, folder)
    names = ours.keys() | theirs.keys()
    differences = {
        n: difference(ours.get(n), theirs.get(n), bitwise=not n.startswith(_MAY_ROUND))
        for n in names
    }
    digests = {
        n: ours[n]["train"] if ours[n]["train"] == theirs[n]["train"] else ROUNDED
        for n in ours.keys() & theirs.keys()
    }
    lines = table(differences, digests)
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, ("case", *_RUNTIMES), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    differ = {name: how for name, how in differences.items() if how}
    print(f"{len(names) - len(differ)} of {len(names)} cases agree.")
    print(f"Same to rounding only: {[n for n, d in digests.items() if d == ROUNDED]}")
    for name, how in sorted(differ.items()):
        print(f"differs: {name}: {how}", file=sys.stderr)
    return 1 if differ or not names else 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
