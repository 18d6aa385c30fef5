"""An LSTM layer that replaces Keras's, with a written-out backward pass.

TensorFlow differentiates a loop over time step by step. Every tensor of the forward loop is pushed
onto a stack, and each step adds its share to the recurrent weight's gradient, a tensor of that
weight's size.

Here the forward loop keeps gates and cell states in one array. The factors of the chain rule are
then computed for all steps at once, and the recurrent weight's gradient is one matrix product after
the loop. Unlike Keras's layer, this one uses only operations that `tf.vectorized_map` can vectorise
over a cohort.

For one client at a time, padded sequences are sorted by length. A step then processes only the
sequences that have not ended, and the loop ends with the longest.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tasks.layers import as_written, sequences, vectorizable

# What the written-out pass and cuDNN have in common; these arguments of Keras's layer are settled.
_SETTLED = {
    "activation": "tanh",
    "recurrent_activation": "sigmoid",
    "use_bias": True,
    "dropout": 0.0,
    "recurrent_dropout": 0.0,
    "return_state": False,
    "go_backwards": False,
    "stateful": False,
    "time_major": False,
    "unroll": False,
    "zero_output_for_mask": False,
}

# Units from which on a step's product takes so much longer than a turn of TensorFlow's loop that
# fewer rows are worth more than fewer turns.
_LARGE = 512


class LSTM(as_written.AsWritten, tf.keras.layers.LSTM):
    """Keras's LSTM, with equal weights, outputs and gradients, and a faster backward pass on a CPU.

    Weights: `kernel` `[inputs, 4 * units]`, `recurrent_kernel` `[units, 4 * units]` and `bias` `[4
    * units]`, gates in Keras's order (input, forget, cell, output). The state starts at zero. If
    the machine has a GPU, the layer runs Keras's own code, and so cuDNN's, except over several
    clients at once.

    With a mask, sequences must be padded at the end, as cuDNN requires; otherwise all outputs at
    real positions are NaN. The first position is always treated as real. Do not use outputs at
    padding: Keras itself repeats the last real output there on a CPU and gives zeros on a GPU. On a
    CPU, for one client at a time, outputs carry the rows of `tasks.layers.sequences`. Without
    `return_sequences` the output is that of the last real step.
    """

    def __init__(self, units: int, **kwargs: Any):
        """Initialises the layer.

        Args:
          units: Size of the state and of the output.
          **kwargs: Arguments of `tf.keras.layers.LSTM`: `return_sequences`, initialisers, weight
            regularisers, `unit_forget_bias`, `name` and so on.

        Raises:
          ValueError: If an argument requests an unsupported feature, such as dropout.
        """
        for name, value in _SETTLED.items():
            if kwargs.get(name, value) != value:
                raise ValueError(f"{name}={kwargs[name]!r}: this LSTM only has {name}={value!r}.")
        super().__init__(units, **kwargs)

    def call(
        self,
        inputs: Any,
        mask: Any = None,
        training: Any = None,
        initial_state: Any = None,
        real_examples: Any = None,
    ) -> Any:
        """Runs the layer.

        Args:
          inputs: `[batch, time, inputs]`.
          mask: bool `[batch, time]`, False at padding, or `None`.
          training: Not used.
          initial_state: Must be `None`.
          real_examples: Bool `[batch]`, False for padding, or `None`. With a mask, only the first
            position of a padding example is computed.

        Returns:
          `[batch, time, units]` with `return_sequences`, else `[batch, units]`.

        Raises:
          ValueError: If an initial state is given.
        """
        if initial_state is not None:
            raise ValueError("This LSTM starts from zero and takes no initial_state.")
        if tf.config.list_physical_devices("GPU") and not vectorizable.required():
            return super().call(inputs, mask=mask, training=training)
        kernel, recurrent_kernel, bias = (
            tf.convert_to_tensor(w)
            for w in (self.cell.kernel, self.cell.recurrent_kernel, self.cell.bias)
        )
        if mask is not None:
            at_end = tf.reduce_all(mask[:, :-1] | ~mask[:, 1:])
            bias = tf.where(at_end, bias, tf.constant(float("nan"), bias.dtype))
        if mask is None or vectorizable.required():
            # Transposed before the product, which is wider.
            x = tf.tensordot(tf.transpose(inputs, (1, 0, 2)), kernel, 1) + bias
            outputs = tf.transpose(_run(x, recurrent_kernel, _scan, _before), (1, 0, 2))
        else:
            if real_examples is not None:
                # Inside a `TimeDistributed` layer, an example is several rows.
                times = tf.shape(mask)[0] // tf.maximum(tf.shape(real_examples)[0], 1)
                mask &= tf.repeat(real_examples, times)[:, tf.newaxis]
            by_length = _Sorted(mask, 1 if self.units >= _LARGE else _steps_a_turn(mask.shape[1]))
            x = tf.matmul(sequences.take(inputs, by_length.places), kernel) + bias
            rows = _run(x, recurrent_kernel, by_length.scan, by_length.before)
            outputs = sequences.spread(sequences.Rows(rows, by_length.places), inputs)
        if self.return_sequences:
            return outputs
        if mask is None:
            return outputs[:, -1]
        last = tf.maximum(tf.reduce_sum(tf.cast(mask, tf.int32), axis=1) - 1, 0)
        return tf.gather(outputs, last, batch_dims=1)


def _run(x: tf.Tensor, recurrent: tf.Tensor, scan: Callable, before: Callable) -> tf.Tensor:
    """Runs the recurrence from a state of zeros.

    Args:
      x: The inputs' share of the gates before their activations, `[time, batch, 4 * units]`, or
        `[rows, 4 * units]` in the order of a `_Sorted`.
      recurrent: The recurrent kernel, `[units, 4 * units]`.
      scan: `_scan`, or that of the `_Sorted`.
      before: `_before`, or that of the `_Sorted`.

    Returns:
      Outputs, like `x` but `units` wide.
    """
    units = recurrent.shape[0]

    def forward(x: Any, h: Any, c: Any) -> Any:
        i, f, g, o = tf.split(x + tf.matmul(h, recurrent), 4, axis=-1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        c = f * c + i * g
        return o * tf.tanh(c), c, tf.concat([i, f, g, o, c], axis=-1)

    @tf.custom_gradient
    def outputs(x: Any, recurrent: Any) -> Any:
        kept = scan(forward, x, units, 5 * units)
        i, f, g, o, c = tf.split(kept, 5, axis=-1)
        tanh_c = tf.tanh(c)
        h = o * tanh_c

        def gradients(dh_direct: Any) -> Any:
            # Derivatives of c by the gates i, f, g and of h by the gate o, before activations.
            by_gates = [
                g * i * (1 - i),
                before(c) * f * (1 - f),
                i * (1 - g * g),
                tanh_c * o * (1 - o),
            ]
            by_c = o * (1 - tanh_c * tanh_c)  # Of h.
            known = tf.concat([*by_gates, by_c, f, dh_direct], axis=-1)
            transposed = tf.transpose(recurrent)

            def backward(known: Any, dh: Any, dc: Any) -> Any:
                by_gates, by_c, f, dh_direct = tf.split(
                    known, [4 * units, units, units, units], axis=-1
                )
                dh += dh_direct
                dc += dh * by_c
                dgates = tf.concat([dc, dc, dc, dh], axis=-1) * by_gates
                return tf.matmul(dgates, transposed), dc * f, dgates

            dx = scan(backward, known, units, 4 * units, backwards=True)
            drecurrent = tf.matmul(
                tf.reshape(before(h), [-1, units]),
                tf.reshape(dx, [-1, 4 * units]),
                transpose_a=True,
            )
            return dx, drecurrent

        return h, gradients

    return outputs(x, recurrent)


def _steps_a_turn(steps: int | None) -> int:
    """Returns the number of time steps per loop iteration, which amortises its fixed cost."""
    return next(n for n in (5, 4, 3, 2, 1) if (steps or 1) % n == 0)


def _before(states: tf.Tensor) -> tf.Tensor:
    """Returns the states before each step, given those after it, `[time, batch, units]`."""
    return tf.concat([tf.zeros_like(states[:1]), states[:-1]], axis=0)


def _scan(
    step: Callable, inputs: tf.Tensor, units: int, width: int, backwards: bool = False
) -> tf.Tensor:
    """Runs `step(input, a, b) -> (a, b, output)` over time, from states of zeros.

    Args:
      step: Function of a time step's input `[batch, inputs]` and of two states `[batch, units]`.
      inputs: `[time, batch, inputs]`.
      units: Size of a state.
      width: Last dimension of an output.
      backwards: Whether to begin with the last time step.

    Returns:
      The outputs, `[time, batch, width]`, in the order of time.
    """
    steps = inputs.shape[0]
    block = _steps_a_turn(steps)
    turns = (steps or tf.shape(inputs)[0]) // block
    batch = inputs.shape[1] or tf.shape(inputs)[1]
    blocks = tf.reshape(inputs, [turns, block, batch, inputs.shape[-1]])
    array = tf.TensorArray(inputs.dtype, turns, element_shape=[block, inputs.shape[1], width])
    in_turn = slice(None, None, -1 if backwards else 1)

    def turn(i: Any, a: Any, b: Any, array: Any) -> Any:
        place = turns - 1 - i if backwards else i
        outputs = []
        for given in tf.unstack(tf.gather(blocks, place))[in_turn]:
            a, b, output = step(given, a, b)
            outputs.append(output)
        return i + 1, a, b, array.write(place, tf.stack(outputs[in_turn]))

    zeros = tf.zeros([batch, units], inputs.dtype)
    carry = (tf.constant(0), zeros, zeros, array)
    outputs = tf.while_loop(lambda i, *_: i < turns, turn, carry)[3].stack()
    return tf.reshape(outputs, [turns * block, batch, width])


class _Sorted:
    """Sequences sorted by length, the longest first, as rows `[rows, ...]` without padding.

    The rows of the first time step come first, then those of the second, and so on. The steps of
    one loop iteration all have as many rows as its first step. Every sequence has at least one row.
    """

    def __init__(self, mask: tf.Tensor, block: int):
        """Initialises the order.

        Args:
          mask: bool `[batch, time]`, False at padding.
          block: Number of time steps per loop iteration, a divisor of `time`.
        """
        time = mask.shape[1] or tf.shape(mask)[1]
        lengths = tf.maximum(tf.reduce_sum(tf.cast(mask, tf.int32), axis=1), 1)
        order = tf.argsort(lengths, direction="DESCENDING", stable=True)
        until = -(-tf.gather(lengths, order) // block) * block
        present = tf.transpose(tf.sequence_mask(until, time))
        steps_and_ranks = tf.cast(tf.where(present), tf.int32)
        self.places = tf.gather(order, steps_and_ranks[:, 1]) * time + steps_and_ranks[:, 0]
        self._block = block
        self._turns = tf.reduce_max(until) // block
        of_steps = tf.reduce_sum(tf.cast(present, tf.int32), axis=1)
        self._batch = of_steps[0]
        later = steps_and_ranks[self._batch :, 0]
        of_step_before = tf.gather(of_steps, later - 1)
        self._previous = self._batch + tf.range(tf.size(later)) - of_step_before
        # What slices and padding of a turn are given, made for all turns at once.
        sizes = of_steps[::block]
        nothing, all_columns = tf.zeros_like(sizes), -tf.ones_like(sizes)
        starts = tf.cumsum(of_steps, exclusive=True)[::block]
        new = sizes - tf.concat([sizes[1:], [0]], axis=0)
        self._starts = tf.stack([starts, nothing], axis=1)
        self._rows = tf.stack([block * sizes, all_columns], axis=1)
        self._sizes = tf.stack([sizes, all_columns], axis=1)
        self._new = tf.reshape(tf.stack([nothing, new, nothing, nothing], axis=1), [-1, 2, 2])

    def before(self, states: tf.Tensor) -> tf.Tensor:
        """Returns the states before each step, given those after it, `[rows, units]`."""
        zeros = tf.zeros([self._batch, states.shape[1]], states.dtype)
        return tf.concat([zeros, tf.gather(states, self._previous)], axis=0)

    def scan(
        self, step: Callable, inputs: tf.Tensor, units: int, width: int, backwards: bool = False
    ) -> tf.Tensor:
        """As `_scan`, with inputs `[rows, inputs]` and outputs `[rows, width]`."""
        array = tf.TensorArray(
            inputs.dtype, self._turns, element_shape=[None, width], infer_shape=False
        )
        in_turn = slice(None, None, -1 if backwards else 1)

        def turn(i: Any, a: Any, b: Any, array: Any) -> Any:
            place = self._turns - 1 - i if backwards else i
            if backwards:
                a, b = (tf.pad(state, tf.gather(self._new, place)) for state in (a, b))
            else:
                a, b = (tf.slice(s, [0, 0], tf.gather(self._sizes, place)) for s in (a, b))
            for state in (a, b):
                state.set_shape(anything)  # A single unit could be any number of them.
            rows = tf.slice(inputs, tf.gather(self._starts, place), tf.gather(self._rows, place))
            steps = tf.reshape(rows, [self._block, -1, inputs.shape[-1]])
            outputs = []
            for given in tf.unstack(steps)[in_turn]:
                a, b, output = step(given, a, b)
                outputs.append(output)
            return i + 1, a, b, array.write(place, tf.concat(outputs[in_turn], axis=0))

        zeros = tf.zeros([0 if backwards else self._batch, units], inputs.dtype)
        carry = (tf.constant(0), zeros, zeros, array)
        anything = tf.TensorShape([None, units])
        shapes = (tf.TensorShape([]), anything, anything, tf.TensorShape(None))
        return tf.while_loop(lambda i, *_: i < self._turns, turn, carry, shapes)[3].concat()
