"""An LSTM layer whose backward pass is written out, in the place of Keras's.

TensorFlow differentiates a loop over time step by step: what each step of the forward loop computed
goes through one stack per tensor, and each step adds its share to the recurrent weight's gradient,
a tensor of that weight's size. Here the forward loop keeps gates and cell states in one array, the
factors of the chain rule are computed for all steps at once, and the recurrent weight's gradient is
one matrix product after the loop. The operations are those that `tf.vectorized_map` can turn into
operations over a cohort, which Keras's layer does not allow.
"""

from collections.abc import Callable

import tensorflow as tf

from tasks.layers import as_written, vectorizable

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


class LSTM(as_written.AsWritten, tf.keras.layers.LSTM):
    """Keras's LSTM, with equal weights, outputs and gradients, and a faster backward pass on a CPU.

    Weights: `kernel` `[inputs, 4 * units]`, `recurrent_kernel` `[units, 4 * units]` and `bias`
    `[4 * units]`, gates in Keras's order (input, forget, cell, output). The state starts at zero.
    With a GPU in the machine, but not over several clients at once, the layer runs Keras's own
    code, which runs cuDNN's there.

    With a mask, sequences must be padded at the end, as cuDNN wants it; otherwise all outputs are
    NaN. Outputs at padding mean nothing (Keras itself repeats the last real output there on a CPU
    and gives zeros on a GPU); without `return_sequences` the output is that of the last real step.
    """

    def __init__(self, units: int, **kwargs):
        """Initialises the layer.

        Args:
          units: Size of the state and of the output.
          **kwargs: Arguments of `tf.keras.layers.LSTM`: `return_sequences`, initialisers, weight
            regularisers and constraints, `unit_forget_bias`, `name` and so on.

        Raises:
          ValueError: If an argument asks for what this layer does not do (dropout, say).
        """
        for name, value in _SETTLED.items():
            if kwargs.get(name, value) != value:
                raise ValueError(f"{name}={kwargs[name]!r}: this LSTM only has {name}={value!r}.")
        super().__init__(units, **kwargs)

    def call(self, inputs, mask=None, training=None, initial_state=None):
        """Runs the layer.

        Args:
          inputs: `[batch, time, inputs]`.
          mask: bool `[batch, time]`, False at padding, or `None`.
          training: Without effect.
          initial_state: Must be `None`.

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
        # Transposed before the product, which is wider.
        x = tf.tensordot(tf.transpose(inputs, (1, 0, 2)), kernel, 1) + bias
        outputs = tf.transpose(_run(x, recurrent_kernel), (1, 0, 2))
        if self.return_sequences:
            return outputs
        if mask is None:
            return outputs[:, -1]
        last = tf.maximum(tf.reduce_sum(tf.cast(mask, tf.int32), axis=1) - 1, 0)
        return tf.gather(outputs, last, batch_dims=1)


@tf.custom_gradient
def _run(x: tf.Tensor, recurrent: tf.Tensor):
    """Runs the recurrence from a state of zeros.

    Args:
      x: The inputs' share of the gates before their activations, `[time, batch, 4 * units]`.
      recurrent: The recurrent kernel, `[units, 4 * units]`.

    Returns:
      Outputs `[time, batch, units]`, and the function that gives the gradients.
    """
    units = recurrent.shape[0]
    zeros = tf.zeros([tf.shape(x)[1], units], x.dtype)

    def forward(x, h, c):
        i, f, g, o = tf.split(x + tf.matmul(h, recurrent), 4, axis=-1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        c = f * c + i * g
        return o * tf.tanh(c), c, tf.concat([i, f, g, o, c], axis=-1)

    kept = _scan(forward, x, zeros, 5 * units)
    i, f, g, o, c = tf.split(kept, 5, axis=-1)
    tanh_c = tf.tanh(c)
    h = o * tanh_c

    def previous(states):
        return tf.concat([zeros[tf.newaxis], states[:-1]], axis=0)

    def gradients(dh_direct):
        # Derivatives of c by the gates i, f, g and of h by the gate o, before their activations.
        by_gates = [
            g * i * (1 - i),
            previous(c) * f * (1 - f),
            i * (1 - g * g),
            tanh_c * o * (1 - o),
        ]
        by_c = o * (1 - tanh_c * tanh_c)  # Of h.
        known = tf.concat([*by_gates, by_c, f, dh_direct], axis=-1)
        transposed = tf.transpose(recurrent)

        def backward(known, dh, dc):
            by_gates, by_c, f, dh_direct = tf.split(
                known, [4 * units, units, units, units], axis=-1
            )
            dh += dh_direct
            dc += dh * by_c
            dgates = tf.concat([dc, dc, dc, dh], axis=-1) * by_gates
            return tf.matmul(dgates, transposed), dc * f, dgates

        dx = _scan(backward, known, zeros, 4 * units, backwards=True)
        drecurrent = tf.matmul(
            tf.reshape(previous(h), [-1, units]),
            tf.reshape(dx, [-1, 4 * units]),
            transpose_a=True,
        )
        return dx, drecurrent

    return h, gradients


def _scan(
    step: Callable, inputs: tf.Tensor, zeros: tf.Tensor, width: int, backwards: bool = False
) -> tf.Tensor:
    """Runs `step(input, a, b) -> (a, b, output)` over time, from states of zeros.

    Args:
      step: Function of a time step's input `[batch, inputs]` and of two states `[batch, units]`.
      inputs: `[time, batch, inputs]`.
      zeros: The first states.
      width: Last dimension of an output.
      backwards: Whether to begin with the last time step.

    Returns:
      The outputs, `[time, batch, width]`, in the order of time.
    """
    steps = inputs.shape[0]
    # Several steps a turn of TensorFlow's loop, since a turn costs something of its own.
    block = next(n for n in (5, 4, 3, 2, 1) if (steps or 1) % n == 0)
    turns = (steps or tf.shape(inputs)[0]) // block
    batch = zeros.shape[0] or tf.shape(zeros)[0]
    blocks = tf.reshape(inputs, [turns, block, batch, inputs.shape[-1]])
    array = tf.TensorArray(zeros.dtype, turns, element_shape=[block, zeros.shape[0], width])
    in_turn = slice(None, None, -1 if backwards else 1)

    def turn(i, a, b, array):
        place = turns - 1 - i if backwards else i
        outputs = []
        for given in tf.unstack(tf.gather(blocks, place))[in_turn]:
            a, b, output = step(given, a, b)
            outputs.append(output)
        return i + 1, a, b, array.write(place, tf.stack(outputs[in_turn]))

    carry = (tf.constant(0), zeros, zeros, array)
    outputs = tf.while_loop(lambda i, *_: i < turns, turn, carry)[3].stack()
    return tf.reshape(outputs, [turns * block, batch, width])
