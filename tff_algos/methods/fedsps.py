"""FedSPS: clients choose each step's length by a stochastic Polyak rule.

Mukherjee, Loizou, Stich: "Locally Adaptive Federated Learning", arXiv 2307.06306, Algorithm 1 and
equation 4; a baseline of FedCAda.

  symbol   argument              default   from
  γ_b      client_learning_rate  -         tuned in FedCAda; its values are not given
  c        c                     0.5       choice; tuned in FedCAda, its values are not given
  ℓ*       lower_bound           0         the paper's choice for non-negative losses
  -        smoothing             false     the paper uses it for non-convex models
  η        server_learning_rate  1         Algorithm 1: the mean of the clients' models
  1/|S|    client_weighting      uniform   Algorithm 1

    client:  each batch: γ = min{(f(x_k; b) - ℓ*) / (c ‖∇f(x_k; b)‖²), γ_b}
             x_k ← x_k - γ ∇f(x_k; b)
    server:  x ← x + η mean(x_k - x)

With smoothing, γ_b bounds only a round's first step. Every later step is bounded by 2^(|b| / n_k)
times the previous γ.

Deviations from the paper:
  * This file was not checked against the paper's text: the rule is as later papers describe it.
    Take c, ℓ*, the smoothing and its start as provisional.
  * ‖∇f‖² is at least 1e-12. f is the training objective, regularisers included.
  * γ_b is the client learning rate, so it may follow a schedule over rounds.
  * A client is dropped if a loss is not finite, even if the gradient is finite, because the rule
    then has no step.
"""

from __future__ import annotations

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.registry import Aggregated, MethodSpec
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="fedsps",
    display_name="FedSPS",
    look=("sky", "dash_dot"),
    summary="Clients choose each step's length by a stochastic Polyak rule.",
    paper="Mukherjee et al., Locally Adaptive Federated Learning, arXiv 2307.06306",
    hparams=(
        Hparam(
            "c",
            0.5,
            "Divisor c of the Polyak step; the client learning rate is its bound gamma_b.",
            source="choice; FedCAda tunes it and gives no values",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "lower_bound",
            0.0,
            "Lower bound of the minibatch loss (l*).",
            source="FedSPS: 0 for losses that are never negative",
        ),
        Hparam(
            "smoothing",
            False,
            "Whether, after the first step of a round, gamma_b is 2^(|b|/n_k) times the step "
            "before.",
            source="choice: the paper uses it for models that are not convex",
        ),
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    client_optimizers=("sgd",),
    aggregated=Aggregated(),
    measures=(),
    known_problems=(
        "`c` decides whether it learns: on Fashion-MNIST with 100 unlike clients, `c=0.5` "
        "reached 85.7 %, and `c=0.1` with a rate of 5 stayed at chance.",
    ),
)


def build(
    model: Model, local: client.LocalTraining, *, c: float, lower_bound: float, smoothing: bool
) -> Method:
    """Builds FedSPS; see the module's docstring for the symbols."""

    def client_update(broadcast: averaging.Broadcast, data: ClientData) -> ClientResult:
        x, gamma_b = broadcast
        n_k = client.num_examples(data)

        def step(at, carry):
            gamma, known = carry
            bound = gamma_b
            if smoothing:
                grown = tf.pow(2.0, at.num_examples / n_k) * gamma
                bound = tf.where(tf.equal(at.number, 0), gamma_b, grown)
            square = at.gradient.squared_norm()
            polyak = (at.loss - lower_bound) / (c * tf.maximum(square, 1e-12))
            gamma = tf.minimum(polyak, bound)
            return at.weights - gamma * at.gradient, (gamma, known & tf.math.is_finite(at.loss))

        carry = (gamma_b, tf.constant(True))
        trained, (_, known) = client.take_steps(model, step, x, carry, data)
        delta = trained.weights - x
        finite = client.is_finite(delta) & known
        return ClientResult(trained, delta, finite=finite)

    return averaging.build(model, local, client_update)
