"""What the clients of many methods share: optimizer, learning rate, the loop over batches."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import nesterov, random
from tff_algos.client_data import Batch, ClientData
from tff_algos.method import ClientState
from tff_algos.model import Model, ModelError
from tff_algos.purity import MethodError
from tff_algos.registry import CLIENT_OPTIMIZERS
from tff_algos.vector import Vector, on_vectors, to_tuples, to_vectors

# The packages of optimizers whose steps are known not to depend on the weights (see `displace`).
_OF_KNOWN_STEPS = ("tensorflow_federated.", "tff_algos.")


class LocalTraining:
    """How clients train, and how they are weighted: the resolved training settings."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        optimizer: Any = None,
        schedule: Callable[[tf.Tensor], Any] | None = None,
    ):
        """Initialises the settings.

        Args:
          settings: The result of `tff_algos.registry.resolve_training`.
          optimizer: A TFF optimizer that replaces the one in the settings.
          schedule: Function from the round (float32 scalar, from 0) to the clients' learning rate.
            It replaces the schedule in the settings.
        """
        self._settings, self._optimizer, self._schedule = dict(settings), optimizer, schedule

    @property
    def server_learning_rate(self) -> float:
        """The server's learning rate (η)."""
        return self._settings["server_learning_rate"]

    def optimizer(
        self,
        client_state: ClientState | None = None,
        builders: Mapping[str, Callable] | None = None,
    ) -> Optimizer:
        """Returns the clients' optimizer. Its learning rate is set anew in each round.

        Args:
          client_state: The client's stored state, from which its optimizer continues; by default
            the optimizer starts afresh.
          builders: Optimizer name → builder that the method uses in place of TFF's.
        """
        return Optimizer(self._optimizer or self._built(builders or {}), client_state)

    def _built(self, builders):
        name = self._settings["client_optimizer"]
        arguments = {
            argument: self._settings[setting]
            for setting, argument in CLIENT_OPTIMIZERS[name].items()
            if self._settings[setting] is not None
        }
        build = builders.get(name) or _optimizer_builder(name)
        return build(learning_rate=self._settings["client_learning_rate"], **arguments)

    @property
    def momentum(self) -> float:
        """The momentum ρ of the clients' optimizer; 0 if it is neither `sgdm` nor `nesterov`."""
        has_momentum = self._settings["client_optimizer"] in ("sgdm", "nesterov")
        return self._settings["client_momentum"] if has_momentum else 0.0

    @property
    def nesterov(self) -> bool:
        """Whether the clients' optimizer is `nesterov`."""
        return self._settings["client_optimizer"] == "nesterov"

    def client_state(self, model: Model) -> Callable[[], Any] | None:
        """Returns `Method.client_state` for a method whose clients may keep their optimizer.

        With `client_optimizer_state=keep` the stored state is the optimizer's slots. Otherwise this
        returns `None`, and the slots start from zero in every round.
        """
        if self._settings["client_optimizer_state"] == "reset":
            return None
        return lambda: self.optimizer().start(model.initial_weights, tf.constant(0.0))

    def learning_rate(self, round_num: tf.Tensor) -> tf.Tensor:
        """Returns the clients' learning rate (η_l) in a round.

        Args:
          round_num: int32 scalar, counted from 0.

        Returns:
          float32 scalar.
        """
        settings = self._settings
        if self._schedule is not None:
            learning_rate = tf.cast(self._schedule(tf.cast(round_num, tf.float32)), tf.float32)
        else:
            learning_rate = tf.constant(settings["client_learning_rate"], tf.float32)
        if settings["client_lr_schedule"] != "constant":
            decays = tf.cast(round_num, tf.float32) / float(settings["client_lr_decay_steps"])
            if settings["client_lr_schedule"] == "inv_sqrt_decay":
                learning_rate *= tf.math.rsqrt(1.0 + decays)
            elif settings["client_lr_schedule"] == "inverse_time":
                learning_rate /= 1.0 + decays
            else:
                exponent = tf.floor(decays) if settings["client_lr_staircase"] else decays
                learning_rate *= tf.pow(
                    tf.constant(settings["client_lr_decay_rate"], tf.float32), exponent
                )
        if settings["client_lr_warmup_steps"]:
            warm = (tf.cast(round_num, tf.float32) + 1.0) / float(
                settings["client_lr_warmup_steps"]
            )
            learning_rate *= tf.minimum(1.0, warm)
        return learning_rate

    def client_weight(self, data: ClientData) -> tf.Tensor:
        """Returns the client's weight in averages: n_k, or 1 for every client with examples."""
        if self._settings["client_weighting"] == "uniform":
            return tf.cast(has_examples(data), tf.float32)
        return num_examples(data)


