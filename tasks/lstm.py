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

from tasks import vectorizable

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


class LSTM(tf.keras.layers.LSTM):
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
        x = tf.transpose(tf.tensordot(inputs, kernel, 1) + bias, (1, 0, 2))
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
    steps = x.shape[0] or tf.shape(x)[0]
    zeros = tf.zeros([tf.shape(x)[1], units], x.dtype)

    def forward(t, h, c, kept):
        i, f, g, o = tf.split(tf.gather(x, t) + tf.matmul(h, recurrent), 4, axis=-1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        c = f * c + i * g
        # One write of all of it is cheaper than a write of each.
        return o * tf.tanh(c), c, kept.write(t, tf.concat([i, f, g, o, c], axis=-1))

    kept = _loop(forward, zeros, steps, 5 * units)
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

        def backward(t, dh, dc, kept):
            t = steps - 1 - t
            by_gates, by_c, f, dh_direct = tf.split(
                tf.gather(known, t), [4 * units, units, units, units], axis=-1
            )
            dh += dh_direct
            dc += dh * by_c
            dgates = tf.concat([dc, dc, dc, dh], axis=-1) * by_gates
            return tf.matmul(dgates, transposed), dc * f, kept.write(t, dgates)

        dx = _loop(backward, zeros, steps, 4 * units)
        drecurrent = tf.matmul(
            tf.reshape(previous(h), [-1, units]),
            tf.reshape(dx, [-1, 4 * units]),
            transpose_a=True,
        )
        return dx, drecurrent

    return h, gradients


def _loop(step: Callable, zeros: tf.Tensor, steps: int | tf.Tensor, width: int) -> tf.Tensor:
    """Runs `step(t, a, b, array) -> (a, b, array)` over t = 0, 1, ... from states of zeros.

    Args:
      step: Function of the step's number, two states `[batch, units]` and the array it writes to.
      zeros: The first states.
      steps: Number of steps.
      width: Last dimension of what a step writes.

    Returns:
      What the steps wrote, `[steps, batch, width]`.
    """
    array = tf.TensorArray(zeros.dtype, steps, element_shape=[zeros.shape[0], width])

    def body(t, *carry):
        return t + 1, *step(t, *carry)

    carry = (tf.constant(0), zeros, zeros, array)
    return tf.while_loop(lambda t, *_: t < steps, body, carry)[3].stack()
