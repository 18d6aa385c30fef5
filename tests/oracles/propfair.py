"""PropFair (arXiv 2202.01666) in NumPy float64.

client:  x_k <- x ; every minibatch b: x_k <- x_k - lr s grad f(x_k; b)
         s is the slope of -log(M - f) at f: 1 / (M - f) ; where M - f < epsilon it is 1 / epsilon
         (guard = "epsilon") or 1 / M (guard = "base")
         f = f(x_k; b), or F_k(x) of the whole data before the first step (loss = "round")
server:  x <- x + server_lr sum_k p_k (x_k - x)
"""

import numpy as np

from tests.oracles import rounds
from tests.oracles.rounds import each


def slope(f, base, epsilon, guard):
    """The slope s at a loss f."""
    if base - f < epsilon:
        return 1 / epsilon if guard == "epsilon" else 1 / base
    return 1 / (base - f)


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, base, epsilon=0.2,
    guard="epsilon", loss="batch", weighting="examples", dropped=frozenset(),
):  # fmt: skip
    """Runs PropFair; see `rounds.run`. The state is the list of the last round's losses f."""

    def client(x, c):
        x_k, losses, whole = x, [], c.loss(x, slice(None))
        for b in c.batches:
            losses.append(c.loss(x_k, b) if loss == "batch" else whole)
            s = slope(losses[-1], base, epsilon, guard)
            x_k = each(lambda w, g: w - c.lr * s * g, x_k, c.gradient(x_k, b))  # noqa: B023
        return each(np.subtract, x_k, x), losses

    def one_round(x, state, clients, p):
        deltas, losses = zip(*(client(x, c) for c in clients), strict=True)
        return each(lambda x, d: x + server_lr * d, x, rounds.mean(p, deltas)), losses

    return rounds.run(
        problem, batch_orders, cohorts, one_round, None,
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
