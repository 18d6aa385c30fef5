"""Randomness of a run as pure functions of a seed and what it is for.

Nothing here has state, so runtimes agree and a resumed run draws what the uninterrupted run drew.
Seeds are tuples of whole numbers for `numpy.random.SeedSequence`. The second entry names the
purpose and is never 0: `SeedSequence` pads with zeros, so tuples of unequal length stay different
by it alone. Every entry must be below 2**32, or it would take up two words and shift the rest.
"""

import numpy as np

_COHORT, _ORDER, _DROPOUT, _VALIDATION, _EPOCHS, _VISITS = 1, 2, 3, 4, 5, 6


def cohort(seed: int, round_index: int, num_clients: int, size: int) -> np.ndarray:
    """Draws the clients of a round uniformly, without replacement inside the round.

    Args:
      seed: `--client_datasets_random_seed`.
      round_index: Round, from 0.
      num_clients: Number of all training clients.
      size: Number of clients to draw.

    Returns:
      int64 `[size]`, indices of distinct clients in the order in which their updates are summed.
    """
    rng = np.random.default_rng((seed, _COHORT, round_index))
    return rng.choice(num_clients, size, replace=False)


def visits(seed: int, iteration: int, num_clients: int) -> np.ndarray:
    """Draws in which order a stage that visits every client once does so.

    Args:
      seed: `--client_datasets_random_seed`.
      iteration: Which time it does, from 0.
      num_clients: Number of all training clients.

    Returns:
      int64 `[num_clients]`, all clients.
    """
    return np.random.default_rng((seed, _VISITS, iteration)).permutation(num_clients)


def order_seed(seed: int, round_index: int, client: int) -> tuple[int, ...]:
    """Returns the seed of the order of a client's examples in a round; the epoch is added to it."""
    return (seed, _ORDER, round_index, client)


def dropout_seed(seed: int, round_index: int, client: int) -> tuple[int, ...]:
    """Returns the seed of all that is random in a client's work in a round."""
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
      size: How many to take; all, in their own order, if there are no more than that.

    Returns:
      int64 `[min(size, num_examples)]`, ascending.
    """
    if size >= num_examples:
        return np.arange(num_examples)
    rng = np.random.default_rng((seed, _VALIDATION))
    return np.sort(rng.permutation(num_examples)[:size])
