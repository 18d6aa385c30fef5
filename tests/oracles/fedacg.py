"""FedACG (arXiv 2201.03172) in NumPy float64.

server:  sends a = x + lambda m
client:  x_k <- a ; every minibatch b: x_k <- x_k - lr (grad f(x_k; b) + c (x_k - a))
         c = beta for the term beta/2 |x_k - a|^2, 2 beta for beta |x_k - a|^2
server:  m <- lambda m + sum_k p_k (x_k - a) ; x <- x + m
"""

import numpy as np

from tests.oracles import rounds
from tests.oracles.rounds import each


def server_step(x, m, delta, lambda_):
    """Returns (x, m) after the mean update of clients that started at x + lambda m."""
    m = each(lambda m, d: lambda_ * m + d, m, delta)
    return each(np.add, x, m), m


def run(
    problem, batch_orders, cohorts, *, client_lr, lambda_, beta, proximal="half",
    weighting="uniform", dropped=frozenset(),
):  # fmt: skip
    """Runs FedACG; see `rounds.run`. The state is m."""
    pull = beta if proximal == "half" else 2 * beta

    def client(ahead, c):
        x_k = ahead
        for b in c.batches:
            g = c.gradient(x_k, b)
            x_k = each(lambda w, g, a: w - c.lr * (g + pull * (w - a)), x_k, g, ahead)
        return each(np.subtract, x_k, ahead)

    def one_round(x, m, clients, p):
        ahead = each(lambda x, m: x + lambda_ * m, x, m)
        return server_step(x, m, rounds.mean(p, [client(ahead, c) for c in clients]), lambda_)

    return rounds.run(
        problem, batch_orders, cohorts, one_round, rounds.zeros(problem.initial_weights),
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
