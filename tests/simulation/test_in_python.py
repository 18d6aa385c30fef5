"""An experiment in Python is the command's: settings, checks, folder, numbers."""

import csv
import dataclasses
import json
import pathlib
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import run_experiment
import simulation
import tasks
from simulation.errors import DivergedError, RunError
from simulation.records import checkpoints
from tasks import task as task_lib
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tests.test_run_experiment import assert_same_run, bytes_of
from tff_suite.hparams import HparamError

_REPO = pathlib.Path(__file__).resolve().parents[2]
TOY = {
    "algorithm": "fedavgm",
    "total_rounds": 4,
    "clients_per_round": 3,
    "client_batch_size": 3,
    "client_epochs_per_round": 2,
    "client_learning_rate": 0.3,
    "rounds_per_eval": 2,
    "runtime": "tff",
}


def run(folder, **changes):
    settings = {"task": "toy", **TOY, "root_output_dir": folder, "progress": False, **changes}
    return simulation.run(**settings)


def flags(folder, **changes):
    settings = {"task": "toy", **TOY, "root_output_dir": folder, **changes}
    return [f"--{name}={value}" for name, value in settings.items()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("python")
    return root, run(root, experiment_name="toy_fedavgm")


def own_task(**changes):
    return dataclasses.replace(tasks.load("toy"), **{"name": "mine", **changes})


def network(*units):
    return tf.keras.Sequential(
        [tf.keras.layers.Dense(units[0], input_shape=(3,))]
        + [tf.keras.layers.Dense(n) for n in units[1:]]
    )


def test_it_is_the_commands_run(finished, tmp_path):
    root, result = finished
    assert run_experiment.main(flags(tmp_path)) == 0
    assert_same_run(pathlib.Path(result.folder), tmp_path / "toy_fedavgm")
    assert result.folder == str(root / "toy_fedavgm")
    with open(tmp_path / "toy_fedavgm" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert result.rounds.round_num.tolist() == [0, 1, 2, 3, 4]
    for name in ("train/loss", "eval/accuracy"):
        for got, row in zip(result.rounds[name], rows, strict=True):
            assert np.isnan(got) if row[name] == "" else got == float(row[name])
    assert result.summary["finished"] and result.summary["rounds"] == 4
    checkpoint, _ = checkpoints.load_newest(f"{result.folder}/checkpoints")
    for w in result.weights:
        assert any(np.array_equal(w, leaf) for leaf in checkpoint.leaves)


def test_a_finished_run_is_returned_and_stays_as_it_is(finished):
    root, result = finished
    before = bytes_of(root)
    again = run(root, experiment_name="toy_fedavgm")
    assert bytes_of(root) == before
    assert all(map(np.array_equal, again.weights, result.weights))
    assert again.summary == result.summary and again.rounds.equals(result.rounds)


@pytest.mark.slow
def test_it_resumes(finished, tmp_path):
    _root, result = finished
    assert run(tmp_path, total_rounds=2).rounds.round_num.max() == 2
    longer = run(tmp_path)
    assert all(map(np.array_equal, longer.weights, result.weights))
    assert_same_run(pathlib.Path(longer.folder), pathlib.Path(result.folder))


@pytest.mark.slow
def test_it_leaves_the_process_as_it_was(tmp_path, capfd):
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    stack = tff.framework.get_context_stack()
    before, filters = stack.current, list(warnings.filters)
    run(tmp_path, total_rounds=1)
    with pytest.raises(DivergedError):
        rates = {"client_learning_rate": 1e20, "server_learning_rate": 1e38}
        run(tmp_path, **rates, total_rounds=20, experiment_name="diverged")
    assert stack.current is before and warnings.filters == filters
    assert handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert capfd.readouterr() == ("", "")


def test_it_runs_in_another_thread_with_a_bar(finished, tmp_path, capfd):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path, progress=True)))
    thread.start()
    thread.join()
    assert all(map(np.array_equal, results[0].weights, finished[1].weights))
    out, err = capfd.readouterr()
    assert out == "" and "4/4" in err


