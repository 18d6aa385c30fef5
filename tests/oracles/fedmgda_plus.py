"""FedMGDA+ (arXiv 2006.11489) in NumPy float64; the calling form is that of `fedopt.run`.

    client k:  Delta_k by local training
    server:    zero updates are left out ; h_k = -Delta_k / |Delta_k|
               lambda minimises |sum_k lambda_k h_k|^2 with sum lambda = 1, lambda >= 0 and
               |lambda_k - lambda0_k| <= epsilon ; lambda0_k = 1/K or n_k / n
               x <- x - lr decay^r sum_k lambda_k h_k, r the server steps taken before

The quadratic programme is SciPy's to solve (SLSQP, polished by its own restarts).
"""

import numpy as np
import scipy.optimize

from tests.oracles import cohort


def minimum(gram, center, epsilon):
    """lambda of the quadratic programme on the Gram matrix [K, K]."""
    bounds = [(max(0.0, c - epsilon), min(1.0, c + epsilon)) for c in center]
    best = np.array(center, dtype=np.float64)
    for _ in range(5):
        solved = scipy.optimize.minimize(
            lambda p: 0.5 * p @ gram @ p,
            best,
            jac=lambda p: gram @ p,
            bounds=bounds,
            constraints={
                "type": "eq",
                "fun": lambda p: p.sum() - 1,
                "jac": lambda p: np.ones_like(p),
            },
            method="SLSQP",
            options={"ftol": 1e-16, "maxiter": 1000},
        )
        if solved.x @ gram @ solved.x < best @ gram @ best and abs(solved.x.sum() - 1) < 1e-12:
            best = solved.x
    return best


def run(
    problem,
    batch_orders,
    *,
    cohorts,
    client_lr,
    server_lr=1.0,
    epsilon=0.1,
    decay=1.0,
    weighting="uniform",
    client_optimizer="sgd",
    dropped=frozenset(),
):
    """Returns the weights after every round."""

    def server(x, steps, reports, lr):
        reports = [c for c in reports if np.any(c.delta)]
        if not reports:
            return x, steps
        h = -np.stack([c.delta / np.linalg.norm(c.delta) for c in reports])
        center = np.array([c.n if weighting == "examples" else 1.0 for c in reports])
        weights = minimum(h @ h.T, center / center.sum(), epsilon)
        step = server_lr * decay**steps * (weights @ h)
        return cohort.like(x, cohort.flat(x) - step), steps + 1

    history = cohort.run(
        problem,
        batch_orders,
        cohorts,
        server,
        0,
        client_lr=client_lr,
        client_optimizer=client_optimizer,
        dropped=dropped,
    )
    return [x for x, _ in history]
