"""Points of a search space: the whole product of lists, or a quasi-random sample of ranges.

A sample is a Sobol sequence, shifted by a random vector modulo 1: Cranley, Patterson:
"Randomization of Number Theoretic Methods for Multiple Integration", SIAM Journal on Numerical
Analysis, 1976. The first coordinates of the sequence and of the shift do not depend on the number
of coordinates. So two rows that share their first settings get the same values for these settings,
point by point.
"""

import itertools
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_suite.hparams import Value

# A flag's values, or {"log": [low, high]} or {"linear": [low, high]}.
Space = Mapping[str, Sequence[Any] | Mapping[str, Sequence[float]]]

_SCALES = ("log", "linear")
_DIGITS = 4


def fault(space: Space, samples: int | None) -> str | None:
    """Returns the fault of a search space, as the end of a sentence; `None` if it is valid."""
    for flag, values in space.items():
        if not isinstance(values, Mapping):
            if not isinstance(values, list) or not values:
                return f"{flag} must be a list of values, or a range such as {{log = [0.001, 1]}}"
            for value in values:
                if isinstance(value, float) and not math.isfinite(value):
                    return f"{flag} has {value}; its values must be finite"
                if any(str(other) == str(value) and other != value for other in values):
                    return f"{flag} has {value} as a number and as a text; leave one out"
            continue
        if samples is None:
            return f"{flag} is a range, so samples must say how many points to draw"
        (scale, ends), *more = values.items() or [("", ())]
        if more or scale not in _SCALES:
            return f"{flag} must be {{log = [low, high]}} or {{linear = [low, high]}}"
        numbers = isinstance(ends, list) and len(ends) == 2 and all(map(_is_number, ends))
        if not numbers or not ends[0] < ends[1]:
            return f"{flag} must have two ends, the lower one first"
        if scale == "log" and ends[0] <= 0:
            return f"{flag} must begin above 0 on a log scale"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def of_space(space: Space, samples: int | None = None, seed: int = 0) -> list[dict[str, Any]]:
    """Returns the points to try.

    Args:
      space: Flag → values or range. An empty space has one empty point.
      samples: Number of points to draw; `None` for all combinations of the lists.
      seed: Seed of the shift.

    Returns:
      Flag → value of each point, none twice; numbers of a range have four digits.

    Raises:
      ValueError: If the space is faulty, see `fault`.
    """
    wrong = fault(space, samples)
    if wrong:
        raise ValueError(wrong)
    if samples is None or not space:
        return _once(dict(zip(space, p, strict=True)) for p in itertools.product(*space.values()))
    # SciPy is slow to import, and not needed for a whole grid.
    from scipy.stats import qmc

    with warnings.catch_warnings():
        # It warns about numbers of points that are not powers of two.
        warnings.simplefilter("ignore", UserWarning)
        unit = qmc.Sobol(len(space), scramble=False).random(samples)
    unit = (unit + np.random.default_rng(seed).random(len(space))) % 1.0
    return _once(
        {flag: _at(values, u) for (flag, values), u in zip(space.items(), row, strict=True)}
        for row in unit
    )


def _once(points: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns points in their order, each once: a list's values may be drawn several times."""
    return list({tuple(point.items()): point for point in points}.values())


def _at(values: Any, place: float) -> Value:
    """Returns the value at a position in [0, 1) of a list or range."""
    if not isinstance(values, Mapping):
        return values[int(place * len(values))]
    ((scale, (low, high)),) = values.items()
    if scale == "log":
        found = math.exp(math.log(low) + place * (math.log(high) - math.log(low)))
    else:
        found = low + place * (high - low)
    return float(f"{found:.{_DIGITS}g}")
