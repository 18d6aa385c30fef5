"""Clients' losses on their own training examples: improvement in a round, tracked clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from simulation import run_checks, run_hparams
from simulation.measures.evaluation import Evaluator
from tasks.task import Examples, FederatedData
from tff_suite.hparams import HparamError

# With clients' positions, this is the name of their training examples for other workers.
NAME = "training losses"


class TrainingLosses:
    """F_k(x), the mean loss of weights x on client k's whole local training set, dropout off."""

    def __init__(self, evaluator: Evaluator, train: FederatedData):
        """Initialises the losses.

        Args:
          evaluator: Evaluates the model.
          train: The examples that clients train on.
        """
        self._evaluator = evaluator
        self._train = train

    def __call__(self, weights: Sequence[Any], clients: np.ndarray) -> np.ndarray:
        """Evaluates several weights on the same clients, whose examples are read once.

        Args:
          weights: Trainable weights of the model, each a sequence of arrays.
          clients: Indices of clients, int `[n]`.

        Returns:
          float64 `[len(weights), n]`; NaN for clients without examples.
        """
        places = tuple(map(int, clients))
        tests = self._evaluator.prepare(Part(self._train, places), name=(NAME, places))
        return np.stack([self._evaluator(w, tests).by_client()["loss"] for w in weights])

    def improved_fraction(self, before: Any, after: Any, clients: np.ndarray) -> float:
        """Returns ρ_t: the share of clients with F_k(after) <= F_k(before).

        AdaFed (arXiv 2401.04993), equation 31. NaN losses do not count as improvement.

        Args:
          before: The weights before the round, a sequence of arrays.
          after: The weights after it.
          clients: Indices of the round's clients, int `[n]`; at least one of them has examples.
        """
        losses = self([before, after], clients)
        held = np.asarray(self._train.sizes)[clients] > 0
        return float(np.mean(losses[1, held] <= losses[0, held]))

    def chosen(self, which: str, initial: Any) -> np.ndarray:
        """Returns the indices of the clients that `--track_clients` names, int `[n]`.

        Args:
          which: Ids separated by commas; or `extremes`, the two clients with the lowest and the
            highest loss for the initial weights.
          initial: The initial weights.

        Raises:
          HparamError: If a client does not exist.
        """
        ids = list(self._train.client_ids)
        if which == run_hparams.EXTREMES:
            losses = self([initial], np.arange(len(ids)))[0]
            if np.isnan(losses).all():
                raise HparamError(
                    "--track_clients=extremes finds no client, since all losses of the initial "
                    "model are NaN. Name clients by their ids."
                )
            return np.array([np.nanargmin(losses), np.nanargmax(losses)])
        run_checks.check_tracked(which, ids)
        return np.array([ids.index(name) for name in run_checks.tracked(which)])


class Part:
    """Some clients' training examples, as `FederatedData`."""

    def __init__(self, train: FederatedData, clients: Sequence[int]):
        """Initialises for the clients at some positions."""
        self._train, self._clients = train, clients
        self.client_ids = [train.client_ids[k] for k in clients]
        self.sizes = np.asarray(train.sizes, np.int64)[list(clients)]

    def examples(self, index: int) -> Examples:
        """Returns the examples of the client at `index`."""
        return self._train.examples(int(self._clients[index]))
