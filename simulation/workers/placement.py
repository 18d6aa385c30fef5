"""Distributes chunks over workers by predicted time; results do not depend on it."""

import itertools
from collections.abc import Sequence

import numpy as np

# Candidate exponents for a client's time as a power of its local steps; rounds show which fits.
_POWERS = np.array([0.0, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1])
_FORGETTING = 0.98


class Prediction:
    """Predicts the seconds of a chunk as a Σ m_k^b, with m_k local steps of client k.

    As in Pollen's model (arXiv 2306.17453), this is log-linear in a client's batches. b is chosen
    from a few values, and a by least squares. Older measurements have less weight.

    Attributes:
      known: Number of measurements.
    """

    def __init__(self):
        """Initialises without measurements; time is then proportional to steps."""
        self._xx, self._xt = np.zeros(len(_POWERS)), np.zeros(len(_POWERS))
        self._tt, self.known = 0.0, 0

    def learn(self, steps: np.ndarray, seconds: float) -> None:
        """Adds a measurement of a chunk.

        Args:
          steps: Local steps of its clients, `[n]`.
          seconds: Its duration on a worker of speed 1.
        """
        x = self._sums(steps)
        self._xx = _FORGETTING * self._xx + x * x
        self._xt = _FORGETTING * self._xt + x * seconds
        self._tt = _FORGETTING * self._tt + seconds * seconds
        self.known += 1

    def seconds(self, steps: np.ndarray) -> float:
        """Returns a chunk's predicted seconds; in arbitrary units before the first measurement."""
        x = self._sums(steps)
        if not self._tt:
            return float(x[list(_POWERS).index(1.0)])
        errors = self._tt - self._xt**2 / self._xx
        best = int(np.argmin(errors))
        return float(x[best] * self._xt[best] / self._xx[best])

    @staticmethod
    def _sums(steps):
        return (np.maximum(steps, 1)[:, None] ** _POWERS).sum(0)


def shares(costs: Sequence[float], speeds: Sequence[float]) -> list[range]:
    """Assigns consecutive chunks to each worker such that all finish at the same time.

    Consecutive chunks can be combined before their aggregates are sent.

    Args:
      costs: Predicted seconds of each chunk on a worker of speed 1.
      speeds: Speed of each worker.

    Returns:
      Positions of each worker's chunks; together they cover all chunks.
    """
    ends = np.cumsum(costs)
    total = ends[-1] if len(ends) else 0.0
    goals = np.cumsum(speeds) / np.sum(speeds) * total
    # A chunk belongs to the worker in whose share of the total cost its middle lies.
    middles = ends - np.asarray(costs) / 2
    stops = np.searchsorted(middles, goals[:-1], side="right")
    bounds = [0, *np.maximum.accumulate(stops), len(costs)]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]
