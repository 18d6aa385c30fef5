"""FedProx (arXiv 1812.06127) in NumPy float64.

client:  x_k <- x ; every minibatch b: x_k <- x_k - lr (grad f(x_k; b) + mu (x_k - x))
server:  x <- x + server_lr sum_k p_k (x_k - x)
"""

from tests.oracles import rounds
from tests.oracles.rounds import each


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, mu, weighting="examples",
    dropped=frozenset(),
):  # fmt: skip
    """Runs FedProx; see `rounds.run`."""

    def client(x, c):
        x_k = x
        for b in c.batches:
            g = c.gradient(x_k, b)
            x_k = each(lambda w, g, x: w - c.lr * (g + mu * (w - x)), x_k, g, x)
        return each(lambda w, x: w - x, x_k, x)

    def one_round(x, state, clients, p):
        delta = rounds.mean(p, [client(x, c) for c in clients])
        return each(lambda x, d: x + server_lr * d, x, delta), state

    return rounds.run(
        problem, batch_orders, cohorts, one_round, None,
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
