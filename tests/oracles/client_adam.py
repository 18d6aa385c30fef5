"""Adam on the clients (arXiv 2405.11811, Algorithm 1, "vanilla") in NumPy float64.

client k keeps m_k, v_k (0 at first), its steps s_k and its rounds r_k
  x_k <- x ; every minibatch b: s_k <- s_k + 1 ; g = grad f(x_k; b)
  m_k <- beta1 m_k + (1 - beta1) g ; v_k <- beta2 v_k + (1 - beta2) g^2
  x_k <- x_k - lr [m_k / (1 - beta1^t)] / (sqrt(v_k / (1 - beta2^t)) + epsilon)
server: x <- x + server_lr sum_k p_k (x_k - x)

t = s_k, or (unit "round") r_k, the present round included. Reset: m_k = v_k = s_k = r_k = 0 at the
start of every round. A dropped client keeps what it had.
"""

import numpy as np

from tests.oracles import problem as problem_lib
from tests.oracles import rounds
from tests.oracles.rounds import each


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, beta1=0.9, beta2=0.99,
    epsilon=1e-8, state="keep", t_unit="step", weighting="uniform", dropped=frozenset(),
):  # fmt: skip
    """Runs it; see `rounds.run` for the arguments. The states are {client: (m, v, steps)}."""
    x, kept, result = problem.initial_weights, {}, rounds.Result([], [])
    zeros = rounds.zeros(x)
    for r, cohort in enumerate(cohorts):
        lr = client_lr(r) if callable(client_lr) else client_lr
        deltas, sizes = [], []
        for k in cohort:
            if not problem_lib.takes_part(problem, r, k, dropped):
                continue
            features, labels = problem.clients[k]
            start = (zeros, zeros, 0, 0)
            m, v, steps, visits = kept.get(k, start) if state == "keep" else start
            x_k = x
            for b in batch_orders[r][k]:
                steps += 1
                t = steps if t_unit == "step" else visits + 1
                g = problem_lib.gradient(x_k, features[b], labels[b])
                m = each(lambda m, g: beta1 * m + (1 - beta1) * g, m, g)
                v = each(lambda v, g: beta2 * v + (1 - beta2) * g**2, v, g)
                m_hat = each(lambda m, t=t: m / (1 - beta1**t), m)
                v_hat = each(lambda v, t=t: v / (1 - beta2**t), v)
                x_k = each(
                    lambda w, m, v, lr=lr: w - lr * m / (np.sqrt(v) + epsilon), x_k, m_hat, v_hat
                )
            kept[k] = (m, v, steps, visits + 1)
            deltas.append(each(np.subtract, x_k, x))
            sizes.append(len(labels) if weighting == "examples" else 1)
        if deltas:
            delta = rounds.mean(np.array(sizes) / np.sum(sizes), deltas)
            x = each(lambda x, d: x + server_lr * d, x, delta)
        result.weights.append(x)
        result.states.append({k: value[:3] for k, value in kept.items()})
    return result
