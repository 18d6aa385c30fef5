"""The processes as TFF's users meet them, and the refusals of `build`."""

import collections
import functools
import threading
import time
import warnings
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from simulation import runtimes
from simulation.engine import process as engine_lib
from tests.oracles import problem as problem_lib
from tests.tff_algos import shared, toy
from tff_algos import process as process_lib
from tff_algos import registry
from tff_suite.hparams import HparamError

_FEDOPT = ("fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi")
RATES = {"client_learning_rate": 0.1, "server_learning_rate": 1.0}


@pytest.fixture(scope="module")
def problem():
    return problem_lib.make_problem()


METHODS = [n for n in registry.names() if not registry.get(n).staged]
STOCK_LOOPS = [*shared.methods(METHODS, "tff"), *shared.methods(METHODS, "native")]


@pytest.mark.quick_cases(
    "tff-fedavg",
    "native-fedavg",
    "tff-adafed",
    "tff-scaffold",
    "tff-fedadam",
    "tff-fedfa",
    "tff-centralized",
    "tff-clipped_fedavg",
)
@pytest.mark.parametrize(("runtime", "name"), STOCK_LOOPS)
def test_runs_unchanged_in_a_stock_tff_loop(problem, runtime, name):
    """The loop of TFF's tutorials, from `tf.data` clients, beside TFF's own process."""
    with shared.installed(runtime):
        assert_runs_in_a_stock_loop(problem, shared.process(name))


def test_data_sets_within_tff_are_the_arrays_of_their_examples():
    """Padding of which no logarithm is finite, and a batch that a filter left empty."""
    layers = [
        tf.keras.layers.InputLayer((3,)),
        tf.keras.layers.Lambda(tf.math.log),
        tf.keras.layers.Dense(3, kernel_initializer="zeros"),
    ]
    model = tff_algos.from_keras(tf.keras.Sequential(layers), loss=toy.cross_entropy)
    process = tff_algos.build("fedavg", model, client_learning_rate=0.1)
    x = np.random.default_rng(0).uniform(1, 9, (11, 3)).astype(np.float32)
    y = np.arange(11, dtype=np.int32) % 3

    keep = np.arange(11) // 4 != 1

    def datasets():
        for n in (11, 7, 0):
            pairs = tf.data.Dataset.from_tensor_slices((x[:n], y[:n], keep[:n])).batch(4)
            yield pairs.map(lambda x, y, k: (tf.boolean_mask(x, k), tf.boolean_mask(y, k)))

    with shared.installed("tff"):
        within = tff_algos.from_datasets(process, 4)
        got = within.next(within.initialize(), list(datasets()))
        rows = [np.flatnonzero(keep[:n]) for n in (11, 7)]
        clients = [tff_algos.batch_client(x[r], y[r], batch_size=4, shuffle=False) for r in rows]
        want = process.next(process.initialize(), clients)
    assert (got.metrics["num_clients"], got.metrics["num_examples"]) == (3, 7 + 4)
    of_model = {"loss": got.metrics["loss"], "num_examples": 7 + 4}
    assert got.metrics["client_work"] == {"train": of_model}
    assert list(got.metrics) == [*want.metrics, "client_work"]
    assert got.metrics["clients_dropped"] == want.metrics["clients_dropped"] == 0
    for a, b in zip(got.state.weights, want.state.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def of_examples(x, y):
    return collections.OrderedDict(x=x, y=y)


DICTIONARIES = {
    "of an OrderedDict": of_examples,
    "of targets first": lambda x, y: collections.OrderedDict(y=y, x=x),
    "of a dict": lambda x, y: {"x": x, "y": y},
}


def data_sets_of(problem, make):
    return [
        tf.data.Dataset.from_tensor_slices((x.astype(np.float32), y.astype(np.int32)))
        .batch(3)
        .map(make)
        for x, y in problem.clients
    ]


@pytest.mark.xdist_group("fedavg")
@pytest.mark.parametrize("made", DICTIONARIES)
def test_dictionaries_of_x_and_y_are_pairs(problem, made):
    """The form of TFF's tutorials: straight into `next`, within TFF, and with ids for clients."""
    process = shared.process("fedavg")
    clients = data_sets_of(problem, DICTIONARIES[made])
    with shared.installed("tff"):
        for taking in (process, from_datasets()):
            start = taking.initialize()
            got = taking.next(start, clients)
            want = taking.next(start, data_sets_of(problem, lambda x, y: (x, y)))
            tf.nest.map_structure(np.testing.assert_array_equal, got, want)


@pytest.mark.xdist_group("fedavg")
def test_dictionaries_of_x_and_y_are_pairs_where_tff_makes_them(problem):
    taking = from_datasets()

    @tff.tensorflow.computation(np.int32)
    def dataset_of(number):
        x, y = (np.concatenate(parts) for parts in zip(*problem.clients, strict=True))
        pairs = tf.data.Dataset.from_tensor_slices((x.astype(np.float32), y.astype(np.int32)))
        return pairs.take(tf.cast(number, tf.int64)).batch(3).map(of_examples)

    composed = tff.simulation.compose_dataset_computation_with_learning_process(dataset_of, taking)
    with shared.installed("tff"):
        output = composed.next(composed.initialize(), [7, 2])
    assert output.metrics["num_examples"] == 9 and output.metrics["clients_dropped"] == 0


@functools.cache
def from_datasets():
    return tff_algos.from_datasets(shared.process("fedavg"), 3)


@pytest.mark.xdist_group("fedavg")
@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: {"pixels": x, "label": y},
        lambda x, y: {"x": x, "y": y, "weight": y},
        lambda x, y: x,
        lambda x, y: (x, y, y),
        lambda x, y: ({"pixels": x}, y),
        lambda x, y: (x, tf.cast(y, tf.int64)),
        lambda x, y: (x, y[0]),
        lambda x, y: (x, tf.sparse.from_dense(y)),
    ],
)
def test_data_sets_of_anything_else_are_refused_in_one_line(problem, make):
    clients = [*data_sets_of(problem, lambda x, y: (x, y))[:1], *data_sets_of(problem, make)[:1]]
    taking = from_datasets()
    with shared.installed("tff"):
        state = taking.initialize()
        with pytest.raises(ValueError, match=r"Client 1: .* map\(lambda e: ") as e:
            taking.next(state, clients)
    assert "\n" not in str(e.value)