class Optimizer:
    """One of TFF's optimizers, on vectors. It may continue from a client's stored state."""

    def __init__(self, optimizer: Any, client_state: ClientState | None = None):
        """Initialises the optimizer.

        Args:
          optimizer: TFF's optimizer.
          client_state: The client's stored state, from which the optimizer starts, if given.
        """
        self._optimizer, self._client_state = optimizer, client_state
        self.get_hparams, self.set_hparams = optimizer.get_hparams, optimizer.set_hparams

    def start(self, weights: Any, learning_rate: tf.Tensor) -> collections.OrderedDict:
        """Returns the state before the first step, with the given learning rate.

        Args:
          weights: Tensors or arrays with the shapes and dtypes of the weights to train.
          learning_rate: float32 scalar.
        """
        weights = tuple(tf.convert_to_tensor(w) for w in weights)
        slots = self._optimizer.initialize(tuple(tf.TensorSpec(w.shape, w.dtype) for w in weights))
        # Given here since not all of TFF's optimizers can be built with a symbolic rate.
        slots["learning_rate"] = learning_rate
        slots = tf.nest.map_structure(tf.convert_to_tensor, slots)
        if self._client_state is not None:
            slots = recall(self._client_state, slots)
            slots["learning_rate"] = tf.convert_to_tensor(learning_rate)
        return slots

    def step(self, slots: Any, weights: Vector, gradient: Vector) -> tuple[Any, Vector]:
        """Takes a step; returns the state and the weights after it."""
        slots, weights = self._optimizer.next(slots, tuple(weights), tuple(gradient))
        return slots, Vector(weights)

    def displace(
        self, slots: Any, x: Vector, moved: Vector, gradient: Vector
    ) -> tuple[Any, Vector]:
        """Takes a step on the displacement x_k - x instead of x_k.

        This keeps the digits of a sum of small steps, which adding them to x would lose. The steps
        of TFF's optimizers do not depend on the weights, except for AdamW's decay. Those of your
        own optimizer may, so it gets the weights x_k.

        Args:
          slots: The optimizer's state.
          x: The weights that the client started from.
          moved: x_k - x before the step.
          gradient: The gradient at x_k.

        Returns:
          The state and x_k - x after the step.
        """
        if not has_known_steps(self._optimizer):
            at = x + moved
            slots, weights = self.step(slots, at, gradient)
            return slots, moved + (weights - at)
        learning_rate, decay = slots["learning_rate"], slots.get("weight_decay")
        slots, moved = self.step(slots, moved, gradient)
        if decay is not None:
            moved = moved.map(lambda m, w: m - learning_rate * decay * w, x)
        return slots, moved


def has_known_steps(optimizer: Any) -> bool:
    """Returns whether an optimizer is TFF's or the suite's own, so that its steps are known."""
    return type(optimizer).__module__.startswith(_OF_KNOWN_STEPS)


def _optimizer_builder(name: str) -> Callable:
    if name == "nesterov":
        return nesterov.build_nesterov
    return getattr(tff.learning.optimizers, "build_sgdm" if name == "sgd" else f"build_{name}")


def first_epoch(data: ClientData) -> ClientData:
    """Returns the client's data with everything after its first epoch masked out."""
    inside = tf.range(tf.shape(data.mask)[0]) < data.steps_per_epoch
    return data._replace(mask=data.mask * tf.cast(inside, data.mask.dtype)[:, None])


def first_batches(data: ClientData, number: int) -> ClientData:
    """Returns the client's first minibatches, up to the one that passes `number` examples.

    Args:
      data: The client's data.
      number: Number of examples. A client with no more than that keeps its whole first epoch.
    """
    data = first_epoch(data)
    before = tf.cumsum(tf.reduce_sum(data.mask, axis=1), exclusive=True)
    return data._replace(mask=data.mask * tf.cast(before <= number, data.mask.dtype)[:, None])


