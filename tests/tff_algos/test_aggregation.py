"""TFF's aggregators in the place of the mean of updates: as in TFF's own averaging, and seeded."""

import functools
import gc
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from simulation import runtimes
from simulation.engine.batched_ops import NotVectorizable
from tests.tff_algos import cases, eager, shared, toy
from tff_algos import aggregation, aggregators, registry
from tff_suite import hparams
from tff_suite.hparams import HparamError

pytestmark = pytest.mark.slow

RATES = {"client_learning_rate": 0.3, "server_learning_rate": 1.0}
UNIFORM = {**RATES, "client_weighting": "uniform"}
NOISELESS = {"aggregator": "dp", "aggregator_noise_multiplier": 0.0}
NOISY = {"aggregator": "dp", "aggregator_noise_multiplier": 0.3}
# Quantises the kernel of nine numbers, not the bias.
QUANTISED = {"aggregator": "compressed", "aggregator_threshold": 4}
COHORT = 4
SETTINGS = [
    {"aggregator": "robust"},
    {**NOISY, "client_weighting": "uniform"},
    QUANTISED,
    {"aggregator": "secure"},
]


@pytest.fixture(scope="module")
def problem():
    return shared.problem()


@functools.cache
def build(name="fedavg", seed=5, **settings):
    model = toy.plain_model(shared.problem())
    settings = {**RATES, "clients_per_round": COHORT, **settings}
    return tff_algos.build(name, model, num_clients=toy.NUM_CLIENTS, seed=seed, **settings)


def datasets(problem, spoiled=()):
    for k, (x, y) in enumerate(problem.clients):
        x = np.full_like(x, np.nan) if k in spoiled else x
        pairs = (x.astype(np.float32), y.astype(np.int32))
        yield tf.data.Dataset.from_tensor_slices(pairs).batch(3)


def theirs(problem, factory, weighted):
    def model():
        return tff.learning.models.from_keras_model(
            toy.keras_model(problem),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=(tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32)),
        )

    build_theirs = getattr(
        tff.learning.algorithms,
        "build_weighted_fed_avg" if weighted else "build_unweighted_fed_avg",
    )
    return build_theirs(
        model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.3),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
        model_aggregator=factory,
    )


@pytest.mark.quick_cases("robust")
@pytest.mark.parametrize(
    ("settings", "factory"),
    [
        ({"aggregator": "robust"}, tff.learning.robust_aggregator),
        ({"aggregator": "secure"}, tff.learning.secure_aggregator),
        # Nothing is large enough to be quantised.
        ({"aggregator": "compressed"}, tff.learning.compression_aggregator),
        ({**NOISELESS, **UNIFORM}, functools.partial(tff.learning.dp_aggregator, 0.0, COHORT)),
        (
            {**NOISELESS, **UNIFORM, "aggregator_zeroing": False},
            functools.partial(tff.learning.dp_aggregator, 0.0, COHORT, zeroing=False),
        ),
    ],
    ids=["robust", "secure", "compressed", "dp", "dp-no-zeroing"],
)
def test_is_tffs_averaging_under_the_same_aggregator(problem, settings, factory):
    """Weights and all of the aggregator's state, also after a round with a client dropped."""
    own, factory = build(**settings), factory()
    weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
    tffs = theirs(problem, factory, weighted)
    their_next, _ = aggregation._in_clear(tffs.next)
    with shared.installed("tff"):
        state, their_state = own.initialize(), tffs.initialize()
        their_state = tffs.set_model_weights(their_state, own.get_model_weights(state))
        for spoiled in ((), (1,), (), ()):
            clients = list(datasets(problem, spoiled))
            state = own.next(state, [tff_algos.from_dataset(d) for d in clients]).state
            their_state = their_next(their_state, clients).state
        got = own.get_model_weights(state).trainable
        want = tffs.get_model_weights(their_state).trainable
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-6)
    ours = {k: v for k, v in _numbers(state.aggregator).items() if not k.endswith("drawn")}
    expected = _numbers(their_state.aggregator)
    assert len(ours) == len(expected)
    np.testing.assert_allclose(list(ours.values()), list(expected.values()), rtol=1e-6)