def test_infinite_data_sets_are_refused(problem):
    clients = data_sets_of(problem, lambda x, y: (x, y))[:2]
    taking = from_datasets()
    with shared.installed("tff"):
        state = taking.initialize()
        with pytest.raises(ValueError, match="dataset is infinite"):
            taking.next(state, [clients[0], clients[1].repeat()])


@pytest.mark.parametrize("name", shared.methods(["fedavg", "lookahead", "centralized"]))
def test_data_sets_within_tff_cannot_show_that_they_follow_the_plan(name):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tff_algos.from_datasets(shared.process(name), 3)
    found = [str(w.message) for w in told if "follow process.plan" in str(w.message)]
    assert len(found) == (name != "fedavg")


@pytest.mark.parametrize("name", shared.methods(["scaffold", "afl"]))
def test_data_sets_within_tff_have_no_states_and_no_names(name):
    error, says = {
        "scaffold": (TypeError, "whose next also needs client states"),
        "afl": (ValueError, "Client 0 of the cohort has no index"),
    }[name]
    with pytest.raises(error, match=says) as e:
        tff_algos.from_datasets(shared.process(name), 3)
    assert "\n" not in str(e.value)


@pytest.mark.quick_cases("fedavg")
@pytest.mark.parametrize("name", shared.methods(METHODS))
def test_runs_from_a_function_that_makes_a_keras_model(problem, name):
    with shared.installed("tff"):
        process = tff_algos.build(
            name, lambda: toy.toy_model(problem), num_clients=len(problem.clients), **RATES
        )
        assert_runs_in_a_stock_loop(problem, process)