def none_unless(asked: tf.Tensor, data: ClientData) -> ClientData:
    """Returns the client's data, or no steps of it if `asked`, equal for all clients, is false."""
    steps = tf.where(asked, tf.shape(data.mask)[0], 0)
    return data._replace(mask=data.mask[:steps])


def num_examples(data: ClientData) -> tf.Tensor:
    """Returns the number of local examples n_k, float32 scalar."""
    return tf.cast(data.num_examples, tf.float32)


def has_examples(data: ClientData) -> tf.Tensor:
    """Returns whether the client has any local example, bool scalar.

    A client without examples takes no part in a round: its weight is 0, and its stored state stays
    as it was.
    """
    return data.num_examples > 0


def num_steps(data: ClientData) -> tf.Tensor:
    """Returns the number of local steps τ_k that hold a real example, int32 scalar."""
    return tf.reduce_sum(tf.cast(tf.reduce_any(data.mask > 0, axis=1), tf.int32))


_STACKED = contextvars.ContextVar("clients are stacked", default=False)


@contextlib.contextmanager
def stacked_clients() -> Iterator[None]:
    """Traces client functions for a block of stacked clients while the context is active.

    All clients of a block take as many steps as the longest one, so a step must not change clients
    that have no batch for it. Elsewhere a client's loop ends after its last batch, which saves one
    copy of the model per step.
    """
    token = _STACKED.set(True)
    try:
        yield
    finally:
        _STACKED.reset(token)


# Every size of a minibatch has primitives of oneDNN's of its own, which take some time to make.
_MULTIPLE = 2