def _numbers(state):
    """Returns the numbers of a state by their paths, without the layer that counts the draws."""
    paths = {}

    def look(path, value):
        if hasattr(value, "_asdict"):
            value = value._asdict()
        if isinstance(value, dict):
            for key, v in value.items():
                look(path if key == "query" else f"{path}/{key}", v)
        elif isinstance(value, (list, tuple)):
            for i, v in enumerate(value):
                look(f"{path}/{i}", v)
        elif not isinstance(value, bytes):
            paths[path] = float(value)

    look("", state)
    return paths


@pytest.mark.quick_cases("vectorized-robust")
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings["aggregator"])
@pytest.mark.parametrize("runtime", ["vectorized", "native"])
def test_runtimes_agree(problem, runtime, settings):
    process = build("fedavgm", **settings)
    spoiled = {(1, 2)}
    with shared.installed("tff"):
        want, want_metrics = toy.run(process, problem, spoiled=spoiled)
    with shared.installed(runtime):
        got, got_metrics = toy.run(process, problem, spoiled=spoiled)
    # A number on the brink of rounding up or down may go the other way.
    atol = 0.02 if settings is QUANTISED else 1e-5
    for a, b in zip(want, got, strict=True):
        for x, y in zip(a.weights, b.weights, strict=True):
            np.testing.assert_allclose(y, x, atol=atol)
    assert [list(m) for m in got_metrics] == [list(m) for m in want_metrics]
    names = [n for n in want_metrics[0] if n.startswith("aggregator/")]
    assert "aggregator/zeroing/zeroed_count" in names or "aggregator/zeroed_count" in names
    for a, b in zip(want_metrics, got_metrics, strict=True):
        values = [[float(m[n]) for n in names] for m in (a, b)]
        np.testing.assert_allclose(values[1], values[0], rtol=1e-4)


def _length(update):
    return np.sqrt(sum(np.sum(d**2) for d in update))


def _largest(update):
    return max(np.max(np.abs(d)) for d in update)


def _clipped(update, bound):
    return [d * min(1.0, bound / _length(update)) for d in update]


def _zeroed(update, bound):
    return [d * (_largest(update) <= bound) for d in update]


def _rounded(update, bound):
    kernel, bias = update
    low, high = np.min(kernel), np.max(kernel)
    return [np.round((kernel - low) / (high - low) * 15) / 15 * (high - low) + low, bias]


@pytest.mark.parametrize(
    ("factory", "size", "effect"),
    [
        (
            lambda bound: tff.learning.secure_aggregator(zeroing=False, clipping=False),
            _length,
            lambda update, bound: update,
        ),
        (
            lambda bound: tff.aggregators.clipping_factory(bound, tff.aggregators.MeanFactory()),
            _length,
            _clipped,
        ),
        (
            lambda bound: tff.aggregators.zeroing_factory(bound, tff.aggregators.MeanFactory()),
            _largest,
            _zeroed,
        ),
        (
            # 4 bits for the kernel; TFF's compression, but that it rounds to the nearest.
            lambda bound: tff.aggregators.MeanFactory(
                tff.aggregators.EncodedSumFactory.quantize_above_threshold(4, 4, stochastic=False)
            ),
            _length,
            _rounded,
        ),
    ],
    ids=["secure", "clipping", "zeroing", "compression"],
)
def test_objects_do_to_updates_what_they_are_for(problem, factory, size, effect):
    """A round of FedAvg under each, from the updates that its clients make alone."""
    model, cohort = toy.plain_model(problem), toy.COHORTS[0]
    start, updates = [np.float64(w) for w in model.initial_weights], []
    for k in cohort:
        (alone,) = toy.run_eagerly("fedavg", problem, model, ((k,),), **RATES)
        updates.append([np.float64(a) - b for a, b in zip(alone.weights, start, strict=True)])
    # Some clients' sizes are below it and some above.
    bound = float(np.median([size(u) for u in updates]))
    changed = [effect(u, bound) for u in updates]
    counts = [len(problem.clients[k][1]) for k in cohort]
    process = build(model_aggregator=factory(bound))
    with shared.installed("tff"):
        (state,), _ = toy.run(process, problem, (cohort,))
    for i, got in enumerate(state.weights):
        want = start[i] + np.average([u[i] for u in changed], axis=0, weights=counts)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_distributed_dp_without_noise_to_speak_of_is_the_mean(problem):
    """Updates below its first clipping norm, 0.1; it sums them rotated, scaled by 1e6 and whole."""
    model = toy.plain_model(problem)
    settings = {**UNIFORM, "client_learning_rate": 1e-3}
    (want,) = toy.run_eagerly("fedavg", problem, model, toy.COHORTS[:1], **settings)
    factory = tff.learning.ddp_secure_aggregator(1e-6, len(toy.COHORTS[0]))
    with pytest.warns(RuntimeWarning, match="simulates secure aggregation"):
        process = build(model_aggregator=factory, **settings)
    with shared.installed("tff"):
        (state,), _ = toy.run(process, problem, toy.COHORTS[:1])
    for got, mean, start in zip(state.weights, want.weights, model.initial_weights, strict=True):
        assert np.max(np.abs(mean - start)) > 1e-4
        np.testing.assert_allclose(got, mean, atol=1e-5)