def test_an_interrupt_is_let_through(tmp_path, monkeypatch, finished):
    from simulation.records import metrics_csv

    original = metrics_csv.MetricsCsv.append

    def append(self, round_num, values):
        original(self, round_num, values)
        if round_num == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(metrics_csv.MetricsCsv, "append", append)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, rounds_per_checkpoint=2)
    again = run(tmp_path)
    assert all(map(np.array_equal, again.weights, finished[1].weights))


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "nothing"},
        {"fedadam_beta1": 0.5},
        {"client_learning_rate": -1.0},
        {"client_learning_rte": 1},
        {"clients_per_round": 99},
        {"data_dir": "x"},
        {"flagfile": "nowhere"},
        {"total_rounds": 1, "seed": 9},
        {"total_rounds": 1},
    ],
    ids=str,
)
def test_errors_are_the_commands(finished, capfd, changes):
    root = finished[0]
    changes = {"experiment_name": "toy_fedavgm", **changes}
    assert run_experiment.main(flags(root, **changes)) != 0
    line = capfd.readouterr().err.removeprefix("error: ").rstrip("\n")
    with pytest.raises((HparamError, RunError)) as error:
        run(root, **changes)
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"client_batch_size": "3"}, "--client_batch_size='3' must be a whole number"),
        ({"task": 3}, "not a int"),
        ({"task": own_task(name="toy")}, "toy is the name of a registered task"),
        ({"task": own_task(), "use_synthetic_data": True}, "--use_synthetic_data is not used"),
        ({"task": own_task(), "data_dir": "x"}, "--data_dir is not used by --task=mine"),
        ({"task": own_task(settings={"x": object()})}, "settings cannot be kept as JSON"),
        ({"task": own_task(encoding={"x": object()})}, "encoding cannot be kept as JSON"),
        ({"task": own_task(keras_model_fn=None)}, "'mine' has no keras_model_fn"),
        ({"import": "json"}, "In Python, import the module first"),
        ({"model": 3}, "model must be a Keras model or a function of a seed"),
        ({"task": own_task(), "clients_per_round": 99}, "more than the"),
    ],
)
def test_what_only_python_can_say_wrong(tmp_path, changes, says):
    with pytest.raises(HparamError, match=says):
        run(tmp_path, **changes)
    assert not list(tmp_path.iterdir()), "nothing is claimed by a run that is refused"


def test_numbers_and_paths_of_other_kinds_and_none(finished, tmp_path):
    (tmp_path / "flags").write_text("--client_batch_size=7\n--seed=0\n")
    result = run(
        tmp_path,
        client_batch_size=np.int64(3),
        client_learning_rate=np.float64(0.3),
        max_minutes=None,
        flagfile=tmp_path / "flags",
    )
    assert all(map(np.array_equal, result.weights, finished[1].weights))


def test_a_loop_over_seeds_and_rates_needs_no_names(tmp_path):
    """Each has a folder of its own; the same call again finds its run."""
    settings = [
        {"seed": seed, "client_learning_rate": rate} for seed in (0, 1) for rate in (0.1, 0.3)
    ]
    first = [run(tmp_path, **given, total_rounds=1) for given in settings]
    folders = [result.folder for result in first]
    assert len(set(folders)) == len(folders) == len(list(tmp_path.iterdir()))
    assert "toy_fedavgm_seed1_" in folders[-1]
    kept = bytes_of(tmp_path)
    again = run(tmp_path, **settings[-1], total_rounds=1)
    assert again.folder == folders[-1] and bytes_of(tmp_path) == kept
    longer = run(tmp_path, **settings[-1], total_rounds=2)
    assert longer.folder == folders[-1] and longer.summary["rounds"] == 2


def test_a_task_and_a_model_of_ones_own(tmp_path):
    model = network(4, 3)
    before = model.get_weights()
    result = run(tmp_path, task=own_task(), model=model)
    assert [w.shape for w in result.weights] == [w.shape for w in before]
    assert all(map(np.array_equal, model.get_weights(), before)), "the user's model is the user's"
    model.set_weights(result.weights)
    recorded = json.loads(pathlib.Path(result.folder, "hparams.json").read_text())
    assert recorded["objects"] == {"task": "mine", "model": "Sequential"}
    assert recorded["flags"]["task"] == "mine"

    longer = {"total_rounds": 6, "experiment_name": pathlib.Path(result.folder).name}
    for wrong, says in (
        ({"task": own_task(), "model": network(5, 3)}, "units 4 → 5"),
        ({"task": own_task()}, "the model was given in Python, is given by name"),
        ({"task": own_task(train=tasks.load("toy", seed=7).train), "model": model}, "data"),
    ):
        kept = bytes_of(tmp_path)
        with pytest.raises(RunError, match=says):
            run(tmp_path, **wrong, **longer)
        assert bytes_of(tmp_path) == kept
    other = {"model": lambda seed: network(4, 3), "accept_code_changes": True}
    resumed = run(tmp_path, task=own_task(), **other, **longer)
    assert resumed.rounds.round_num.max() == 6
    # The weights are those of the checkpoint, not the new model's.
    whole = run(tmp_path, task=own_task(), model=_begun_with(before), total_rounds=6,
                experiment_name="whole")  # fmt: skip
    assert all(map(np.array_equal, resumed.weights, whole.weights))


class Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.embed, self.dense = tf.keras.layers.Embedding(5, 4), tf.keras.layers.Dense(3)

    def call(self, x):
        return self.dense(tf.reduce_mean(self.embed(x), axis=1))


def subclassed(_):
    model = Subclassed()
    model(tf.zeros([1, 6], tf.int32))
    return model


