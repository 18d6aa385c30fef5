"""Checks that two versions of the suite compute the same bits: every method, runtime and task.

    python -m benchmarks.bits --write=before.json
    python -m benchmarks.bits --against=before.json

A case is a short run of the command on synthetic data. Its digest covers the tables, except times,
and the last checkpoint's arrays, as a set so that fields may change their order. Bits are
comparable only on one machine, since other processors sum in another order.

With `--tolerance`, numbers of the tables are compared instead. So a GPU can be checked against the
CPU beside it:

    CUDA_VISIBLE_DEVICES=-1 python -m benchmarks.bits --apart --write=cpu.json
    NVIDIA_TF32_OVERRIDE=0 python -m benchmarks.bits --apart --against=cpu.json --tolerance=1e-4
"""

import contextlib
import csv
import functools
import hashlib
import json
import math
import multiprocessing
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import tasks
import tff_algos
from simulation import runtimes
from simulation.records import checkpoints
from tff_suite import command_line, parser
from tff_suite.hparams import HparamError

PARSER = parser.Parser(__doc__)
PARSER.flag("write", help="File to write the digests to.", path=True)
PARSER.flag(
    "against", help="File of digests to compare with. Exit code 1 if a bit differs.", path=True
)
PARSER.flag("only", help="Only cases with this in their name.", form="repeated")
PARSER.flag("apart", False, "Training in one digest, other numbers as they are.")
PARSER.flag(
    "tolerance",
    help="Most that a number of the tables may differ, relative to numbers above 1; needs --apart.",
    type=float,
    minimum=0,
)
PARSER.flag("processes", 2, "Cases at once.", minimum=1)

if __name__ == "__main__":
    command_line.begin(PARSER)

_REPO = pathlib.Path(__file__).resolve().parent.parent
_PROBLEM = (
    "--synthetic_num_clients=8",
    "--synthetic_max_examples=40",
    "--client_batch_size=4",
    "--client_learning_rate=0.05",
    "--rounds_per_checkpoint=2",
    "--rounds_per_eval=2",
)
_COHORT = ("--clients_per_round=3",)
# Flags that a method needs in addition to the cohort's size or instead of it.
_OF_METHODS = {
    "centralized": (),
    "climb": (*_COHORT, "--climb_primal_rounds=1", "--climb_epsilon=0"),
    "ditto": (*_COHORT, "--ditto_lambda=1"),
    "fedcorr": (
        *_COHORT,
        "--fedcorr_iterations=1",
        "--fedcorr_stage1_clients=4",
        "--fedcorr_stage2_rounds=2",
    ),
    "lookahead": (*_COHORT, "--lookahead_state=keep"),
}
# Variants of methods that run other code than the defaults.
_FORMS = {
    "fedavg kept Adam": (
        "fedavg",
        (*_COHORT, "--client_optimizer=adam", "--client_optimizer_state=keep"),
    ),
    "fedprox Nesterov": ("fedprox", (*_COHORT, "--client_optimizer=nesterov", "--fedprox_mu=0.1")),
    "fedadam Algorithm 2": ("fedadam", (*_COHORT, "--fedopt_variant=algorithm2")),
    "fedavg decayed rate": (
        "fedavg",
        (*_COHORT, "--client_lr_schedule=exp_decay", "--client_lr_decay_steps=2"),
    ),
    "scaffold first visit zero": ("scaffold", (*_COHORT, "--scaffold_first_visit=zero")),
}
_OF_TASKS = {"clothing1m": ("--clothing1m_num_clients=2",)}
_TASK = (
    "--use_synthetic_data",
    "--algorithm=fedavg",
    "--total_rounds=1",
    "--clients_per_round=2",
    "--client_batch_size=4",
    "--max_elements_per_client=6",
    "--client_learning_rate=0.01",
    "--num_validation_examples=8",
)


def cases() -> dict[str, list[str]]:
    """Returns case → arguments of its run."""
    forms = {name: (name, _OF_METHODS.get(name, _COHORT)) for name in tff_algos.names()} | _FORMS
    found = {}
    for form, (name, flags) in forms.items():
        spec = tff_algos.get(name)
        rounds = 8 if spec.staged else 3
        plan = spec.plan and spec.plan({h.name: h.default for h in spec.hparams}, 0, rounds)
        epochs = () if plan and plan.local_steps else ("--client_epochs_per_round=2",)
        rate = () if spec.server_learning_rate is not None else ("--server_learning_rate=0.01",)
        for runtime in runtimes.RUNTIMES:
            if spec.staged and runtime == "vectorized":
                continue
            found[f"{form}, {runtime}"] = [
                "--task=synthetic",
                f"--algorithm={name}",
                f"--runtime={runtime}",
                f"--total_rounds={rounds}",
                *_PROBLEM,
                *flags,
                *epochs,
                *rate,
            ]
    for name in tasks.names():
        found[f"task {name}"] = [f"--task={name}", *_TASK, *_OF_TASKS.get(name, ())]
    return found


