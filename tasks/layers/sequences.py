"""Sequences without their padding: computes values at real positions only.

A tensor `[batch, time, ...]` can carry its rows: the values at its real positions, one after the
other. Layers and losses that know of rows (`lstm.LSTM`, `Dense`, the losses for classes) take the
rows and pass rows on. All others take the tensor, whose padding is zero. In a graph the tensor is
computed only if something uses it.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tasks.layers import as_written


class Rows(NamedTuple):
    """The values of a tensor `[batch, time, ...]` at some of its positions.

    Attributes:
      values: `[rows, ...]`.
      places: Flat position of each row: its example times the number of time steps, plus its time
        step, int32 `[rows]`.
    """

    values: tf.Tensor
    places: tf.Tensor


def rows_of(sequences: tf.Tensor) -> Rows | None:
    """Returns the rows that a tensor carries, or `None`. A tensor with rows is zero elsewhere."""
    return getattr(sequences, "_rows", None)


def take(sequences: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns the rows of `[batch, time, ...]` at some positions, `[rows, ...]`."""
    return tf.gather(tf.reshape(sequences, [-1, *sequences.shape[2:]]), places)


def spread(rows: Rows, like: tf.Tensor) -> tf.Tensor:
    """Returns rows `[rows, ...]` as a tensor `[batch, time, ...]` that carries them.

    Args:
      rows: The rows.
      like: A tensor of the same batch and time.
    """
    batch, time = like.shape[0] or tf.shape(like)[0], like.shape[1] or tf.shape(like)[1]
    width = rows.values.shape[1:]
    flat = tf.scatter_nd(rows.places[:, tf.newaxis], rows.values, [batch * time, *width])
    sequences = tf.reshape(flat, [batch, time, *width])
    sequences._rows = rows
    return sequences


class Dense(as_written.AsWritten, tf.keras.layers.Dense):
    """Keras's dense layer, which computes only the rows if its inputs carry rows.

    Its outputs are then zero at other positions, and carry rows in turn. For inputs without rows,
    outputs are Keras's.
    """

    def call(self, inputs: Any) -> Any:
        """Runs the layer.

        Args:
          inputs: `[batch, time, features]`.

        Returns:
          `[batch, time, units]`.
        """
        rows = rows_of(inputs)
        if rows is None:
            return super().call(inputs)
        return spread(rows._replace(values=super().call(rows.values)), inputs)
