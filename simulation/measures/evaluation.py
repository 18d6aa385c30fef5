"""Evaluation of weights on test examples, pooled or client by client.

Examples of all clients are joined into large chunks, and per-example values are summed by client.
So the cost does not depend on the number of clients. The order is fixed and sums are float64, so
equal weights give equal results.
"""

import collections
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tff_algos
from simulation.device import graph_calls
from simulation.errors import NoWorkersError
from tasks.task import Examples, FederatedData
from tff_suite import memory

# Most numbers in the inputs or outputs of a chunk. Activations inside a model are many times
# larger. With 2**20, a convolutional network was not faster and took 400 MB more.
_CHUNK_NUMBERS = 2**17
_MIN_CHUNK, _MAX_CHUNK = 32, 2048
_CACHE_BYTES = 2**30


class ClientMetrics(NamedTuple):
    """Metrics of each client on its own examples.

    Attributes:
      sizes: Number of examples, int64 `[N]`.
      values: Metric → sum of values, float64 `[N]`.
      weights: Metric → sum of weights, float64 `[N]`.
    """

    sizes: np.ndarray
    values: collections.OrderedDict[str, np.ndarray]
    weights: collections.OrderedDict[str, np.ndarray]

    def by_client(self) -> collections.OrderedDict[str, np.ndarray]:
        """Returns metric → weighted mean of each client, float64 `[N]`; NaN without examples."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return collections.OrderedDict(
                (name, values / self.weights[name]) for name, values in self.values.items()
            )

    def of(self, clients: np.ndarray) -> "ClientMetrics":
        """Returns the metrics of the clients at some positions, in that order."""

        def some(columns):
            return collections.OrderedDict((name, v[clients]) for name, v in columns.items())

        return ClientMetrics(self.sizes[clients], some(self.values), some(self.weights))

    def joined(self, other: "ClientMetrics") -> "ClientMetrics":
        """Returns the metrics of the same clients on both sets of examples together."""

        def both(a, b):
            return collections.OrderedDict((name, a[name] + b[name]) for name in a)

        return ClientMetrics(
            self.sizes + other.sizes,
            both(self.values, other.values),
            both(self.weights, other.weights),
        )

    def pooled(self) -> collections.OrderedDict[str, float]:
        """Returns metric → weighted mean over all examples of all clients; NaN without any."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return collections.OrderedDict(
                (name, float(np.sum(values) / np.sum(self.weights[name])))
                for name, values in self.values.items()
            )


