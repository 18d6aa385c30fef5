"""FedCAda (arXiv 2405.11811) in NumPy float64.

    client:  x_k = x, m_k = m, v_k = v ; step j = 1 .. tau_k: g = grad f(x_k; b)
             m_k <- beta1 m_k + (1 - beta1) g ; v_k <- beta2 v_k + (1 - beta2) g^2
             x_k <- x_k - lr [m_k / (1 + phi(beta1^t))] / (sqrt(v_k / (1 + phi(beta2^t))) + epsilon)
    server:  x <- x + server_lr sum_k p_k (x_k - x) ; m, v <- means of m_k, v_k

phi(z): 1 z ; 2 z^2 ; 3 sin z ; 4 sqrt z ; none 0. t is the round from 1, or (unit "step") the steps
of all rounds so far, each round's largest tau_k, plus j.
"""

import numpy as np

from tests.oracles import rounds
from tests.oracles.rounds import each

PHI = {
    "1": lambda z: z,
    "2": lambda z: z**2,
    "3": np.sin,
    "4": np.sqrt,
    "none": lambda z: 0.0,
}


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, beta1=0.9, beta2=0.99,
    epsilon=1e-8, option="1", t_unit="round", weighting="uniform", dropped=frozenset(),
):  # fmt: skip
    """Runs FedCAda; see `rounds.run`. The state is (m, v, steps so far)."""
    phi = PHI[option]

    def client(x, m, v, steps, c):
        x_k = x
        for j, b in enumerate(c.batches, 1):
            t = c.round_num + 1 if t_unit == "round" else steps + j
            g = c.gradient(x_k, b)
            m = each(lambda m, g: beta1 * m + (1 - beta1) * g, m, g)
            v = each(lambda v, g: beta2 * v + (1 - beta2) * g**2, v, g)
            c1, c2 = 1 + phi(beta1**t), 1 + phi(beta2**t)
            x_k = each(
                lambda w, m, v: w - c.lr * (m / c1) / (np.sqrt(v / c2) + epsilon),  # noqa: B023
                x_k, m, v,
            )  # fmt: skip
        return each(lambda w, x: w - x, x_k, x), m, v

    def one_round(x, state, clients, p):
        m, v, steps = state
        delta, m, v = (
            rounds.mean(p, values)
            for values in zip(*(client(x, m, v, steps, c) for c in clients), strict=True)
        )
        steps += max(len(c.batches) for c in clients)
        return each(lambda x, d: x + server_lr * d, x, delta), (m, v, steps)

    zeros = rounds.zeros(problem.initial_weights)
    return rounds.run(
        problem, batch_orders, cohorts, one_round, (zeros, zeros, 0),
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