AGGREGATED = [n for n in cases.OWN if not isinstance(registry.get(n).aggregated, str)]


@pytest.mark.quick_cases("scaffold")
@pytest.mark.parametrize("name", shared.methods(AGGREGATED))
def test_tffs_plain_mean_is_the_methods_own(problem, name):
    """What a method declares to be its mean of updates is, whatever else it averages."""
    settings = shared.settings(name)
    model = toy.plain_model(problem)
    with shared.installed("tff"):
        plain = tff_algos.build(name, model, num_clients=toy.NUM_CLIENTS, **settings)
        factory = tff.aggregators.MeanFactory()
        other = tff_algos.build(
            name, model, num_clients=toy.NUM_CLIENTS, model_aggregator=factory, **settings
        )
        want, want_metrics = toy.run(plain, problem)
        got, got_metrics = toy.run(other, problem)
    for a, b in zip(want, got, strict=True):
        assert b._fields == (*a._fields, "aggregator")
        for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b[:-1]), strict=True):
            np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-6)
    assert [list(m) for m in got_metrics] == [list(m) for m in want_metrics]


def test_a_round_in_which_nobody_counts_leaves_the_state(problem):
    process = build(**NOISY, client_weighting="uniform")
    everybody = {(0, k) for k in range(toy.NUM_CLIENTS)}
    with shared.installed("tff"):
        initial = process.initialize()
        states, metrics = toy.run(process, problem, spoiled=everybody)
    before, after = tf.nest.flatten(initial.aggregator), tf.nest.flatten(states[0].aggregator)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    for a, b in zip(initial.weights, states[0].weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(states[0].round_num) == 1 and metrics[0]["clients_dropped"] == len(toy.COHORTS[0])
    assert any(
        not np.array_equal(*p)
        for p in zip(after, tf.nest.flatten(states[1].aggregator), strict=True)
    )


def test_setting_weights_keeps_the_aggregators_state(problem):
    process = build("adafedadam", aggregator="robust")
    with shared.installed("tff"):
        states, _ = toy.run(process, problem)
        weights = process.get_model_weights(states[0])
        reset = process.set_model_weights(states[-1], weights)
    assert type(reset) is type(states[-1])
    np.testing.assert_array_equal(reset.weights[0], states[0].weights[0])
    for a, b in zip(*(tf.nest.flatten(s.aggregator) for s in (reset, states[-1])), strict=True):
        np.testing.assert_array_equal(a, b)


class _Updates:
    """An aggregator alone, on updates that are given."""

    def __init__(self, factory, size):
        model = toy.plain_model(shared.problem())._replace(
            initial_weights=(np.zeros([size], np.float32),)
        )
        self.aggregator = aggregation.Aggregator(factory, model)
        self.state = self.aggregator.initial_state

    def next(self, *updates, weights=None):
        values = [(u.astype(np.float32),) for u in updates]
        weights = [weights or [1.0] * len(values)] if self.aggregator.weighted else []
        output = self.output = self.aggregator.next(self.state, values, *weights)
        self.state = output.state
        return output.result[0]


def test_dp_noise_has_its_distribution():
    """Independent normal draws of TFF's deviation, other ones in every round and for every seed."""
    multiplier, clients, size = 0.2, 10.0, 40000
    with shared.installed("tff"):
        updates = _Updates(aggregators.dp(multiplier, clients, seed=[1, 2], zeroing=False), size)
        first, second = updates.next(np.zeros(size)), updates.next(np.zeros(size))
        other = _Updates(
            aggregators.dp(multiplier, clients, seed=[1, 3], zeroing=False), size
        ).next(np.zeros(size))
        again = _Updates(
            aggregators.dp(multiplier, clients, seed=[1, 2], zeroing=False), size
        ).next(np.zeros(size))
    np.testing.assert_array_equal(first, again)
    # adaptive_clip_noise_params: (z^-2 - (2 b)^-2)^-1/2 with b = clients / 20; the clip is 0.1.
    deviation = (multiplier**-2 - (2 * clients / 20) ** -2) ** -0.5 * 0.1 / clients
    for draws in (first, other):
        standard = np.sort(draws / deviation)
        assert abs(np.mean(standard)) < 4 / np.sqrt(size)
        assert abs(np.std(standard) - 1) < 4 / np.sqrt(2 * size)
        assert abs(np.mean(np.abs(standard) < 1) - 0.6827) < 0.01
    for a, b in ((first, second), (first, other)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.025
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("settings", "factory"),
    [
        (
            {"aggregator_clip": 0.05},
            lambda: tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.0, COHORT, 0.05),
        ),
        (
            {
                "aggregator_initial_clip": 0.05,
                "aggregator_target_quantile": 0.8,
                "aggregator_clip_learning_rate": 0.7,
            },
            lambda: tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
                0.0,
                COHORT,
                initial_l2_norm_clip=0.05,
                target_unclipped_quantile=0.8,
                learning_rate=0.7,
            ),
        ),
    ],
    ids=["fixed", "adaptive"],
)
def test_dp_settings_are_those_of_tffs_factories(settings, factory):
    """Without noise, round by round: also the clipping norm that one round hands to the next."""
    given = {**registry.resolve_training(registry.get("fedavg"), UNIFORM | NOISELESS | settings)}
    own = aggregators.build(given | {"aggregator_zeroing": False}, 3, COHORT)
    updates = np.random.default_rng(0).normal(scale=0.05, size=(5, COHORT, 7))
    clipped = []
    with shared.installed("tff"):
        both = [_Updates(f, 7) for f in (own, factory())]
        for of_round in updates:
            ours, tffs = (u.next(*of_round) for u in both)
            np.testing.assert_array_equal(ours, tffs)
            clipped.append(not np.allclose(ours, of_round.mean(0)))
    assert clipped[0]


