"""Evaluation of weights on test examples, pooled or client by client.

Examples of all clients are joined into big chunks and per-example values are added up by client, so
that the cost does not depend on the number of clients. The order is fixed and sums are float64, so
equal weights give equal numbers.
"""

import collections
import os
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tff_algos
from simulation.runtimes import graph_calls
from tasks.task import Examples, FederatedData

# Numbers in the inputs or outputs of a chunk. Activations inside a model are many times more: with
# 2**20 a convolutional network was no faster than with this and took 400 MB more.
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

    def __add__(self, other: "ClientMetrics") -> "ClientMetrics":
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

    def __init__(self, model: "tff_algos.Model", num_outputs: int = 1, chunk: int | None = None):
        """Initialises the evaluator.

        Args:
          model: The model.
          num_outputs: Numbers that the model gives for one example; bounds the memory of a chunk.
          chunk: Examples of a chunk; by default what the two above allow.
        """
        self.model = model
        numbers = max(int(np.prod(model.x_spec.shape[1:])), num_outputs, 1)
        self._chunk = chunk or int(np.clip(_CHUNK_NUMBERS // numbers, _MIN_CHUNK, _MAX_CHUNK))
        self._names: list[str] = []
        self._forward = self._build_forward()

    def prepare(self, data: FederatedData, cache_bytes: int = _CACHE_BYTES) -> "TestSet":
        """Reads examples to evaluate on, once and for all if they fit.

        Args:
          data: Clients' examples.
          cache_bytes: Up to this size examples are kept in memory; above, they are read again in
            every evaluation.
        """
        return TestSet(data, self.model, self._chunk, cache_bytes)

    def __call__(self, weights, tests: "TestSet") -> ClientMetrics:
        """Evaluates.

        Args:
          weights: The model's trainable weights, a sequence of arrays.
          tests: What to evaluate on, from `prepare`.

        Returns:
          Sums for each client.

        Raises:
          ValueError: If there are no examples.
        """
        weights = tuple(tf.convert_to_tensor(w) for w in weights)
        num_clients = len(tests.sizes)
        totals = None
        for sums, clients in self._forward_all(weights, tests):
            if totals is None:
                totals = np.zeros((*sums.shape[:2], num_clients))
            for metric in range(len(sums)):
                for part in range(2):
                    totals[metric, part] += np.bincount(clients, sums[metric, part], num_clients)
        if totals is None:
            raise ValueError("There are no examples to evaluate on.")
        return ClientMetrics(
            tests.sizes,
            collections.OrderedDict((n, totals[i, 0]) for i, n in enumerate(self._names)),
            collections.OrderedDict((n, totals[i, 1]) for i, n in enumerate(self._names)),
        )

    def _forward_all(self, weights, tests):
        """Yields what every chunk gives, in order, with a chunk a core under way."""

        def forward(x, y, mask, clients):
            with graph_calls.calling():
                sums = self._forward(*weights, x, y, mask)
            return sums.numpy()[:, :, : len(clients)], clients

        cores = len(os.sched_getaffinity(0))
        with futures.ThreadPoolExecutor(cores) as pool:
            under_way = collections.deque()
            for chunk in tests.chunks():
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

        # Called with tensors one by one: a structure would take longer to bind than a small model
        # takes for a chunk.
        return tf.function(forward, autograph=False).get_concrete_function(
            *(tf.TensorSpec(w.shape, w.dtype) for w in model.initial_weights),
            *(tf.TensorSpec([chunk, *s.shape[1:]], s.dtype) for s in (model.x_spec, model.y_spec)),
            tf.TensorSpec([chunk], tf.float32),
        )


def evaluate_each(
    model: "tff_algos.Model", weights_of: Callable[[int], Any], data: FederatedData
) -> ClientMetrics:
    """Evaluates every client with weights of its own.

    Args:
      model: The model.
      weights_of: Index of a client → the model's trainable weights, a sequence of arrays.
      data: Clients' examples.

    Returns:
      Sums for each client.

    Raises:
      ValueError: If there are no examples.
    """
    sizes = np.asarray(data.sizes, np.int64)
    evaluators = {}
    found = {}
    for client, size in enumerate(sizes):
        if size:
            # Few sizes of chunks, so that few programs serve all clients.
            chunk = 1 << min(int(size - 1).bit_length(), 10)
            if chunk not in evaluators:
                evaluators[chunk] = Evaluator(model, chunk=chunk)
            evaluator = evaluators[chunk]
            tests = evaluator.prepare(OneClient(data.examples(client)), cache_bytes=0)
            found[client] = evaluator(weights_of(client), tests)
    if not found:
        raise ValueError("There are no examples to evaluate on.")

    def gathered(field):
        columns = collections.OrderedDict()
        for name in getattr(next(iter(found.values())), field):
            columns[name] = np.zeros(len(sizes))
            for client, metrics in found.items():
                columns[name][client] = getattr(metrics, field)[name][0]
        return columns

    return ClientMetrics(sizes, gathered("values"), gathered("weights"))


class TestSet:
    """Clients' examples in chunks of one size, which may span clients."""

    __test__ = False  # Else pytest takes it for tests.

    def __init__(self, data: FederatedData, model: "tff_algos.Model", chunk: int, cache_bytes: int):
        """Initialises the test set; see `Evaluator.prepare`."""
        self.sizes = np.asarray(data.sizes, np.int64)
        self._data, self._model, self._chunk = data, model, chunk
        per_example = int(np.prod(model.x_spec.shape[1:])) * model.x_spec.dtype.size
        per_example += int(np.prod(model.y_spec.shape[1:])) * model.y_spec.dtype.size
        fits = per_example * int(np.sum(self.sizes)) <= cache_bytes
        self._cached = list(self._read()) if fits else None

    def chunks(self) -> Iterable[tuple[tf.Tensor, tf.Tensor, tf.Tensor, np.ndarray]]:
        """Returns x, y, mask, each `[chunk, ...]`, and the client of each real example."""
        return self._read() if self._cached is None else self._cached

    def _read(self):
        xs, ys, clients, filled = [], [], [], 0
        for client, size in enumerate(self.sizes):
            if not size:
                continue
            examples = self._data.examples(client)
            if len(examples.y) != size:
                raise ValueError(f"Client {client} has {len(examples.y)} examples, not {size}.")
            taken = 0
            while taken < size:
                part = slice(taken, taken + self._chunk - filled)
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
            values = np.concatenate(parts)
            values = np.pad(values, [(0, missing)] + [(0, 0)] * (values.ndim - 1))
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
    """Examples that belong to no client, in the form of `FederatedData` with one client."""

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
    """Returns whether `examples` are those of all clients of `data`, one client after the other."""
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
