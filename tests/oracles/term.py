"""TERM (arXiv 2007.01162) in NumPy float64; the calling form is that of `fedopt.run`.

client k:  L_k = F_k(x) ; Delta_k by local training
server:    e_k = exp(t (L_k - max_j L_j))
           softmax   w_k = e_k / sum_j e_j
           running   Z <- Z / 2 + mean_j e_j / 2, from Z = 0 ; w_k = e_k / (K Z)
           x <- x + lr sum_k w_k Delta_k
"""

import numpy as np

from tests.oracles import cohort


def run(
    problem,
    batch_orders,
    *,
    cohorts,
    client_lr,
    server_lr=1.0,
    t=1.0,
    normalizer="softmax",
    client_optimizer="sgd",
    dropped=frozenset(),
):
    """Returns the weights after every round."""

    def server(x, estimate, reports, lr):
        losses = np.array([cohort.loss(x, c) for c in reports])
        e = np.exp(t * (losses - losses.max()))
        estimate = 0.5 * estimate + 0.5 * e.mean()
        total = e.sum() if normalizer == "softmax" else len(e) * estimate
        step = e @ np.stack([c.delta for c in reports]) / total
        return cohort.like(x, cohort.flat(x) + server_lr * step), estimate

    history = cohort.run(
        problem,
        batch_orders,
        cohorts,
        server,
        0.0,
        client_lr=client_lr,
        client_optimizer=client_optimizer,
        dropped=dropped,
    )
    return [x for x, _ in history]
