"""The types that describe a task: clients' examples, federated data, model, loss, metrics."""

import collections
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tasks import directions, functions
from tff_suite import user_warnings
from tff_suite.errors import FedError

# Characters of an error text at its beginning and at its end that are always shown.
_HALF = 1000


class DataError(FedError):
    """Data that is missing, damaged or otherwise unusable.

    The message is one line: which file, what is wrong, where to get it and which flag points at it.
    """

    def __init__(self, text: str):
        r"""Makes one line from a text that may contain names and contents of files.

        Args:
          text: What is wrong. A line feed in it becomes `\n`; a very long text loses its middle.
        """
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        if len(line) > 2 * _HALF:
            line = f"{line[:_HALF]} ... {line[-_HALF:]}"
        super().__init__(line)


class TaskError(DataError, ValueError):
    """An invalid task, or invalid data made in Python: a `ValueError` of one line."""


class _Examples(NamedTuple):
    x: np.ndarray
    y: np.ndarray


class Examples(_Examples):
    """Labelled examples as arrays.

    Attributes:
      x: Inputs, `[n, ...]`.
      y: Targets, `[n, ...]`.
    """

    __slots__ = ()

    def __new__(cls, x: Any, y: Any) -> "Examples":
        """Makes a pair of arrays or array-like objects.

        Lists, tensors and tables of pandas's become arrays; nothing else is read or converted.

        Raises:
          ValueError: If both have a length and the lengths differ. Also if one is sparse or has
            masked values, or is a list of rows of unequal length.
        """
        require_plain("Examples", {"x": x, "y": y})
        if indexes_differ(x, y):
            user_warnings.warn(
                "Examples: x and y are matched by position, though their indexes differ."
            )
        x, y = _as_array("x", x), _as_array("y", y)
        n, m = _length(x), _length(y)
        if n != m and n is not None and m is not None:
            raise TaskError(f"Examples: x has {n} rows but y has {m}; give one row per example.")
        return tuple.__new__(cls, (x, y))

    @classmethod
    def _make(cls, pair: Iterable[Any]) -> "Examples":  # type: ignore[override]
        return cls(*pair)


def require_plain(what: str, arrays: Mapping[str, Any]) -> None:
    """Refuses arrays that are not what they hold: masked or sparse ones.

    Args:
      what: What they are, for the message.
      arrays: Name → array.

    Raises:
      ValueError: If one is sparse or has masked values.
    """
    for name, values in arrays.items():
        if np.ma.is_masked(values):
            # Else a masked value would be taken for what lies under its mask.
            raise TaskError(f"{what}: {name} has masked values; drop or fill them.")
        if hasattr(values, "toarray"):
            raise TaskError(f"{what}: {name} is sparse; give {name}.toarray().")
        if hasattr(values, "dense_shape"):  # Of TensorFlow.
            raise TaskError(f"{what}: {name} is sparse; give tf.sparse.to_dense({name}).")


def indexes_differ(*arrays: Any) -> bool:
    """Returns whether columns or tables of pandas's differ in the labels of their rows."""
    # A list's `index` is a method.
    indexes = [array.index for array in arrays if hasattr(array, "iloc")]
    return not all(index.equals(indexes[0]) for index in indexes)


def _length(values: Any) -> int | None:
    """Returns the number of rows; `None` if it is unknown or `values` is not an array."""
    try:
        return values.shape[0]
    except AttributeError:
        return len(values) if isinstance(values, list) else None
    except (IndexError, TypeError):
        return None


class FederatedData(Protocol):
    """Clients' examples, read client by client.

    Data may also have the attributes `files` and `held_in_memory`; see the functions of these
    names. Without them, a run reads all examples once at its start, so that it recognises the data
    when it resumes.
    """

    @property
    def client_ids(self) -> Sequence[str]:
        """Name of each client, in a fixed order; a client's position in it is its index."""

    @property
    def sizes(self) -> np.ndarray:
        """Number of examples of each client, int64 `[number of clients]`."""

    def examples(self, index: int) -> Examples:
        """Returns all examples of the client at `index`, in a fixed order, ready for the model."""


def files(data: Any) -> tuple[str, ...]:
    """Returns the files from which data or an array are read on every access.

    Args:
      data: Federated data, or an array-like object. An attribute `files` (paths) names the files; a
        NumPy memory map knows its own.
    """
    if isinstance(data, np.memmap):
        # Arrays that NumPy makes of a map are of its class, too, but lie in memory.
        return () if data.filename is None else (str(data.filename),)
    return tuple(getattr(data, "files", ()))


