"""Models with non-trainable weights: trained, measured, read and put back as in Keras and TFF."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from simulation import runtimes
from tasks.task import ArrayFederatedData, Examples, Task
from tests.simulation.one_round import one_round
from tests.tff_algos import shared
from tff_algos.model import ModelError
from tff_suite.hparams import HparamError

pytestmark = pytest.mark.slow

L = tf.keras.layers
RNG = np.random.default_rng(3)
X = RNG.normal(size=(24, 4)).astype(np.float32)
Y = (np.arange(24) % 3).astype(np.int32)
RATE = 0.5


def _frozen(layer):
    layer.trainable = False
    return layer


def pretrained():
    layer = _frozen(L.Dense(5, "relu", kernel_regularizer="l2", bias_regularizer="l1"))
    return tf.keras.Sequential([L.InputLayer((4,)), layer, L.Dense(3)])


def frozen_in_the_middle():
    layers = [L.Dense(4, kernel_regularizer="l2"), _frozen(L.Dense(5, "tanh")), L.Dense(3)]
    return tf.keras.Sequential([L.InputLayer((4,)), *layers])


def normalized():
    layer = L.Normalization()
    layer.adapt(X)
    return tf.keras.Sequential([L.InputLayer((4,)), layer, L.Dense(3)])


def batch_normalized():
    layer = _frozen(L.BatchNormalization(gamma_regularizer="l2"))
    return tf.keras.Sequential([L.InputLayer((4,)), L.Dense(6), layer, L.Dense(3)])


def nested():
    inner = _frozen(
        tf.keras.Sequential([L.InputLayer((4,)), L.Dense(5, kernel_regularizer="l2"), L.ReLU()])
    )
    inputs = tf.keras.Input((4,))
    return tf.keras.Model(inputs, L.Dense(3)(inner(L.Dense(4)(inputs))))


class _WithAWeight(tf.keras.Model):
    """Holds a regularised weight itself, and one that is not trained."""

    def __init__(self):
        super().__init__()
        self.last = L.Dense(3)
        self.scale = self.add_weight(
            "scale", (4,), regularizer=tf.keras.regularizers.L2(0.3), initializer="ones"
        )
        self.shift = self.add_weight(
            "shift", (4,), regularizer="l1", initializer="ones", trainable=False
        )

    def call(self, inputs):
        return self.last(inputs * self.scale + self.shift)


def subclassed():
    model = _WithAWeight()
    model(X)
    return model


MODELS = [pretrained, frozen_in_the_middle, normalized, batch_normalized, nested, subclassed]
LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def made(make):
    tf.keras.utils.set_random_seed(1)
    model = make()
    model.compile(tf.keras.optimizers.SGD(RATE), LOSS)
    return model


def run(model, folder, **changes):
    task = Task(
        "mine",
        ArrayFederatedData(X, Y, [np.arange(24)]),
        None,
        Examples(X, Y),
        lambda seed: model,
        LOSS,
        {"accuracy": "accuracy"},
        "accuracy",
    )
    settings = {"clients_per_round": 1, "client_batch_size": 24, "client_learning_rate": RATE}
    return one_round(task, folder, **({**settings, "runtime": "tff"} | changes))


class _OfTheLast(tf.keras.Model):
    @property
    def trainable_variables(self):
        return super().trainable_variables[2:]


class _OfTheLastAndOthers(_OfTheLast):
    @property
    def non_trainable_variables(self):
        return super().trainable_weights[:2]


def _overriding(kind):
    inputs = tf.keras.Input((4,))
    return kind(inputs, L.Dense(3)(L.Dense(4)(inputs)))


def test_weights_that_are_in_no_list_are_refused():
    with pytest.raises(ModelError, match=r"\(_OfTheLast\) overrides its lists of variables") as e:
        tff_algos.from_keras(_overriding(_OfTheLast), loss=LOSS)
    assert "\n" not in str(e.value)


def test_a_model_may_list_its_variables_itself(tmp_path):
    model = made(lambda: _overriding(_OfTheLastAndOthers))
    result = run(model, str(tmp_path), runtime="vectorized")
    first = [np.array(w) for w in model.get_weights()[:2]]
    model.fit(X, Y, batch_size=24, verbose=0)
    for ours, keras in zip(result.weights, model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, keras, rtol=1e-5, atol=1e-6)
    for ours, before in zip(result.weights[:2], first, strict=True):
        np.testing.assert_array_equal(ours, before)


@pytest.mark.quick_cases("pretrained", "subclassed", "batch_normalized")
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_a_run_is_keras_step_and_its_weights_can_be_put_back(make, tmp_path):
    """Penalties of frozen weights are in the losses, before and after the step."""
    keras_model = made(make)
    before = keras_model.evaluate(X, Y, verbose=0)
    result = run(keras_model, tmp_path)
    want = made(make)
    want.fit(X, Y, batch_size=24, shuffle=False, verbose=0)
    keras_model.set_weights(result.weights)
    for got, wanted in zip(keras_model.get_weights(), want.get_weights(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    after = keras_model.evaluate(X, Y, verbose=0)
    rows = result.rounds
    np.testing.assert_allclose(rows["train/loss"].iloc[-1], before, rtol=1e-5)
    np.testing.assert_allclose(rows["eval/loss"], [before, after], rtol=1e-5)
    # Of the finished run, too.
    again = run(made(make), tmp_path).weights
    for got, wanted in zip(again, result.weights, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.quick_cases("*-pretrained", "tff-normalized")
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("runtime", runtimes.RUNTIMES)
def test_model_weights_of_tffs_go_round(make, runtime):
    """Frozen weights come out, and go in again or may be left out."""
    keras_model = made(make)
    spec = tf.TensorSpec([None, 4])
    model = tff_algos.from_keras(keras_model, loss=LOSS, x_spec=spec)
    process = tff_algos.build("fedavg", model, client_learning_rate=RATE)
    halves = tff.learning.models.ModelWeights(
        [w.numpy() / 2 for w in keras_model.trainable_weights],
        [w.numpy() for w in keras_model.non_trainable_weights],
    )
    with shared.installed(runtime):
        state = process.initialize()
        first = process.get_model_weights(state)
        for non_trainable in (halves.non_trainable, []):
            given = tff.learning.models.ModelWeights(halves.trainable, non_trainable)
            got = process.get_model_weights(process.set_model_weights(state, given))
            tf.nest.map_structure(
                np.testing.assert_array_equal,
                [*got.trainable, *got.non_trainable],
                [*halves.trainable, *halves.non_trainable],
            )
        again = process.get_model_weights(process.set_model_weights(state, first))
        assert len(again.non_trainable) == len(keras_model.non_trainable_weights)
        # As of TFF's own processes.
        other = made(make)
        other.set_weights([0 * w for w in other.get_weights()])
        again.assign_weights_to(other)
        tf.nest.map_structure(
            np.testing.assert_array_equal, other.get_weights(), keras_model.get_weights()
        )


def test_model_weights_within_a_computation_of_tffs():
    process = tff_algos.build(
        "fedavg", tff_algos.from_keras(made(pretrained), loss=LOSS), client_learning_rate=RATE
    )
    state_type = process.initialize.type_signature.result.member

    @tff.federated_computation(state_type)
    def there_and_back(state):
        return process.get_model_weights(
            process.set_model_weights(state, process.get_model_weights(state))
        )

    with shared.installed("tff"):
        state = process.initialize()
        got, want = there_and_back(state), process.get_model_weights(state)
    for a, b in ((got.trainable, want.trainable), (got.non_trainable, want.non_trainable)):
        tf.nest.map_structure(np.testing.assert_array_equal, list(a), list(b))
    assert len(want.non_trainable) == 2


@pytest.mark.parametrize("change", ["values", "number"])
def test_other_frozen_weights_are_refused(change):
    """A process cannot take them: they are constants of its graphs."""
    process = tff_algos.build(
        "fedavg", tff_algos.from_keras(made(pretrained), loss=LOSS), client_learning_rate=RATE
    )
    with shared.installed("tff"):
        state = process.initialize()
        weights = process.get_model_weights(state)
        frozen = [w + 1 for w in weights.non_trainable] if change == "values" else [np.ones(3)]
        other = tff.learning.models.ModelWeights(weights.trainable, frozen)
        with pytest.raises(ValueError, match=r"non-trainable weights differ .* build a process"):
            process.set_model_weights(state, other)


def _returns_other_statistics(model):
    def callback(done):
        weights = [np.array(w) for w in done.weights]
        weights[4] += 5.0  # The moving mean.
        return weights

    return callback


def _assigns_statistics(model):
    def callback(done):
        model.layers[1].moving_mean.assign_add(np.ones(6))

    return callback


def _unfreezes(model):
    def callback(done):
        model.layers[1].trainable = True

    return callback


def _freezes(model):
    def callback(done):
        model.layers[0].trainable = False

    return callback


WITHOUT_EFFECT = {
    _returns_other_statistics: "after_round returned another value of weight 4, which does not",
    _assigns_statistics: "a callback changed the model's weight 'batch_norm.*moving_mean:0', which",
    _unfreezes: "a callback changed which weights of the model are trainable, which does not",
    _freezes: "a callback changed which weights of the model are trainable, which does not",
}


@pytest.mark.parametrize("callback", WITHOUT_EFFECT, ids=lambda make: make.__name__)
def test_changes_of_a_callback_that_have_no_effect_are_refused(callback, tmp_path):
    model = made(batch_normalized)
    with pytest.raises(HparamError, match=f"^callbacks: {WITHOUT_EFFECT[callback]}") as e:
        run(
            model,
            tmp_path,
            runtime="per_client",
            callbacks=[callback(model)],
            evaluators={"sum": lambda weights: float(sum(np.sum(w) for w in weights))},
        )
    assert "\n" not in str(e.value)


def test_a_callback_may_use_the_model_and_replace_weights_that_train(tmp_path):
    model = made(batch_normalized)
    model.layers[1].moving_mean.assign(np.arange(6.0))

    def callback(done):
        model.set_weights(done.weights)
        model.predict(X, verbose=0)
        weights = [np.array(w) for w in done.weights]
        weights[0] = np.full((4, 6), 0.25)
        return weights

    kept = model.get_weights()[4]
    result = run(model, tmp_path, runtime="per_client", callbacks=[callback])
    np.testing.assert_array_equal(result.weights[0], np.full((4, 6), 0.25, np.float32))
    np.testing.assert_array_equal(result.weights[4], kept)
    assert result.rounds["train/weights_replaced"].iloc[-1] == 1
