"""What a test of a method needs to know of it."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Case(NamedTuple):
    """Settings of a method and what they must give.

    Attributes:
      settings: For `tff_algos.build`.
      oracle: `(problem, batch_orders, cohorts, dropped) -> weights after every round`, in float64.
    """

    settings: dict[str, Any]
    oracle: Callable