def place_in_files(array: Any) -> Sequence[np.ndarray]:
    """Returns which part of its files an array is, as arrays; nothing if it is not a memory map.

    Two slices of one file are different data, though the file is the same.
    """
    if not isinstance(array, np.memmap) or not files(array):
        return ()
    whole: Any = array
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    begins = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return np.array([whole.offset + begins, *array.shape, *array.strides]), array[:0]


def held_in_memory(data: FederatedData, index: int) -> Sequence[np.ndarray]:
    """Returns the arrays in memory that, with the data's files, make up a client's examples.

    By default these are the examples themselves, or nothing if there are files. Data defines a
    method `held_in_memory(index)` if its compact form is smaller than the examples, or if it is
    partly in files.
    """
    own = getattr(data, "held_in_memory", None)
    if own is not None:
        return own(index)
    return () if files(data) else data.examples(index)


def read(data: FederatedData, index: int) -> Examples:
    """Returns a client's examples after checking their number.

    Raises:
      DataError: If it is not the client's size.
    """
    # A class of one's own may return a named tuple of its own.
    examples: Any = data.examples(index)
    if not isinstance(examples, Examples):
        examples = Examples(examples.x, examples.y)
    number, size = len(examples.y), int(data.sizes[index])
    if number != size:
        raise DataError(
            f"client {data.client_ids[index]!r} has {number} examples, but its size is {size}; "
            "sizes must match what examples returns."
        )
    return examples


def first_with_examples(data: FederatedData) -> int:
    """Returns the index of the first client with examples; 0 if no client has any."""
    return int(np.argmax(np.asarray(data.sizes) > 0))


class ArrayFederatedData:
    """Federated data held as one array per feature, with a list of rows for each client.

    Attributes:
      files: See the function of this name.
      transform: As given.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        rows: Sequence[np.ndarray],
        client_ids: Sequence[str] | None = None,
        transform: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        """Initialises the data.

        Args:
          x: Inputs of all clients, `[n, ...]`, in their compact form (e.g. uint8 pixels).
          y: Targets, `[n, ...]`.
          rows: For each client the rows of `x` and `y` that are its examples, int `[n_k]`, each
            from 0 to n - 1. A row may belong to several clients. A row listed twice for a client is
            used twice, as in a sample with replacement.
          client_ids: Clients' names, as text (numbers become text); by default their indices.
          transform: Turns a client's `x` from the compact form into the model's input on access,
            e.g. uint8 into float32 in [0, 1]. Only the compact form stays in memory.

        Raises:
          ValueError: If `x` and `y` differ in length, or rows are not one list per client of whole
            numbers from 0 to n - 1. Also if ids are missing values or not one per client.
        """
        x, y = Examples(x, y)
        number = _length(y)
        if number is None or _length(x) is None:
            raise TaskError("x and y must be arrays with a row for each example.")
        if isinstance(rows, Mapping):
            raise TaskError(
                "rows must be a list, found a dictionary; give list(rows.values()), and list(rows) "
                "as client_ids."
            )
        if any(hasattr(of_client, "to_numpy") for of_client in rows):
            raise TaskError(
                "rows must hold positions, and pandas's indexes and columns may hold labels; give "
                "list(groupby.indices.values()), or to_numpy() of each if they are positions."
            )
        rows = [np.asarray(of_client) for of_client in rows]
        if client_ids is not None and len(client_ids) != len(rows):
            raise TaskError(f"{len(client_ids)} client_ids of {len(rows)} clients.")
        self.client_ids = _names(client_ids, len(rows))
        self._has_names = client_ids is not None
        self._rows = _checked_rows(rows, number, self.client_ids)
        self._x = x
        self._y = y
        self.transform = transform
        self.files = files(x) + files(y)
        self._in_files = bool(files(x)), bool(files(y))
        self.sizes = np.array([len(r) for r in self._rows], np.int64)

    def examples(self, index: int) -> Examples:
        """Returns all examples of the client at `index`."""
        rows = self._rows[index]
        x = self._x[rows]
        return Examples(self.transform(x) if self.transform else x, self._y[rows])

    def number_in(self, other: "ArrayFederatedData") -> int:
        """Returns how many examples are also in other data of the same array `x`; else 0."""
        if not _are_same(self._x, other._x):
            return 0
        held = np.zeros(_length(self._x) or 0, bool)
        for rows in other._rows:
            held[rows] = True
        return sum(int(held[rows].sum()) for rows in self._rows)

    def held_in_memory(self, index: int) -> Sequence[np.ndarray]:
        """See `tasks.task.held_in_memory`.

        For an array in a file, these are its place in the file and the client's row numbers.
        """
        rows, held = self._rows[index], []
        for array, in_files in zip((self._x, self._y), self._in_files, strict=True):
            held += [*place_in_files(array), rows] if in_files else [array[rows]]
        return held


def _as_array(name: str, values: Any) -> Any:
    """Returns something that can be indexed by rows; arrays stay unchanged, even those in files."""
    if hasattr(values, "to_numpy"):
        # Rows of a table of pandas's go by its index, which need not be in order.
        return values.to_numpy()
    # Tensors take no array as an index.
    if not isinstance(values, list) and not hasattr(values, "numpy"):
        return values
    try:
        return np.asarray(values)
    except ValueError as e:
        raise TaskError(f"{name} is not an array: {e}") from e


def _are_same(one: Any, other: Any) -> bool:
    """Returns whether two arrays are one, such as two views of a table's numbers."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.__array_interface__ == other.__array_interface__
    return one is other


