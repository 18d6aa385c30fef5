"""FedSAM and MoFedSAM (arXiv 2206.02618) in NumPy float64.

client:  x_k <- x ; every minibatch b: g = grad f(x_k; b)
         s = grad f(x_k + rho g / (|g| + epsilon); b), at x_k if |g| + epsilon = 0
         FedSAM: x_k <- x_k - lr s ; MoFedSAM: x_k <- x_k - lr (beta s + (1 - beta) d)
server:  x <- x + server_lr sum_k p_k (x_k - x) ; d as in FedCM
"""

import numpy as np

from tests.oracles import fedcm, rounds
from tests.oracles.rounds import each


def sharp_gradient(rho, epsilon):
    """Returns `(client, weights, indices) -> s`."""

    def gradient(c, x_k, b):
        g = c.gradient(x_k, b)
        length = np.sqrt(sum(np.sum(a**2) for a in g)) + epsilon
        scale = rho / length if length > 0 else 0.0
        return c.gradient(each(lambda w, g: w + scale * g, x_k, g), b)

    return gradient


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, rho, epsilon=0.0,
    weighting="uniform", dropped=frozenset(),
):  # fmt: skip
    """Runs FedSAM; see `rounds.run`."""
    gradient = sharp_gradient(rho, epsilon)

    def client(x, c):
        x_k = x
        for b in c.batches:
            x_k = each(lambda w, g: w - c.lr * g, x_k, gradient(c, x_k, b))
        return each(np.subtract, x_k, x)

    def one_round(x, state, clients, p):
        delta = rounds.mean(p, [client(x, c) for c in clients])
        return each(lambda x, d: x + server_lr * d, x, delta), state

    return rounds.run(
        problem, batch_orders, cohorts, one_round, None,
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip


def run_with_momentum(problem, batch_orders, cohorts, *, rho, epsilon=0.0, beta, **of_fedcm):
    """Runs MoFedSAM; see `fedcm.run`."""
    gradient = sharp_gradient(rho, epsilon)
    return fedcm.run(problem, batch_orders, cohorts, alpha=beta, gradient=gradient, **of_fedcm)
