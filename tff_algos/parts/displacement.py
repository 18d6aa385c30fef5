"""Local training that sums a client's displacement x_k - x apart from the weights."""

from __future__ import annotations

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.client_data import ClientData
from tff_algos.model import Model
from tff_algos.vector import Vector, zeros


def train(
    model: Model,
    local: client.LocalTraining,
    broadcast: averaging.Broadcast,
    data: ClientData,
) -> tuple[client.LocalResult, Vector, tf.Tensor]:
    """Trains as `client.train` does.

    Args:
      model: The model.
      local: Optimizer and settings of the clients.
      broadcast: What the client receives: x, and its learning rate.
      data: The client's data.

    Returns:
      The trained weights with what was measured, the displacement x_k - x, and the mean loss of the
      examples of the last local epoch, each before its step, float32 scalar.
    """
    x, eta = broadcast
    optimizer = local.optimizer()
    before_last = client.num_steps(data) - data.steps_per_epoch

    def step(at, carry):
        slots, moved, loss, number = carry
        # Summed apart from x: next to it float32 would cut off the digits that tell dependent
        # updates from independent ones.
        slots, moved = optimizer.displace(slots, x, moved, at.gradient)
        examples = tf.where(at.number >= before_last, at.num_examples, 0.0)
        # A loss that is not finite must not hide behind 0 examples: it spoils the weights as well.
        loss += tf.where(examples > 0, at.loss * examples, 0.0)
        return x + moved, (slots, moved, loss, number + examples)

    slots = optimizer.start(x, eta)
    carry = (slots, zeros(x), tf.zeros([]), tf.zeros([]))
    trained, (_, moved, loss, number) = client.take_steps(model, step, x, carry, data)
    return trained, moved, tf.math.divide_no_nan(loss, number)
