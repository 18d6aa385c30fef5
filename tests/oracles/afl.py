"""AFL (arXiv 1902.00146) in NumPy float64; the calling form is that of `fedopt.run`.

client k:  L_k = F_k(x) ; Delta_k by local training
server:    x <- x + lr sum_{k in S} lambda_k Delta_k          (the lambda of before the round)
           lambda <- P(lambda + gamma sum_{k in S} L_k e_k)   (projection onto the simplex)
           lambda_0 = 1/N ; not re-normalised over the cohort
reported:  the mean of the models after each server step, or the last one
"""

import numpy as np

from tests.oracles import cohort


def project(point):
    """The nearest point of the probability simplex: max(p - theta, 0) with sum one, by sorting."""
    descending = np.sort(point)[::-1]
    thetas = (np.cumsum(descending) - 1) / np.arange(1, len(point) + 1)
    theta = thetas[np.nonzero(descending > thetas)[0][-1]]
    return np.maximum(point - theta, 0)


def run(
    problem,
    batch_orders,
    *,
    cohorts,
    client_lr,
    server_lr=1.0,
    gamma=0.1,
    reported="average",
    client_optimizer="sgd",
    dropped=frozenset(),
):
    """Returns (reported weights, lambda [N]) after every round."""
    num_clients = len(problem.clients)

    def server(x, state, reports, lr):
        lambdas, models = state
        step = sum(lambdas[c.k] * c.delta for c in reports)
        gradient = np.zeros(num_clients)
        for c in reports:
            gradient[c.k] = cohort.loss(x, c)
        x = cohort.like(x, cohort.flat(x) + server_lr * step)
        return x, (project(lambdas + gamma * gradient), [*models, cohort.flat(x)])

    history = cohort.run(
        problem,
        batch_orders,
        cohorts,
        server,
        (np.full(num_clients, 1 / num_clients), []),
        client_lr=client_lr,
        client_optimizer=client_optimizer,
        dropped=dropped,
    )

    def report(x, models):
        if reported == "last" or not models:
            return x
        return cohort.like(x, np.mean(models, axis=0))

    return [(report(x, models), lambdas) for x, (lambdas, models) in history]
