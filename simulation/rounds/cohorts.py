"""What a round's clients get: who is drawn, and their examples in batches."""

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np

import tff_algos
from simulation.rounds import randomness
from tasks.task import Examples, FederatedData
from tff_algos.registry import RoundPlan


def cohort_data(
    train: FederatedData,
    plan: RoundPlan,
    settings: Mapping[str, Any],
    round_index: int,
) -> list["tff_algos.ClientData"]:
    """Draws the clients of a round and batches their examples, as a pure function.

    Args:
      train: Clients' training examples.
      plan: What the method asks for in this round.
      settings: The run's settings (`simulation.experiment_flags.RUN_HPARAMS`).
      round_index: Round, from 0.

    Returns:
      The data of each client of the cohort, see `tff_algos.batch_cohort`.
    """
    everyone = np.arange(len(train.client_ids))
    limit = settings["max_elements_per_client"]
    if plan.cohort == "pooled":
        return batched([_pooled(train, limit)], plan, settings, round_index, [0])
    drawn = cohort(len(everyone), plan, settings, round_index)
    taking_part = everyone if plan.losses == "all" else drawn
    participates = np.isin(taking_part, drawn)
    clients = taking_part.tolist()
    examples = [training_examples(train, limit, client) for client in clients]
    return batched(examples, plan, settings, round_index, clients, participates.tolist())


def cohort(
    num_clients: int, plan: RoundPlan, settings: Mapping[str, Any], round_index: int
) -> np.ndarray:
    """Returns the clients whose examples a round trains on, int64, in the order of their sums.

    Args:
      num_clients: Number of all training clients.
      plan: What the method asks for in this round.
      settings: The run's settings.
      round_index: Round, from 0.
    """
    if plan.cohort in ("all", "pooled"):
        return np.arange(num_clients)
    return randomness.cohort(
        settings["client_datasets_random_seed"],
        round_index,
        num_clients,
        settings["clients_per_round"],
    )


def training_examples(train: FederatedData, max_elements: int | None, client: int) -> Examples:
    """Returns the examples that a client trains on, the first `max_elements` if that is set."""
    examples = train.examples(client)
    return Examples(examples.x[:max_elements], examples.y[:max_elements])


@functools.lru_cache(maxsize=1)
def _pooled(train: FederatedData, max_elements: int | None) -> Examples:
    """Returns all clients' training examples together, kept from round to round."""
    everyone = [training_examples(train, max_elements, k) for k in range(len(train.client_ids))]
    return Examples(*(np.concatenate(parts) for parts in zip(*everyone, strict=True)))


def batched(
    examples: Sequence[Examples],
    plan: RoundPlan,
    settings: Mapping[str, Any],
    round_index: int,
    clients: Sequence[int],
    participates: Sequence[bool] | None = None,
) -> list["tff_algos.ClientData"]:
    """Batches clients' examples for a round, as a pure function.

    Args:
      examples: The examples of each.
      plan: What the method asks for in this round.
      settings: The run's settings.
      round_index: Round, from 0.
      clients: Place of each client among all training clients.
      participates: Whether each client trains, and is not only asked for its loss; all do if that
        is `None`.

    Returns:
      The data of each client, see `tff_algos.batch_cohort`.
    """
    seed = settings["seed"]
    if participates is None:
        participates = [True] * len(clients)

    def epochs(client, trains):
        if not trains:
            return 1
        if settings["client_epochs_distribution"] == "uniform_1_3":
            return randomness.epochs(seed, round_index, client, 1, 3)
        return settings["client_epochs_per_round"]

    # Rounds that share a series of epochs share what their orders are drawn from.
    order_of = round_index if plan.first_step is None else 0
    return tff_algos.batch_cohort(
        examples,
        batch_size=settings["client_batch_size"],
        epochs=list(map(epochs, clients, participates)),
        steps=plan.local_steps,
        first_step=plan.first_step or 0,
        full_batch=plan.batches == "full_batch",
        order_seeds=[randomness.order_seed(seed, order_of, client) for client in clients],
        dropout_seeds=[randomness.dropout_seed(seed, round_index, client) for client in clients],
        indices=clients,
        participates=participates,
    )


class Ahead:
    """Makes what each round takes while the round before is under way, in a thread of its own.

    Used as a context manager; called with the rounds in order, it returns what was made for each.
    """

    def __init__(self, make: Callable[[int], Any], total_rounds: int):
        """Initialises the maker.

        Args:
          make: Round, from 0 → what it takes; must not depend on the rounds before.
          total_rounds: Nothing is made for this round and later ones before it is asked for.
        """
        self._make, self._total_rounds = make, total_rounds
        self._pool = futures.ThreadPoolExecutor(1, "next-round")
        self._following = None, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pool.shutdown(cancel_futures=True)

    def __call__(self, round_index: int) -> Any:
        """Returns what a round takes, and begins with the next one."""
        known, made = self._following
        if known != round_index:
            made = self._pool.submit(self._make, round_index)
        following = round_index + 1
        ready = following < self._total_rounds
        self._following = (
            (following, self._pool.submit(self._make, following)) if ready else (None, None)
        )
        return made.result()
