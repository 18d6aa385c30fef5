"""FedDA (ICML 2022) in NumPy float64: algorithm sgdm, adam or adagrad.

    client:  x_k = x, m_k = m, P_k = 0 ; every minibatch: g = grad f(x_k; b) + mu (x_k - x)
             x_k <- x_k - lr g ; m_k <- beta1 m_k + (1 - beta1) g ; P_k <- P_k + m_k
    server:  P = sum_k p_k P_k (average_p: each P_k divided by its steps first) ; m' = sum_k p_k m_k
             lr the clients' rate, alpha the server's
    sgdm     x <- x - alpha lr P
    adam     G = (P - beta1 m) / (1 - beta1) ; V <- beta2 V + (1 - beta2) G^2
             x <- x - alpha lr [P / (1 - beta1^s)] / (sqrt(V / (1 - beta2^s)) + epsilon)
    adagrad  V <- V + G^2 ; x <- x - alpha lr G / (sqrt(V) + epsilon)
    then     m <- m'

s = 1, 2, .. counts rounds that changed the model; with bias_steps it is T times that. The batch
orders must already hold T batches, or one full batch.
"""

import numpy as np

from tests.oracles import rounds
from tests.oracles.rounds import each


def run(
    problem, algorithm, batch_orders, cohorts, *, client_lr, server_lr, beta1=0.9, beta2=0.99,
    epsilon=0.1, mu=0.0, bias_steps=False, average_p=False, local_steps=1, weighting="examples",
    dropped=frozenset(),
):  # fmt: skip
    """Runs FedDA; see `rounds.run`. The state is (m, V, rounds done, last P, last G)."""

    def client(x, m, c):
        x_k, total = x, rounds.zeros(x)
        for b in c.batches:
            g = each(lambda g, w, x: g + mu * (w - x), c.gradient(x_k, b), x_k, x)
            x_k = each(lambda w, g: w - c.lr * g, x_k, g)
            m = each(lambda m, g: beta1 * m + (1 - beta1) * g, m, g)
            total = each(lambda t, m: t + m, total, m)
        if average_p:
            total = each(lambda t: t / max(len(c.batches), 1), total)
        return total, m

    def one_round(x, state, clients, p):
        m, v, done, _, _ = state
        total, new_m = (
            rounds.mean(p, values)
            for values in zip(*(client(x, m, c) for c in clients), strict=True)
        )
        rate = server_lr * clients[0].lr
        done += 1
        s = done * local_steps if bias_steps else done
        g = each(lambda t, m: (t - beta1 * m) / (1 - beta1), total, m)
        if algorithm == "sgdm":
            x = each(lambda x, t: x - rate * t, x, total)
        elif algorithm == "adam":
            v = each(lambda v, g: beta2 * v + (1 - beta2) * g**2, v, g)
            c1, c2 = 1 - beta1**s, 1 - beta2**s
            x = each(lambda x, t, v: x - rate * (t / c1) / (np.sqrt(v / c2) + epsilon), x, total, v)
        else:
            v = each(lambda v, g: v + g**2, v, g)
            x = each(lambda x, g, v: x - rate * g / (np.sqrt(v) + epsilon), x, g, v)
        return x, (new_m, v, done, total, g)

    zeros = rounds.zeros(problem.initial_weights)
    return rounds.run(
        problem, batch_orders, cohorts, one_round, (zeros, zeros, 0, zeros, zeros),
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
