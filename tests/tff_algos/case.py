"""What a test of a method needs to know of it."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Case(NamedTuple):
    """Settings of a method and what they must give.

    Attributes:
      settings: For `tff_algos.build`.
      oracle: `(problem, batch_orders, cohorts, dropped) -> weights after every round`, in float64.
      kept: The same → `{client: what it keeps}` after the last round, a structure of arrays like
        the method's; `None` where clients keep nothing, or nothing that the weights do not show.
    """

    settings: dict[str, Any]
    oracle: Callable
    kept: Callable | None = None


# Mutations of the common round, `tff_algos/averaging.py`: (text, replacement).
WEIGHT = ("weight=client.zero_unless(counts, weight)", "weight=tf.ones([])")
ROUND = ("next_state(state, after, total_weight)", "after")
SLOTS = ("client.keep_slots(client_state, data, finite, trained)", "client_state or ()")
DELTA = ("subtract(trained.weights, x)", "subtract(x, trained.weights)")
AVERAGING = [WEIGHT, ROUND, SLOTS, DELTA]
# The same as `ROUND` in a method that writes its round out.
NEXT_STATE = ("averaging.next_state(state, ", "(lambda a, b, c: b)(state, ")
# The default step of the server, which FedOpt's methods do not take.
STEP = [
    ("move(state.weights, local.server_learning_rate,", "move(state.weights, -1.0,"),
    ("move(state.weights, local.server_learning_rate,", "move(state.weights, 1.0,"),
    ("state._replace(weights=x)", "state"),
]
