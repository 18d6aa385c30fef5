"""Randomness of a run as pure functions of a seed and a purpose.

These functions have no state. So runtimes agree, and a resumed run draws the same numbers as an
uninterrupted one. Seeds are tuples of integers for `numpy.random.SeedSequence`. The second entry
identifies the purpose and is never 0, since `SeedSequence` pads with zeros: it distinguishes tuples
of unequal length. Every entry must be below 2**32, since a larger one would occupy two words and
shift the rest.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from tff_algos import random

_COHORT, _ORDER, _DROPOUT, _VALIDATION, _EPOCHS, _VISITS = 1, 2, 3, 4, 5, 6
_HELD_OUT_CLIENTS, _HELD_OUT_ROWS = 7, 8


def cohort(seed: int, round_index: int, num_clients: int, size: int) -> np.ndarray:
    """Draws the clients of a round uniformly, without replacement inside the round.

    Args:
      seed: `--client_datasets_random_seed`.
      round_index: Round, from 0.
      num_clients: Number of all training clients.
      size: Number of clients to draw.

    Returns:
      int64 `[size]`, indices of distinct clients, in the order of summation.
    """
    rng = np.random.default_rng((seed, _COHORT, round_index))
    return rng.choice(num_clients, size, replace=False)


def visits(seed: int, iteration: int, num_clients: int) -> np.ndarray:
    """Draws the order of clients for a stage that visits every client once.

    Args:
      seed: `--client_datasets_random_seed`.
      iteration: Number of the stage's pass over all clients, from 0.
      num_clients: Number of all training clients.

    Returns:
      int64 `[num_clients]`, all clients.
    """
    return np.random.default_rng((seed, _VISITS, iteration)).permutation(num_clients)


def order_seed(seed: int, round_index: int, client: int) -> tuple[int, ...]:
    """Returns the seed of the order of a client's examples in a round; append the epoch to it."""
    return (seed, _ORDER, round_index, client)


def dropout_seed(seed: int, round_index: int, client: int) -> tuple[int, ...]:
    """Returns the seed of dropout and all other randomness in a client's work in a round."""
    return (seed, _DROPOUT, round_index, client)


def epochs(seed: int, round_index: int, client: int, least: int, most: int) -> int:
    """Draws a client's number of local epochs in a round uniformly from `least` to `most`."""
    rng = np.random.default_rng((seed, _EPOCHS, round_index, client))
    return int(rng.integers(least, most, endpoint=True))


def validation_rows(seed: int, num_examples: int, size: int) -> np.ndarray:
    """Draws which central test examples are evaluated during the run.

    Args:
      seed: `--seed`.
      num_examples: Number of all central test examples.
      size: Number of examples to draw; if there are not more, all are taken in their order.

    Returns:
      int64 `[min(size, num_examples)]`, ascending.
    """
    if size >= num_examples:
        return np.arange(num_examples)
    rng = np.random.default_rng((seed, _VALIDATION))
    return np.sort(rng.permutation(num_examples)[:size])


def held_out_clients(seed: int, ids: Sequence[str], number: int) -> np.ndarray:
    """Draws clients that are held out of training.

    Each client's number is drawn from the seed and its id. The clients with the smallest numbers
    are held out. So a client's number does not depend on the order or the number of clients.

    Args:
      seed: `--seed`.
      ids: Ids of all clients.
      number: Number of clients to hold out.

    Returns:
      int64 `[number]`, positions in `ids`, ascending.
    """
    words = random.seed_words([(seed, _HELD_OUT_CLIENTS, *_words(name)) for name in ids], 2)
    draws = words[:, 0].astype(np.uint64) << np.uint64(32) | words[:, 1]
    return np.sort(np.argsort(draws, kind="stable")[:number])


def held_out_rows(seed: int, client_id: str, num_examples: int, number: int) -> np.ndarray:
    """Draws which of a client's examples are held out of training, by the seed and its id.

    Args:
      seed: `--seed`.
      client_id: Id of the client.
      num_examples: Number of its examples.
      number: Number of examples to hold out.

    Returns:
      int64 `[number]`, ascending.
    """
    rng = np.random.default_rng((seed, _HELD_OUT_ROWS, *_words(client_id)))
    return np.sort(rng.permutation(num_examples)[:number])


def _words(client_id: str) -> list[int]:
    digest = hashlib.sha256(client_id.encode()).digest()
    return [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
