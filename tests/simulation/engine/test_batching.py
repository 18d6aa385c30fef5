"""Rounds over the whole cohort at once: as `tff` has them, strictly, in few programs."""

import gc
import json
import os
import weakref
from typing import NamedTuple

import numpy as np
import psutil
import pytest
import tensorflow as tf

import tff_algos
from simulation import experiment, experiment_flags, runtimes
from simulation.engine import batching, executors
from simulation.engine import process as engine
from simulation.engine.pool import InProcess
from simulation.engine.scheduler import Scheduler
from simulation.errors import RunError
from simulation.records import checkpoints
from tasks.models import losses
from tests.tff_algos import cases, shared, toy
from tff_algos import registry
from tff_suite import graph_defs

METHODS = [n for n in cases.OWN if not registry.get(n).staged]
RATES = {"client_learning_rate": 0.1, "server_learning_rate": 1.0}


@pytest.fixture(scope="module", autouse=True)
def in_process():
    with shared.installed("tff"):
        yield


@pytest.fixture(scope="module")
def problem():
    return shared.problem()


@pytest.fixture(scope="module")
def process():
    return shared.process("fedavg")


def stacked(process, at_least=None):
    """Returns a process whose cohorts are stacked, in at least so many blocks."""
    program = engine.program_of(process)
    executor = executors.Stacked(program, at_least)
    scheduler = Scheduler(program, executor, lambda r, chunk, given: given)
    return runtimes.Bound(engine.EngineProcess(process, program, InProcess({"": scheduler})))


def graphs_of(process):
    return engine.program_of(process).graphs


def cohort(problem, round_num, sizes, **options):
    """Clients of the given sizes, drawn from all examples."""
    x = np.concatenate([x for x, _ in problem.clients]).astype(np.float32)
    y = np.concatenate([y for _, y in problem.clients]).astype(np.int32)
    rows = np.random.default_rng([7, round_num])
    data = []
    for k, n in enumerate(sizes):
        of_client = rows.integers(0, len(y), n)
        seeds = {"order_seed": (1, round_num, k), "dropout_seed": (2, round_num, k)}
        data.append(
            tff_algos.batch_client(
                x[of_client], y[of_client], batch_size=3, index=k, **seeds, **options
            )
        )
    return data


def assert_same_rounds(process, cohorts, rtol=1e-5, whole=None):
    """Every part of every state and all metrics are those of the TFF computation."""
    whole = whole or stacked(process)
    want = got = process.initialize()
    for clients in cohorts:
        given = [clients]
        if process.method.client_state is not None:
            given.append([process.initial_client_state() for _ in clients])
        want, got = process.next(want, *given), whole.next(got, *given)
        assert list(want.metrics) == list(got.metrics)
        parts = [
            tf.nest.flatten((o.state, o.metrics, list(getattr(o, "client_states", ()))))
            for o in (want, got)
        ]
        pairs = zip(*parts, strict=True)
        for a, b in pairs:
            np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol)
            assert np.asarray(a).dtype == np.asarray(b).dtype
        want, got = want.state, got.state
        tf.nest.assert_same_structure(want, got)
    return whole


# Ragged, with clients of one example. In two blocks, as one is of clients of none, then in one,
# whose program runs in another of TensorFlow's executors, and again in two.
SIZES = {1: [(7, 1, 4, 3), (10, 4, 3)], 2: [(5, 1, 12, 0, 17), (4,), (17, 0, 4, 1)]}
BLOCKS = {1: [1, 1], 2: [2, 1, 2]}


def ragged_cohorts(process, problem, num_blocks):
    sizes, options = SIZES[num_blocks], {}
    if process.plan(0, len(sizes)).local_steps:
        options["steps"] = process.plan(0, len(sizes)).local_steps
    cohorts = [cohort(problem, r, s, **options) for r, s in enumerate(sizes)]
    model = process.model
    assert [len(batching.prepare(c, model).blocks) for c in cohorts] == BLOCKS[num_blocks]
    return cohorts


# A program for another number of blocks is traced again.
# The last of the quick ones has loops at the server.
@pytest.mark.quick_cases("2-scaffold", "2-fedmgda_plus")
@pytest.mark.parametrize(
    ("num_blocks", "name"),
    [p for n in (1, 2) for p in shared.methods(METHODS, n)],
)
def test_is_what_tff_computes(problem, num_blocks, name):
    process = shared.process(name)
    with shared.installed("vectorized"):
        whole = runtimes.bind(process)
    cohorts = ragged_cohorts(process, toy.with_dropout(problem), num_blocks)
    assert_same_rounds(process, cohorts, whole=whole)


