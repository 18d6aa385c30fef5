"""FedCM (arXiv 2106.10874) in NumPy float64.

client:  x_k <- x ; every minibatch b: x_k <- x_k - lr (a g + (1 - a) d), g = grad f(x_k; b)
server:  D = sum_k p_k (x_k - x) ; x <- x + server_lr D ; d <- -D / (K lr), d = 0 at first

K is the mean number of the clients' steps with the weights p_k, or given. a is alpha; with
first_round = "plain" it is 1 as long as there is no d.
"""

import numpy as np

from tests.oracles import rounds
from tests.oracles.rounds import each


def client_update(x, c, d, mixing, gradient):
    """Returns x_k - x after local steps along mixing g + (1 - mixing) d."""
    x_k = x
    for b in c.batches:
        g = gradient(c, x_k, b)
        x_k = each(lambda w, g, d: w - c.lr * (mixing * g + (1 - mixing) * d), x_k, g, d)
    return each(np.subtract, x_k, x)


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, alpha, momentum_steps=None,
    first_round="mixed", weighting="uniform", gradient=lambda c, x_k, b: c.gradient(x_k, b),
    dropped=frozenset(),
):  # fmt: skip
    """Runs FedCM; see `rounds.run`. `gradient` is that of a step, plain in FedCM.

    The state is (d, whether there is one).
    """

    def one_round(x, state, clients, p):
        d, known = state
        mixing = 1 if first_round == "plain" and not known else alpha
        delta = rounds.mean(p, [client_update(x, c, d, mixing, gradient) for c in clients])
        steps = momentum_steps or sum(p * np.array([len(c.batches) for c in clients]))
        d = each(lambda m: -m / (steps * clients[0].lr), delta)
        return each(lambda x, m: x + server_lr * m, x, delta), (d, True)

    return rounds.run(
        problem, batch_orders, cohorts, one_round, (rounds.zeros(problem.initial_weights), False),
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
