"""From a method's name and a model to a TFF process."""

import functools
from collections.abc import Callable

import numpy as np
import tensorflow_federated as tff

import hparams as hparams_lib
from tff_algos import registry
from tff_algos.client import LocalTraining
from tff_algos.client_data import ClientData
from tff_algos.method import Method, TffFederation
from tff_algos.model import Model


class Process(tff.learning.templates.LearningProcess):
    """A `tff.learning.templates.LearningProcess` that also carries the method it was made from.

    Attributes:
      method: The same round as pure functions, for runtimes that don't go through TFF.
      model: The model that is trained.
      plan: `(round number from 0, total rounds) -> RoundPlan`: what the method asks of the clients
        in a round, for loops that make the client data.
    """

    def __init__(self, method: Method, model: Model, **computations):
        super().__init__(**computations)
        self.method = method
        self.model = model
        self.plan = lambda round_num, total_rounds: registry.RoundPlan()


def client_data_type(model: Model) -> tff.Type:
    """Returns the TFF type of one client's data in a round: steps and batch size are unknown."""

    def stacked(spec):
        return tff.TensorType(spec.dtype.as_numpy_dtype, [None, None, *spec.shape[1:]])

    return tff.to_type(
        ClientData(
            x=stacked(model.x_spec),
            y=stacked(model.y_spec),
            mask=tff.TensorType(np.float32, [None, None]),
            steps_per_epoch=tff.TensorType(np.int32),
            seed=tff.TensorType(np.int32, [2]),
            index=tff.TensorType(np.int32),
        )
    )


def to_process(method: Method, model: Model) -> Process:
    """Makes the TFF process of a method.

    Args:
      method: The method.
      model: The model it was built for.

    Returns:
      A process whose `next` takes the state at the server and `ClientData` at the clients, and
      whose output's metrics are a server-placed structure of scalars. Model weights are
      `tff.learning.models.ModelWeights` with a list of trainable weights.
    """
    init = tff.tensorflow.computation(method.initialize)

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(init, tff.SERVER)

    state_type = init.type_signature.result

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(client_data_type(model), tff.CLIENTS),
    )
    def next_fn(state, clients):
        state, metrics = method.next_round(TffFederation(), state, clients)
        return tff.learning.templates.LearningProcessOutput(state, metrics)

    @tff.tensorflow.computation(state_type)
    def get_model_weights(state):
        return tff.learning.models.ModelWeights(list(state.weights), [])

    @tff.tensorflow.computation(state_type, get_model_weights.type_signature.result)
    def set_model_weights(state, weights):
        return state._replace(weights=tuple(weights.trainable))

    return Process(
        method,
        model,
        initialize_fn=initialize,
        next_fn=next_fn,
        get_model_weights=get_model_weights,
        set_model_weights=set_model_weights,
    )


def build(
    name: str, model: Model | Callable[[], Model], *, num_clients: int | None = None, **settings
) -> Process:
    """Builds the process of a method for a model.

    Args:
      name: A name of `tff_algos.names()`.
      model: The model (see `tff_algos.from_keras`), or a function that makes it.
      num_clients: Number of all training clients (N), for methods whose mathematics needs it.
      **settings: Training settings (`tff_algos.TRAINING_HPARAMS`) and the method's own
        (`tff_algos.get(name).hparams`).

    Returns:
      The process.

    Raises:
      HparamError: If the name or a setting is unknown, missing, or out of range.
    """
    spec = registry.get(name)
    shared = {h.name for h in registry.TRAINING_HPARAMS}
    training = registry.resolve_training(spec, {k: v for k, v in settings.items() if k in shared})
    own = hparams_lib.resolve(
        name, spec.hparams, {k: v for k, v in settings.items() if k not in shared}
    )
    if spec.needs_num_clients:
        if num_clients is None:
            raise hparams_lib.HparamError(f"{name} needs num_clients, the number of all clients.")
        own["num_clients"] = num_clients
    model = model() if callable(model) else model
    process = to_process(spec.build_fn()(model, LocalTraining(training), **own), model)
    if spec.plan is not None:
        process.plan = functools.partial(spec.plan, own)
    return process
