"""One side of the speed benchmark, as a process that runs rounds of FedAvg on request.

    python -m benchmarks.side tff w1

Sides:
  * `per_client`, `vectorized`, `tff`, `auto`: this suite's runtimes. As in a run, each round's
    inputs are made during the round before.
  * `vectorized_chunks`: `vectorized` in chunks of 16 clients (`--clients_per_chunk`).
  * `per_client_serial`: `per_client` with one client at a time.
  * `per_client_on_cpu`, `vectorized_on_cpu`: the same runtimes without the machine's GPUs.
  * `tff_worker`, `tff_worker_file`: TFF's `build_weighted_fed_avg` as shipped, in TFF's C++ worker,
    with the fastest loop over a client's data. The data are in memory or in a file.
  * `plain_tf`: code without a library: a `tf.function` per client, with one thread per core.
  * `plain_jax`: the same with `jax.vmap` over the clients. Only for W4, whose clients are equal and
    whose model is dense.
  * `floor`: only the arithmetic of a round, or only its passes over weights and gradients,
    whichever takes longer (`benchmarks.floor`).

After its first round, the process writes how many rounds it runs per turn. For every line that it
reads, it runs that many more and writes the seconds per round. The driver (`benchmarks.speed`) runs
several sides, including the peers in `benchmarks/peers`, and lets them take turns.
"""

import contextlib
import functools
import os
import tempfile
from concurrent import futures

from tff_suite import command_line, compat, parser
from tff_suite.hparams import HparamError

PARSER = parser.Parser(__doc__)
PARSER.positional("side", "what to run")
PARSER.positional("workload", "w1 to w10")
PARSER.positional("data_dir", "folder of real data", required=False)

if __name__ == "__main__":
    command_line.begin(PARSER)

from benchmarks.peers import protocol

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_OURS = ("per_client", "vectorized", "auto", "tff", "per_client_serial", "vectorized_chunks")
_CHUNK = 16
# Not among `SIDES`: without a GPU they are `per_client` and `vectorized`.
_ON_CPU = "_on_cpu"
SIDES = (
    *_OURS,
    "tff_worker",
    "tff_worker_file",
    "plain_tf",
    "plain_jax",
    "floor",
)


def batched_cohort(workload, round_index, clients=None):
    """Returns the data of all clients of a workload in a round, or of a range of clients."""
    import tff_algos

    clients = range(len(workload.clients)) if clients is None else clients
    seeds = [(round_index, k) for k in clients]
    return tff_algos.batch_cohort(
        [workload.clients[k] for k in clients],
        batch_size=workload.batch_size,
        order_seeds=seeds,
        dropout_seeds=seeds,
        indices=clients,
    )


def pure_model(workload):
    """Returns a workload's model as pure functions."""
    import tff_algos

    return tff_algos.from_keras(
        workload.keras_model(),
        loss=workload.loss,
        y_spec=workload.y_spec,
        loss_reduction=workload.loss_reduction,
    )


@contextlib.contextmanager
def _our_rounds(runtime, workload):
    import tff_algos
    from simulation import runtimes

    runtimes.configure_threads()
    runtimes.configure_gpus(None, False)
    process = tff_algos.build(
        "fedavg", pure_model(workload), client_learning_rate=workload.learning_rate
    )
    if runtime == "auto":
        runtime = runtimes.choose(process)[0]
    threads = 1 if runtime.endswith("_serial") else None
    name, size = runtime.removesuffix("_serial").removesuffix("_chunks"), None
    if runtime.endswith("_chunks"):
        size = _CHUNK
    with runtimes.installed(name, threads):
        rounds_of = _rounds_of_engine if name in runtimes.ENGINE else _rounds_of_tff
        with rounds_of(process, workload, name, size, threads) as rounds:
            yield rounds


@contextlib.contextmanager
def _rounds_of_tff(process, workload, *_):
    from simulation.protocol import Cohort
    from simulation.rounds import cohorts
    from simulation.tff.process import TffProcess

    bound = TffProcess(process)
    state = bound.initialize()

    def made(r):
        data = batched_cohort(workload, r)
        return Cohort(r, (), len(data), work=data)

    def rounds(numbers):
        nonlocal state
        with cohorts.Ahead(made, numbers.stop) as cohort_of:
            for r in numbers:
                state = bound.next(state, cohort_of(r)).state

    yield rounds


