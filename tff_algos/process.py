"""From a method's name and a model to a TFF process."""

import functools
import numbers
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import driver, purity, registry, schedules, tff_models, tff_names
from tff_algos.client import LocalTraining, Optimizer, has_known_steps
from tff_algos.client_data import (
    ClientData,
    check_indices,
    check_plan,
    of_model,
    require_list,
    require_states,
)
from tff_algos.method import ClientState, Method, TffFederation
from tff_algos.method_spec import COUNTS
from tff_algos.model import Model, ModelError, unfit_explained
from tff_algos.registry import MethodSpec
from tff_algos.vector import Vector
from tff_suite import hparams as hparams_lib
from tff_suite import memory, user_warnings

# What a subclass of TFF's computations, which are one class of its own, has to inherit.
from tff_suite.compat import computation_impl, context_stack_impl

# Stands for the number of rounds, which only the caller of `next` knows: plans of first and of last
# rounds may differ.
MANY_ROUNDS = 1_000_000


class _TracedWhenUsed:
    """A process whose TFF computations are traced when one of them is first looked at.

    The engine and its workers run the method itself and never look at them.
    """

    def __init__(
        self,
        method: Method,
        model: Model,
        check_clients: Callable,
        make: Callable[[], Mapping[str, tff.Computation]],
    ):
        # Not TFF's, which wants what is traced.
        self._make, self._lock = make, threading.RLock()
        self.method = method
        self.model = model
        self.plan = lambda round_num, total_rounds: registry.RoundPlan()
        self.check_clients = check_clients

    def _take(self, **computations: Any) -> None:
        super().__init__(**computations)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_make" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with self._lock:
            if "_make" in self.__dict__:
                self._take(**self._make())
                del self._make
        return getattr(self, name)


class Process(_TracedWhenUsed, tff.learning.templates.LearningProcess):
    """A `tff.learning.templates.LearningProcess` that also carries the method it was made from.

    Attributes:
      method: The same round as pure functions, for runtimes that bypass TFF.
      model: The model that is trained.
      plan: `(round number from 0, total rounds) -> RoundPlan`: what the method requests from the
        clients in a round, for loops that build the client data.
      check_clients: `clients -> None`: raises a `ValueError` for a cohort that the method does not
        support (`MethodSpec.needs_index`). `next` calls it before any runtime does.
    """


