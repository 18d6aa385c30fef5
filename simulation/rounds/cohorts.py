"""Draws the clients of each round and batches their examples."""

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

import tff_algos
from simulation.protocol import Chunk
from simulation.rounds import randomness
from tasks import task as task_lib
from tasks.task import DataError, Examples, FederatedData, Task
from tff_algos.client_data import narrowed
from tff_algos.registry import RoundPlan


class FirstExamples:
    """Clients' data, limited to the first examples of each client."""

    def __init__(self, data: FederatedData, most: int):
        """Initialises for at most `most` examples per client."""
        self._data = data
        self._most = most
        self.client_ids = data.client_ids
        self.sizes = np.minimum(np.asarray(data.sizes, np.int64), most)

    def examples(self, index: int) -> Examples:
        """Returns the examples of the client at `index`."""
        examples = task_lib.read(self._data, index)
        return Examples(examples.x[: self._most], examples.y[: self._most])


def first_examples(data: FederatedData, most: int | None) -> FederatedData:
    """Returns clients' data limited to the first `most` examples per client; `None` for all."""
    return data if most is None else FirstExamples(data, most)


class _AsModelTakes:
    """Clients' data that are checked and converted for the model when a client is read."""

    def __init__(self, data, model):
        self._data, self._model = data, model
        self.client_ids, self.sizes = data.client_ids, data.sizes
        self._first = task_lib.first_with_examples(data)
        self._like = Examples(*(values[:0] for values in data.examples(self._first)))

    def examples(self, index: int) -> Examples:
        examples = task_lib.read(self._data, index)
        if not len(examples.y):
            # Of no examples neither shape nor type is known.
            examples = self._like
        for what, values, like in zip(("inputs", "targets"), examples, self._like, strict=True):
            if values.shape[1:] != like.shape[1:]:
                raise DataError(
                    f"client {self.client_ids[index]} has {what} of shape "
                    f"{list(values.shape[1:])}, and client {self.client_ids[self._first]} of shape "
                    f"{list(like.shape[1:])}; pad them all to the same length."
                )
        of, first = f"client {self.client_ids[index]}", f"client {self.client_ids[self._first]}"
        _refuse_bytes_beside_floats(of, examples.x, first, self._like.x)
        x = _cast(of, "inputs", examples.x, self._model.x_spec)
        y = _cast(of, "targets", examples.y, self._model.y_spec)
        return Examples(x, targets_as_model_takes(y, self._model))


def _cast(of, what, values, spec):
    wanted = np.dtype(spec.dtype.as_numpy_dtype)
    if values.dtype == wanted:
        return values
    whole = values.dtype.kind in "iu" and wanted.kind in "iu"
    if not whole and not np.can_cast(values.dtype, wanted, "same_kind"):
        raise DataError(
            f"{of} has {what} of {values.dtype}, not of {wanted}; convert them with astype."
        )
    cast = narrowed(values, wanted)
    if cast is None:
        raise DataError(
            f"{of} has {what} that do not fit into {wanted}, the type of the model's {what}; "
            "correct them, or give all examples a wider type."
        )
    return cast


def check_bytes(task: Task) -> None:
    """Refuses tests or validation examples of bytes where training has floats, and vice versa.

    Raises:
      DataError: If so. Only the first client with examples of each part is read.
    """

    def inputs(data):
        return data.examples(task_lib.first_with_examples(data)).x

    train = inputs(task.train)
    for part in ("test", "validation"):
        data = getattr(task, part)
        if data is not None and np.any(data.sizes):
            _refuse_bytes_beside_floats(part, inputs(data), "train", train)
    if task.central_test is not None:
        _refuse_bytes_beside_floats("central_test", task.central_test.x, "train", train)


def _refuse_bytes_beside_floats(of, x, of_other, other):
    # Pixels up to 255 beside pixels up to 1, for instance.
    dtypes = np.dtype(x.dtype), np.dtype(other.dtype)
    if np.uint8 in dtypes and any(dtype.kind == "f" for dtype in dtypes):
        raise DataError(
            f"{of} has inputs of {x.dtype}, and {of_other} of {other.dtype}; scale bytes as the "
            "others, or convert them with astype."
        )


