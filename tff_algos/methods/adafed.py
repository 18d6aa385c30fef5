"""AdaFed: a common descent direction along which clients of larger loss descend faster.

Mohajer Hamidi, Yang: "AdaFed: Fair Federated Learning via Adaptive Common Descent Direction", TMLR
2024, arXiv 2401.04993, Algorithm 1 with equations 5, 6 (orthogonalisation), 14, 15 (weights).

  symbol   argument              default       from
  η        client_learning_rate  -             tuned
  η_t      server_learning_rate  1             factor η_g of the step rule
  -        step_rule             min           Theorem 5.1
  γ        gamma                 1             App. E: 1 for five of eight data sets
  -        loss_at               broadcast     Theorem 4.1
  -        orthogonalization     closed_form   choice: as 5, 6, 14, 15 if g_k are independent
  -        tolerance             1e-5          choice: see below
  -        loss_floor            1e-8          choice

    client:  g_k = x - x_k ;  f_k = F_k(x)
    server:  F_k = max(f_k, floor)^γ ;  A_ij = ⟨g_i, g_j⟩
             solve A a = F ;  u = Σ a_k g_k ;  d = u / ‖u‖²
             x ← x - η_t d

u is the shortest vector with ⟨g_k, u⟩ = F_k for all k, regardless of their order. So every client
descends by ⟨g_k, d⟩ = F_k / ‖u‖². Equations 5, 6, 14 and 15 give the same d. All this requires
linearly independent g_k, as the paper assumes.

Deviations from the paper:
  * The closed form above replaces the orthogonalisation, whose denominators can vanish.
    `orthogonalization=gram_schmidt` follows equations 5 and 6 client by client, on the Gram matrix.
  * The paper excludes dependent g_k (more clients than dimensions, equal or opposite updates).
    `closed_form` then takes the shortest u among those with the least Σ (⟨g_k, u⟩ - F_k)².
    `gram_schmidt` satisfies ⟨g_k, u⟩ = F_k only for clients whose g_k is independent of those
    before it in the cohort, so its u depends on their order. The two differ: for two opposite g_k,
    `closed_form` balances one F_k against the other, `gram_schmidt` follows the first.
  * If clients contradict each other, u can be arbitrarily short, and u / ‖u‖² arbitrarily long. The
    divisor is therefore max(‖u‖, mean F_k / max ‖g_k‖)². Then η_t d is at most η_g max ‖g_k‖ long
    for `min` and `mean`, and goes to 0 with u. For independent g_k the maximum is always ‖u‖.
  * The test for dependence allows for rounding. Clients work in float32, where dependent gradients
    look independent by 1e-7 and more; a step along that difference would follow noise. So each g_k
    is taken to have an error of `tolerance` l_k, with l_k² = ‖g_k‖² + (max_j ‖g_j‖ / 20)². The
    second term is there because a gradient is at most as accurate as the terms that it sums. A
    combination Σ c_k g_k shorter than `tolerance` sqrt(Σ c_k² l_k²) is not used as a direction.
    From ten times that length on it is used in full. In between its share rises smoothly, so that d
    changes continuously.
  * g_k is summed step by step apart from x, because x - x_k would carry the rounding errors of x.
  * Algorithm 1, line 9, reports the loss after local training; Theorem 4.1 needs the loss at the
    broadcast model. `loss_at` offers `broadcast`, `final_model` (F_k(x_k)), and `last_epoch`: the
    mean loss of the examples in the last local epoch, each before its step (Remark 5.2).
  * The paper does not give η_t. `step_rule=min` is η_g min F_k, the bound of Theorem 5.1 without
    its factor 2/L. It almost stops training once one client fits its data; `step_starved` is 1 if
    the step is below a thousandth of that of `mean`. `mean` is η_g mean F_k, `constant` is η_g, and
    `unit` makes the step η_g times as long as the mean pseudo-gradient.
  * A client with g_k = 0 is left out, like one whose update or loss is not finite.
  * Every client is one constraint, so `client_weighting` is not used.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts import common_descent, displacement, vectors
from tff_algos.registry import MethodSpec
from tff_algos.vector import Vector
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="adafed",
    display_name="AdaFed",
    look=("vermilion", "dotted"),
    summary="AdaFed: a common descent direction, steeper for clients of larger loss.",
    paper=(
        "Mohajer Hamidi, Yang, AdaFed: Fair Federated Learning via Adaptive Common Descent "
        "Direction, arXiv 2401.04993"
    ),
    hparams=(
        Hparam(
            "gamma",
            1.0,
            "Fairness gamma: client k descends in proportion to F_k^gamma.",
            source=(
                "AdaFed, App. E (1 for CIFAR-100, FEMNIST, Fashion-MNIST, CINIC-10, TinyImageNet; "
                "grid 0 to 10)"
            ),
            minimum=0.0,
        ),
        Hparam(
            "loss_at",
            "broadcast",
            "Which loss f_k a client reports: of the broadcast model, of the final_model of its "
            "training, or the mean of its last_epoch, each batch before its step.",
            source="AdaFed, Theorem 4.1 (broadcast); Algorithm 1; Remark 5.2",
            choices=("broadcast", "last_epoch", "final_model"),
        ),
        Hparam(
            "step_rule",
            "min",
            "Server step eta_t = server_learning_rate times: min, min F_k^gamma; mean, mean "
            "F_k^gamma; constant, 1; unit, what makes it as long as the mean update.",
            source="AdaFed, Theorem 5.1 (min); the paper gives no eta_t",
            choices=("min", "mean", "constant", "unit"),
        ),
        Hparam(
            "orthogonalization",
            "closed_form",
            "How the direction is found: closed_form, by the Gram matrix; gram_schmidt, client by "
            "client as printed. They differ only if updates depend on each other.",
            source="choice",
            choices=("closed_form", "gram_schmidt"),
        ),
        Hparam(
            "tolerance",
            1e-5,
            "A combination of updates is ignored as rounding error if it is shorter than this, "
            "relative to its terms, and counts in full from 10 times this length.",
            source="choice: rounding in float32, with a margin",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "loss_floor",
            1e-8,
            "Lower bound on a client's loss f_k: at 0 the direction does not exist.",
            source="choice",
            minimum=0.0,
            exclusive_minimum=True,
        ),
    ),
    server_learning_rate=1.0,
    client_weighting=None,
    aggregated="needs each client's own update at the server",
    measures=("direction_norm", "step_size", "min_loss_power", "mean_loss_power", "step_starved"),
    known_problems=(
        "With `step_rule=min`, the default, training nearly stops once one client fits its "
        "data. `train/step_starved` is then 1; try `step_rule=mean`.",
        "With `step_rule=unit` and `gamma=1`, three of five seeds diverged on Fashion-MNIST's "
        "three clients.",
        "The server holds one vector of the model's size per client of the cohort, also with "
        "`--clients_per_chunk`.",
    ),
)


class Report(NamedTuple):
    """What a client sends: g_k = x - x_k, like the weights, and f_k, float32 scalar."""

    gradient: Vector
    loss: tf.Tensor


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    gamma: float,
    loss_at: str,
    step_rule: str,
    orthogonalization: str,
    tolerance: float,
    loss_floor: float,
) -> Method:
    """Builds AdaFed (Algorithm 1); see the module's docstring for the symbols."""

    def client_update(broadcast: averaging.Broadcast, data: ClientData) -> ClientResult:
        trained, moved, last_epoch_loss = displacement.train(model, local, broadcast, data)
        if loss_at == "last_epoch":
            loss = last_epoch_loss
        else:
            at = broadcast.weights if loss_at == "broadcast" else trained.weights
            loss = client.evaluate(model, at, data)["loss"]
        return ClientResult(trained, Report(-moved, loss), weight=tf.ones([]))

    def server_update(
        state: averaging.ServerState, stacked: tuple[Report, tf.Tensor]
    ) -> averaging.Outcome:
        reports, weights = stacked
        gram = vectors.gram(reports.gradient)
        counts = (weights > 0) & (tf.linalg.diag_part(gram) > 0)
        powers = common_descent.powers(reports.loss, counts, gamma=gamma, loss_floor=loss_floor)
        a = common_descent.coefficients(gram, powers.of_each, counts, tolerance, orthogonalization)
        u = vectors.combine(a, reports.gradient)
        d, length, mean_gradient = common_descent.direction(u, gram, powers)
        factor = {
            "min": powers.smallest,
            "mean": powers.mean,
            "constant": 1.0 / powers.unit,
            "unit": tf.math.divide_no_nan(mean_gradient, length),
        }[step_rule]
        # A cohort of which nobody moved takes no step.
        step = client.zero_unless(powers.number > 0, local.server_learning_rate * factor)
        x = state.weights - (step * d).cast(state.weights)
        metrics = collections.OrderedDict(
            direction_norm=length / powers.unit,
            step_size=step * powers.unit,
            min_loss_power=powers.smallest * powers.unit,
            mean_loss_power=powers.mean * powers.unit,
            step_starved=(step_rule == "min") & (powers.smallest < 1e-3 * powers.mean),
        )
        metrics = tf.nest.map_structure(lambda v: tf.cast(v, tf.float32), metrics)
        return averaging.Outcome(state._replace(weights=x), metrics)

    return averaging.build(
        model, local, client_update, server_update, aggregate=averaging.stack_reports
    )
