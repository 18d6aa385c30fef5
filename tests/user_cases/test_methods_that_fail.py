"""A user's method whose functions fail, or return what a round cannot take.

It ends in one line that names the function or the value, or the client is dropped and counted.
"""

import inspect
import re
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import simulation
import tff_algos
from tasks.task import ArrayFederatedData, Task
from tests.oracles import problem as problem_lib
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tests.tff_algos import toy
from tff_algos import averaging, client, purity

RUNTIMES = ["per_client", "vectorized", "tff"]
SETTINGS = {
    "task": "toy",
    "total_rounds": 2,
    "clients_per_round": 3,
    "client_batch_size": 4,
    "client_learning_rate": 0.1,
}


def reporting(change, server_update=None, of=lambda data: {"finite": tf.constant(True)}):
    """Federated averaging whose clients report a change of their update, and `of(data)` beside."""

    def build(model, local):
        def client_update(broadcast, data):
            x, rate = broadcast
            trained = client.train(model, local.optimizer(), rate, x, data)
            result = averaging.ClientResult(trained, change(trained.weights - x))
            return result._replace(**of(data))

        return averaging.build(model, local, client_update, server_update)

    return build


def run(monkeypatch, root, build, **settings):
    spec = tff_algos.MethodSpec(
        name="mine", summary="", paper="", builder=build, server_learning_rate=1.0
    )
    monkeypatch.setitem(tff_algos.registry._SPECS, spec.name, spec)
    return simulation.run(**{"algorithm": "mine", **SETTINGS, "root_output_dir": root, **settings})


def per_client(table, everywhere):
    """Every case of a table in `per_client`, and one of them in the other runtimes, too."""
    cases = [(what, "per_client") for what in table]
    return cases + [(everywhere, runtime) for runtime in RUNTIMES[1:]]


OTHERS = {
    "one number per weight": (
        lambda d: d.map(tf.reduce_mean),
        r"returned shapes \(\), \(\), the model has \(3, 3\), \(3,\)",
    ),
    "a mean over rows": (
        lambda d: d.map(lambda w: tf.reduce_mean(w, 0)),
        r"returned shapes \(3,\), \(\), the model",
    ),
    "another dimension": (
        lambda d: d.map(lambda w: w[None]),
        r"returned shapes \(1, 3, 3\), \(1, 3\), the model",
    ),
    "another order": (
        lambda d: tff_algos.Vector(list(d)[::-1]),
        r"returned shapes \(3,\), \(3, 3\), the model has \(3, 3\), \(3,\)",
    ),
    "one tensor": (lambda d: list(d)[:1], r"returned shapes \(3, 3\), the model"),
    "another type": (
        lambda d: d.map(lambda w: tf.cast(w, tf.float64)),
        r"returned shapes float64 \(3, 3\), float64 \(3,\), the model",
    ),
    "nothing": (lambda d: None, "returned a ClientResult whose report is a NoneType; return an"),
    "a None": (
        lambda d: (d[0], None),
        "returned a ClientResult whose report is a tuple; return an",
    ),
    "a dictionary": (
        lambda d: {"delta": d},
        "returned a ClientResult whose report is a dict; return an",
    ),
}


@pytest.mark.parametrize(
    ("what", "runtime"),
    per_client(OTHERS, everywhere="one number per weight"),
)
def test_reports_unlike_the_model_are_refused(monkeypatch, tmp_path, what, runtime):
    change, told = OTHERS[what]
    with pytest.raises(purity.MethodError, match=f"^client_update {told}") as e:
        run(monkeypatch, tmp_path, reporting(change), runtime=runtime)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("kind", [list, tuple])
