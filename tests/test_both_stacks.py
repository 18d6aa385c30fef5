"""The suite on the published and on the current stack: the same training, files that both read.

Tests that need the other stack's interpreter take `FEDOPT_OTHER_PYTHON`, by default that of
`make venv STACK=published`; without either they are skipped. `make test-stacks` makes both.
"""

import csv
import json
import os
import pathlib
import subprocess
import sys

import pytest

from benchmarks import stacks as benchmark
from simulation.errors import RunError
from simulation.records import stacks
from tff_suite import compat

_REPO = pathlib.Path(__file__).resolve().parent.parent
_RUN = [
    *("run_experiment.py", "--task=synthetic", "--algorithm=fedadam", "--clients_per_round=3"),
    *("--client_batch_size=5", "--client_learning_rate=0.05", "--server_learning_rate=0.01"),
    *("--synthetic_num_clients=6", "--synthetic_max_examples=20"),
]


def _run(python, folder, *flags):
    # `tf.keras` is chosen by the process itself.
    inherited = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    inherited.pop("TF_CPP_MIN_LOG_LEVEL", None)
    return subprocess.run(
        [str(python), *_RUN, f"--root_output_dir={folder}", *flags],
        cwd=_REPO,
        env=inherited,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("runtime", ["tff", "native", "vectorized"])
def test_each_runtime_runs_silently_and_records_the_stack(runtime, tmp_path):
    done = _run(sys.executable, tmp_path, "--total_rounds=2", f"--runtime={runtime}")
    assert done.returncode == 0, done.stderr
    # In a container the worker's network may have to be shared, which is told.
    told = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert not told
    (folder,) = tmp_path.iterdir()
    start = json.loads((folder / "hparams.json").read_text())["start"]
    assert start["stack"] == compat.stack()
    assert start["versions"].keys() == {"python", *compat.packages()}
    with open(folder / "metrics.csv", newline="") as file:
        assert [row["round_num"] for row in csv.DictReader(file)] == ["0", "1", "2"]


@pytest.mark.parametrize("before", ["published", "current"])
def test_a_run_goes_on_only_on_the_stack_that_it_was_begun_on(before):
    start = {"stack": before, "versions": {"tensorflow": "2.0.0"}}
    if before == compat.stack():
        stacks.check_same("results/x", {"start": start})
        return
    with pytest.raises(RunError, match=rf"^results/x was begun on the {before} stack .*") as e:
        stacks.check_same("results/x", {"start": start})
    assert f"make venv STACK={before}" in str(e.value) and "\n" not in str(e.value)


_CASE = {"train": "0123", "others": {"metrics.csv 1 eval/loss": "0.5", "name": "", "client": "a"}}


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (_CASE, ""),
        (_CASE | {"others": _CASE["others"] | {"metrics.csv 1 eval/loss": "0.5000001"}}, ""),
        (
            _CASE | {"others": _CASE["others"] | {"metrics.csv 1 eval/loss": "0.50001"}},
            "metrics.csv 1 eval/loss",
        ),
        (_CASE | {"others": _CASE["others"] | {"client": "b"}}, "client and"),
        (_CASE | {"others": _CASE["others"] | {"name": "0.0"}}, "name and"),
        (_CASE | {"train": "0124"}, "training differs"),
        (_CASE | {"others": {}}, "other columns"),
        (None, "fails on the other stack"),
    ],
)
def test_what_differs_between_two_results_is_said(other, says):
    found = benchmark.difference(_CASE, other)
    assert found.startswith(says) and bool(found) == bool(says)


@pytest.mark.parametrize("close", [True, False])
def test_training_may_differ_by_rounding_where_no_bits_are_promised(close):
    ours, theirs = (
        {"train": train, "others": {"metrics.csv 1 train/loss": loss}}
        for train, loss in (("0123", "0.5"), ("4567", "0.5000001" if close else "0.50001"))
    )
    assert benchmark.difference(ours, theirs) == "training differs"
    assert bool(benchmark.difference(ours, theirs, bitwise=False)) != close


def test_the_table_has_a_line_a_case_and_a_column_a_runtime():
    differences = {"fedavg, tff": "", "fedavg, native": "training differs", "task t": ""}
    lines = benchmark.table(
        differences, {"fedavg, tff": "01", "fedavg, native": "02"} | {"task t": "3"}
    )
    assert lines == [
        {"case": "fedavg", "tff": "01", "native": "training differs", "vectorized": ""},
        {"case": "task t", "tff": "3", "native": "", "vectorized": ""},
    ]


# With the other stack's interpreter.


@pytest.fixture(scope="module")
def other():
    default = _REPO / ".venv-published" / "bin" / "python"
    python = pathlib.Path(os.environ.get("FEDOPT_OTHER_PYTHON", default))
    if compat.stack() != compat.CURRENT or not python.exists():
        pytest.skip(f"{python} is not there; make test-stacks makes it")
    return python


@pytest.fixture(scope="module")
def others_run(other, tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    done = _run(other, folder, "--total_rounds=2")
    assert done.returncode == 0, done.stderr
    return folder


# What methods keep, what runtimes do, and the layers of tasks' models.
_COMPARED = ("fedadam, ", "scaffold, ", "ditto, tff", "task emnist_character", "task shakespeare")


@pytest.mark.timeout(1500)
def test_training_is_the_same(other):
    """Of methods bit by bit, else to 1e-6; `python -m benchmarks.stacks` has every case."""
    assert benchmark.main([str(other), *(f"--only={text}" for text in _COMPARED)]) == 0


def test_the_others_folder_is_not_gone_on_with(others_run):
    # To its end it is a finished run, whichever stack has brought it there.
    done = _run(sys.executable, others_run, "--total_rounds=2")
    assert done.returncode == 0 and "is finished" in done.stdout
    done = _run(sys.executable, others_run, "--total_rounds=3")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "was begun on the published stack (TensorFlow 2.14" in done.stderr


def test_models_are_begun_with_and_loaded_on_the_other_stack(other, others_run, tmp_path):
    name = "synthetic_fedadam"
    begun = _run(
        sys.executable, tmp_path, "--total_rounds=1", f"--initial_weights={others_run / name}"
    )
    assert begun.returncode == 0, begun.stderr
    back = _run(
        other, tmp_path / "back", "--total_rounds=1", f"--initial_weights={tmp_path / name}"
    )
    assert back.returncode == 0, back.stderr
    load = (
        "import os, sys; os.environ['TF_USE_LEGACY_KERAS'] = '1'; import tensorflow as tf;"
        "print([w.tolist() for w in tf.keras.models.load_model(sys.argv[1]).get_weights()])"
    )
    for folder in (others_run, tmp_path):
        path = folder / name / "model" / "final.keras"
        found = [
            subprocess.run([str(p), "-c", load, str(path)], stdout=subprocess.PIPE, check=True)
            for p in (sys.executable, other)
        ]
        assert len(found[0].stdout) > 1000 and found[0].stdout == found[1].stdout
