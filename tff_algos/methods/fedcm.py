"""FedCM: every local step partly follows the server's last direction.

Xu, Wang, Wang, Yao: "FedCM: Federated Learning with Client-level Momentum", arXiv 2106.10874,
Algorithm 2.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  α        alpha                 0.1       choice: later papers' comparisons (see 1)
  K        momentum_steps        unset     Algorithm 2: the steps of a client, alike for all
  -        first_round           mixed     Algorithm 2
  η        server_learning_rate  1         the mean of the clients' models
  1/|S|    client_weighting      uniform   Algorithm 2

    server → x, d ; d = 0 at first
    client:  x_k ← x ; each batch: x_k ← x_k - η_l (α ∇f(x_k; b) + (1 - α) d)
    server:  Δ = mean(x_k - x) ; x ← x + η Δ ; d ← -Δ / (K η_l)

d is a mean of gradient-like directions: the clients moved by Δ in K steps of length η_l.

Deviations from the paper:
  1. The paper's text and its authors' code could not be read when this was written. The rule and α
     are taken from later papers and their common code (FL-Simulator).
  2. The paper's η_g multiplies d, so it corresponds to K η_l η here.
  3. In the paper all clients take K steps. By default, K is the mean number of steps of the round's
     clients, with the weights of Δ. Released codes divide by a fixed number (epochs times the
     batches of a client of mean size, or of the first client); to do so, set `momentum_steps`.
  4. d is 0 at first, so the first round's steps are α times as long as those of SGD.
     `first_round=plain` takes whole gradients until a d exists.
  5. In d, η_l is that of the round in which Δ was computed.
  6. `client_weighting=examples` weighs the mean by n_k.
  7. Clipping, weight decay and the decay of rates in released codes are left out.
  8. A client without examples, or whose update is not finite, is left out. If no client is left, d
     does not change.
"""

from __future__ import annotations

from tff_algos import client
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts import client_momentum
from tff_algos.registry import Aggregated, MethodSpec, RoundCost

SPEC = MethodSpec(
    name="fedcm",
    display_name="FedCM",
    look=("blue", "short_dashed"),
    summary="Every local step partly follows the server's last direction.",
    paper="Xu et al., FedCM: Federated Learning with Client-level Momentum, arXiv 2106.10874",
    hparams=(
        client_momentum.mixing_setting("alpha", "choice: comparisons of later papers"),
        client_momentum.MOMENTUM_STEPS,
        client_momentum.FIRST_ROUND,
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    client_optimizers=("sgd",),
    aggregated=Aggregated(),
    measures=(),
    cost=RoundCost(down=2),
)


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    alpha: float,
    momentum_steps: float | None,
    first_round: str,
) -> Method:
    """Builds FedCM (Algorithm 2); see the module's docstring for the symbols."""
    return client_momentum.build(
        lambda at: at.gradient, model, local, alpha, momentum_steps, first_round
    )