class Next(computation_impl.ConcreteComputation):
    """A process's `next` that checks the clients before TFF does, and converts them if needed.

    Inside another TFF computation clients are symbolic and not checked.
    """

    def __init__(
        self,
        computation: computation_impl.ConcreteComputation,
        look_at: Callable[[Any, Sequence[Any]], list[Any]],
    ):
        """Initialises from the computation and `(state, clients) -> clients as TFF takes them`."""
        super().__init__(
            computation_proto=computation_impl.ConcreteComputation.get_proto(computation),
            context_stack=context_stack_impl.context_stack,
            annotated_type=computation.type_signature,
        )
        self._look_at = look_at

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the round. A list or tuple of clients, and their states, are checked first."""
        state = kwargs.get("state", args[0] if args else None)
        clients = kwargs.get("clients", args[1] if len(args) > 1 else None)
        states = kwargs.get("client_states", args[2] if len(args) > 2 else None)
        require_list("clients", clients)
        if isinstance(clients, list | tuple):
            if states is not None:
                require_states(states, len(clients))
            clients = self._look_at(state, clients)
            if "clients" in kwargs:
                kwargs["clients"] = clients
            else:
                args = (args[0], clients, *args[2:])
        # TFF knows lists only.
        args = tuple(list(a) if isinstance(a, StackedStates) else a for a in args)
        kwargs = {k: list(a) if isinstance(a, StackedStates) else a for k, a in kwargs.items()}
        with unfit_explained():
            return super().__call__(*args, **kwargs)


class _WhenUsed(computation_impl.ConcreteComputation):
    """A computation that is traced on its first use, if any."""

    def __init__(self, make: Callable[[], tff.Computation], type_signature: tff.FunctionType):
        # Not the base class's, which wants what is traced.
        self._make = make
        self._type_signature = type_signature
        self._context_stack = context_stack_impl.context_stack

    @functools.cached_property
    def _computation_proto(self):
        return computation_impl.ConcreteComputation.get_proto(self._make())


class GetModelWeights(_WhenUsed):
    """`state -> ModelWeights`. A state that Python already holds does not pass through TFF."""

    def __init__(self, make: Any, type_signature: Any, frozen: Sequence[np.ndarray]):
        """Initialises from the arguments of `_WhenUsed` and the non-trainable weights."""
        super().__init__(make, type_signature)
        self._frozen = frozen

    def __call__(self, state: Any) -> Any:
        """Returns the weights in a state."""
        if isinstance(state, tff.Value):
            return super().__call__(state)
        return tff.learning.models.ModelWeights(list(state.weights), list(self._frozen))


class SetModelWeights(computation_impl.ConcreteComputation):
    """`(state, ModelWeights) -> state`, which refuses to change the non-trainable weights.

    A process holds these as constants. You may leave them out, as in TFF's processes of a model
    that has none.
    """

    def __init__(
        self,
        computation: computation_impl.ConcreteComputation,
        frozen: Sequence[np.ndarray],
    ):
        """Initialises from the computation and the non-trainable weights."""
        super().__init__(
            computation_proto=computation_impl.ConcreteComputation.get_proto(computation),
            context_stack=context_stack_impl.context_stack,
            annotated_type=computation.type_signature,
        )
        self._frozen = frozen

    def __call__(self, state: Any, weights: Any) -> Any:
        """Returns the state with other trainable weights.

        Raises:
          ValueError: If non-trainable weights differ from those of the process.
        """
        if isinstance(state, tff.Value) or not hasattr(weights, "non_trainable"):
            return super().__call__(state, weights)
        given = list(map(np.asarray, weights.non_trainable))
        if given and not (
            len(given) == len(self._frozen) and all(map(np.array_equal, given, self._frozen))
        ):
            raise ValueError(
                "The non-trainable weights differ from those that the process was built with and "
                "keeps: build a process from a model that has them."
            )
        whole = tff.learning.models.ModelWeights(list(weights.trainable), list(self._frozen))
        return super().__call__(state, whole)


class StackedStates(Sequence):
    """The states of several clients, stacked: entry k is that of client k.

    Attributes:
      stacked: Structure of NumPy arrays `[K, ...]`, read-only.
    """

    def __init__(self, stacked: Any):
        """Initialises from the arrays."""
        self.stacked = stacked

    def __len__(self) -> int:
        return len(tf.nest.flatten(self.stacked)[0])

    def __getitem__(self, key: Any) -> Any:
        part = tf.nest.map_structure(lambda values: values[key], self.stacked)
        return StackedStates(part) if isinstance(key, slice) else part


class RoundOutput(NamedTuple):
    """Output of a round with client state: `LearningProcessOutput` plus each client's state."""

    state: Any
    metrics: Any
    client_states: Any


class StatefulProcess(_TracedWhenUsed, tff.templates.IterativeProcess):
    """A `tff.templates.IterativeProcess` whose clients keep state between rounds.

    `next` takes `(state, clients, client_states)` and returns a `RoundOutput`. Entry k of
    `client_states`, a list or `StackedStates`, is the `ClientState` of the client whose data is
    entry k of `clients`. The caller tracks which state belongs to which client. A client's first
    state is `initial_client_state()`.

    Attributes:
      method: As in `Process`.
      model: As in `Process`.
      plan: As in `Process`.
      check_clients: As in `Process`.
      get_model_weights: As in `tff.learning.templates.LearningProcess`.
      set_model_weights: As in `tff.learning.templates.LearningProcess`.
    """

    def _take(self, **computations: Any) -> None:
        self.get_model_weights = computations.pop("get_model_weights")
        self.set_model_weights = computations.pop("set_model_weights")
        super()._take(**computations)

    def initial_client_state(self) -> ClientState:
        """Returns the state of a client before its first round, as NumPy arrays."""
        return initial_client_state(self.method)