@pytest.mark.long
@pytest.mark.parametrize("name", shared.methods(METHODS))
def test_is_what_tff_computes_with_keras(problem, name):
    model = toy.toy_model(problem, dropout=0.3)
    process = tff_algos.build(name, model, num_clients=6, **cases.CASES[name][0].settings)
    assert_same_rounds(process, ragged_cohorts(process, problem, 2))


def test_cohorts_of_one_and_of_nothing(problem, process):
    sizes = [(1,), (0, 0), (0,), (2, 30)]
    assert_same_rounds(process, [cohort(problem, r, s) for r, s in enumerate(sizes)])


@pytest.mark.slow
def test_full_batches_of_unequal_size(problem, process):
    cohorts = [cohort(problem, r, s, full_batch=True, epochs=2) for r, s in enumerate(SIZES[2])]
    assert_same_rounds(process, cohorts)


def image_model(*layers):
    keras_model = tf.keras.Sequential([tf.keras.layers.InputLayer((6, 6, 1)), *layers])
    return tff_algos.from_keras(keras_model, loss=toy.cross_entropy)


def image_cohort(sizes):
    rng = np.random.default_rng(0)
    return [
        tff_algos.batch_client(
            rng.normal(size=(n, 6, 6, 1)).astype(np.float32),
            rng.integers(0, 3, n).astype(np.int32),
            batch_size=4,
            order_seed=(k,),
            dropout_seed=(k,),
        )
        for k, n in enumerate(sizes)
    ]


def small_cnn():
    layers = tf.keras.layers
    return image_model(
        layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
        layers.GroupNormalization(2),
        layers.MaxPool2D(),
        layers.Dropout(0.25),
        layers.Flatten(),
        layers.Dense(3),
    )


def while_loops(graph):
    """Names of the functions that loops of a graph, and of the functions it calls, run."""
    nodes, kinds = graph_defs.nodes(graph.as_graph_def()), ("StatelessWhile", "While")
    return [node.attr["body"].func.name for node in nodes if node.op in kinds]


@pytest.mark.slow
def test_convolutions_with_dropout():
    process = tff_algos.build("fedavg", small_cnn(), **RATES)
    assert_same_rounds(process, [image_cohort([5, 9, 1]), image_cohort([2])], rtol=1e-4)
    traced = graphs_of(process).traced
    assert traced
    for of_blocks in traced.values():
        assert len(while_loops(of_blocks.graph)) == 1, "one loop, over steps, whatever the blocks"


# The first that has no such form: it depends on TensorFlow's version which one that is.
_SORTING = "(TopKV2|ScatterNd)"


@pytest.mark.quick_cases("groups", "sort", "dilated")
@pytest.mark.parametrize(
    ("layer", "operation"),
    [
        (tf.keras.layers.Conv2D(3, 3, dilation_rate=2), None),
        (tf.keras.layers.DepthwiseConv2D(3), None),
        (tf.keras.layers.Lambda(lambda x: tf.sort(x, 1), name="sorting"), _SORTING),
        (tf.keras.layers.Lambda(tf.nn.local_response_normalization, name="local"), "LRN"),
        (tf.keras.layers.Conv2D(2, 3, groups=2, name="grouped"), "Conv2D"),
    ],
    ids=["dilated", "depthwise", "sort", "local", "groups"],
)
def test_agrees_or_refuses_by_name(layer, operation):
    layers = tf.keras.layers
    model = image_model(layers.Conv2D(2, 1), layer, layers.Flatten(), layers.Dense(3))
    process = tff_algos.build("fedavg", model, **RATES)
    clients = image_cohort([5, 2])
    if operation is None:
        assert_same_rounds(process, [clients], rtol=1e-4)
        assert len(while_loops(graphs_of(process).traced[0, 1].graph)) == 1
        return
    text = rf"^Operation {operation} \(.*{layer.name}.*\) .*Use --runtime=tff\.$"
    with pytest.raises(batching.NotVectorizable, match=text):
        stacked(process).next(process.initialize(), clients)