def assert_runs_in_a_stock_loop(problem, process):
    def datasets():
        for x, y in problem.clients:
            pairs = (x.astype(np.float32), y.astype(np.int32))
            yield tf.data.Dataset.from_tensor_slices(pairs).batch(3)

    stateful = process.method.client_state is not None
    assert isinstance(process, tff.templates.IterativeProcess)
    assert isinstance(process, tff.learning.templates.LearningProcess) != stateful
    state = process.initialize()
    kept = [[process.initial_client_state() for _ in problem.clients]] if stateful else []
    evaluation = tff.learning.models.ModelWeights
    for _ in range(2):
        result = process.next(
            state, [tff_algos.from_dataset(d, index=k) for k, d in enumerate(datasets())], *kept
        )
        state, metrics = result.state, result.metrics
        kept = [result.client_states] if stateful else []
    if stateful:
        assert [int(s.visits) for s in kept[0]] == [2] * len(problem.clients)
    weights = process.get_model_weights(state)
    assert isinstance(weights, evaluation) and isinstance(metrics, collections.OrderedDict)
    assert list(metrics)[:5] == [
        "loss", "accuracy", "num_examples", "num_clients", "clients_dropped",
    ]  # fmt: skip
    assert float(metrics["num_examples"]) == 25
    keras_model = toy.keras_model(problem)
    weights.assign_weights_to(keras_model)
    np.testing.assert_array_equal(keras_model.get_weights()[0], state.weights[0])
    zeros = evaluation([np.zeros_like(w) for w in weights.trainable], [])
    reset = process.set_model_weights(state, zeros)
    assert type(reset) is type(state) and int(reset.round_num) == 2
    assert not np.any(process.get_model_weights(reset).trainable[0])


@pytest.mark.parametrize("name", shared.methods(METHODS))
def test_the_first_state_is_of_the_type_that_is_promised_before_it_is_traced(name):
    process = shared.process(name)
    promised = process.initialize.type_signature
    traced = tff.tensorflow.computation(process.method.initialize).type_signature.result
    assert promised == tff.FunctionType(None, tff.FederatedType(traced, tff.SERVER))
    assert promised.result.member.python_container is traced.python_container


def test_fedavg_is_tffs_fedavg(problem):
    """An independent implementation of the same method: TFF's own, on the same batches."""
    spec = (tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32))

    def tff_model():
        return tff.learning.models.from_keras_model(
            toy.keras_model(problem),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=spec,
        )

    theirs = tff.learning.algorithms.build_weighted_fed_avg(
        tff_model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )
    datasets = [
        tf.data.Dataset.from_tensor_slices((x.astype(np.float32), y.astype(np.int32))).batch(3)
        for x, y in problem.clients
    ]
    with shared.installed("tff"):
        ours = tff_algos.build("fedavg", toy.toy_model(problem), **RATES)
        state, their_state = ours.initialize(), theirs.initialize()
        initial = ours.get_model_weights(state)
        their_state = theirs.set_model_weights(
            their_state, tff.learning.models.ModelWeights(initial.trainable, [])
        )
        for _ in range(3):
            state = ours.next(state, [tff_algos.from_dataset(d) for d in datasets]).state
            their_state = theirs.next(their_state, datasets).state
        got = ours.get_model_weights(state).trainable
        want = theirs.get_model_weights(their_state).trainable
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_fedavg_of_one_client_is_sgd(problem):
    """Limit: one client, one epoch, server rate 1 is an epoch of plain SGD."""
    _x, _y = problem.clients[4]
    data = toy.client_data(problem, 0, 4)
    kernel, bias = problem.initial_weights
    for xb, yb, mask in zip(data.x, data.y, data.mask, strict=True):
        xb, yb = xb[mask > 0].astype(np.float64), yb[mask > 0]
        g = problem_lib.gradient((kernel, bias), xb, yb)
        kernel, bias = kernel - 0.1 * g[0], bias - 0.1 * g[1]
    with shared.installed("tff"):
        process = tff_algos.build("fedavg", toy.toy_model(problem), **RATES)
        state = process.next(process.initialize(), [data]).state
    np.testing.assert_allclose(state.weights[0], kernel, atol=1e-6)
    np.testing.assert_allclose(state.weights[1], bias, atol=1e-6)


