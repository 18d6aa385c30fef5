"""FedAdamW (arXiv 2510.27486) in NumPy float64.

client:  x_k = x, m = 0, v = v_bar ; step j = 1 .. tau_k: g = grad f(x_k; b) ; t = T + j
         m <- beta1 m + (1 - beta1) g ; v <- beta2 v + (1 - beta2) g^2
         m_hat = m / (1 - beta1^j) ; v_hat = v / (1 - beta2^t)
         x_k <- x_k - lr [m_hat / (sqrt(v_hat) + epsilon) + alpha d + lambda x_k]
server:  D = sum_k p_k (x_k - x) ; x <- x + server_lr D ; d <- -D / (K lr) ; T <- T + K
         v_bar <- sum_k p_k mean_block(v)

At first d = v_bar = T = 0. A block is a weight array; with second_moment = "full" every number is
one. K is the mean number of the clients' steps with the weights p_k, or counted_steps. With
bias_steps = "common" m_hat takes t in place of j; with decay_sign = "printed" lambda is -lambda.
"""

import numpy as np

from tests.oracles import rounds
from tests.oracles.rounds import each


def client_update(
    x, c, d, v, steps, *, alpha, beta1, beta2, epsilon, weight_decay, bias_steps, decay_sign
):
    """Returns (x_k - x, v) after local steps; `steps` is T."""
    x_k, m = x, each(np.zeros_like, x)
    pull = -weight_decay if decay_sign == "printed" else weight_decay
    for j, b in enumerate(c.batches, 1):
        g = c.gradient(x_k, b)
        m = each(lambda m, g: beta1 * m + (1 - beta1) * g, m, g)
        v = each(lambda v, g: beta2 * v + (1 - beta2) * g**2, v, g)
        left1 = 1 - beta1 ** (steps + j if bias_steps == "common" else j)
        left2 = 1 - beta2 ** (steps + j)
        adam = each(lambda m, v: m / left1 / (np.sqrt(v / left2) + epsilon), m, v)  # noqa: B023
        x_k = each(lambda w, a, d: w - c.lr * (a + alpha * d + pull * w), x_k, adam, d)
    return each(np.subtract, x_k, x), v


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, second_moment="block_means",
    alpha=0.5, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01, bias_steps="separate",
    decay_sign="adamw", counted_steps=None, weighting="uniform", dropped=frozenset(),
):  # fmt: skip
    """Runs FedAdamW; see `rounds.run`. The state is (d, v_bar, T)."""
    settings = {
        "alpha": alpha, "beta1": beta1, "beta2": beta2, "epsilon": epsilon,
        "weight_decay": weight_decay, "bias_steps": bias_steps, "decay_sign": decay_sign,
    }  # fmt: skip

    def one_round(x, state, clients, p):
        d, v, steps = state
        deltas, vs = zip(
            *(client_update(x, c, d, v, steps, **settings) for c in clients), strict=True
        )
        delta, v = rounds.mean(p, deltas), rounds.mean(p, vs)
        if second_moment == "block_means":
            v = each(lambda v: np.full_like(v, v.mean()), v)
        taken = counted_steps or sum(p * np.array([len(c.batches) for c in clients]))
        d = each(lambda m: -m / (taken * clients[0].lr), delta)
        return each(lambda x, m: x + server_lr * m, x, delta), (d, v, steps + taken)

    zeros = rounds.zeros(problem.initial_weights)
    return rounds.run(
        problem, batch_orders, cohorts, one_round, (zeros, zeros, 0),
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