def is_missing(value: Any) -> bool:
    """Returns whether a value is `None`, NaN, NaT or pandas's NA."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def mixes_booleans(values: Iterable[Any]) -> bool:
    """Returns whether booleans are among other values: `True` equals 1 and would become one key."""
    types = {bool if issubclass(kind, np.bool_) else kind for kind in set(map(type, values))}
    return bool in types and len(types) > 1


def _names(client_ids: Sequence[Any] | None, number: int) -> Sequence[str]:
    if client_ids is None:
        return [str(index) for index in range(number)]
    if hasattr(client_ids, "tolist"):
        client_ids = client_ids.tolist()
    if all(isinstance(name, str) for name in client_ids):
        return client_ids
    for index, name in enumerate(client_ids):
        if isinstance(name, bytes) or is_missing(name):
            found = "bytes" if isinstance(name, bytes) else repr(name)
            raise TaskError(f"client_ids must be text or numbers; client {index} has {found}.")
    return [str(name) for name in client_ids]


# So many clients' rows are checked together, which is faster than one by one.
_TOGETHER = 4096


def _checked_rows(
    rows: Sequence[np.ndarray], number: int, client_ids: Sequence[str]
) -> list[np.ndarray]:
    """Returns clients' rows as int64 `[n_k]`, after checking them against the `number` of rows."""
    for name, of_client in zip(client_ids, rows, strict=True):
        if of_client.ndim != 1:
            found = "one number" if of_client.ndim == 0 else f"shape {list(of_client.shape)}"
            raise TaskError(
                f"rows of client {name!r} must be a flat list, found {found}; give each client "
                "its own list."
            )
        # Of a mask, what is true would be row 1, and all else row 0.
        if of_client.size and of_client.dtype.kind not in "iu":
            raise TaskError(
                f"rows of client {name!r} must be whole numbers, found {of_client.dtype}; "
                "of a mask, give numpy.flatnonzero(mask)."
            )
    rows = [of_client.astype(np.int64, copy=False) for of_client in rows]
    for start in range(0, len(rows), _TOGETHER):
        together = np.concatenate(rows[start : start + _TOGETHER])
        if not together.size or (together.min() >= 0 and together.max() < number):
            continue
        for k, of_client in enumerate(rows[start:], start):
            wrong = of_client[(of_client < 0) | (of_client >= number)]
            if wrong.size:
                raise TaskError(
                    f"rows of client {client_ids[k]!r} must be from 0 to {number - 1}, since x and "
                    f"y have {number} rows; found {wrong[0]}."
                )
    return rows