@pytest.mark.parametrize(
    ("build_factory", "settings", "deviation"),
    [
        (aggregators.dp_fixed, {"clip": 0.5}, 1.1 * 0.5 / 10),
        # adaptive_clip_noise_params: (z^-2 - (2 b)^-2)^-1/2.
        (
            aggregators.dp,
            {"initial_clip": 0.5, "count_stddev": 1.0, "learning_rate": 0.0},
            (1.1**-2 - 2.0**-2) ** -0.5 * 0.5 / 10,
        ),
    ],
    ids=["fixed", "adaptive"],
)
def test_dp_noise_for_few_clients_has_its_distribution(build_factory, settings, deviation):
    size = 40000
    with shared.installed("tff"):
        factory = build_factory(1.1, 10.0, seed=[1, 2], zeroing=False, **settings)
        updates = _Updates(factory, size)
        first, second = updates.next(np.zeros(size)), updates.next(np.zeros(size))
    for draws in (first, second):
        standard = draws / deviation
        assert abs(np.mean(standard)) < 4 / np.sqrt(size)
        assert abs(np.std(standard) - 1) < 4 / np.sqrt(2 * size)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.025


@pytest.mark.parametrize(
    "setting", [{"aggregator_clipped_count_stddev": 1.0}, {"aggregator_clip": 0.1}]
)
def test_ten_clients_train_with_much_noise(problem, setting):
    """Flower's example has ten clients a round and a noise multiplier of 1.1."""
    given = {**NOISY, "aggregator_noise_multiplier": 1.1, "client_weighting": "uniform"}
    with pytest.raises(HparamError, match="must be below 1 for 10 clients"):
        build(clients_per_round=10, **given)
    with shared.installed("tff"):
        states, _ = toy.run(build(clients_per_round=10, **given, **setting), problem)
    assert all(np.all(np.isfinite(w)) for w in states[-1].weights)
    assert not np.array_equal(states[-1].weights[0], states[0].weights[0])


