"""FedSPS (arXiv 2307.06306) in NumPy float64.

    client:  every minibatch: gamma = min{(f(x_k; b) - lower_bound) / (c |grad f(x_k; b)|^2), bound}
             x_k <- x_k - gamma grad f(x_k; b)
    server:  x <- x + server_lr sum_k p_k (x_k - x)

The bound is gamma_b, the client rate. With smoothing it is gamma_b in the first step of a round and
then 2^(|b| / n_k) times the gamma of the step before.
"""

import numpy as np

from tests.oracles import rounds
from tests.oracles.rounds import each


def client_update(x, c, scale, lower_bound, smoothing):
    """Returns (Delta_k, the gammas of the steps)."""
    x_k, gammas = x, []
    for b in c.batches:
        g = c.gradient(x_k, b)
        square = sum(np.sum(a**2) for a in g)
        bound = c.lr
        if smoothing and gammas:
            bound = 2 ** (len(b) / len(c.y)) * gammas[-1]
        ratio = (c.loss(x_k, b) - lower_bound) / (scale * max(square, 1e-12))
        gammas.append(min(ratio, bound))
        x_k = each(lambda w, g: w - gammas[-1] * g, x_k, g)
    return each(lambda w, x: w - x, x_k, x), gammas


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, c=0.5, lower_bound=0.0,
    smoothing=False, weighting="uniform", dropped=frozenset(),
):  # fmt: skip
    """Runs FedSPS; see `rounds.run`. The state is the list of the last round's gammas."""

    def one_round(x, state, clients, p):
        deltas, gammas = zip(
            *(client_update(x, k, c, lower_bound, smoothing) for k in clients), strict=True
        )
        return each(lambda x, d: x + server_lr * d, x, rounds.mean(p, deltas)), gammas

    return rounds.run(
        problem, batch_orders, cohorts, one_round, None,
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