# (y_true [B, ...], y_pred [B, ...]) -> values [B, ...], or (values, weights) where positions of an
# example differ in weight (padding). Keras's functional losses and metrics have this form.
ElementwiseFn = Callable[[Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Task:
    """Everything that a method needs to train and to be evaluated.

    Attributes:
      name: Name of the task.
      train: Clients' training examples.
      test: Clients' own test examples; `None` if clients have none. A client that also trains is
        recognised by its id, in any order. Further clients may only test (e.g. held-out writers).
      central_test: Test examples that belong to no client; `None` without any.
      keras_model_fn: Makes the built model: `keras_model_fn(seed) -> tf.keras.Model`. Its initial
        weights are a pure function of the seed. `None` if the caller of `simulation.run` passes the
        model, or the task is not run (`tasks.plot`).
      loss: Training loss: a Keras loss (name, function or object) or an elementwise function.
      metrics: Metrics by name, in the same forms, each reported as a weighted mean.
      primary_metric: The key of `metrics` in which the papers compare methods on this task; or
        `loss`.
      higher_is_better: Whether more of the primary metric is better. By default the metric's name
        decides (`tasks.directions`); if it does not, more is better, with a warning.
      loss_reduction: `mean` over the examples of a batch, or `sum` (TFF's tag prediction). By
        default the `reduction` of a Keras loss object, or else the mean.
      settings: The settings in force, for the record.
      clean_train: `train` before its labels were made noisy, for reports only; `None` without label
        noise.
      validation: Examples, by client, to choose settings by. They are not training examples; the
        clients may be those of `train` or others. `None` without any.
      constants: Further arrays on which the numbers depend, by description, such as frozen word
        vectors.
      files: Paths of files that the task's code reads itself, such as a table of class weights. If
        their content changes, a run does not resume.
      encoding: How columns of a table became numbers, such as the text of each class, as JSON
        values. A run keeps it in `encoding.json`.
    """

    name: str
    train: FederatedData
    test: FederatedData | None
    central_test: Examples | None
    keras_model_fn: Callable[[int], Any] | None
    loss: Any
    metrics: Mapping[str, Any]
    primary_metric: str
    higher_is_better: bool | None = None
    loss_reduction: str | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    clean_train: FederatedData | None = None
    validation: FederatedData | None = None
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: Sequence[str] = ()
    encoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def keras_model(self, seed: int) -> Any:
        """Returns a new Keras model with the initial weights of a seed.

        Raises:
          ValueError: If the task has no `keras_model_fn`.
        """
        if self.keras_model_fn is None:
            raise TaskError(f"Task {self.name!r} has no keras_model_fn, so it cannot make a model.")
        return self.keras_model_fn(seed)

    def __post_init__(self) -> None:
        """Checks the task, reading the examples of the smallest client of each set.

        Loss and metrics are called on placeholders if TensorFlow is imported (`tasks.functions`).

        Raises:
          ValueError: If something is wrong; the message is one line that says how to fix it.
        """
        try:
            _check_settings(self)
            if self.higher_is_better is None:
                object.__setattr__(self, "higher_is_better", _is_higher_better(self))
            train = _check_data("train", self.train)
            if train is None:
                raise TaskError("no client of train has an example; check its rows.")
            for what, function in (
                (functions.LOSS, self.loss),
                *((f"Metric {name!r}", metric) for name, metric in self.metrics.items()),
            ):
                _refuse(functions.fault(what, function, train.y, train.y_dtype))
            for part in ("test", "validation"):
                data = getattr(self, part)
                form = None if data is None else _check_data(part, data)
                _check_alike(part, form, train)
            if self.central_test is not None:
                _check_alike("central_test", _central(self.central_test), train)
            if self.clean_train is not None:
                _check_clean(self.clean_train, self.train)
        except TaskError as e:
            raise TaskError(f"Task {self.name!r}: {e}") from None
        _report_matched_by_place(self)
        _report_rows_in_both(self)


def _refuse(fault: str) -> None:
    if fault:
        raise TaskError(fault)


def _kind(value: Any) -> str:
    return type(value).__name__


def _check_settings(task: Task) -> None:
    if not isinstance(task.name, str) or not task.name:
        raise TaskError(f"name must be text, found {task.name!r:.80}.")
    make = task.keras_model_fn
    if make is not None and (not callable(make) or _is_model(make)):
        raise TaskError(
            f"the model must be a function from a seed to a new model, found a {_kind(make)}; "
            "write lambda seed: build_model(seed)."
        )
    if make is not None:
        _refuse(functions.fault_of_model_fn(make))
    if not (isinstance(task.loss, str) or callable(task.loss)):
        raise TaskError(
            "loss must be one function of (y, outputs) or the name of a Keras loss, found a "
            f"{_kind(task.loss)}."
        )
    if task.loss_reduction not in (None, "mean", "sum"):
        raise TaskError(f"loss_reduction must be mean or sum, found {task.loss_reduction!r}.")
    if not isinstance(task.higher_is_better, bool | np.bool_ | None):
        raise TaskError(f"higher_is_better must be True or False, found {task.higher_is_better!r}.")
    _check_metrics(task)
    for field in ("settings", "constants", "encoding"):
        if not isinstance(getattr(task, field), Mapping):
            raise TaskError(f"{field} must be a dictionary, found a {_kind(getattr(task, field))}.")


def _is_model(make: Any) -> bool:
    """Returns whether something callable with a seed is itself a model, which is also callable."""
    return not isinstance(make, type) and hasattr(make, "trainable_weights")


# Columns of client_metrics.csv beside the metrics.
_OF_CLIENTS = ("client_id", "train_examples", "test_examples")


def _check_metrics(task: Task) -> None:
    if not isinstance(task.metrics, Mapping):
        raise TaskError(
            f"metrics must be a dictionary by name, found a {_kind(task.metrics)}; write "
            '{"accuracy": function}.'
        )
    for name, metric in task.metrics.items():
        if not isinstance(name, str) or not name or name in _OF_CLIENTS:
            raise TaskError(f"metrics: {name!r} cannot be the name of a metric; choose another.")
        if not (isinstance(metric, str) or callable(metric)):
            raise TaskError(
                f"metrics: {name} must be a function of (y, outputs), found a {_kind(metric)}."
            )
    if task.primary_metric == "loss":
        if task.higher_is_better:
            raise TaskError("primary_metric is the loss; set higher_is_better=False.")
        return
    # Without tests and metrics nothing is compared.
    compared = task.metrics or task.test is not None or task.central_test is not None
    if compared and task.primary_metric not in task.metrics:
        known = ", ".join(task.metrics) or "it has none"
        raise TaskError(
            f"primary_metric={task.primary_metric!r} is not one of its metrics: {known}. Name "
            "one of them, or loss."
        )


def _is_higher_better(task: Task) -> bool:
    """Returns whether more of the primary metric is better, by its name."""
    found = directions.higher_is_better(task.primary_metric)
    if found is None and task.primary_metric in task.metrics:
        user_warnings.warn(
            f"Task {task.name!r}: assuming that higher {task.primary_metric} is better, since its "
            "name does not say; set higher_is_better."
        )
    return found is None or found


class _Form(NamedTuple):
    """Shape of one example and kind of number, of inputs and of targets."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    x_dtype: np.dtype
    y_dtype: np.dtype


def _form_of(x: Any, y: Any) -> _Form:
    arrays = [v if hasattr(v, "dtype") else np.asarray(v) for v in (x, y)]
    # A tensor's dtype is TensorFlow's, which knows NumPy's.
    dtypes = [getattr(v.dtype, "as_numpy_dtype", v.dtype) for v in arrays]
    shapes = [tuple(v.shape[1:]) for v in arrays]
    return _Form(*shapes, *map(np.dtype, dtypes))  # type: ignore[arg-type]


def _check_data(part: str, data: Any) -> _Form | None:
    """Checks federated data; returns the form of its examples, `None` if there are none."""
    if not all(hasattr(data, name) for name in ("client_ids", "sizes", "examples")):
        raise TaskError(
            f"{part} must be federated data, found a {_kind(data)}; "
            "build it from arrays with tasks.task.ArrayFederatedData."
        )
    _check_ids(part, data)
    sizes = np.asarray(data.sizes)
    if (sizes.dtype.kind not in "iu" and sizes.size) or np.any(sizes < 0):
        raise TaskError(f"sizes of {part} must be whole numbers, 0 or more.")
    held = np.flatnonzero(sizes)
    if not len(held):
        return None
    # The client that costs least to read.
    client = int(held[np.argmin(sizes[held])])
    examples = data.examples(client)
    if not (hasattr(examples, "x") and hasattr(examples, "y")):
        raise TaskError(
            f"examples of {part} must return a tasks.task.Examples, found a {_kind(examples)}; "
            "write Examples(x, y)."
        )
    x, y = Examples(examples.x, examples.y)
    name, size = data.client_ids[client], int(sizes[client])
    for of, values in (("inputs", x), ("targets", y)):
        if _length(values) not in (size, None):
            raise TaskError(
                f"client {name!r} of {part} has {_length(values)} {of}, but its size is {size}; "
                "sizes must match what examples returns."
            )
    return _form_of(x, y)


_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def _check_ids(part: str, data: Any) -> None:
    ids = list(data.client_ids)
    # A series of pandas's is indexed by its labels.
    if not hasattr(data.client_ids, "__getitem__") or hasattr(data.client_ids, "to_numpy"):
        raise TaskError(
            f"client_ids of {part} must be a list, found a {_kind(data.client_ids)}; write "
            "list(client_ids)."
        )
    if np.ndim(data.sizes) != 1 or len(ids) != len(data.sizes):
        raise TaskError(f"{part} has {len(ids)} client_ids of {np.size(data.sizes)} clients.")
    # What clients keep, and what is told of them, goes by their ids.
    for name in ids:
        if not isinstance(name, str):
            raise TaskError(f"client_ids of {part} must be text, found a {_kind(name)}.")
    if len(set(ids)) < len(ids):
        twice = collections.Counter(ids).most_common(1)[0][0]
        raise TaskError(f"two clients of {part} have the id {twice!r}; ids must differ.")
    # Neither can be written to the files that name clients.
    unwritable = next((name for name in ids if _UNWRITABLE.search(name)), None)
    if unwritable is not None:
        raise TaskError(
            f"{part}: the client id {unwritable!r} has a zero byte or an unpaired surrogate; "
            "rename it."
        )


def _central(examples: Any) -> _Form | None:
    if not isinstance(examples, Examples):
        raise TaskError(
            f"central_test must be a tasks.task.Examples, found a {_kind(examples)}; write "
            "Examples(x, y)."
        )
    return _form_of(*examples) if _length(examples.y) else None


def _report_matched_by_place(task: Task) -> None:
    """Warns of clients without names that may be taken for other clients of training."""
    train = task.train
    for part in ("test", "validation"):
        data = getattr(task, part)
        if data is None or len(data.client_ids) == len(train.client_ids):
            continue
        known = set(train.client_ids)
        same = next((name for name in data.client_ids if name in known), None)
        if same is not None and not all(getattr(d, "_has_names", True) for d in (train, data)):
            user_warnings.warn(
                f"Task {task.name!r}: client {same!r} of {part} is taken for client {same!r} of "
                f"train, though {part} has {len(data.client_ids)} clients and train "
                f"{len(train.client_ids)}; give both client_ids."
            )


def _report_rows_in_both(task: Task) -> None:
    """Warns of test examples that are training examples, by their rows of the same array."""
    for part in ("test", "validation"):
        data, train = getattr(task, part), task.train
        if not (isinstance(data, ArrayFederatedData) and isinstance(train, ArrayFederatedData)):
            continue
        if data is train:  # Then it is meant.
            continue
        number = data.number_in(train)
        if number:
            user_warnings.warn(
                f"Task {task.name!r}: {number} of {data.sizes.sum()} examples of {part} are "
                "examples of train, too; they make results look better than they are."
            )


def _check_alike(part: str, found: _Form | None, train: _Form) -> None:
    """Refuses test examples that do not fit the model of the training examples."""
    if found is None:
        return
    for what, own, wanted in (("inputs", found.x, train.x), ("targets", found.y, train.y)):
        # Targets in a column are those in a row.
        is_column = what == "targets" and (own == (*wanted, 1) or wanted == (*own, 1))
        if own != wanted and not is_column:
            raise TaskError(
                f"{what} of {part} have shape {[None, *own]}, those of train {[None, *wanted]}; "
                "give both the same shape."
            )
    dtypes = ("inputs", found.x_dtype, train.x_dtype), ("targets", found.y_dtype, train.y_dtype)
    for what, its_dtype, dtype in dtypes:
        # Whole numbers fit into floats, and not the other way round.
        kinds = {"f": "fiub", "i": "iu", "u": "iu"}.get(dtype.kind, dtype.kind)
        if its_dtype.kind not in kinds:
            raise TaskError(
                f"{what} of {part} are {its_dtype}, those of train {dtype}; convert them with "
                "astype."
            )


def _check_clean(clean: Any, train: FederatedData) -> None:
    _check_data("clean_train", clean)
    same = list(clean.client_ids) == list(train.client_ids)
    if not same or not np.array_equal(clean.sizes, train.sizes):
        raise TaskError("clean_train must have the clients of train in the same order and sizes.")
