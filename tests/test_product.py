"""Every method on every kind of task, by the command: it runs, resumes, and runtimes agree."""

import csv

import numpy as np
import pytest

import run_experiment
import tff_algos
from simulation.records import checkpoints
from tests.test_run_experiment import assert_same_run

# Few clients of few examples; the models are the papers' own.
TASKS = {
    "synthetic": ["--synthetic_num_clients=8", "--synthetic_max_examples=40"],
    "fashion_mnist": ["--fashion_mnist_num_clients=8", "--max_elements_per_client=20"],
    "shakespeare_character": [
        "--shakespeare_character_num_clients=6",
        "--max_elements_per_client=4",
    ],
    "mnist_writers": ["--mnist_writers_num_clients=8", "--max_elements_per_client=20"],
}
SETTINGS = {
    "client_learning_rate": "0.05",
    "clients_per_round": "3",
    "client_batch_size": "4",
    "total_rounds": "2",
    "rounds_per_checkpoint": "1",
    "rounds_per_eval": "2",
    "num_validation_examples": "50",
}
# What a method needs beside, or has no use for (`None`).
OF_METHODS = {
    "centralized": {"clients_per_round": None, "centralized_steps_per_round": "5"},
    "climb": {"climb_primal_rounds": "1", "climb_epsilon": "0"},
    "ditto": {"ditto_lambda": "1"},
    # Every weight moves by about its rate in a step.
    "fafed": {"client_learning_rate": "0.001"},
    "fedcorr": {
        "total_rounds": "8",
        "fedcorr_iterations": "1",
        "fedcorr_stage1_clients": "4",
        "fedcorr_stage2_rounds": "2",
    },
    "lookahead": {"lookahead_state": "keep"},
}
# FedCorr corrects the labels of single classes, and knows no cohort at once.
WITHOUT = {("fedcorr", "shakespeare_character"), ("fedcorr", "mnist_writers")}


@pytest.fixture(scope="module")
def data_flags(request):
    """Real data where there is any, else made up of the same shape."""
    try:
        return [f"--data_dir={request.getfixturevalue('data_dir')}"]
    except pytest.skip.Exception:
        return ["--use_synthetic_data"]


def run(name, task, flags, runtime, folder, **changed):
    settings = SETTINGS | OF_METHODS.get(name, {}) | changed
    if tff_algos.get(name).server_learning_rate is None:
        settings["server_learning_rate"] = "0.01"
    code = run_experiment.main(
        [
            f"--task={task}",
            f"--algorithm={name}",
            f"--runtime={runtime}",
            f"--root_output_dir={folder}",
            "--experiment_name=run",
            *TASKS[task],
            *([] if task == "synthetic" else flags),
            *(f"--{k}={v}" for k, v in settings.items() if v is not None),
        ]
    )
    assert code == 0
    return folder / "run"


def assert_near(got, want, before):
    """Weights, all else the server keeps, and the last row's loss agree.

    Each tensor by its length and on the scale of its change in the rounds since `before`, leaves of
    an earlier checkpoint, since rounding errors may be magnified: a coordinate whose gradient is of
    their size may differ by a step under an adaptive method; a ReLU or a maximum whose argument is
    zero up to rounding takes a unit's gradient with it, and from starts that differ by 1e-7 `tff`
    itself ends in clusters up to a quarter of a round's change apart. Other data, draws or
    mathematics differ by all of it.
    """
    newest = [checkpoints.load_newest(str(f / "checkpoints"))[0] for f in (got, want)]
    assert newest[0].round_num == newest[1].round_num > 0
    for leaves in zip(newest[0].leaves, newest[1].leaves, before, strict=True):
        assert leaves[0].shape == leaves[1].shape
        a, b, start = (np.asarray(leaf, np.float64) for leaf in leaves)
        change = np.linalg.norm(b - start)
        assert np.linalg.norm(a - b) <= change / 2 + 1e-4 * max(1.0, np.linalg.norm(b))
    losses = []
    for folder in (got, want):
        with open(folder / "metrics.csv", newline="") as f:
            losses.append(float(list(csv.DictReader(f))[-1]["eval/loss"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.slow
@pytest.mark.quick_cases("afl-mnist_writers")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "task"),
    [(n, t) for n in tff_algos.names() for t in TASKS if (n, t) not in WITHOUT],
)
def test_a_method_on_a_task(name, task, data_flags, tmp_path):
    whole = run(name, task, data_flags, "tff", tmp_path / "whole")
    start = checkpoints.load_newest(str(whole / "checkpoints"))[0]
    assert all(np.all(np.isfinite(leaf)) for leaf in start.leaves if leaf.dtype.kind == "f")

    stopped = run(name, task, data_flags, "tff", tmp_path / "stopped", max_minutes="1e-6")
    early = checkpoints.load_newest(str(stopped / "checkpoints"))[0]
    assert early.round_num < int(OF_METHODS.get(name, {}).get("total_rounds", 2))
    assert_same_run(run(name, task, data_flags, "tff", tmp_path / "stopped"), whole)

    for runtime in ("native",) if tff_algos.get(name).staged else ("native", "vectorized"):
        ended = run(name, task, data_flags, runtime, tmp_path / runtime)
        assert_near(ended, whole, early.leaves)
