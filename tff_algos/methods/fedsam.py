"""FedSAM and MoFedSAM: sharpness-aware local steps, without and with FedCM's momentum.

Qu, Li, Duan, Liu, Tang, Lu: "Generalized Federated Learning via Sharpness Aware Minimization",
ICML 2022, arXiv 2206.02618, FedSAM and MoFedSAM. (arXiv 2203.11834 has another FedSAM, with ASAM
and averaged weights.)

  symbol   argument                   default   from
  η_l      client_learning_rate       -         tuned
  ρ        rho                        0.1       choice: FL-Simulator (see 1)
  -        epsilon                    0         the paper has none
  β        beta (mofedsam)            0.1       choice: FL-Simulator (see 1)
  K        momentum_steps (mofedsam)  unset     the paper: the steps of a client, alike for all
  -        first_round (mofedsam)     mixed     the paper
  η        server_learning_rate       1         the mean of the clients' models
  1/S      client_weighting           uniform   the paper

    client:    x_k ← x ; each batch: g = ∇f(x_k; b) ; s = ∇f(x_k + ρ g / (‖g‖ + ε); b)
    fedsam     x_k ← x_k - η_l s
    mofedsam   x_k ← x_k - η_l (β s + (1 - β) d)
    server:    Δ = mean(x_k - x) ; x ← x + η Δ ; mofedsam: d ← -Δ / (K η_l)

Both gradients of a step use the same minibatch and dropout. d is FedCM's direction, 0 at first;
`fedcm.py` explains its settings.

Deviations from the paper:
  1. The paper's text and its authors' code could not be read when this was written. The rules are
     taken from later papers and their common code (FL-Simulator); ρ and β are that code's defaults.
  2. Released codes add ε to the norm: 1e-7 in FL-Simulator, 1e-12 in common forms of SAM. With ε =
     0, a zero gradient adds no perturbation.
  3. The paper's η_g multiplies d in MoFedSAM, so it corresponds to K η_l η here.
  4. In MoFedSAM's first round d is 0 and a step is β times as long as FedSAM's. `first_round=plain`
     takes FedSAM's steps until a d exists.
  5. `client_weighting=examples` weighs the mean by n_k.
  6. Clipping, weight decay and the decay of rates in released codes are left out.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts import client_momentum
from tff_algos.registry import Aggregated, MethodSpec, RoundCost
from tff_algos.vector import Vector
from tff_suite.hparams import Hparam


def _spec(display_name, look, summary, down, hparams=()):
    name = display_name.lower()
    return MethodSpec(
        name=name,
        display_name=display_name,
        look=look,
        summary=summary,
        paper="Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, "
        "arXiv 2206.02618",
        builder=f"build_{name}",
        hparams=(
            Hparam(
                "rho",
                0.1,
                "Distance rho uphill at which a local step takes its gradient; 0: no distance.",
                source="choice: FL-Simulator",
                minimum=0.0,
            ),
            Hparam(
                "epsilon",
                0.0,
                "Added to the gradient's norm before the gradient is divided by it.",
                source="FedSAM: none; released codes have 1e-7 or 1e-12",
                minimum=0.0,
            ),
            *hparams,
        ),
        server_learning_rate=1.0,
        client_weighting="uniform",
        client_optimizers=("sgd",),
        aggregated=Aggregated(),
        measures=(),
        cost=RoundCost(gradients=2, down=down),
    )


SPECS = (
    _spec(
        "FedSAM",
        ("vermilion", "short_dashed"),
        "Local steps use the gradient from a little uphill, to find flat minima.",
        1,
    ),
    _spec(
        "MoFedSAM",
        ("green", "short_dashed"),
        "FedSAM with FedCM's momentum.",
        2,
        (
            client_momentum.mixing_setting("beta", "choice: FL-Simulator"),
            client_momentum.MOMENTUM_STEPS,
            client_momentum.FIRST_ROUND,
        ),
    ),
)


def sharp_gradient(rho: float, epsilon: float) -> Callable[[client.LocalStep], Vector]:
    """Returns `client.LocalStep -> s`, the gradient at a distance ρ uphill."""

    def gradient(at: client.LocalStep) -> Vector:
        uphill = tf.math.divide_no_nan(rho, at.gradient.norm() + epsilon)
        return at.gradient_at(at.weights + uphill * at.gradient)

    return gradient


def build_fedsam(
    model: Model, local: client.LocalTraining, *, rho: float, epsilon: float
) -> Method:
    """Builds FedSAM; see the module's docstring for the symbols."""
    gradient = sharp_gradient(rho, epsilon)

    def client_update(broadcast: averaging.Broadcast, data: ClientData) -> ClientResult:
        x, eta_l = broadcast

        def step(at, carry):
            return at.weights - eta_l * gradient(at), carry

        trained, _ = client.take_steps(model, step, x, (), data)
        return ClientResult(trained, trained.weights - x)

    return averaging.build(model, local, client_update)


def build_mofedsam(
    model: Model,
    local: client.LocalTraining,
    *,
    rho: float,
    epsilon: float,
    beta: float,
    momentum_steps: float | None,
    first_round: str,
) -> Method:
    """Builds MoFedSAM; see the module's docstring for the symbols."""
    gradient = sharp_gradient(rho, epsilon)
    return client_momentum.build(gradient, model, local, beta, momentum_steps, first_round)
