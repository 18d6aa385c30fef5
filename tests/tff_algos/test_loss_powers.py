"""Methods that raise losses to powers, or take exponentials of them, over all that float32 holds.

The loss of a client is what its one example says it is, its gradient is the example, and x = 0 at
first. So a round is the method's formula, which NumPy works out in extended precision.
"""

import collections
import importlib

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from tests.oracles import adafed, afl, fedfa
from tests.tff_algos import eager, toy
from tff_algos import model as model_lib
from tff_algos import registry
from tff_algos.parts import vectors

RATE = 0.5
DIMENSIONS = 6


def _given_loss():
    def forward(weights, batch, training, seed):
        # Nothing is added to the loss where it is asked for, but it has its gradient.
        losses = batch.y + tf.linalg.matvec(batch.x, weights[0])
        metrics = collections.OrderedDict(
            loss=(losses * batch.mask, batch.mask), accuracy=(batch.y * batch.mask, batch.mask)
        )
        return model_lib.Forward(tf.tensordot(batch.x[0], weights[0], 1), metrics)

    return tff_algos.Model(
        (np.zeros(DIMENSIONS, np.float32),),
        tf.TensorSpec([None, DIMENSIONS]),
        tf.TensorSpec([None]),
        forward,
        metric_names=("loss", "accuracy"),
    )


MODEL = _given_loss()


def _round(name, gradients, losses, **settings):
    """Returns the state after one round in which all clients take part."""
    settings = dict(client_learning_rate=RATE, **settings)
    data = [
        tff_algos.batch_client(
            np.asarray(g, np.float32)[None], np.asarray([f], np.float32), batch_size=1, index=k
        )
        for k, (g, f) in enumerate(zip(gradients, losses, strict=True))
    ]
    module = importlib.import_module(registry.get(name).builder.split(":")[0])
    method = toy.build_mutant(module, name, MODEL, settings, len(data))
    return next(iter(eager.rounds(method, [data], {})))


def _cohorts():
    """Yields gradients and losses: alike, near each other, and far apart, at every scale."""
    rng = np.random.default_rng(0)
    for exponent in (-30, -4, 0, 30):
        for spread in (0.3, 8.0):
            size = int(rng.integers(2, 4))
            powers = np.clip(exponent + spread * rng.uniform(-1, 1, size), -30, 30)
            losses = (10.0**powers).astype(np.float32)
            yield rng.normal(size=(size, DIMENSIONS)).astype(np.float32), losses
    yield rng.normal(size=(3, DIMENSIONS)).astype(np.float32), np.array([0.0, 0.0, 0.0], np.float32)
    yield (
        rng.normal(size=(3, DIMENSIONS)).astype(np.float32),
        np.array([0.0, 1e-4, 1.0], np.float32),
    )


COHORTS = list(_cohorts())


def _assert_moved(state, want):
    got = state.weights[0].numpy().astype(np.longdouble)
    scale = np.linalg.norm(want)
    # A step that float32 does not hold must not pass for a finite one; below its least normal
    # number nothing can be asked.
    if scale > 1e39:
        assert not np.isfinite(got).any()
    else:
        assert np.linalg.norm(got - want) <= 1e-4 * scale + 1e-37, (got, want)


def _exact(gradients, losses):
    return gradients.astype(np.longdouble), losses.astype(np.longdouble)


@pytest.mark.parametrize("q", [0.0, 0.1, 2.0, 10.0])
@pytest.mark.parametrize("form", ["lipschitz", "reweight"])
def test_qfedavg(q, form):
    for gradients, losses in COHORTS:
        g, f = _exact(gradients, losses)
        loss = f + np.longdouble(1e-10)
        if form == "reweight":
            want = -RATE * (loss**q @ g) / np.sum(loss**q)
        else:
            h = q * loss ** (q - 1) * np.sum(g**2, axis=1) + loss**q / RATE
            want = -(loss**q @ g) / h.sum()
        _assert_moved(_round("qfedavg", gradients, losses, q=q, form=form), want)


def test_qfedavg_moves_where_all_losses_are_small():
    """The powers of such losses are far below float32's least number."""
    gradients = np.eye(DIMENSIONS)[:2] * 1e-3
    state = _round("qfedavg", gradients, [1e-4, 1e-4], q=10.0, form="reweight")
    np.testing.assert_allclose(state.weights[0][:2], -RATE * 0.5e-3, rtol=1e-5)
    assert np.any(_round("qfedavg", gradients, [1e-4, 1e-4], q=10.0).weights[0])


