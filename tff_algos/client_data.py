"""A client's data for one round, as arrays.

Batches are padded and stacked to `[steps, batch, ...]` with a mask. Graphs hold no data, and the
order of examples is a pure function of a seed. Equal shapes let a cohort be stacked for
vectorising. A masked-out step changes nothing; a masked-out example has weight zero.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tff_algos import random
from tff_suite import memory, user_warnings

if TYPE_CHECKING:
    from tff_algos.method_spec import RoundPlan


class Batch(NamedTuple):
    """One minibatch.

    Attributes:
      x: Inputs, `[batch, ...]`.
      y: Targets, `[batch, ...]`.
      mask: float32 `[batch]`, 1 for a real example, 0 for padding.
    """

    x: Any
    y: Any
    mask: Any


class ClientData(NamedTuple):
    """All data of one client in one round.

    Attributes:
      x: Inputs, `[steps, batch, ...]`. A minibatch is padded with copies of its first example, so
        padding is valid input for every model.
      y: Targets, `[steps, batch, ...]`, padded likewise.
      mask: float32 `[steps, batch]`, 1 for a real example, 0 for padding.
      steps_per_epoch: int32 scalar. The first `steps_per_epoch` steps contain every local example
        once, unless the round takes fewer steps or starts within an epoch.
      num_examples: int32 scalar, number of local examples n_k, including those in none of the
        steps.
      participates: float32 scalar: 1, or 0 for a client that was not drawn for the round and only
        reports its loss (`tff_algos.registry.RoundPlan.losses`), or what it kept (`recent`).
      seed: int32 `[2]`, seed of all random draws in the client's work of this round (dropout).
        Zeros stand for none: a process's `next` then takes one of the round and the client's
        position in the cohort.
      index: int32 scalar, position of the client among all N training clients, from 0; -1 if
        unknown. Methods that distinguish clients refuse -1 (`tff_algos.MethodSpec.needs_index`).
    """

    x: Any
    y: Any
    mask: Any
    steps_per_epoch: Any
    num_examples: Any
    participates: Any
    seed: Any
    index: Any


# The seed of a client that got none.
_UNSEEDED = np.zeros(2, np.int32)
_UNSEEDED.flags.writeable = False

_INFINITE = -1  # `tf.data.INFINITE_CARDINALITY`


class Gathered:
    """A client's examples in the order of its steps: an array that is only made when needed.

    `numpy.asarray` creates it. If you already have an array to fill, call `into`, which saves a
    copy of the data.

    Attributes:
      shape: Shape of the array, `[steps, batch, ...]`.
      dtype: dtype of the array.
    """

    __slots__ = ("_rows", "_values", "dtype", "shape")

    def __init__(self, values: np.ndarray, rows: np.ndarray):
        """Initialises the array.

        Args:
          values: The examples, `[n, ...]`.
          rows: Index of the example at each position, int64 `[steps, batch]`.
        """
        self._values, self._rows = values, rows
        self.dtype = values.dtype
        self.shape = rows.shape + values.shape[1:]

    def into(self, out: np.ndarray) -> None:
        """Fills an array of the same shape and dtype."""
        # All rows are there; with another mode NumPy would first copy the array to be filled.
        self._values.take(self._rows, 0, out, "clip")

    def __array__(self, dtype: Any = None) -> np.ndarray:
        out = np.empty(self.shape, self.dtype)
        self.into(out)
        return out if dtype is None else out.astype(dtype, copy=False)


def arrays(data: ClientData) -> ClientData:
    """Returns the data as NumPy arrays."""
    return ClientData(*map(np.asarray, data))


def batch_cohort(
    examples: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    batch_size: int,
    epochs: Sequence[int] | int = 1,
    steps: int | None = None,
    first_step: int = 0,
    full_batch: bool = False,
    shuffle: bool = True,
    order_seeds: Sequence[Sequence[int]],
    dropout_seeds: Sequence[Sequence[int]],
    indices: Sequence[int],
    participates: Sequence[bool] | None = None,
) -> list[ClientData]:
    """Batches the examples of a round's clients: `batch_client` for each, but faster for many.

    Args:
      examples: x `[n, ...]` and y `[n, ...]` of each client.
      batch_size: As for `batch_client`.
      epochs: Passes over the data: one number per client, or one for all.
      steps: As for `batch_client`.
      first_step: As for `batch_client`.
      full_batch: As for `batch_client`.
      shuffle: As for `batch_client`.
      order_seeds: `order_seed` of each client, all of one length.
      dropout_seeds: `dropout_seed` of each client, all of one length.
      indices: Position of each client among all training clients.
      participates: Whether each client was drawn for the round; `None` if all were.

    Returns:
      One `ClientData` per client. Its x and y are `Gathered`, everything else is NumPy arrays.

    Raises:
      ValueError: As `batch_client`.
      HparamError: If the data would not fit into memory.
    """
    number = len(examples)
    if isinstance(epochs, int):
        epochs = [epochs] * number
    if participates is None:
        participates = [True] * number
    values, layouts, rows_bytes, most_bytes = [], [], 0, 0
    for (x, y), passes in zip(examples, epochs, strict=True):
        if len(x) != len(y):
            raise ValueError(f"x has {len(x)} examples but y has {len(y)}.")
        if any(type(v) is not np.ndarray and np.ma.is_masked(v) for v in (x, y)):
            raise ValueError("x or y has masked values; drop or fill them.")
        x, y = np.asarray(x), np.asarray(y)
        values.append((x, y))
        layout = _layout(len(y), batch_size, passes, steps, first_step, full_batch)
        layouts.append(layout)
        rows_bytes += layout.mask.size * np.dtype(np.int64).itemsize
        if len(y):
            most_bytes = max(most_bytes, layout.mask.size * (x.nbytes + y.nbytes) // len(y))
    # The examples themselves, `Gathered`, are laid out when and where a client works on them.
    _require_room(rows_bytes + most_bytes)
    sizes = [len(y) for _, y in values]
    shuffled = shuffle and not full_batch
    orders = _shuffled(sizes, layouts, order_seeds) if shuffled else _unshuffled(sizes, layouts)
    words = random.seed_words(dropout_seeds, 2).view(np.int32)
    cohort = []
    for k, ((x, y), layout, of_epochs) in enumerate(zip(values, layouts, orders, strict=True)):
        rows = _rows(sizes[k], layout, of_epochs)
        cohort.append(
            ClientData(
                x=Gathered(x, rows),
                y=Gathered(y, rows),
                mask=layout.mask,
                steps_per_epoch=layout.steps_per_epoch,
                num_examples=np.int32(sizes[k]),
                participates=np.float32(participates[k]),
                seed=words[k],
                index=np.int32(indices[k]),
            )
        )
    return cohort


def _shuffled(
    sizes: Sequence[int], layouts: Sequence[_Layout], seeds: Sequence[Sequence[int]]
) -> Iterator[list[np.ndarray]]:
    """Yields for each client the order of its examples in each epoch."""
    # A generator for each epoch of each client, which are faster made all at once.
    generators = iter(
        random.generators(
            [
                (*seed, layout.first_epoch + epoch)
                for seed, layout in zip(seeds, layouts, strict=True)
                for epoch in range(layout.epochs)
            ]
        )
    )
    for n, layout in zip(sizes, layouts, strict=True):
        yield [next(generators).permutation(n) for _ in range(layout.epochs)]


def _unshuffled(sizes: Sequence[int], layouts: Sequence[_Layout]) -> Iterator[list[np.ndarray]]:
    for n, layout in zip(sizes, layouts, strict=True):
        yield [np.arange(n)] * layout.epochs


def _rows(n: int, layout: _Layout, orders: list[np.ndarray]) -> np.ndarray:
    """Returns the index of the example at each position of each step."""
    if len(orders) == 1 and layout.epoch_slots == n:
        (rows,) = orders
    else:
        rows = np.empty((layout.epochs, layout.epoch_slots), np.int64)
        rows[:, :n] = orders
        # No made-up example will do: a model may take a logarithm of its inputs, or their shares of
        # their sum, and where those are not finite no weight of zero makes the gradient so.
        if layout.epoch_slots > n:
            rows[:, n:] = rows[:, [layout.epoch_slots - layout.batch_size]]
    return rows.reshape(-1, layout.batch_size)[layout.steps]


def _require_room(num_bytes: float) -> None:
    memory.require(
        num_bytes,
        "What the clients of a round work on",
        "fewer clients a round, epochs or steps, or smaller batches take less",
    )


class _Layout(NamedTuple):
    """How a client's examples are laid out in steps.

    Attributes:
      epochs: Number of epochs that the steps touch.
      first_epoch: The first of them.
      epoch_slots: Positions for examples in an epoch, padding included.
      batch_size: Positions in a step.
      steps: Slice of the steps of these epochs that are taken.
      mask: As in `ClientData`.
      steps_per_epoch: As in `ClientData`.
    """

    epochs: int
    first_epoch: int
    epoch_slots: int
    batch_size: int
    steps: slice
    mask: np.ndarray
    steps_per_epoch: np.integer


@functools.lru_cache(maxsize=1024)
def _layout(
    n: int, batch_size: int, epochs: int, steps: int | None, first_step: int, full_batch: bool
) -> _Layout:
    if batch_size < 1 or epochs < 1 or (steps is not None and steps < 1):
        raise ValueError(
            f"batch_size={batch_size}, epochs={epochs} and steps={steps} must be positive."
        )
    if first_step and steps is None:
        raise ValueError(f"first_step={first_step} needs steps.")
    if full_batch:
        batch_size = max(n, 1)
    steps_per_epoch = -(-n // batch_size)
    first_epoch, skipped = divmod(first_step, max(steps_per_epoch, 1))
    if steps_per_epoch and steps is not None:
        epochs = -(-(skipped + steps) // steps_per_epoch)
    slots = steps_per_epoch * batch_size
    # The order of the examples and the mask; a generator for each epoch.
    _require_room(epochs * (12 * slots + 1000))
    mask = np.zeros((epochs, slots), np.float32)
    mask[:, :n] = 1
    taken = slice(skipped, None if steps is None else skipped + steps)
    mask = mask.reshape(-1, batch_size)[taken]
    if steps is not None:
        steps_per_epoch = min(steps, steps_per_epoch)
    # Clients of one size share it.
    mask.flags.writeable = False
    return _Layout(
        epochs,
        first_epoch,
        slots,
        batch_size,
        taken,
        mask,
        np.int32(steps_per_epoch),
    )


def batch_client(
    x: np.ndarray,
    y: np.ndarray,
    *,
    batch_size: int,
    epochs: int = 1,
    steps: int | None = None,
    first_step: int = 0,
    full_batch: bool = False,
    shuffle: bool = True,
    order_seed: Sequence[int] | None = None,
    dropout_seed: Sequence[int] | None = None,
    index: int = -1,
    participates: bool = True,
) -> ClientData:
    """Batches a client's examples for one round; the last partial batch is kept and padded.

    Args:
      x: Inputs, `[n, ...]`.
      y: Targets, `[n, ...]`.
      batch_size: Examples per minibatch.
      epochs: Passes over the data, each in a different order.
      steps: If set, exactly that many minibatches instead of whole epochs. The data is repeated,
        each time in a new order, or cut short.
      first_step: Position in the series of these epochs at which to start, in minibatches from 0;
        only with `steps`.
      full_batch: Whether a step takes all local examples at once. `batch_size` and the order are
        then not used.
      shuffle: Whether to shuffle; otherwise the examples stay in order in every epoch.
      order_seed: Non-negative integers that determine the order, e.g. (seed, round, client); the
        epoch is appended to them. By default the order is the same in all rounds.
      dropout_seed: Non-negative integers that determine all other random draws of the client. By
        default these follow from the round and the client's position in the cohort. Zeros at the
        end change nothing, as in `numpy.random.SeedSequence`: (0,) and (0, 0) are the same seed.
      index: Position of the client among all training clients, from 0; -1 if unknown.
      participates: Whether the client was drawn for the round.

    Returns:
      A `ClientData` of NumPy arrays. A client without examples has no steps.

    Raises:
      ValueError: If `x` and `y` differ in length, a size is not positive, or `first_step` is given
        without `steps`.

    Warns:
      RuntimeWarning: If `steps` takes the same part of the data in all rounds, since `order_seed`
        is missing.
    """
    cut_short = steps is not None and not full_batch and steps * batch_size < len(y)
    if shuffle and cut_short and order_seed is None:
        user_warnings.warn(
            f"steps={steps} takes the same minibatches in all rounds, and leaves the rest out: "
            "give batch_client an order_seed, such as (seed, round, client)."
        )
    (data,) = batch_cohort(
        [(x, y)],
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        first_step=first_step,
        full_batch=full_batch,
        shuffle=shuffle,
        order_seeds=[(0,) if order_seed is None else order_seed],
        dropout_seeds=[(0,) if dropout_seed is None else dropout_seed],
        indices=[index],
        participates=[participates],
    )
    return arrays(data if dropout_seed is not None else data._replace(seed=_UNSEEDED))


def check_indices(method: str, num_clients: int, clients: Sequence[ClientData]) -> None:
    """Refuses a cohort with missing, invalid or repeated client indices.

    Args:
      method: Name of the method.
      num_clients: Number of all training clients (N).
      clients: The data of each client of the cohort.

    Raises:
      ValueError: If an index is not one of 0 to N - 1, or two clients share one. The text names the
        client by its position in the cohort.
    """
    places: dict[int, int] = {}
    for place, data in enumerate(clients):
        index = int(data.index)
        cure = (
            f"{method} distinguishes clients by it: give batch_client or from_dataset the client's "
            f"index=, its place among all {num_clients} training clients."
        )
        if not 0 <= index < num_clients:
            found = "has no index" if index == -1 else f"has index {index}"
            raise ValueError(
                f"Client {place} of the cohort {found}, not one of 0 to {num_clients - 1}; {cure}"
            )
        if index in places:
            raise ValueError(
                f"Clients {places[index]} and {place} of the cohort both have index {index}; {cure}"
            )
        places[index] = place


def check_plan(method: str, plans: Sequence[RoundPlan], clients: Sequence[ClientData]) -> None:
    """Warns of a cohort whose work is not what the method requests: it is another method.

    Args:
      method: Name of the method.
      plans: What it requests in its first round, and in its last.
      clients: The data of each client of the cohort.

    Warns:
      RuntimeWarning: If a client with examples has another number of steps, or minibatches in place
        of full batches. Also if there are several clients, and the method wants their examples
        pooled.
    """
    if plans[0].cohort == "pooled" and len(clients) > 1:
        user_warnings.warn(
            f"{method} trains on one client that has the examples of all, found {len(clients)} "
            "clients: join their examples."
        )
    cure = (
        f"give batch_client the steps and full_batch that {method} requests, see "
        "process.plan(round_num, total_rounds)."
    )
    wanted = plans[0].local_steps
    for place, data in enumerate(clients):
        if not data.participates or not data.num_examples:
            continue
        steps, is_whole = len(data.mask), data.steps_per_epoch == 1
        if any(
            p.local_steps in (None, steps) and (p.batches != "full_batch" or is_whole)
            for p in plans
        ):
            continue
        found = f"has {steps} steps, not {wanted}" if wanted else "has minibatches, not full ones"
        user_warnings.warn(f"Client {place} of the cohort {found}; {cure}")
        return


def require_list(name: str, given: Any) -> None:
    """Refuses what is not a list of what each client of a round has.

    An iterator would be empty in the next round, and one client's data is a tuple, too. Everything
    else is left to TFF.

    Args:
      name: Name of the argument.
      given: Its value.

    Raises:
      ValueError: If it is an iterator, a dictionary, an array, or what one client would have.
    """
    if isinstance(given, Mapping):
        cure = f"list({name}.values())"
    elif isinstance(given, Iterator | np.ndarray):
        cure = f"list({name})"
    elif hasattr(given, "_fields") or hasattr(given, "as_numpy_iterator"):
        cure = f"[{name}] for a single client"
    else:
        return
    raise ValueError(
        f"{name} is a {type(given).__name__}; give a list with an entry for each client: {cure}."
    )


def require_states(client_states: Any, number: int) -> None:
    """Refuses client states that are not one for each client of a round.

    Args:
      client_states: A list or `StackedStates`.
      number: Number of clients.

    Raises:
      ValueError: If it is something else, has another length, or an entry is `None`.
    """
    require_list("client_states", client_states)
    if not isinstance(client_states, Sequence):
        return
    if len(client_states) != number:
        # A single state would be broadcast to all clients.
        raise ValueError(
            f"A cohort of {number} clients needs as many states, found {len(client_states)}."
        )
    if isinstance(client_states, list | tuple) and any(s is None for s in client_states):
        place = [s is None for s in client_states].index(True)
        raise ValueError(
            f"The state of client {place} of the cohort is None; before its first round it is "
            "process.initial_client_state()."
        )


def of_model(clients: Sequence[Any], model: Any, round_num: int) -> list[ClientData]:
    """Returns the clients of a round in the form that methods take.

    Args:
      clients: For each client a `ClientData`, or a batched `tf.data.Dataset` as TFF's algorithms
        and `from_dataset` take it. The client of a dataset has no index. If a client has no seed,
        its random draws depend on its position in the cohort and on the round.
      model: The `tff_algos.Model` they are for. Numbers of another width (float64 inputs, int64
        labels) are cast to the dtypes of its specs. Targets gain or lose a last dimension of 1 to
        match its spec.
      round_num: The round, from 0.

    Raises:
      ValueError: If `from_dataset` refuses a dataset, a client is something else, or inputs or
        targets do not fit the model.
    """
    # Once for all clients: TensorFlow takes microseconds for each of these.
    specs = model.x_spec, model.y_spec
    dtypes = tuple(np.dtype(spec.dtype.as_numpy_dtype) for spec in specs)
    shapes = tuple(None if s.shape.rank is None else s.shape[1:].as_list() for s in specs)
    return [
        _of_model(data, dtypes, shapes, model.y_spec, round_num, place)
        for place, data in enumerate(clients)
    ]


def _of_model(data, dtypes, shapes, y_spec, round_num, place):
    """Returns a client's data.

    Args:
      data: As given.
      dtypes: Those of inputs and targets.
      shapes: Shape of one input and of one target; an unknown length is `None`.
      y_spec: The model's spec of a batch of targets.
      round_num: The round, from 0.
      place: The client's position in the cohort.
    """
    if not isinstance(data, ClientData) and hasattr(data, "as_numpy_iterator"):
        data = from_dataset(data)
    if not isinstance(data, ClientData):
        raise ValueError(
            f"Client {place} is a {type(data).__name__}; give "
            "batch_client(x, y, batch_size=...) or a tf.data.Dataset of batches."
        )
    if isinstance(data.seed, np.ndarray) and not data.seed.any():
        words = random.seed_words([(round_num, place)], 2)
        data = data._replace(seed=words.view(np.int32)[0])
    changed = {}
    for name, wanted in zip(("x", "y"), dtypes, strict=True):
        values = getattr(data, name)
        found = getattr(values, "dtype", None)
        if (
            isinstance(found, np.dtype)
            and found != wanted
            and np.can_cast(found, wanted, "same_kind")
        ):
            changed[name] = narrowed(np.asarray(values), wanted)
            if changed[name] is None:
                raise ValueError(
                    f"Client {place}: {name} holds numbers that do not fit into {wanted}."
                )
    x, y = (changed.get(name, getattr(data, name)) for name in ("x", "y"))
    if isinstance(getattr(x, "dtype", None), np.dtype) and not _fits(x, dtypes[0], shapes[0]):
        raise ValueError(
            f"Client {place}: inputs are {x.dtype} {[None, *x.shape[2:]]}, but the model takes "
            f"{dtypes[0]} {[None, *shapes[0]]}."
        )
    if isinstance(getattr(y, "dtype", None), np.dtype):
        changed["y"] = _of_target(y, dtypes[1], shapes[1], y_spec, place)
    return data._replace(**changed) if changed else data


def _fits(values, dtype, shape):
    """Returns whether values `[steps, batch, ...]` have the type and shape of one of a model's."""
    # Strings have as many dtypes as lengths.
    if dtype not in (values.dtype, object):
        return False
    found = values.shape[2:]
    return shape is None or (
        len(found) == len(shape)
        and all(wanted in (None, length) for wanted, length in zip(shape, found, strict=True))
    )


