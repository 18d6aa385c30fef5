"""A process whose clients are TFF sequences, which TFF's own tools around a process expect."""

from __future__ import annotations

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import random
from tff_algos.client_data import ClientData, as_pair, check_finite
from tff_algos.process import MANY_ROUNDS, Next, Process
from tff_suite import user_warnings


def from_datasets(process: Process, batch_size: int) -> tff.learning.templates.LearningProcess:
    """Returns a process whose `next` has the type of a `tf.data.Dataset` per client.

    `next` of `build`'s processes also accepts data sets when Python calls it, but its TFF type is
    that of arrays. TFF's tools go by types, for example
    `compose_dataset_computation_with_learning_process` of `tff.simulation`. Here data sets become
    arrays within TFF.

    Args:
      process: The process of a method without client state.
      batch_size: The largest number of examples in a batch.

    Returns:
      A process of sequences of batches, pairs (x, y) or dictionaries of x and y, with the dtypes of
      the model's specs. `next` raises a `ValueError` for any other data set. A client's random
      draws depend on the round and on its examples. The metrics are the method's; those of the
      model are also in `client_work/train`, where TFF's programs look for them.

    Raises:
      TypeError: If clients keep state, so that `next` takes more than a state and clients.
      ValueError: If the method distinguishes clients, since data sets have no client index.

    Warns:
      RuntimeWarning: If the method's plan is more than minibatches of the clients that are drawn.
    """
    if not isinstance(process, Process):
        raise TypeError(
            "from_datasets needs a tff.learning.templates.LearningProcess of tff_algos.build; "
            f"found a {type(process).__name__}, whose next also needs client states."
        )
    model = process.model
    specs = model.x_spec, model.y_spec
    # A client that does not take part, and has no index.
    absent = ClientData(*[None] * 5, participates=0.0, seed=None, index=-1)  # type: ignore[misc]
    process.check_clients([absent])
    plan = process.plan(0, MANY_ROUNDS)
    if plan.local_steps is not None or plan.batches != "minibatch" or plan.cohort == "pooled":
        user_warnings.warn(
            "The method requests a number of steps, full batches or one client for all, which "
            "from_datasets cannot check: give data sets that follow process.plan."
        )

    def padded(x, y):
        number = tf.shape(y)[0]
        missing = tf.debugging.assert_less_equal(
            number, batch_size, f"a batch has more than batch_size={batch_size} examples"
        )
        with tf.control_dependencies([missing] if missing is not None else []):
            rest = batch_size - number

        def pad(values, spec):
            values = tf.concat([values, tf.repeat(values[:1], rest, axis=0)], 0)
            return tf.ensure_shape(values, [batch_size, *spec.shape[1:]])

        mask = tf.cast(tf.range(batch_size) < number, tf.float32)
        return pad(x, specs[0]), pad(y, specs[1]), mask

    # TFF takes unnamed elements for named ones as well, but not the other way round.
    tensors = [tff.TensorType(spec.dtype.as_numpy_dtype, spec.shape) for spec in specs]
    elements = tff.to_type(collections.OrderedDict(zip("xy", tensors, strict=True)))

    def as_element(dataset, place):
        check_finite(dataset)
        found = as_pair(dataset.element_spec)
        if (
            isinstance(found, tuple)
            and all(isinstance(spec, tf.TensorSpec) for spec in found)
            and elements.is_assignable_from(tff.types.tensorflow_to_type(found))
        ):
            return dataset if isinstance(dataset.element_spec, tuple) else dataset.map(as_pair)
        raise ValueError(
            f"Client {place}: each element of its data set must be a pair (x, y), or a dictionary "
            f"of x and y, of {' and '.join(map(str, tensors))}; found {dataset.element_spec}: "
            "batch(...) makes batches of examples, and map(lambda e: (e['pixels'], "
            "tf.cast(e['label'], tf.int32))) pairs of other keys and dtypes."
        )

    def look_at(state, clients):
        del state
        return [
            as_element(data, place) if isinstance(data, tf.data.Dataset) else data
            for place, data in enumerate(clients)
        ]

    @tff.tensorflow.computation(tff.SequenceType(elements), np.int32)
    def arrays(dataset, round_num):
        # A step without examples changes nothing, and an empty data set has one to stack then.
        last = tuple(tf.zeros([batch_size, *s.shape[1:]], s.dtype) for s in specs)
        last = tf.data.Dataset.from_tensors((*last, tf.zeros([batch_size])))
        full = dataset.filter(lambda batch: tf.shape(batch["y"])[0] > 0)
        steps = full.map(lambda batch: padded(**batch)).concatenate(last)
        x, y, mask = steps.batch(np.iinfo(np.int64).max).get_single_element()
        real = tf.reshape(mask > 0, tf.concat([tf.shape(mask), [1] * (x.shape.rank - 2)], 0))
        examples = tf.where(real, tf.cast(x, tf.float32), 0.0)
        seen = tf.bitcast(tf.reduce_sum(examples), tf.int32)
        return ClientData(
            x=x,
            y=y,
            mask=mask,
            steps_per_epoch=tf.reduce_sum(tf.cast(tf.reduce_any(mask > 0, 1), tf.int32)),
            num_examples=tf.cast(tf.reduce_sum(mask), tf.int32),
            participates=tf.ones([]),
            seed=random.fold_in(tf.stack([round_num, seen]), step=1),
            index=tf.constant(-1),
        )

    state_type = process.initialize.type_signature.result
    metrics_type = process.next.type_signature.result.metrics

    @tff.tensorflow.computation(metrics_type.member)
    def where_programs_look(metrics):
        names = list(metrics)
        of_model = names[: names.index("num_examples") + 1]
        train = collections.OrderedDict((name, metrics[name]) for name in of_model)
        client_work = collections.OrderedDict(train=train)
        return collections.OrderedDict(**metrics, client_work=client_work)

    @tff.tensorflow.computation(state_type.member)
    def round_num_of(state):
        return state.round_num

    @tff.federated_computation(
        state_type, tff.FederatedType(tff.SequenceType(elements), tff.CLIENTS)
    )
    def next_fn(state, clients):
        round_num = tff.federated_broadcast(tff.federated_map(round_num_of, state))
        state, metrics = process.next(state, tff.federated_map(arrays, (clients, round_num)))
        return tff.learning.templates.LearningProcessOutput(
            state, tff.federated_map(where_programs_look, metrics)
        )

    return tff.learning.templates.LearningProcess(
        initialize_fn=process.initialize,
        next_fn=Next(next_fn, look_at),
        get_model_weights=process.get_model_weights,
        set_model_weights=process.set_model_weights,
    )
