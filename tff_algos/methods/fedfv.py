"""FedFV: removes conflicts between clients' updates, and keeps the length of their mean.

Wang, Fan, Qi, Wen, Wang, Yu: "Federated Learning with Fair Averaging", IJCAI 2021, arXiv
2104.14937.

  symbol   argument              default     from
  η_l      client_learning_rate  -           tuned
  α        alpha                 0.1         the released code
  τ        tau                   1           the released code
  -        ages                  past        the paper
  -        loss_at               broadcast   the released code
  η        server_learning_rate  1           choice: the paper has none

    client:  L_k = F_k(x) ; g_k = x - x_k
    server:  for all clients i but the share α of the largest losses, for j ≠ i by rising L_j:
                 g_i ← g_i - (⟨g_i, g_j⟩ / ‖g_j‖²) g_j where ⟨g_i, g_j⟩ < 0, g_j as it was sent
             g = mean g_i
             from round τ on, for the ages a = τ, .., 1 of absent clients' last updates:
                 h = the sum of those of age a with ⟨g, g_k⟩ < 0 ; g ← g - (⟨g, h⟩ / ‖h‖²) h
             x ← x - η (‖mean of the g_k as sent‖ / ‖g‖) g

Everything but the last sum uses only the inner products of the updates. Of m clients, sorted by
loss and counted from 0, those from ⌈(m - 1)(1 - α)⌉ on keep their updates; none if α is 0. α = 1
and τ = 0 is federated averaging with equal weights.

Deviations from the paper:
  1. The paper's text could not be read when this was written. The rule and the numbers are those
     of the released code. The ages follow from the paper's term: external conflicts are those with
     clients that are not in the round.
  2. The released code's ages are τ - 1, .., 0: `ages=released`. An update of age 0 is one of this
     round, as it was sent; with τ = 1 absent clients have no effect.
  3. The released code's server keeps the last update of every client in memory. Here it is kept as
     the client's state, and clients of the last τ rounds that are not in this one hand theirs over
     (`RoundPlan.recent`). They do not train. The cost leaves out their messages, since a server
     would hold these updates itself.
  4. A client that is drawn but dropped is treated as absent: its last update is used.
  5. Rounds are counted from 0, so absent clients are used once τ rounds are done.
  6. `loss_at=final_model` orders clients by F_k(x_k).
  7. If g is shorter than 1e-6 times the terms that it sums, only rounding is left, and x does not
     change.
  8. All clients have equal weights, so `client_weighting` is not used.
  9. A client without examples, or whose update or loss is not finite, is dropped.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.client_data import ClientData
from tff_algos.method import ClientState, Method
from tff_algos.model import Model
from tff_algos.parts import vectors
from tff_algos.registry import MethodSpec, RoundPlan
from tff_algos.vector import Vector, zeros
from tff_suite.hparams import Hparam

# Sums of float32 updates this much shorter than their terms are nothing but rounding.
_ROUNDING = 1e-6


def _plan(settings, round_num, total_rounds):
    del round_num, total_rounds
    # With the released code's ages the youngest updates are the round's own.
    absent = settings["tau"] - (1 if settings["ages"] == "released" else 0)
    return RoundPlan(recent=max(absent, 0))


SPEC = MethodSpec(
    name="fedfv",
    display_name="FedFV",
    look=("purple", "dotted"),
    summary="Removes from clients' updates what conflicts with those of others, even absent ones.",
    paper="Wang et al., Federated Learning with Fair Averaging, arXiv 2104.14937",
    hparams=(
        Hparam(
            "alpha",
            0.1,
            "Share alpha of the clients, those of the largest losses, whose updates stay as they "
            "are; 1: all.",
            source="FedFV, the released code",
            minimum=0.0,
            maximum=1.0,
        ),
        Hparam(
            "tau",
            1,
            "Rounds tau for which the last updates of absent clients count; 0: none do.",
            source="FedFV, the released code",
            minimum=0,
        ),
        Hparam(
            "ages",
            "past",
            "Ages in rounds of the updates that count: past, tau to 1; released, tau - 1 to 0, the "
            "round's own among them, as in the released code.",
            source="FedFV, the paper",
            choices=("past", "released"),
        ),
        Hparam(
            "loss_at",
            "broadcast",
            "Model whose local loss orders the clients: broadcast, the one that they receive; "
            "final_model, the one that they trained.",
            source="FedFV, the released code",
            choices=("broadcast", "final_model"),
        ),
    ),
    server_learning_rate=1.0,
    client_weighting=None,
    plan=_plan,
    aggregated="needs each client's own update at the server",
    measures=(),
)


class Broadcast(NamedTuple):
    """What every client receives: the model x, the client rate η_l, and the round, int32 scalar."""

    weights: Vector
    learning_rate: tf.Tensor
    round_num: tf.Tensor


class Kept(NamedTuple):
    """A client's stored state: its last x_k - x, like the weights, and its round, int32 scalar."""

    update: Vector
    round_num: tf.Tensor


class Report(NamedTuple):
    """What the server receives from each client.

    Attributes:
      update: Its last x_k - x, like the weights; zeros if it never sent one.
      age: Age of that update in rounds, int32 scalar; -1 if it never sent one.
      loss: L_k, float32 scalar; 0 unless the update is of this round.
    """

    update: Vector
    age: tf.Tensor
    loss: tf.Tensor


