"""FedDyn (arXiv 2111.04263, Algorithm 1) in NumPy float64.

client k keeps h_k, at first 0; alpha_k = alpha, or alpha / (n_k / mean_examples):
  x_k <- x ; every minibatch b: x_k <- x_k - lr (grad f(x_k; b) - h_k + alpha_k (x_k - x))
  send Delta_k = x_k - x ; h_k <- h_k - alpha_k Delta_k
server: h <- h - (alpha / N) sum_k Delta_k ; x <- mean_k x_k - h / alpha

The sum over the S clients of a round is S times their mean, which may be a weighted one. A dropped
client keeps its h_k and is not among the S. What is reported is x, or the mean of the x_k.
"""

import numpy as np

from tests.oracles import problem as problem_lib
from tests.oracles import rounds
from tests.oracles.rounds import each


def server_step(h, models, p, x, alpha, num_clients):
    """Returns (h, mean of the models, next x) of the models x_k of a round, with weights p."""
    mean = rounds.mean(p, models)
    share = alpha * len(models) / num_clients
    h = each(lambda h, m, x: h - share * (m - x), h, mean, x)
    return h, mean, each(lambda m, h: m - h / alpha, mean, h)


def run(
    problem, batch_orders, cohorts, *, client_lr, alpha, mean_examples=None, reported="server",
    weighting="uniform", dropped=frozenset(),
):  # fmt: skip
    """Runs FedDyn; see `rounds.run` for the arguments. The states are (h, {k: h_k})."""
    x = given = problem.initial_weights
    h, kept = rounds.zeros(x), {}
    result = rounds.Result([], [])
    for r, cohort in enumerate(cohorts):
        lr = client_lr(r) if callable(client_lr) else client_lr
        present = [k for k in cohort if problem_lib.takes_part(problem, r, k, dropped)]
        models, sizes = [], []
        for k in present:
            features, labels = problem.clients[k]
            alpha_k = alpha / (len(labels) / mean_examples) if mean_examples else alpha
            h_k, x_k = kept.get(k, rounds.zeros(x)), x
            for b in batch_orders[r][k]:
                g = problem_lib.gradient(x_k, features[b], labels[b])
                x_k = each(
                    lambda w, g, h, s: w - lr * (g - h + alpha_k * (w - s)),  # noqa: B023
                    x_k, g, h_k, x,
                )  # fmt: skip
            kept[k] = each(lambda h, w, s: h - alpha_k * (w - s), h_k, x_k, x)  # noqa: B023
            models.append(x_k)
            sizes.append(len(labels) if weighting == "examples" else 1)
        if present:
            h, mean, x = server_step(
                h, models, np.array(sizes) / np.sum(sizes), x, alpha, len(problem.clients)
            )
            given = mean if reported == "mean" else x
        result.weights.append(given)
        result.states.append((h, dict(kept)))
    return result
