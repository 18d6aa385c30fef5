"""Random Keras models train and are measured as in Keras, or are refused in one line."""

import collections
import contextlib

import hypothesis
import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from simulation.engine.batched_ops import NotVectorizable
from tests.tff_algos import eager, shared
from tests.user_cases.models import recipes
from tff_algos import client_data, registry, tff_models
from tff_algos.client import LocalTraining
from tff_algos.client_data import Batch
from tff_suite import hparams

pytestmark = pytest.mark.slow

RATE = 0.05
ANY_LENGTH = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
# The same models in every quick run. To shrink one takes longer than a test may.
QUICK = hypothesis.settings(
    max_examples=30,
    derandomize=True,
    database=None,
    phases=[hypothesis.Phase.generate],
    **ANY_LENGTH,
)
LONG = hypothesis.settings(QUICK, max_examples=500, derandomize=False)


def _close(got, want, what):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=str(what))


def _trained(model, client):
    """Returns the weights after a client's local training, carried out without graphs and TFF."""
    spec = registry.get("fedavg")
    training = registry.resolve_training(spec, {"client_learning_rate": RATE})
    own = hparams.resolve(spec.name, spec.hparams, {})
    method = spec.build_fn()(model, LocalTraining(training, None), **own)
    (state,) = eager.rounds(method, [[client]], {})
    return state.weights


def _trained_in(runtime, keras_model, client):
    """Returns the weights after a round of two clients alike."""
    process = tff_algos.build("fedavg", keras_model, client_learning_rate=RATE)
    with shared.installed(runtime):
        bound = runtimes.bind(process)
        return bound.next(bound.initialize(), [client, client]).state.weights


def _measured(model, batch, weights):
    """Returns loss and metrics of weights on a batch."""
    found = model.forward(weights, batch, False, tf.zeros([2], tf.int32)).metrics
    sums = {name: map(np.sum, values) for name, values in found.items()}
    with np.errstate(invalid="ignore"):
        return {name: value / weight for name, (value, weight) in sums.items()}


def check(recipe, in_runtimes=()):
    """Returns what became of a recipe: `equal`, or why it is refused or cannot be compared."""
    keras_model = recipes.model_of(recipe)
    x = recipes.inputs_of(recipe)
    y = recipes.targets_of(recipe, keras_model.output_shape)
    given = tff_algos.batch_client(x, y, batch_size=recipe.batch, shuffle=False)
    trained = {}
    try:
        model = tff_models.as_model(keras_model)
        (client,) = client_data.of_model([given], model, 0)
        trained["eager"] = _trained(model, client)
        for runtime in in_runtimes:
            with contextlib.suppress(NotVectorizable):
                trained[runtime] = _trained_in(runtime, keras_model, given)
    except ValueError as e:  # A ModelError is one.
        assert "\n" not in str(e), e
        return str(e)
    try:
        keras_model.fit(x, y, batch_size=recipe.batch, shuffle=False, verbose=0)
    except (TypeError, tf.errors.InvalidArgumentError) as e:
        # Such as the cosine of whole numbers, which ours are no more; each stack has its error.
        return f"refused by Keras: {e}"
    weights = keras_model.get_weights()
    if not all(np.all(np.isfinite(w)) for w in weights):
        return "not finite in Keras"  # A batch that a mask or `ignore_class` leaves nothing of.
    for runtime, found in trained.items():
        for got, want in zip(found, keras_model.trainable_weights, strict=True):
            _close(got, want, (runtime, recipe))
    # Of the same weights: else a metric might jump between two that are equal but for rounding.
    weights = [tf.constant(w) for w in keras_model.trainable_weights]
    for i, batch in enumerate(zip(client.x, client.y, client.mask, strict=True)):
        got = _measured(model, Batch(*map(tf.constant, batch)), weights)
        rows = slice(i * recipe.batch, (i + 1) * recipe.batch)
        want = keras_model.test_on_batch(x[rows], y[rows], return_dict=True)
        assert len(got) == len(want)
        if model.loss_reduction == "sum":
            del got["loss"], want["loss"]  # Ours is always the mean, see docs/metrics.md.
        for (name, value), wanted in zip(got.items(), want.values(), strict=True):
            _close(value, wanted, (name, recipe))
    return "equal"


def _check_all(settings, in_runtimes):
    found = collections.Counter()

    @settings
    @hypothesis.given(recipes.RECIPES)
    def check_one(recipe):
        found[check(recipe, in_runtimes(sum(found.values())))] += 1

    check_one()
    # To refuse them all would pass otherwise.
    assert found["equal"] > 0.6 * sum(found.values()), found


def test_thirty_models():
    _check_all(QUICK, lambda number: ())


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_five_hundred_models():
    _check_all(LONG, lambda number: () if number % 20 else ("tff", "vectorized"))