def test_dp_noise_on_the_clipping_norm_has_its_distribution():
    """The share of updates below the norm gets TFF's noise, independent of that on the updates."""
    multiplier, clients, rounds = 0.2, 8.0, 1500
    query = aggregators.dp(multiplier, clients, seed=[1, 2], zeroing=False)._query

    @functools.partial(tf.function, autograph=False)
    def next_round(state):
        nobody = query.initial_sample_state(tf.zeros([]))
        result, state, _ = query.get_noised_result(nobody, state)
        return result, query.derive_metrics(state)["clip"], state

    state, clip = query.initial_global_state(), 0.1
    norms, of_updates = [clip], []
    for _ in range(rounds):
        result, after, state = next_round(state)
        of_updates.append(float(result) / norms[-1])
        norms.append(float(after))
    # With nobody's count the share is 1/2 and its noise, of clients / 20 over clients; the norm is
    # multiplied by exp(-0.2 (share - 1/2)).
    standard = np.diff(np.log(norms)) / -0.2 * 20
    assert abs(np.mean(standard)) < 4 / np.sqrt(rounds)
    assert abs(np.std(standard) - 1) < 4 / np.sqrt(2 * rounds)
    assert abs(np.mean(np.abs(standard) < 1) - 0.6827) < 4 * np.sqrt(0.6827 * 0.3173 / rounds)
    for a, b in ((standard, of_updates), (standard[1:], standard[:-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(rounds)


def test_rounding_is_tffs_in_distribution():
    """Both round to the same 256 levels, the more often up the nearer a number is to the upper."""
    x = np.random.default_rng(4).normal(size=20001).astype(np.float32)  # TFF's least size.
    off = {"zeroing": False, "clipping": False}
    own = aggregators.compressed(bits=8, threshold=20000, seed=[1, 7], **off)
    with shared.installed("tff"):
        both = [
            _Updates(factory, x.size).next(x, weights=[3.0])
            for factory in (own, tff.learning.compression_aggregator(**off))
        ]
    level = (x.astype(np.float64) - x.min()) / (float(x.max()) - x.min()) * 255
    share = level - np.floor(level)
    for rounded in both:
        up = (rounded.astype(np.float64) - x.min()) / (float(x.max()) - x.min()) * 255
        up -= np.floor(level)
        # But for float32's digits, and for the least and the largest number, which are levels.
        assert np.all(np.minimum(np.abs(up), np.abs(up - 1)) < 1e-3)
        excess, variance = up - share, share * (1 - share)
        for weight in (np.ones_like(share), share - 0.5):
            assert abs(excess @ weight) < 4 * np.sqrt(variance @ weight**2)
    assert 0.2 < np.mean(np.abs(both[0] - both[1]) > 1e-6) < 0.45


def test_rounding_is_unbiased_and_a_function_of_the_seed():
    size, bits = 300, 2
    x = np.random.default_rng(0).normal(size=size).astype(np.float32)
    # Clients differ by less than a step, and so do the draws of what is rounded.
    clients = [x * np.float32(1 + 1e-5 * k) for k in range(400)]
    step = (x.max() - x.min()) / (2**bits - 1)

    def mean(seed, updates):
        factory = aggregators.compressed(
            bits=bits, threshold=10, seed=seed, zeroing=False, clipping=False
        )
        return _Updates(factory, size).next(*updates)

    with shared.installed("tff"):
        one, again, other = (mean([s, 7], clients[:1]) for s in (1, 1, 2))
        many = mean([1, 7], clients)
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert np.all(np.abs(one - x) <= step * 1.001) and np.any(np.abs(one - x) > step / 3)
    # The mean of 400 roundings is off by at most 4 of its deviations of step / 2 / 20 each.
    assert np.max(np.abs(many - np.mean(clients, axis=0))) < 4.5 * step / 40


def test_secure_sums_of_fractions_change_a_means_length_only():
    """TERM's weights, exp(t (L - max L)), are summed in steps of 2^-12: half a step off at most."""
    rng, step = np.random.default_rng(3), (2**20 - 1) / (2**32 - 1)
    losses = rng.uniform(0, 3, 7)
    weights = np.exp(3.0 * (losses - losses.max()))
    updates = rng.normal(size=(7, 40))
    factory = tff.learning.secure_aggregator(zeroing=False, clipping=False)
    with shared.installed("tff"):
        got = _Updates(factory, 40).next(*updates, weights=[float(w) for w in weights])
    want = weights @ updates / weights.sum()
    longer = got @ want / (want @ want)
    assert 1e-5 < abs(longer - 1) < len(weights) * step / 2
    # It is by how much the sum of the rounded weights is off; values have steps of 200 * 2^-32.
    assert longer == pytest.approx(
        weights.sum() / (np.round(weights / step) * step).sum(), rel=1e-6
    )
    np.testing.assert_allclose(got, longer * want, atol=1e-6)


def test_term_agrees_with_itself_under_secure_sums(problem):
    settings = {"t": 2.0}
    off = {"aggregator_zeroing": False, "aggregator_clipping": False}
    with shared.installed("tff"):
        want, _ = toy.run(build("term", **settings), problem)
        got, _ = toy.run(build("term", aggregator="secure", **off, **settings), problem)
    for a, b in zip(want, got, strict=True):
        for x, y in zip(a.weights, b.weights, strict=True):
            np.testing.assert_allclose(y, x, atol=1e-3)


class _Unique(tff.aggregators.UnweightedAggregationFactory):
    """Sums values after an operation that has no form over several clients."""

    def create(self, value_type):
        inner = tff.aggregators.SumFactory().create(value_type)

        @tff.tensorflow.computation(value_type)
        def work(value):
            return tf.nest.map_structure(
                lambda v: v + tf.cast(tf.size(tf.unique(tf.reshape(v, [-1]))[0]), v.dtype) * 0,
                value,
            )

        @tff.federated_computation(
            inner.initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
        )
        def next_fn(state, value):
            return inner.next(state, tff.federated_map(work, value))

        return tff.templates.AggregationProcess(inner.initialize, next_fn)


def test_vectorized_refuses_by_name_and_auto_knows(problem):
    process = build(model_aggregator=_Unique(), client_weighting="uniform")
    with shared.installed("vectorized"):
        with pytest.raises(NotVectorizable, match=r"Unique.*Use --runtime=tff"):
            runtimes.bind(process)
        name, reason = runtimes.choose(process)
        assert name == "tff" and "Unique" in reason
        assert runtimes.choose(build(aggregator="robust"))[0] == "vectorized"
    with shared.installed("tff"):
        toy.run(process, problem)


def test_a_users_own_dp_names_its_generator():
    factory = tff.learning.dp_aggregator(0.3, 4)
    with pytest.warns(RuntimeWarning, match="draws from a generator without a seed .Random"):
        build(model_aggregator=factory, client_weighting="uniform")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        build(seed=77, **NOISY, client_weighting="uniform")


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("adafed", {"aggregator": "robust"}, "adafed, which needs each client's own update"),
        ("fedmgda_plus", {"aggregator": "robust"}, "which needs each client's own update"),
        ("fedavg", NOISY, "aggregator=dp ignores clients' weights; set client_weighting=uniform"),
        ("fedavg", {"aggregator": "dp", **UNIFORM}, "noise_multiplier must be set with aggregator"),
        ("term", NOISY, "aggregator=dp is not supported by term: .* needs its own"),
        ("adafedadam", {"aggregator": "secure"}, "in steps of 2.-12 up to 2.20, and the method's"),
        ("scaffold", {"aggregator": "secure"}, "whose clients also send the changes of their con"),
        (
            "lookahead",
            {"aggregator": "secure", "state": "average"},
            "by lookahead with state=average, whose clients also send their optimizer's slots in c",
        ),
        (
            "fedlocal",
            {**NOISY, **UNIFORM},
            "by fedlocal with correction=joint, whose clients also send their scales 1/Q in clear",
        ),
        ("fedavg", {"aggregator_bits": 3}, "aggregator_bits is not used with aggregator=mean"),
        ("fedavg", {**NOISY, **UNIFORM, "aggregator_bits": 3}, "not used with aggregator=dp"),
        (
            "fedavg",
            {**UNIFORM, "aggregator": "dp", "aggregator_noise_multiplier": 40.0},
            "multiplier=40 must be below 0.4 for 4 clients .* set aggregator_clipped_count_stddev "
            "above 20, or fix aggregator_clip",
        ),
        (
            "fedavg",
            {**NOISY, **UNIFORM, "aggregator_clipped_count_stddev": 0.1},
            "multiplier=0.3 must be below 0.2",
        ),
        *(
            (
                "fedavg",
                {**NOISY, **UNIFORM, "aggregator_clip": 0.1, setting: 0.3},
                f"{setting} is not used with aggregator_clip",
            )
            for setting in registry.ADAPTIVE_CLIPPING
        ),
        (
            "fedavg",
            {**NOISY, **UNIFORM, "clients_per_round": None},
            "aggregator=dp needs aggregator_clients_per_round",
        ),
        ("fedavg", {"model_aggregator": "robust"}, "must be a weighted or unweighted factory of t"),
        (
            "fedavg",
            {"model_aggregator": tff.aggregators.SumFactory()},
            "model_aggregator=SumFactory ignores clients' weights; set client_weighting=uniform",
        ),
        (
            "fedavg",
            {"model_aggregator": tff.aggregators.MeanFactory(), "aggregator": "robust"},
            "two aggregators; give one",
        ),
    ],
)  # fmt: skip
def test_refusals_are_one_line(name, settings, says):
    with pytest.raises(HparamError, match=says) as e:
        build(name, **settings)
    assert "\n" not in str(e.value)


@pytest.mark.quick_cases("dp")
@pytest.mark.parametrize(
    ("word", "factory"),
    [
        ("robust", tff.learning.robust_aggregator),
        ("dp", functools.partial(tff.learning.dp_aggregator, 0.1, 3)),
        ("compressed", tff.learning.compression_aggregator),
        ("secure", tff.learning.secure_aggregator),
    ],
    ids=["robust", "dp", "compressed", "secure"],
)
def test_objects_are_known_for_what_words_are(word, factory):
    model = toy.plain_model(shared.problem())
    assert aggregation.Aggregator(factory(), model).traits == registry.AGGREGATORS[word]


SECURE = tff.aggregators.MeanFactory(tff.aggregators.SecureSumFactory(1.0))
PRIVATE_SUM = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.1, 3, 1.0)