def initial_client_state(method: Method) -> ClientState:
    """Returns the state of a client that was in no round yet: zeros, as NumPy arrays."""
    return tf.nest.map_structure(
        lambda t: np.zeros(t.shape, t.dtype.as_numpy_dtype), client_state_spec(method)
    )


def client_state_spec(method: Method) -> ClientState:
    """Returns the `tf.TensorSpec`s of the state of a client of a method that has client state."""
    traced = tf.function(method.client_state, autograph=False).get_concrete_function()
    kept = tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs
    )
    return ClientState(tf.TensorSpec([], tf.int32), kept)


def client_data_spec(model: Model) -> ClientData:
    """Returns the `tf.TensorSpec`s of one client's data: steps and batch size are unknown."""

    def stacked(spec):
        return tf.TensorSpec([None, None, *spec.shape[1:]], spec.dtype)

    scalar = tf.TensorSpec([], tf.int32)
    return ClientData(
        x=stacked(model.x_spec),
        y=stacked(model.y_spec),
        mask=tf.TensorSpec([None, None], tf.float32),
        steps_per_epoch=scalar,
        num_examples=scalar,
        participates=tf.TensorSpec([], tf.float32),
        seed=tf.TensorSpec([2], tf.int32),
        index=scalar,
    )


def client_data_type(model: Model) -> tff.Type:
    """Returns the TFF type of one client's data."""
    return tff.to_type(
        tf.nest.map_structure(
            lambda t: tff.types.tensorflow_to_type((t.dtype, t.shape)), client_data_spec(model)
        )
    )


def to_process(
    method: Method, model: Model, check_clients: Callable | None = None
) -> Process | StatefulProcess:
    """Makes the TFF process of a method.

    Args:
      method: The method.
      model: The model it was built for.
      check_clients: See `Process`; `None` if the method supports any clients.

    Returns:
      A process whose `next` takes the state at the server and `ClientData` at the clients. The
      metrics of its output are a server-placed structure of scalars. Model weights are
      `tff.learning.models.ModelWeights`; their non-trainable part is the model's and never changes.
      With client state, a `StatefulProcess`.
    """
    check_clients = check_clients or (lambda clients: None)
    make = functools.partial(_computations, method, model, check_clients)
    kind = Process if method.client_state is None else StatefulProcess
    return kind(method, model, check_clients, make)