@pytest.mark.slow
def test_every_client_optimizer_builds_and_steps(problem):
    for name in registry.CLIENT_OPTIMIZERS:
        with shared.installed("tff"):
            process = tff_algos.build(
                "fedavg", toy.toy_model(problem), client_optimizer=name, **RATES
            )
            state = process.next(process.initialize(), [toy.client_data(problem, 0, 4)]).state
        assert np.any(state.weights[0] != problem.initial_weights[0].astype(np.float32)), name


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("fedsomething", RATES, "Unknown algorithm 'fedsomething'; known: .*fedavg"),
        ("fedavg", {}, "client_learning_rate must be set"),
        ("fedadam", {"client_learning_rate": 0.1}, "server_learning_rate must be set: fedadam"),
        ("fedavg", RATES | {"momentum": 0.5}, "fedavg has no setting 'momentum'"),
        ("fedavg", {"client_optimizer_fn": max}, "has no setting 'client_optimizer_fn'"),
        ("fedavgm", RATES | {"momentum": 1.0}, r"momentum=1.0 must be in \[0, 1\)"),
        ("fedadam", RATES | {"variant": "algorithm3"}, "one of released, algorithm2"),
        ("fedadam", RATES | {"tau": 0.0}, "tau=0.0 must be > 0"),
        ("fedadam", RATES | {"beta1": "0.9"}, "must be a number"),
        (
            "fedavg",
            RATES | {"client_momentum": 0.5},
            "client_momentum is not used with client_optimizer=sgd",
        ),
        (
            "fedavg",
            RATES | {"client_lr_decay_rate": 0.5},
            r"client_lr_decay_rate is not used with client_lr_schedule=constant \(.*exp_decay",
        ),
        ("fedavg", {"client_learning_rate": float("nan")}, "finite"),
        *(
            (name, RATES | {"num_clients": number}, "must be a whole number, at least 1")
            for name in METHODS
            if registry.get(name).needs_num_clients
            for number in (0, -1, 2.5, "5")
        ),
    ],
)
def test_refusals(name, settings, says):
    with pytest.raises(HparamError, match=says):
        tff_algos.build(name, lambda: pytest.fail("the model must not be built"), **settings)


NO_LISTS = {
    "iterator": (lambda data: iter(data), r"^{} is a list_iterator; .*: list\({}\)\.$"),
    "map": (lambda data: map(str, data), r"^{} is a map; .*: list\({}\)\.$"),
    "dictionary": (
        lambda data: dict(enumerate(data)),
        r"^{} is a dict; .*: list\({}\.values\(\)\)\.$",
    ),
    "one": (lambda data: data[0], r"^{} is a Client\w+; .*: \[{}\] for a single client\.$"),
    "array": (lambda data: np.zeros(2), r"^{} is a ndarray; .*: list\({}\)\.$"),
}


def _nexts(runtime, process):
    """Yields `next` of a process, and as a runtime executes it."""
    yield process.next
    with runtimes.installed(runtime):
        yield runtimes.bind(process).next


@pytest.mark.parametrize("runtime", ["per_client", "tff"])
@pytest.mark.parametrize("what", NO_LISTS)
def test_clients_and_their_states_are_in_lists(problem, what, runtime):
    """An iterator would be empty in the next round."""
    make, says = NO_LISTS[what]
    process = shared.process("scaffold")
    data = [toy.client_data(problem, 0, k) for k in (0, 1)]
    states = [process.initial_client_state()] * 2
    state = process.initialize()
    for call in _nexts(runtime, process):
        with pytest.raises(ValueError, match=says.replace("{}", "clients")):
            call(state, make(data), states)
        with pytest.raises(ValueError, match=says.replace("{}", "client_states")):
            call(state, data, make(states))
        with pytest.raises(ValueError, match="cohort of 2 clients needs as many states, found 1"):
            call(state, data, states[:1])
        with pytest.raises(ValueError, match=r"client 1 of the cohort is None; .*initial_client"):
            call(state, data, [states[0], None])


