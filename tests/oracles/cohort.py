"""What the clients of a round report, for oracles of methods whose servers combine the reports.

NumPy float64. Vectors are flat: the weight arrays one after the other.
"""

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

import numpy as np

from tests.oracles import client_optimizers, fedopt
from tests.oracles import problem as problem_lib

Weights = tuple[np.ndarray, ...]


class Report(NamedTuple):
    """One client that has examples and was not dropped.

    Attributes:
        k: Which client.
        n: Its number of examples.
        x, y: Its data.
        delta: Delta_k = x_k - x, flat [d].
        trained: x_k.
        batches: The index arrays of its minibatches.
        round_num: The round, from 0.
    """

    k: int
    n: int
    x: np.ndarray
    y: np.ndarray
    delta: np.ndarray
    trained: Weights
    batches: Sequence[np.ndarray]
    round_num: int


def flat(weights: Weights) -> np.ndarray:
    """The weight arrays as one vector [d]."""
    return np.concatenate([w.ravel() for w in weights])


def like(weights: Weights, vector: np.ndarray) -> Weights:
    """A vector [d] as arrays shaped like `weights`."""
    ends = np.cumsum([w.size for w in weights])[:-1]
    parts = np.split(vector, ends)
    return tuple(p.reshape(w.shape) for p, w in zip(parts, weights, strict=True))


def loss(weights: Weights, report: Report) -> float:
    """The mean loss on the client's whole data."""
    return problem_lib.mean_loss(weights, report.x, report.y)


def run(
    problem: problem_lib.Problem,
    batch_orders: problem_lib.BatchOrders,
    cohorts: Sequence[Sequence[int]],
    server: Callable,
    state,
    *,
    client_lr: float | fedopt.Schedule,
    client_optimizer: str | client_optimizers.ClientOptimizer = "sgd",
    dropped: Set[tuple[int, int]] = frozenset(),
) -> list[tuple[Weights, object]]:
    """Trains the clients of every round and lets the server do the rest.

    Args:
        problem: Data and initial weights.
        batch_orders: See `fedopt.run`, as for `cohorts`, `client_lr` and `dropped`.
        cohorts: See there.
        server: (x, state, reports, client learning rate) -> (x, state); not called for a round in
            which no client is left.
        state: What the server starts with besides the model.
        client_lr: See `fedopt.run`.
        client_optimizer: See there.
        dropped: See there.

    Returns:
        (x, state) after every round.
    """
    rate = client_lr if callable(client_lr) else fedopt.constant(client_lr)
    if isinstance(client_optimizer, str):
        client_optimizer = client_optimizers.build(client_optimizer)
    x, history = problem.initial_weights, []
    for r, cohort in enumerate(cohorts):
        reports = []
        for k in cohort:
            if not problem_lib.takes_part(problem, r, k, dropped):
                continue
            features, labels = problem.clients[k]
            batches = batch_orders[r][k]
            delta = fedopt.client_update(
                x, features, labels, batches, lr=rate(r), optimizer=client_optimizer
            )
            trained = tuple(a + b for a, b in zip(x, delta, strict=True))
            n = len(labels)
            reports.append(Report(k, n, features, labels, flat(delta), trained, batches, r))
        if reports:
            x, state = server(x, state, reports, rate(r))
        history.append((x, state))
    return history