@memory.without_collection()
def _computations(
    method: Method, model: Model, check_clients: Callable
) -> dict[str, computation_impl.ConcreteComputation]:
    """Returns the computations of a process by the names that TFF gives them."""
    if model.calls_python:
        raise ModelError(
            "The model, its loss or a metric calls Python (tf.py_function or tf.numpy_function), "
            "and TFF's computations cannot hold that: write it with TensorFlow's operations, or "
            "run with runtime='per_client'."
        )

    @tff.tensorflow.computation
    def init():
        with purity.required(method.initialize):
            return method.initialize()

    state_type = init.type_signature.result
    at_server = tff.FederatedType(state_type, tff.SERVER)

    def initialize():
        return tff.federated_computation(lambda: tff.federated_eval(init, tff.SERVER))

    placed = [
        at_server,
        tff.FederatedType(client_data_type(model), tff.CLIENTS),
    ]
    federation = TffFederation()
    if method.client_state is None:

        @tff.federated_computation(*placed)
        def next_fn(state, clients):
            state, metrics = method.next_round(federation, state, clients)
            return tff.learning.templates.LearningProcessOutput(
                federation.zip(state), federation.zip(metrics)
            )

    else:
        client_state = tff.tensorflow.computation(
            lambda: ClientState(tf.constant(0), method.client_state())
        )
        placed.append(tff.FederatedType(client_state.type_signature.result, tff.CLIENTS))

        @tff.federated_computation(*placed)
        def next_fn(state, clients, client_states):
            state, metrics, kept = method.next_round(federation, state, clients, client_states)
            return RoundOutput(federation.zip(state), metrics, federation.zip(kept))

    def get_model_weights():
        def weights_of(state):
            fixed = list(map(tf.constant, model.frozen_weights))
            return tff.learning.models.ModelWeights(list(state.weights), fixed)

        return tff.tensorflow.computation(weights_of, state_type)

    fixed = map(tf.convert_to_tensor, model.frozen_weights)
    weights_type = tff.to_type(
        tff.learning.models.ModelWeights(
            list(state_type["weights"]),
            [tff.TensorType(w.dtype.as_numpy_dtype, w.shape) for w in fixed],
        )
    )

    @tff.tensorflow.computation(state_type, weights_type)
    def set_model_weights(state, weights):
        state = state._replace(weights=tuple(weights.trainable))
        return method.adopt_weights(state) if method.adopt_weights else state

    def look_at(state, clients):
        clients = of_model(clients, model, int(state.round_num))
        check_clients(clients)
        return clients

    return dict(
        # As large as the model, several times over; in this process nothing runs it.
        initialize_fn=_WhenUsed(initialize, tff.FunctionType(None, at_server)),
        next_fn=Next(next_fn, look_at),
        get_model_weights=GetModelWeights(
            get_model_weights, tff.FunctionType(state_type, weights_type), model.frozen_weights
        ),
        set_model_weights=SetModelWeights(set_model_weights, model.frozen_weights),
    )