def build(
    model: Model, local: client.LocalTraining, *, alpha: float, tau: int, ages: str, loss_at: str
) -> Method:
    """Builds FedFV; see the module's docstring for the symbols."""
    youngest = 0 if ages == "released" else 1

    def broadcast(state: averaging.ServerState) -> Broadcast:
        return Broadcast(state.weights, local.learning_rate(state.round_num), state.round_num)

    def client_update(
        broadcast: Broadcast, data: ClientData, client_state: ClientState
    ) -> averaging.ClientUpdate:
        x, eta_l, round_num = broadcast
        # Who only hands over its last update has no batch to train on.
        batches = data._replace(mask=data.mask * data.participates)
        trained = client.train(model, local.optimizer(), eta_l, x, batches)
        update = trained.weights - x
        at = x if loss_at == "broadcast" else trained.weights
        loss = client.evaluate(model, at, batches)["loss"]
        finite, drawn = client.is_finite((update, loss)), data.participates > 0
        counts = finite & drawn & client.has_examples(data)
        kept = client_state.kept
        age = tf.where(client_state.visits > 0, round_num - kept.round_num, -1)
        report = Report(
            client.choose(counts, update, client.zero_unless(age >= 0, kept.update)),
            tf.where(counts, 0, age),
            client.zero_unless(counts, loss),
        )
        return averaging.ClientUpdate(
            report,
            weight=tf.cast(counts, tf.float32),
            metrics=client.zero_unless(drawn, client.round_metrics(trained, data, finite)),
            client_state=client.keep(client_state, data, counts, Kept(update, round_num)),
        )

    def server_update(
        state: averaging.ServerState, stacked: tuple[Report, tf.Tensor]
    ) -> averaging.ServerState:
        reports, weights = stacked
        present = weights > 0
        # Of the updates, which are -g: that makes no difference to what follows.
        gram = vectors.gram(reports.update)
        plain = tf.cast(weights, tf.float64)
        plain = tf.math.divide_no_nan(plain, tf.reduce_sum(plain))
        projected = project(gram, reports.loss, present, alpha)
        g = tf.linalg.matvec(projected, plain, transpose_a=True)
        heeded = heed(gram, g, reports.age, youngest + tau - 1, youngest)
        g = tf.where(state.round_num >= tau, heeded, g)
        step = local.server_learning_rate * as_long(gram, g, plain)
        x = state.weights + vectors.combine(step, reports.update).cast(state.weights)
        return averaging.ServerState(x, state.round_num)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        broadcast=broadcast,
        aggregate=averaging.stack_reports,
        client_state=lambda: Kept(zeros(model.initial_weights), tf.constant(0)),
    )


def project(gram: tf.Tensor, losses: tf.Tensor, present: tf.Tensor, alpha: float) -> tf.Tensor:
    """Returns the updates after the internal projections, as combinations of those sent.

    Args:
      gram: Inner products of the updates that were sent, float64 `[K, K]`.
      losses: L_k, float32 `[K]`.
      present: Whose update is of this round and is included, bool `[K]`.
      alpha: The share α of clients whose updates do not change.

    Returns:
      float64 `[K, K]`: row i has the coefficients of g_i.
    """
    k = tf.size(losses)
    order = tf.argsort(tf.where(present, losses, math.inf))
    number = tf.math.count_nonzero(present, dtype=tf.int32)
    stay_from = tf.cast(number, tf.float64)
    if alpha > 0:
        stay_from = tf.math.ceil((stay_from - 1.0) * (1.0 - alpha))
    places = tf.cast(tf.argsort(order), tf.float64)
    turns = present & (places < stay_from)

    def lose(place, rows):
        j = order[place]
        along = tf.linalg.matvec(rows, gram[j])
        conflicts = turns & (along < 0) & tf.not_equal(tf.range(k), j)
        share = tf.where(conflicts, tf.math.divide_no_nan(along, gram[j, j]), 0.0)
        return place + 1, rows - share[:, None] * tf.one_hot(j, k, dtype=tf.float64)

    start = tf.constant(0), tf.eye(k, dtype=tf.float64)
    return tf.while_loop(lambda place, _: place < number, lose, start)[1]


def heed(gram: tf.Tensor, g: tf.Tensor, ages: tf.Tensor, oldest: int, youngest: int) -> tf.Tensor:
    """Returns g without its conflicts with updates of some ages, the oldest first.

    Args:
      gram: Inner products of the updates, float64 `[K, K]`.
      g: Coefficients of g, float64 `[K]`.
      ages: Ages of the updates, int32 `[K]`.
      oldest: First age; if it is below `youngest`, g does not change.
      youngest: Last age.

    Returns:
      Coefficients, float64 `[K]`.
    """

    def turn(age, g):
        along = tf.linalg.matvec(gram, g)
        h = tf.cast(tf.equal(ages, age) & (along < 0), tf.float64)
        squared = vectors.dot(h, tf.linalg.matvec(gram, h))
        return age - 1, g - tf.math.divide_no_nan(vectors.dot(along, h), squared) * h

    return tf.while_loop(lambda age, _: age >= youngest, turn, (tf.constant(oldest), g))[1]


def as_long(gram: tf.Tensor, g: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns g scaled to the length of another combination of the updates; 0 if g is 0.

    Args:
      gram: Inner products of the updates, float64 `[K, K]`.
      g: Coefficients, float64 `[K]`.
      other: The other's coefficients, float64 `[K]`.
    """
    squared, wanted = (vectors.dot(c, tf.linalg.matvec(gram, c)) for c in (g, other))
    terms = vectors.dot(tf.abs(g), tf.sqrt(tf.linalg.diag_part(gram)))
    is_left = squared > (_ROUNDING * terms) ** 2
    return g * tf.where(is_left, tf.sqrt(tf.maximum(wanted, 0.0) / squared), 0.0)
