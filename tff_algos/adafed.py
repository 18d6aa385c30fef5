"""AdaFed: a common descent direction along which clients of larger loss descend faster.

Mohajer Hamidi, Yang: "AdaFed: Fair Federated Learning via Adaptive Common Descent Direction", TMLR
2024, arXiv 2401.04993, Algorithm 1 with equations 5, 6 (orthogonalisation), 14, 15 (weights).

  symbol   argument              default       from
  η        client_learning_rate  -             tuned
  η_t      server_learning_rate  1             factor η_g of the step rule
  -        step_rule             min           Theorem 5.1
  γ        gamma                 1             App.: 1 for four of eight data sets
  -        loss_at               broadcast     Theorem 4.1
  -        orthogonalization     closed_form   equal to equations 5, 6, 14, 15
  -        tikhonov              1e-10         choice
  -        tolerance             1e-6          choice
  -        loss_floor            1e-8          choice

    client:  g_k = x - x_k ;  f_k = F_k(x)
    server:  F_k = max(f_k, floor)^γ ;  A_ij = ⟨g_i, g_j⟩
             solve (A + δ tr(A)/K I) a = F ;  u = Σ a_k g_k ;  d = u / ‖u‖²
             x ← x - η_t d

u is the shortest vector with ⟨g_k, u⟩ = F_k for all k, whatever their order, so that every client
descends by ⟨g_k, d⟩ = F_k / ‖u‖². Equations 5, 6, 14 and 15 give the same d.

Deviations from the paper:
  * The closed form above replaces the orthogonalisation, whose denominators can vanish.
    `orthogonalization=gram_schmidt` does equations 5 and 6 client by client, keeping directions, on
    the Gram matrix; a client is passed over whose residual is below `tolerance` ‖g_k‖.
  * For dependent g_k, which the paper excludes, there is the Tikhonov term δ = `tikhonov`, whose
    bias is taken away by solving twice more for what is left of F.
  * Algorithm 1, line 9, reports the loss after local training, Theorem 4.1 needs that at the
    broadcast model. `loss_at`: broadcast; final_model, F_k(x_k); last_epoch, the mean loss of the
    examples of the last local epoch, each before its step (Remark 5.2).
  * The paper does not give η_t. `step_rule`: min, η_g min F_k, the bound of Theorem 5.1 but for
    2/L, which all but stops training once one client fits its data (`step_starved` is then 1: the
    step is below a thousandth of mean's); mean, η_g mean F_k; constant, η_g; unit, which makes the
    step η_g times as long as the mean pseudo-gradient.
  * A client with g_k = 0 is left out, like one whose update or loss is not finite.
  * Every client is one constraint: `client_weighting` has no meaning.
"""

import collections
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import client, vectors
from tff_algos.method import Method, next_state
from tff_algos.model import Model

Weights = tuple[tf.Tensor, ...]


class ServerState(NamedTuple):
    """What the server keeps: the model x, and the rounds done, int32 scalar."""

    weights: Weights
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x and the client learning rate η."""

    weights: Weights
    learning_rate: tf.Tensor


class Report(NamedTuple):
    """What the server learns of each client.

    Attributes:
      gradient: g_k = x - x_k, like the weights; zero if dropped.
      loss: f_k, float32 scalar; zero if dropped.
      kept: 1, or 0 if dropped, float32 scalar.
    """

    gradient: Weights
    loss: tf.Tensor
    kept: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client sends back: its report and its training metrics."""

    report: Report
    metrics: Any


class Outcome(NamedTuple):
    """The state after the server's step, and the round's own metrics."""

    state: ServerState
    metrics: Any