@contextlib.contextmanager
def _rounds_of_engine(process, workload, runtime, size, threads):
    from simulation.engine import pool as pools
    from simulation.engine import process as engine
    from simulation.protocol import Cohort

    def data_of(round_index, chunk, given):
        del given
        return batched_cohort(workload, round_index, range(chunk.start, chunk.stop))

    program = engine.program_of(process)
    threads = threads or len(os.sched_getaffinity(0))
    work = pools.scheduler(program, runtime == "vectorized", data_of, threads)
    pool, number = pools.InProcess({"": work}), len(workload.clients)
    bound = engine.EngineProcess(process, program, pool, size)
    state = bound.initialize()

    def rounds(numbers):
        nonlocal state
        for r in numbers:
            following = number if r + 1 < numbers.stop else 0
            state = bound.next(state, Cohort(r, (), number, following)).state

    with contextlib.closing(pool):
        yield rounds


def _as_shipped(workload):
    """Returns the workload's model with Keras's own layers, as TFF ships it, and its Keras loss."""
    import tensorflow as tf

    layers = tf.keras.layers
    mean = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = workload.keras_model()
    if workload.title.startswith("W3"):
        model = tf.keras.Sequential([layers.Embedding(90, 8, input_length=80, mask_zero=True)])
        for _ in range(2):
            model.add(layers.LSTM(256, return_sequences=True, kernel_initializer="he_normal"))
        model.add(layers.Dense(90))
        return model, mean
    loss = mean
    if workload.title.startswith("W2"):
        loss = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")

    def as_keras_has_it(layer):
        kerass = next(c for c in type(layer).__mro__ if compat.is_of_keras(c))
        return kerass.from_config(layer.get_config())

    return tf.keras.models.clone_model(model, clone_function=as_keras_has_it), loss


@contextlib.contextmanager
def _worker_rounds(from_file, workload):
    import numpy as np
    import tensorflow as tf
    import tensorflow_federated as tff

    from simulation.tff import native_worker

    x_spec = tf.TensorSpec([None, *workload.clients[0][0].shape[1:]], workload.clients[0][0].dtype)

    def model_fn():
        keras_model, loss = _as_shipped(workload)
        return tff.learning.models.from_keras_model(
            keras_model, loss=loss, input_spec=(x_spec, workload.y_spec)
        )

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(workload.learning_rate),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
        loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
    )

    def from_records(path, x, y):
        rows = [np.concatenate([a.reshape(len(a), -1).view(np.uint8) for a in (x, y)], 1)]
        np.concatenate(rows).tofile(path)
        split = x[0].nbytes

        def parse(records):
            parts = (tf.strings.substr(records, 0, split), tf.strings.substr(records, split, -1))
            return tuple(
                tf.reshape(tf.io.decode_raw(part, a.dtype), [-1, *a.shape[1:]])
                for part, a in zip(parts, (x, y), strict=True)
            )

        records = tf.data.FixedLengthRecordDataset(path, split + y[0].nbytes)
        return records.shuffle(len(y)).batch(workload.batch_size).map(parse)

    with tempfile.TemporaryDirectory() as folder, native_worker.native_context() as context:
        datasets = []
        for k, (x, y) in enumerate(workload.clients):
            if from_file:
                dataset = from_records(os.path.join(folder, str(k)), x, y.reshape(len(y), -1))
                shape = y.shape[1:]
                dataset = dataset.map(lambda x, y, shape=shape: (x, tf.reshape(y, [-1, *shape])))
            else:
                dataset = tf.data.Dataset.from_tensor_slices((x, y))
                dataset = dataset.shuffle(len(y)).batch(workload.batch_size)
            datasets.append(dataset)
        with tff.framework.get_context_stack().install(context):
            state = process.initialize()

            def rounds(numbers):
                nonlocal state
                for _ in numbers:
                    state = process.next(state, datasets).state

            yield rounds


