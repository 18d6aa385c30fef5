"""A learning rate that a search chooses by one flag."""

import csv
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest

import run_experiment
import simulation
import tasks
from reproduction import run_folders, tuning
from simulation.errors import DivergedError, RunError
from tasks.task import ArrayFederatedData, Examples
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tests.test_run_experiment import bytes_of
from tests.tff_algos import toy
from tff_suite.hparams import HparamError

# One worker makes the search that several tests read, once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tuning")]

TOY = {
    "task": "toy",
    "algorithm": "fedavg",
    "total_rounds": 9,
    "clients_per_round": 3,
    "client_batch_size": 3,
    "client_learning_rate": "tune",
    "runtime": "vectorized",
    "progress": False,
}


def run(root, **changes):
    return simulation.run(**{**TOY, "root_output_dir": root, **changes})


def tried(root, name="toy_fedavg"):
    (path,) = pathlib.Path(root).glob("*.tuning/tried.csv")
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def flags_of(result):
    return json.loads(pathlib.Path(result.folder, "hparams.json").read_text())["flags"]


@pytest.fixture
def few(monkeypatch):
    """Few rates, each of which costs a run."""
    monkeypatch.setattr(tuning, "_VALUES", [0.01, 0.1])
    monkeypatch.setattr(tuning, "_PAIRS", 3)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    root = tmp_path_factory.mktemp("tuned")
    return root, run(root)


def test_the_best_by_validation_goes_on_and_is_the_runs(tuned):
    root, result = tuned
    rows = tried(root)
    assert [int(r["rounds"]) for r in rows] == [1] * 9 + [3] * 3
    values = {
        (int(r["rounds"]), float(r["client_learning_rate"])): float(r["validation/loss"])
        for r in rows
    }
    first = {rate: v for (rounds, rate), v in values.items() if rounds == 1}
    assert sorted(first) == pytest.approx(np.geomspace(1e-3, 10, 9), rel=1e-2)
    last = {rate: v for (rounds, rate), v in values.items() if rounds == 3}
    assert set(last) == set(sorted(first, key=first.get)[:3])
    (chosen,) = (r for r in rows if r["chosen"] == "1")
    flags = flags_of(result)
    assert flags["client_learning_rate"] == float(chosen["client_learning_rate"])
    assert flags["client_learning_rate"] == min(last, key=last.get)
    assert flags["validation_fraction"] == 0.1 and result.summary["finished"]
    # The run is the one that the rate by itself gives.
    alone = run(
        root,
        client_learning_rate=flags["client_learning_rate"],
        validation_fraction=0.1,
        experiment_name="alone",
    )
    assert all(map(np.array_equal, alone.weights, result.weights))


def test_the_cost_is_as_stated(tuned):
    _, result = tuned
    found = pathlib.Path(f"{result.folder}.tuning").glob("*/metrics.csv")
    rounds = sum(len(path.read_text().splitlines()) - 2 for path in found)
    assert rounds == 9 + 3 * 2 <= 1.7 * TOY["total_rounds"]


def test_the_same_call_changes_nothing(tuned):
    root, result = tuned
    before = bytes_of(pathlib.Path(result.folder))
    again = run(root)
    assert bytes_of(pathlib.Path(result.folder)) == before
    assert again.rounds.equals(result.rounds)


def test_more_rounds_keep_the_rate(tuned, monkeypatch):
    root, result = tuned
    monkeypatch.setattr(tuning, "_search", None)
    longer = run(root, total_rounds=10)
    assert longer.summary["rounds"] == 10
    assert flags_of(longer)["client_learning_rate"] == flags_of(result)["client_learning_rate"]


def test_tests_have_no_part_in_the_choice(tmp_path, few):
    """Other test examples give the same search, number by number."""
    toy = tasks.load("toy")
    x, y = toy.train.examples(0)
    wrong = ArrayFederatedData(x, (y + 1) % 3, [range(len(x))], [toy.train.client_ids[0]])
    found = []
    for number, changes in enumerate(
        [{}, {"test": wrong, "central_test": Examples(x[:1] * -9, y[:1])}]
    ):
        own = dataclasses.replace(toy, name="mine", **changes)
        root = tmp_path / str(number)
        run(root, task=own, total_rounds=2)
        found.append(tried(root))
    assert len(found[0]) == 2 and found[0] == found[1]


def test_a_method_whose_server_needs_a_rate_gets_both(tmp_path, few):
    result = run(tmp_path, algorithm="fedadam", total_rounds=3)
    rows = tried(tmp_path)
    assert [int(r["rounds"]) for r in rows] == [1] * 3
    (chosen,) = (r for r in rows if r["chosen"] == "1")
    for flag in ("client_learning_rate", "server_learning_rate"):
        rates = {float(r[flag]) for r in rows}
        assert len(rates) == 3 and 1e-3 <= min(rates) and max(rates) <= 10
        assert flags_of(result)[flag] == float(chosen[flag])