def as_model_takes(data: FederatedData, model: "tff_algos.Model") -> FederatedData:
    """Returns clients' data in the form that the model takes.

    Numbers are converted to the model's width, e.g. from float64 to float32; for the shape of
    targets see `targets_as_model_takes`. Reading a client raises a `DataError` if their number is
    not its size, or if their shape differs from that of the first client with examples. So it does
    for another kind of numbers than the model's, and for numbers beyond the range of its type.

    Args:
      data: The data of at least one client.
      model: The model.
    """
    return _AsModelTakes(data, model)


def central_as_model_takes(examples: Examples, model: "tff_algos.Model") -> Examples:
    """Returns central test examples in the form that the model takes, as `as_model_takes`.

    Numbers of a type that fits into the model's stay as they are, since evaluation converts them
    chunk by chunk.

    Args:
      examples: The examples.
      model: The model.
    """

    def taken(what, values, spec):
        fits = np.can_cast(np.dtype(values.dtype), spec.dtype.as_numpy_dtype)
        return values if fits else _cast("central_test", what, np.asarray(values), spec)

    y = taken("targets", examples.y, model.y_spec)
    return Examples(taken("inputs", examples.x, model.x_spec), targets_as_model_takes(y, model))


def targets_as_model_takes(y: np.ndarray, model: "tff_algos.Model") -> np.ndarray:
    """Adds or removes a last dimension of 1 of targets, to match the model's spec.

    Args:
      y: Targets, `[n, ...]`.
      model: The model.
    """
    found, wanted = list(y.shape[1:]), model.y_spec.shape[1:].as_list()
    if found + [1] == wanted:
        return y[..., np.newaxis]
    return y[..., 0] if found == wanted + [1] else y


class Members(NamedTuple):
    """The clients that take part in a round.

    Attributes:
      clients: Indices of the clients, in the order of their sums; 0 of the pooled examples of all.
      participates: Whether each client trains, and is not only asked for its loss or for what it
        kept.
      pooled: Whether the examples of all clients are one client's.
    """

    clients: Sequence[int]
    participates: Sequence[bool]
    pooled: bool = False


def members(
    num_clients: int, plan: RoundPlan, settings: Mapping[str, Any], round_index: int
) -> Members:
    """Draws the clients of a round, as a pure function.

    Args:
      num_clients: Number of all training clients.
      plan: What the method asks for in this round.
      settings: The run's settings (`simulation.run_hparams.RUN_HPARAMS`).
      round_index: Round, from 0.
    """
    if plan.cohort == "pooled":
        return Members([0], [True], pooled=True)
    everyone = np.arange(num_clients)
    drawn = cohort(num_clients, plan, settings, round_index)
    taking_part = everyone if plan.losses == "all" else drawn
    for before in range(max(round_index - plan.recent, 0), round_index):
        others = np.setdiff1d(cohort(num_clients, plan, settings, before), taking_part)
        taking_part = np.concatenate([taking_part, others])
    return Members(taking_part.tolist(), np.isin(taking_part, drawn).tolist())


def cohort_data(
    train: FederatedData,
    plan: RoundPlan,
    settings: Mapping[str, Any],
    round_index: int,
) -> list["tff_algos.ClientData"]:
    """Draws the clients of a round and batches their examples, as a pure function.

    Args:
      train: What the clients train on.
      plan: What the method asks for in this round.
      settings: The run's settings (`simulation.run_hparams.RUN_HPARAMS`).
      round_index: Round, from 0.

    Returns:
      The data of each client of the cohort, see `tff_algos.batch_cohort`.
    """
    who = members(len(train.client_ids), plan, settings, round_index)
    return _data_of(train, plan, settings, round_index, who)


def _data_of(train, plan, settings, round_index, who):
    examples = [_pooled(train)] if who.pooled else [train.examples(c) for c in who.clients]
    if plan.recent:
        examples = [
            e if trains else Examples(e.x[:0], e.y[:0])
            for e, trains in zip(examples, who.participates, strict=True)
        ]
    settings = {**settings, "client_batch_size": batch_size(train, settings, who.pooled)}
    return batched(examples, plan, settings, round_index, who.clients, who.participates)


