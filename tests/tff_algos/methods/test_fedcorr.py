"""FedCorr against its oracle, part by part and over all three stages, and what it must do."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation.rounds import loop
from tasks import layers
from tasks.models import image_models, losses, models
from tests.oracles import adafed as adafed_oracle
from tests.oracles import cohort as cohort_lib
from tests.oracles import fedcorr as oracle
from tests.oracles import fedopt
from tests.oracles import problem as problem_lib
from tests.tff_algos import case, mutants, shared, toy
from tff_algos import random
from tff_algos.parts import dimensionality, mixtures, mixup
from tff_suite.hparams import HparamError

SIZES = (9, 1, 12, 7, 10, 8)
PER_ROUND = 3
RATE = 0.4
SETTINGS = dict(
    client_learning_rate=RATE,
    iterations=2,
    stage1_clients=2,
    stage2_rounds=2,
    beta=0.7,
    neighbors=4,
    relabel_ratio=0.9,
    confidence=0.4,
    clean_level=0.2,
)
ROUNDS = 10  # 2 x 3 of stage 1, 2 of stage 2, 2 of stage 3.


class ToyClients:
    """`tff_algos.driver.Clients` of the oracles' problem."""

    def __init__(self, problem):
        self._problem = problem
        self.num_examples = np.array([len(y) for _, y in problem.clients])

    def labels(self, client):
        return self._problem.clients[client][1].astype(np.int32)

    def permutation(self, iteration):
        return np.random.default_rng((5, iteration)).permutation(len(self.num_examples))

    def sample(self, round_index, among):
        rng = np.random.default_rng((6, round_index))
        return rng.choice(among, min(PER_ROUND, len(among)), replace=False)

    def batches(self, round_index, client, labels):
        return tff_algos.batch_client(
            self._problem.clients[client][0].astype(np.float32),
            labels,
            batch_size=toy.BATCH_SIZE,
            epochs=toy.EPOCHS,
            order_seed=(1, round_index, client),
            dropout_seed=(2, round_index, client),
            index=client,
        )

    def in_order(self, client, labels):
        x = self._problem.clients[client][0].astype(np.float32)
        return tff_algos.batch_client(
            x, labels, batch_size=toy.BATCH_SIZE, shuffle=False, index=client
        )

    def batch_order(self, round_index, client):
        data = self.batches(round_index, client, np.arange(self.num_examples[client]))
        return [y[m > 0] for y, m in zip(data.y, data.mask, strict=True)]

    def mix(self, round_index, client, step, number):
        """s and the permutation of a minibatch, from the draws that mixup is specified by."""
        seed = self.batches(round_index, client, self.labels(client)).seed
        seed = random.fold_in(tf.constant(seed), step=step)
        share = random.uniform([], random.fold_in(seed, layer=-1)).numpy()
        places = random.uniform([toy.BATCH_SIZE], random.fold_in(seed, layer=-2)).numpy()
        return float(share), np.argsort(places[:number], kind="stable")


def make_problem(noisy=(2, 4)):
    """Clients whose labels are the classes of a common model, except some of random labels."""
    problem = problem_lib.make_problem(3, SIZES)
    rng = np.random.default_rng(1)
    clients = [
        (x, rng.integers(0, problem_lib.NUM_CLASSES, len(y)) if k in noisy else y)
        for k, (x, y) in enumerate(problem.clients)
    ]
    return problem._replace(clients=clients)


def build(problem, dropout=0.0, **changes):
    return tff_algos.build("fedcorr", toy.toy_model(problem, dropout), **(SETTINGS | changes))


def run(driver, clients, rounds=ROUNDS, state=None):
    state = driver.initialize(clients) if state is None else state
    states, metrics = [], []
    while int(state.round_num) < rounds:
        output = driver.next(state, driver.cohort(state, clients), clients)
        state = output.state
        states.append(state)
        metrics.append({name: float(v) for name, v in output.metrics.items()})
    return states, metrics


def schedule(clients):
    rounds = []
    for iteration in range(2):
        order = clients.permutation(iteration)
        rounds += [(1, list(order[i : i + 2]), i == 4) for i in (0, 2, 4)]
    for r in range(6, 10):

        def sampled(clean, r=r):
            return clients.sample(r, clean if r < 8 else np.arange(len(SIZES)))

        rounds.append((2 if r < 8 else 3, sampled, r == 7))
    return rounds