def digest(arguments: Sequence[str], of_run: Callable | None = None) -> Any:
    """Runs the command; returns a digest of its results, or the end of its output if it fails.

    Args:
      arguments: Arguments of the command.
      of_run: Function from the run's folder to a result that replaces the digest of everything.
    """
    import run_experiment

    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder, "log")
        with open(log, "w") as file, _printed_to(file):
            code = run_experiment.main([*arguments, f"--root_output_dir={folder}"])
        if code:
            return f"exit code {code}: {log.read_text()[-300:]}"
        (run,) = (p for p in pathlib.Path(folder).iterdir() if p.is_dir())
        return (of_run or _digest_of)(run)


@contextlib.contextmanager
def _printed_to(file):
    with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


def _digest_of(run):
    checkpoint, _ = checkpoints.load_newest(str(run / "checkpoints"))
    leaves = sorted(
        hashlib.sha256(f"{leaf.dtype} {leaf.shape}".encode() + leaf.tobytes()).hexdigest()
        for leaf in checkpoint.leaves
    )
    tables = {}
    for name in ("metrics.csv", "client_metrics.csv"):
        if (run / name).exists():
            with open(run / name, newline="") as file:
                tables[name] = [
                    {k: v for k, v in row.items() if not k.startswith("time/")}
                    for row in csv.DictReader(file)
                ]
    content = json.dumps([leaves, tables], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _apart(run):
    """Returns a digest of the results of training, and all numbers of the tables."""
    checkpoint, _ = checkpoints.load_newest(str(run / "checkpoints"))
    trained = sorted(
        hashlib.sha256(f"{leaf.dtype} {leaf.shape}".encode() + leaf.tobytes()).hexdigest()
        for leaf in checkpoint.leaves
    )
    measured = {}
    for name in ("metrics.csv", "client_metrics.csv"):
        if not (run / name).exists():
            continue
        with open(run / name, newline="") as file:
            for i, row in enumerate(csv.DictReader(file)):
                for column, value in row.items():
                    if column.startswith("train/"):
                        trained.append(f"{i} {column} {value}")
                    if not column.startswith("time/"):
                        measured[f"{name} {i} {column}"] = value
    content = json.dumps(trained).encode()
    return {"train": hashlib.sha256(content).hexdigest()[:16], "others": measured}


def _failed(value):
    return isinstance(value, str) and value.startswith("exit code")


def largest_difference(value: Any, wanted: Any) -> float:
    """Returns the largest difference of two runs' numbers, relative to numbers above 1.

    Args:
      value: What `--apart` keeps of a run.
      wanted: The same of another run.

    Returns:
      Infinity if a column, a row or a text differs, or if only one number is NaN.
    """
    a, b = value["others"], wanted["others"]
    if a.keys() != b.keys():
        return math.inf
    return max((_difference(a[k], b[k]) for k in a), default=0.0)


def _difference(a, b):
    if a == b:
        return 0.0
    try:
        x, y = float(a), float(b)
    except ValueError:
        return math.inf
    if math.isnan(x) or math.isnan(y):
        return 0.0 if math.isnan(x) and math.isnan(y) else math.inf
    return abs(x - y) / max(1.0, abs(y))


def _differs(value, wanted, tolerance):
    if _failed(value):
        return True
    if tolerance is None:
        return value != wanted
    return largest_difference(value, wanted) > tolerance


def _told(value):
    return value["train"] if isinstance(value, dict) else value


def _one(case, of_run):
    name, arguments = case
    try:
        return name, digest(arguments, of_run)
    except Exception as e:  # Some of TensorFlow's can't be sent between processes.
        return name, f"exit code 1: {e}"[:300]


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the cases and writes or compares their digests; returns the exit code."""
    options = PARSER.parse(arguments)
    if options.tolerance is not None and not options.apart:
        raise HparamError("--tolerance compares the numbers that --apart keeps; add --apart.")
    wanted = json.loads(pathlib.Path(options.against).read_text()) if options.against else {}
    chosen = {
        name: flags
        for name, flags in cases().items()
        if any(text in name for text in options.only or [""])
    }
    # One child per case, forked from a process that has imported TensorFlow but run nothing yet.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_REPO), os.environ.get("PYTHONPATH", "")])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.reliability.preload"])
    found, differ = {}, []
    one = functools.partial(_one, of_run=_apart if options.apart else None)
    with context.Pool(options.processes, maxtasksperchild=1) as pool:
        for name, value in pool.imap_unordered(one, chosen.items(), chunksize=1):
            found[name] = value
            expected = wanted.get(name, value)
            if _differs(value, expected, options.tolerance):
                differ.append(name)
            shown = _told(value)
            if options.tolerance is not None and not _failed(value):
                shown = f"{largest_difference(value, expected):.1e}"
            print(f"{len(found)}/{len(chosen)} {name}: {shown}", flush=True)
    if options.write:
        ended = {name: value for name, value in found.items() if not _failed(value)}
        text = json.dumps(dict(sorted(ended.items())), indent=1)
        pathlib.Path(options.write).write_text(text + "\n")
    for name in differ:
        print(
            f"differs: {name}: {_told(wanted.get(name))} -> {_told(found[name])}", file=sys.stderr
        )
    return 1 if differ else 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