def test_loops_over_lists_of_tensors_in_one_block_end():
    """They come with branches, which the executor of one thread may never come back from."""

    def squashed(y, outputs):
        return tf.map_fn(tf.tanh, outputs[:, 0])

    keras_model = tf.keras.Sequential([tf.keras.Input(2), tf.keras.layers.Dense(3)])
    model = tff_algos.from_keras(
        keras_model,
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"squashed": squashed},
        y_spec=tf.TensorSpec([None], tf.int32),
    )
    rng = np.random.default_rng(0)
    cohort = [
        tff_algos.batch_client(
            rng.random((5, 2), np.float32), np.arange(5, dtype=np.int32) % 3, batch_size=2
        )
        for _ in range(2)
    ]
    process = tff_algos.build("fedavg", model, **RATES)
    assert_same_rounds(process, [cohort])
    assert graphs_of(process).executors == {(0, 1): ""}


@pytest.mark.slow
def test_keras_lstm_is_refused_by_name():
    layers = tf.keras.layers
    model = image_model(layers.Reshape((6, 6)), layers.LSTM(3, name="recurrent"), layers.Dense(3))
    process = tff_algos.build("fedavg", model, **RATES)
    with pytest.raises(batching.NotVectorizable, match=r"^Operation .*recurrent"):
        executors.Stacked(engine.program_of(process)).check()


def test_few_graphs_serve_all_cohorts(problem, process):
    whole = stacked(process)
    state = process.initialize()
    rng = np.random.default_rng(0)
    for r in range(12):
        clients = cohort(problem, r, rng.integers(0, 40, rng.integers(1, 15)))
        state = whole.next(state, clients).state
    assert int(state.round_num) == 12
    assert len(graphs_of(process).traced) <= batching.MAX_BLOCKS


def padding(steps, blocks):
    return sum(len(b) * max(steps[k] for k in b) for b in blocks) / sum(steps)


