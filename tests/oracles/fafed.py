"""FAFED (arXiv 2212.00974) in NumPy float64.

first round: m = mean_k grad F_k(x), v = mean_k (grad F_k(x))^2 over its cohort
H = sqrt(v) + rho, fixed inside a round
client:  first batch b: g = grad f(x; b) ; m_k = m
         later ones:    g = grad f(x_k; b) ; m_k <- g + (1 - alpha) (m_k - grad f(x_k^prev; b))
         each: v_k <- beta v_k + (1 - beta) g^2 ; x_k^prev <- x_k ; x_k <- x_k - lr m_k / H
server:  x <- x + server_lr sum_k p_k (x_k - x) ; m, v <- means of m_k, v_k
"""

import numpy as np

from tests.oracles import rounds
from tests.oracles.rounds import each


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, alpha=0.1, beta=0.99, rho=0.01,
    weighting="uniform", dropped=frozenset(),
):  # fmt: skip
    """Runs FAFED; see `rounds.run`. The state is (m, v), None before the first round."""

    def client(x, m, v, c):
        h = each(lambda v: np.sqrt(v) + rho, v)
        x_k, previous = x, None
        for b in c.batches:
            g = c.gradient(x_k, b)
            if previous is not None:
                old = c.gradient(previous, b)
                m = each(lambda g, m, o: g + (1 - alpha) * (m - o), g, m, old)
            v = each(lambda v, g: beta * v + (1 - beta) * g**2, v, g)
            previous = x_k
            x_k = each(lambda w, m, h: w - c.lr * m / h, x_k, m, h)
        return each(lambda w, x: w - x, x_k, x), m, v

    def one_round(x, state, clients, p):
        if state is None:
            gradients = [c.gradient(x) for c in clients]
            squares = [each(np.square, g) for g in gradients]
            state = rounds.mean(p, gradients), rounds.mean(p, squares)
        delta, m, v = (
            rounds.mean(p, values)
            for values in zip(*(client(x, *state, c) for c in clients), strict=True)
        )
        return each(lambda x, d: x + server_lr * d, x, delta), (m, v)

    return rounds.run(
        problem, batch_orders, cohorts, one_round, None,
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
