"""A method's rounds, executed as TFF computations, in the form that the loop needs.

The computation runs in the context of this thread: TFF's compiler and our interpreter of its
intrinsics (`tff`), or TFF's own worker (`native`). Both are independent checks on the engine.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from simulation.device import state as state_lib
from simulation.protocol import Cohort, RoundOutput
from simulation.tff import context as tff_context
from tff_algos import client_data
from tff_suite import memory


class TffProcess:
    """Implements `simulation.protocol.Process` by a process of `tff_algos.build`, or a similar one.

    A cohort contains its clients' data (`Cohort.work`).
    """

    def __init__(self, process: Any):
        """Initialises from the process; use it while a TFF context is installed."""
        current = tff.framework.get_context_stack().current
        self._process = process
        self._in_process = isinstance(current, tff_context.InProcessContext)
        self.initialize = process.initialize
        method = getattr(process, "method", None)
        if self._in_process and method is not None:
            self.initialize = functools.partial(state_lib.initial, method)

    def next(
        self, state: Any, cohort: Cohort, client_states: Sequence[Any] | None = None
    ) -> RoundOutput:
        """As `simulation.protocol.Process.next`."""
        assert cohort.work is not None
        clients: Sequence[Any] = cohort.work
        if not self._in_process:
            model = getattr(self._process, "model", None)
            if model is not None:
                clients = client_data.of_model(clients, model, int(state.round_num))
            clients = as_arrays(clients)
        if client_states is None:
            output = self._process.next(state, clients)
            return RoundOutput(output.state, output.metrics)
        return RoundOutput(*self._process.next(state, clients, client_states[: cohort.number]))

    def model_weights(self, state: Any) -> list[np.ndarray]:
        """As `simulation.protocol.Process.model_weights`."""
        return [np.asarray(w) for w in self._process.get_model_weights(state).trainable]

    def set_model_weights(self, state: Any, weights: Sequence[np.ndarray]) -> Any:
        """As `simulation.protocol.Process.set_model_weights`."""
        given = self._process.get_model_weights(state)
        whole = tff.learning.models.ModelWeights(list(weights), given.non_trainable)
        return self._process.set_model_weights(state, whole)


def as_arrays(clients: Sequence[Any]) -> list[Any]:
    """Returns clients' data as arrays, the only form that TFF's worker takes.

    Raises:
      HparamError: If they would not fit into memory.
    """
    # All clients at once, here and again in TFF's worker.
    memory.require(
        2 * memory.nbytes([(c.x, c.y) for c in clients]),
        f"The examples of {len(clients):,} clients at once, here and in TFF's worker,",
        "--runtime=tff, fewer clients per round or fewer epochs need less",
    )
    return list(map(client_data.arrays, clients))
