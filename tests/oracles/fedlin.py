"""FedLin (arXiv 2102.07053), without compression, in NumPy float64.

g = sum_k p_k grad F_k(x)
client:  lr_k = lr / tau_k (divide_rate) or lr
         every minibatch b: x_k <- x_k - lr_k (grad f(x_k; b) - grad f(x; b) + g)
server:  x <- x + server_lr sum_k p_k (x_k - x)
"""

from tests.oracles import rounds
from tests.oracles.rounds import each


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, divide_rate=True,
    weighting="examples", dropped=frozenset(),
):  # fmt: skip
    """Runs FedLin; see `rounds.run`."""

    def client(x, g, c):
        x_k = x
        lr = c.lr / max(len(c.batches), 1) if divide_rate else c.lr
        for b in c.batches:
            here, there = c.gradient(x_k, b), c.gradient(x, b)
            x_k = each(lambda w, h, t, g: w - lr * (h - t + g), x_k, here, there, g)
        return each(lambda w, x: w - x, x_k, x)

    def one_round(x, state, clients, p):
        g = rounds.mean(p, [c.gradient(x) for c in clients])
        delta = rounds.mean(p, [client(x, g, c) for c in clients])
        return each(lambda x, d: x + server_lr * d, x, delta), g

    return rounds.run(
        problem, batch_orders, cohorts, one_round, None,
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
