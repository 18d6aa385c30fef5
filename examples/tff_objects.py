"""The suite together with TFF's own clients, models, optimizers, aggregators, loops and programs.

    python -m examples.tff_objects

Every part is a function that returns its final loss.
"""

import asyncio
import collections
import tempfile
from typing import Any

from tff_suite import command_line, parser

PARSER = parser.Parser(__doc__)

if __name__ == "__main__":
    command_line.begin(PARSER)

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from simulation import runtimes

# Examples are dictionaries with these keys; pairs (x, y) work, too.
SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 4]), y=tf.TensorSpec([None], tf.int32))
LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
BATCH_SIZE = 5


def client_data(pairs: bool = False) -> tff.simulation.datasets.ClientData:
    """Returns clients in the form of TFF's simulations: a data set for each id.

    Args:
      pairs: Whether examples are pairs (x, y) instead of dictionaries; both work.
    """
    rng = np.random.default_rng(0)
    tensors = {}
    for k in range(8):
        x = rng.normal(size=(10 + k, 4)).astype(np.float32)
        y = (x.sum(axis=1) > 0).astype(np.int32)
        tensors[f"client_{k}"] = (x, y) if pairs else collections.OrderedDict(x=x, y=y)
    return tff.simulation.datasets.TestClientData(tensors)


def keras_model() -> tf.keras.Model:
    """Returns an uncompiled Keras model."""
    layers = [tf.keras.layers.Dense(2, input_shape=(4,), kernel_initializer="zeros")]
    return tf.keras.Sequential(layers)


def model_fn() -> tff.learning.models.VariableModel:
    """Returns a model as TFF's tutorials make it."""
    return tff.learning.models.from_keras_model(
        keras_model(),
        loss=LOSS,
        input_spec=SPEC,
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )


def functional_model() -> tff.learning.models.FunctionalModel:
    """Returns the same model as a function of its weights."""

    @tf.function
    def predict_on_batch(weights, x, training):
        (kernel, bias), _ = weights
        return x @ kernel + bias

    def loss(outputs, y, sample_weight=None):
        return LOSS(y, outputs, sample_weight)

    weights = (np.zeros([4, 2], np.float32), np.zeros([2], np.float32))
    return tff.learning.models.FunctionalModel(
        initial_weights=(weights, ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=loss,
        input_spec=SPEC,
    )


def compiled_model() -> tf.keras.Model:
    """Returns the same model, compiled by Keras."""
    model = keras_model()
    model.compile(loss=LOSS, metrics=[tf.keras.metrics.SparseCategoricalAccuracy()])
    return model


class Subclassed(tf.keras.Model):
    """The same model as a subclass of `tf.keras.Model`."""

    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(2, kernel_initializer="zeros")

    def call(self, inputs):
        """Returns logits `[b, 2]` of inputs `[b, 4]`."""
        return self.dense(inputs)


def subclassed_model() -> tff_algos.Model:
    """Returns a subclassed model, which knows its variables only after a call."""
    model = Subclassed()
    model(tf.zeros([1, 4]))
    return tff_algos.from_keras(model, loss=LOSS, x_spec=SPEC["x"])


MODELS = {
    "a model_fn": lambda: model_fn,
    "a VariableModel": model_fn,
    "a FunctionalModel": functional_model,
    "a compiled Keras model": compiled_model,
    "a Keras model that is not compiled": lambda: tff_algos.from_keras(keras_model(), loss=LOSS),
    "a subclassed Keras model": subclassed_model,
}


def batches(data: tff.simulation.datasets.ClientData, client_id: str) -> tf.data.Dataset:
    """Returns a client's batches."""
    return data.create_tf_dataset_for_client(client_id).batch(BATCH_SIZE)


def any_model(data, kind: str) -> float:
    """Runs a round of one of `MODELS`."""
    process = tff_algos.build("fedavg", MODELS[kind](), client_learning_rate=0.1)
    clients = [batches(data, i) for i in data.client_ids]
    output = process.next(process.initialize(), clients)
    return float(output.metrics["loss"])


def tffs_loop(data, rounds: int = 5) -> float:
    """Runs the loop of TFF's tutorials: the suite's method, TFF's model, clients and aggregator."""
    process = tff_algos.build(
        "fedadam",
        model_fn,
        client_learning_rate=0.1,
        server_learning_rate=0.1,
        model_aggregator=tff.learning.robust_aggregator(),
    )
    state = process.initialize()
    for round_num in range(rounds):
        ids = np.random.default_rng(round_num).choice(data.client_ids, 4, replace=False)
        output = process.next(state, [batches(data, i) for i in ids])
        state = output.state
    return float(output.metrics["loss"])


def tffs_optimizers(data, rounds: int = 5) -> float:
    """Uses TFF's optimizers at the clients and at the server, instead of names and rates."""
    process = tff_algos.build(
        "fedavg",
        model_fn,
        client_optimizer=tff.learning.optimizers.build_sgdm(0.1, momentum=0.9),
        server_optimizer=tff.learning.optimizers.build_adam(0.1),
    )
    state = process.initialize()
    for _ in range(rounds):
        output = process.next(state, [batches(data, i) for i in data.client_ids[:4]])
        state = output.state
    return float(output.metrics["loss"])


def loop_with_client_states(data, rounds: int = 5) -> float:
    """Runs a method with client state: the loop tracks which state belongs to which client."""
    ids = data.client_ids
    process = tff_algos.build("scaffold", model_fn, num_clients=len(ids), client_learning_rate=0.1)
    state, kept = process.initialize(), {}
    for round_num in range(rounds):
        cohort = np.random.default_rng(round_num).choice(len(ids), 4, replace=False)
        clients = [tff_algos.from_dataset(batches(data, ids[k]), index=k) for k in cohort]
        before = [kept.get(k, process.initial_client_state()) for k in cohort]
        output = process.next(state, clients, before)
        state = output.state
        kept.update(zip(cohort, output.client_states, strict=True))
    return float(output.metrics["loss"])


def of_ids(process, data) -> tff.learning.templates.LearningProcess:
    """Returns a process that takes clients' ids: TFF makes the data sets at the clients."""

    @tff.tensorflow.computation(tff.TensorType(np.str_))
    def dataset_of(client_id):
        return data.serializable_dataset_fn(client_id).batch(BATCH_SIZE)

    return tff.simulation.compose_dataset_computation_with_learning_process(
        dataset_of, tff_algos.from_datasets(process, BATCH_SIZE)
    )


def composed_with_a_dataset_computation(data, rounds: int = 5) -> float:
    """Runs a loop over ids."""
    process = tff_algos.build("fedavg", model_fn, client_learning_rate=0.1)
    composed = of_ids(process, data)
    state = composed.initialize()
    for _ in range(rounds):
        output = composed.next(state, data.client_ids[:4])
        state = output.state
    return float(output.metrics["loss"])


def tffs_program(process, source, folder: str, rounds: int = 5) -> dict[str, Any]:
    """Trains by `tff.learning.programs.train_model`, and resumes from the checkpoints in a folder.

    Args:
      process: A process that takes the source's data.
      source: The `tff.program.FederatedDataSource` of the clients.
      folder: Where TFF keeps its checkpoints.
      rounds: The last round.

    Returns:
      The state after the last round (`state`) and its metrics (`metrics`).
    """
    models, metrics = tff.program.MemoryReleaseManager(), tff.program.MemoryReleaseManager()
    asyncio.run(
        tff.learning.programs.train_model(
            train_process=process,
            train_data_source=source,
            train_per_round_clients=4,
            train_total_rounds=rounds,
            program_state_manager=tff.program.FileProgramStateManager(folder),
            model_output_manager=models,
            train_metrics_manager=metrics,
            evaluation_manager=None,
            evaluation_periodicity=1,
        )
    )
    state = models.values()[f"training_checkpoint_round_{rounds}"]
    return {"state": state, "metrics": metrics.values()[rounds]}


def program_over_ids(data) -> float:
    """Runs TFF's program with TFF's source of ids, which draws without a seed."""
    process = tff_algos.build(
        "fedadam", model_fn, client_learning_rate=0.1, server_learning_rate=0.1
    )
    source = tff.program.ClientIdDataSource(data.client_ids)
    with tempfile.TemporaryDirectory() as folder:
        result = tffs_program(of_ids(process, data), source, folder)
    return float(result["metrics"]["model_metrics"]["loss"])


class Cohorts(tff.program.FederatedDataSource):
    """The data sets of each round's clients, drawn by the round's number."""

    def __init__(self, data):
        """Initialises from the clients."""
        self._data = data

    @property
    def federated_type(self):
        """The type of the selected data."""
        return self.iterator().federated_type

    def iterator(self):
        """Returns an iterator that begins with the first round."""
        return CohortIterator(self._data, 0)


class CohortIterator(tff.program.FederatedDataSourceIterator):
    """The iterator that `train_model` draws from, copies, and stores in its checkpoints.

    TensorFlow cannot copy data sets, so TFF's own `DatasetDataSource` fails in `train_model`.
    """

    def __init__(self, data, round_num: int):
        """Initialises from the clients and the number of the next round."""
        self._data, self._round_num = data, round_num

    def __deepcopy__(self, memo):
        """Returns an iterator at the same position, over the same clients."""
        return CohortIterator(self._data, self._round_num)

    @property
    def federated_type(self):
        """The type of the selected data."""
        spec = batches(self._data, self._data.client_ids[0]).element_spec
        element = tff.types.tensorflow_to_type(spec)
        return tff.FederatedType(tff.SequenceType(element), tff.CLIENTS)

    def select(self, k=None):
        """Returns the data sets of the next round's k clients."""
        rng = np.random.default_rng(self._round_num)
        self._round_num += 1
        ids = rng.choice(self._data.client_ids, k, replace=False)
        return [batches(self._data, i) for i in ids]

    def to_bytes(self):
        """Returns the content of a checkpoint."""
        return str(self._round_num).encode()

    @classmethod
    def from_bytes(cls, buffer):
        """Returns the iterator from a checkpoint."""
        return cls(client_data(), int(buffer))


def program_over_data_sets(data) -> float:
    """Runs TFF's program with your own source."""
    process = tff_algos.build(
        "fedadam", model_fn, client_learning_rate=0.1, server_learning_rate=0.1
    )
    taking = tff_algos.from_datasets(process, BATCH_SIZE)
    with tempfile.TemporaryDirectory() as folder:
        result = tffs_program(taking, Cohorts(data), folder)
    return float(result["metrics"]["model_metrics"]["loss"])


PARTS = (
    tffs_loop,
    tffs_optimizers,
    loop_with_client_states,
    composed_with_a_dataset_computation,
    program_over_ids,
    program_over_data_sets,
)


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs all parts in the runtime `tff`."""
    PARSER.parse(arguments)
    data = client_data()
    with runtimes.installed("tff"):
        for kind in MODELS:
            print(f"any_model: loss {any_model(data, kind):.4f} of {kind}")
        print(f"any_model: loss {any_model(client_data(pairs=True), kind):.4f} of pairs")
        for part in PARTS:
            print(f"{part.__name__}: loss {part(data):.4f}")
    return 0


if __name__ == "__main__":
    command_line.run(main)