def batch_size(train: FederatedData, settings: Mapping[str, Any], pooled: bool = False) -> int:
    """Returns the minibatch size: at most the size of the largest client, to avoid padding.

    Args:
      train: The examples that clients train on.
      settings: The run's settings.
      pooled: Whether the examples of all clients are pooled in a single client.
    """
    sizes = np.asarray(train.sizes, np.int64)
    most = int(sizes.sum() if pooled else sizes.max(initial=0))
    return min(settings["client_batch_size"], max(most, 1))


def cohort(
    num_clients: int, plan: RoundPlan, settings: Mapping[str, Any], round_index: int
) -> np.ndarray:
    """Returns the clients whose examples a round trains on, int64, in the order of summation.

    Args:
      num_clients: Number of all training clients.
      plan: The method's plan for this round.
      settings: The run's settings.
      round_index: Round, from 0.
    """
    if plan.cohort in ("all", "pooled"):
        return np.arange(num_clients)
    return randomness.cohort(
        settings["client_datasets_random_seed"],
        round_index,
        num_clients,
        settings["clients_per_round"],
    )


@functools.lru_cache(maxsize=1)
def _pooled(train: FederatedData) -> Examples:
    """Returns the pooled training examples of all clients; cached between rounds."""
    everyone = [train.examples(client) for client in range(len(train.client_ids))]
    return Examples(*(np.concatenate(parts) for parts in zip(*everyone, strict=True)))


def batched(
    examples: Sequence[Examples],
    plan: RoundPlan,
    settings: Mapping[str, Any],
    round_index: int,
    clients: Sequence[int],
    participates: Sequence[bool] | None = None,
) -> list["tff_algos.ClientData"]:
    """Batches clients' examples for a round, as a pure function.

    Args:
      examples: The examples of each client.
      plan: The method's plan for this round.
      settings: The run's settings.
      round_index: Round, from 0.
      clients: Place of each client among all training clients.
      participates: Whether each client trains, and is not only asked for its loss or for what it
        kept; all do if that is `None`.

    Returns:
      The data of each client, see `tff_algos.batch_cohort`.
    """
    seed = settings["seed"]
    if participates is None:
        participates = [True] * len(clients)

    def epochs(client, trains):
        if not trains:
            return 1
        if settings["client_epochs_distribution"] == "uniform_1_3":
            return randomness.epochs(seed, round_index, client, 1, 3)
        return settings["client_epochs_per_round"]

    # Rounds that continue the same epochs share the seed of the order of examples.
    order_of = round_index if plan.first_step is None else 0
    return tff_algos.batch_cohort(
        examples,
        batch_size=settings["client_batch_size"],
        epochs=list(map(epochs, clients, participates)),
        steps=plan.local_steps,
        first_step=plan.first_step or 0,
        full_batch=plan.batches == "full_batch",
        order_seeds=[randomness.order_seed(seed, order_of, client) for client in clients],
        dropout_seeds=[randomness.dropout_seed(seed, round_index, client) for client in clients],
        indices=clients,
        participates=participates,
    )


