"""FedDyn: clients' regularisers follow their gradients, so that local and global optima agree.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: "Federated Learning Based on Dynamic
Regularization", ICLR 2021, arXiv 2111.04263, Algorithm 1.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  α        alpha                 0.01      the released code's CIFAR-10 example
  -        mean_examples         unset     Algorithm 1: the same α for every client
  -        reported              server    Algorithm 1
  1/|P|    client_weighting      uniform   Algorithm 1
  m        num_clients           -         all training clients

    client k keeps h_k, first visit: h_k = 0
    client:  x_k ← x ; each batch: x_k ← x_k - η_l (∇f(x_k; b) - h_k + α (x_k - x))
             Δ_k = x_k - x ; h_k ← h_k - α Δ_k
    server:  x̄ = x + mean Δ_k ; h ← h - α (|P| / m) mean Δ_k ; x ← x̄ - h / α

|P| is the number of clients that were not dropped. h is the mean of all clients' h_k and starts at
0. h / α does not depend on α, so the server's step goes beyond x̄ however small α is: after the
first round by |P| / m of the mean update. A client keeps one vector of the model's size.

Deviations from the paper:
  1. The paper minimises the local objective exactly. Here clients take steps, as in its
     experiments and its code, so h_k is not exactly the local gradient.
  2. In a client's steps the released code divides α by n_k / n̄, with the mean n̄ over all clients;
     its server is the one above. To do so, set `mean_examples` to n̄; by default α is the same for
     all.
  3. The released code evaluates the mean of the round's models, and that of every client's last
     model. `reported=mean` reports the former, x̄; clients still receive x. The latter would need a
     pass over all clients and is not offered.
  4. The code's clipping of gradients and its weight decay are left out.
  5. `client_weighting=examples` weighs both means by n_k.
  6. Any client optimizer may take the step on the corrected gradient.
  7. A client without examples, or whose update is not finite, sends nothing and keeps its h_k.
  8. The paper's text could not be read when this was written. The rule was compared with the
     authors' code only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import ClientState, Method, mean_of_updates
from tff_algos.model import Model
from tff_algos.registry import Aggregated, MethodSpec
from tff_algos.vector import Vector, constants, zeros
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="feddyn",
    display_name="FedDyn",
    look=("black", "short_dashed"),
    summary="Dynamic regularisation: clients' linear terms make local and global optima agree.",
    paper="Acar et al., Federated Learning Based on Dynamic Regularization, arXiv 2111.04263",
    hparams=(
        Hparam(
            "alpha",
            0.01,
            "Strength alpha of the regulariser, of the client's proximal term and of its memory.",
            source="FedDyn, the released code's CIFAR-10 example",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "mean_examples",
            None,
            "Mean number of examples of all clients, by which a client divides its own to scale "
            "alpha down, as the released code does. By default alpha is the same for all.",
            source="FedDyn, Algorithm 1",
            type=float,
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "reported",
            "server",
            "Model that is evaluated: server, the one that clients receive; mean, the mean of the "
            "round's client models, as the released code has it.",
            source="FedDyn, Algorithm 1",
            choices=("server", "mean"),
        ),
    ),
    server_learning_rate=1.0,
    has_server_step=False,
    client_weighting="uniform",
    needs_num_clients=True,
    aggregated=Aggregated(),
    measures=(),
    known_problems=(
        "The server's step goes beyond the mean of the clients' models however small `alpha` is.",
    ),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The reported model: x, or x̄ with `reported=mean`.
      sent: The model x that clients receive, like the weights; empty if it is the reported one.
      h: The mean of all clients' h_k, like the weights.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    sent: Vector | tuple[()]
    h: Vector
    round_num: tf.Tensor


class Report(NamedTuple):
    """What a client sends: Δ_k, like the weights, and 1, whose sum is |P|; zeros if dropped."""

    delta: Vector
    number: tf.Tensor


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    alpha: float,
    mean_examples: float | None,
    reported: str,
    num_clients: int,
) -> Method:
    """Builds FedDyn (Algorithm 1); see the module's docstring for the symbols."""
    apart = reported == "mean"

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        sent = constants(model.initial_weights) if apart else ()
        return ServerState(x, sent, zeros(x), tf.constant(0))

    def sent_by(state: ServerState) -> Any:
        return state.sent if apart else state.weights

    def broadcast(state: ServerState) -> averaging.Broadcast:
        return averaging.Broadcast(sent_by(state), local.learning_rate(state.round_num))

    def client_update(
        broadcast: averaging.Broadcast, data: ClientData, client_state: ClientState
    ) -> ClientResult:
        x, eta_l = broadcast
        h_k = client.recall(client_state, zeros(x))
        alpha_k = tf.constant(alpha)
        if mean_examples is not None:
            # A client without examples has no part in the round, whatever its α.
            alpha_k *= tf.math.divide_no_nan(mean_examples, client.num_examples(data))

        def regularize(gradient, x_k):
            return gradient - h_k + alpha_k * (x_k - x)

        trained = client.train(model, local.optimizer(), eta_l, x, data, regularize)
        delta = trained.weights - x
        return ClientResult(
            trained,
            Report(delta, tf.ones([])),
            counts=client.has_examples(data),
            kept=h_k + -alpha_k * delta,
        )

    def aggregate(federation, update):
        delta = mean_of_updates(federation, update.report.delta, update.weight)
        return delta, federation.sum(update.report.number)

    def server_update(state: ServerState, delta: Vector, number: tf.Tensor) -> ServerState:
        mean = sent_by(state) + delta
        h = state.h + -alpha * number / num_clients * delta
        x = mean + -1.0 / alpha * h
        if apart:
            return ServerState(mean, x, h, state.round_num)
        return ServerState(x, (), h, state.round_num)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=initialize,
        broadcast=broadcast,
        aggregate=aggregate,
        client_state=lambda: zeros(model.initial_weights),
        adopt_weights=(lambda state: state._replace(sent=state.weights)) if apart else None,
    )
