"""A user's method under an aggregator: no vector and no weight of it is lost in silence."""

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from tests.tff_algos import shared, toy
from tff_algos import averaging, client, method, purity, registry, vector

UNIFORM = {"client_weighting": "uniform"}
AGGREGATORS = {
    "robust": {},
    "secure": {},
    "dp": {**UNIFORM, "aggregator_noise_multiplier": 0.0, "aggregator_clip": 0.01},
}


class WithSquares(NamedTuple):
    weights: tff_algos.Vector
    round_num: tf.Tensor
    squares: tff_algos.Vector


def sending(report, aggregate, step, of=lambda data: {}):
    """Federated averaging whose state also has a vector, and whose server does `step`."""

    def build(model, local):
        def client_update(broadcast, data):
            x, rate = broadcast
            trained = client.train(model, local.optimizer(), rate, x, data)
            return averaging.ClientResult(trained, report(trained.weights - x), **of(data))

        def initialize():
            x = vector.constants(model.initial_weights)
            return WithSquares(x, tf.constant(0), x.map(tf.zeros_like))

        return averaging.build(
            model, local, client_update, step, initialize=initialize, aggregate=aggregate
        )

    return build


def walk(state, delta, *_):
    return state._replace(weights=state.weights + delta)


def plainly(federation, update):
    return (federation.mean(update.report, update.weight),)


def twice(federation, update):
    return tuple(method.mean_of_updates(federation, update.report, update.weight) for _ in range(2))


def both(state, means):
    return walk(state, means[0])._replace(squares=means[1])


def update(delta):
    return delta


PLAIN = (update, averaging.mean_report, walk)
SECOND = (lambda d: (d, d.map(tf.square)), averaging.mean_each(tuple, 0, 1), both)
NUMBER = (
    lambda d: (d, d.norm()),
    averaging.mean_each(tuple, 0, 1),
    lambda state, means: walk(state, means[0]),
)


def run(monkeypatch, build, word, runtime, aggregated=None):
    """Returns the weights after a round of three clients, and those before."""
    spec = tff_algos.MethodSpec(
        name="mine",
        summary="",
        paper="",
        builder=build,
        server_learning_rate=1.0,
        aggregated=aggregated or registry.Aggregated(),
    )
    monkeypatch.setitem(registry._SPECS, spec.name, spec)
    problem = shared.problem()
    settings = {"aggregator": word, **AGGREGATORS[word], "client_learning_rate": 0.3}
    process = tff_algos.build(
        "mine", toy.plain_model(problem), clients_per_round=3, seed=1, **settings
    )
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        state = bound.initialize()
        data = [toy.client_data(problem, 0, k) for k in range(3)]
        after = bound.next(state, data).state
    return [np.asarray(w) for w in after.weights], [np.asarray(w) for w in state.weights]


VECTOR = r"clients also send a tensor of shape \(3, 3\) in clear"
REFUSED = {
    "a vector beside, dp": (SECOND, "dp", VECTOR),
    "a vector beside, secure": (SECOND, "secure", VECTOR),
    "no mean of updates": (
        (update, plainly, walk),
        "robust",
        "has no mean of updates for an aggregator to replace: call mean_of_updates",
    ),
    "two means of updates": (
        (update, twice, walk),
        "robust",
        "has two means of updates in a round, .*: call Federation.mean for the other",
    ),
    "numbers in place of weights": (
        (lambda d: d.map(tf.reduce_max), averaging.mean_report, walk),
        "robust",
        r"mean of updates has float32 \(\), float32 \(\), the model \(3, 3\), \(3,\): an aggreg",
    ),
    "a dictionary": (
        (lambda d: {"a": d[0], "b": d[1]}, averaging.mean_report, walk),
        "robust",
        "one float32 tensor like each weight, in their order",
    ),
    "its own weights, dp": (
        (*PLAIN, lambda data: {"weight": 1.0 + tf.cast(data.index, tf.float32)}),
        "dp",
        "^client_update returns its own ClientResult.weight, which the aggregator ignores",
    ),
    # All would be rounded to zero, and the mean would not be finite.
    "its own weights, secure": (
        (*PLAIN, lambda data: {"weight": 1e-5}),
        "secure",
        "which the aggregator rounds to steps of 2.-12",
    ),
}


@pytest.mark.parametrize(
    ("what", "runtime"),
    [(what, "per_client") for what in REFUSED]
    + [("a vector beside, dp", "tff"), ("its own weights, dp", "tff")],
)
def test_what_an_aggregator_would_lose_is_refused(monkeypatch, what, runtime):
    parts, word, told = REFUSED[what]
    with pytest.raises(purity.MethodError, match=told) as e:
        run(monkeypatch, sending(*parts), word, runtime)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("parts", "word"),
    [(PLAIN, "dp"), (NUMBER, "dp"), (SECOND, "robust")],
    ids=["dp", "a number beside", "a vector beside robust"],
)
def test_what_an_aggregator_takes_is_its_mean(monkeypatch, parts, word):
    """That of clipped updates, if it is private; small ones are not changed by the others."""
    problem = shared.problem()
    got, start = run(monkeypatch, sending(*parts), word, "per_client")
    updates = []
    for k in range(3):
        (alone,) = toy.run_eagerly(
            "fedavg", problem, toy.plain_model(problem), ((k,),), client_learning_rate=0.3
        )
        change = [np.float64(a) - b for a, b in zip(alone.weights, start, strict=True)]
        norm = np.sqrt(sum(np.sum(c**2) for c in change))
        bound = 0.01 if word == "dp" else 1.0
        updates.append([c * min(1.0, bound / norm) for c in change])
    counts = None if word == "dp" else [len(problem.clients[k][1]) for k in range(3)]
    for i, (after, before) in enumerate(zip(got, start, strict=True)):
        want = np.average([u[i] for u in updates], axis=0, weights=counts)
        np.testing.assert_allclose(after - before, want, atol=1e-6)


def test_own_weights_that_are_declared_are_summed_securely(monkeypatch):
    own = {"weight": 0.5}
    build = sending(*PLAIN, lambda data: own)
    aggregated = registry.Aggregated(own_weights="relative")
    got, start = run(monkeypatch, build, "secure", "per_client", aggregated)
    want, _ = run(monkeypatch, build, "robust", "per_client")
    for a, b, before in zip(got, want, start, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
        assert np.abs(a - before).max() > 1e-3