def expected(problem, clients, mix=True, aggregate=None, **changes):
    settings = {
        "lr": RATE,
        "beta": 0.7,
        "neighbors": 4,
        "ratio": 0.9,
        "threshold": 0.4,
        "clean_level": 0.2,
    } | changes
    return oracle.run(
        problem.clients,
        problem.initial_weights,
        schedule(clients),
        clients.batch_order,
        mix=clients.mix if mix else None,
        aggregate=aggregate,
        **settings,
    )


def assert_follows(states, want):
    for state, w in zip(states, want, strict=True):
        for got, weights in zip(state.weights, w["weights"], strict=True):
            np.testing.assert_allclose(got, weights, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(state.labels, w["labels"])
        np.testing.assert_allclose(state.dimensionality, w["lid"], rtol=1e-3)
        np.testing.assert_allclose(state.noise_level, w["levels"])
        np.testing.assert_array_equal(state.noisy, w["noisy"])


def adafed_mean(x, reports):
    """One step of AdaFed, gamma = 2, step rule `mean`."""
    vectors = np.stack([cohort_lib.flat(x) - cohort_lib.flat(w) for _, w, _ in reports])
    targets = np.array([loss**2.0 for _, _, loss in reports])
    u = adafed_oracle.closed_form(vectors, targets)
    step = targets.mean() * u / np.dot(u, u)
    return cohort_lib.like(x, cohort_lib.flat(x) - step)


@pytest.mark.quick_cases("mixup-tff")
@pytest.mark.parametrize("runtime", ["tff", "native"])
@pytest.mark.parametrize("kind", ["mixup", "plain", "adafed"])
def test_oracle(runtime, kind):
    problem = make_problem()
    clients = ToyClients(problem)
    changes = {
        "mixup": {},
        "plain": {"mixup": False},
        "adafed": dict(
            aggregation="adafed", adafed_gamma=2.0, adafed_step_rule="mean", mixup=False
        ),
    }[kind]
    aggregate = adafed_mean if kind == "adafed" else None
    want = expected(problem, clients, mix=kind == "mixup", aggregate=aggregate)
    with shared.installed(runtime):
        states, metrics = run(build(problem, **changes), clients)
    assert_follows(states, want)
    # Else the comparison would prove nothing.
    fixed = [m["labels_corrected"] for m in metrics]
    assert fixed[2] + fixed[5] > 0 and fixed[7] > 0 and sum(m > 0 for m in fixed) <= 3
    assert [m["stage"] for m in metrics] == [1] * 6 + [2] * 2 + [3] * 2
    assert set(tff_algos.get("fedcorr").measures) <= metrics[0].keys()
    assert 0 < want[2]["noisy"].sum() < len(SIZES) and want[2]["levels"].max() > 0


MUTATIONS = [
    (
        "tf.math.divide_no_nan(beta * noise_level, away.norm())",
        "tf.math.divide_no_nan(-beta * noise_level, away.norm())",
    ),
    (
        "tf.math.divide_no_nan(beta * noise_level, away.norm())",
        "tf.math.divide_no_nan(beta, away.norm())",
    ),
    case.OWN_WEIGHT,
    case.RATE[0],
    ("losses[k] += found.losses", "losses[k][:] = found.losses"),
    (
        "after.dimensionality[k] += found.dimensionality",
        "after.dimensionality[k] = found.dimensionality",
    ),
    ('np.argsort(-losses[k], kind="stable")', 'np.argsort(losses[k], kind="stable")'),
    (
        "len(own[k]) * state.noise_level[k] * self.relabel_ratio",
        "len(own[k]) * state.noise_level[k]",
    ),
    (
        "self._corrected(state, clients, carry_out, everything=place.stage == 2)",
        "self._corrected(state, clients, carry_out, everything=True)",
    ),
    ("np.asarray(state.noise_level) <= self.clean_level", "np.asarray(state.noise_level) <= 1.0"),
    ("place.stage == 2 and len(clean)", "len(clean)"),
    (
        "[Assignment(k, labels[k]) for k in map(int, clients.sample(round_index, among))]",
        "[Assignment(k, clients.labels(k)) for k in map(int, clients.sample(round_index, among))]",
    ),
    ("np.float32(state.noise_level[k])", "np.float32(0.0)"),
    ("by_example(model, result.weights, whole)", "by_example(model, x, whole)"),
    ("mixed(model) if mixup else model", "model"),
]


@pytest.mark.long
def test_mutations_are_caught():
    """One sign, weight or write-back flipped: the oracle must disagree."""
    problem = make_problem()
    clients = ToyClients(problem)
    want = expected(problem, clients)
    with shared.installed("tff"):
        for old, new in MUTATIONS:
            module = mutants.of_method("fedcorr", old, new)
            driver = toy.build_mutant(module, "fedcorr", toy.toy_model(problem), SETTINGS)
            states, _ = run(driver, clients)
            with pytest.raises(AssertionError):
                assert_follows(states, want)
                pytest.exit(f"the oracle does not notice {old!r} -> {new!r}")


@pytest.mark.parametrize("number", [0, 1, 2, 3, 30])
def test_dimensionality(number):
    rng = np.random.default_rng(number)
    points = rng.dirichlet([0.5] * 4, number).astype(np.float32)
    lid, count = dimensionality.estimate(tf.constant(points), 20)
    want, points_used = oracle.client_dimensionality(points.astype(float), 20)
    np.testing.assert_allclose(lid, want, rtol=1e-4)
    assert int(count) == points_used


def test_dimensionality_where_predictions_coincide():
    same = np.tile(np.eye(3, dtype=np.float32)[:1], (6, 1))
    lid, count = dimensionality.estimate(tf.constant(same), 4)
    assert (float(lid), int(count)) == (0.0, 6)
    # The odd one is equally far from all others, which says nothing of a dimension.
    lid, count = dimensionality.estimate(tf.constant(np.vstack([same, [[0, 0, 1]]])), 4)
    assert int(count) == 6 and float(lid) == 0.0


def test_dimensionality_is_that_of_the_points():
    """The estimator's law: points spread over d dimensions have one of about d."""
    rng = np.random.default_rng(0)
    for d in (1, 2, 4):
        points = np.zeros((1500, 6), np.float32)
        points[:, :d] = rng.random((1500, d))
        lid, _ = dimensionality.estimate(tf.constant(points), 20)
        assert abs(float(lid) - d) < 0.25 * d


@pytest.mark.parametrize("seed", range(5))
def test_mixture_is_em_from_the_best_split(seed):
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(0, 1, 20 + seed), rng.normal(3, 0.5 + seed / 5, 15)])
    got = mixtures.larger_component(rng.permutation(values))
    assert 0 < got.sum() < len(values)
    values = values[::-1]
    np.testing.assert_array_equal(
        mixtures.larger_component(values), oracle.larger_component(values)
    )


