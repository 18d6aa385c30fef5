"""Fairness between clients: statistics of one metric over clients.

`a_k` is the metric on client k's own test examples, `n_k` their number, `t_k` the number of its
training examples. All are plain functions of float64 arrays. Metrics that are fractions stay
fractions: multiply by 100 for percentage points.

The suffix of a name gives the weights of clients:

  `_u`  equal; a tail is a share of the clients
  `_w`  by test examples n_k; a tail is a share of all test examples
  `_t`  by training examples t_k; a tail is a share of the clients, averaged with these weights. The
        released code of AdaFedAdam (arXiv 2301.09357) and its tables use these: average, standard
        deviation and `worst30_t`, the weighted mean of the lowest 30 % of clients.
"""

import collections
from collections.abc import Mapping

import numpy as np

# Shares of clients whose worst and best the five papers report.
TAILS = (0.05, 0.10, 0.30)


def average(values: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Returns the mean of `values` `[N]`, with `weights` `[N]` the weighted mean."""
    return float(np.average(values, weights=weights))


def std(values: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Returns the population standard deviation (ddof 0), weighted if `weights` are given."""
    mean = np.average(values, weights=weights)
    return float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))


def tail(
    values: np.ndarray, share: float, weights: np.ndarray | None = None, *, highest: bool = False
) -> float:
    """Returns the mean of `values` over the lowest (or highest) `share` of clients.

    Without weights these are `max(1, round(share * N))` clients. With weights they are the clients
    that together have `share` of the total weight. The client at the border counts with the part of
    its weight that completes the share.

    Args:
      values: float `[N]`.
      share: Share of the clients or of the weight, in (0, 1].
      weights: Non-negative `[N]`, not all zero, or `None`.
      highest: Whether to take the highest instead of the lowest.
    """
    order = _ranked(values, highest)
    ranked = np.asarray(values, np.float64)[order]
    if weights is None:
        return float(np.mean(ranked[: _number(share, ranked)]))
    mass = np.asarray(weights, np.float64)[order]
    mass = mass / mass.sum()
    before = np.cumsum(mass) - mass
    taken = np.clip(share - before, 0.0, mass)
    return float(np.sum(taken * ranked) / np.sum(taken))


def tail_by_number(
    values: np.ndarray, share: float, weights: np.ndarray, *, highest: bool = False
) -> float:
    """Returns the weighted mean of `values` over the `max(1, round(share * N))` lowest clients.

    Args:
      values: float `[N]`.
      share: Share of the clients, in (0, 1].
      weights: Non-negative `[N]`; the result is NaN if all weights in the tail are zero.
      highest: Whether to take the highest instead of the lowest.
    """
    chosen = _ranked(values, highest)[: _number(share, values)]
    if not np.any(weights[chosen]):
        return float("nan")
    return average(np.asarray(values, np.float64)[chosen], weights[chosen])


def _ranked(values, highest):
    order = np.argsort(values, kind="stable")
    return order[::-1] if highest else order


def _number(share, values):
    return max(1, round(share * len(values)))


def relative_std(errors: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Returns std / mean of clients' errors; NaN if the mean is 0."""
    mean = average(errors, weights)
    return std(errors, weights) / mean if mean else float("nan")


def angle(values: np.ndarray) -> float:
    """Returns the angle in degrees between `values` `[N]` and the ones vector; NaN for zeros."""
    norm = np.linalg.norm(values)
    if not norm:
        return float("nan")
    cosine = np.sum(values) / (np.sqrt(len(values)) * norm)
    return float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))))


def kl_from_uniform(values: np.ndarray) -> float:
    """Returns the KL divergence (nats) of `values / sum` from the uniform distribution.

    NaN if the sum is 0 or a value is negative, since there is no such distribution then.
    """
    total = np.sum(values)
    if not total > 0 or np.min(values) < 0:
        return float("nan")
    share = np.asarray(values, np.float64) / total
    positive = share[share > 0]
    return float(np.sum(positive * np.log(len(share) * positive)))


def summarize(
    values: np.ndarray,
    sizes: np.ndarray,
    *,
    train_sizes: np.ndarray | None = None,
    higher_is_better: bool = True,
) -> Mapping[str, float]:
    """Computes all statistics of one metric over clients.

    Args:
      values: The metric of each client on its own test examples, `[N]`.
      sizes: Number of each client's test examples, `[N]`. Clients with none are left out.
      train_sizes: Number of each client's training examples, `[N]`; `None` if other clients train.
      higher_is_better: Whether higher values are better. Accordingly, the worst clients are the
        lowest or the highest, and the error is `1 - values` or `values` itself.

    Returns:
      Name → value: `avg_u` and `avg_w` (equal weight for each client, for each example),
      `std_u`, `std_w`, `worst05_u` … `best30_w` for each of `TAILS`, `error_rsd_u`, `error_rsd_w`,
      `angle`, `kl`; with `train_sizes` also `avg_t`, `std_t`, `worst05_t` … `best30_t`,
      `error_rsd_t`. All NaN if no client has test examples or a client's metric is not finite.
    """
    tested = np.asarray(sizes) > 0
    a = np.asarray(values, np.float64)[tested]
    n = np.asarray(sizes, np.float64)[tested]
    t = None if train_sizes is None else np.asarray(train_sizes, np.float64)[tested]
    if not len(a) or not np.all(np.isfinite(a)):
        a, n, t = np.full(1, np.nan), np.ones(1), None if t is None else np.ones(1)
    errors = 1.0 - a if higher_is_better else a
    weightings = (("u", None), ("w", n))
    statistics = collections.OrderedDict()
    for suffix, weights in weightings:
        statistics[f"avg_{suffix}"] = average(a, weights)
    for suffix, weights in weightings:
        statistics[f"std_{suffix}"] = std(a, weights)
    for share in TAILS:
        for suffix, weights in weightings:
            name = f"{round(100 * share):02d}_{suffix}"
            worst = tail(a, share, weights, highest=not higher_is_better)
            best = tail(a, share, weights, highest=higher_is_better)
            statistics[f"worst{name}"], statistics[f"best{name}"] = worst, best
    for suffix, weights in weightings:
        statistics[f"error_rsd_{suffix}"] = relative_std(errors, weights)
    statistics["angle"] = angle(a)
    statistics["kl"] = kl_from_uniform(a)
    if t is not None:
        statistics.update(_by_training_size(a, errors, t, higher_is_better))
    return statistics


def _by_training_size(a, errors, t, higher_is_better):
    if not np.any(t):
        t = np.full(len(t), np.nan)
    statistics = collections.OrderedDict(avg_t=average(a, t), std_t=std(a, t))
    for share in TAILS:
        for kind, highest in (("worst", not higher_is_better), ("best", higher_is_better)):
            name = f"{kind}{round(100 * share):02d}_t"
            statistics[name] = tail_by_number(a, share, t, highest=highest)
    statistics["error_rsd_t"] = relative_std(errors, t)
    return statistics
