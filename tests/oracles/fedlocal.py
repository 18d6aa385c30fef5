"""FedLocal (arXiv 2106.02305), as its released code has it, in NumPy float64.

client:  its optimizer from zero ; psi the preconditioner after the step, beta the momentum
         every minibatch: optimizer step ; A <- beta A + (1 - beta) psi ; Q <- Q + A
         delta_k = (x_k - x) / Q ; q_k = 1 / Q                       (A = Q = 0 at the start)
server:  D = sum_k p_k delta_k ; joint: D <- D / sum_k p_k q_k ; x <- x + server_lr D

optimizer         psi                     beta
sgd               1                       0
sgdm              1                       momentum
adam, yogi        1 / (sqrt(v) + eps)     beta1
adagrad, rmsprop  1 / (sqrt(v) + eps)     0

Adagrad is its own: v <- v + g^2, v = 0 at first ; w <- w - lr g / (sqrt(v) + eps).
"""

import numpy as np

from tests.oracles import client_optimizers, rounds
from tests.oracles.rounds import each


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, correction="joint",
    optimizer="sgd", options=None, epsilon=1e-7, beta=0.0, weighting="examples",
    dropped=frozenset(),
):  # fmt: skip
    """Runs FedLocal; see `rounds.run`. `epsilon` and `beta` are those of the table above."""
    if optimizer == "adagrad":
        stepper = _adagrad(epsilon, **(options or {}))
    else:
        stepper = client_optimizers.build(optimizer, **(options or {}))

    def precondition(v):
        if optimizer in ("sgd", "sgdm"):
            return np.ones_like(v)
        return 1 / (np.sqrt(v) + epsilon)

    def client(x, c):
        x_k, slots, a, q = x, stepper.init(x), rounds.zeros(x), rounds.zeros(x)
        for b in c.batches:
            slots, x_k = stepper.step(slots, x_k, c.gradient(x_k, b), c.lr)
            a = each(lambda a, v: beta * a + (1 - beta) * precondition(v), a, slots.v)
            q = each(lambda q, a: q + a, q, a)
        return each(lambda w, x, q: (w - x) / q, x_k, x, q), each(lambda q: 1 / q, q)

    def one_round(x, state, clients, p):
        delta, q = (
            rounds.mean(p, values) for values in zip(*(client(x, c) for c in clients), strict=True)
        )
        if correction == "joint":
            delta = each(lambda d, q: d / q, delta, q)
        return each(lambda x, d: x + server_lr * d, x, delta), state

    return rounds.run(
        problem, batch_orders, cohorts, one_round, None,
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip


def _adagrad(epsilon, initial=0.0):
    def init(weights):
        zeros = rounds.zeros(weights)
        return client_optimizers.Slots(0, zeros, each(lambda z: z + initial, zeros))

    def step(slots, weights, gradient, lr):
        v = each(lambda v, g: v + g**2, slots.v, gradient)
        weights = each(lambda w, g, v: w - lr * g / (np.sqrt(v) + epsilon), weights, gradient, v)
        return slots._replace(v=v), weights

    return client_optimizers.ClientOptimizer(init, step)