@pytest.mark.parametrize("values", [[], [2.0], [3.0, 3.0, 3.0]])
def test_equal_values_are_one_component(values):
    assert not mixtures.larger_component(np.array(values)).any()


def test_mixture_of_two_values():
    np.testing.assert_array_equal(mixtures.larger_component([5.0, 1.0]), [True, False])


def test_mixup_mixes_real_examples_only():
    problem = make_problem()
    model = toy.toy_model(problem)
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    mask = tf.constant([1.0, 1.0, 1.0, 0.0, 0.0])
    batch = tff_algos.Batch(tf.constant(x), tf.constant([0, 1, 2, 0, 0]), mask)
    seen = set()
    for s in range(12):
        seed = tf.constant([s, 7])
        share, partners = mixup.draws(mask, seed)
        assert 0 <= float(share) < 1 and sorted(partners.numpy()[:3]) == [0, 1, 2]
        seen.add((round(float(share), 3), *partners.numpy()[:3]))
        got = mixup.mixed(model).forward(model.initial_weights, batch, True, seed)
        order = partners.numpy()[:3]
        at = float(share) * x[:3] + (1 - float(share)) * x[:3][order]
        own = problem_lib.mean_loss(problem.initial_weights, at, np.array([0, 1, 2]))
        other = problem_lib.mean_loss(problem.initial_weights, at, np.array([0, 1, 2])[order])
        want = float(share) * own + (1 - float(share)) * other
        np.testing.assert_allclose(got.objective, want, rtol=1e-5)
    assert len(seen) == 12
    plain = mixup.mixed(model).forward(model.initial_weights, batch, False, tf.zeros([2], tf.int32))
    untouched = model.forward(model.initial_weights, batch, False, tf.zeros([2], tf.int32))
    np.testing.assert_array_equal(plain.objective, untouched.objective)