def build_adafed(
    model: Model,
    local: client.LocalTraining,
    *,
    gamma: float,
    loss_at: str,
    step_rule: str,
    orthogonalization: str,
    tikhonov: float,
    tolerance: float,
    loss_floor: float,
) -> Method:
    """Builds AdaFed (Algorithm 1); see the table above for the arguments."""

    def initialize() -> ServerState:
        return ServerState(tuple(tf.constant(w) for w in model.initial_weights), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data) -> ClientUpdate:
        x = broadcast.weights
        trained, last_epoch_loss = _train(model, local, broadcast, data)
        gradient = tuple(a - b for a, b in zip(x, trained.weights, strict=True))
        if loss_at == "last_epoch":
            loss = last_epoch_loss
        else:
            at = x if loss_at == "broadcast" else trained.weights
            loss = client.evaluate(model, at, data)["loss"]
        finite = client.is_finite((gradient, loss))
        report = Report(gradient, loss, tf.ones([]))
        return ClientUpdate(
            client.zero_unless(finite, report), client.round_metrics(trained, data, finite)
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, reports: Report) -> Outcome:
        gram = vectors.gram(reports.gradient)
        kept = (reports.kept > 0) & (tf.linalg.diag_part(gram) > 0)
        number = tf.reduce_sum(tf.cast(kept, tf.float64))
        losses = tf.maximum(tf.cast(reports.loss, tf.float64), loss_floor)
        targets = client.zero_unless(kept, losses**gamma)
        if orthogonalization == "closed_form":
            coefficients = solve(gram, targets, kept, tikhonov)
        else:
            coefficients = gram_schmidt(gram, targets, tolerance)
        u = vectors.combine(coefficients, reports.gradient)
        square = vectors.squared_norm(u)
        d = tuple(tf.math.divide_no_nan(w, square) for w in u)
        length = tf.math.divide_no_nan(tf.constant(1.0, tf.float64), tf.sqrt(square))
        smallest = tf.reduce_min(tf.where(kept, targets, targets.dtype.max))
        smallest = client.zero_unless(number > 0, smallest)
        mean = tf.math.divide_no_nan(tf.reduce_sum(targets), number)
        mean_gradient = tf.math.divide_no_nan(tf.sqrt(tf.reduce_sum(gram)), number)
        step = (
            local.server_learning_rate
            * {
                "min": smallest,
                "mean": mean,
                "constant": tf.constant(1.0, tf.float64),
                "unit": tf.math.divide_no_nan(mean_gradient, length),
            }[step_rule]
        )
        weights = tuple(
            x - tf.cast(step * v, x.dtype) for x, v in zip(state.weights, d, strict=True)
        )
        starved = (step_rule == "min") & (smallest < 1e-3 * mean)
        metrics = collections.OrderedDict(
            direction_norm=length,
            step_size=client.zero_unless(number > 0, step),
            min_loss_power=smallest,
            mean_loss_power=mean,
            step_starved=starved,
        )
        metrics = tf.nest.map_structure(lambda v: tf.cast(v, tf.float32), metrics)
        return Outcome(next_state(state, state._replace(weights=weights), number), metrics)

    def next_round(federation, state, clients):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients)
        outcome = federation.map_server(server_update, state, federation.stack(update.report))
        total = federation.sum(update.metrics)
        metrics = federation.map_server(client.summarize_with, total, outcome.metrics)
        return outcome.state, metrics

    return Method(initialize, next_round)


def _train(model, local, broadcast, data):
    """Trains as `client.train` does; also returns the mean loss of the last local epoch."""
    optimizer = local.optimizer()
    before_last = client.num_steps(data) - data.steps_per_epoch

    def step(at, carry):
        slots, i, loss, number = carry
        slots, weights = optimizer.next(slots, at.weights, at.gradient)
        examples = tf.where(i >= before_last, at.num_examples, 0.0)
        # A loss that is not finite must not hide behind 0 examples: it spoils the weights as well.
        loss += tf.where(examples > 0, at.loss * examples, 0.0)
        return tuple(weights), (slots, i + 1, loss, number + examples)

    slots = client.initial_slots(optimizer, broadcast.weights, broadcast.learning_rate)
    carry = (slots, tf.constant(0), tf.zeros([]), tf.zeros([]))
    trained, (_, _, loss, number) = client.take_steps(model, step, broadcast.weights, carry, data)
    return trained, tf.math.divide_no_nan(loss, number)


def solve(gram: tf.Tensor, targets: tf.Tensor, kept: tf.Tensor, tikhonov: float) -> tf.Tensor:
    """Returns a with A a = F by way of (A + δ tr(A)/K I); 0 for clients that are not kept."""
    number = tf.reduce_sum(tf.cast(kept, gram.dtype))
    ridge = tf.math.divide_no_nan(tikhonov * tf.linalg.trace(gram), number)
    # The rows of the others are zero.
    matrix = gram + tf.linalg.diag(tf.where(kept, ridge, tf.ones_like(targets)))
    a = tf.zeros_like(targets)
    # Solving again for what the ridge left over takes its bias away: a client with a short g_k
    # would otherwise miss its F_k by 1e-4 of it.
    for _ in range(3):
        left = client.zero_unless(kept, targets - tf.linalg.matvec(gram, a))
        a += tf.linalg.solve(matrix, left[:, None])[:, 0]
    return a


def gram_schmidt(gram: tf.Tensor, targets: tf.Tensor, tolerance: float) -> tf.Tensor:
    """Returns the a of u = Σ a_k g_k by equations 5 and 6, client after client.

    Row k of the basis holds the coefficients of a direction q_k = Σ_j B_kj g_j of length 1, or
    zeros. With it u is made to meet ⟨g_k, u⟩ = F_k and keeps all that it met before.
    """
    number = tf.shape(gram)[0]
    unit_vectors = tf.linalg.diag(tf.ones_like(targets))

    def add(k, basis, a):
        rest = unit_vectors[k]
        for _ in range(2):  # Once is not enough in floating point.
            rest -= tf.linalg.matvec(
                basis,
                tf.linalg.matvec(basis, tf.linalg.matvec(gram, rest)),
                transpose_a=True,
            )
        square = tf.tensordot(rest, tf.linalg.matvec(gram, rest), 1)
        independent = square > tolerance**2 * gram[k, k]
        norm = tf.sqrt(tf.where(independent, square, tf.ones_like(square)))
        q = tf.where(independent, rest / norm, tf.zeros_like(rest))
        missing = targets[k] - tf.tensordot(gram[k], a, 1)
        return k + 1, tf.tensor_scatter_nd_add(basis, [[k]], q[None]), a + missing / norm * q

    start = (tf.constant(0), tf.zeros_like(gram), tf.zeros_like(targets))
    return tf.while_loop(lambda k, *_: k < number, add, start, parallel_iterations=1)[2]
