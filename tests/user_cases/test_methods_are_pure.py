"""A user's method draws from seeds and keeps no variables, or its runs could not be repeated."""

import functools
import random

import numpy as np
import pytest
import tensorflow as tf

import simulation
import tff_algos
from simulation import runtimes
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tff_algos import averaging, client, purity
from tff_algos import random as seeded

SETTINGS = {
    "algorithm": "noisy_of_mine",
    "task": "toy",
    "total_rounds": 2,
    "clients_per_round": 3,
    "client_batch_size": 4,
    "client_learning_rate": 0.1,
}
RNG = np.random.default_rng(1)
GENERATOR = tf.random.Generator.from_seed(1)


def at_client(draw):
    """Federated averaging whose clients scale their updates by a draw."""

    def build(model, local):
        def client_update(broadcast, data):
            x, rate = broadcast
            trained = client.train(model, local.optimizer(), rate, x, data)
            delta = (1.0 + draw(data)) * (trained.weights - x)
            return averaging.ClientResult(trained, delta, finite=client.is_finite(delta))

        return averaging.build(model, local, client_update)

    return build


def at_start(draw):
    """Federated averaging whose first weights are scaled by a draw."""

    def build(model, local):
        method = at_client(lambda data: 0.0)(model, local)

        def initialize():
            state = method.initialize()
            scale = 1.0 + draw(None)
            return state._replace(weights=tuple(scale * w for w in state.weights))

        return method._replace(initialize=initialize)

    return build


def run(monkeypatch, root, build, **settings):
    spec = tff_algos.MethodSpec(
        name="noisy_of_mine", summary="", paper="", builder=build, server_learning_rate=1.0
    )
    monkeypatch.setitem(tff_algos.registry._SPECS, spec.name, spec)
    return simulation.run(**{**SETTINGS, "root_output_dir": root, **settings})


@pytest.mark.parametrize("runtime", ["per_client", "vectorized", "tff"])
@pytest.mark.parametrize("where", [at_client, at_start])
def test_a_draw_without_a_seed_is_refused(monkeypatch, tmp_path, where, runtime):
    told = "^A function of the method uses RandomStandardNormal, which no seed controls"
    build = where(lambda data: tf.random.normal([]))
    with pytest.raises(purity.MethodError, match=told):
        run(monkeypatch, tmp_path, build, runtime=runtime)


@pytest.mark.parametrize("runtime", ["per_client", "vectorized", "tff"])
def test_a_draw_while_the_graph_is_made_is_refused(monkeypatch, tmp_path, runtime):
    told = "^A function of the method drew from numpy.random while its graph was made"
    build = at_client(lambda data: np.random.normal())
    with pytest.raises(purity.MethodError, match=told):
        run(monkeypatch, tmp_path, build, runtime=runtime)


@pytest.mark.parametrize("runtime", ["per_client", "vectorized", "tff"])
def test_draws_from_the_clients_seed_are_the_same_in_every_run(monkeypatch, tmp_path, runtime):
    build = at_client(lambda data: seeded.uniform([], data.seed))
    first = run(monkeypatch, tmp_path / "first", build, runtime=runtime)
    again = run(monkeypatch, tmp_path / "again", build, runtime=runtime)
    plain = run(monkeypatch, tmp_path / "plain", at_client(lambda data: 0.0), runtime=runtime)
    assert all(map(np.array_equal, first.weights, again.weights))
    assert not all(map(np.array_equal, first.weights, plain.weights))


class Noisy:
    def __init__(self):
        self.rng = np.random.RandomState(1)

    def draw(self):
        return self.rng.uniform()


def closure():
    rng = np.random.default_rng(1)
    return lambda: rng.uniform()


def helper():
    return RNG.uniform()


DRAWS = {
    "Python's random": random.random,
    "numpy.random": np.random.uniform,
    "a numpy Generator": closure(),
    "a numpy Generator ": lambda: helper(),
    "a numpy RandomState": Noisy().draw,
    "a random Random": functools.partial(random.Random.uniform, random.Random(1), 0.0, 1.0),
}
OPERATIONS = {
    "RandomUniform": lambda: tf.random.uniform([], seed=1),
    "RandomShuffle": lambda: tf.random.shuffle([1.0, 2.0])[0],
    "RngReadAndSkip": lambda: GENERATOR.uniform([]),
    "RandomGamma": lambda: tf.cond(
        tf.constant(True), lambda: tf.random.gamma([], 1.0), lambda: 0.0
    ),
    "Timestamp": lambda: tf.timestamp(),
}