class Cohorts:
    """The clients of a run's rounds and their training examples."""

    def __init__(
        self,
        train: FederatedData,
        settings: Mapping[str, Any],
        plan: Callable[[int], RoundPlan],
    ):
        """Initialises the cohorts.

        Args:
          train: The examples that clients train on.
          settings: The run's settings.
          plan: Round, from 0 → the method's plan for it.
        """
        self._train, self._settings, self._plan = train, settings, plan
        # Cached for the latest rounds, since each chunk of a cohort needs the members.
        self._members: dict[int, Members] = {}

    def clients(self, round_index: int) -> np.ndarray:
        """Returns the clients whose examples a round trains on, see `cohort`."""
        plan = self._plan(round_index)
        return cohort(len(self._train.client_ids), plan, self._settings, round_index)

    def members(self, round_index: int) -> Members:
        """Returns the clients that take part in a round."""
        known = self._members.get(round_index)
        if known is None:
            plan = self._plan(round_index)
            known = members(len(self._train.client_ids), plan, self._settings, round_index)
            latest = list(self._members.items())[-2:]
            self._members = {**dict(latest), round_index: known}
        return known

    def largest_round(self) -> int:
        """Returns the first or the last round, from 0, whichever has the larger cohort."""
        rounds = 0, self._settings["total_rounds"] - 1
        return max(rounds, key=lambda r: len(self.members(r).clients))

    def steps(self, round_index: int) -> np.ndarray:
        """Returns the approximate local steps of each client of a round's cohort, int64 `[n]`."""
        plan, settings = self._plan(round_index), self._settings
        who = self.members(round_index)
        sizes = np.asarray(self._train.sizes, np.int64)
        sizes = np.sum(sizes, keepdims=True) if who.pooled else sizes[who.clients]
        if plan.local_steps is not None:
            return np.full(len(sizes), plan.local_steps)
        # One step on all examples takes as long as many steps on minibatches.
        steps = -(-sizes // settings["client_batch_size"])
        epochs = settings["client_epochs_per_round"]
        return steps * np.where(who.participates, epochs, 0 if plan.recent else 1)

    def examples(self, round_index: int) -> np.ndarray:
        """Returns the smallest number of examples that each client processes, int64 `[K]`."""
        plan, settings = self._plan(round_index), self._settings
        who = self.members(round_index)
        sizes = np.asarray(self._train.sizes, np.int64)
        sizes = np.sum(sizes, keepdims=True) if who.pooled else sizes[who.clients]
        if plan.local_steps is not None:
            size = batch_size(self._train, settings, who.pooled)
            whole = plan.batches == "full_batch"
            return plan.local_steps * (sizes if whole else size * (sizes > 0))
        # The smallest number of epochs of a distribution is one.
        fixed = settings["client_epochs_distribution"] == "fixed"
        epochs = settings["client_epochs_per_round"] if fixed else 1
        return sizes * np.where(who.participates, epochs, 0 if plan.recent else 1)

    def ids(self, clients: Sequence[int]) -> list[str]:
        """Returns the ids of clients."""
        return [self._train.client_ids[client] for client in clients]

    def part(
        self, round_index: int, chunk: Chunk, given: None = None
    ) -> list["tff_algos.ClientData"]:
        """Returns the data of a chunk of a round's cohort.

        Args:
          round_index: The round, from 0.
          chunk: The chunk.
          given: Unused: the round alone determines its cohort.
        """
        del given
        who, places = self.members(round_index), slice(chunk.start, chunk.stop)
        who = who._replace(clients=who.clients[places], participates=who.participates[places])
        return _data_of(self._train, self._plan(round_index), self._settings, round_index, who)

    def data(self, round_index: int) -> tuple[list[str], list["tff_algos.ClientData"]]:
        """Returns the ids of the clients that take part in a round, and their data."""
        plan = self._plan(round_index)
        data = cohort_data(self._train, plan, self._settings, round_index)
        return [self._train.client_ids[d.index] for d in data], data


class Ahead:
    """Makes each round's input during the previous round, in a separate thread.

    Used as a context manager. Calls with the rounds in order return the input of each.
    """

    def __init__(self, make: Callable[[int], Any], total_rounds: int):
        """Initialises the maker.

        Args:
          make: Round, from 0 → its input; must not depend on earlier rounds.
          total_rounds: Number of rounds; inputs of later rounds are not made in advance.
        """
        self._make, self._total_rounds = make, total_rounds
        self._pool = futures.ThreadPoolExecutor(1, "next-round")
        self._following: tuple[int | None, Any] = None, None

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *_: Any) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __call__(self, round_index: int) -> Any:
        """Returns the input of a round, and starts making that of the next."""
        known, made = self._following
        if known != round_index:
            made = self._pool.submit(self._make, round_index)
        following = round_index + 1
        ready = following < self._total_rounds
        self._following = (
            (following, self._pool.submit(self._make, following)) if ready else (None, None)
        )
        return made.result()
