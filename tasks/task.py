"""The vocabulary of a task: clients' examples, federated data, model, loss, metrics."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

# Characters of an error text at its beginning and at its end that are always shown.
_HALF = 1000


class DataError(Exception):
    """Data that is missing, damaged or not what it should be.

    The text is one line: which file, what is wrong, where to get it and which flag points at it.
    """

    def __init__(self, text: str):
        r"""Makes a line of a text, into which names and contents of files may have got.

        Args:
          text: What is wrong; a line feed in it becomes `\n`, and of very long ones the middle is
            left out.
        """
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        if len(line) > 2 * _HALF:
            line = f"{line[:_HALF]} ... {line[-_HALF:]}"
        super().__init__(line)


class Examples(NamedTuple):
    """Labelled examples as arrays.

    Attributes:
      x: Inputs, `[n, ...]`.
      y: Targets, `[n, ...]`.
    """

    x: np.ndarray
    y: np.ndarray


class FederatedData(Protocol):
    """Clients' examples, read client by client.

    Data may also have `files` and `held_in_memory`, see the functions of these names; without them
    a run reads all examples once when it starts, to recognise the data when it is resumed.

    Attributes:
      client_ids: Name of each client, in a fixed order; a client's place in it is its index.
      sizes: int64 `[number of clients]`, examples of each client.
    """

    client_ids: Sequence[str]
    sizes: np.ndarray

    def examples(self, index: int) -> Examples:
        """Returns all examples of the client at `index`, in a fixed order, ready for the model."""


def files(data: Any) -> tuple[str, ...]:
    """Returns the files that data or an array are read from whenever they are used.

    Args:
      data: Federated data, or something that stands for an array. It says so with an attribute
        `files` (paths); a NumPy memory map says so itself.
    """
    if isinstance(data, np.memmap):
        # Arrays that NumPy makes of a map are of its class, too, but lie in memory.
        return () if data.filename is None else (str(data.filename),)
    return tuple(getattr(data, "files", ()))


def held_in_memory(data: FederatedData, index: int) -> Sequence[np.ndarray]:
    """Returns the arrays in memory that, with the data's files, make up a client's examples.

    By default those are the examples themselves, or nothing where there are files. Data whose
    compact form is smaller than the examples, or that are partly in files, have a method
    `held_in_memory(index)`.
    """
    own = getattr(data, "held_in_memory", None)
    if own is not None:
        return own(index)
    return () if files(data) else data.examples(index)


class ArrayFederatedData:
    """Federated data held as one array per feature and a list of rows for each client.

    Attributes:
      files: See the function of this name.
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
          rows: For each client the rows of `x` and `y` that are its examples, int `[n_k]`.
          client_ids: Clients' names, as text (numbers become text); their indices by default.
          transform: Turns a client's `x` from the compact form into the model's input when the
            client is read (e.g. uint8 to float32 in [0, 1]), so that only the compact form stays
            in memory.

        Raises:
          ValueError: If rows are no numbers of rows, or ids are of another number of clients.
        """
        for of_client in map(np.asarray, rows):
            # Of a mask, what is true would be row 1, and all else row 0.
            if of_client.size and of_client.dtype.kind not in "iu":
                raise ValueError(
                    f"rows must be whole numbers, found {of_client.dtype}; numpy.flatnonzero makes "
                    "them of a mask."
                )
        if client_ids is not None and len(client_ids) != len(rows):
            raise ValueError(f"{len(client_ids)} client_ids of {len(rows)} clients.")
        # Rows of a table of pandas's go by its index, which need not be in order.
        x, y = (v.to_numpy() if hasattr(v, "to_numpy") else v for v in (x, y))
        self._x = x
        self._y = y
        self._rows = [np.asarray(r, np.int64) for r in rows]
        self._transform = transform
        self.files = files(x) + files(y)
        self._in_files = bool(files(x)), bool(files(y))
        names = range(len(rows)) if client_ids is None else client_ids
        are_text = client_ids is not None and all(isinstance(name, str) for name in names)
        self.client_ids = client_ids if are_text else [str(name) for name in names]
        self.sizes = np.array([len(r) for r in self._rows], np.int64)

    def examples(self, index: int) -> Examples:
        """Returns all examples of the client at `index`."""
        rows = self._rows[index]
        x = self._x[rows]
        return Examples(self._transform(x) if self._transform else x, self._y[rows])

    def held_in_memory(self, index: int) -> Sequence[np.ndarray]:
        """See `tasks.task.held_in_memory`; of an array in a file it is the client's rows."""
        rows = self._rows[index]
        arrays = zip((self._x, self._y), self._in_files, strict=True)
        return [rows if in_files else array[rows] for array, in_files in arrays]


# (y_true [B, ...], y_pred [B, ...]) -> values [B, ...], or (values, weights) where positions of an
# example differ in weight (padding). Keras's functional losses and metrics have this form.
ElementwiseFn = Callable[[Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Task:
    """Everything a method needs to learn and to be measured.

    Attributes:
      name: Name of the task.
      train: Clients' training examples.
      test: Clients' own test examples, client by client the same clients as `train` where
        `test.client_ids` equals `train.client_ids`, or other clients (e.g. writers held out), or
        `None` if clients have no tests.
      central_test: Test examples that belong to no client; `None` if there are none.
      keras_model_fn: Makes the model, built, with initial weights that are a pure function of the
        seed given: `keras_model_fn(seed) -> tf.keras.Model`.
      loss: Elementwise training loss.
      metrics: Elementwise metrics by name, each reported as a weighted mean.
      primary_metric: The key of `metrics` in which the papers compare methods on this task.
      higher_is_better: Whether more of the primary metric is better.
      loss_reduction: `mean` over the examples of a batch, or `sum` (TFF's tag prediction).
      settings: The settings in force, for the record.
      clean_train: `train` as it was before its labels were made noisy, for reports only; `None` if
        they were not.
      constants: Arrays beside the examples that the numbers depend on, by what they are, such as
        vectors of words that are not learnt.
      files: Paths of files that the task's code reads by itself, such as a table of class weights.
        A run with another content of them is another run.
    """

    name: str
    train: FederatedData
    test: FederatedData | None
    central_test: Examples | None
    keras_model_fn: Callable[[int], Any]
    loss: ElementwiseFn
    metrics: Mapping[str, ElementwiseFn]
    primary_metric: str
    higher_is_better: bool = True
    loss_reduction: str = "mean"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    clean_train: FederatedData | None = None
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: Sequence[str] = ()
