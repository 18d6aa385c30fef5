"""Local AdaAlter (arXiv 1911.09030) in NumPy float64.

server:  sends x, A ; A_0 = b0^2
client:  local step j = 1 .. : g = grad f(x_k; b) ; x_k <- x_k - lr g / sqrt(A + j epsilon^2)
         A_k <- A_k + g^2                (A_k = A at the start ; the root takes A, not A_k)
server:  x <- x + server_lr sum_k p_k (x_k - x) ; A <- sum_k p_k A_k
"""

import numpy as np

from tests.oracles import rounds
from tests.oracles.rounds import each


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, epsilon=1.0, b0=1.0,
    weighting="examples", dropped=frozenset(),
):  # fmt: skip
    """Runs Local AdaAlter; see `rounds.run`. The state is A."""

    def client(x, synced, c):
        x_k, own = x, synced
        for j, b in enumerate(c.batches, 1):
            g = c.gradient(x_k, b)
            root = each(lambda a: np.sqrt(a + j * epsilon**2), synced)  # noqa: B023
            x_k = each(lambda w, g, r: w - c.lr * g / r, x_k, g, root)
            own = each(lambda a, g: a + g**2, own, g)
        return each(lambda w, x: w - x, x_k, x), own

    def one_round(x, a, clients, p):
        delta, a = (
            rounds.mean(p, values)
            for values in zip(*(client(x, a, c) for c in clients), strict=True)
        )
        return each(lambda x, d: x + server_lr * d, x, delta), a

    start = each(lambda w: np.full_like(w, b0**2), problem.initial_weights)
    return rounds.run(
        problem, batch_orders, cohorts, one_round, start,
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