def _of_target(y, dtype, target, spec, place):
    """Returns targets `[steps, batch, ...]` in the shape of the model's."""
    found = list(y.shape[2:])
    if found + [1] == target:
        y = np.asarray(y)[..., np.newaxis]
    elif target is not None and found == target + [1]:
        y = np.asarray(y)[..., 0]
    if not _fits(y, dtype, target):
        told = "float32" if y.dtype.kind == "f" else y.dtype
        raise ValueError(
            f"Client {place}: targets are {y.dtype} {[None, *found]}, but the model was made for "
            f"{spec.dtype.name} {[None, *target]}; give from_keras "
            f"y_spec=tf.TensorSpec({[None, *found]}, tf.{told}) if its loss takes them."
        )
    return y


def narrowed(values: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Returns numbers in a narrower type: whole ones exactly, floats as finite.

    Returns:
      The array; `None` if the type does not hold the numbers.
    """
    with np.errstate(over="ignore"):
        found = values.astype(dtype)
    if dtype.kind in "iu":
        holds = np.array_equal(found, values)
    else:
        holds = dtype.kind != "f" or np.array_equal(np.isinf(found), np.isinf(values))
    return found if holds else None


def as_pair(element: Any) -> Any:
    """Returns an element of a data set, or its spec, as (x, y) if it is a dictionary of just them.

    Args:
      element: Any element. Everything but a mapping with exactly the keys `x` and `y` is returned
        unchanged.
    """
    if isinstance(element, Mapping) and set(element) == {"x", "y"}:
        return element["x"], element["y"]
    return element


def check_finite(dataset: Any) -> None:
    """Refuses a `tf.data.Dataset` that would never end.

    Raises:
      ValueError: If it is known to be infinite.
    """
    if int(dataset.cardinality()) == _INFINITE:
        raise ValueError(
            "A client's dataset is infinite: give repeat() a number, or limit it by take(...)."
        )


def _is_batched(x, y):
    return np.ndim(x) > 0 and np.ndim(y) > 0 and len(x) == len(y)


def from_dataset(
    dataset: Any, *, dropout_seed: Sequence[int] | None = None, index: int = -1
) -> ClientData:
    """Turns a batched `tf.data.Dataset`, as TFF's examples use, into `ClientData`.

    Args:
      dataset: Finite dataset of batches (x `[b, ...]`, y `[b, ...]`), or of dictionaries of x and
        y; the order is kept. For several epochs, repeat it; methods that need one pass then take
        the whole as one.
      dropout_seed: As for `batch_client`.
      index: Position of the client among all training clients, from 0; -1 if unknown.

    Raises:
      ValueError: If the dataset is infinite, or empty (its shapes would be unknown). Also if its
        batches differ in the shape of an example, or its elements have another form.
    """
    check_finite(dataset)
    batches = [as_pair(batch) for batch in dataset.as_numpy_iterator()]
    if not batches:
        raise ValueError(
            "The dataset holds no batch; leave clients without data out of the cohort."
        )
    if not all(isinstance(b, tuple) and len(b) == 2 and _is_batched(*b) for b in batches):
        raise ValueError(
            "Each element of the dataset must be a pair (x, y) of batched arrays, or a dictionary "
            "of x and y: batch(...) makes batches of examples, and map(lambda e: (e['pixels'], "
            "e['label'])) pairs of dictionaries with other keys."
        )
    # A batch may have lost all its examples to a filter; a client's steps end where one has none.
    batches = [b for b in batches if len(b[1])] or batches
    counts = np.array([len(y) for _, y in batches])
    size = counts.max()
    mask = (np.arange(size) < counts[:, np.newaxis]).astype(np.float32)

    def stacked(name, values):
        shapes = sorted({v.shape[1:] for v in values})
        if len(shapes) > 1:
            raise ValueError(
                f"The batches of the dataset hold {name} of different shapes: {list(shapes[0])} "
                f"and {list(shapes[1])}; pad them to one shape, for example with padded_batch(...)."
            )
        padded = np.empty((len(values), size, *values[0].shape[1:]), values[0].dtype)
        for place, batch in zip(padded, values, strict=True):
            place[: len(batch)] = batch
            place[len(batch) :] = batch[:1]
        return padded

    return ClientData(
        x=stacked("x", [x for x, _ in batches]),
        y=stacked("y", [y for _, y in batches]),
        mask=mask,
        steps_per_epoch=np.int32(len(batches)),
        num_examples=np.int32(counts.sum()),
        participates=np.float32(1),
        seed=(
            _UNSEEDED
            if dropout_seed is None
            else random.seed_words([dropout_seed], 2).view(np.int32)[0]
        ),
        index=np.int32(index),
    )
