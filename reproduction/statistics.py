"""Statistics for a few seeds: paired differences, corrections for many pairs, scores over tasks.

- Differences paired over seeds: Student's t.
- Differences paired over clients: a bootstrap of the mean weighted by test examples. It draws a
  client with its differences on all seeds if these have the same clients, else within each seed.
- Many pairs: Holm, "A simple sequentially rejective multiple test procedure", 1979.
- Several tasks: the interquartile mean and the probability of improvement, as in the package
  rliable. Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
  NeurIPS 2021, arXiv 2108.13264.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

# With fewer seeds, intervals are so wide that they include almost any difference.
SEEDS_FOR_A_CLAIM = 5
LEVEL = 0.95
_DRAWS = 2000
# Differences that differ by less than this share of their mean are equal up to rounding.
_ROUNDING = 1e-9
# Draws in memory at a time: a task may have many thousands of clients.
_BATCH = 100


class Interval(NamedTuple):
    """A mean or other statistic with its 95 % interval; the ends are NaN if it is unknown.

    Attributes:
      mean: The statistic.
      low: Lower end.
      high: Upper end.
    """

    mean: float
    low: float
    high: float


class Pair(NamedTuple):
    """The difference between two methods.

    Attributes:
      one: The first method.
      other: The second method.
      seeds: The seeds compared, which both have.
      difference: `one` minus `other`, paired over seeds, with Student's interval.
      p: Two-sided p-value of the paired t-test; NaN with fewer than two seeds.
      holm: The same after Holm's correction over all pairs.
      wins: Seeds on which `one` is better; a tie counts half. NaN if it is not known whether higher
        values are better.
      clients: The difference paired over clients, see `over_clients`; `None` if unknown.
    """

    one: str
    other: str
    seeds: tuple[int, ...]
    difference: Interval
    p: float
    holm: float
    wins: float
    clients: Interval | None

    @property
    def without_spread(self) -> bool:
        """Whether all seeds have the same difference, up to rounding: then p shows nothing."""
        return is_without_spread(self.difference)


def is_without_spread(difference: Interval) -> bool:
    """Returns whether an interval over seeds has no width, up to rounding; not for one seed."""
    mean, low, high = difference
    return high - low <= _ROUNDING * abs(mean)


def told_of_spread(name: str, alike: Iterable[str]) -> str:
    """Returns a warning about differences without spread.

    Args:
      name: Name of the column.
      alike: The differences, in words.
    """
    return (
        f"The spread over seeds of {name} is 0 for {', '.join(alike)}: all seeds give the same "
        "difference. Trust neither its interval nor its p-value."
    )


def interval(values: npt.ArrayLike) -> Interval:
    """Returns the mean of values and its 95 % interval by Student's t.

    Args:
      values: float `[n]`; all numbers of the result are NaN for `n` = 0.
    """
    numbers = np.asarray(values, float)
    if not len(numbers):
        return Interval(math.nan, math.nan, math.nan)
    if len(numbers) > 1 and np.all(np.isfinite(numbers)) and np.ptp(numbers) == 0:
        # The mean of equal numbers may be another number, and their deviation 1e-16.
        return Interval(*[float(numbers[0])] * 3)
    mean, n, half = float(numbers.mean()), len(numbers), math.nan
    if n > 1:
        half = stats.t.ppf((1 + LEVEL) / 2, n - 1) * numbers.std(ddof=1) / n**0.5
    return Interval(mean, mean - half, mean + half)


def p_value(differences: npt.ArrayLike) -> float:
    """Returns the two-sided p-value of the t-test that the mean of differences is 0.

    Equal differences have no spread: p is then 0, or 1 if all of them are 0.

    Args:
      differences: float `[n]`; NaN is returned for `n` < 2.
    """
    values = np.asarray(differences, float)
    if len(values) < 2 or not np.all(np.isfinite(values)):
        return math.nan
    if np.ptp(values) <= _ROUNDING * abs(values.mean()):
        return float(values[0] == 0)
    return float(stats.ttest_1samp(values, 0.0).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values after Holm's correction, in the given order.

    Args:
      p_values: float `[n]`; a NaN stays NaN and does not count as a test.
    """
    tested = [i for i, p in enumerate(p_values) if p == p]
    corrected, least = [math.nan] * len(p_values), 0.0
    for rank, i in enumerate(sorted(tested, key=lambda i: p_values[i])):
        least = max(least, min(1.0, (len(tested) - rank) * p_values[i]))
        corrected[i] = least
    return corrected


