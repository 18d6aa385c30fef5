"""MimeLite: clients step with the server's optimizer state, which only full gradients update.

Karimireddy et al.: "Breaking the Centralized Barrier for Cross-Device Federated Learning" (Mime),
NeurIPS 2021, arXiv 2008.03606, Algorithm 1 (MimeLite: without control variates); a baseline of
FedDA. It matches `tff.learning.algorithms.build_weighted_mime_lite`, except as stated below.

  symbol   argument              default    from
  η        client_learning_rate  -          tuned
  B        client_optimizer      sgdm       choice: momentum 0.9 as in FedDA's baselines
  -        server_learning_rate  1          the mean of the clients' models
  p_k      client_weighting      examples   TFF (build_weighted_mime_lite)

    server → x, s (state of the base optimizer B)
    client:  each batch: x_k ← B's step from x_k with state s and ∇f(x_k; b) ; s stays
             c_k = ∇F_k(x)
    server:  x ← x + η_s Σ p_k (x_k - x) ; s ← B's state after a step on Σ p_k c_k

Deviations from the paper:
  * As in TFF, a client's step applies one optimizer update from the frozen state: with momentum β
    it follows β u + g.
  * The optimizers are TFF's: Adagrad has ε inside the root and its accumulator starts at 0.1.
  * The learning rate is that of the current round.
  * c_k is computed with dropout off, in TFF with dropout on.
"""

from __future__ import annotations

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts import server_slots
from tff_algos.registry import Aggregated, MethodSpec, RoundCost
from tff_algos.vector import Vector

SPEC = MethodSpec(
    name="mimelite",
    display_name="MimeLite",
    look=("blue", "dashed"),
    summary="Clients step with the server's optimizer state, which only full gradients update.",
    paper="Karimireddy et al., Mime, arXiv 2008.03606",
    server_learning_rate=1.0,
    client_optimizers=("sgdm", "sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi"),
    aggregated=Aggregated(in_clear="their full gradients"),
    measures=(),
    cost=RoundCost(down=2, up=2),
    used_for=("FedJAX and TFF ship it.",),
)


def build(model: Model, local: client.LocalTraining) -> Method:
    """Builds MimeLite; see the module's docstring for the symbols. The slots are s."""
    optimizer = local.optimizer()

    def client_update(broadcast: server_slots.Broadcast, data: ClientData) -> ClientResult:
        x, s, eta = broadcast
        frozen = s.copy()
        frozen["learning_rate"] = eta

        def step(at, carry):
            _, x_k = optimizer.step(frozen, at.weights, at.gradient)
            return x_k, carry

        trained, _ = client.take_steps(model, step, x, (), data)
        gradient = client.full_loss(model, x, data).gradient
        return ClientResult(trained, (trained.weights - x, gradient))

    def server_update(
        state: server_slots.ServerState, mean: tuple[Vector, Vector]
    ) -> server_slots.ServerState:
        delta, gradient = mean
        x = state.weights + local.server_learning_rate * delta
        s, _ = optimizer.step(state.slots, state.weights, gradient)
        return state._replace(weights=x, slots=s)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=lambda: server_slots.initial_state(model, local, averaged=False),
        broadcast=server_slots.send(local),
        aggregate=averaging.mean_each(tuple, 0, 1),
    )