@pytest.mark.parametrize("runtime", ["per_client", "native"])
def test_a_bound_process_takes_data_sets(problem, runtime):
    """TFF's worker takes arrays only."""
    process = tff_algos.build("fedavg", toy.plain_model(problem), client_learning_rate=0.1)
    x, y = problem.clients[0]
    pairs = (x.astype(np.float32), y.astype(np.int32))
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        losses = [
            float(bound.next(bound.initialize(), clients).metrics["loss"])
            for clients in (
                [tf.data.Dataset.from_tensor_slices(pairs).batch(3)],
                [tff_algos.batch_client(*pairs, batch_size=3, shuffle=False)],
            )
        ]
    assert losses[0] == losses[1]


def test_fedavg_needs_no_server_learning_rate(problem):
    with shared.installed("tff"):
        process = tff_algos.build("fedavg", toy.plain_model(problem), client_learning_rate=0.1)
        given = tff_algos.build("fedavg", toy.plain_model(problem), **RATES)
        data = [toy.client_data(problem, 0, 4)]
        a, b = (p.next(p.initialize(), data).state for p in (process, given))
    np.testing.assert_array_equal(a.weights[0], b.weights[0])


def test_a_method_has_its_own_weighting_and_client_optimizers():
    """What a paper fixes is the method's default, and what has no meaning is refused."""
    spec = registry.MethodSpec(
        "m",
        "",
        "",
        "none:none",
        server_learning_rate=1.0,
        client_weighting="uniform",
        client_optimizers=("sgdm", "sgd"),
    )
    settings = registry.resolve_training(spec, {"client_learning_rate": 0.1})
    assert settings["client_weighting"] == "uniform" and settings["client_optimizer"] == "sgdm"
    given = {"client_learning_rate": 0.1, "client_weighting": "examples"}
    settings = registry.resolve_training(spec, given | {"client_optimizer": "sgd"})
    assert settings["client_weighting"] == "examples" and settings["client_optimizer"] == "sgd"
    with pytest.raises(
        HparamError, match=r"client_optimizer=adam is not supported by m.*sgdm, sgd"
    ):
        registry.resolve_training(spec, given | {"client_optimizer": "adam"})
    fedavg = registry.resolve_training(registry.get("fedavg"), {"client_learning_rate": 0.1})
    assert fedavg["client_weighting"] == "examples" and fedavg["client_optimizer"] == "sgd"


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_tff_traces_a_process_that_someone_looks_at_and_that_once(problem, monkeypatch, name):
    made = []
    make = process_lib._computations

    def counted(*arguments):
        made.append(threading.get_ident())
        time.sleep(0.05)
        return make(*arguments)

    monkeypatch.setattr(process_lib, "_computations", counted)
    process = tff_algos.build(name, toy.toy_model(problem), num_clients=5, **RATES)
    assert not hasattr(process, "__wrapped__") and process.method and not made
    engine_lib.program_of(process)
    assert not made, "the engine needs none of it"
    with futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: process.next, range(8)))
    assert len(made) == 1 and all(f is found[0] for f in found)
    with pytest.raises(AttributeError, match="has no attribute 'weights'"):
        process.weights  # noqa: B018


def test_a_process_that_cannot_be_traced_says_so_each_time(problem, monkeypatch):
    def fails(*_):
        raise TypeError("not of TFF's types")

    monkeypatch.setattr(process_lib, "_computations", fails)
    process = tff_algos.build("fedavg", toy.toy_model(problem), **RATES)
    for _ in range(2):
        with pytest.raises(TypeError, match="not of TFF's types"):
            process.next  # noqa: B018
