"""FedNova: client updates are normalised by their number of local steps before averaging.

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

a_k is the L1 norm of the weights that the local steps give to the gradients. It is τ_k for plain
SGD, Σ_j (1 - ρ^j) / (1 - ρ) with momentum, and Σ_j (1 - ρ^(j+1)) / (1 - ρ) with Nesterov momentum.
With the proximal term every step updates a ← (1 - η_l μ) a + 1.

Deviations from the paper:
  * With momentum and μ > 0 together, the normaliser is that of the released code: the momentum's
    counter is added, then the sum decays by 1 - η_l μ, then 1 is added. The step's true weights
    would not add the 1. The proximal term goes through the momentum buffer, as it does there.
  * The weight decay of the released runs, and their two drops of the learning rate, are left out.
  * The server has no momentum (the released code's `gmf`).
  * With `client_optimizer_state=keep` (AdaFedAdam's momentum experiments) a_k is still computed for
    an empty buffer, as if the momentum began in this round.
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
from tff_algos.registry import Aggregated, MethodSpec
from tff_algos.vector import Vector
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="fednova",
    display_name="FedNova",
    look=("sky", "dotted"),
    summary="Client updates are normalised by their number of local steps before averaging.",
    paper="Wang et al., Tackling the Objective Inconsistency Problem, arXiv 2007.07481",
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
    aggregated=Aggregated("the mean of the normalised updates d_k"),
    measures=(),
    used_for=("Flower has a baseline that reproduces its paper.",),
)


class Report(NamedTuple):
    """What is averaged over clients: d_k, like the weights, and a_k or (μ > 0) τ_k, float32."""

    d: Vector
    steps: tf.Tensor


def build(model: Model, local: client.LocalTraining, *, mu: float) -> Method:
    """Builds FedNova; see the module's docstring for the symbols."""
    eta = local.server_learning_rate
    rho = local.momentum

    def normaliser(data: ClientData, learning_rate: tf.Tensor) -> tf.Tensor:
        def step(carry, batch, seed):
            a, counter = carry
            counter = rho * counter + 1.0
            if rho or not mu:
                a += 1.0 + rho * counter if local.nesterov else counter
            if mu:
                a = (1.0 - learning_rate * mu) * a + 1.0
            return a, counter

        return client.for_each_batch(step, (tf.zeros([]), tf.zeros([])), data)[0]

    @averaging.keep_optimizer(local)
    def client_update(
        broadcast: averaging.Broadcast, data: ClientData, optimizer: client.Optimizer
    ) -> ClientResult:
        x, eta_l = broadcast
        trained = client.train(model, optimizer, eta_l, x, data, proximal_term(mu, x))
        a = normaliser(data, eta_l)
        d = (x - trained.weights).over(a)
        steps = tf.cast(client.num_steps(data), tf.float32) if mu else a
        return ClientResult(trained, Report(d, steps), finite=client.is_finite(d))

    def server_update(state: averaging.ServerState, mean: Report) -> averaging.ServerState:
        d, tau_eff = mean
        return state._replace(weights=state.weights - eta * tau_eff * d)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        aggregate=averaging.mean_each(Report._make, *Report._fields),
    )
