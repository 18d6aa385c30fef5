"""The model that a run leaves, and runs that begin with the weights of a file."""

import dataclasses
import os
import pathlib
import warnings

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import simulation
import tasks
from simulation.errors import RunError
from simulation.records import models
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tff_suite.hparams import HparamError

TOY = {
    "task": "toy",
    "algorithm": "fedavg",
    "total_rounds": 2,
    "clients_per_round": 3,
    "client_batch_size": 3,
    "client_learning_rate": 0.3,
    "runtime": "tff",
    "progress": False,
}


def run(folder, **changes):
    return simulation.run(**{**TOY, "root_output_dir": folder, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("models"))


def initial_loss(result):
    return result.rounds["eval/loss"][0]


def test_the_model_is_keras_own(finished):
    loaded = tf.keras.models.load_model(pathlib.Path(finished.folder) / "model" / "final.keras")
    for a, b in zip(loaded.trainable_variables, finished.weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.quick_cases("run")
@pytest.mark.parametrize("kind", ["run", "h5", "keras", "weights", "saved_model"])
def test_a_run_begins_with_the_weights_of_a_file(finished, tmp_path, kind):
    loaded = tf.keras.models.load_model(pathlib.Path(finished.folder) / "model" / "final.keras")
    path = pathlib.Path(finished.folder)
    if kind == "saved_model":
        path = tmp_path / "saved"
        tf.saved_model.save(loaded, str(path))
    elif kind != "run":
        path = tmp_path / {"keras": "a.keras", "h5": "a.h5", "weights": "a.weights.h5"}[kind]
        (loaded.save_weights if kind == "weights" else loaded.save)(path)
    result = run(tmp_path, initial_weights=path)
    want = finished.rounds["eval/loss"].iloc[-1]
    assert initial_loss(result) == pytest.approx(want, rel=1e-6)
    again = run(tmp_path, initial_weights=path, total_rounds=3)
    assert len(again.rounds) == 4 and initial_loss(again) == initial_loss(result)


def test_a_run_does_not_resume_with_other_weights(finished, tmp_path):
    file = tmp_path / "w.keras"
    source = pathlib.Path(finished.folder) / "model" / "final.keras"
    file.write_bytes(source.read_bytes())
    run(tmp_path, initial_weights=file)
    other = tf.keras.models.load_model(file)
    other.set_weights([w + 1 for w in other.get_weights()])
    other.save(file)
    with pytest.raises(RunError, match="data: initial weight 0"):
        run(tmp_path, initial_weights=file, total_rounds=3)


def test_weights_that_stand_for_other_inputs_or_classes_are_said(tmp_path):
    """Shapes fit, but another table or split numbers words and classes differently."""
    df = pd.DataFrame({"who": np.arange(24) % 3, "said": [f"w{k % 7} w{k % 5}" for k in range(24)]})

    def begin(name, kinds, weights=None, **changes):
        task = tasks.from_frame(
            df.assign(kind=np.array(kinds)[np.arange(24) % 2]),
            user="who",
            target="kind",
            model=lambda seed: tf.keras.Sequential(
                [
                    tf.keras.layers.Embedding(9, 2, input_length=2),
                    tf.keras.layers.Flatten(),
                    tf.keras.layers.Dense(2),
                ]
            ),
            **{"text": "said", "text_length": 2, "test_frame": df.assign(kind="dog"), **changes},
        )
        fields = {"experiment_name": name, "initial_weights": weights, "total_rounds": 1}
        return run(tmp_path, task=task, **fields).folder

    first = begin("first", ["cat", "dog"])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*other .* in encoding.json")
        begin("alike", ["cat", "dog"], first)
    says = r"--initial_weights=.*: its run has other {} in encoding.json than this one"
    file = os.path.join(first, "model", "final.keras")
    with pytest.warns(RuntimeWarning, match=says.format("classes")):
        begin("classes", ["dog", "emu"], file)
    with pytest.warns(RuntimeWarning, match=says.format("words")):
        begin("words", ["cat", "dog"], first, vocabulary_size=3)


def test_files_that_do_not_fit_are_refused_in_one_line(finished, tmp_path):
    other = tf.keras.Sequential([tf.keras.layers.Dense(9, input_shape=(5,))])
    other.save(tmp_path / "other.keras")
    other.save_weights(tmp_path / "other.weights.h5")
    tf.saved_model.save(other, str(tmp_path / "other"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.h5").write_text("no weights")
    (tmp_path / "text.keras").write_text("no model")
    (tmp_path / "text.txt").write_text("")
    of_another = ["other.keras", "other.weights.h5", "other", "text.h5", "text.keras"]
    reasons = dict.fromkeys(of_another, "does not fit the model of toy: ")
    reasons["empty"] = "cannot be used: the folder holds neither"
    reasons["text.txt"] = "cannot be used: a file must end in"
    reasons["missing.keras"] = "cannot be used: there is no such file"
    for name, reason in reasons.items():
        with pytest.raises(RunError, match=reason) as e:
            run(tmp_path, initial_weights=tmp_path / name)
        assert "\n" not in str(e.value)
    with pytest.raises(HparamError, match="cannot be set with model"):
        run(tmp_path, initial_weights=finished.folder, model=other)


class _Unspoken(tf.keras.layers.Layer):
    """Has a setting that no file can hold, and does not tell it."""

    def __init__(self, units, anything):
        super().__init__()
        self.anything = anything
        self.dense = tf.keras.layers.Dense(units)

    def call(self, inputs):
        return self.dense(inputs)


class _Misspoken(_Unspoken):
    """Tells a setting that it does not keep, as users' layers do."""

    def get_config(self):
        return {**super(_Unspoken, self).get_config(), "units": self.units}


@pytest.mark.parametrize("layer", [_Unspoken, _Misspoken])
def test_of_a_model_that_keras_cannot_describe_the_weights_are_left(layer, tmp_path):
    def keras_model():
        return tf.keras.Sequential([tf.keras.Input((3,)), layer(2, object())])

    weights = [np.full((3, 2), 2.0, np.float32), np.ones(2, np.float32)]
    path = models.write(str(tmp_path), keras_model(), weights)
    assert path.endswith("final.weights.h5")
    other = keras_model()
    other.load_weights(path)
    for a, b in zip(other.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)


@tf.keras.utils.register_keras_serializable("test_models")
class _Nested(tf.keras.layers.Layer):
    """Holds a layer where neither of Keras's formats looks."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first = tf.keras.layers.Dense(2)
        self.blocks = [[tf.keras.layers.Dense(2), tf.keras.layers.LayerNormalization()]]

    def call(self, inputs):
        x = self.first(inputs)
        for layer in self.blocks[0]:
            x = layer(x)
        return x


def _nested(seed):
    tf.keras.utils.set_random_seed(seed)
    return tf.keras.Sequential([tf.keras.Input((3,)), _Nested(), tf.keras.layers.Dense(3)])


@pytest.mark.parametrize("ending", ["keras", "weights.h5"])
def test_a_file_that_lacks_weights_begins_no_run(tmp_path, ending):
    path = tmp_path / f"saved.{ending}"
    made = _nested(1)
    (made.save if ending == "keras" else made.save_weights)(path)
    task = dataclasses.replace(tasks.load("toy"), keras_model_fn=_nested)
    lacking = r"lacks '[^']*dense\w*/kernel:0' and 3 more weights\. Keras's format"
    with pytest.raises(RunError, match=lacking) as e:
        models.beginning_with(task, 0, str(path))
    assert "\n" not in str(e.value)


def test_a_file_that_would_lack_weights_is_not_written(tmp_path):
    """The loaded model had drawn these weights anew, and nothing said so."""
    made = _nested(0)
    with pytest.warns(RuntimeWarning, match=r"model/final\.keras is not written.*'.*' and 3 more"):
        result = run(tmp_path, model=made)
    (path,) = pathlib.Path(result.folder, "model").iterdir()
    assert path.name == "final.weights.npz"
    task = dataclasses.replace(tasks.load("toy"), keras_model_fn=_nested)
    for name in (path, result.folder):
        begun = models.beginning_with(task, 5, str(name)).keras_model(5).get_weights()
        for before, after in zip(begun, result.weights, strict=True):
            np.testing.assert_array_equal(before, after)
    for before, after in zip(_nested(0).get_weights(), made.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    made.set_weights(result.weights)
    clients = [tasks.load("toy").test.examples(k) for k in range(6)]
    x, y = map(np.concatenate, zip(*clients, strict=True))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, made(x))
    assert result.summary["final"]["eval/loss"] == pytest.approx(float(loss), rel=1e-5)