@pytest.mark.parametrize(
    ("name", "factory", "settings", "says"),
    [
        ("scaffold", SECURE, {}, "whose clients also send the changes of their control variates"),
        ("scaffold", PRIVATE_SUM, UNIFORM, "whose clients also send the changes of their control"),
        ("adafedadam", SECURE, {}, "secure sums take weights in steps of 2.-12"),
    ],
    ids=["secure", "dp", "weights"],
)
def test_objects_are_refused_as_words_are(name, factory, settings, says):
    with pytest.raises(
        HparamError, match=f"^model_aggregator=.*is not supported by {name}.*{says}"
    ):
        build(name, model_aggregator=factory, **settings)


PRIVATE = [w for w, traits in registry.AGGREGATORS.items() if traits and traits.is_private]


@pytest.mark.parametrize("word", PRIVATE)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lookahead", {}),
        ("lookahead", {"state": "keep"}),
        ("fedlocal", {"correction": "local"}),
    ],
)
def test_private_words_are_taken_where_nothing_goes_in_clear(word, name, settings):
    given = {**UNIFORM, **(NOISY if word == "dp" else {"aggregator": word}), **settings}
    training, own = toy.resolve(name, given)
    registry.check_aggregator(registry.get(name), training, own)


CASES_IN_CLEAR = [(name, {}) for name in AGGREGATED]
CASES_IN_CLEAR += [("lookahead", {"state": "average"}), ("lookahead", {"state": "keep"})]
CASES_IN_CLEAR += [("fedlocal", {"correction": "local"}), ("client_adam", {"state": "reset"})]
CASES_IN_CLEAR += [("fedadamw", {"second_moment": "full"})]
# Whose clients send numbers in clear that tell of their update: its squared norm, means of blocks.
NUMBERS_IN_CLEAR = [("fedexp", {}), ("fedadamw", {})]


