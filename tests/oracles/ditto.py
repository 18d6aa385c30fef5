"""Ditto (arXiv 2012.04221) in NumPy float64.

client k keeps v_k, at first x
  w = x ; every minibatch b: v_k <- v_k - lr [grad f(v_k; b) + lambda (v_k - x)]
                             w <- w - lr grad f(w; b)
server: x <- x + server_lr sum_k p_k (w_k - x)

A dropped client keeps the v_k that it had.
"""

import numpy as np

from tests.oracles import problem as problem_lib
from tests.oracles import rounds
from tests.oracles.rounds import each


def run(
    problem, batch_orders, cohorts, *, client_lr, lambda_, server_lr=1.0, weighting="uniform",
    dropped=frozenset(),
):  # fmt: skip
    """Runs Ditto; see `rounds.run` for the arguments. The states are {client: v_k}."""
    x, kept, result = problem.initial_weights, {}, rounds.Result([], [])
    for r, cohort in enumerate(cohorts):
        lr = client_lr(r) if callable(client_lr) else client_lr
        deltas, sizes = [], []
        for k in cohort:
            if not problem_lib.takes_part(problem, r, k, dropped):
                continue
            features, labels = problem.clients[k]
            v, w = kept.get(k, x), x
            for b in batch_orders[r][k]:
                at_v, at_w = (problem_lib.gradient(at, features[b], labels[b]) for at in (v, w))
                v = each(lambda v, g, x, lr=lr: v - lr * (g + lambda_ * (v - x)), v, at_v, x)
                w = each(lambda w, g, lr=lr: w - lr * g, w, at_w)
            kept[k] = v
            deltas.append(each(np.subtract, w, x))
            sizes.append(len(labels) if weighting == "examples" else 1)
        if deltas:
            delta = rounds.mean(np.array(sizes) / np.sum(sizes), deltas)
            x = each(lambda x, d: x + server_lr * d, x, delta)
        result.weights.append(x)
        result.states.append(dict(kept))
    return result