def _sizes(data: ClientData) -> tf.Tensor:
    """Returns the length of each step's batch up to its last real example, rounded up to even.

    The result is int32 `[steps]`.
    """
    batch_size = tf.shape(data.mask)[1]
    places = tf.where(data.mask > 0, tf.range(1, batch_size + 1), 0)
    last = tf.reduce_max(places, axis=1)
    return tf.minimum(-(-last // _MULTIPLE) * _MULTIPLE, batch_size)


def _step_of_stacked(values: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
    """Returns `values[i]`."""
    numbers = math.prod(n or 0 for n in values.shape[2:])
    if values.dtype != tf.uint8 or numbers == 0 or numbers % 8:
        return tf.gather(values, i)
    # TensorFlow gathers bytes on the CPU only, which would fetch all examples from a GPU at every
    # step; eight of them as one number are gathered where they lie.
    shape = tf.shape(values)
    eights = tf.reshape(values, [shape[0], shape[1], numbers // 8, 8])
    found = tf.bitcast(tf.gather(tf.bitcast(eights, tf.int64), i), tf.uint8)
    return tf.reshape(found, [shape[1], *values.shape[2:]])


def for_each_batch(step: Callable, carry: Any, data: ClientData) -> Any:
    """Runs a function over the client's batches in order.

    Args:
      step: `(carry, batch, seed) -> carry`, pure. `seed`, int32 `[2]`, differs in every step.
        Shapes and dtypes of the carry must not change.
      carry: Structure of tensors.
      data: The client's batches. Steps without a real example (padding, after all others) do not
        change the carry. `batch` may lack the padding at the end of a minibatch.

    Returns:
      The last carry.
    """
    return _for_each_step(lambda carry, batch, seed, i: step(carry, batch, seed), carry, data)


def _dense(gradient, weights):
    """Returns a gradient as dense tensors with static shapes, which some operations do not set."""
    tensors = tuple(map(tf.convert_to_tensor, gradient))
    for tensor, weight in zip(tensors, weights, strict=True):
        tensor.set_shape(weight.shape)
    return tensors


def _for_each_step(step, carry, data):
    """As `for_each_batch`, with the step's number, int32 scalar from 0, as the fourth argument."""
    real = tf.reduce_any(data.mask > 0, axis=1)
    stacked = _STACKED.get()
    steps = tf.shape(real)[0] if stacked else num_steps(data)
    sizes: Any = None if stacked else _sizes(data)

    def take(values, i):
        # A step of stacked clients is not one piece of memory; slicing takes four times as long.
        return _step_of_stacked(values, i) if stacked else values[i][: sizes[i]]

    def body(i, carry):
        batch = Batch(*(take(values, i) for values in (data.x, data.y, data.mask)))
        after = step(carry, batch, random.fold_in(data.seed, step=i), i)
        if stacked:
            # What a step hands on as it is stays one value for all clients, if it was.
            after = tf.nest.map_structure(
                lambda a, b: b if a is b else tf.where(real[i], a, b), after, carry
            )
        return i + 1, after

    carry = tf.nest.map_structure(tf.convert_to_tensor, carry)
    return tf.while_loop(lambda i, _: i < steps, body, (tf.constant(0), carry))[1]


def recall(client_state: ClientState, first: Any) -> Any:
    """Returns the client's stored state; on its first visit `first`, of the same structure.

    Args:
      client_state: The client's state.
      first: Structure of tensors, such as a `Vector` or a dictionary of them. The result has its
        types.

    Raises:
      MethodError: If the stored state has another structure.
    """
    try:
        return tf.nest.map_structure(
            lambda f, kept: tf.where(client_state.visits > 0, kept, f),
            first,
            client_state.kept,
            # In a dictionary a stored Vector is a plain tuple.
            check_types=False,
        )
    except (TypeError, ValueError) as e:
        raise MethodError(
            f"client.recall cannot put {_shapes(first)} in place of the stored state "
            f"{_shapes(client_state.kept)}: give it the structure and shapes that `client_state` "
            "declares."
        ) from e


def _shapes(values: Any) -> str:
    """Returns a structure of tensors as text, each by its shape."""
    shown = tf.nest.map_structure(lambda v: str(tf.convert_to_tensor(v).shape.as_list()), values)
    return str(shown).replace("'", "")


def keep(client_state: ClientState, data: ClientData, finite: tf.Tensor, kept: Any) -> ClientState:
    """Returns the next client state; the old one if its update is not finite or it has no data."""
    counts = finite & has_examples(data)
    return ClientState(
        client_state.visits + tf.cast(counts, tf.int32),
        tf.nest.map_structure(lambda new, old: tf.where(counts, new, old), kept, client_state.kept),
    )


class LocalResult(NamedTuple):
    """The result of local training.

    Attributes:
      weights: The client's weights x_k.
      metrics: Name → (sum of values, sum of weights), float32 scalars, over the minibatches as
        training saw them.
      slots: State of the client's optimizer; `None` without an optimizer.
    """

    weights: Vector
    metrics: collections.OrderedDict[str, tuple[tf.Tensor, tf.Tensor]]
    slots: Any = None


def train(
    model: Model,
    optimizer: Optimizer,
    learning_rate: tf.Tensor,
    weights: Vector,
    data: ClientData,
    correct_gradient: Callable = lambda gradient, weights: gradient,
    slots: Any = None,
) -> LocalResult:
    """Trains a client's model on its batches, in order.

    Args:
      model: The model.
      optimizer: The client's optimizer.
      learning_rate: Its learning rate in this round, float32 scalar.
      weights: The broadcast weights x.
      data: The client's data.
      correct_gradient: `(gradient, weights) -> gradient` on vectors: adds the method's terms to
        each minibatch gradient (a proximal term, control variates).
      slots: Optimizer state to start from; by default the optimizer's initial state.

    Returns:
      A `LocalResult`.
    """

    def step(at, slots):
        gradient = correct_gradient(at.gradient, at.weights)
        slots, weights = optimizer.step(slots, at.weights, gradient)
        return weights, slots

    if slots is None:
        slots = optimizer.start(weights, learning_rate)
    else:
        slots = slots | {"learning_rate": tf.convert_to_tensor(learning_rate)}
    trained, slots = take_steps(model, step, weights, slots, data)
    return trained._replace(slots=slots)


class LocalStep(NamedTuple):
    """The inputs of one local step of a client.

    Attributes:
      weights: The client's weights x_k.
      loss: f(x_k; b) on the step's minibatch, float32 scalar.
      gradient: ∇f(x_k; b), like the weights.
      gradient_at: `weights -> ∇f(weights; b)`, on the same minibatch with the same dropout.
      num_examples: Real examples of the minibatch, float32 scalar.
      number: Number of the local step, int32 scalar, from 0. Stacked clients take the same step at
        the same time. A value that depends on `number` alone is therefore computed once for all of
        them, unlike a counter in the carry.
    """

    weights: Vector
    loss: tf.Tensor
    gradient: Vector
    gradient_at: Callable
    num_examples: tf.Tensor
    number: tf.Tensor


def take_steps(
    model: Model, step: Callable, weights: Vector, carry: Any, data: ClientData
) -> tuple[LocalResult, Any]:
    """Trains a client's model with the method's own local step, once per batch.

    Args:
      model: The model.
      step: `(LocalStep, carry) -> (weights, carry)`, on vectors and pure; shapes and dtypes must
        not change.
      weights: The weights to start from.
      carry: The method's other values that pass from step to step, a structure of tensors.
      data: The client's data.

    Returns:
      A `LocalResult` and the last carry.
    """
    zero = tf.zeros([])
    metrics = collections.OrderedDict((name, (zero, zero)) for name in metric_names(model))

    def one(all_carried, batch, seed, number):
        weights, carry, metrics = all_carried

        def forward_and_gradient(at):
            with tf.GradientTape() as tape:
                tape.watch(at)
                forward = model.forward(at, batch, training=True, seed=seed)
            gradient = tape.gradient(forward.objective, at)
            if at and all(g is None for g in gradient):
                raise ModelError(
                    "The loss has no gradient with respect to any weight, so nothing would train. "
                    "Compute the loss and the model's outputs without operations such as "
                    "tf.argmax, tf.round or tf.stop_gradient."
                )
            gradient = (
                tf.zeros_like(w) if g is None else g for g, w in zip(gradient, at, strict=True)
            )
            return forward, _dense(gradient, at)

        forward, gradient = forward_and_gradient(weights)
        metrics = collections.OrderedDict(
            (name, (total + tf.reduce_sum(values), weight + tf.reduce_sum(weights)))
            for (name, (total, weight)), (values, weights) in zip(
                metrics.items(), forward.metrics.values(), strict=True
            )
        )
        at = LocalStep(
            weights,
            forward.objective,
            gradient,
            lambda other: Vector(forward_and_gradient(tuple(other))[1]),
            tf.reduce_sum(batch.mask),
            number,
        )
        return *on_vectors(step)(at, carry), metrics

    start = tuple(map(tf.convert_to_tensor, weights)), to_tuples(carry), metrics
    trained, carry, metrics = _for_each_step(one, start, data)
    return LocalResult(Vector(trained), metrics), to_vectors(carry)


class FullLoss(NamedTuple):
    """Loss on a client's whole local training set, and its gradient.

    Attributes:
      loss: F_k(x), float32 scalar: the mean over examples (positions, if they have weights),
        regularisers included; 0 for a client without examples.
      gradient: ∇F_k(x). If training minimises a minibatch's summed loss, this is instead the
        average of the minibatch gradients, each weighted by its number of examples, as in TFF's
        MimeLite. It thus has the same scale as a local step.
    """

    loss: tf.Tensor
    gradient: Vector


def full_loss(model: Model, weights: Any, data: ClientData, training: bool = False) -> FullLoss:
    """Computes F_k(x) and ∇F_k(x) in one pass over the client's local training set.

    Args:
      model: The model.
      weights: The weights x at which to evaluate.
      data: The client's data; only its first epoch is read.
      training: Whether dropout is on, with the seeds of the epoch's first local steps.

    Returns:
      A `FullLoss`.
    """
    weights = tuple(tf.convert_to_tensor(w) for w in weights)
    data = first_epoch(data)
    summed = model.loss_reduction == "sum"
    # A loss scale multiplies the objective alone, and 16 bits may not hold the gradient of a sum.
    of_objective = summed or model.loss_scale is not None

    def step(carry, batch, seed):
        loss, weight, gradient = carry
        with tf.GradientTape() as tape:
            tape.watch(weights)
            forward = model.forward(weights, batch, training=training, seed=seed)
            values, counts = forward.metrics["loss"]
            total, number = tf.reduce_sum(values), tf.reduce_sum(counts)
        change = tape.gradient(
            forward.objective if of_objective else total,
            weights,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        change = _dense(change, weights)
        if of_objective:
            times = tf.reduce_sum(batch.mask) if summed else number
            change = tuple(times * c for c in change)
        gradient = tuple(g + c for g, c in zip(gradient, change, strict=True))
        return loss + total, weight + number, gradient

    zeros = tuple(tf.zeros_like(w) for w in weights)
    carry = (tf.zeros([]), tf.zeros([]), zeros)
    loss, weight, gradient = for_each_batch(step, carry, data)
    number = tf.reduce_sum(data.mask) if summed else weight
    return FullLoss(
        tf.math.divide_no_nan(loss, weight),
        Vector(gradient).over(number),
    )


def objective(model: Model, loss: tf.Tensor, data: ClientData) -> tf.Tensor:
    """Returns a client's mean loss at the scale of the training objective.

    If training minimises a mean, that is the loss itself. If it minimises a sum, the loss is
    multiplied by the average size of a minibatch, in which each minibatch is weighted by its number
    of examples.

    Args:
      model: The model.
      loss: F_k(x), float32 scalar.
      data: The client's data; only its first epoch is read.
    """
    if model.loss_reduction != "sum":
        return loss
    sizes = tf.reduce_sum(first_epoch(data).mask, axis=1)
    return loss * tf.math.divide_no_nan(tf.reduce_sum(sizes**2), tf.reduce_sum(sizes))


def evaluate(
    model: Model, weights: Any, data: ClientData
) -> collections.OrderedDict[str, tf.Tensor]:
    """Computes the model's metrics on the client's whole local training set, with dropout off.

    Args:
      model: The model.
      weights: The weights x at which to evaluate.
      data: The client's data; only its first epoch is read.

    Returns:
      Name → mean over examples (positions, if they have weights), float32 scalar; `loss` is F_k(x)
      as in `full_loss`. All are 0 for a client without examples.
    """
    weights = tuple(tf.convert_to_tensor(w) for w in weights)

    def step(totals, batch, seed):
        metrics = model.forward(weights, batch, training=False, seed=seed).metrics
        return collections.OrderedDict(
            (name, (total + tf.reduce_sum(metrics[name][0]), n + tf.reduce_sum(metrics[name][1])))
            for name, (total, n) in totals.items()
        )

    zero = tf.zeros([])
    totals = collections.OrderedDict((name, (zero, zero)) for name in metric_names(model))
    totals = for_each_batch(step, totals, first_epoch(data))
    return collections.OrderedDict(
        (name, tf.math.divide_no_nan(total, n)) for name, (total, n) in totals.items()
    )


def metric_names(model: Model) -> list[str]:
    """Returns the names of the metrics of a forward pass; `loss` is the first."""
    if model.metric_names is not None:
        return list(model.metric_names)

    def names(x, y):
        weights = tuple(tf.constant(w) for w in model.initial_weights)
        mask = tf.ones([1])
        seed = tf.zeros([2], tf.int32)
        recorded.extend(model.forward(weights, Batch(x, y, mask), False, seed).metrics)

    recorded = []
    specs = [tf.TensorSpec([1, *s.shape[1:]], s.dtype) for s in (model.x_spec, model.y_spec)]
    tf.function(names, autograph=False).get_concrete_function(*specs)
    return recorded


def is_finite(values: Any) -> tf.Tensor:
    """Returns whether all numbers in a structure of tensors are finite, bool scalar."""
    floats = [v for v in tf.nest.flatten(values) if v.dtype.is_floating]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in floats])


def choose(condition: tf.Tensor, values: Any, others: Any) -> Any:
    """Returns `values` if a bool scalar is true, else `others`, a structure of the same shapes."""
    # Unlike `tf.where`, it takes one whole tensor or the other: ten times faster on large ones.
    return tf.nest.map_structure(
        lambda v, o: tf.raw_ops.Select(condition=condition, x=v, y=o), values, others
    )


def zero_unless(keep: tf.Tensor, values: Any) -> Any:
    """Returns a structure of tensors if `keep`, else zeros like it, even where it is not finite."""
    return choose(keep, values, tf.nest.map_structure(tf.zeros_like, values))


def round_metrics(trained: LocalResult, data: ClientData, finite: tf.Tensor) -> Any:
    """Returns the training metrics that a client reports: float32 scalars to be summed.

    A client that is dropped because its update is not finite reports only that.

    Args:
      trained: The result of its training.
      data: Its data.
      finite: Whether its update is finite.
    """
    return collections.OrderedDict(
        training=zero_unless(finite, trained.metrics),
        num_examples=zero_unless(finite, num_examples(data)),
        num_clients=tf.ones([]),
        clients_dropped=1.0 - tf.cast(finite, tf.float32),
    )
