"""FedExP (arXiv 2301.09604) in NumPy float64.

client:  local SGD ; Delta_k = x_k - x
server:  D = sum_k p_k Delta_k over M clients ; e = epsilon, or M epsilon
         eta = max(1, sum_k p_k |Delta_k|^2 / (2 (|D|^2 + e))) ; x <- x + eta D
         reported: the mean of x before and after; after the first round that, or x itself
"""

import numpy as np

from tests.oracles import rounds
from tests.oracles.rounds import each


def squared_norm(vector):
    """|v|^2 of a tuple of arrays."""
    return sum(np.sum(a**2) for a in vector)


def server_rate(deltas, p, epsilon):
    """eta of updates with weights p that sum to 1."""
    longer = 2 * (squared_norm(rounds.mean(p, deltas)) + epsilon)
    return max(1.0, sum(w * squared_norm(d) for w, d in zip(p, deltas, strict=True)) / longer)


def run(
    problem, batch_orders, cohorts, *, client_lr, epsilon, epsilon_times="one",
    first_reported="mean", weighting="uniform", dropped=frozenset(),
):  # fmt: skip
    """Runs FedExP; see `rounds.run`. The state is (x, eta, rounds done); weights are reported."""

    def client(x, c):
        x_k = x
        for b in c.batches:
            x_k = each(lambda w, g: w - c.lr * g, x_k, c.gradient(x_k, b))
        return each(np.subtract, x_k, x)

    def one_round(reported, state, clients, p):
        x, _, number = state
        deltas = [client(x, c) for c in clients]
        e = epsilon * (len(clients) if epsilon_times == "clients" else 1)
        eta = server_rate(deltas, p, e)
        after = each(lambda x, d: x + eta * d, x, rounds.mean(p, deltas))
        reported = each(lambda a, b: (a + b) / 2, x, after)
        if number == 0 and first_reported == "iterate":
            reported = after
        return reported, (after, eta, number + 1)

    return rounds.run(
        problem, batch_orders, cohorts, one_round, (problem.initial_weights, None, 0),
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
