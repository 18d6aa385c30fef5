"""Two groups of numbers separated by a Gaussian mixture in one dimension."""

from __future__ import annotations

import warnings

import numpy as np


def larger_component(values: np.ndarray) -> np.ndarray:
    """Returns which numbers belong to the larger-mean component of a two-component mixture.

    The mixture is scikit-learn's, fitted by EM. It starts from the split of the sorted numbers with
    the least sum of squares, so nothing is drawn at random.

    Args:
      values: Finite numbers, float64 `[n]`.

    Returns:
      bool `[n]`; all `False` if all numbers are equal.
    """
    values = np.asarray(values, np.float64)
    if len(values) < 2 or values.min() == values.max():
        return np.zeros(len(values), bool)
    from sklearn import exceptions, mixture  # 1 s, which only methods that use it should pay for.

    ordered = np.sort(values)
    number = np.arange(1, len(ordered))
    # Splitting after i numbers leaves the total less i mean_low² + (n - i) mean_high².
    low = np.cumsum(ordered)[:-1]
    high = ordered.sum() - low
    cut = 1 + int(np.argmax(low**2 / number + high**2 / (len(ordered) - number)))
    parts = (ordered[:cut], ordered[cut:])
    fitted = mixture.GaussianMixture(
        n_components=2,
        weights_init=[len(p) / len(ordered) for p in parts],
        means_init=[[p.mean()] for p in parts],
        precisions_init=[[[1.0 / (p.var() + _FLOOR)]] for p in parts],
        reg_covar=_FLOOR,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        component = fitted.fit_predict(values[:, None])
    return component == np.argmax(fitted.means_[:, 0])


# Added to variances, scikit-learn's own default.
_FLOOR = 1e-6