def test_qfedavg_drops_negative_losses_without_a_power():
    gradients = np.eye(DIMENSIONS)[:2]
    state = _round("qfedavg", gradients, [1.0, -1.0], q=0.5, form="reweight")
    np.testing.assert_allclose(state.weights[0][:2], [-RATE, 0.0], rtol=1e-6)
    state = _round("qfedavg", gradients, [1.0, -1.0], q=0.0)
    np.testing.assert_allclose(state.weights[0][:2], [-RATE / 2, -RATE / 2], rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_adafedadam(alpha, weighting):
    """A client's one step is its gradient times the rate, so that U is g, and C is 1."""
    for gradients, losses in COHORTS:
        g, f = _exact(gradients, losses)
        w = f**alpha
        mean = w @ g / max(w.sum(), np.longdouble("1e-4000"))
        state = _round(
            "adafedadam",
            gradients,
            losses,
            alpha=alpha,
            loss_reference="none",
            client_weighting=weighting,
            server_learning_rate=1.0,
            epsilon=1.0,
        )
        _assert_moved(state, -mean / (np.abs(mean) + 1))


def test_adafedadam_drops_negative_losses_without_a_power():
    gradients = np.eye(DIMENSIONS)[:2]
    settings = dict(loss_reference="none", server_learning_rate=1.0, epsilon=1.0)
    for losses in ([1.0, -1.0], [1e-10, -1e10]):
        state = _round("adafedadam", gradients, losses, alpha=4.5, **settings)
        np.testing.assert_allclose(state.weights[0][:2], [-0.5, 0.0], rtol=1e-5)
    state = _round("adafedadam", gradients, [1e-10, -1e-10], alpha=4.0, **settings)
    np.testing.assert_allclose(state.weights[0][:2], [-1 / 3, -1 / 3], rtol=1e-5)


@pytest.mark.parametrize("t", [0.0, 5.0])
@pytest.mark.parametrize("normalizer", ["softmax", "running"])
def test_term(t, normalizer):
    for gradients, losses in COHORTS:
        g, f = _exact(gradients, losses)
        w = np.exp(np.maximum(t * (f - f.max()), -10000))
        mean = w / w.sum()
        want = -RATE * (2 if normalizer == "running" else 1) * mean @ g
        _assert_moved(_round("term", gradients, losses, t=t, normalizer=normalizer), want)


@pytest.mark.parametrize("gamma", [0.1, 10.0])
@pytest.mark.parametrize("rule", ["min", "mean", "constant", "unit"])
def test_adafed(gamma, rule):
    for gradients, losses in COHORTS:
        g, f = _exact(gradients, losses)
        g = RATE * g
        powers = np.maximum(f, np.longdouble(1e-8)) ** gamma
        relative = (powers / powers.max()).astype(np.float64)
        vectors_ = g.astype(np.float64)
        d = adafed.direction(vectors_, relative, adafed.closed_form(vectors_, relative))
        step = {
            "min": relative.min(),
            "mean": relative.mean(),
            "constant": 1 / powers.max(),
            "unit": np.linalg.norm(vectors_.mean(axis=0)) / np.linalg.norm(d),
        }[rule]
        _assert_moved(_round("adafed", gradients, losses, gamma=gamma, step_rule=rule), -step * d)


def test_fedfa():
    for gradients, losses in COHORTS:
        w = fedfa.weights_of(losses, np.ones(len(losses)), 0.5, 0.5)
        state = _round("fedfa", gradients, losses, client_optimizer="sgd")
        _assert_moved(state, -RATE * w @ gradients)


@pytest.mark.parametrize("gamma", [0.1, 10.0])
def test_afl(gamma):
    for gradients, losses in COHORTS:
        got = _round("afl", gradients, losses, gamma_lambda=gamma).mixture.numpy()
        point = 1 / len(losses) + gamma * losses.astype(np.longdouble)
        want = afl.project(point - point.max())
        assert abs(got.sum() - 1) < 1e-12 and got.min() >= 0
        np.testing.assert_allclose(got, want.astype(np.float64), atol=1e-6)


def test_projection_of_numbers_next_to_which_one_is_nothing():
    got = vectors.project_to_simplex(tf.constant([1e30, 1.0, 1e30], tf.float64)).numpy()
    np.testing.assert_allclose(got, [0.5, 0.0, 0.5])


def test_climb():
    for gradients, losses in COHORTS:
        state = _round("climb", gradients, losses, primal_rounds=1)
        slope = losses.astype(np.longdouble) - losses.astype(np.longdouble).mean() - 1
        want = np.clip(slope / len(losses), 0, 100).astype(np.float64)
        np.testing.assert_allclose(state.multipliers, want, rtol=1e-5, atol=1e-6)