def test_reports_like_the_model_are_averaged(monkeypatch, tmp_path, kind):
    settings = {"runtime": "per_client", "total_rounds": 1}
    mine = run(monkeypatch, tmp_path / "mine", reporting(kind), **settings)
    theirs = run(monkeypatch, tmp_path / "theirs", reporting(kind), **settings, algorithm="fedavg")
    for a, b in zip(mine.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_the_methods_own_server_step_takes_reports_of_other_shapes(monkeypatch, tmp_path):
    def server_update(state, means):
        return state._replace(weights=state.weights + means)

    build = reporting(lambda d: d.map(tf.reduce_max), server_update)
    first, last = (
        run(monkeypatch, tmp_path / str(n), build, total_rounds=n, runtime="per_client").weights
        for n in (1, 2)
    )
    for a, b in zip(first, last, strict=True):
        # Every number of a weight moves by the same.
        np.testing.assert_allclose(a - b, np.full(a.shape, (a - b).flat[0]), rtol=0, atol=1e-6)
        assert np.abs(a - b).max() > 1e-4


@pytest.mark.parametrize("runtime", ["per_client", "tff"])
def test_a_server_step_that_changes_shapes_is_refused(monkeypatch, tmp_path, runtime):
    def server_update(state, delta):
        return state._replace(weights=state.weights.map(lambda w: w[None]))

    build = reporting(lambda d: d, server_update)
    told = r"^The server's function returned a tensor \(1, 3, 3\) for one .* is \(3, 3\): keep"
    with pytest.raises(purity.MethodError, match=told):
        run(monkeypatch, tmp_path, build, runtime=runtime)


def after(change):
    """Federated averaging whose server changes the state, or what it returns, in the end."""

    def server_update(state, delta):
        return change(state._replace(weights=state.weights + delta))

    return reporting(lambda d: d, server_update)


STATES = {
    "one number per weight": (
        lambda s: s._replace(weights=s.weights.map(tf.reduce_mean)),
        r"a tensor \(\) for one of weights of the state that is \(3, 3\): keep its type and shape",
    ),
    "another type": (
        lambda s: s._replace(weights=s.weights.map(lambda w: tf.cast(w, tf.float64))),
        r"a tensor float64 \(3, 3\) for one of weights",
    ),
    "one weight": (
        lambda s: s._replace(weights=s.weights[:1]),
        "a tuple of another structure for weights",
    ),
    "None": (lambda s: s._replace(weights=None), "a NoneType of another structure for weights"),
    "the weights alone": (lambda s: s.weights, "a Vector; return the ServerState that it got"),
    "nothing": (lambda s: None, "a NoneType; return the ServerState that it got"),
}


@pytest.mark.parametrize(
    ("what", "runtime"),
    per_client(STATES, everywhere="one number per weight"),
)
def test_a_state_of_another_form_is_refused(monkeypatch, tmp_path, what, runtime):
    change, told = STATES[what]
    with pytest.raises(purity.MethodError, match=f"^The server's function returned {told}") as e:
        run(monkeypatch, tmp_path, after(change), runtime=runtime)
    assert "\n" not in str(e.value)


KEPT = {
    "one number per weight": (
        lambda d: {"of": tuple(d.map(tf.reduce_mean)), "n": 1},
        r"a tensor \(\) for one of ClientResult.kept that is \(3, 3\): keep its type and shape",
    ),
    "a vector in place of a number": (
        lambda d: {"of": tuple(d), "n": tf.ones([3], tf.int32)},
        r"a tensor int32 \(3,\) for one of ClientResult.kept that is int32 \(\)",
    ),
    "another type": (
        lambda d: {"of": tuple(d), "n": 1.5},
        r"a tensor \(\) for one of ClientResult.kept that is int32 \(\)",
    ),
    "a part": (
        lambda d: {"of": tuple(d)},
        "a dict of another structure for ClientResult.kept: keep the structure that `client_state`",
    ),
    "nothing": (lambda d: None, "a NoneType of another structure for ClientResult.kept"),
}


@pytest.mark.parametrize(
    ("what", "runtime"),
    per_client(KEPT, everywhere="one number per weight"),
)
def test_what_a_client_keeps_of_another_form_is_refused(monkeypatch, tmp_path, what, runtime):
    """It would be broadcast to what `client_state` declares."""
    change, told = KEPT[what]

    def build(model, local):
        def client_update(broadcast, data, client_state):
            x, rate = broadcast
            trained = client.train(model, local.optimizer(), rate, x, data)
            delta = trained.weights - x
            return averaging.ClientResult(trained, delta, kept=change(delta))

        def client_state():
            return {"of": tuple(map(tf.zeros_like, model.initial_weights)), "n": tf.constant(0)}

        return averaging.build(model, local, client_update, client_state=client_state)

    with pytest.raises(purity.MethodError, match=f"^client_update returned {told}") as e:
        run(monkeypatch, tmp_path, build, runtime=runtime)
    assert "\n" not in str(e.value)


class WithLast(NamedTuple):
    weights: tff_algos.Vector
    last: dict
    round_num: tf.Tensor


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_dictionary_in_the_state_keeps_its_order(monkeypatch, tmp_path, runtime):
    """Python numbers take the state's types."""

    def build(model, local):
        def initialize():
            x = tff_algos.Vector(map(tf.constant, model.initial_weights))
            return WithLast(x, {"b": tf.constant(0.0), "a": tf.constant(0)}, tf.constant(0))

        def server_update(state, delta):
            last = {"a": state.last["a"] + 1, "b": 2.0}
            after = state._replace(weights=state.weights + delta, last=last)
            return averaging.Outcome(after, {"a": state.last["a"], "b": state.last["b"]})

        plain = averaging.plain_client(model, local)
        return averaging.build(model, local, plain, server_update, initialize=initialize)

    rounds = run(monkeypatch, tmp_path, build, runtime=runtime).rounds[1:]
    assert rounds["train/a"].tolist() == [0, 1] and rounds["train/b"].tolist() == [0, 2]


METRICS = {
    "the loss": ({"loss": 7.0}, "'loss' has the name of a metric that every round has"),
    "a count": ({"num_examples": 7.0}, "'num_examples' has the name of a metric"),
    "the model's": ({"accuracy": 7.0}, "'accuracy' has the name of a metric"),
    "a vector": ({"norms": tf.ones([2])}, r"'norms' is a tensor \(2,\); give one number"),
    "text": ({"note": "a"}, r"'note' is a tensor string \(\); give one number"),
}


@pytest.mark.parametrize(
    ("what", "runtime"),
    per_client(METRICS, everywhere="the loss"),
)
def test_metrics_of_a_method_that_are_not_its_own_are_refused(monkeypatch, tmp_path, what, runtime):
    metrics, told = METRICS[what]
    build = after(lambda state: averaging.Outcome(state, metrics))
    with pytest.raises(purity.MethodError, match=f"^The method's metric {told}"):
        run(monkeypatch, tmp_path, build, runtime=runtime)


def weighing(weight):
    """Federated averaging whose clients have the weight `weight(data)`."""
    return reporting(lambda d: d, of=lambda data: {"weight": weight(data)})


def all_but_client_1(value):
    """The numbers of examples, but another weight for the client at index 1."""
    return weighing(lambda data: tf.where(data.index == 1, value, client.num_examples(data)))


ALL = {"clients_per_round": 6, "total_rounds": 2}


@pytest.mark.parametrize(
    ("value", "runtime"),
    [(float("nan"), runtime) for runtime in RUNTIMES]
    + [(value, "per_client") for value in (float("inf"), -8.0)],
)
def test_a_client_with_an_impossible_weight_is_dropped(monkeypatch, tmp_path, value, runtime):
    settings = {**ALL, "runtime": runtime}
    got = run(monkeypatch, tmp_path / "got", all_but_client_1(value), **settings)
    want = run(monkeypatch, tmp_path / "want", all_but_client_1(0.0), **settings)
    assert got.rounds["train/clients_dropped"][1:].tolist() == [1, 1]
    for a, b in zip(got.weights, want.weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def with_an_empty_client():
    problem = problem_lib.make_problem(0, num_examples=(3, 8, 5))
    x, y = (np.concatenate(parts) for parts in zip(*problem.clients, strict=True))
    rows = [*np.split(np.arange(16), [3, 11]), []]
    return Task(
        name="sparse",
        train=ArrayFederatedData(x.astype(np.float32), y.astype(np.int32), rows),
        test=None,
        central_test=None,
        keras_model_fn=lambda seed: toy.keras_model(problem),
        loss=toy.cross_entropy,
        metrics={"accuracy": tf.keras.metrics.sparse_categorical_accuracy},
        primary_metric="accuracy",
    )


WEIGHTS = {
    "one": (lambda data: 1.0, "uniform"),
    "whole": (lambda data: data.num_examples, "examples"),
    "one over nothing": (
        lambda data: client.num_examples(data) ** 2 / client.num_examples(data),
        "examples",
    ),
}


@pytest.mark.parametrize(
    ("what", "runtime"),
    per_client(WEIGHTS, everywhere="one"),
)
def test_a_client_without_examples_has_no_weight(
    monkeypatch, tmp_path, with_an_empty_client, what, runtime
):
    weight, weighting = WEIGHTS[what]
    settings = {"task": with_an_empty_client, "clients_per_round": 4, "runtime": runtime}
    got = run(monkeypatch, tmp_path / "got", weighing(weight), **settings)
    plain = {**settings, "algorithm": "fedavg", "client_weighting": weighting}
    want = run(monkeypatch, tmp_path / "want", weighing(weight), **plain)
    assert got.rounds["train/clients_dropped"][1:].tolist() == [0, 0]
    for a, b in zip(got.weights, want.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("weight", "told"),
    [
        (lambda data: tf.ones([3]), r"ClientResult.weight is a tensor \(3,\); give one number"),
        (lambda data: "all", r"ClientResult.weight is a tensor string \(\); give one number"),
    ],
    ids=["three", "text"],
)
def test_a_weight_must_be_one_number(monkeypatch, tmp_path, weight, told):
    with pytest.raises(purity.MethodError, match=f"^{told}"):
        run(monkeypatch, tmp_path, weighing(weight), runtime="per_client")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"trained": None}, "ClientResult.trained is a NoneType; give what `client.train`"),
        ({"finite": 1.0}, r"ClientResult.finite is a tensor float32 \(\); give one bool"),
        ({"counts": tf.constant([True, False])}, r"ClientResult.counts is a tensor bool \(2,\); g"),
        ({"keeps": {"all": True}}, "ClientResult.keeps is a dict; give one bool"),
    ],
    ids=["trained", "finite", "counts", "keeps"],
)
def test_other_fields_of_a_result_are_checked(monkeypatch, tmp_path, fields, told):
    with pytest.raises(purity.MethodError, match=f"^{told}"):
        run(monkeypatch, tmp_path, reporting(lambda d: d, of=lambda data: fields), runtime="tff")


