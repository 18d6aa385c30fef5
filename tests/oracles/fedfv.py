"""FedFV (arXiv 2104.14937) in NumPy float64; the calling form is that of `fedopt.run`.

    client k:  g_k = x - x_k by local training
               its loss F_k at x (loss_at = "broadcast") or at x_k ("final_model")
    server:    j = 1, .., m in the order of rising losses
               1. internal, for every i but those of the largest losses, over j != i in that order:
                  g_i <- g_i - (g_i g_j / |g_j|^2) g_j where g_i g_j < 0, g_j as it was sent
               2. g = mean g_i
               3. external, from round tau on (from 0), for every age from the oldest on:
                  h = the sum of the kept updates of that age with g g_k < 0
                  g <- g - (g h / |h|^2) h where g h < 0
               4. x <- x - server_lr g |mean of the g_k that were sent| / |g|

Of m clients those from place ceil((m - 1) (1 - alpha)) on keep their updates in 1 (none if alpha is
0). The server keeps every client's last update, this round's included; its age is the rounds since
then. Ages are tau, .., 1 (ages = "past") or tau - 1, .., 0 ("released").
"""

import math

import numpy as np

from tests.oracles import cohort, rounds


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


def heed(g, known, round_num, ages):
    """g [d] without what conflicts with the kept updates, {k: (round, g_k)}, of some ages."""
    for age in ages:
        of_age = [h for when, h in known.values() if round_num - when == age and g @ h < 0]
        if of_age:
            g = without(g, np.sum(of_age, axis=0))
    return g


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, alpha=0.1, tau=1, ages="past",
    loss_at="broadcast", client_optimizer="sgd", dropped=frozenset(),
):  # fmt: skip
    """Returns a `rounds.Result`; the states are {client: (its last x_k - x, its round)}."""

    def server(x, known, reports, lr):
        sent = -np.stack([c.delta for c in reports])
        losses = [cohort.loss(x if loss_at == "broadcast" else c.trained, c) for c in reports]
        r = reports[0].round_num
        known = known | {c.k: (r, g) for c, g in zip(reports, sent, strict=True)}
        g = project(sent, losses, alpha).mean(axis=0)
        if r >= tau:
            past = ages == "past"
            g = heed(g, known, r, range(tau, 0, -1) if past else range(tau - 1, -1, -1))
        length = np.linalg.norm(g)
        scale = np.linalg.norm(sent.mean(axis=0)) / length if length > 0 else 0.0
        return cohort.like(x, cohort.flat(x) - server_lr * scale * g), known

    history = cohort.run(
        problem, batch_orders, cohorts, server, {},
        client_lr=client_lr, client_optimizer=client_optimizer, dropped=dropped,
    )  # fmt: skip
    start = problem.initial_weights
    return rounds.Result(
        [x for x, _ in history],
        [
            {k: (cohort.like(start, -g), when) for k, (when, g) in known.items()}
            for _, known in history
        ],
    )
