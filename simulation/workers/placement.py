"""Who does which chunks: by predicted time, corrected as rounds go; no number depends on it."""

import itertools
from collections.abc import Sequence

import numpy as np

# A client's time as a power of its local steps; which power fits is seen as rounds go.
_POWERS = np.array([0.0, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1])
_FORGETTING = 0.98


class Prediction:
    """Seconds of a chunk: a Σ m_k^b over its clients' numbers of local steps m_k.

    That is log-linear in a client's batches, as Pollen's model is (arXiv 2306.17453); b is taken
    from a few values, a by least squares, and what is long ago counts less.

    Attributes:
      known: How many measurements it rests on.
    """

    def __init__(self):
        """Initialises without measurements: time goes with steps."""
        self._xx, self._xt = np.zeros(len(_POWERS)), np.zeros(len(_POWERS))
        self._tt, self.known = 0.0, 0

    def learn(self, steps: np.ndarray, seconds: float) -> None:
        """Takes what a chunk took on a worker of ordinary speed.

        Args:
          steps: Local steps of its clients, `[n]`.
          seconds: What it took.
        """
        x = self._sums(steps)
        self._xx = _FORGETTING * self._xx + x * x
        self._xt = _FORGETTING * self._xt + x * seconds
        self._tt = _FORGETTING * self._tt + seconds * seconds
        self.known += 1

    def seconds(self, steps: np.ndarray) -> float:
        """Returns what a chunk will take; in arbitrary units before anything was learnt."""
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
    """Cuts chunks into runs of neighbours, one a worker, so that all are done at the same time.

    Neighbours, since what they give comes together before it is sent.

    Args:
      costs: Predicted seconds of each chunk on a worker of speed 1.
      speeds: Of each worker.

    Returns:
      Places of each worker's chunks; together all of them.
    """
    ends = np.cumsum(costs)
    total = ends[-1] if len(ends) else 0.0
    goals = np.cumsum(speeds) / np.sum(speeds) * total
    # A chunk is whose goal its middle does not reach beyond.
    middles = ends - np.asarray(costs) / 2
    stops = np.searchsorted(middles, goals[:-1], side="right")
    bounds = [0, *np.maximum.accumulate(stops), len(costs)]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]
