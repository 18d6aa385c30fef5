"""Who has a part in a round, for every method: no client without examples, none without a loss.

And what a round starts from: the weights that a user has set.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from simulation import runtimes
from tests.oracles import problem as problem_lib
from tests.tff_algos import cases, eager, shared, toy
from tests.tff_algos.test_methods import METHODS, assert_kept
from tff_algos import registry
from tff_algos.client import LocalTraining

pytestmark = pytest.mark.slow

COHORT = (1, 2)
EMPTY = 5  # The client of `sparse` without examples.
ALL_CASES = [
    pytest.param(name, case, id=f"{name}-{i}")
    for name in METHODS
    for i, case in enumerate(cases.CASES[name])
]


@pytest.fixture(scope="module")
def problem():
    return problem_lib.make_problem()


@pytest.fixture(scope="module")
def sparse():
    """As `problem`, with one more client, which has no examples."""
    problem = problem_lib.make_problem()
    x, y = problem.clients[0]
    return problem._replace(clients=[*problem.clients, (x[:0], y[:0])])


@pytest.fixture(scope="module")
def model(problem):
    return toy.eager_model(problem)


def assert_same_state(got, want, atol=1e-6):
    tf.nest.assert_same_structure(got, want)
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol)


# A client without examples.


# One of each kind, and all that once counted such a client.
@pytest.mark.quick_cases(
    *(f"{name}-0" for name in shared.KINDS),
    *(
        f"{name}-0"
        for name in "client_adam climb ditto fafed fedcada fedfa fedsps stem term".split()
    ),
)
@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_a_client_without_examples_has_no_part(sparse, model, name, case):
    """The server's state is as without it, what it keeps stays, and the oracle agrees.

    A round of nobody else changes nothing.
    """
    cohorts = [(0, EMPTY, 2), (EMPTY, 1), (EMPTY,)]
    without = [tuple(k for k in c if k != EMPTY) for c in cohorts[:2]]
    kept, kept_without = {}, {}
    got = list(toy.run_eagerly(name, sparse, model, cohorts, kept=kept, **case.settings))
    want = list(toy.run_eagerly(name, sparse, model, without, kept=kept_without, **case.settings))
    for a, b in zip(got, want, strict=False):
        assert_same_state(a, b)
    before, after = got[1:]
    assert int(after.round_num) == 3
    if name == "climb":  # Other clients still tell it their losses.
        assert_same_state(after.weights, before.weights, atol=0)
    else:
        assert_same_state(after._replace(round_num=before.round_num), before, atol=0)
    if kept:
        assert int(kept.pop(EMPTY).visits) == 0
        assert_same_state(kept, kept_without)
    expected = case.oracle(sparse, toy.batch_orders(sparse, cohorts), cohorts, frozenset())
    for state, weights in zip(got, expected, strict=True):
        assert_same_state(tuple(state.weights), weights, atol=1e-5)
    assert_kept(kept, case, sparse, cohorts)


# A loss that is not finite, though the gradient is.

# Whose clients' losses enter the mathematics.
LOSS_METHODS = {*"adafed adafedadam afl climb fedfv fedsps propfair qfedavg term".split()}
FACTORS = (1.0, np.inf, np.nan)
_CODE = 10


def _scaled_losses(model):
    """The model, with losses times the factor that a label's tens stand for; same gradients."""

    def forward(weights, batch, training, seed):
        factor = tf.gather(tf.constant(FACTORS), batch.y // _CODE)
        plain = model.forward(weights, batch._replace(y=batch.y % _CODE), training, seed)
        values, counts = plain.metrics["loss"]
        scaled = tf.where(batch.mask > 0, values * factor, 0.0)
        values += tf.stop_gradient(scaled - values)
        plain.metrics["loss"] = (values, counts)
        objective = tf.math.divide_no_nan(tf.reduce_sum(values), tf.reduce_sum(counts))
        return plain._replace(objective=objective)

    return model._replace(forward=forward)


# One of each kind, and those whose rounds are made of losses.
@pytest.mark.quick_cases(
    *(f"{name}-0" for name in shared.KINDS),
    *(f"{name}-0" for name in "afl climb fedfa fedsps qfedavg term".split()),
)
@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_a_client_whose_loss_is_not_finite_is_dropped(problem, model, name, case):
    """By every method that uses losses; the others go by the gradient alone, whatever the loss."""
    scaled, cohort, suspect = _scaled_losses(model), (1, 2), 2

    def after(place):
        clients = list(problem.clients)
        x, y = clients[suspect]
        clients[suspect] = (x, y + _CODE * place)
        changed = problem._replace(clients=clients)
        return next(toy.run_eagerly(name, changed, scaled, [cohort], **case.settings))

    plain, infinite, no_number = range(len(FACTORS))
    if name not in LOSS_METHODS:
        assert_same_state(after(infinite), after(plain))
        return
    orders = toy.batch_orders(problem, [cohort])
    want = case.oracle(problem, orders, [cohort], frozenset({(0, suspect)}))[0]
    for place in (infinite, no_number):
        assert_same_state(tuple(after(place).weights), want, atol=1e-5)


# Weights that a user has set.


def _other_weights(model):
    return tuple((0.5 - 0.25 * w).astype(np.float32) for w in model.initial_weights)


def _with_weights(method, state, weights):
    state = state._replace(weights=tuple(map(tf.constant, weights)))
    return method.adopt_weights(state) if method.adopt_weights else state


def _one_round(method, problem, state, round_num):
    """Returns the state after a round, and the model that its clients start from."""
    sent = []

    class Federation(eager.EagerFederation):
        def broadcast(self, value):
            sent.append(value)
            return super().broadcast(value)

    with eager._eagerly():
        data = [toy.client_data(problem, round_num, k) for k in COHORT]
        given = [eager.Each(tf.nest.map_structure(tf.constant, d) for d in data)]
        if method.client_state is not None:
            first = tff_algos.initial_client_state(method)
            first = tf.nest.map_structure(tf.convert_to_tensor, first)
            given.append(eager.Each([first] * len(COHORT)))
        after = method.next_round(Federation(len(COHORT)), state, *given)[0]
    return after, tf.nest.flatten(sent[0])[: len(state.weights)]


def _method(name, model):
    training, own = toy.resolve(name, cases.CASES[name][0].settings)
    if registry.get(name).needs_num_clients:
        own["num_clients"] = toy.NUM_CLIENTS
    return registry.get(name).build_fn()(model, LocalTraining(training), **own)


@pytest.mark.parametrize("name", METHODS)
def test_a_round_starts_from_the_weights_that_were_set(problem, model, name):
    method, weights = _method(name, model), _other_weights(model)
    # Before the first round: as if they had been the model's own.
    got = _with_weights(method, method.initialize(), weights)
    other = _method(name, model._replace(initial_weights=weights)).initialize()
    assert_same_state(got, other, atol=0)
    got, sent = _one_round(method, problem, got, 0)
    assert_same_state(tuple(sent), weights, atol=0)
    # Later: training continues from them.
    changed = _with_weights(method, got, model.initial_weights)
    assert_same_state(tuple(changed.weights), model.initial_weights, atol=0)
    after, sent = _one_round(method, problem, changed, 1)
    assert_same_state(tuple(sent), model.initial_weights, atol=0)
    assert int(after.round_num) == 2


# Where more than the weights has to change; most methods share one line.
@pytest.mark.quick_cases("afl")
@pytest.mark.parametrize("name", METHODS)
def test_set_model_weights_in_every_runtime(problem, name):
    """Weights, a round, other weights, a round: as without graphs or TFF."""
    model = toy.plain_model(problem)
    settings = cases.CASES[name][0].settings
    process = tff_algos.build(name, model, num_clients=toy.NUM_CLIENTS, **settings)
    method = process.method
    weights, halved = _other_weights(model), [w / 2 for w in model.initial_weights]
    wanted, state = [], method.initialize()
    for r, given in enumerate((weights, halved)):
        state, _ = _one_round(method, problem, _with_weights(method, state, given), r)
        wanted.append(state)
    for runtime in runtimes.RUNTIMES:
        with runtimes.installed(runtime):
            bound = runtimes.bind(process)
            state = bound.initialize()
            for r, given in enumerate((weights, halved)):
                new = tff.learning.models.ModelWeights(list(given), [])
                state = process.set_model_weights(state, new)
                got = process.get_model_weights(state).trainable
                np.testing.assert_array_equal(got[0], given[0])
                data = [toy.client_data(problem, r, k) for k in COHORT]
                kept = []
                if method.client_state is not None:
                    kept = [[process.initial_client_state()] * len(COHORT)]
                state = bound.next(state, data, *kept).state
                assert_same_state(state, wanted[r], atol=1e-5)