def of_any_length(_):
    x = tf.keras.Input((None,), dtype=tf.int32)
    h = tf.keras.layers.Embedding(5, 4)(x)
    return tf.keras.Model(x, tf.keras.layers.Conv1D(3, 2, padding="same")(h))


@pytest.mark.parametrize(
    ("model", "y_shape"), [(subclassed, (9,)), (of_any_length, (9, 6))], ids=["subclassed", "open"]
)
def test_what_a_model_leaves_open_is_as_the_examples_have_it(tmp_path, model, y_shape):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, (9, 6)).astype(np.int32)
    y = rng.integers(0, 3, y_shape).astype(np.int32)
    data = task_lib.ArrayFederatedData(x, y, np.split(np.arange(9), [4, 6]))

    def loss(y, outputs):
        values = tf.keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
        return tf.reshape(values, [tf.shape(y)[0], -1])[:, 0]

    task = own_task(
        train=data, test=data, central_test=task_lib.Examples(x, y), loss=loss, metrics={"l": loss},
        primary_metric="l", higher_is_better=False,
    )  # fmt: skip
    rows = run(tmp_path, task=task, model=model, clients_per_round=3, total_rounds=2).rounds
    assert np.isfinite(rows["eval/loss"].iloc[-1])


@pytest.mark.quick_cases("tff-labels")
@pytest.mark.parametrize("beyond", ["labels", "tokens"])
@pytest.mark.parametrize("runtime", ["tff", "native", "vectorized"])
def test_examples_beyond_the_model_are_one_line(tmp_path, runtime, beyond):
    """Labels that begin at 1, say."""
    x = np.arange(12, dtype=np.int32).reshape(6, 2) + (1 if beyond == "tokens" else 0)
    y = np.arange(6, dtype=np.int32) % 3 + (1 if beyond == "labels" else 0)
    data = task_lib.ArrayFederatedData(x, y, [[0, 1, 2], [3, 4, 5]])
    layers = tf.keras.layers

    def keras_model(seed):
        del seed
        embedded = layers.Embedding(12, 2, input_length=2)
        return tf.keras.Sequential([embedded, layers.Flatten(), layers.Dense(3)])

    task = dataclasses.replace(own_task(), train=data, test=None, keras_model_fn=keras_model)
    found = {"labels": r"label value of 3 .*range of \[0, 3", "tokens": r"= 12 is not in \[0, 12"}
    said = rf"^Examples of task mine do not fit its model: .*{found[beyond]}\)\.$"
    with pytest.raises(RunError, match=said):
        run(tmp_path, task=task, runtime=runtime, clients_per_round=2)


@pytest.mark.quick_cases("chunks")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"runtime": "vectorized"},
        {"clients_per_chunk": 1},
        {"algorithm": "fedcorr", "fedcorr_iterations": 1, "fedcorr_stage1_clients": 2},
    ],
    ids=["tff", "vectorized", "chunks", "stages"],
)
def test_inputs_of_another_width_are_the_models(tmp_path, settings):
    """As a table of numbers gives them: float64 inputs of a float32 model."""
    data = tasks.load("toy").train
    x, y = (np.concatenate(a) for a in zip(*map(data.examples, range(6)), strict=True))
    rows = np.split(np.arange(len(x)), np.cumsum(data.sizes)[:-1])

    def weights(dtype):
        task = own_task(train=task_lib.ArrayFederatedData(x.astype(dtype), y, rows))
        changes = {"experiment_name": dtype, "total_rounds": 1, **settings}
        return run(tmp_path, task=task, **changes).weights

    assert all(map(np.array_equal, weights("float64"), weights("float32")))


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (np.zeros((4, 2), np.float32), np.zeros(4, np.int32), r"takes inputs \[3\], .* have \[2\]"),
        (np.zeros((4, 3), np.float32), np.array(list("abca")), "targets must be numbers, not <U1"),
        (np.zeros((4, 3), np.float32), np.zeros(4, np.longdouble), "targets are float128; make th"),
    ],
    ids=["shape", "words", "long"],
)
def test_examples_that_no_model_takes_are_told_in_one_line(tmp_path, x, y, says):
    data = task_lib.ArrayFederatedData(x, y, [[0, 1], [2], [3]])
    with pytest.raises(RunError, match=says):
        run(tmp_path, task=own_task(train=data, test=None))


def _begun_with(weights):
    model = network(4, 3)
    model.set_weights(weights)
    return model


def test_wrong_settings_are_told_before_tensorflow_is_imported():
    program = """
import sys
import simulation
assert not {"tensorflow", "numpy", "pandas"} & sys.modules.keys()
try:
    simulation.run(task="synthetic", algorithm="fedavg", total_rounds=0)
except Exception as e:
    print(type(e).__name__, e)
assert not {"tensorflow", "pandas"} & sys.modules.keys()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=_REPO, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "HparamError --total_rounds=0 must be >= 1.\n"