def test_mixup_of_bytes_mixes_what_the_model_makes_of_them():
    keras_model = image_models.of_bytes(
        0,
        model_fn=functools.partial(models.mlp, hidden=(), num_classes=4),
        shape=(6, 6, 3),
        crop=5,
        distort=True,
        scaling="standardize",
    )
    model = tff_algos.from_keras(keras_model, loss=losses.sparse_softmax_cross_entropy)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 6, 6, 3), np.uint8)
    labels, mask = np.array([2, 0, 3], np.int32), np.ones(3, np.float32)
    kernel, bias = model.initial_weights

    def mean_loss(x, y):
        logits = x.reshape(3, -1).astype(np.float64) @ kernel + bias
        return np.mean(np.log(np.sum(np.exp(logits), 1)) - logits[np.arange(3), y])

    for s in range(4):
        seed = tf.constant([s, 7])
        share, order = (np.asarray(v) for v in mixup.draws(tf.constant(mask), seed))
        # Every image is cut and flipped for itself, before it is mixed.
        draws = functools.partial(random.uniform, seed=random.fold_in(seed, layer=1))
        layer = layers.images.PrepareImages(5, True, "standardize")
        prepared = layer.call(images, training=True, uniform=draws).numpy()
        x = share * prepared + (1 - share) * prepared[order]
        want = share * mean_loss(x, labels) + (1 - share) * mean_loss(x, labels[order])
        batch = tff_algos.Batch(tf.constant(images), tf.constant(labels), tf.constant(mask))
        got = mixup.mixed(model).forward(model.initial_weights, batch, True, seed)
        np.testing.assert_allclose(got.objective, want, rtol=1e-5)
    plain = mixup.mixed(model).forward(model.initial_weights, batch, False, seed)
    untouched = model.forward(model.initial_weights, batch, False, seed)
    np.testing.assert_array_equal(plain.objective, untouched.objective)


def test_mixup_of_integers_is_refused():
    keras_model = tf.keras.Sequential(
        [tf.keras.layers.InputLayer((4,), dtype=tf.int32), tf.keras.layers.Embedding(5, 2)]
    )
    keras_model.add(tf.keras.layers.Flatten())
    model = tff_algos.from_keras(keras_model, loss=losses.sparse_softmax_cross_entropy)
    with pytest.raises(tff_algos.ModelError, match="Mixup needs floating-point inputs, not int32"):
        mixup.mixed(model)


@pytest.mark.slow
def test_without_noise_found_stages_two_and_three_are_fedavg_on_all():
    """Equal clients have equal LIDs: one component, nothing noisy, nothing relabelled."""
    one = problem_lib.make_problem(3, (9,))
    problem = one._replace(clients=one.clients * 4)
    clients = ToyClients(problem)
    # Steps on the whole data, which no order of examples changes.
    clients.batches = lambda r, k, labels: tff_algos.batch_client(
        problem.clients[k][0].astype(np.float32), labels, batch_size=1, full_batch=True, index=k
    )
    settings = dict(iterations=2, stage1_clients=4, mixup=False, confidence=0.0, clean_level=0.0)
    driver = build(problem, **settings)
    with shared.installed("tff"):
        states, _ = run(driver, clients, rounds=6)
        assert not states[-1].noisy.any() and not states[-1].noise_level.any()
        np.testing.assert_array_equal(states[-1].labels, np.tile(one.clients[0][1], 4))
    cohorts = [clients.sample(r, np.arange(4)) for r in range(2, 6)]
    for r in (2, 3):
        state = states[r - 1]
        asked = [a.client for a in driver.cohort(state, clients)]
        assert asked == list(cohorts[r - 2]), "stage 2 is on all clients"
    want = fedopt.run(
        problem._replace(initial_weights=tuple(w.astype(float) for w in states[1].weights)),
        "fedavg",
        "released",
        [{k: [np.arange(9)] for k in range(4)}] * 4,
        rounds=4,
        cohorts=cohorts,
        client_lr=RATE,
        server_lr=1.0,
    ).weights
    for state, weights in zip(states[2:], want, strict=True):
        for got, w in zip(state.weights, weights, strict=True):
            np.testing.assert_allclose(got, w, atol=1e-5)


@pytest.mark.slow
def test_clients_of_random_labels_are_noisy():
    """100 % random labels, else classes that overlap little: these clients are the noisy group."""
    rng = np.random.default_rng(4)
    clients = []
    for k in range(10):
        y = rng.integers(0, 3, 100)
        x = (2.0 * np.eye(3)[y] + rng.normal(size=(100, 3))).astype(np.float32)
        clients.append((x.astype(float), rng.integers(0, 3, 100) if k in (1, 6, 7) else y))
    problem = problem_lib.make_problem()._replace(clients=clients)
    source = ToyClients(problem)
    settings = dict(
        iterations=2, stage1_clients=10, neighbors=20, client_learning_rate=0.1, mixup=False
    )
    with shared.installed("tff"):
        states, _ = run(build(problem, **settings), source, rounds=2)
    assert set(np.flatnonzero(states[-1].noisy)) == {1, 6, 7}
    assert all(states[-1].noise_level[[1, 6, 7]] > 0.1)


