"""PropFair: clients minimise -log(M - f), which gives larger losses more weight.

Zhang, Malekmohammadi, Chen, Yu: "Proportional Fairness in Federated Learning", TMLR 2023, arXiv
2202.01666, Algorithm 1 (PropFair).

  symbol   argument              default    from
  η_l      client_learning_rate  -          tuned
  M        base                  2          the released code
  ε        epsilon               0.2        the released code
  -        guard                 epsilon    the paper: slope 1/ε
  -        loss                  batch      the released code
  η        server_learning_rate  1          the mean of the clients' models
  p_k      client_weighting      examples   the released code

    client:  x_k ← x ; each batch: f = f(x_k; b) ; s = 1 / (M - f), 1/ε where M - f < ε
             x_k ← x_k - η_l s ∇f(x_k; b)
    server:  x ← x + η Σ p_k (x_k - x)

s ∇f is the gradient of -log(M - f), which is continued as a straight line where M - f < ε. Choose M
at the scale of the task's largest losses. With a much larger M all slopes are about 1/M, which is
federated averaging with steps of η_l / M.

Deviations from the paper:
  1. The paper's text could not be read when this was written. The rule was compared with the
     released code; M, ε and the weights are that code's. The slope 1/ε of the paper's guard is
     inferred from the code's name for it (a Huber loss) and from later papers.
  2. The released code's default guard has the slope 1/M: `guard=base`.
  3. f is the minibatch's loss, as in the released code. `loss=round` computes F_k(x) on all local
     examples once per round, in a separate pass.
  4. f is the training objective, regularisers included.
  5. Any client optimizer may take the step on the scaled gradient.
  6. A client is dropped if its update or a loss f is not finite, because the slope is then
     undefined.
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
    name="propfair",
    display_name="PropFair",
    look=("wine", "short_dashed"),
    summary="PropFair: clients minimise -log(M - f), which gives larger losses more weight.",
    paper=(
        "Zhang, Malekmohammadi, Chen, Yu, Proportional Fairness in Federated Learning, "
        "arXiv 2202.01666"
    ),
    hparams=(
        Hparam(
            "base",
            2.0,
            "Base M of -log(M - f): the closer a loss f is to M, the more it counts.",
            source="PropFair, the released code",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "epsilon",
            0.2,
            "Smallest distance epsilon from M at which a loss is still in the logarithm.",
            source="PropFair, the released code",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "guard",
            "epsilon",
            "Slope where a loss is closer to M than epsilon, or above it: epsilon, 1/epsilon, "
            "which goes on smoothly; base, 1/M, as the released code has it by default.",
            source="PropFair, the paper",
            choices=("epsilon", "base"),
        ),
        Hparam(
            "loss",
            "batch",
            "Loss that sets the slope: batch, the minibatch's; round, that of the received model "
            "on all local examples.",
            source="PropFair, the released code",
            choices=("batch", "round"),
        ),
    ),
    server_learning_rate=1.0,
    aggregated=Aggregated(),
    measures=(),
    known_problems=(
        "A loss above `base` pulls with the guard's slope alone. Set `base` above the task's "
        "initial loss.",
    ),
)


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    base: float,
    epsilon: float,
    guard: str,
    loss: str,
) -> Method:
    """Builds PropFair; see the module's docstring for the symbols."""
    optimizer = local.optimizer()

    def slope(f: tf.Tensor) -> tf.Tensor:
        beyond = 1.0 / (epsilon if guard == "epsilon" else base)
        return tf.where(base - f < epsilon, beyond, 1.0 / (base - f))

    def client_update(broadcast: averaging.Broadcast, data: ClientData) -> ClientResult:
        x, eta_l = broadcast
        if loss == "round":
            whole = client.objective(model, client.evaluate(model, x, data)["loss"], data)

        def step(at, carry):
            slots, known = carry
            f = whole if loss == "round" else at.loss
            slots, x_k = optimizer.step(slots, at.weights, slope(f) * at.gradient)
            return x_k, (slots, known & tf.math.is_finite(f))

        carry = (optimizer.start(x, eta_l), tf.constant(True))
        trained, (_, known) = client.take_steps(model, step, x, carry, data)
        delta = trained.weights - x
        finite = client.is_finite(delta) & known
        return ClientResult(trained, delta, finite=finite)

    return averaging.build(model, local, client_update)
