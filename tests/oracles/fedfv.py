"""FedFV (arXiv 2104.14937) in NumPy float64; the calling form is that of `fedopt.run`.

    client k:  g_k = x - x_k by local training
               its loss F_k at x (measured = "start") or at x_k ("end")
    server:    j = 1, .., m in the order of rising losses
               1. internal, for every i but those of the largest losses, over j != i in that order:
                  g_i <- g_i - (g_i g_j / |g_j|^2) g_j where g_i g_j < 0, g_j as it was sent
               2. g = mean g_i
               3. external, if the server took tau steps before, for every age from the oldest on:
                  h = the sum of the kept updates of that age with g g_k < 0
                  g <- g - (g h / |h|^2) h where g h < 0
               4. x <- x - g |mean of the g_k that were sent| / |g|

Of m clients those from place ceil((m - 1) (1 - alpha)) on keep their updates in 1 (none if alpha is
0). The server keeps every client's last update; its age is the server's steps since then. Ages are
tau, .., 1 (ages = "past") or tau - 1, .., 0, the round's own among them ("released").
"""

import math

import numpy as np

from tests.oracles import cohort


def without(g, h):
    """g without its part along h where the two conflict."""
    along = g @ h
    return g - along / (h @ h) * h if along < 0 else g


def project(sent, losses, alpha):
    """The updates [m, d] after the internal projections."""
    order = [int(i) for i in np.argsort(losses, kind="stable")]
    keep = order[math.ceil((len(order) - 1) * (1 - alpha)) :] if alpha > 0 else []
    projected = []
    for i, g in enumerate(sent):
        if i not in keep:
            for j in order:
                g = without(g, sent[j]) if j != i else g
        projected.append(g)
    return np.stack(projected)


def run(
    problem, batch_orders, *, cohorts, client_lr, alpha=0.1, tau=1, ages="past", measured="start",
    client_optimizer="sgd", dropped=frozenset(),
):  # fmt: skip
    """Returns the weights after every round."""

    def server(x, state, reports, lr):
        steps, history = state
        sent = -np.stack([c.delta for c in reports])
        losses = [cohort.loss(x if measured == "start" else c.trained, c) for c in reports]
        current = history | {c.k: (steps, g) for c, g in zip(reports, sent, strict=True)}
        g = project(sent, losses, alpha).mean(axis=0)
        if steps >= tau:
            known = current if ages == "released" else history
            for age in range(tau, 0, -1) if ages == "past" else range(tau - 1, -1, -1):
                of_age = [h for when, h in known.values() if steps - when == age and g @ h < 0]
                if of_age:
                    g = without(g, np.sum(of_age, axis=0))
        length = np.linalg.norm(g)
        scale = np.linalg.norm(sent.mean(axis=0)) / length if length > 0 else 0.0
        return cohort.like(x, cohort.flat(x) - scale * g), (steps + 1, current)

    history = cohort.run(
        problem, batch_orders, cohorts, server, (0, {}),
        client_lr=client_lr, client_optimizer=client_optimizer, dropped=dropped,
    )  # fmt: skip
    return [x for x, _ in history]
