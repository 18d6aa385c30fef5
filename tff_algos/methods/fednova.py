"""FedNova: client updates are divided by how far their number of local steps carries them.

Wang, Liu, Liang, Joshi, Poor: "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020, arXiv 2007.07481, equations 7 to 9 and section 5.

  symbol   argument              default    from
  η_l      client_learning_rate  -          tuned
  ρ        client_momentum       0.9        section 6 (client_optimizer=sgdm, nesterov; sgd: 0)
  μ        mu                    0          section 6: no proximal term
  η        server_learning_rate  1          equation 8
  p_k      client_weighting      examples   equation 1

    client:  τ_k steps on ∇f(x_k; b) + μ (x_k - x) ; d_k = (x - x_k) / a_k
    server:  x ← x - η τ_eff Σ p_k d_k,  τ_eff = Σ p_k a_k  (μ > 0: Σ p_k τ_k)

with a_k the L1 norm of the weights that the local steps give to the gradients: τ_k for plain SGD,
Σ_j (1 - ρ^j) / (1 - ρ) with momentum, Σ_j (1 - ρ^(j+1)) / (1 - ρ) with Nesterov momentum,
a ← (1 - η_l μ) a + 1 a step with the proximal term.

Deviations from the paper:
  * With momentum and μ > 0 together, the normaliser is that of the released code: the momentum's
    counter is added, then the sum decays by 1 - η_l μ, then 1 is added. The step's true weights
    would not add the 1. The proximal term goes through the momentum buffer, as it does there.
  * The released runs' weight decay and their two drops of the learning rate are not inherited.
  * No momentum on the server (the released code's `gmf`).
  * With `client_optimizer_state=keep` (AdaFedAdam's momentum experiments) a_k still counts from an
    empty buffer, as if the momentum began in this round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from hparams import Hparam
from tff_algos import client
from tff_algos.averaging import next_state
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.registry import MethodSpec
from tff_algos.weights import Weights

SPEC = MethodSpec(
    name="fednova",
    summary="Client updates are divided by the weight of their local steps.",
    paper=("Wang et al., Tackling the Objective Inconsistency Problem, arXiv 2007.07481"),
    hparams=(
        Hparam(
            "mu",
            0.0,
            "Strength mu of the proximal term: mu (x_k - x) is added to every minibatch gradient.",
            source="FedNova, section 6: none",
            minimum=0.0,
        ),
    ),
    server_learning_rate=1.0,
    client_optimizers=("sgd", "sgdm", "nesterov"),
    keeps_client_optimizer=True,
)


class ServerState(NamedTuple):
    """The model x, one tensor per model weight, and the rounds done, int32 scalar."""

    weights: Weights
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client of the cohort receives: the model x and the client learning rate η_l."""

    weights: Weights
    learning_rate: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client sends back.

    Attributes:
      d: (x - x_k) / a_k, like the weights; zero if dropped.
      effective_steps: What τ_eff is the mean of: a_k, with μ > 0 τ_k; float32 scalar.
      weight: n_k or 1, float32 scalar; zero if dropped.
      metrics: See `client.round_metrics`.
      client_state: What it keeps, if clients keep their optimizer; else empty.
    """

    d: Weights
    effective_steps: tf.Tensor
    weight: tf.Tensor
    metrics: Any
    client_state: Any


def build(model: Model, local: client.LocalTraining, *, mu: float) -> Method:
    """Builds FedNova; see the module's docstring for the symbols."""
    eta = local.server_learning_rate
    rho = local.momentum

    def normaliser(data, learning_rate) -> tf.Tensor:
        def step(carry, batch, seed):
            a, counter = carry
            counter = rho * counter + 1.0
            if rho or not mu:
                a += 1.0 + rho * counter if local.nesterov else counter
            if mu:
                a = (1.0 - learning_rate * mu) * a + 1.0
            return a, counter

        return client.for_each_batch(step, (tf.zeros([]), tf.zeros([])), data)[0]

    def initialize() -> ServerState:
        return ServerState(tuple(tf.constant(w) for w in model.initial_weights), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data, client_state=None) -> ClientUpdate:
        x, eta_l = broadcast

        def add_proximal_term(gradient, x_k):
            return tuple(g + mu * (w - c) for g, w, c in zip(gradient, x_k, x, strict=True))

        trained = client.train(
            model, local.optimizer(), eta_l, x, data, add_proximal_term, client_state
        )
        a = normaliser(data, eta_l)
        d = tuple(tf.math.divide_no_nan(c - w, a) for w, c in zip(trained.weights, x, strict=True))
        steps = tf.cast(client.num_steps(data), tf.float32) if mu else a
        finite = client.is_finite(d)
        return ClientUpdate(
            d=client.zero_unless(finite, d),
            effective_steps=client.zero_unless(finite, steps),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
            client_state=client.keep_slots(client_state, data, finite, trained),
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, d: Weights, tau_eff, total_weight) -> ServerState:
        x = tuple(x - eta * tau_eff * d for x, d in zip(state.weights, d, strict=True))
        return next_state(state, state._replace(weights=x), total_weight)

    def next_round(federation, state, clients, *client_states):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients, *client_states)
        d = federation.mean(update.d, update.weight)
        tau_eff = federation.mean(update.effective_steps, update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        state = federation.map_server(server_update, state, d, tau_eff, total_weight)
        return state, metrics, *([update.client_state] if client_states else [])

    return Method(initialize, next_round, local.client_state(model))