def test_a_stopped_run_goes_on_from_the_arrays_of_its_state():
    problem = make_problem()
    clients = ToyClients(problem)
    with shared.installed("tff"):
        driver = build(problem, dropout=0.3)
        whole, metrics = run(driver, clients)
        for stop in (4, 7):  # Within an iteration of stage 1, and before stage 2 corrects labels.
            leaves = loop.flatten_state(whole[stop - 1])
            again = build(problem, dropout=0.3)
            state = loop.restore_state(again.initialize(clients), leaves)
            resumed, later = run(again, clients, state=state)
            assert later == metrics[stop:]
            for got, want in zip(resumed, whole[stop:], strict=True):
                pairs = zip(loop.flatten_state(got), loop.flatten_state(want), strict=True)
                assert all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def test_a_client_whose_update_is_not_finite_is_dropped_and_not_judged():
    problem = make_problem()
    clients = ToyClients(problem)
    batches = clients.batches

    def spoiled(r, k, labels):
        data = batches(r, k, labels)
        return data._replace(x=np.full_like(data.x, np.nan)) if k == 2 else data

    clients.batches = spoiled
    with shared.installed("tff"):
        states, metrics = run(build(problem), clients)
    assert sum(m["clients_dropped"] for m in metrics[:6]) == 2
    assert all(np.isfinite(w).all() for s in states for w in s.weights)
    last = states[-1]
    assert last.visits[2] == 0 and not last.noisy[2] and last.noise_level[2] == 0
    assert np.isfinite(last.losses).all() and last.visits[0] == 2


def test_losses_that_are_not_finite_are_not_judged():
    """x_k is finite but too large for an example: a mixture of such losses cannot be fitted."""
    problem, noisy = make_problem(), 2
    clients = ToyClients(problem)
    in_order = clients.in_order
    driver = build(problem)
    with shared.installed("tff"):
        (*_, before), _ = run(driver, clients, 3)
        assert before.noisy[noisy]

        def spoiled(k, labels):
            data = in_order(k, labels)
            data.x[:1] *= np.nan if k == noisy else 1.0
            return data

        clients.in_order = spoiled
        (*_, after), metrics = run(driver, clients, 6, before)
    assert not any(m["clients_dropped"] for m in metrics)
    stays = np.repeat(np.arange(len(SIZES)) == noisy, SIZES)
    np.testing.assert_array_equal(after.losses == before.losses, stays)
    assert np.isfinite(after.losses).all()
    assert (after.visits[noisy], after.visits[0]) == (1, 2)


@pytest.mark.slow
def test_labels_change_for_noisy_clients_only_and_the_given_ones_stay():
    problem = make_problem()
    clients = ToyClients(problem)
    given = [clients.labels(k) for k in range(len(SIZES))]
    with shared.installed("tff"):
        states, _ = run(build(problem), clients)
    ends = np.cumsum(SIZES)[:-1]
    ever = np.any([s.noisy for s in states], axis=0)
    for k, (now, before) in enumerate(zip(np.split(states[-1].labels, ends), given, strict=True)):
        assert ever[k] or (now == before).all()
        np.testing.assert_array_equal(clients.labels(k), before)


def test_refusals():
    problem = make_problem()
    with pytest.raises(HparamError, match="adafed_gamma is not used with aggregation=fedavg"):
        build(problem, adafed_gamma=1.0)
    keras_model = toy.keras_model(problem)
    rows = tff_algos.from_keras(
        keras_model,
        loss=lambda y, outputs: tf.square(tf.cast(y, tf.float32) - outputs),
        y_spec=tf.TensorSpec([None, 3], tf.int32),
    )
    with pytest.raises(tff_algos.ModelError, match="one score per class"):
        tff_algos.build("fedcorr", rows, **SETTINGS)
    words = toy.toy_model(problem)._replace(x_spec=tf.TensorSpec([None, 3], tf.int32))
    with pytest.raises(tff_algos.ModelError, match="floating-point inputs"):
        tff_algos.build("fedcorr", words, **SETTINGS)
