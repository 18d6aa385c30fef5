"""Clients may have any name: every file of a run has it, and every reader reads it."""

import csv
import io
import json
import pathlib
import re

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import simulation
from reproduction import drawing, plots, run_folders
from simulation import run_checks
from simulation.records import client_states, metrics_csv, trackers
from tasks.task import ArrayFederatedData, Task
from tff_suite import figures

pytestmark = pytest.mark.slow

REPO = pathlib.Path(__file__).resolve().parents[2]

# What readers of tables take for missing, for numbers or for the end of a cell.
NAMES = (
    *("NA", "N/A", "nan", "NaN", "null", "NULL", "None", "<NA>", "#N/A", "", " ", "-", "True"),
    *(" 1", "1 ", "01", "1", "1.0", "1e5", "inf", "-0", "0x1", "2020-01-01"),
    *("a,b", "a;b", 'say "so"', '"', "'", "two\nlines", "cr\rlf\r\n", "tab\t", "#", "=1+1", "\\"),
    *("é", "e\u0301", "雪", "\U0001f600", "$a$", "$\\frac$", "_x", "client_id", "all", "x" * 300),
    *("../up", "a/b", "{x}", "%s", "round_num"),
)


def task():
    rng = np.random.default_rng(0)
    number = len(NAMES)
    x = rng.normal(size=(3 * number, 2)).astype(np.float32)
    y = np.arange(3 * number, dtype=np.int32) % 2
    rows = np.arange(3 * number).reshape(number, 3)
    kernel = tf.keras.initializers.GlorotUniform(0)
    return Task(
        name="named",
        train=ArrayFederatedData(x, y, rows, NAMES),
        test=ArrayFederatedData(x, y, rows[::-1], NAMES[::-1]),
        central_test=None,
        keras_model_fn=lambda seed: tf.keras.Sequential(
            [tf.keras.layers.Dense(2, input_shape=(2,), kernel_initializer=kernel)]
        ),
        loss=lambda y, z: tf.keras.losses.sparse_categorical_crossentropy(y, z, from_logits=True),
        metrics={"accuracy": tf.keras.metrics.sparse_categorical_accuracy},
        primary_metric="accuracy",
    )


def line(names):
    text = io.StringIO()
    csv.writer(text, lineterminator="", quoting=csv.QUOTE_ALL).writerow(names)
    return text.getvalue()


def run(folder, rounds, name="run"):
    return simulation.run(
        task=task(),
        algorithm="ditto",
        track_clients=line(NAMES),
        total_rounds=rounds,
        clients_per_round=len(NAMES),
        client_batch_size=2,
        client_learning_rate=0.1,
        root_output_dir=folder,
        experiment_name=name,
        progress=False,
    )


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A run that was stopped and resumed, by its checkpoint and its clients' states."""
    root = tmp_path_factory.mktemp("named")
    run(root, 2)
    return run(root, 4)


def test_a_resumed_run_is_one_that_never_stopped(resumed, tmp_path):
    whole = run(tmp_path, 4)
    left = [c for c in whole.rounds if not c.startswith("time/")]
    pd.testing.assert_frame_equal(resumed.rounds[left], whole.rounds[left])
    assert all(map(np.array_equal, resumed.weights, whole.weights))
    assert run(tmp_path, 4).rounds.equals(whole.rounds), "a finished run passes its own checks"


def test_tables_name_clients_as_they_are(resumed):
    of_run = run_folders.read_run(resumed.folder)
    assert list(of_run.clients.client_id) == list(NAMES[::-1])
    assert of_run.clients.train_examples.tolist() == [3] * len(NAMES)
    with open(pathlib.Path(resumed.folder, "client_metrics.csv"), newline="") as file:
        assert [row[0] for row in csv.reader(file)][1:] == list(NAMES[::-1])
    # pandas 3 takes a name for missing even if the column is converted to text.
    manual = (REPO / "docs" / "run_folder.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", manual, re.S)
    found = {}
    exec(program.replace("results/synthetic_fedadam", resumed.folder), found)
    pd.testing.assert_frame_equal(
        found["clients"], of_run.clients.set_index("client_id"), check_dtype=False
    )
    columns, _ = metrics_csv.read_csv(f"{resumed.folder}/metrics.csv")
    tracked = [
        c.removeprefix(metrics_csv.TRACKED) for c in columns if c.startswith(metrics_csv.TRACKED)
    ]
    assert tracked == list(NAMES)
    losses = run_folders.tracked_losses([of_run])
    assert list(dict.fromkeys(losses.client)) == list(NAMES)


def test_a_clients_numbers_are_its_own(resumed):
    """What a client has in one file goes with what it has in the others."""
    clients = run_folders.read_run(resumed.folder).clients.set_index("client_id")
    kept = client_states.read_all(f"{resumed.folder}/client_states.sqlite")
    assert set(kept) == set(NAMES)
    data = task().train
    for k, name in enumerate(NAMES):
        x, y = data.examples(k)
        weights = [v for v in kept[name].values() if v.ndim]
        kernel, bias = (
            next(v for v in weights if v.ndim == 2),
            next(v for v in weights if v.ndim == 1),
        )
        found = np.mean(np.argmax(x @ kernel + bias, axis=1) == y)
        assert clients.accuracy[name] == pytest.approx(found), name


def test_other_files_name_clients_as_they_are(resumed):
    digests = json.loads(pathlib.Path(resumed.folder, "data_digests.json").read_text())
    assert {f"client {name!r} of train" for name in NAMES} < digests.keys()
    (path,) = pathlib.Path(resumed.folder).glob("events.out.tfevents.*")
    tags = {
        value.tag
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert {metrics_csv.TRACKED + name for name in NAMES} <= tags


def test_a_figure_and_its_table_name_clients_as_they_are(resumed, tmp_path):
    losses = run_folders.tracked_losses([run_folders.read_run(resumed.folder)])
    shown = losses[losses.client.isin(["NA", "null", "", "01", "$a$", "$\\frac$", "_x"])]
    shown.assign(method="None").to_csv(tmp_path / "losses.csv", index=False)
    read = drawing._read(tmp_path / "losses.csv")
    assert list(read.client) == list(shown.client) and set(read.method) == {"None"}
    assert read.value.to_numpy() == pytest.approx(shown.value.to_numpy())
    figure = plots.client_losses(read)
    assert figures.save(figure, str(tmp_path / "losses"), [".png"])


@pytest.mark.parametrize("name", NAMES)
def test_flags_name_clients_as_csv_does(name):
    assert run_checks.tracked(line([name, "other"])) == [name, "other"]
    plain = not re.search(r'[,"\n\r]', name)
    assert not plain or run_checks.tracked(f"{name},b") == [name, "b"]


def test_mlflow_gets_names_that_it_takes():
    columns = [metrics_csv.TRACKED + name for name in NAMES] + ["eval/accuracy", "train/loss"]
    named = [trackers._mlflows_name(column) for column in columns]
    assert len(set(named)) == len(columns) and named[-2:] == columns[-2:]
    for name in named:
        # MLflow's own two rules for the name of a metric.
        assert re.fullmatch(r"[/\w.\- ]+", name, re.ASCII)
        assert str(pathlib.PurePosixPath(name)) == name and ".." not in name.split("/")