def _drawn(call, **options):
    draw = functools.partial(np.random.normal, size=())
    return lambda data: tf.reshape(call(lambda: np.float32(draw()), [], tf.float32, **options), [])


PYTHON = {
    "PyFunc": _drawn(tf.numpy_function),
    "PyFuncStateless": _drawn(tf.numpy_function, stateful=False),
    "EagerPyFunc": _drawn(tf.py_function),
}


def test_calls_of_python_are_refused_in_a_method_and_taken_in_a_loss(monkeypatch, tmp_path):
    for op, draw in PYTHON.items():
        told = rf"^A function of the method calls Python from its graph \({op}\), where nothing"
        with pytest.raises(purity.MethodError, match=told):
            run(monkeypatch, tmp_path, at_client(draw), runtime="per_client")
        with pytest.raises(purity.MethodError, match=told):
            run(monkeypatch, tmp_path, at_start(draw), runtime="per_client")
    told = r"^A function of the method calls Python from its graph \(PyFunc\)"
    with pytest.raises(purity.MethodError, match=told):
        run(monkeypatch, tmp_path, at_client(PYTHON["PyFunc"]), runtime="tff")

    squares = tf.keras.losses.MeanSquaredError()

    def in_python(y, outputs):
        values = tf.py_function(lambda y, o: (y - o)[:, 0] ** 2, [y, outputs], tf.float32)
        return tf.ensure_shape(values, outputs.shape[:1])

    x = np.arange(12.0, dtype=np.float32).reshape(6, 2) / 10
    y = x.sum(1, keepdims=True)
    trained = []
    for loss in (in_python, squares):
        tf.keras.utils.set_random_seed(1)
        keras_model = tf.keras.Sequential([tf.keras.layers.InputLayer((2,))])
        keras_model.add(tf.keras.layers.Dense(1))
        y_spec = tf.TensorSpec([None, 1])
        model = tff_algos.from_keras(keras_model, loss=loss, y_spec=y_spec)
        assert model.calls_python == (loss is in_python)
        process = tff_algos.build("fedavg", model, client_learning_rate=0.1)
        with runtimes.installed("per_client"):
            bound = runtimes.bind(process)
            data = [tff_algos.batch_client(x, y, batch_size=3)]
            trained.append(bound.next(bound.initialize(), data).state.weights)
    for a, b in zip(*trained, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def traced(function):
    def flat():
        with purity.required(function):
            return tf.convert_to_tensor(function())

    return tf.function(flat, autograph=False).get_concrete_function()


@pytest.mark.parametrize("name", DRAWS)
def test_generators_are_found_where_functions_keep_them(name):
    with pytest.raises(purity.MethodError, match=f" drew from {name.strip()} while"):
        traced(DRAWS[name])


@pytest.mark.parametrize("op", OPERATIONS)
def test_operations_that_draw_are_found(op):
    with pytest.raises(purity.MethodError, match=f" uses {op}, which no seed controls"):
        traced(OPERATIONS[op])


def test_a_variable_that_clients_change_is_refused(monkeypatch, tmp_path):
    counter = tf.Variable(0.0)
    build = at_client(lambda data: counter.assign_add(1.0))
    with pytest.raises(purity.MethodError, match=r"changes a variable \(AssignAddVariableOp\)"):
        run(monkeypatch, tmp_path, build, runtime="per_client")
    read = run(monkeypatch, tmp_path, at_client(lambda data: counter), runtime="per_client")
    assert len(read.rounds) == 3 and counter.numpy() == 0.0


def test_what_draws_from_a_seed_or_not_at_all_is_not_refused():
    unused = np.random.default_rng(1)
    assert unused.uniform() != unused.uniform()
    for function in (
        lambda: seeded.normal([2], tf.constant([1, 2])),
        lambda: tf.random.stateless_uniform([2], [1, 2]),
        lambda: tf.constant(1.0 if unused is None else 2.0),
        tf.function(lambda: tf.constant(1.0)),
    ):
        traced(function)
