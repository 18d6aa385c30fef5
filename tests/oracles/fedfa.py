"""FedFA (Huang et al., arXiv 2012.10069) in NumPy float64; the calling form is `fedopt.run`'s.

client k:  Delta_k by local training ; a_k = accuracy on the local data, at x_k ("trained") or
           at x ("broadcast") ; f_k = rounds in which it took part, this one included
server:    A_k = -log2(a_k / sum a + 1e-6) ; R_k = -log2(1 - f_k / sum f + 1e-6)
           w_k = alpha A_k / sum A + beta R_k / sum R ; all a_k = 0: A_k all equal
           m <- momentum m + sum_k w_k Delta_k ; x <- x + lr m
"""

import numpy as np

from tests.oracles import cohort
from tests.oracles import problem as problem_lib


def weights_of(accuracies, counts, alpha, beta):
    """w [K] of the cohort's accuracies and counts."""
    a, f = np.asarray(accuracies, np.float64), np.asarray(counts, np.float64)
    if len(a) == 1:
        return np.array([alpha + beta])
    information = -np.log2(a / a.sum() + 1e-6) if a.sum() > 0 else np.ones_like(a)
    frequency = -np.log2(1 - f / f.sum() + 1e-6)
    return alpha * information / information.sum() + beta * frequency / frequency.sum()


def run(
    problem,
    batch_orders,
    *,
    cohorts,
    client_lr,
    server_lr=1.0,
    alpha=0.5,
    beta=0.5,
    momentum=0.5,
    accuracy_at="trained",
    client_optimizer="sgd",
    dropped=frozenset(),
):
    """Returns the weights after every round."""

    def server(x, state, reports, lr):
        m, counts = state
        counts = counts.copy()
        for c in reports:
            counts[c.k] += 1
        at = [c.trained if accuracy_at == "trained" else x for c in reports]
        a = [problem_lib.accuracy(w, c.x, c.y) for w, c in zip(at, reports, strict=True)]
        w = weights_of(a, [counts[c.k] for c in reports], alpha, beta)
        m = momentum * m + w @ np.stack([c.delta for c in reports])
        return cohort.like(x, cohort.flat(x) + server_lr * m), (m, counts)

    zeros = np.zeros_like(cohort.flat(problem.initial_weights))
    history = cohort.run(
        problem,
        batch_orders,
        cohorts,
        server,
        (zeros, np.zeros(len(problem.clients))),
        client_lr=client_lr,
        client_optimizer=client_optimizer,
        dropped=dropped,
    )
    return [x for x, _ in history]
