"""MFL: clients use momentum, and the server averages its buffer along with the model.

Liu, Chen, Chen, Zhang: "Accelerating Federated Learning via Momentum Gradient Descent", IEEE TPDS
2020, arXiv 1910.03197, equations 9 to 12; a baseline of FedDA.

  symbol   argument              default    from
  η        client_learning_rate  -          tuned
  γ        client_momentum       0.9        the survey of FedDA's baselines (not checked)
  -        client_optimizer      sgdm       the paper: momentum
  -        server_learning_rate  1          the mean of the clients' models
  p_k      client_weighting      examples   the paper

    server → x, d ; d_0 = 0
    client:  x_k, d_k ← x, d ; each batch: d_k ← γ d_k + ∇f(x_k; b) ; x_k ← x_k - η d_k
    server:  x ← x + η_s Σ p_k (x_k - x) ; d ← Σ p_k d_k

Deviations from the paper:
  * Any client optimizer works: FedDA reports MFL with SGDM, Adam and AdaGrad. All its slots are
    averaged, including Adam's step count, which may become fractional if clients take unequal
    numbers of steps.
  * Clients are sampled and use minibatches; in the paper all take part, with full gradients.
  * This file was not checked against the paper's text: the update is as later papers describe it.
"""

from __future__ import annotations

from typing import Any

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts import server_slots
from tff_algos.registry import Aggregated, MethodSpec, RoundCost
from tff_algos.vector import Vector

SPEC = MethodSpec(
    name="mfl",
    display_name="MFL",
    look=("green", "dotted"),
    summary="Clients use momentum, and the server averages its buffer along with the model.",
    paper="Liu et al., Accelerating Federated Learning via Momentum, arXiv 1910.03197",
    server_learning_rate=1.0,
    client_optimizers=("sgdm", "sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi"),
    aggregated=Aggregated(in_clear="their optimizer's slots"),
    measures=(),
    cost=RoundCost(down=2, up=2),
)


def build(model: Model, local: client.LocalTraining) -> Method:
    """Builds MFL; see the module's docstring for the symbols. The slots are d and η."""
    optimizer = local.optimizer()

    def client_update(broadcast: server_slots.Broadcast, data: ClientData) -> ClientResult:
        x, d, eta = broadcast
        trained = client.train(model, optimizer, eta, x, data, slots=d)
        return ClientResult(trained, (trained.weights - x, trained.slots))

    def server_update(
        state: server_slots.ServerState, mean: tuple[Vector, Any]
    ) -> server_slots.ServerState:
        delta, d = mean
        d = server_slots.with_settings_of(optimizer, d, state.slots)
        x = state.weights + local.server_learning_rate * delta
        return state._replace(weights=x, slots=d)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=lambda: server_slots.initial_state(model, local, averaged=True),
        broadcast=server_slots.send(local),
        aggregate=averaging.mean_each(tuple, 0, 1),
    )
