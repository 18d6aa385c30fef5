"""FedACG: clients start one momentum step ahead of the model, and are held near that point.

Kim, Kim, Han: "Communication-Efficient Federated Learning with Accelerated Client Gradient",
CVPR 2024, arXiv 2201.03172, Algorithm 1.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  λ        lambda_               0.85      the released code's setting
  β        beta                  0.001     the released code's setting
  -        proximal              half      the paper: β/2
  1/|S|    client_weighting      uniform   Algorithm 1

    server → a = x + λ m ; m = 0 at first
    client:  x_k ← a ; each batch: x_k ← x_k - η_l (∇f(x_k; b) + β (x_k - a))
    server:  m ← λ m + mean(x_k - a) ; x ← x + m

So x is the mean of the clients' models. Only a is sent: one vector each way, and clients keep
nothing.

Deviations from the paper:
  1. The paper's local term is β/2 ‖x_k - a‖², whose gradient is β (x_k - a). The released code has
     β ‖x_k - a‖², twice as strong at the same β: `proximal=whole`.
  2. The paper's text could not be read when this was written: λ and β are the released code's
     values, and the rule was compared with that code.
  3. The code's clipping of gradients, its weight decay and its decay of the rate are left out.
  4. `client_weighting=examples` weighs the mean by n_k.
  5. Any client optimizer may take the step on the corrected gradient.
  6. If all clients of a round are left out, m and x do not change. Setting the weights resets m to
     0.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts.proximal import proximal_term
from tff_algos.registry import Aggregated, MethodSpec, decay
from tff_algos.vector import Vector, constants, zeros
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="fedacg",
    display_name="FedACG",
    look=("purple", "short_dashed"),
    summary="Clients start one momentum step ahead of the model, and are held near that point.",
    paper="Kim, Kim, Han, Federated Learning with Accelerated Client Gradient, arXiv 2201.03172",
    hparams=(
        decay(
            "lambda_",
            0.85,
            "Momentum lambda of the server, by which it also looks ahead.",
            "FedACG, the released code",
        ),
        Hparam(
            "beta",
            0.001,
            "Strength beta of the local term that holds clients near where they start.",
            source="FedACG, the released code",
            minimum=0.0,
        ),
        Hparam(
            "proximal",
            "half",
            "That term: half, beta/2 |x_k - a|^2, as in the paper; whole, beta |x_k - a|^2, as in "
            "the released code.",
            source="FedACG, the paper",
            choices=("half", "whole"),
        ),
    ),
    server_learning_rate=1.0,
    has_server_step=False,
    client_weighting="uniform",
    keeps_client_optimizer=True,
    aggregated=Aggregated("the mean of the clients' updates x_k - a"),
    measures=(),
)


class ServerState(NamedTuple):
    """The server's state: the model x and the momentum m, like it; rounds done, int32."""

    weights: Vector
    momentum: Vector
    round_num: tf.Tensor


def build(
    model: Model, local: client.LocalTraining, *, lambda_: float, beta: float, proximal: str
) -> Method:
    """Builds FedACG (Algorithm 1); see the module's docstring for the symbols."""
    pull = beta if proximal == "half" else 2.0 * beta

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        return ServerState(x, zeros(x), tf.constant(0))

    def broadcast(state: ServerState) -> averaging.Broadcast:
        ahead = state.weights + lambda_ * state.momentum
        return averaging.Broadcast(ahead, local.learning_rate(state.round_num))

    @averaging.keep_optimizer(local)
    def client_update(
        broadcast: averaging.Broadcast, data: ClientData, optimizer: client.Optimizer
    ) -> ClientResult:
        a, eta_l = broadcast
        trained = client.train(model, optimizer, eta_l, a, data, proximal_term(pull, a))
        return ClientResult(trained, trained.weights - a)

    def server_update(state: ServerState, delta: Vector) -> ServerState:
        m = lambda_ * state.momentum + delta
        return ServerState(state.weights + m, m, state.round_num)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=initialize,
        broadcast=broadcast,
        # The next round is to start from the weights themselves.
        adopt_weights=lambda state: state._replace(momentum=zeros(state.weights)),
    )