class Evaluator:
    """Evaluates weights of one model on clients' examples."""

    def __init__(
        self,
        model: "tff_algos.Model",
        num_outputs: int = 1,
        chunk: int | None = None,
        spread: Callable | None = None,
    ):
        """Initialises the evaluator.

        Args:
          model: The model.
          num_outputs: Number of the model's outputs per example; bounds the memory of a chunk.
          chunk: Examples per chunk; by default derived from the two arguments above.
          spread: Function that distributes the work on test sets with a name: (name, weights,
            number of chunks, examples per chunk) → results of `sums` for all chunks, in order. If
            it raises a `NoWorkersError`, this evaluator does the work itself.
        """
        self.model, self._spread = model, spread
        numbers = max(int(np.prod(model.x_spec.shape[1:])), num_outputs, 1)
        self._chunk = chunk or int(np.clip(_CHUNK_NUMBERS // numbers, _MIN_CHUNK, _MAX_CHUNK))
        self._names: list[str] = []
        self._forward = self._build_forward()

    def prepare(
        self, data: FederatedData, cache_bytes: int = _CACHE_BYTES, name: Any = None
    ) -> "TestSet":
        """Prepares examples for evaluations, and reads them once if they fit into memory.

        Args:
          data: Clients' examples.
          cache_bytes: Examples are kept in memory up to this size; larger ones are read again in
            every evaluation.
          name: Name of the test set for other workers; examples are then read when needed.
        """
        return TestSet(data, self.model, self._chunk, cache_bytes, name)

    def __call__(self, weights: Any, tests: "TestSet") -> ClientMetrics:
        """Evaluates.

        Args:
          weights: The model's trainable weights, a sequence of arrays.
          tests: The test set, from `prepare`.

        Returns:
          Sums for each client.

        Raises:
          ValueError: If there are no examples.
        """
        found = None
        if self._spread is not None and tests.name is not None:
            # Without workers this process evaluates, so that the completed round can be recorded;
            # the next round then raises the error.
            with contextlib.suppress(NoWorkersError):
                found = self._spread(tests.name, weights, tests.number, self._chunk)
        if found is None:
            found = self.sums(weights, tests)
        totals = None
        for first, sums in found:
            if totals is None:
                totals = np.zeros((*sums.shape[:2], len(tests.sizes)))
            totals[:, :, first : first + sums.shape[2]] += sums
        if totals is None:
            raise ValueError("There are no examples to evaluate on.")
        return ClientMetrics(
            tests.sizes,
            collections.OrderedDict((n, totals[i, 0]) for i, n in enumerate(self._names)),
            collections.OrderedDict((n, totals[i, 1]) for i, n in enumerate(self._names)),
        )

    def sums(
        self, weights: Any, tests: "TestSet", chunks: range | None = None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Evaluates some chunks of a test set.

        Args:
          weights: The model's trainable weights, a sequence of arrays.
          tests: The test set.
          chunks: Which of its chunks; all by default.

        Yields:
          For each chunk, the index of its first client and sums, float64 `[metrics, 2, n]`: for
          each metric the sums of values and of weights, for n clients from the first one on.
        """
        weights = tuple(tf.convert_to_tensor(w) for w in weights)
        for sums, clients in self._forward_all(weights, tests.chunks(chunks)):
            first = int(clients[0])
            places = clients - first
            yield first, np.array([[np.bincount(places, s) for s in metric] for metric in sums])

    def _forward_all(self, weights, chunks):
        """Yields the results of all chunks in order, with one chunk per core in progress."""

        def forward(x, y, mask, clients):
            (sums,) = self._forward(*weights, x, y, mask)
            return sums.numpy()[:, :, : len(clients)], clients

        cores = len(os.sched_getaffinity(0))
        with futures.ThreadPoolExecutor(cores) as pool:
            under_way = collections.deque()
            for chunk in chunks:
                under_way.append(pool.submit(forward, *chunk))
                if len(under_way) > cores:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()

    def _build_forward(self):
        model, chunk = self.model, self._chunk

        def forward(*tensors):
            *weights, x, y, mask = tensors
            batch = tff_algos.Batch(x, y, mask)
            metrics = model.forward(tuple(weights), batch, False, tf.zeros([2], tf.int32)).metrics
            self._names = list(metrics)
            return tf.stack([tf.stack(sums) for sums in metrics.values()])

        # Called with flat tensors, since binding a structure would take longer than a small model
        # takes for a chunk.
        traced = tf.function(forward, autograph=False).get_concrete_function(
            *(tf.TensorSpec(w.shape, w.dtype) for w in model.initial_weights),
            *(tf.TensorSpec([chunk, *s.shape[1:]], s.dtype) for s in (model.x_spec, model.y_spec)),
            tf.TensorSpec([chunk], tf.float32),
        )
        called = graph_calls.Shared(traced._inference_function)
        return lambda *tensors: called(*tensors, *traced.captured_inputs)


class PersonalEvaluator:
    """Evaluates every client with its own weights."""

    def __init__(self, model: "tff_algos.Model", spread: Callable | None = None):
        """Initialises the evaluator.

        Args:
          model: The model.
          spread: Function that distributes the work on examples with a name: (name, weights,
            own_of, clients, sizes) → (client, its metrics) for each client, with `weights` and
            `own_of` as for `__call__`.
        """
        self._model, self._spread = model, spread
        self._evaluators: dict[int, Evaluator] = {}

    def __call__(
        self,
        weights: Any,
        own_of: Callable[[int], Any],
        data: FederatedData,
        name: str | None = None,
    ) -> ClientMetrics:
        """Evaluates.

        Args:
          weights: The trainable weights for clients without their own, a sequence of arrays.
          own_of: Index of a client → its own weights; `None` if it has none.
          data: Clients' examples.
          name: Name of the examples for other workers.

        Returns:
          Sums for each client.

        Raises:
          ValueError: If there are no examples.
        """
        sizes = np.asarray(data.sizes, np.int64)
        clients = np.flatnonzero(sizes).tolist()
        if not clients:
            raise ValueError("There are no examples to evaluate on.")
        found = None
        if self._spread is not None and name is not None:
            with contextlib.suppress(NoWorkersError):
                found = dict(self._spread(name, weights, own_of, clients, sizes[clients]))
        if found is None:
            found = dict(self.each(weights, ((k, own_of(k)) for k in clients), data))

        def gathered(field):
            columns = collections.OrderedDict()
            for name in getattr(next(iter(found.values())), field):
                columns[name] = np.zeros(len(sizes))
                for client, metrics in found.items():
                    columns[name][client] = getattr(metrics, field)[name][0]
            return columns

        return ClientMetrics(sizes, gathered("values"), gathered("weights"))

    def each(
        self, weights: Any, own: Iterable[tuple[int, Any]], data: FederatedData
    ) -> Iterator[tuple[int, ClientMetrics]]:
        """Evaluates some clients.

        Args:
          weights: As for `__call__`.
          own: Indices of clients with their own weights, or `None` for those without.
          data: Clients' examples.

        Yields:
          The index of each client and its metrics, a `ClientMetrics` of one client.
        """
        for client, of_client in own:
            examples = data.examples(client)
            # Few different chunk sizes, so that few programs serve all clients.
            chunk = 1 << min(int(len(examples.y) - 1).bit_length(), 10)
            if chunk not in self._evaluators:
                self._evaluators[chunk] = Evaluator(self._model, chunk=chunk)
            evaluator = self._evaluators[chunk]
            tests = evaluator.prepare(OneClient(examples), cache_bytes=0)
            yield client, evaluator(weights if of_client is None else of_client, tests)


class TestSet:
    """Clients' examples in chunks of one size, which may span clients.

    Attributes:
      sizes: Examples of each client, int64 `[N]`.
      number: Number of chunks.
      name: See `Evaluator.prepare`.
    """

    __test__ = False  # Otherwise pytest would collect it as tests.

    def __init__(
        self,
        data: FederatedData,
        model: "tff_algos.Model",
        chunk: int,
        cache_bytes: int,
        name: Any = None,
    ):
        """Initialises the test set; see `Evaluator.prepare`."""
        self.name = name
        self.sizes = np.asarray(data.sizes, np.int64)
        self._data, self._model, self._chunk = data, model, chunk
        per_example = memory.nbytes((model.x_spec, model.y_spec))
        fits = per_example * int(np.sum(self.sizes)) <= cache_bytes
        self.number = -(-int(np.sum(self.sizes)) // chunk)
        self._cached = {} if fits else None
        if fits and name is None:
            collections.deque(self.chunks(), maxlen=0)

    def chunks(
        self, which: range | None = None
    ) -> Iterable[tuple[tf.Tensor, tf.Tensor, tf.Tensor, np.ndarray]]:
        """Yields x, y, mask, each `[chunk, ...]`, and the client of each real example.

        Args:
          which: Which chunks; all by default.
        """
        which = range(self.number) if which is None else which
        known = self._cached or {}
        if all(index in known for index in which):
            yield from (known[index] for index in which)
            return
        for index, chunk in zip(which, self._read(which), strict=True):
            if self._cached is not None:
                self._cached[index] = chunk
            yield chunk

    def _read(self, which):
        """Reads neighbouring chunks."""
        start, stop = which.start * self._chunk, which.stop * self._chunk
        ends = np.cumsum(self.sizes)
        xs, ys, clients, filled = [], [], [], 0
        first = int(np.searchsorted(ends, start, side="right"))
        for client, size in enumerate(self.sizes[first:], first):
            before = int(ends[client] - size)
            if before >= stop:
                break
            if not size:
                continue
            examples = self._data.examples(client)
            if len(examples.y) != size:
                raise ValueError(f"Client {client} has {len(examples.y)} examples, not {size}.")
            taken, size = max(0, start - before), min(int(size), stop - before)
            while taken < size:
                part = slice(taken, min(taken + self._chunk - filled, size))
                y = examples.y[part]
                xs.append(examples.x[part])
                ys.append(y)
                clients.append(np.full(len(y), client))
                taken += len(y)
                filled += len(y)
                if filled == self._chunk:
                    yield self._pad(xs, ys, clients)
                    xs, ys, clients, filled = [], [], [], 0
        if filled:
            yield self._pad(xs, ys, clients)

    def _pad(self, xs, ys, clients):
        clients = np.concatenate(clients)
        missing = self._chunk - len(clients)

        def pad(parts, spec):
            # Padded with a real example, since a model need not support zeros.
            values = np.concatenate([*parts, np.repeat(parts[0][:1], missing, axis=0)])
            return tf.convert_to_tensor(values, spec.dtype)

        mask = np.zeros(self._chunk, np.float32)
        mask[: len(clients)] = 1.0
        return (
            pad(xs, self._model.x_spec),
            pad(ys, self._model.y_spec),
            tf.convert_to_tensor(mask),
            clients,
        )


class OneClient:
    """Examples without clients, in the form of `FederatedData` with one client."""

    def __init__(self, examples: Examples, rows: np.ndarray | None = None):
        """Initialises the data.

        Args:
          examples: The examples.
          rows: Which of them to take, int `[n]`; all by default.
        """
        self._examples = examples
        if rows is not None and len(rows) < len(examples.y):
            self._examples = Examples(examples.x[rows], examples.y[rows])
        self.client_ids = ["all"]
        self.sizes = np.array([len(self._examples.y)], np.int64)

    def examples(self, index: int) -> Examples:
        """Returns the examples; `index` is 0."""
        del index
        return self._examples


def same_examples(examples: Examples, data: FederatedData) -> bool:
    """Returns whether `examples` are the concatenated examples of all clients of `data`."""
    if len(examples.y) != int(np.sum(data.sizes)):
        return False
    start = 0
    for client, size in enumerate(data.sizes):
        own = data.examples(client)
        rows = slice(start, start + int(size))
        if not np.array_equal(own.y, examples.y[rows]):
            return False
        if not np.array_equal(own.x, examples.x[rows]):
            return False
        start += int(size)
    return True
