"""Runs with an aggregator: flags, metrics, and resuming to the bit."""

import csv
import json
import pathlib
import warnings

import pytest

import run_experiment
from simulation import experiment_flags, runtimes
from simulation.records import recorder
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tests.test_run_experiment import assert_same_run
from tff_suite.hparams import HparamError

FLAGS = {
    "task": "toy",
    "algorithm": "fedavgm",
    "total_rounds": 4,
    "clients_per_round": 3,
    "client_batch_size": 3,
    "client_learning_rate": 0.3,
    "client_weighting": "uniform",
}
DP = {"aggregator": "dp", "aggregator_noise_multiplier": 0.2}


def flags(**changes):
    return [f"--{name}={value}" for name, value in {**FLAGS, **changes}.items()]


def run(folder, **changes):
    assert run_experiment.main(flags(root_output_dir=folder, **changes)) == 0
    return pathlib.Path(folder) / "toy_fedavgm"


@pytest.mark.long
@pytest.mark.parametrize("runtime", ["tff", *runtimes.ENGINE])
def test_a_resumed_run_draws_the_same_noise(traced_once, tmp_path, runtime):
    whole = run(tmp_path / "whole", runtime=runtime, **DP)
    run(tmp_path / "parts", runtime=runtime, total_rounds=2, **DP)
    assert_same_run(whole, run(tmp_path / "parts", runtime=runtime, **DP))
    with open(whole / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    clips = [float(r["train/aggregator/zeroing/dp_query_metrics/clip"]) for r in rows[1:]]
    assert len(set(clips)) == 4
    recorded = json.loads((whole / "hparams.json").read_text())
    assert recorded["flags"]["aggregator"] == "dp" and "simulated" not in recorded
    assert "aggregator_bits" not in recorded["flags"]
    other = run(tmp_path / "other", runtime=runtime, seed=1, **DP)
    assert (other / "metrics.csv").read_text() != (whole / "metrics.csv").read_text()


@pytest.mark.long
def test_secure_sums_are_said_to_be_simulated(tmp_path, capsys):
    with warnings.catch_warnings(record=True) as caught:
        folder = run(tmp_path, aggregator="secure", runtime="tff")
    recorded = json.loads((folder / "hparams.json").read_text())
    assert recorded["simulated"] == recorder.SIMULATED
    said = capsys.readouterr()
    assert f"--aggregator=secure simulates {recorder.SIMULATED}." in said.out
    # Once, and without TensorFlow's errors of assertions that TFF leaves unused.
    assert not said.err and not [w for w in caught if "simulates" in str(w.message)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"aggregator": "trimmed"}, "--aggregator=trimmed must be one of mean, robust, dp"),
        ({"aggregator": "dp"}, "aggregator_noise_multiplier must be set with aggregator=dp"),
        ({**DP, "client_weighting": "examples"}, "set client_weighting=uniform with it"),
        ({"aggregator_threshold": 10}, "not used with aggregator=mean"),
        (
            {"algorithm": "fedmgda_plus", "aggregator": "robust"},
            "is not supported by fedmgda_plus, which needs each client",
        ),
    ],
)
def test_flags_are_refused_before_tensorflow(changes, says):
    with pytest.raises(HparamError, match=says) as e:
        experiment_flags.parse(flags(**changes))
    assert "\n" not in str(e.value)
