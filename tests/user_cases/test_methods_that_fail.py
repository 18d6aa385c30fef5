"""A user's method whose functions fail or return other shapes ends in one line that names them."""

import numpy as np
import pytest
import tensorflow as tf

import simulation
import tff_algos
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tff_algos import averaging, client, purity

RUNTIMES = ["per_client", "vectorized", "tff"]
SETTINGS = {
    "task": "toy",
    "total_rounds": 2,
    "clients_per_round": 3,
    "client_batch_size": 4,
    "client_learning_rate": 0.1,
}


def reporting(change, server_update=None):
    """Federated averaging whose clients report a change of their update."""

    def build(model, local):
        def client_update(broadcast, data):
            x, rate = broadcast
            trained = client.train(model, local.optimizer(), rate, x, data)
            report = change(trained.weights - x)
            return averaging.ClientResult(trained, report, finite=tf.constant(True))

        return averaging.build(model, local, client_update, server_update)

    return build


def run(monkeypatch, root, build, **settings):
    spec = tff_algos.MethodSpec(
        name="mine", summary="", paper="", builder=build, server_learning_rate=1.0
    )
    monkeypatch.setitem(tff_algos.registry._SPECS, spec.name, spec)
    return simulation.run(**{"algorithm": "mine", **SETTINGS, "root_output_dir": root, **settings})


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
    [(what, "per_client") for what in OTHERS]
    + [("one number per weight", runtime) for runtime in RUNTIMES[1:]],
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
    told = rf"^client_update of the method fails while its graph is made \({told}"
    with pytest.raises(purity.MethodError, match=told) as e:
        run(monkeypatch, tmp_path, reporting(change), runtime=runtime)
    assert "\n" not in str(e.value)
    assert isinstance(e.value.__cause__, Exception)


@pytest.mark.parametrize("runtime", ["per_client", "tff"])
def test_exceptions_of_a_server_function_become_one_line(monkeypatch, tmp_path, runtime):
    def server_update(state, delta):
        return state._replace(weights=of_number(delta))

    with pytest.raises(purity.MethodError, match=r"^server_update of the method fails"):
        run(monkeypatch, tmp_path, reporting(lambda d: d, server_update), runtime=runtime)
