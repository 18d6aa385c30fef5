"""FedAMS (arXiv 2205.02719) in NumPy float64.

    client:  local SGD ; Delta_k = x_k - x
    server:  Delta = sum_k p_k Delta_k ; t = 1, 2, .. counts server steps
             m <- beta1 m + (1 - beta1) Delta ; v <- beta2 v + (1 - beta2) Delta^2
             vhat <- max(vhat, v) ; vhat_0 = epsilon_max
             x <- x + lr [m / (1 - beta1^t)] / (sqrt(vhat) / sqrt(1 - beta2^t) + epsilon)

Without bias correction both correcting factors are 1.
"""

import numpy as np

from tests.oracles import rounds
from tests.oracles.rounds import each


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, beta1=0.9, beta2=0.99,
    epsilon=0.0, epsilon_max=1e-3, bias_correction=True, weighting="uniform", dropped=frozenset(),
):  # fmt: skip
    """Runs FedAMS; see `rounds.run`. The state is (m, v, vhat, t)."""

    def client(x, c):
        x_k = x
        for b in c.batches:
            x_k = each(lambda w, g: w - c.lr * g, x_k, c.gradient(x_k, b))
        return each(lambda w, x: w - x, x_k, x)

    def one_round(x, state, clients, p):
        m, v, vhat, t = state
        t += 1
        delta = rounds.mean(p, [client(x, c) for c in clients])
        m = each(lambda m, d: beta1 * m + (1 - beta1) * d, m, delta)
        v = each(lambda v, d: beta2 * v + (1 - beta2) * d**2, v, delta)
        vhat = each(np.maximum, vhat, v)
        c1, c2 = (1 - beta1**t, np.sqrt(1 - beta2**t)) if bias_correction else (1, 1)
        x = each(lambda x, m, h: x + server_lr * (m / c1) / (np.sqrt(h) / c2 + epsilon), x, m, vhat)
        return x, (m, v, vhat, t)

    zeros = rounds.zeros(problem.initial_weights)
    start = (zeros, zeros, each(lambda z: z + epsilon_max, zeros), 0)
    return rounds.run(
        problem, batch_orders, cohorts, one_round, start,
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
