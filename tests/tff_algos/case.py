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


# Mutations of the common round, `tff_algos/averaging.py`; see `mutants`.
WEIGHT = ("client.zero_unless(counts, weight)", "tf.ones([])")
OWN_WEIGHT = ("local.client_weight(data)", "tf.ones([])")
ROUND = ("next_state(state, after, total_weight)", "after")
KEPT = ("client.keep(client_state, data, keeps, kept)", "client_state")
DELTA = ("trained.weights - x", "x - trained.weights")
AVERAGING = [WEIGHT, ROUND, KEPT, DELTA]
# The same as `ROUND` in a method that writes its round out.
NEXT_STATE = ("averaging.next_state", "(lambda before, after, total: after)")
# The server's step, which FedOpt's methods do not take; and the default one as a whole.
RATE = [("local.server_learning_rate", "-1.0"), ("local.server_learning_rate", "1.0")]
NO_STEP = ("state._replace(weights=x)", "state")
STEP = [
    *RATE,
    ("state._replace(weights=state.weights + local.server_learning_rate * delta)", "state"),
]
