"""A small multi-class problem with ragged clients, with its loss and gradient in closed form.

Softmax regression on F = 3 features and C = 3 classes. Weights are the tuple (kernel [F, C],
bias [C]), the order in which a Keras dense layer lists them. Everything is NumPy float64, but the
data and the initial weights are values that float32 holds exactly, so that a float32 program
starts from the same numbers.
"""

import math
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

NUM_FEATURES = 3
NUM_CLASSES = 3
NUM_EXAMPLES = (1, 3, 4, 7, 10)

Weights = tuple[np.ndarray, ...]
# [round][client] -> the index arrays of that client's minibatches, all epochs one after the other.
BatchOrders = Sequence[Mapping[int, Sequence[np.ndarray]]]


class Problem(NamedTuple):
    """The clients' data and where training starts.

    Attributes:
        clients: Per client the pair (x [n, F] float64, y [n] int64); n differs by client.
        initial_weights: (kernel [F, C], bias [C]), float64.
    """

    clients: list[tuple[np.ndarray, np.ndarray]]
    initial_weights: Weights


def make_problem(seed: int = 0, num_examples: Sequence[int] = NUM_EXAMPLES) -> Problem:
    """Draws clients whose features are shifted differently, so that local training drifts.

    Args:
        seed: Determines everything drawn.
        num_examples: n_k of every client; 0 is allowed.

    Returns:
        The problem; client k has `num_examples[k]` examples.
    """
    rng = np.random.default_rng(seed)
    labeller = rng.normal(size=(NUM_FEATURES, NUM_CLASSES))
    clients = []
    for n in num_examples:
        shift = rng.normal(size=NUM_FEATURES)
        x = _as_float32(rng.normal(size=(n, NUM_FEATURES)) + shift)
        noise = rng.gumbel(size=(n, NUM_CLASSES))
        y = np.argmax(x @ labeller + noise, axis=1).astype(np.int64)
        clients.append((x, y))
    kernel = _as_float32(0.5 * rng.normal(size=(NUM_FEATURES, NUM_CLASSES)))
    bias = _as_float32(0.5 * rng.normal(size=NUM_CLASSES))
    return Problem(clients, (kernel, bias))


def takes_part(problem: Problem, round_num: int, client: int, dropped: Set) -> bool:
    """Whether a client counts in a round: it holds an example and its update was not dropped."""
    return len(problem.clients[client][1]) > 0 and (round_num, client) not in dropped


def mean_loss(weights: Weights, x: np.ndarray, y: np.ndarray) -> float:
    """Mean cross-entropy (natural logarithm) of x [n, F], y [n]; n >= 1."""
    return float(-np.mean(_log_probabilities(weights, x)[np.arange(len(y)), y]))


def gradient(weights: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    """Gradient of `mean_loss` on x [n, F], y [n]; n >= 1.

    With P = softmax(x W + b) and Y the one-hot labels, both [n, C]:
    dL/dW = x^T (P - Y) / n and dL/db = sum_i (P - Y)_i / n.

    Returns:
        (dL/dW [F, C], dL/db [C]).
    """
    residual = np.exp(_log_probabilities(weights, x)) - np.eye(NUM_CLASSES)[y]
    return x.T @ residual / len(y), residual.sum(axis=0) / len(y)


def accuracy(weights: Weights, x: np.ndarray, y: np.ndarray) -> float:
    """Fraction of x [n, F] whose largest logit is at y [n]; n >= 1."""
    return float(np.mean(np.argmax(_logits(weights, x), axis=1) == y))


def batches(n: int, batch_size: int) -> list[np.ndarray]:
    """The ceil(n / batch_size) contiguous batches of 0..n-1 as index arrays, the last partial."""
    steps = math.ceil(n / batch_size)
    return [np.arange(i * batch_size, min(n, (i + 1) * batch_size)) for i in range(steps)]


def in_order(
    problem: Problem, cohorts: Sequence[Sequence[int]], batch_size: int, epochs: int = 1
) -> BatchOrders:
    """The batch orders of a run that never shuffles: every epoch is `batches(n_k, batch_size)`."""
    return [
        {k: batches(len(problem.clients[k][1]), batch_size) * epochs for k in cohort}
        for cohort in cohorts
    ]


def _as_float32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(np.float64)


def _logits(weights: Weights, x: np.ndarray) -> np.ndarray:
    kernel, bias = weights
    return x @ kernel + bias


def _log_probabilities(weights: Weights, x: np.ndarray) -> np.ndarray:
    logits = _logits(weights, x)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