def bootstrap(
    strata: Sequence[np.ndarray], statistic: Callable[[list[np.ndarray]], np.ndarray]
) -> Interval:
    """Returns a statistic and its 95 % interval by a stratified percentile bootstrap.

    Args:
      strata: Arrays `[n_s, ...]`. Rows are drawn with replacement within each array.
      statistic: Function from arrays `[draws, n_s, ...]`, one per stratum, to float `[draws]`.

    Returns:
      The statistic of the data, with the 2.5 and 97.5 percentiles of 2,000 draws. The draws are the
      same in every call.
    """
    generator = np.random.default_rng(0)
    drawn = np.concatenate(
        [
            statistic([s[generator.integers(len(s), size=(_BATCH, len(s)))] for s in strata])
            for _ in range(_DRAWS // _BATCH)
        ]
    )
    low, high = np.percentile(drawn, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Interval(float(statistic([s[None] for s in strata])[0]), float(low), float(high))


def over_clients(
    differences: Sequence[Mapping[str, float]],
    weights: Sequence[Mapping[str, float]] | None = None,
) -> Interval:
    """Returns the weighted mean difference of clients, with a bootstrap interval over clients.

    The mean is over clients by weight, then over seeds; each draw is a ratio of sums. If all seeds
    have the same clients, a drawn client brings its differences on all seeds, since these are not
    independent. Otherwise clients are drawn within each seed.

    Args:
      differences: For each seed client → its paired difference.
      weights: For each seed client → its weight, such as its number of test examples. By default
        all weights are equal.
    """
    if weights is None:
        weights = [dict.fromkeys(some, 1.0) for some in differences]
    # For each seed the weighted differences and the weights, [clients, 1, 2].
    seeds = [
        np.array([[[some[c] * of_seed[c], of_seed[c]]] for c in sorted(some)], float)
        for some, of_seed in zip(differences, weights, strict=True)
    ]
    if all(some.keys() == differences[0].keys() for some in differences):
        seeds = [np.concatenate(seeds, axis=1)]

    def mean(drawn):
        sums = np.concatenate([some.sum(axis=1) for some in drawn], axis=1)
        return np.mean(sums[..., 0] / sums[..., 1], axis=1)

    return bootstrap(seeds, mean)


def compare(
    values: Mapping[str, Mapping[int, float]],
    higher_is_better: bool | None = True,
    clients: Mapping[str, Mapping[int, Mapping[str, float]]] | None = None,
    weights: Mapping[str, Mapping[int, Mapping[str, float]]] | None = None,
) -> list[Pair]:
    """Compares every pair of methods: the later one minus the earlier one.

    Args:
      values: Method → seed → value; values that are not finite are left out.
      higher_is_better: Whether the higher value wins; `None` if unknown.
      clients: Method → seed → client → value, as far as known.
      weights: Method → seed → client → its weight among the clients; equal by default. Two methods
        with other clients or weights get no interval over clients.

    Returns:
      A `Pair` for every two methods that share a seed.
    """
    found = []
    for other, one in itertools.combinations(values, 2):
        seeds = [
            seed
            for seed in values[one]
            if all(math.isfinite(values[m].get(seed, math.nan)) for m in (one, other))
        ]
        if not seeds:
            continue
        change = np.array([values[one][seed] - values[other][seed] for seed in seeds])
        better = change if higher_is_better else -change
        wins = float((better > 0).sum() + 0.5 * (better == 0).sum())
        if higher_is_better is None:
            wins = math.nan
        found.append(
            Pair(
                one,
                other,
                tuple(seeds),
                interval(change),
                p_value(change),
                math.nan,
                wins,
                _over_common_clients(clients or {}, weights, one, other, seeds),
            )
        )
    corrected = holm([pair.p for pair in found])
    return [pair._replace(holm=p) for pair, p in zip(found, corrected, strict=True)]


def _over_common_clients(
    clients: Mapping[str, Mapping[int, Mapping[str, float]]],
    weights: Mapping[str, Mapping[int, Mapping[str, float]]] | None,
    one: str,
    other: str,
    seeds: Iterable[int],
) -> Interval | None:
    """Returns `over_clients` for the clients that two methods share.

    `None` if a seed has no such client, or if clients and weights are not the same for both.
    """
    differences, of_seeds = [], []
    for seed in seeds:
        mine, theirs = (clients.get(method, {}).get(seed, {}) for method in (one, other))
        both = {c: mine[c] - theirs[c] for c in mine if c in theirs}
        both = {c: difference for c, difference in both.items() if math.isfinite(difference)}
        if not both:
            return None
        differences.append(both)
        if weights is not None:
            if weights[one][seed] != weights[other][seed]:
                return None
            of_seeds.append(weights[one][seed])
    return over_clients(differences, of_seeds or None)


def interquartile_mean(scores: np.ndarray) -> Interval:
    """Returns the mean of the middle half of a method's scores, with a bootstrap interval.

    Args:
      scores: float `[seeds, tasks]`. A quarter of all scores, rounded down, is left out at either
        end. The bootstrap draws seeds within each task.
    """
    return bootstrap(
        list(np.asarray(scores, float).T),
        lambda drawn: stats.trim_mean(np.concatenate(drawn, axis=1), 0.25, axis=1),
    )


def probability_of_improvement(one: np.ndarray, other: np.ndarray) -> Interval:
    """Returns the probability that a run of one method beats one of another on a random task.

    This is the mean over tasks of the Mann-Whitney U statistic divided by the number of pairs. Ties
    count half.

    Args:
      one: Scores, of which higher ones are better, float `[seeds, tasks]`.
      other: Scores of the other method, float `[its seeds, tasks]`.
    """
    one, other = np.asarray(one, float), np.asarray(other, float)

    def statistic(drawn):
        mine, theirs = drawn[: one.shape[1]], drawn[one.shape[1] :]
        pairs = (m[:, :, None] - t[:, None, :] for m, t in zip(mine, theirs, strict=True))
        of_task = [np.mean(0.5 * (np.sign(pair) + 1), axis=(1, 2)) for pair in pairs]
        return np.mean(of_task, axis=0)

    return bootstrap([*one.T, *other.T], statistic)


def told_of_seeds(seeds: int) -> str:
    """Returns a sentence on what a number of seeds can show."""
    if seeds < 2:
        return (
            f"One seed has no interval and cannot decide a comparison; use at least "
            f"{SEEDS_FOR_A_CLAIM}."
        )
    wide = stats.t.ppf((1 + LEVEL) / 2, seeds - 1)
    told = f"With {seeds} seeds a 95 % interval is ± {wide:.1f} standard errors"
    if seeds < SEEDS_FOR_A_CLAIM:
        return f"{told}: use at least {SEEDS_FOR_A_CLAIM} seeds for a claim."
    return f"{told}."