@pytest.mark.parametrize("runtime", ["per_client", "tff"])
@pytest.mark.parametrize("dtype", [tf.int32, tf.float64])
def test_a_mean_of_other_types_is_refused(monkeypatch, tmp_path, runtime, dtype):
    def change(delta):
        return delta, tf.cast(delta.norm(), dtype)

    def server_update(state, mean):
        return state._replace(weights=state.weights + mean[0])

    told = f"^The method averages a tensor of type {dtype.name} over clients: convert it"
    with pytest.raises(purity.MethodError, match=told):
        run(monkeypatch, tmp_path, reporting(change, server_update), runtime=runtime)


def of_number(update):
    return update * min(1.0, 1.0 / float(update.norm()))


FAILING = {
    "float": (of_number, "TypeError: "),
    "NumPy": (lambda d: d.map(lambda w: np.clip(w, -1, 1)), "NotImplementedError: "),
    "a shape": (lambda d: d.map(lambda w: tf.reshape(w, [7])), "ValueError: "),
    "a name": (lambda d: {}["delta"], "KeyError: 'delta'"),
}


@pytest.mark.parametrize(
    ("what", "runtime"),
    [(what, "per_client") for what in FAILING] + [("float", runtime) for runtime in RUNTIMES[1:]],
)
def test_exceptions_of_a_client_function_become_one_line(monkeypatch, tmp_path, what, runtime):
    change, told = FAILING[what]
    told = (
        r"^client_update of the method fails in line \d+ of test_methods_that_fail\.py while its "
        rf"graph is made \({told}"
    )
    with pytest.raises(purity.MethodError, match=told) as e:
        run(monkeypatch, tmp_path, reporting(change), runtime=runtime)
    assert "\n" not in str(e.value)
    assert isinstance(e.value.__cause__, Exception)
    # The line of the user's file that failed, not the one that called it.
    number = int(re.search(r"in line (\d+) of", str(e.value))[1])
    lines, first = inspect.getsourcelines(change)
    assert first <= number < first + len(lines)


@pytest.mark.parametrize("runtime", ["per_client", "tff"])
def test_exceptions_of_a_server_function_become_one_line(monkeypatch, tmp_path, runtime):
    def server_update(state, delta):
        return state._replace(weights=of_number(delta))

    with pytest.raises(purity.MethodError, match=r"^server_update of the method fails"):
        run(monkeypatch, tmp_path, reporting(lambda d: d, server_update), runtime=runtime)


def test_none_in_the_state_is_refused(monkeypatch, tmp_path):
    def build(model, local):
        def initialize():
            x = tff_algos.Vector(map(tf.constant, model.initial_weights))
            return WithLast(x, {"a": None}, tf.constant(0))

        plain = averaging.plain_client(model, local)
        return averaging.build(model, local, plain, initialize=initialize)

    with pytest.raises(purity.MethodError, match="returned None in place of a tensor"):
        run(monkeypatch, tmp_path, build, runtime="per_client")