def test_a_search_that_was_stopped_goes_on(tmp_path, monkeypatch):
    """It stops in its second rung, when one of four runs has gone further than the first."""
    monkeypatch.setattr(tuning, "_VALUES", [0.01, 0.03, 0.1, 0.3])
    whole = run(tmp_path / "whole", total_rounds=8)
    original = tuning._run

    def stops(trial, caller):
        original(trial, caller)
        if trial.rounds == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "_run", stops)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "stopped", total_rounds=8)
    again = run(tmp_path / "stopped", total_rounds=8)
    assert all(map(np.array_equal, again.weights, whole.weights))
    assert tried(tmp_path / "stopped") == tried(tmp_path / "whole")
    assert [r["rounds"] for r in tried(tmp_path / "whole")] == ["2"] * 4 + ["3"]


def test_fresh_searches_anew(tmp_path, few):
    run(tmp_path, total_rounds=1)
    run(tmp_path, total_rounds=1, fresh=True)
    assert len(list(tmp_path.glob("*.tuning.replaced-1/tried.csv"))) == 1


def other_loss(y, outputs):
    return 2.0 * toy.cross_entropy(y, outputs)


@pytest.mark.quick_cases("code", "same")
@pytest.mark.parametrize("what", ["settings", "method", "data", "code", "more rounds", "same"])
def test_a_stopped_search_of_something_else_is_kept_and_begun_anew(
    tmp_path, few, monkeypatch, what, capsys
):
    mine = dataclasses.replace(tasks.load("toy"), name="mine")
    ends = np.cumsum(mine.train.sizes)
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    parts = [mine.train.examples(k) for k in range(len(rows))]
    x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    scaled = ArrayFederatedData(x * np.float32(0.5), y, rows)
    own = {"task": mine, "experiment_name": "run"}
    changes: dict[str, Any] = {
        "settings": {"client_batch_size": 2},
        "method": {"algorithm": "fedprox", "fedprox_mu": 0.1},
        "data": {"task": dataclasses.replace(mine, train=scaled)},
        "code": {"task": dataclasses.replace(mine, loss=other_loss)},
        "more rounds": {"total_rounds": 12},
        "same": {},
    }
    changed = {**own, **changes[what]}
    whole = run(tmp_path / "whole", **changed)

    def stops(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "_write", stops)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "stopped", **own)
    result = run(tmp_path / "stopped", **changed)
    assert flags_of(result)["client_learning_rate"] == flags_of(whole)["client_learning_rate"]
    assert tried(tmp_path / "stopped") == tried(tmp_path / "whole")
    kept = list(tmp_path.glob("stopped/run.tuning.replaced-1/*/metrics.csv"))
    assert bool(kept) == (what not in ("same", "more rounds"))


def test_runs_of_a_search_are_no_runs_of_the_folder_above(tuned):
    found = run_folders.find_runs([str(tuned[0])])
    assert not [r for r in found if ".tuning" in str(r.folder)]
    assert run_folders.find_runs([f"{tuned[1].folder}.tuning"])


def test_rates_that_all_diverge(tmp_path, few):
    says = r"rate from 0\.001 to 10; see .*tuning\. Of client_learning_rate=0\.01: .*; a lower"
    with pytest.raises(DivergedError, match=says):
        run(tmp_path, server_learning_rate=1e38, total_rounds=3)


def test_it_runs_out_of_time(tmp_path, few, capsys):
    """As a run does: the command succeeds and says how to go on; in Python there is no result."""
    settings = {k: v for k, v in TOY.items() if k != "progress"}
    settings |= {"total_rounds": 2, "root_output_dir": tmp_path, "max_minutes": 1e-9}
    assert run_experiment.main([f"--{k}={v}" for k, v in settings.items()]) == 0
    told = capsys.readouterr()
    assert "Out of time while tuning learning rates; run the same command again to" in told.out
    assert not told.err.strip() and not (tmp_path / "toy_fedavg").exists()
    with pytest.raises(RunError, match="Out of time while tuning learning rates"):
        run(tmp_path, max_minutes=1e-9)


def test_the_command_says_what_it_does(tmp_path, capsys, few):
    settings = {k: v for k, v in TOY.items() if k != "progress"}
    settings |= {"total_rounds": 2, "root_output_dir": tmp_path}
    assert run_experiment.main([f"--{k}={v}" for k, v in settings.items()]) == 0
    out = capsys.readouterr().out
    assert "Tuning client_learning_rate: 2 points from 0.001 to 10" in out
    assert "Chosen: client_learning_rate=" in out and "tried.csv" in out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"client_learning_rate": "auto"}, "client_learning_rate='auto' must be a number"),
        ({"server_learning_rate": "tune", "algorithm": "feddyn"}, "not supported by feddyn"),
        ({"client_momentum": "tune"}, "must be a number"),
    ],
)
def test_words_that_are_no_rates(tmp_path, changes, says):
    with pytest.raises(HparamError, match=says):
        run(tmp_path, **changes)
