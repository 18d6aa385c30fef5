"""FedProx: federated averaging whose clients are held near the broadcast model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks",
MLSys 2020, arXiv 1812.06127, Algorithm 2 (h_k = F_k + μ/2 ‖x_k - x‖², solved by local SGD).

  symbol   argument              default    from
  η_l      client_learning_rate  -          tuned
  μ        mu                    0.01       choice, within AdaFedAdam's grid 0.001 to 1
  η        server_learning_rate  1          the released code: the mean of the clients' models
  p_k      client_weighting      examples   the released code

    client:  x_k ← x ; each batch: x_k ← x_k - η_l (∇f(x_k; b) + μ (x_k - x))
    server:  x ← x + η Σ p_k (x_k - x)

Deviations from the paper:
  * Clients are weighted by their examples after uniform sampling, as in the released code; the
    paper samples with probability p_k and takes a plain mean (`client_weighting=uniform`).
  * All clients train for the same number of epochs; the paper's γ-inexact solutions are not
    modelled.
  * Any client optimizer may take the step on the corrected gradient.
"""

from __future__ import annotations

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts.proximal import proximal_term
from tff_algos.registry import Aggregated, MethodSpec
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="fedprox",
    display_name="FedProx",
    look=("orange", "dash_dot"),
    summary="Federated averaging whose clients are held near the broadcast model.",
    paper="Li et al., Federated Optimization in Heterogeneous Networks, arXiv 1812.06127",
    hparams=(
        Hparam(
            "mu",
            0.01,
            "Strength mu of the proximal term: mu (x_k - x) is added to every minibatch gradient.",
            source="choice, within AdaFedAdam's grid 0.001 to 1",
            minimum=0.0,
        ),
    ),
    server_learning_rate=1.0,
    keeps_client_optimizer=True,
    aggregated=Aggregated(),
    measures=(),
    known_problems=(
        "AdaFedAdam's rule for Table 5 chooses `mu=0.001` on Synthetic, which gives FedAvg's "
        "numbers to two decimals.",
    ),
    used_for=(
        "FLamby benchmarks it on medical data (arXiv 2210.04620).",
        "Flower, NVIDIA FLARE, FedJAX and pfl-research ship it.",
    ),
)


def build(model: Model, local: client.LocalTraining, *, mu: float) -> Method:
    """Builds FedProx; see the module's docstring for the symbols."""

    @averaging.keep_optimizer(local)
    def client_update(
        broadcast: averaging.Broadcast, data: ClientData, optimizer: client.Optimizer
    ) -> ClientResult:
        x, eta_l = broadcast
        trained = client.train(model, optimizer, eta_l, x, data, proximal_term(mu, x))
        return ClientResult(trained, trained.weights - x)

    return averaging.build(model, local, client_update)