@pytest.mark.quick_cases("scaffold*", "lookahead*", "fedlocal*")
@pytest.mark.parametrize(("name", "settings"), CASES_IN_CLEAR, ids=str)
def test_methods_say_what_goes_in_clear(problem, monkeypatch, name, settings):
    """Clients send vectors beside the mean of updates where the method says so, and only there."""
    plain, heard = eager.EagerFederation, []

    def word(name):
        def listen(self, value, *weight):
            heard.extend(tf.nest.flatten(self._rows(value)))
            return getattr(plain, name)(self, value, *weight)

        return listen

    words = {name: word(name) for name in ("mean", "sum", "max", "stack")}
    words["mean_of_updates"] = plain.mean
    monkeypatch.setattr(eager, "EagerFederation", type("Listening", (plain,), words))
    only_numbers = (name, settings) in NUMBERS_IN_CLEAR
    settings = {**shared.settings(name), **settings}
    model = toy.plain_model(problem)
    list(toy.run_eagerly(name, problem, model, toy.COHORTS[:1], **settings))
    in_clear = registry.get(name).aggregated.in_clear
    if isinstance(in_clear, hparams.By):
        in_clear = in_clear.of(toy.resolve(name, settings)[1][in_clear.setting])
    assert in_clear or not only_numbers
    sends_vectors = bool(in_clear) and not only_numbers
    assert heard and any(v.shape.rank for v in heard) == sends_vectors


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"model_aggregator": SECURE}, "model_aggregator=MeanFactory"),
        (
            {"aggregator": "secure", "aggregator_zeroing": False, "aggregator_clipping": False},
            "aggregator=secure",
        ),
    ],
    ids=["object", "word"],
)
def test_building_says_once_that_secure_sums_are_simulated(settings, name):
    model = toy.plain_model(shared.problem())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        tff_algos.build("fedavg", model, **RATES, **settings)
    said = [w for w in caught if w.category is RuntimeWarning]
    assert [str(w.message) for w in said] == [f"{name} simulates {registry.SIMULATED}."]
    assert said[0].filename == __file__


def test_tensorflow_tells_of_no_unused_assertions(capfd, caplog):
    """Not while the process is built, nor when what its building left behind is collected."""
    model = toy.plain_model(shared.problem())
    steps = {"aggregator_zeroing": False, "aggregator_clipping": False}
    tff_algos.build("fedavg", model, aggregator="secure", **RATES, **steps)
    gc.collect()
    assert "never used" not in "".join(capfd.readouterr()) + caplog.text


def test_every_method_says_what_an_aggregator_does_to_it():
    for name in AGGREGATED:
        assert registry.get(name).aggregated.what
    for name in set(cases.OWN) - set(AGGREGATED):
        assert registry.get(name).aggregated != registry.MethodSpec.aggregated, name