@contextlib.contextmanager
def _plain_tf_rounds(workload):
    import tensorflow as tf

    import tff_algos
    from simulation import runtimes

    runtimes.configure_threads()
    model, rate = pure_model(workload), workload.learning_rate
    weights = [tf.constant(w) for w in model.initial_weights]

    @tf.function(
        autograph=False,
        input_signature=[
            [tf.TensorSpec(w.shape) for w in weights],
            tf.TensorSpec([None, None, *model.x_spec.shape[1:]], model.x_spec.dtype),
            tf.TensorSpec([None, None, *model.y_spec.shape[1:]], model.y_spec.dtype),
            tf.TensorSpec([None, None]),
            tf.TensorSpec([2], tf.int32),
        ],
    )
    def train(weights, x, y, mask, seed):
        def step(i, weights):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                batch = tff_algos.Batch(x[i], y[i], mask[i])
                loss = model.forward(weights, batch, True, seed + i).objective
            gradient = map(tf.convert_to_tensor, tape.gradient(loss, weights))
            return i + 1, [w - rate * g for w, g in zip(weights, gradient, strict=True)]

        return tf.while_loop(lambda i, _: i < tf.shape(mask)[0], step, (0, weights))[1]

    def one(weights, data):
        return train(weights, data.x, data.y, data.mask, data.seed)

    with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:

        def rounds(numbers):
            nonlocal weights
            for r in numbers:
                cohort = batched_cohort(workload, r)
                trained = pool.map(functools.partial(one, weights), cohort)
                sizes = [float(c.num_examples) for c in cohort]
                total = [tf.zeros_like(w) for w in weights]
                for size, after in zip(sizes, trained, strict=True):
                    total = [t + size / sum(sizes) * w for t, w in zip(total, after, strict=True)]
                weights = total

        yield rounds


@contextlib.contextmanager
def _plain_jax_rounds(workload):
    import jax
    import jax.numpy as jnp
    import numpy as np

    if not workload.title.startswith("W4"):
        raise ValueError("The side plain_jax only supports W4.")
    model, rate = pure_model(workload), workload.learning_rate
    weights = tuple(jnp.asarray(w) for w in model.initial_weights)

    def loss(weights, x, y):
        logits = jax.nn.log_softmax(x @ weights[0] + weights[1])
        return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1))

    def train(weights, x, y):
        def step(weights, batch):
            gradient = jax.grad(loss)(weights, *batch)
            return tuple(w - rate * g for w, g in zip(weights, gradient, strict=True)), None

        return jax.lax.scan(step, weights, (x, y))[0]

    @jax.jit
    def a_round(weights, x, y):
        after = jax.vmap(train, (None, 0, 0))(weights, x, y)
        return tuple(jnp.mean(w, 0) for w in after)

    def rounds(numbers):
        nonlocal weights
        for r in numbers:
            cohort = batched_cohort(workload, r)
            weights = a_round(
                weights, np.stack([c.x for c in cohort]), np.stack([c.y for c in cohort])
            )
        jax.block_until_ready(weights)

    yield rounds


@contextlib.contextmanager
def _floor_rounds(workload):
    from benchmarks import floor
    from simulation import runtimes

    runtimes.configure_threads()
    yield floor.rounds(workload)


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the side that the command line names until standard input closes."""
    options = PARSER.parse(arguments)
    side = options.side
    if side.endswith(_ON_CPU):
        side = side.removesuffix(_ON_CPU)
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # Before TensorFlow is imported.
    if side not in SIDES:
        raise HparamError(parser.said_of_unknown("side", options.side, SIDES))
    answers = protocol.take_over_output()
    if side in _OURS:
        from tff_suite import imports

        imports.import_tensorflow()
    from benchmarks import workloads

    workload = workloads.WORKLOADS[options.workload](options.data_dir)
    if side in _OURS:
        a_side = _our_rounds(side, workload)
    elif side.startswith("tff_worker"):
        a_side = _worker_rounds(side == "tff_worker_file", workload)
    else:
        others = {
            "plain_tf": _plain_tf_rounds,
            "plain_jax": _plain_jax_rounds,
            "floor": _floor_rounds,
        }
        a_side = others[side](workload)
    with a_side as rounds:
        protocol.serve(rounds, workload.rounds_a_turn, answers)
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
