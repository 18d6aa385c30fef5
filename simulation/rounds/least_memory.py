"""A lower bound on the memory of a run's largest round, computed before the first round.

It only counts memory that is necessarily in use at the same moment:

- the values of clients that are processed at the same time,
- the results that the server holds for each client until all have arrived,
- the clients' data.

Everything else comes on top: activations, copies, the server's next state. So no run is refused
that would have fitted. `benchmarks/peaks.py` compares the bound with actual runs;
docs/performance.md has the formulas and the table.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from simulation.engine.program import CLIENT_STATES, Program
from simulation.errors import RunError
from simulation.rounds.cohorts import Cohorts
from simulation.rounds.one_program import RunMethod
from tff_algos.model import Model
from tff_suite import memory

# Recording a round of a large model takes seconds. It is skipped if even this many vectors of the
# model's size would fit for each client.
_MOST_VECTORS = 20


class Sizes(NamedTuple):
    """Bytes per client in a round.

    Attributes:
      model: The model's weights.
      stacked: Its part of the aggregates that the server stacks.
      kept: Values that it keeps from one exchange of the round to a later one.
      state: Its state between rounds.
    """

    model: int
    stacked: int = 0
    kept: int = 0
    state: int = 0


class Share(NamedTuple):
    """A part of a round's memory.

    Attributes:
      num_bytes: Its size in bytes.
      what: Its description.
      cure: How to reduce it.
    """

    num_bytes: int
    what: str
    cure: str


def sizes_of(program: Program, model: int) -> Sizes:
    """Returns the sizes of a round.

    Args:
      program: The round.
      model: Bytes of the model's weights.
    """
    return Sizes(
        model=model,
        stacked=program.stacked_bytes(),
        kept=max(memory.nbytes(program.spec(list(phase.kept))) for phase in program.phases),
        # Clients that only report findings keep no state.
        state=memory.nbytes(program.specs.get(CLIENT_STATES, ())),
    )


def of_round(
    sizes: Sizes,
    data: np.ndarray,
    settings: Mapping[str, Any],
    threads: int,
    *,
    on_gpu: bool = False,
    can_cut: bool = True,
) -> list[Share]:
    """Returns the parts of a round's memory at the moment when it needs most.

    Args:
      sizes: The round's sizes.
      data: Bytes of the data that each client of the cohort processes, int64 `[K]`.
      settings: The run's settings.
      threads: Number of clients processed at the same time in `per_client`.
      on_gpu: Whether clients use a GPU's memory, which is not counted here.
      can_cut: Whether the cohort can be processed in chunks.
    """
    if on_gpu:
        sizes = sizes._replace(model=0, stacked=0, kept=0)
    model, stacked, kept, state = sizes
    runtime, whole = settings["runtime"], settings["clients_per_chunk"] is None
    number = len(data)
    # Number of clients whose data are stacked, and whose states are read, together.
    together = number if whole else min(number, settings["clients_per_chunk"])

    fewer = "fewer clients per round take less"
    cut, at_once = fewer, "--runtime=per_client takes less"
    if can_cut and together > 1:
        chunks = f"--clients_per_chunk of less than {together:,}"
        cut, at_once = f"{chunks} takes less", f"{chunks}, or --runtime=per_client, takes less"
    in_tff = "--runtime=per_client, or fewer clients per round, take less"

    def of(each, clients, what, cure):
        plural = "s" * (clients > 1)
        return Share(int(each) * clients, f"the {what} of {clients:,} client{plural}", cure)

    def examples(total_bytes, clients, cure):
        return of(0, clients, "examples", cure)._replace(num_bytes=int(total_bytes))

    def rows(times):
        return of(times * stacked, number, "vectors at the server", fewer)

    def states(times):
        return of(times * state, together, "states, before and after the round,", cut)

    limit = settings["client_state_memory_mb"] << 20
    stored = state and min(limit // state, number) * state
    store = Share(stored, "the store of clients' states", "--client_state_memory_mb bounds it")
    # Results of an exchange that are kept until the next one.
    between = [of(kept, number, "vectors between exchanges", fewer), states(1), store]
    if settings["workers"]:
        # All else is in the workers' memory, possibly on other machines.
        moments = [[rows(2)]]
    elif runtime == "native":
        # Examples are in this process and in TFF's worker. The worker holds all results before it
        # adds them up, and stacked rows before and after another row is appended.
        results = of(2 * stacked or model, number, "results", in_tff)
        moments = [[examples(2 * data.sum(), number, in_tff), results, states(2), store]]
    elif runtime != "vectorized":
        fewer_examples = "fewer epochs or a smaller --max_elements_per_client take less"
        weights = of(model, min(threads, together), "weights", "fewer cores (taskset) take less")
        one = examples(data.max(initial=0), 1, fewer_examples)
        # Rows are held both as they arrived and as one array.
        moments = [[one, weights, states(1), store], between]
        if whole and runtime == "tff":
            # At the end, states are held both as tensors and as arrays.
            moments += [[rows(2), states(2), store], [states(3), store]]
        else:
            moments += [[rows(2), store], [states(2), store]]
    else:
        stacked_examples = examples(data[:together].sum(), together, at_once)
        # Weights before and after a step, or with its gradients; found by measurement.
        weights = of(2 * model, together, "weights and gradients", at_once)
        moments = [[stacked_examples, weights, states(1), store], between]
        if whole:
            moments += [[stacked_examples, rows(1), states(2), store]]
        else:
            moments += [[rows(2), store], [states(2), store]]
    return max(moments, key=total)


def total(shares: Sequence[Share]) -> int:
    """Returns the bytes of all shares."""
    return sum(share.num_bytes for share in shares)


def require(
    method: RunMethod,
    model: Model,
    cohorts: Cohorts,
    settings: Mapping[str, Any],
    programs: Mapping[str, Program] | None = None,
) -> None:
    """Refuses a run if the lower bound on its memory exceeds what is available.

    Args:
      method: The run's method.
      model: The model.
      cohorts: The clients of the run's rounds.
      settings: The run's settings; the runtime is not `auto`.
      programs: Its programs, if known.

    Raises:
      HparamError: If the run would not fit.
    """
    name = settings["algorithm"]
    of_example = memory.nbytes((model.x_spec, model.y_spec))
    data = of_example * cohorts.examples(cohorts.largest_round())
    of_model = memory.nbytes(model.initial_weights)
    can_cut = True
    if programs is None and _MOST_VECTORS * of_model * len(data) > memory.available():
        try:
            programs = method.programs()
        except RunError:
            # Count only the memory that every method's round needs.
            can_cut = False
    sizes = [sizes_of(p, of_model) for p in (programs or {}).values()] or [Sizes(of_model)]
    shares = max(
        (
            of_round(
                of_process,
                data,
                settings,
                len(os.sched_getaffinity(0)),
                on_gpu=bool(tf.config.list_physical_devices("GPU")),
                can_cut=can_cut,
            )
            for of_process in sizes
        ),
        key=total,
    )
    most = max(shares, key=lambda share: share.num_bytes)
    memory.require(
        total(shares),
        f"A round of {name} with --runtime={settings['runtime']}, most of it for {most.what} "
        f"({memory.gib(most.num_bytes)}),",
        most.cure,
    )
