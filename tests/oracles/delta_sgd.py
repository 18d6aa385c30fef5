"""Delta-SGD (arXiv 2306.11201) in NumPy float64.

client:  x_0 <- x ; eta = eta_0 in the first step, or eta_0 sqrt(1 + delta theta_0)
         then eta_t = min(gamma |x_t - x_(t-1)| / (2 |g_t - g'|), sqrt(1 + delta theta) eta_(t-1))
         theta <- eta_t / eta_(t-1) ; x_(t+1) <- x_t - eta_t g_t
         g_t = grad f(x_t; b_t), g' = grad f(x_(t-1); b_t), or grad f(x_(t-1); b_(t-1))
         without the first bound where one of its norms is 0
server:  x <- x + server_lr sum_k p_k (x_k - x)

eta_0 is the client learning rate.
"""

import numpy as np

from tests.oracles import rounds
from tests.oracles.rounds import each


def norm(a, b):
    """|a - b| of two tuples of arrays."""
    return np.sqrt(sum(np.sum((u - v) ** 2) for u, v in zip(a, b, strict=True)))


def client_update(x, c, gamma, delta, theta0, difference, first_step):
    """Returns (x_k - x, the etas of the steps)."""
    x_k, theta, etas = x, theta0, []
    before, last = x, None
    for b in c.batches:
        g = c.gradient(x_k, b)
        if etas:
            other = c.gradient(before, b) if difference == "minibatch" else last
            moved, turned = norm(x_k, before), norm(g, other)
            eta = np.sqrt(1 + delta * theta) * etas[-1]
            if moved > 0 and turned > 0:
                eta = min(gamma * moved / (2 * turned), eta)
            theta = eta / etas[-1]
        elif first_step == "grown":
            eta = np.sqrt(1 + delta * theta0) * c.lr
            theta = eta / c.lr
        else:
            eta = c.lr
        etas.append(eta)
        before, last = x_k, g
        x_k = each(lambda w, g: w - eta * g, x_k, g)  # noqa: B023
    return each(np.subtract, x_k, x), etas


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, gamma=2.0, delta=0.1, theta0=1.0,
    difference="minibatch", first_step="plain", weighting="uniform", dropped=frozenset(),
):  # fmt: skip
    """Runs Delta-SGD; see `rounds.run`. The state is the list of the last round's etas."""

    def one_round(x, state, clients, p):
        deltas, etas = zip(
            *(client_update(x, c, gamma, delta, theta0, difference, first_step) for c in clients),
            strict=True,
        )
        return each(lambda x, d: x + server_lr * d, x, rounds.mean(p, deltas)), etas

    return rounds.run(
        problem, batch_orders, cohorts, one_round, None,
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
