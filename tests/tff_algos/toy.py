"""The oracles' small problem as the suite sees it: model, client data, a run of a method."""

import collections
import functools
import importlib
import itertools

import numpy as np
import tensorflow as tf

import tff_algos
from simulation import runtimes
from tests.oracles import problem as problem_lib
from tests.tff_algos import eager
from tff_algos import client, random, registry
from tff_algos import model as model_lib
from tff_algos import process as process_lib
from tff_algos.client_data import Batch
from tff_suite import hparams as hparams_lib

NUM_CLIENTS = len(problem_lib.NUM_EXAMPLES)
BATCH_SIZE = 3
EPOCHS = 2
# Ragged, overlapping, with the client of one example; the last cohort is a single client.
COHORTS = ((0, 1, 2, 3), (1, 2, 4), (0, 3, 4), (2,))


def cross_entropy(y, outputs):
    return tf.keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)


def keras_model(problem: problem_lib.Problem, dropout: float = 0.0) -> tf.keras.Model:
    layers = [tf.keras.layers.InputLayer((problem_lib.NUM_FEATURES,))]
    if dropout:
        layers.append(tf.keras.layers.Dropout(dropout))
    layers.append(tf.keras.layers.Dense(problem_lib.NUM_CLASSES))
    model = tf.keras.Sequential(layers)
    model.set_weights([w.astype(np.float32) for w in problem.initial_weights])
    return model


def toy_model(problem: problem_lib.Problem, dropout: float = 0.0) -> tff_algos.Model:
    return tff_algos.from_keras(
        keras_model(problem, dropout),
        loss=cross_entropy,
        metrics={"accuracy": tf.keras.metrics.sparse_categorical_accuracy},
    )


def plain_model(problem: problem_lib.Problem, dropout: float = 0.0) -> tff_algos.Model:
    """`toy_model` without Keras, which takes most of the time of a model this small.

    Dropout is for the examples that `with_dropout` marks.
    """

    def losses(y, logits):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)

    def hits(y, logits):
        return tf.equal(tf.argmax(logits, 1, tf.int32), y)  # TFF takes `==` for identity.

    def forward(weights, batch, training, seed):
        x, y = batch.x, batch.y
        if dropout:
            marked = y >= problem_lib.NUM_CLASSES
            y = tf.where(marked, y - problem_lib.NUM_CLASSES, y)
            if training:
                x = tf.where(marked[:, None], random.dropout(x, dropout, seed), x)
        logits = tf.matmul(x, weights[0]) + weights[1]
        values, counts = model_lib.elementwise(losses, y, logits, batch.mask)
        metrics = collections.OrderedDict(
            loss=(values, counts),
            accuracy=model_lib.elementwise(hits, y, logits, batch.mask),
        )
        objective = tf.math.divide_no_nan(tf.reduce_sum(values), tf.reduce_sum(counts))
        return model_lib.Forward(objective, metrics)

    weights = tuple(w.astype(np.float32) for w in problem.initial_weights)
    x_spec = tf.TensorSpec([None, problem_lib.NUM_FEATURES])
    y_spec = tf.TensorSpec([None], tf.int32)
    return tff_algos.Model(weights, x_spec, y_spec, forward, metric_names=("loss", "accuracy"))


def eager_model(problem: problem_lib.Problem) -> tff_algos.Model:
    """`plain_model` for `run_eagerly`: there a forward pass is one graph, and all else is none."""
    return plain_model(problem)._replace(forward=_forward_as_one_graph())


@functools.cache
def _forward_as_one_graph():
    # The first weights are no part of it.
    model = plain_model(problem_lib.make_problem())
    weights = [tf.TensorSpec(w.shape, w.dtype) for w in model.initial_weights]
    x, y, mask = model.x_spec, model.y_spec, tf.TensorSpec([None])

    @functools.partial(tf.function, autograph=False, input_signature=[*weights, x, y, mask])
    def forward(kernel, bias, x, y, mask):
        batch = Batch(x, y, mask)
        return model.forward((kernel, bias), batch, training=True, seed=tf.zeros([2], tf.int32))

    # Itself, since functions that can still be traced run as Python meanwhile; see `eager`.
    graph = forward.get_concrete_function()

    def call(weights, batch, training, seed):
        return graph(*map(tf.convert_to_tensor, (*weights, *batch)))

    return call


def with_dropout(problem: problem_lib.Problem) -> problem_lib.Problem:
    """Returns the problem with all examples marked for the dropout of `plain_model`."""
    clients = [(x, y + problem_lib.NUM_CLASSES) for x, y in problem.clients]
    return problem._replace(clients=clients)


