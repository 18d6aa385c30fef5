"""Evaluation of weights on test examples, pooled or client by client.

Examples of all clients are joined into big chunks and per-example values are added up by client, so
that the cost does not depend on the number of clients. The order is fixed and sums are float64, so
equal weights give equal numbers.
"""

import collections
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import tff_algos
from tasks.task import Examples, FederatedData

# Numbers in the inputs or outputs of a chunk; activations inside a model are some times more.
_CHUNK_NUMBERS = 2**20
_MIN_CHUNK, _MAX_CHUNK = 32, 1024
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

    def pooled(self) -> collections.OrderedDict[str, float]:
        """Returns metric → weighted mean over all examples of all clients; NaN without any."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return collections.OrderedDict(
                (name, float(np.sum(values) / np.sum(self.weights[name])))
                for name, values in self.values.items()
            )


class Evaluator:
    """Evaluates weights of one model on one set of clients' examples."""

    def __init__(
        self,
        model: "tff_algos.Model",
        data: FederatedData,
        num_outputs: int = 1,
        cache_bytes: int = _CACHE_BYTES,
    ):
        """Initialises the evaluator; reads all examples once if they fit.

        Args:
          model: The model.
          data: Clients' examples.
          num_outputs: Numbers that the model gives for one example; bounds the memory of a chunk.
          cache_bytes: Up to this size examples are kept in memory; above, they are read again in
            every evaluation.
        """
        self._model = model
        self._data = data
        inputs = int(np.prod(model.x_spec.shape[1:]))
        self._chunk = int(
            np.clip(_CHUNK_NUMBERS // max(inputs, num_outputs, 1), _MIN_CHUNK, _MAX_CHUNK)
        )
        self._forward = self._build_forward()
        self._names: list[str] = []
        per_example = inputs * model.x_spec.dtype.size + 8
        fits = per_example * int(np.sum(data.sizes)) <= cache_bytes
        self._cached = list(self._chunks()) if fits else None

    def __call__(self, weights) -> ClientMetrics:
        """Evaluates.

        Args:
          weights: The model's trainable weights, a sequence of arrays.

        Returns:
          Sums for each client.
        """
        weights = tuple(tf.convert_to_tensor(w) for w in weights)
        num_clients = len(self._data.sizes)
        totals = None
        for x, y, mask, clients in self._cached or self._chunks():
            sums = self._forward(weights, x, y, mask).numpy()[:, :, : len(clients)]
            if totals is None:
                totals = np.zeros((*sums.shape[:2], num_clients))
            for metric in range(len(sums)):
                for part in range(2):
                    totals[metric, part] += np.bincount(clients, sums[metric, part], num_clients)
        if totals is None:
            raise ValueError("There are no examples to evaluate on.")
        return ClientMetrics(
            np.asarray(self._data.sizes, np.int64),
            collections.OrderedDict((n, totals[i, 0]) for i, n in enumerate(self._names)),
            collections.OrderedDict((n, totals[i, 1]) for i, n in enumerate(self._names)),
        )

    def _build_forward(self):
        model, chunk = self._model, self._chunk

        def fixed(spec):
            return tf.TensorSpec([chunk, *spec.shape[1:]], spec.dtype)

        @tf.function(
            autograph=False,
            input_signature=[
                tuple(tf.TensorSpec(w.shape, w.dtype) for w in model.initial_weights),
                fixed(model.x_spec),
                fixed(model.y_spec),
                tf.TensorSpec([chunk], tf.float32),
            ],
        )
        def forward(weights, x, y, mask):
            batch = tff_algos.Batch(x, y, mask)
            metrics = model.forward(weights, batch, False, tf.zeros([2], tf.int32)).metrics
            self._names = list(metrics)
            return tf.stack(
                [tf.stack(values_and_weights) for values_and_weights in metrics.values()]
            )

        return forward

    def _chunks(self) -> Iterator[tuple[tf.Tensor, tf.Tensor, tf.Tensor, np.ndarray]]:
        """Yields x, y, mask (padded to the chunk's size) and the client of each real example."""
        xs, ys, clients, filled = [], [], [], 0
        for client, size in enumerate(self._data.sizes):
            if not size:
                continue
            examples = self._data.examples(client)
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
