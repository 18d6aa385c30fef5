"""A lower bound on the time of a round, measured on the machine of the comparison.

The lower bound for a round of FedAvg is the larger of two times. One is the time of its
multiply-adds at the rate of large matrix products. The other is the time to read and write its
weights and gradients at the rate of memory:

    multiply-adds = n Σ_l c_l m_l,    steps = Σ_k ⌈n_k / B⌉

n is the total number of examples, of which client k has n_k. m_l is the number of multiply-adds of
layer l for one example: the size of its kernels times the number of positions at which they are
applied. Positions are pixels of the output or words of a sentence, without padding.

The forward pass, the gradient of the layer's inputs and the gradient of its kernels take m_l each,
so c_l = 3. If the layer's inputs are the data, they need no gradient, and zeros need no product.
Then c_l is twice the share of the data that is not zero. Biases, normalisation, activations and
loss are not counted. In every step the gradient is written once; then it and the weights are read,
and the weights are written.

The side `floor` of `benchmarks.speed` carries out both instead of calculating them. It does as many
multiply-adds in matrix products, and as many steps on vectors of the model's size, which may stay
in a cache if the model's can. So both rates are measured in the same run as the other sides.
"""

import concurrent.futures
import os
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from benchmarks.workloads import Workload

_SIDE = 512  # Rows and columns of the matrices, which fit into a core's cache.


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
            products *= not_zero  # Padding consists of zeros.
        total += (2 * not_zero if _takes_data(layer) else 3) * products
    return examples * total


def _share_of_inputs(layer) -> float:
    """Returns the share of a convolution's products that do not involve padding."""
    ones = tf.ones([1, *layer.input_shape[1:3], 1])
    kernel = tf.ones([*layer.kernel_size, 1, 1])
    met = tf.nn.conv2d(ones, kernel, layer.strides, layer.padding.upper())
    return float(tf.reduce_mean(met)) / float(np.prod(layer.kernel_size))


def _takes_data(layer) -> bool:
    """Returns whether a layer's inputs are the model's, possibly flattened."""
    before = layer.inbound_nodes[0].inbound_layers
    while isinstance(before, tf.keras.layers.Flatten):
        before = before.inbound_nodes[0].inbound_layers
    return isinstance(before, tf.keras.layers.InputLayer)


def steps(workload: Workload) -> int:
    """Returns the total number of local steps of a round's clients."""
    return sum(-(-len(y) // workload.batch_size) for _, y in workload.clients)


def rounds(workload: Workload) -> Callable[[range], None]:
    """Returns a function that takes the lower bound of rounds; its first call decides which one."""
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
    """Returns a function that does a number of multiply-adds by matrix products."""
    matrix = tf.random.stateless_uniform([_SIDE, _SIDE], [0, 0])
    whole, rest = divmod(round(number / _SIDE**2), _SIDE)
    last = matrix[:rest]

    def work():
        for _ in range(whole):
            tf.matmul(matrix, matrix)
        tf.matmul(last, matrix)

    return work


def _walks(size: int, number: int) -> Callable[[], None]:
    """Returns a function that does a number of gradient descent steps on vectors."""
    weights, gradient = np.ones(size, np.float32), np.empty(size, np.float32)

    def work():
        for _ in range(number):
            np.multiply(weights, np.float32(1e-3), out=gradient)
            np.subtract(weights, gradient, out=weights)

    return work