def test_blocks_waste_little():
    rng = np.random.default_rng(0)
    for _ in range(20):
        examples = np.minimum(rng.lognormal(4.0, 2.0, 100).astype(int) + 50, 2000)
        steps = [-(-n // 10) for n in examples.tolist()]
        blocks = batching.blocks_of(steps, [10] * 100)
        assert len(blocks) <= batching.MAX_BLOCKS
        assert sorted(k for b in blocks for k in b) == list(range(100))
        assert all(b == sorted(b) for b in blocks)
        assert padding(steps, blocks) <= 1.5


def test_blocks():
    blocks_of = batching.blocks_of
    assert blocks_of([4] * 5, [10] * 5) == [[0, 1, 2, 3, 4]]
    assert blocks_of([4] * 5, [10] * 5, at_least=2) == [[0, 2, 4], [1, 3]]
    assert blocks_of([4], [10], at_least=2) == [[0]]
    assert blocks_of([0, 0], [1, 1], at_least=2) == [[0, 1]]
    assert blocks_of([100, 1] * 40, [5] * 80) == [list(range(0, 80, 2)), list(range(1, 80, 2))]
    # A step at once of 500 examples is as uneven as 100 steps of five.
    assert len(blocks_of([1] * 80, [500, 1] * 40)) == 2


@pytest.mark.slow
def test_blocks_do_not_change_results(problem, process, monkeypatch):
    monkeypatch.setattr(batching, "_WORTH_A_THREAD", 0)
    clients = cohort(toy.with_dropout(problem), 0, (4, 4, 4, 9, 9))
    results = [stacked(process, n).next(process.initialize(), clients) for n in (1, 2, 5)]
    for other in results[1:]:
        for a, b in zip(results[0].state.weights, other.state.weights, strict=True):
            np.testing.assert_array_equal(a, b)
    model = process.model
    assert [len(batching.prepare(clients, model, n).blocks) for n in (1, 2, 5)] == [1, 2, 5]
    monkeypatch.setattr(batching, "_WORTH_A_THREAD", 1 << 30)
    assert len(batching.prepare(clients, model, 5).blocks) == 1


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_clients_stand_beside_as_many_others_on_every_machine(problem, process, monkeypatch, cores):
    """Products of stacked matrices have other last bits where more are stacked."""
    monkeypatch.setattr(batching, "_WORTH_A_THREAD", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    clients = cohort(toy.with_dropout(problem), 0, (4, 4, 4, 9, 9))
    whole = executors.Stacked(engine.program_of(process)).prepare(clients)
    assert [len(b.index) for b in whole.blocks] == [3, 2]


def test_inputs_of_another_form_are_refused(problem, process):
    whole, state = stacked(process), process.initialize()
    (data,) = cohort(problem, 0, (4,))
    with pytest.raises(ValueError, match="at least one client"):
        whole.next(state, [])
    for wrong, text in (
        ({"x": data.x.astype(np.float64)}, "x must be float32"),
        ({"x": data.x[..., :2]}, r"x must be float32 \['steps', 'batch', 3\]"),
        ({"y": data.y[:1]}, "y and mask differ"),
        ({"mask": data.mask.astype(np.int32)}, "mask must be"),
    ):
        with pytest.raises(TypeError, match=text):
            batching.prepare([data._replace(**wrong)], process.model)
    # What could be broadcast, and would give other numbers.
    for wrong, text in (
        ({"weights": (state.weights[0], np.float32([1]))}, r"float32 \[3\], found float32 \[1\]"),
        ({"weights": (np.float32(1), state.weights[1])}, r"float32 \[3, 3\], found float32 \[\]"),
        ({"round_num": np.int64(0)}, r"int32 \[\], found int64 \[\]"),
    ):
        with pytest.raises(TypeError, match=text):
            whole.next(state._replace(**wrong), [data])


@pytest.mark.parametrize("sizes", [(4, 4, 4), (1, 40, 2)], ids=["a_block", "blocks"])
def test_states_of_another_number_of_clients_are_refused(problem, sizes):
    process = shared.process("scaffold")
    whole = stacked(process)
    clients, kept = cohort(problem, 0, sizes), process.initial_client_state()
    for number in (1, 2, 4):
        with pytest.raises(
            ValueError, match=f"cohort of 3 clients needs as many states, found {number}"
        ):
            whole.next(process.initialize(), clients, [kept] * number)


def test_values_are_selected_by_name_and_place():
    """As in TFF, what clients hold can be taken apart before it is used."""

    class Pair(NamedTuple):
        a: object
        b: object

    @tf.function
    def program(x, order):
        federation = batching.StackedFederation([2, 1], order)
        clients = batching.at_clients([x[:2], x[2:]])
        shared = federation.broadcast(Pair(tf.constant(2.0), {"c": tf.constant(3.0)}))

        def work(value, shared, factor):
            return Pair({"d": value * factor, "n": 1}, (value + shared.a, shared.a))

        out = federation.map_clients(work, clients, shared, shared.b["c"])
        first, repeated = out.b
        return (
            federation.sum(out.a["d"]),
            federation.weighted_sum((first, out[1][1]), out.a["d"]),
            federation.stack({"x": clients, "two": repeated, "three": shared[1][0]}),
            federation.max(out.a),
            federation.sum(shared.a),
        )

    total, means, rows, largest, shared = program(tf.constant([1.0, 2.0, 4.0]), [2, 0, 1])
    assert total == 21.0 and shared == 6.0 and largest["d"] == 12.0 and largest["n"] == 1
    (sums, twos), total_weight = means
    assert sums == 3 * 3 + 4 * 6 + 6 * 12 and twos == 2 * 21 and total_weight == 21
    assert rows["x"].numpy().tolist() == [4.0, 1.0, 2.0]
    assert rows["two"].numpy().tolist() == [2.0] * 3 and rows["three"].numpy().tolist() == [3.0] * 3


@pytest.mark.parametrize("runtime", runtimes.ENGINE)
def test_only_what_is_bound_goes_through_the_engine(problem, process, runtime):
    """`process.next` stays the TFF computation, in whatever runtime."""
    clients = cohort(problem, 0, (4, 2))
    with runtimes.installed(runtime) as context:
        bound = runtimes.bind(process)
        state = bound.initialize()
        whole = bound.next(state, clients)
        assert context.intrinsic_calls.total() == 0
        plain = process.next(state, clients)
        assert context.intrinsic_calls["federated_map"] > 0
        np.testing.assert_allclose(whole.state.weights[0], plain.state.weights[0], rtol=1e-6)
        np.testing.assert_array_equal(bound.model_weights(whole.state)[0], whole.state.weights[0])
        with pytest.raises(batching.NotVectorizable, match=r"tff_algos\.build"):
            runtimes.bind(object())
    with runtimes.installed("tff") as context:
        runtimes.bind(process).next(state, clients)
        assert context.intrinsic_calls["federated_map"] > 0


@pytest.mark.long
def test_auto_takes_small_dense_models_at_once_on_a_cpu(problem, monkeypatch):
    def chosen(model):
        return runtimes.choose(tff_algos.build("fedavg", model, **RATES))

    layers = tf.keras.layers
    refused = image_model(
        layers.Lambda(lambda x: tf.nn.local_response_normalization(x), name="local"),
        layers.Flatten(),
        layers.Dense(3),
    )
    large = runtimes.MAX_VECTORIZED_PARAMETERS // 37 + 1
    wide = image_model(layers.Flatten(), layers.Dense(large), layers.Dense(3))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    assert chosen(toy.toy_model(problem))[0] == "vectorized"
    assert chosen(small_cnn()) == ("per_client", "convolutions on a CPU")
    name, reason = chosen(refused)
    assert name == "per_client" and "LRN" in reason and "--runtime" not in reason
    assert chosen(wide)[0] == "per_client" and "parameters" in chosen(wide)[1]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    assert chosen(small_cnn())[0] == "vectorized" and chosen(wide)[0] == "vectorized"
    assert chosen(refused)[0] == "per_client"


@pytest.mark.quick_cases("sizes0-1")
@pytest.mark.parametrize(("sizes", "num_blocks"), [((4, 4), 1), (SIZES[2][0], 2)])
def test_what_auto_has_traced_is_what_runs(problem, monkeypatch, sizes, num_blocks):
    traced = []
    original = executors.Stacked._trace

    def trace(executor, phase, num_blocks):
        traced.append((phase, num_blocks))
        return original(executor, phase, num_blocks)

    monkeypatch.setattr(executors.Stacked, "_trace", trace)
    process = tff_algos.build("fedavg", toy.plain_model(problem), **RATES)
    assert runtimes.choose(process, lambda: cohort(problem, 0, sizes))[0] == "vectorized"
    for _ in range(2):
        with runtimes.installed("vectorized"):
            bound = runtimes.bind(process)
            bound.next(bound.initialize(), cohort(problem, 0, sizes))
    assert traced == [(0, num_blocks)]
    gone = weakref.ref(process)
    del process, bound
    gc.collect()
    assert gone() is None, "its programs must not keep a process for ever"


@pytest.mark.slow
def test_auto_is_settled_once_for_a_run(tmp_path, monkeypatch, capsys):
    def run(*arguments):
        request = experiment_flags.parse(
            [
                "--import=tests.simulation.toy_extension",
                "--task=toy",
                "--algorithm=fedavg",
                "--clients_per_round=3",
                "--client_batch_size=3",
                "--client_learning_rate=0.3",
                f"--root_output_dir={tmp_path}",
                *arguments,
            ]
        )
        assert experiment.run(request, []) == 0

    def recorded():
        folder = tmp_path / "toy_fedavg"
        flags = json.loads((folder / "hparams.json").read_text())["flags"]
        checkpoint, _ = checkpoints.load_newest(str(folder / "checkpoints"))
        return flags["runtime"], checkpoint.settings["runtime"], checkpoint.round_num

    monkeypatch.setattr(runtimes, "choose", lambda *_: ("vectorized", "so it is"))
    run("--total_rounds=2")
    assert "--runtime=auto is vectorized: so it is." in capsys.readouterr().out
    assert recorded() == ("vectorized", "vectorized", 2)
    monkeypatch.setattr(runtimes, "choose", lambda *_: ("tff", "another machine"))
    run("--total_rounds=3")
    assert recorded() == ("vectorized", "vectorized", 3)
    with pytest.raises(RunError, match="--runtime was vectorized, is tff"):
        run("--total_rounds=4", "--runtime=tff")


@pytest.mark.long
def test_rounds_do_not_grow_memory(problem):
    process = tff_algos.build("fedavg", toy.toy_model(problem), **RATES)
    whole = stacked(process)
    state = process.initialize()
    rng = np.random.default_rng(0)
    sizes = []
    for r in range(1000):
        state = whole.next(state, cohort(problem, r, rng.integers(0, 40, 8))).state
        if r in (300, 999):
            sizes.append(psutil.Process().memory_info().rss)
    assert sizes[1] - sizes[0] < 10 << 20
