"""AdaFed (arXiv 2401.04993) in NumPy float64; the calling form is that of `fedopt.run`.

client k:  g_k = x - x_k ; f_k = F_k(x) ("broadcast"), F_k(x_k) ("final_model"), or the mean
           loss over the examples of the last local epoch, each before its step ("last_epoch")
server:    clients with g_k = 0 are left out ; F_k = max(f_k, floor)^gamma
           closed_form   the shortest u of the least sum_k (<g_k, u> - F_k)^2
           gram_schmidt  as printed, equations 5 and 6, then the weights of equation 14; each
                         orthogonalised vector is kept as its direction, so that a zero
                         denominator of equation 6 does no harm
           d = u / max(|u|, mean F / max |g_k|)^2
           x <- x - step d, step = lr times min F, mean F, 1 ("constant"), or what makes
           |step d| = lr |mean g| ("unit")
"""

import numpy as np

from tests.oracles import client_optimizers, cohort
from tests.oracles import problem as problem_lib


def closed_form(vectors, targets, tolerance=1e-9):
    """u of the rows of `vectors` [K, d], none of them zero, and F [K], in least squares.

    Which directions there are is told from rows of unit length, where a short one counts as well.
    """
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    _, singular, axes = np.linalg.svd(units, full_matrices=False)
    axes = axes[singular > tolerance * singular[0]]
    return np.linalg.lstsq(vectors @ axes.T, targets, rcond=None)[0] @ axes


def direction(vectors, targets, u):
    """d of u, not longer than mean F can make of the longest of the rows."""
    least = targets.mean() / np.linalg.norm(vectors, axis=1).max()
    return u / max(np.linalg.norm(u), least) ** 2


def gram_schmidt(vectors, targets, tolerance=1e-6):
    """The same u, vector by vector: <g_k, u> = F_k is met for one client after the other."""
    u, basis = np.zeros(vectors.shape[1]), []
    for g, target in zip(vectors, targets, strict=True):
        rest = g - sum((np.dot(g, q) * q for q in basis), np.zeros_like(g))
        norm = np.linalg.norm(rest)
        if norm > tolerance * np.linalg.norm(g):
            basis.append(rest / norm)
            u = u + (target - np.dot(g, u)) / norm * basis[-1]
    return u


def printed(vectors, targets):
    """d by equations 5, 6, 14 and 15 letter by letter; needs denominators that are not zero."""
    orthogonal = []
    for g, target in zip(vectors, targets, strict=True):
        numerator, denominator = g.copy(), target
        for o in orthogonal:
            share = np.dot(g, o) / np.dot(o, o)
            numerator, denominator = numerator - share * o, denominator - share
        orthogonal.append(numerator / denominator)
    inverse = np.array([1 / np.dot(o, o) for o in orthogonal])
    return inverse / inverse.sum() @ np.stack(orthogonal)


def _last_epoch_loss(x, report, lr, optimizer):
    steps = _steps_of_last_epoch(report)
    weights, slots, total = x, optimizer.init(x), 0.0
    for i, batch in enumerate(report.batches):
        features, labels = report.x[batch], report.y[batch]
        if i >= len(report.batches) - steps:
            total += len(batch) * problem_lib.mean_loss(weights, features, labels)
        gradient = problem_lib.gradient(weights, features, labels)
        slots, weights = optimizer.step(slots, weights, gradient, lr)
    return total / report.n


def _steps_of_last_epoch(report):
    seen, steps = 0, 0
    for batch in reversed(report.batches):
        seen, steps = seen + len(batch), steps + 1
        if seen == report.n:
            return steps
    raise ValueError("the batches hold no whole epoch")


def run(
    problem,
    batch_orders,
    *,
    cohorts,
    client_lr,
    server_lr=1.0,
    gamma=1.0,
    loss_at="broadcast",
    step_rule="min",
    orthogonalization="closed_form",
    loss_floor=1e-8,
    client_optimizer="sgd",
    dropped=frozenset(),
):
    """Returns the weights after every round."""
    if isinstance(client_optimizer, str):
        client_optimizer = client_optimizers.build(client_optimizer)

    def loss(x, c, lr):
        if loss_at == "last_epoch":
            return _last_epoch_loss(x, c, lr, client_optimizer)
        return cohort.loss(x if loss_at == "broadcast" else c.trained, c)

    def server(x, state, reports, lr):
        reports = [c for c in reports if np.any(c.delta)]
        if not reports:
            return x, state
        vectors = -np.stack([c.delta for c in reports])
        targets = np.array([max(loss(x, c, lr), loss_floor) ** gamma for c in reports])
        if orthogonalization == "closed_form":
            u = closed_form(vectors, targets)
        else:
            u = gram_schmidt(vectors, targets)
        d = direction(vectors, targets, u)
        step = (
            server_lr
            * {
                "min": targets.min(),
                "mean": targets.mean(),
                "constant": 1.0,
                "unit": np.linalg.norm(vectors.mean(axis=0)) / np.linalg.norm(d),
            }[step_rule]
        )
        return cohort.like(x, cohort.flat(x) - step * d), state

    history = cohort.run(
        problem,
        batch_orders,
        cohorts,
        server,
        None,
        client_lr=client_lr,
        client_optimizer=client_optimizer,
        dropped=dropped,
    )
    return [x for x, _ in history]
