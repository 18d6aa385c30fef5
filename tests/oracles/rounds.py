"""A run of rounds in NumPy float64, around the mathematics of one method.

What many oracles of this folder share: cohorts, minibatches, weights, clients that are dropped or
have no examples. Sources of the mathematics are named by the modules that use it.
"""

from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from tests.oracles import problem as problem_lib

Weights = tuple[np.ndarray, ...]


class Client(NamedTuple):
    """One client in one round.

    Attributes:
        x: Features [n, F].
        y: Labels [n].
        batches: Index arrays of its minibatches, all epochs one after the other.
        lr: Client learning rate of the round.
        round_num: The round, from 0.
    """

    x: np.ndarray
    y: np.ndarray
    batches: Sequence[np.ndarray]
    lr: float
    round_num: int

    def gradient(self, weights: Weights, indices=None) -> Weights:
        """Mean gradient on the examples at `indices`, by default on all."""
        chosen = slice(None) if indices is None else indices
        if len(self.y[chosen]) == 0:
            return tuple(np.zeros_like(w) for w in weights)
        return problem_lib.gradient(weights, self.x[chosen], self.y[chosen])

    def loss(self, weights: Weights, indices) -> float:
        """Mean loss on the examples at `indices`."""
        return problem_lib.mean_loss(weights, self.x[indices], self.y[indices])


class Result(NamedTuple):
    """A run's history: weights and states after every round, lists as long as the run."""

    weights: list[Weights]
    states: list[Any]


def each(fn: Callable, *weights: Weights) -> Weights:
    """Applies a function to the arrays of one or more weight tuples."""
    return tuple(fn(*arrays) for arrays in zip(*weights, strict=True))


def zeros(weights: Weights) -> Weights:
    return each(np.zeros_like, weights)


def mean(p: np.ndarray, values: Sequence[Weights]) -> Weights:
    """sum_k p_k values_k."""
    return each(lambda *arrays: np.tensordot(p, np.stack(arrays), 1), *values)


def run(
    problem: problem_lib.Problem,
    batch_orders: problem_lib.BatchOrders,
    cohorts: Sequence[Sequence[int]],
    one_round: Callable,
    state: Any,
    *,
    client_lr: float | Callable[[int], float],
    weighting: str = "examples",
    dropped: Set[tuple[int, int]] = frozenset(),
) -> Result:
    """Runs a method.

    Args:
        problem: Data; training starts at its initial weights.
        batch_orders: See `problem.BatchOrders`.
        cohorts: `cohorts[r]` lists the clients of round r; may be empty.
        one_round: `(x, state, clients, p) -> (x, state)`, with `clients` a list of `Client` and `p`
            their weights, which sum to 1. Not called in a round without a client of any weight:
            such a round leaves weights and state alone.
        state: The server's state except the weights.
        client_lr: Client learning rate, or a schedule of the round number, which starts at 0.
        weighting: "examples" or "uniform".
        dropped: (round, client) pairs whose update is not finite and is left out. So are clients
            without examples.

    Returns:
        Weights and states after every round.
    """
    x = problem.initial_weights
    result = Result([], [])
    for r, cohort in enumerate(cohorts):
        kept = [k for k in cohort if problem_lib.takes_part(problem, r, k, dropped)]
        lr = client_lr(r) if callable(client_lr) else client_lr
        clients = [Client(*problem.clients[k], batch_orders[r][k], lr, r) for k in kept]
        p = np.array([len(c.y) if weighting == "examples" else 1.0 for c in clients], float)
        if p.sum() > 0:
            x, state = one_round(x, state, clients, p / p.sum())
        result.weights.append(x)
        result.states.append(state)
    return result
