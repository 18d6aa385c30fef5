"""What `build` takes as a model: TFF's, Keras's, functions of either; and clients as data sets."""

import collections
import re
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from simulation import runtimes
from tests.oracles import problem as problem_lib
from tests.tff_algos import shared, toy
from tff_algos import tff_models
from tff_algos.client_data import Batch
from tff_algos.model import ModelError
from tff_suite.hparams import HparamError

RATES = {"client_learning_rate": 0.1}
SPEC = (tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32))
NAMED_SPEC = collections.OrderedDict(x=SPEC[0], y=SPEC[1])
SPARSE = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def problem():
    return shared.problem()


def weights_of(problem):
    return [w.astype(np.float32) for w in problem.initial_weights]


def functional(problem, spec=SPEC):
    @tf.function
    def predict(weights, x, training):
        kernel, bias = weights[0]
        return tf.matmul(x, kernel) + bias

    def loss(outputs, y, sample_weight=None):
        return SPARSE(y, outputs, sample_weight)

    return tff.learning.models.FunctionalModel(
        initial_weights=(tuple(weights_of(problem)), ()),
        predict_on_batch_fn=predict,
        loss_fn=loss,
        input_spec=spec,
    )


class _Variables(NamedTuple):
    kernel: tf.Variable
    bias: tf.Variable
    num_examples: tf.Variable
    loss_sum: tf.Variable


class Tutorial(tff.learning.models.VariableModel):
    """A model as in TFF's tutorials, with metrics in variables."""

    def __init__(self):
        kernel, bias = weights_of(problem_lib.make_problem())
        self._variables = _Variables(
            tf.Variable(kernel),
            tf.Variable(bias),
            tf.Variable(0.0, trainable=False),
            tf.Variable(0.0, trainable=False),
        )

    @property
    def trainable_variables(self):
        return [self._variables.kernel, self._variables.bias]

    @property
    def non_trainable_variables(self):
        return []

    @property
    def local_variables(self):
        return [self._variables.num_examples, self._variables.loss_sum]

    @property
    def input_spec(self):
        return NAMED_SPEC

    @tf.function
    def predict_on_batch(self, x, training=True):
        return tf.matmul(x, self._variables.kernel) + self._variables.bias

    @tf.function
    def forward_pass(self, batch_input, training=True):
        v = self._variables
        outputs = tf.matmul(batch_input["x"], v.kernel) + v.bias
        loss = SPARSE(batch_input["y"], outputs)
        number = tf.cast(tf.shape(outputs)[0], tf.float32)
        v.num_examples.assign_add(number)
        v.loss_sum.assign_add(loss * number)
        return tff.learning.models.BatchOutput(
            loss=loss, predictions=outputs, num_examples=tf.shape(outputs)[0]
        )

    @tf.function
    def report_local_unfinalized_metrics(self):
        return collections.OrderedDict(loss=[self._variables.loss_sum])

    def metric_finalizers(self):
        return collections.OrderedDict(loss=tf.function(lambda x: x[0]))

    @tf.function
    def reset_metrics(self):
        self._variables.loss_sum.assign(0.0)


def from_keras_model(problem, **options):
    return tff.learning.models.from_keras_model(
        toy.keras_model(problem),
        input_spec=SPEC,
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        **{"loss": SPARSE, **options},
    )


def compiled(problem, **options):
    model = toy.keras_model(problem)
    model.compile(loss=SPARSE, metrics=[tf.keras.metrics.SparseCategoricalAccuracy()], **options)
    return model


