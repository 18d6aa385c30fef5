"""What the arithmetic of a round takes at least, on the machine that it is compared on.

The least time of a round of FedAvg is that of its multiply-adds at the rate of large matrix
products, or that of its weights and gradients at the rate of memory, whichever is more:

    multiply-adds = n Σ_l c_l m_l,    steps = Σ_k ⌈n_k / B⌉

with n examples in all, of which client k has n_k, and the multiply-adds m_l of layer l for one of
them: the numbers of its kernels times the positions at which they are applied (pixels of its
output, words of a sentence; its padding needs nothing). Forward pass, gradient for the layer's
inputs and gradient for its kernels take m_l each, c_l = 3; where the inputs are the data, they need
no gradient and their zeros no product, so c_l is twice the share of the data that is not zero.
Biases, normalisation, activations and loss count nothing. In every step the gradient is written
once, and read with the weights that are written then.

Both are carried out rather than calculated, by the side `floor` of `benchmarks.speed`: as many
multiply-adds in products of matrices, and as many steps on vectors of the model's size, which may
stay in a cache where the model's can. So the rates are those of the same run.
"""

import concurrent.futures
import os
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from benchmarks.workloads import Workload

_SIDE = 512  # Of the matrices, which stay in a core's cache.


def multiply_adds(workload: Workload) -> float:
    """Returns the multiply-adds of a round."""
    model = workload.keras_model()
    examples = sum(len(y) for _, y in workload.clients)
    held = sum(x.size for x, _ in workload.clients)
    not_zero = sum(np.count_nonzero(x) for x, _ in workload.clients) / held
    total = 0.0
    for layer in model.layers:
        kernels = [w for w in layer.trainable_weights if w.shape.rank > 1]
        if not kernels or isinstance(layer, tf.keras.layers.Embedding):
            continue
        shape = layer.input_shape if isinstance(layer, tf.keras.layers.RNN) else layer.output_shape
        products = float(np.prod(shape[1:-1])) * sum(int(tf.size(w)) for w in kernels)
        if isinstance(layer, tf.keras.layers.Conv2D):
            products *= _share_of_inputs(layer)
        if layer.output_mask is not None:
            products *= not_zero  # Padding is 0.
        total += (2 * not_zero if _takes_data(layer) else 3) * products
    return examples * total


def _share_of_inputs(layer) -> float:
    """Returns the share of a convolution's products that are with its inputs, not with padding."""
    ones = tf.ones([1, *layer.input_shape[1:3], 1])
    kernel = tf.ones([*layer.kernel_size, 1, 1])
    met = tf.nn.conv2d(ones, kernel, layer.strides, layer.padding.upper())
    return float(tf.reduce_mean(met)) / float(np.prod(layer.kernel_size))


def _takes_data(layer) -> bool:
    """Returns whether a layer's inputs are the model's, flattened perhaps."""
    before = layer.inbound_nodes[0].inbound_layers
    while isinstance(before, tf.keras.layers.Flatten):
        before = before.inbound_nodes[0].inbound_layers
    return isinstance(before, tf.keras.layers.InputLayer)


def steps(workload: Workload) -> int:
    """Returns the local steps of a round's clients together."""
    return sum(-(-len(y) // workload.batch_size) for _, y in workload.clients)


def rounds(workload: Workload) -> Callable[[range], None]:
    """Returns what takes the least time of as many rounds; the first finds out which that is."""
    cores = len(os.sched_getaffinity(0))
    size = sum(int(tf.size(w)) for w in workload.keras_model().trainable_weights)
    products = [_products(multiply_adds(workload) / cores)] * cores
    walks = [_walks(size, len(s)) for s in np.array_split(range(steps(workload)), cores)]
    found = None

    def run(numbers):
        nonlocal found
        with concurrent.futures.ThreadPoolExecutor(cores) as pool:
            if found is None:
                found = max((products, walks), key=lambda works: _seconds(pool, works))
            for _ in numbers:
                _seconds(pool, found)

    return run


def _seconds(pool, works) -> float:
    started = time.perf_counter()
    for done in [pool.submit(work) for work in works]:
        done.result()
    return time.perf_counter() - started


def _products(number: float) -> Callable[[], None]:
    """Returns what does a number of multiply-adds by products of matrices."""
    matrix = tf.random.stateless_uniform([_SIDE, _SIDE], [0, 0])
    whole, rest = divmod(round(number / _SIDE**2), _SIDE)
    last = matrix[:rest]

    def work():
        for _ in range(whole):
            tf.matmul(matrix, matrix)
        tf.matmul(last, matrix)

    return work


def _walks(size: int, number: int) -> Callable[[], None]:
    """Returns what takes a number of steps of gradient descent on vectors."""
    weights, gradient = np.ones(size, np.float32), np.empty(size, np.float32)

    def work():
        for _ in range(number):
            np.multiply(weights, np.float32(1e-3), out=gradient)
            np.subtract(weights, gradient, out=weights)

    return work