@memory.without_collection()
def build(
    name: str,
    model: Any,
    *,
    num_clients: int | None = None,
    model_aggregator: Any = None,
    server_optimizer: Any = None,
    clients_per_round: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Process | StatefulProcess | driver.Driver:
    """Builds the process of a method for a model.

    Args:
      name: A name of `tff_algos.names()`.
      model: The model: the result of `tff_algos.from_keras`, a compiled Keras model, a
        FunctionalModel or VariableModel of `tff.learning.models`, or a function without arguments
        that returns one.
      num_clients: Number of all training clients (N), for methods whose mathematics needs it.
      model_aggregator: A `tff.aggregators` factory, weighted or unweighted, such as
        `tff.learning.robust_aggregator()`, that replaces the mean of the clients' updates
        (`tff_algos.aggregation`). The setting `aggregator` offers some by name, which draw from
        `seed`.
      server_optimizer: A `tff.learning.optimizers.Optimizer` that replaces FedAvg's server step.
      clients_per_round: Clients per round, the default number that `aggregator=dp` expects.
      seed: Seed of the random draws of `aggregator=dp` and `compressed`, at least 0.
      **settings: Training settings (`tff_algos.TRAINING_HPARAMS`) and the method's own
        (`tff_algos.get(name).hparams`). `client_optimizer` may also be a
        `tff.learning.optimizers.Optimizer`, whose learning rate is the default for
        `client_learning_rate`. `client_lr_schedule` may also be a function from the round (float32
        scalar tensor, from 0) to the learning rate, such as a
        `tf.keras.optimizers.schedules.LearningRateSchedule`; it replaces `client_learning_rate`.

    Returns:
      The process; for a staged method (`MethodSpec.staged`) its driver.

    Raises:
      HparamError: If the name or a setting is unknown, missing, or out of range.
      ModelError: If the model cannot be a pure function of its weights.

    Warns:
      RuntimeWarning: If an aggregator's secure sums are simulated, or it draws without a seed. Also
        if the optimizer of a compiled model does what clients will not do, and of `Model.doubts`.
    """
    spec = registry.get(name)
    for setting in settings:
        told = tff_names.of_argument(setting)
        if told is not None:
            raise hparams_lib.HparamError(f"{name} has no setting {setting!r}. {told}")
    settings, client_optimizer = _client_optimizer(spec, settings)
    settings, schedule = _client_schedule(settings)
    shared = {h.name for h in registry.TRAINING_HPARAMS}
    # An unknown name, such as TFF's `client_optimizer_fn`, before what is missing for want of it.
    own = hparams_lib.resolve(
        name, spec.hparams, {k: v for k, v in settings.items() if k not in shared}
    )
    training = registry.resolve_training(spec, {k: v for k, v in settings.items() if k in shared})
    registry.check_aggregator(spec, training, own)
    if spec.needs_num_clients:
        if num_clients is None:
            raise hparams_lib.HparamError(f"{name} needs num_clients, the number of all clients.")
        if not isinstance(num_clients, numbers.Integral) or num_clients < 1:
            raise hparams_lib.HparamError(
                f"num_clients={num_clients!r} must be a whole number, at least 1."
            )
        own["num_clients"] = num_clients
    named = client_optimizer or settings.get("client_optimizer")
    model = tff_models.as_model(model, has_optimizer=named is not None)
    if not model.initial_weights:
        raise ModelError("The model has no trainable weights: let at least one layer train.")
    _refuse_metric_names(spec, model)
    for doubt in model.doubts:
        user_warnings.warn(doubt)
    if client_optimizer is not None:
        _refuse_ignored_rate(client_optimizer, model)
    local = LocalTraining(training, client_optimizer, schedule)
    if server_optimizer is not None:
        own["server_optimizer"] = _server_optimizer(spec, settings, server_optimizer)
    adapt = _adapter(spec, training, own, model, model_aggregator, seed, clients_per_round)
    if spec.staged:
        return spec.build_fn()(model, local, **own)
    method = adapt(spec.build_fn()(model, local, **own))
    process = to_process(method, model, _check_of_clients(spec, own, num_clients))
    process.plan = functools.partial(spec.round_plan, own)
    return process


def _check_of_clients(spec: MethodSpec, own: dict, num_clients: int | None) -> Callable:
    """Returns a method's `check_clients`."""
    checks: list[Callable] = []
    if spec.needs_index:
        assert num_clients is not None  # `build` has refused that.
        checks.append(functools.partial(check_indices, spec.name, num_clients))
    if spec.plan is not None:
        plans = [spec.round_plan(own, r, MANY_ROUNDS) for r in (0, MANY_ROUNDS - 1)]
        checks.append(functools.partial(check_plan, spec.name, plans))

    def check(clients):
        for look_at in checks:
            look_at(clients)

    return check


def _refuse_metric_names(spec: MethodSpec, model: Model) -> None:
    """Refuses metrics of a model that would share their name with another number of a round."""
    for metric in model.metric_names or ():
        if metric in (*COUNTS, *(spec.measures or ())):
            raise ModelError(
                f"Metric {metric!r} has the name of a number that each round of {spec.name} "
                "reports: give it another name."
            )


def _client_optimizer(spec: MethodSpec, settings: dict[str, Any]) -> tuple[dict, Any]:
    """Returns the settings without objects, and the clients' optimizer if it is a TFF object.

    Raises:
      HparamError: If the method does not support it.
    """
    given = settings.get("client_optimizer")
    if given is None or isinstance(given, str):
        return settings, None
    settings = {**settings, "client_optimizer": None}
    name = f"client_optimizer={type(given).__name__}"
    if not isinstance(given, tff.learning.optimizers.Optimizer):
        raise hparams_lib.HparamError(
            f"{name} must be the name of an optimizer, such as client_optimizer='adam' with "
            "client_learning_rate, or a tff.learning.optimizers.Optimizer."
        )
    if spec.client_optimizers is not None:
        raise hparams_lib.HparamError(
            f"{name} is not supported by {spec.name}, which defines its local step; it takes the "
            f"names {', '.join(spec.client_optimizers)}."
        )
    if settings.get("client_optimizer_state", "reset") == "keep":
        raise hparams_lib.HparamError(
            f"{name} starts afresh every round; client_optimizer_state=keep needs an optimizer's "
            "name, such as client_optimizer='adam'."
        )
    slots = given.initialize((tf.TensorSpec([1]),))
    rate = slots.get("learning_rate") if isinstance(slots, dict) else None
    if rate is None and isinstance(slots, dict) and "round_num" in slots:
        raise hparams_lib.HparamError(
            f"{name} comes from schedule_learning_rate, which restarts in every round. Pass the "
            "inner optimizer, and its schedule as client_lr_schedule, a function of the round."
        )
    if rate is None:
        raise hparams_lib.HparamError(
            f"{name} has no learning_rate in its state, which the method sets every round."
        )
    # A schedule that is a function returns the rate itself.
    has_rate = callable(settings.get("client_lr_schedule"))
    if settings.get("client_learning_rate") is None and not has_rate:
        settings["client_learning_rate"] = float(rate)
    return settings, given


def _refuse_ignored_rate(optimizer: Any, model: Model) -> None:
    """Refuses an optimizer whose steps do not depend on the learning rate in its state."""
    if has_known_steps(optimizer):
        return
    with tf.init_scope():
        start = Vector(map(tf.convert_to_tensor, model.initial_weights))
        one, other = (_two_steps(optimizer, start, rate) for rate in (0.5, 1.0))
    if all(np.array_equal(a, b) for a, b in zip(one, other, strict=True)):
        raise hparams_lib.HparamError(
            f"client_optimizer={type(optimizer).__name__} takes the same step at every "
            "learning_rate in its state, which the method sets every round. Let its step use it."
        )


def _two_steps(given, weights, learning_rate):
    """Returns weights after two steps along gradients of ones. The first may be of length zero."""
    optimizer = Optimizer(given)
    slots = optimizer.start(weights, tf.constant(learning_rate))
    for _ in range(2):
        slots, weights = optimizer.step(slots, weights, Vector(map(tf.ones_like, weights)))
    return weights


def _client_schedule(settings: dict[str, Any]) -> tuple[dict, Callable | None]:
    """Returns the settings without functions, and the clients' learning rate if it is a function.

    Raises:
      HparamError: If `client_learning_rate` is also set, or the function returns anything but valid
        learning rates.
    """
    given = settings.get("client_lr_schedule")
    if not callable(given):
        return settings, None
    if settings.get("client_learning_rate") is not None:
        raise hparams_lib.HparamError(
            "client_lr_schedule is a function that returns the learning rate itself; leave out "
            "client_learning_rate."
        )
    first = schedules.first_rate(given)
    return {**settings, "client_lr_schedule": None, "client_learning_rate": first}, given


def _server_optimizer(spec: MethodSpec, settings: Mapping[str, Any], given: Any) -> Any:
    name = f"server_optimizer={type(given).__name__}"
    if not spec.takes_server_optimizer:
        raise hparams_lib.HparamError(
            f"{name} is not supported by {spec.name}, which defines its server step; use fedavg."
        )
    if not isinstance(given, tff.learning.optimizers.Optimizer):
        raise hparams_lib.HparamError(f"{name} must be a tff.learning.optimizers.Optimizer.")
    if settings.get("server_learning_rate") is not None:
        raise hparams_lib.HparamError(
            f"server_learning_rate is not used with {name}, which has its own."
        )
    return given


def _adapter(
    spec: MethodSpec,
    training: Mapping[str, Any],
    own: Mapping[str, Any],
    model: Model,
    factory: Any,
    seed: int,
    clients_per_round: int | None,
) -> Callable[[Method], Method]:
    """Returns a function that puts the chosen aggregator into a method."""
    word = training["aggregator"]
    if factory is None and word == "mean":
        return lambda method: method
    # What differential privacy and compression take is not loaded for a mean.
    from tff_algos import aggregation, aggregators

    if factory is not None and word != "mean":
        raise hparams_lib.HparamError(
            f"aggregator={word} and model_aggregator are two aggregators; give one."
        )
    if factory is None:
        with aggregation.quietly():
            factory = aggregators.build(training, seed, clients_per_round)
    return aggregation.wrap(spec, training, own, model, factory)
