"""SCAFFOLD (arXiv 1910.06378, Option II; arXiv 2003.00295, Algorithm 6) in NumPy float64.

client k keeps c_k, at first c_k = c (or 0):
  x_k <- x ; every minibatch b: x_k <- x_k - lr (grad f(x_k; b) - c_k + c), tau steps
  c_k' = c_k - c + (x - x_k) / (tau lr) ; send x_k - x and c_k' - c_k ; c_k <- c_k'
server: x <- x + server_lr sum_k p_k (x_k - x) ; c <- c + (K / N) sum_k p_k (c_k' - c_k)

A dropped client keeps its c_k and is not among the K.
"""

import numpy as np

from tests.oracles import problem as problem_lib
from tests.oracles import rounds
from tests.oracles.rounds import each


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, first_visit="server",
    weighting="examples", dropped=frozenset(),
):  # fmt: skip
    """Runs SCAFFOLD; see `rounds.run` for the arguments, which this loop takes alike."""
    x = problem.initial_weights
    c = rounds.zeros(x)
    kept = {}
    result = rounds.Result([], [])
    for r, cohort in enumerate(cohorts):
        lr = client_lr(r) if callable(client_lr) else client_lr
        present = [k for k in cohort if problem_lib.takes_part(problem, r, k, dropped)]
        deltas, control_deltas, sizes = [], [], []
        for k in present:
            features, labels = problem.clients[k]
            c_k = kept.get(k, c if first_visit == "server" else rounds.zeros(x))
            x_k = x
            batches = batch_orders[r][k]
            for b in batches:
                g = problem_lib.gradient(x_k, features[b], labels[b])
                x_k = each(lambda w, g, k, s: w - lr * (g - k + s), x_k, g, c_k, c)  # noqa: B023
            scale = len(batches) * lr
            after = each(lambda k, s, a, w: k - s + (a - w) / scale, c_k, c, x, x_k)  # noqa: B023
            deltas.append(each(np.subtract, x_k, x))
            control_deltas.append(each(np.subtract, after, c_k))
            sizes.append(len(labels) if weighting == "examples" else 1)
            kept[k] = after
        if present:
            p = np.array(sizes) / np.sum(sizes)
            share = len(present) / len(problem.clients)
            x = each(lambda x, d: x + server_lr * d, x, rounds.mean(p, deltas))
            c = each(lambda c, d: c + share * d, c, rounds.mean(p, control_deltas))  # noqa: B023
        result.weights.append(x)
        result.states.append((c, dict(kept)))
    return result