MODELS = {
    "FunctionalModel": functional,
    "FunctionalModel of Keras": lambda problem: tff.learning.models.functional_model_from_keras(
        toy.keras_model(problem), SPARSE, SPEC
    ),
    "model_from_functional": lambda problem: tff.learning.models.model_from_functional(
        functional(problem)
    ),
    "VariableModel of Keras": from_keras_model,
    "VariableModel": lambda problem: Tutorial(),
    "model_fn": lambda problem: lambda: from_keras_model(problem),
    "model_fn of Keras": lambda problem: lambda: compiled(problem),
    "compiled Keras model": compiled,
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_is_the_same_function(problem, kind):
    """Loss, gradient and what a padded example adds, beside `from_keras`."""
    want = toy.toy_model(problem)
    got = tff_models.as_model(MODELS[kind](problem))
    x, y = problem.clients[2]
    batch = Batch(
        tf.constant(np.vstack([x[:3], np.full([1, 3], 7.0)]).astype(np.float32)),
        tf.constant([*y[:3], 0], tf.int32),
        tf.constant([1.0, 1.0, 1.0, 0.0]),
    )
    for a, b in zip(got.initial_weights, want.initial_weights, strict=True):
        np.testing.assert_array_equal(a, b)

    @tf.function(autograph=False)
    def forward(model_forward, *weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            result = model_forward(weights, batch, True, tf.zeros([2], tf.int32))
        values, counts = result.metrics["loss"]
        return (
            result.objective,
            tf.reduce_sum(values) / tf.reduce_sum(counts),
            *tape.gradient(result.objective, weights),
        )

    results = [forward(m.forward, *map(tf.constant, m.initial_weights)) for m in (got, want)]
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


KO = tf.keras.optimizers


@pytest.mark.parametrize(
    ("optimizer", "named", "says"),
    [
        ("rmsprop", None, None),
        ("sgd", None, None),
        ("adam", "adam", None),
        (KO.SGD(0.1, momentum=0.9), "sgdm", None),
        ("adam", None, r"Adam\(\)"),
        (KO.SGD(0.1, momentum=0.9), None, r"SGD\(momentum=0.9\)"),
        (KO.SGD(0.1, clipnorm=1.0), "sgd", r"SGD\(clipnorm=1.0\)"),
        (KO.legacy.SGD(0.1, decay=0.01), "sgd", r"SGD\(decay=0.01\)"),
        (
            KO.Adam(weight_decay=0.1, use_ema=True),
            "adam",
            r"Adam\(weight_decay=0.1, use_ema=True\)",
        ),
        (KO.SGD(KO.schedules.ExponentialDecay(0.1, 9, 0.9)), "sgd", r"SGD\(learning_rate=Exp"),
    ],
)
def test_a_compiled_optimizer_that_plays_no_part_is_told(problem, optimizer, named, says):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        tff_algos.build(
            "fedavg",
            lambda: compiled(problem, optimizer=optimizer),
            client_optimizer=named,
            client_learning_rate=0.1,
        )
    told = [str(t.message) for t in told if "is not used" in str(t.message)]
    assert len(told) == bool(says)
    if says:
        assert re.search(f"is compiled with {says}", told[0])


@pytest.mark.parametrize("is_functional", [False, True])
def test_a_model_made_before_one_in_a_graph_is_taken(is_functional):
    """TFF's builders make a model in a graph, after which Keras takes earlier ones for TF1's."""

    def dense():
        x = tf.keras.Input([4])
        layers = [x, tf.keras.layers.Dense(3)]
        return tf.keras.Model(x, layers[1](x)) if is_functional else tf.keras.Sequential(layers)

    keras_model = dense()
    with tf.Graph().as_default():
        dense()
    model = tff_algos.from_keras(keras_model, loss="mse")
    x = np.ones((2, 4), np.float32)
    batch = Batch(tf.constant(x), tf.constant(x[:, :3]), tf.ones(2))
    objective = model.forward(
        model.initial_weights, batch, False, tf.zeros([2], tf.int32)
    ).objective
    np.testing.assert_allclose(objective, np.mean((keras_model(x) - 1) ** 2), rtol=1e-6)
    with shared.installed("tff"):
        process = tff_algos.build("fedavg", model, client_learning_rate=0.1)
        with tf.Graph().as_default():
            dense()
        client = tff_algos.batch_client(x, x[:, :3], batch_size=2)
        output = process.next(process.initialize(), [client])
    np.testing.assert_allclose(output.metrics["loss"], objective, rtol=1e-6)


def test_loss_weights_of_one_change_nothing(problem):
    for weights in (1, [1.0]):
        model = tff_models.as_model(compiled(problem, loss_weights=weights, weighted_metrics=[]))
        assert model.metric_names == ("loss", "sparse_categorical_accuracy")


@pytest.mark.quick_cases("FunctionalModel")
@pytest.mark.parametrize("kind", ["FunctionalModel", "VariableModel", "compiled Keras model"])
def test_data_sets_go_straight_into_next(problem, kind):
    """As `build_weighted_fed_avg` takes them, also with the int64 and float64 of NumPy."""
    pairs = [(x.astype(np.float64), y.astype(np.int64)) for x, y in problem.clients]
    clients = [tf.data.Dataset.from_tensor_slices(pair).batch(3) for pair in pairs]
    with shared.installed("tff"):
        process = tff_algos.build("fedavg", MODELS[kind](problem), **RATES)
        plain = tff_algos.build("fedavg", toy.toy_model(problem), **RATES)
        narrow = [
            tf.data.Dataset.from_tensor_slices((x.astype(np.float32), y.astype(np.int32))).batch(3)
            for x, y in problem.clients
        ]
        want = plain.next(plain.initialize(), [tff_algos.from_dataset(d) for d in narrow])
        got = process.next(process.initialize(), clients)
    for a, b in zip(got.state.weights, want.state.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert float(got.metrics["loss"]) == pytest.approx(float(want.metrics["loss"]), rel=1e-5)


@pytest.mark.quick_cases("VariableModel of Keras")
@pytest.mark.parametrize("kind", ["FunctionalModel of Keras", "VariableModel of Keras"])
def test_models_that_tff_made_of_keras_run_over_the_whole_cohort(problem, kind):
    process = tff_algos.build("fedavg", MODELS[kind](problem), **RATES)
    clients = [toy.client_data(problem, 0, k) for k in range(len(problem.clients))]
    weights = []
    for runtime in ("vectorized", "tff"):
        with shared.installed(runtime):
            bound = runtimes.bind(process)
            weights.append(bound.next(bound.initialize(), clients).state.weights)
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_labels_that_do_not_fit_are_refused(problem):
    process = tff_algos.build("fedavg", toy.plain_model(problem), **RATES)
    data = toy.client_data(problem, 0, 1)
    data = data._replace(y=data.y.astype(np.int64) + 2**40)
    with shared.installed("tff"), pytest.raises(ValueError, match="Client 0: y holds numbers that"):
        process.next(process.initialize(), [data])


class _Hidden(Tutorial):
    """Its variables are where nothing can take their place."""

    def __init__(self):
        super().__init__()
        held = self._variables
        del self._variables
        type(self)._variables = held


class _Drawing(Tutorial):
    """Draws in one mode."""

    def __init__(self, draws_in_training):
        super().__init__()
        self._mode = draws_in_training

    @tf.function
    def forward_pass(self, batch_input, training=True):
        output = Tutorial.forward_pass.python_function(self, batch_input, training)
        noise = tf.random.uniform([]) if training == self._mode else 0.0
        return output._replace(loss=output.loss + noise)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda p: object(), "model must be a tff_algos.Model .* found a object"),
        (lambda p: toy.keras_model(p), "has no loss: compile it with one, or use"),
        (lambda p: compiled(p, loss_weights=[0.0]), "loss_weights=.0.0., .*: leave them out"),
        (lambda p: compiled(p, loss_weights=0.5), "loss_weights=0.5, .*: leave them out"),
        (
            lambda p: compiled(p, weighted_metrics=["sparse_categorical_crossentropy"]),
            "weighted_metrics=, .*: compile it with metrics= instead",
        ),
        (
            lambda p: from_keras_model(p, loss=[SPARSE], loss_weights=[0.5]),
            "loss_weights=.0.5., .*: leave them out",
        ),
        (lambda p: _Hidden(), "is not stored in an attribute"),
        (lambda p: functional(p, ((SPEC[0], SPEC[0]), SPEC[1])), "x must be one batch"),
    ],
)
def test_refusals_are_one_line(problem, model, says):
    with pytest.raises(ModelError, match=says) as e:
        tff_algos.build("fedavg", model(problem), **RATES)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_that_draws_is_refused_by_name(training):
    with pytest.raises(ModelError, match="stateful operation RandomUniform"):
        tff_models.as_model(_Drawing(training))