def client_data(problem, round_num, k, spoil=False, plan=registry.RoundPlan()):  # noqa: B008
    x, y = problem.clients[k]
    x = x.astype(np.float32)
    return tff_algos.batch_client(
        np.full_like(x, np.nan) if spoil else x,
        y.astype(np.int32),
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        steps=plan.local_steps,
        first_step=plan.first_step or 0,
        full_batch=plan.batches == "full_batch",
        order_seed=(1, round_num if plan.first_step is None else 0, k),
        dropout_seed=(2, round_num, k),
        index=k,
    )


def batch_orders(problem, cohorts, plan=None) -> problem_lib.BatchOrders:
    """The suite's shuffled order as the oracles take it; `plan` is as `Process.plan`."""
    orders = []
    for r, cohort in enumerate(cohorts):
        asked = plan(r, len(cohorts)) if plan else registry.RoundPlan()
        orders.append({})
        for k in cohort:
            n = len(problem.clients[k][1])
            data = tff_algos.batch_client(
                np.arange(n),
                np.arange(n),
                batch_size=BATCH_SIZE,
                epochs=EPOCHS,
                steps=asked.local_steps,
                first_step=asked.first_step or 0,
                full_batch=asked.batches == "full_batch",
                order_seed=(1, r if asked.first_step is None else 0, k),
            )
            orders[-1][k] = [y[m > 0] for y, m in zip(data.y, data.mask, strict=True)]
    return orders


def client_rounds(problem, cohorts, plan, spoiled=frozenset()):
    """Yields the data of each round's clients; `plan` is as `Process.plan`."""
    for r, cohort in enumerate(cohorts):
        asked = plan(r, len(cohorts))
        others = range(len(problem.clients)) if asked.losses == "all" else ()
        others = {*others, *itertools.chain(*cohorts[max(r - asked.recent, 0) : r])} - {*cohort}
        data = [client_data(problem, r, k, (r, k) in spoiled, asked) for k in (*cohort, *others)]
        yield [d._replace(participates=np.float32(int(d.index) in cohort)) for d in data]


def run(process, problem, cohorts=COHORTS, spoiled=frozenset(), kept=None):
    """Runs a process in the runtime that is installed; returns states and metrics by round.

    The dictionary `kept` gets the `ClientState` of every client that took part.
    """
    plan = process.plan
    method = process.method
    process = runtimes.bind(process)
    state = process.initialize()
    kept = {} if kept is None else kept
    first = method.client_state and process_lib.initial_client_state(method)
    states, metrics = [], []
    for data in client_rounds(problem, cohorts, plan, spoiled):
        if method.client_state is None:
            output = process.next(state, data)
        else:
            clients = [int(d.index) for d in data]
            output = process.next(state, data, [kept.get(k, first) for k in clients])
            kept.update(zip(clients, output.client_states, strict=True))
        state = output.state
        states.append(state)
        metrics.append(output.metrics)
    return states, metrics


def run_eagerly(
    name, problem, model, cohorts=COHORTS, plan=None, module=None, kept=None, **settings
):
    """Yields the states of a method after each round, without graphs or TFF; see `eager`.

    Args:
      name: The method.
      problem: What it is run on.
      model: The model to train.
      cohorts: The clients of each round.
      plan: As `Process.plan`, in place of the method's own.
      module: A mutant to build it from, in place of the method's own module.
      kept: A dictionary that gets the `ClientState` of every client that took part.
      **settings: As for `tff_algos.build`.
    """
    if plan is None:
        planned = registry.get(name).plan
        plan = functools.partial(planned, resolve(name, settings)[1]) if planned else _common_plan
    if module is None:
        module = importlib.import_module(registry.get(name).builder.split(":")[0])
    method = build_mutant(module, name, model, settings, len(problem.clients))
    kept = {} if kept is None else kept
    return eager.rounds(method, client_rounds(problem, cohorts, plan), kept)


def _common_plan(round_num, total_rounds):
    return registry.RoundPlan()


def build_mutant(module, name, model, settings, num_clients=NUM_CLIENTS):
    """Calls a method's builder as `tff_algos.build` does, but that of a mutated module."""
    training, own = resolve(name, settings)
    if registry.get(name).needs_num_clients:
        own["num_clients"] = num_clients
    builder = getattr(module, registry.get(name).builder.split(":")[1])
    # Of the mutant, if it has been made from a copy.
    local = getattr(module, "client", client).LocalTraining(training)
    return builder(model, local, **own)


def resolve(name, settings):
    """Returns the settings of training and the method's own, all of them, of what is given."""
    spec = registry.get(name)
    shared = {h.name for h in registry.TRAINING_HPARAMS}
    training = registry.resolve_training(spec, {k: v for k, v in settings.items() if k in shared})
    own = hparams_lib.resolve(
        name, spec.hparams, {k: v for k, v in settings.items() if k not in shared}
    )
    return training, own
