"""The suite beside TFF's own objects: clients, models, aggregators, loops.

    .venv/bin/python -m examples.tff_objects

Every part is a function of its own, and prints the loss that it comes to.
"""

from common import command_line

if __name__ == "__main__":
    command_line.answer_help(__doc__)

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from simulation import runtimes

SPEC = (tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int32))
BATCH_SIZE = 5


def client_data(num_clients: int = 8) -> tff.simulation.datasets.ClientData:
    """Returns clients as TFF's simulations have them: a data set for each id."""
    rng = np.random.default_rng(0)
    tensors = {}
    for k in range(num_clients):
        x = rng.normal(size=(10 + k, 4)).astype(np.float32)
        tensors[f"client_{k}"] = (x, (x.sum(axis=1) > 0).astype(np.int32))
    return tff.simulation.datasets.TestClientData(tensors)


def model_fn() -> tff.learning.models.VariableModel:
    """Returns a model as TFF's tutorials make it."""
    layers = [tf.keras.layers.Dense(2, input_shape=(4,), kernel_initializer="zeros")]
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential(layers),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=SPEC,
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )


def batches(data: tff.simulation.datasets.ClientData, client_id: str) -> tf.data.Dataset:
    """Returns a client's batches."""
    return data.create_tf_dataset_for_client(client_id).batch(BATCH_SIZE)


def tffs_loop(data, rounds: int = 5) -> float:
    """The loop of TFF's tutorials: a method of the suite, TFF's model, clients and aggregator."""
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


def loop_with_client_states(data, rounds: int = 5) -> float:
    """A method whose clients keep something: the loop remembers whose it is."""
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


def composed_with_a_dataset_computation(data, rounds: int = 5) -> float:
    """Clients by id: TFF makes their data sets where the clients are."""
    process = tff_algos.build("fedavg", model_fn, client_learning_rate=0.1)

    @tff.tensorflow.computation(tff.TensorType(np.str_))
    def dataset_of(client_id):
        examples = data.serializable_dataset_fn(client_id).batch(BATCH_SIZE)
        return examples.map(lambda x, y: (x, y))

    composed = tff.simulation.compose_dataset_computation_with_learning_process(
        dataset_of, tff_algos.taking_datasets(process, BATCH_SIZE)
    )
    state = composed.initialize()
    for _ in range(rounds):
        output = composed.next(state, data.client_ids[:4])
        state = output.state
    return float(output.metrics["loss"])


def main() -> None:
    """Runs all parts in the runtime `tff`."""
    data = client_data()
    with runtimes.installed("tff"):
        for part in (tffs_loop, loop_with_client_states, composed_with_a_dataset_computation):
            print(f"{part.__name__}: loss {part(data):.4f}")


if __name__ == "__main__":
    main()