O = tff.learning.optimizers  # noqa: E741


@pytest.mark.quick_cases("word0-given0")
@pytest.mark.parametrize(
    ("word", "given"),
    [
        ({"client_optimizer": "sgdm"}, O.build_sgdm(0.1, momentum=0.9)),
        ({"client_optimizer": "adam", "client_epsilon": 1e-3}, O.build_adam(0.1, epsilon=1e-3)),
    ],
)
def test_a_client_optimizer_of_tff_is_its_words(problem, word, given):
    with shared.installed("tff"):
        results = [
            toy.run(tff_algos.build("fedprox", toy.plain_model(problem), **settings), problem)
            for settings in (
                {**word, "client_learning_rate": 0.1},
                {"client_optimizer": given},
                {"client_optimizer": given, "client_learning_rate": 0.3},
            )
        ]
    words, objects, other_rate = (states[-1].weights for states, _ in results)
    for a, b, c in zip(words, objects, other_rate, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.allclose(a, c)


def test_a_server_optimizer_of_tff_is_tffs_own_averaging(problem):
    server = O.build_adam(0.05, epsilon=1e-2)
    theirs = tff.learning.algorithms.build_weighted_fed_avg(
        lambda: from_keras_model(problem),
        client_optimizer_fn=O.build_sgdm(0.1),
        server_optimizer_fn=server,
    )
    clients = [
        tf.data.Dataset.from_tensor_slices((x.astype(np.float32), y.astype(np.int32))).batch(3)
        for x, y in problem.clients
    ]
    with shared.installed("tff"):
        ours = tff_algos.build("fedavg", toy.plain_model(problem), server_optimizer=server, **RATES)
        state, their_state = ours.initialize(), theirs.initialize()
        their_state = theirs.set_model_weights(their_state, ours.get_model_weights(state))
        for _ in range(3):
            state = ours.next(state, clients).state
            their_state = theirs.next(their_state, clients).state
        want = theirs.get_model_weights(their_state).trainable
    for a, b in zip(state.weights, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


class _OwnSgd(O.Optimizer):
    """Gradient steps whose length is a function of the learning rate in the state."""

    def __init__(self, length):
        self._length = length

    def initialize(self, specs):
        return collections.OrderedDict(learning_rate=0.1)

    def next(self, state, weights, gradients):
        length = self._length(state["learning_rate"])
        return state, tf.nest.map_structure(lambda w, g: w - length * g, weights, gradients)


def test_an_own_optimizer_steps_by_the_rate_that_is_set(problem):
    given = {"client_optimizer": _OwnSgd(lambda rate: rate), "client_learning_rate": 0.3}
    results = [
        toy.run(tff_algos.build("fedavg", toy.plain_model(problem), **settings), problem)
        for settings in (given, {"client_learning_rate": 0.3})
    ]
    own, words = (states[-1].weights for states, _ in results)
    for a, b in zip(own, words, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        (
            "fedavg",
            {"client_optimizer": _OwnSgd(lambda rate: 0.1), "client_learning_rate": 0.3},
            "=_OwnSgd takes the same step at every learning_rate in its state",
        ),
        (
            "fedavg",
            {"client_optimizer": 3},
            "client_optimizer=int must be the name of an optimizer",
        ),
        (
            "scaffold",
            {"client_optimizer": O.build_adam(0.1)},
            "=_Adam is not supported by scaffold",
        ),
        (
            "fedavg",
            {"client_optimizer": O.build_adafactor(0.1)},
            "has no learning_rate in its state",
        ),
        (
            "fedavg",
            {"client_optimizer": O.build_adam(0.1), "client_optimizer_state": "keep"},
            "starts afresh every round",
        ),
        ("fedadam", {"server_optimizer": O.build_adam(0.1), **RATES}, "use fedavg"),
        ("fedavg", {"server_optimizer": "adam", **RATES}, "=str must be a tff.learning.optimizers"),
        (
            "fedavg",
            {"server_optimizer": O.build_adam(0.1), "server_learning_rate": 1.0, **RATES},
            "server_learning_rate is not used with server_optimizer=_Adam",
        ),
    ],
)
def test_optimizers_are_refused_in_one_line(problem, name, settings, says):
    with pytest.raises(HparamError, match=says) as e:
        tff_algos.build(
            name,
            toy.plain_model(problem),
            num_clients=5,
            **{"server_learning_rate": 1.0 if name == "fedadam" else None, **settings},
        )
    assert "\n" not in str(e.value)
