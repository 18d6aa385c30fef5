"""A user's own models of TFF: trained as by hand, or refused where a weight or count is lost."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from simulation import runtimes
from tff_algos import tff_models
from tff_algos.model import ModelError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 4)).astype(np.float32)
Y = (np.arange(6) % 3).astype(np.int32)
RATE = 0.1
SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 4]), y=tf.TensorSpec([None], tf.int32))
LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
KERNEL, BIAS = RNG.normal(size=(4, 3)).astype(np.float32), np.zeros(3, np.float32)


def dense():
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((4,)), tf.keras.layers.Dense(3)])
    model.set_weights([KERNEL, BIAS])
    return model


class Linear(tff.learning.models.VariableModel):
    """A linear model that holds its weights itself."""

    def __init__(self, count=lambda batch: tf.shape(batch["x"])[0]):
        self._kernel, self._bias = tf.Variable(KERNEL), tf.Variable(BIAS)
        self._count = count

    @property
    def trainable_variables(self):
        return [self._kernel, self._bias]

    @property
    def non_trainable_variables(self):
        return []

    @property
    def local_variables(self):
        return []

    @property
    def input_spec(self):
        return SPEC

    def predict_on_batch(self, x, training=True):
        return x @ self._kernel + self._bias

    def forward_pass(self, batch_input, training=True):
        outputs = self.predict_on_batch(batch_input["x"])
        return tff.learning.models.BatchOutput(
            loss=LOSS(batch_input["y"], outputs),
            predictions=outputs,
            num_examples=self._count(batch_input),
        )

    def report_local_unfinalized_metrics(self):
        return collections.OrderedDict()

    def metric_finalizers(self):
        return collections.OrderedDict()

    def reset_metrics(self):
        pass


class OfKeras(Linear):
    """Holds the variables in a list, but calls the Keras model that they belong to."""

    def __init__(self):
        super().__init__()
        self._model = dense()
        self._variables = list(self._model.trainable_variables)

    @property
    def trainable_variables(self):
        return self._variables

    def predict_on_batch(self, x, training=True):
        return self._model(x)


def step(model, runtime="per_client"):
    """Returns the weights after a round of one client with one batch, and the round's loss."""
    with runtimes.installed(runtime):
        process = runtimes.bind(tff_algos.build("fedavg", model, client_learning_rate=RATE))
        data = [tff_algos.batch_client(X, Y, batch_size=6)]
        output = process.next(process.initialize(), data)
    return [np.asarray(w) for w in output.state.weights], float(output.metrics["loss"])


def by_hand(scale=1.0):
    weights = [tf.Variable(KERNEL), tf.Variable(BIAS)]
    with tf.GradientTape() as tape:
        loss = LOSS(Y, scale * (X @ weights[0] + weights[1]))
    gradient = tape.gradient(loss, weights)
    return [(w - RATE * g).numpy() for w, g in zip(weights, gradient, strict=True)], float(loss)


def functional(weights, predict):
    return tff.learning.models.FunctionalModel(
        initial_weights=(weights, ()),
        predict_on_batch_fn=tf.function(predict),
        loss_fn=lambda output, label, sample_weight=None: LOSS(label, output),
        input_spec=SPEC,
    )


def assert_step(model, expected):
    (weights, loss), (wanted, wanted_loss) = step(model), expected
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    for a, b in zip(weights, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_weights_that_a_keras_model_inside_reads_are_refused():
    told = "^forward_pass of OfKeras reads the weight 'dense.*kernel:0' in another way than by"
    with pytest.raises(ModelError, match=told) as e:
        tff_models.as_model(OfKeras)
    assert "per_client" not in str(e.value) and "\n" not in str(e.value)


def number_of_labels(batch):
    return tf.reduce_sum(batch["y"])


def test_num_examples_other_than_the_rows_are_refused():
    told = "^forward_pass of Linear returned num_examples=3 for a batch of 6 rows, but methods"
    with pytest.raises(ModelError, match=told):
        tff_models.as_model(Linear(number_of_labels))
    with pytest.raises(ModelError, match="num_examples=6 for a batch of 3 rows"):
        tff_models.as_model(Linear(lambda batch: tf.constant(6)))


COUNTS = {
    "rows": lambda batch: tf.shape(batch["x"])[0],
    "rows as floats": lambda batch: tf.cast(tf.shape(batch["y"])[0], tf.float32),
    "none": lambda batch: None,
}


@pytest.mark.parametrize("count", COUNTS)
def test_the_rows_as_num_examples_train(count):
    assert_step(Linear(COUNTS[count]), by_hand())


def test_a_function_of_the_users_that_closes_over_a_keras_model_is_the_users():
    keras_model = dense()

    def predict(weights, x, training=True):
        kernel, bias = weights[0]
        # Named as in TFF's own function.
        return 2.0 * (x @ kernel + bias)[:, : keras_model.output_shape[-1]]

    assert_step(functional((KERNEL, BIAS), predict), by_hand(2.0))


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_weights_in_a_dictionary_keep_its_order(kind):
    def predict(weights, x, training=True):
        trainable, _ = weights
        return x @ trainable["kernel"] + trainable["bias"]

    weights = kind([("kernel", KERNEL), ("bias", BIAS)])
    assert_step(functional(weights, predict), by_hand())
