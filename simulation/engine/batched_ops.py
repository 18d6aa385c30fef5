"""Vectorises TensorFlow operations over a cohort where TensorFlow's own converters do not suffice.

`tf.vectorized_map` rewrites a graph operation by operation, each with a converter. Some operations
that training needs lack a converter (`OnesLike`). Some converters silently loop over clients
(random numbers, the gradient of a convolution's filter), and some do not support a different filter
for each client. `installed` replaces these by the converters of this module:

  * convolutions as matrix products of patches and filter, one for each client;
  * `StatelessRandomUniform` and `StatelessRandomUniformFullInt` computed for all clients at once,
    with the same bits as TensorFlow's;
  * loops whose condition is the same for all clients as one loop over stacked values;
  * elementwise operations without computing shapes at run time;
  * operations whose converters in TensorFlow give wrong results: axes counted from the end
    (`Roll`), padding other than 0 (`PadV2`), ids outside all segments, items gathered from a list,
    products of transposed complex matrices.

The clients are always the first dimension. A client's values equal those of the original operation
up to the order of float32 sums, and do not depend on other clients.

This module relies on TensorFlow's `parallel_for.pfor`, which is not a public interface. It is
tested with TensorFlow 2.14 and 2.21.
"""

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from simulation.errors import RunError
from tff_suite.compat import func_graph, function_def_to_graph
from tff_suite.compat import pfor as pfor_lib

# The package gives a function the name of this module.

# Convolutions. Shapes: x [K, N, H, W, C], filters [K, h, w, C, O], y and dy [K, N, H', W', O].


def _size(x: tf.Tensor, axis: int) -> Any:
    static = x.shape[axis]
    return tf.shape(x)[axis] if static is None else static


def _patches(x: tf.Tensor, height: int, width: int, strides: Any, padding: str) -> tf.Tensor:
    """Returns the input patch of each output position, `[K, N, H', W', h * w * C]`."""
    if (height, width) == (1, 1):
        return x[:, :, :: strides[0], :: strides[1]]
    merged = tf.reshape(x, [-1, *[_size(x, axis) for axis in (2, 3, 4)]])
    patches = tf.image.extract_patches(
        merged, [1, height, width, 1], [1, *strides, 1], [1, 1, 1, 1], padding
    )
    return tf.reshape(
        patches,
        [_size(x, 0), _size(x, 1), _size(patches, 1), _size(patches, 2), _size(patches, 3)],
    )


def _rows(x: tf.Tensor) -> tf.Tensor:
    """Merges all dimensions between the first and the last."""
    return tf.reshape(x, [_size(x, 0), -1, _size(x, -1)])


def conv2d(x: tf.Tensor, filters: tf.Tensor, strides: Any, padding: str) -> tf.Tensor:
    """Convolves each client's images with its own filters, as `tf.nn.conv2d` does.

    Args:
      x: `[K, N, H, W, C]`, floating point.
      filters: `[K, h, w, C, O]`; h, w, C and O are static.
      strides: Steps along height and width.
      padding: `VALID` or `SAME`.

    Returns:
      `[K, N, H', W', O]`.
    """
    height, width, _, channels = filters.shape[1:]
    patches = _patches(x, height, width, strides, padding)
    y = tf.matmul(_rows(patches), _rows(filters))
    return tf.reshape(y, [*[_size(patches, axis) for axis in range(4)], channels])


def conv2d_backprop_filter(
    x: tf.Tensor, filter_sizes: Any, dy: tf.Tensor, strides: Any, padding: str
) -> tf.Tensor:
    """Returns the gradient of `conv2d` with respect to the filters, `[K, h, w, C, O]`.

    Args:
      x: `[K, N, H, W, C]`, floating point.
      filter_sizes: The static (h, w, C, O).
      dy: Gradient with respect to the result, `[K, N, H', W', O]`.
      strides: As for `conv2d`.
      padding: As for `conv2d`.
    """
    height, width = filter_sizes[:2]
    patches = _patches(x, height, width, strides, padding)
    df = tf.matmul(_rows(patches), _rows(dy), transpose_a=True)
    return tf.reshape(df, [_size(x, 0), *filter_sizes])


def conv2d_backprop_input(
    input_sizes: Any, filters: tf.Tensor, dy: tf.Tensor, strides: Any, padding: str
) -> tf.Tensor:
    """Returns the gradient of `conv2d` with respect to the images, `[K, N, H, W, C]`.

    Args:
      input_sizes: (N, H, W, C) of one client, integers or an int32 tensor `[4]`.
      filters: `[K, h, w, C, O]`, floating point; h, w, C and O are static.
      dy: Gradient with respect to the result, `[K, N, H', W', O]`.
      strides: As for `conv2d`.
      padding: As for `conv2d`.
    """
    height, width, channels, _ = filters.shape[1:]
    paddings = [[0, 0], [0, 0]]
    for axis, window, stride in ((2, height, strides[0]), (3, width, strides[1])):
        size, out = input_sizes[axis - 1], _size(dy, axis)
        if stride > 1:
            dy = _dilate(dy, axis, stride)
        covered = (out - 1) * stride + 1
        # With SAME, an odd row of padding comes last.
        before = tf.maximum(covered - 1 + window - size, 0) // 2 if padding == "SAME" else 0
        paddings.append([window - 1 - before, size + before - covered])
    dy = tf.pad(dy, [*paddings, [0, 0]])
    turned = tf.transpose(filters[:, ::-1, ::-1], [0, 1, 2, 4, 3])
    dx = conv2d(dy, turned, (1, 1), "VALID")
    return tf.reshape(dx, [_size(dy, 0), _size(dy, 1), input_sizes[1], input_sizes[2], channels])


def _dilate(x: tf.Tensor, axis: int, stride: int) -> tf.Tensor:
    """Puts `stride - 1` zeros between neighbours along an axis."""
    sizes = [_size(x, i) for i in range(x.shape.rank)]
    size = sizes[axis]
    x = tf.pad(tf.expand_dims(x, axis + 1), [[0, (stride - 1) * (i == axis + 1)] for i in range(6)])
    x = tf.reshape(x, [*sizes[:axis], size * stride, *sizes[axis + 1 :]])
    return x[(slice(None),) * axis + (slice(0, (size - 1) * stride + 1),)]


# Random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
# 2011), in int64, since not every device has kernels for unsigned integers.

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_SCRAMBLE_KEY = (0x3EC8F720, 0x02461E29)


def _int64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.int64)


def _philox(counter, key):
    """One block of four words for each counter; words are int64 tensors in [0, 2^32)."""
    for r in range(10):
        products = [_int64(m) * c for m, c in zip(_MULTIPLIERS, counter[::2], strict=True)]
        low = [tf.bitwise.bitwise_and(p, _int64(_LOW)) for p in products]
        # Shifting a signed number repeats its sign bit, which the mask removes.
        high = [
            tf.bitwise.bitwise_and(tf.bitwise.right_shift(p, _int64(32)), _int64(_LOW))
            for p in products
        ]
        keys = [
            tf.bitwise.bitwise_and(k + _int64(r * step & _LOW), _int64(_LOW))
            for k, step in zip(key, _KEY_STEPS, strict=True)
        ]
        xor = tf.bitwise.bitwise_xor
        counter = [
            xor(xor(high[1], counter[1]), keys[0]),
            low[1],
            xor(xor(high[0], counter[3]), keys[1]),
            low[0],
        ]
    return counter


def stateless_words(shape: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """As `tf.raw_ops.StatelessRandomUniformFullInt`, for the seeds of all clients.

    Args:
      shape: Shape of one client's numbers, int32 or int64 `[rank]`.
      seeds: int32 or int64 `[K, 2]`.

    Returns:
      int64 `[K, *shape]` in [0, 2^32): the bits of its int32 numbers.
    """
    seeds = tf.cast(seeds, tf.int64)
    words = []
    for i in range(2):
        word = seeds[:, i]
        words.append(tf.bitwise.bitwise_and(word, _int64(_LOW)))
        words.append(tf.bitwise.bitwise_and(tf.bitwise.right_shift(word, _int64(32)), _int64(_LOW)))
    mixed = [w[:, None] for w in _philox(words, [_int64(k) for k in _SCRAMBLE_KEY])]
    size = tf.reduce_prod(shape)
    blocks = tf.range(tf.cast((size + 3) // 4, tf.int64))[None]
    zeros = tf.zeros_like(blocks)
    bits = tf.stack(_philox([blocks, zeros, mixed[2], mixed[3]], mixed[:2]), axis=-1)
    bits = tf.reshape(bits, [tf.shape(seeds)[0], -1])[:, : tf.cast(size, tf.int32)]
    return tf.reshape(bits, tf.concat([tf.shape(seeds, shape.dtype)[:1], shape], 0))


def stateless_uniform(shape: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """As `tf.raw_ops.StatelessRandomUniform`, for the seeds of all clients.

    Args:
      shape: Shape of one client's numbers, int32 or int64 `[rank]`.
      seeds: int32 or int64 `[K, 2]`.

    Returns:
      float32 `[K, *shape]` in [0, 1).
    """
    bits = stateless_words(shape, seeds)
    # 23 random bits as the mantissa, with the exponent of 1, give a number in [1, 2).
    mantissa = tf.bitwise.bitwise_or(
        tf.bitwise.bitwise_and(bits, _int64(0x7FFFFF)), _int64(0x3F800000)
    )
    return tf.bitcast(tf.cast(mantissa, tf.int32), tf.float32) - 1.0


# Converters. Each takes pfor's view of an operation, some of whose inputs are stacked.

_originals = dict(pfor_lib._pfor_converter_registry)
_wrap = pfor_lib.wrap
_Refused = pfor_lib.ConversionNotImplementedError


def _convolution(op_input: Any) -> tuple[tuple[int, int], str]:
    """Returns strides and padding of a convolution, or refuses it."""
    for name, wanted in (("data_format", b"NHWC"), ("dilations", [1, 1, 1, 1])):
        if (found := op_input.get_attr(name)) != wanted:
            raise _Refused(f"{op_input.op_type} with {name}={found} has no batched form.")
    padding = op_input.get_attr("padding").decode()
    if padding not in ("VALID", "SAME"):
        raise _Refused(f"{op_input.op_type} with padding={padding} has no batched form.")
    return tuple(op_input.get_attr("strides")[1:3]), padding


def _refuse_groups(op_input, filter_channels, channels):
    if filter_channels != channels:
        raise _Refused(f"{op_input.op_type} in groups of channels has no batched form.")


def _convert_conv2d(op_input):
    if not op_input.input(1).is_stacked:
        return _originals["Conv2D"](op_input)
    strides, padding = _convolution(op_input)
    op_input.stack_inputs([0])
    x, filters = op_input.stacked_input(0), op_input.stacked_input(1)
    _refuse_groups(op_input, filters.shape[3], x.shape[4])
    return _wrap(conv2d(x, filters, strides, padding))


def _convert_conv2d_backprop_input(op_input):
    if not op_input.input(1).is_stacked:
        return _originals["Conv2DBackpropInput"](op_input)
    strides, padding = _convolution(op_input)
    op_input.stack_inputs([2])
    sizes = op_input.unstacked_input(0)
    filters, dy = op_input.stacked_input(1), op_input.stacked_input(2)
    static = op_input.outputs[0].shape
    sizes = [sizes[i] if n is None else n for i, n in enumerate(static)]
    _refuse_groups(op_input, filters.shape[3], sizes[3])
    return _wrap(conv2d_backprop_input(sizes, filters, dy, strides, padding))


def _convert_conv2d_backprop_filter(op_input):
    strides, padding = _convolution(op_input)
    op_input.stack_inputs([0, 2])
    x, dy = op_input.stacked_input(0), op_input.stacked_input(2)
    sizes = op_input.outputs[0].shape
    if not sizes.is_fully_defined():
        raise _Refused("The size of the filter is not known before the graph runs.")
    _refuse_groups(op_input, sizes[2], x.shape[4])
    return _wrap(conv2d_backprop_filter(x, sizes, dy, strides, padding))


def _convert_stateless_uniform(op_input):
    if op_input.get_attr("dtype") != tf.float32:
        raise _Refused("StatelessRandomUniform of another type than float32 has no batched form.")
    shape, seeds = op_input.unstacked_input(0), op_input.stacked_input(1)
    return _wrap(stateless_uniform(shape, seeds))


def _convert_stateless_full_int(op_input):
    if op_input.get_attr("dtype") != tf.int32:
        raise _Refused(
            "StatelessRandomUniformFullInt of another type than int32 has no batched form."
        )
    words = stateless_words(op_input.unstacked_input(0), op_input.stacked_input(1))
    return _wrap(tf.cast(words, tf.int32))


def _convert_select(op_input):
    condition = op_input.input(0)
    # Excludes a shared condition that selects rows.
    by_client = condition.t.shape.rank == int(condition.is_stacked)
    if not by_client or not _alike(*op_input.op.inputs[1:]):
        return _originals[op_input.op_type](op_input)
    op_input.stack_inputs([1, 2])
    # Selects whole clients, several times faster than broadcasting the condition.
    return _wrap(
        tf.raw_ops.Select(
            condition=condition.t, x=op_input.stacked_input(1), y=op_input.stacked_input(2)
        )
    )


def _alike(x: tf.Tensor, y: tf.Tensor) -> bool:
    return x.shape.is_fully_defined() and x.shape == y.shape


def _convert_pow(op_input):
    """Computes squares as products, since a power takes a hundred times as long.

    TensorFlow does the same in graphs that it optimises. Loop bodies that run in a single thread
    are not optimised.
    """
    exponent = tf.get_static_value(op_input.op.inputs[1])
    if exponent is not None and np.ndim(exponent) == 0 and exponent == 2:
        return _wrap(tf.square(op_input.stacked_input(0)))
    return _originals["Pow"](op_input)


def _convert_l2_loss(op_input):
    x = op_input.stacked_input(0)
    return _wrap(tf.reduce_sum(tf.square(x), range(1, x.shape.rank)) / 2)


def _convert_squeeze(op_input):
    """As pfor, but never squeezes the clients' dimension, even if there is only one client."""
    shape = op_input.op.inputs[0].shape
    if op_input.get_attr("squeeze_dims"):
        return _originals["Squeeze"](op_input)
    x = op_input.stacked_input(0)
    if not shape.is_fully_defined():
        sizes = tf.shape(x)
        others = tf.boolean_mask(sizes[1:], tf.not_equal(sizes[1:], 1))
        return _wrap(tf.reshape(x, tf.concat([sizes[:1], others], 0)))
    ones = [i + 1 for i, size in enumerate(shape) if size == 1]
    return _wrap(tf.squeeze(x, ones) if ones else x)


def _convert_clip(op_input):
    op_input.expanddim_inputs_for_broadcast()
    x, low, high = (op_input.input(i).t for i in range(3))
    return _wrap(tf.maximum(tf.minimum(x, high), low))


def _convert_pad_v2(op_input):
    paddings = tf.pad(op_input.unstacked_input(1), [[1, 0], [0, 0]])
    return _wrap(
        tf.raw_ops.PadV2(
            input=op_input.stacked_input(0),
            paddings=paddings,
            constant_values=op_input.unstacked_input(2),
        )
    )


def _convert_roll(op_input):
    """As pfor, but correct for axes counted from the end."""
    axes = op_input.unstacked_input(2)
    rank = tf.rank(op_input.stacked_input(0)) - 1
    op_input.inputs[2] = _wrap(tf.math.floormod(axes, tf.cast(rank, axes.dtype)), False)
    return _originals["Roll"](op_input)


def _convert_unsorted_segment(op_input):
    """As pfor, but ids outside all segments do not fall into other clients' segments."""
    op_input.stack_inputs([1])
    ids, number = op_input.stacked_input(1), op_input.unstacked_input(2)
    number = tf.cast(number, ids.dtype)
    end = number * tf.cast(op_input.pfor.loop_len_vector[0], ids.dtype)
    # Negative ids are dropped and too large ones raise an error, even after a client's offset.
    ids = tf.where(ids < 0, -end, tf.where(ids < number, ids, end))
    op_input.inputs[1] = _wrap(ids)
    return _originals[op_input.op_type](op_input)


def _convert_sparse_segment_grad(op_input):
    """As pfor, whose gradient for each client ends with the last segment that has a member."""
    number = tf.reduce_max(op_input.unstacked_input(2)) + 1
    op_input.inputs[0] = _wrap(op_input.stacked_input(0)[:, :number])
    return _originals[op_input.op_type](op_input)


def _convert_list_gather(op_input):
    """As pfor, but with the clients' dimension before the items'."""
    items = _originals["TensorListGather"](op_input)
    if not op_input.input(0).is_stacked:
        return items
    axes = tf.range(tf.rank(items.t))
    return _wrap(tf.transpose(items.t, tf.concat([[1, 0], axes[2:]], 0)))


def _convert_list_element_shape(op_input):
    """As pfor, but correct if the list does not know its shape (-1), which pfor reads as []."""
    shape = tf.raw_ops.TensorListElementShape(
        input_handle=pfor_lib._untile_variant(op_input.stacked_input(0)),
        shape_type=op_input.get_attr("shape_type"),
    )
    shape = tf.reshape(shape, [-1])
    return _wrap(shape[tf.cast(shape[0] >= 0, tf.int32) :], False)


def _convert_matmul(op_input):
    """As pfor, but does not also conjugate matrices that are only to be transposed."""
    a, b = op_input.input(0), op_input.input(1)
    if not (a.is_stacked and b.is_stacked):
        return _originals["MatMul"](op_input)
    transposed = {name: op_input.get_attr(name) for name in ("transpose_a", "transpose_b")}
    return _wrap(tf.matmul(a.t, b.t, **transposed))


def _convert_bitcast(op_input):
    return _wrap(tf.bitcast(op_input.stacked_input(0), op_input.get_attr("type")))


def _convert_ones_like(op_input):
    return _wrap(tf.ones_like(op_input.stacked_input(0)))


def _expand_dims_for_broadcast(op_input):
    """Inserts dimensions of 1 after the clients' dimension of stacked inputs of lower rank."""
    ranks = [x.t.shape.rank for x in op_input.inputs]
    if None in ranks:
        return _expand_dims_at_run_time(op_input)
    wanted = max(r + (not x.is_stacked) for r, x in zip(ranks, op_input.inputs, strict=True))
    for i, (rank, x) in enumerate(zip(ranks, op_input.inputs, strict=True)):
        if x.is_stacked and rank < wanted:
            index = (slice(None),) + (tf.newaxis,) * (wanted - rank)
            op_input.inputs[i] = _wrap(x.t[index])


_expand_dims_at_run_time = pfor_lib._PforInput.expanddim_inputs_for_broadcast


def _function(op_input: Any, attribute: str) -> func_graph.FuncGraph:
    name = op_input.get_attr(attribute).name
    function = op_input.op.graph._get_function(name.encode())
    if hasattr(function, "graph"):
        return function.graph
    shapes = [t.shape for t in op_input.op.inputs]
    if op_input.op_type in _BRANCHES:
        del shapes[0]
    return function_def_to_graph.function_def_to_graph(function.definition, input_shapes=shapes)


_BRANCHES = ("If", "StatelessIf")


def _convert_if(op_input):
    """Computes both branches for all clients, if they belong to an imported graph of TFF.

    Only the definition of such functions is known, which is not enough for pfor's own converter.
    """
    name = op_input.get_attr("then_branch").name
    if hasattr(op_input.op.graph._get_function(name.encode()), "graph"):
        return _originals[op_input.op_type](op_input)
    pfor, (chosen, *inputs) = op_input.pfor, op_input.inputs
    branches = [_function(op_input, which) for which in ("then_branch", "else_branch")]
    if any(op.type == "Assert" for branch in branches for op in branch.get_operations()):
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(chosen.t), [chosen.t])]):
            return _wrap(tf.identity(chosen.t), chosen.is_stacked)
    both = [_inner(branch, inputs, pfor) for branch in branches]
    then, otherwise = (_stacked_as(values, [True] * len(values), pfor) for values in both)

    def select(a, b):
        where = chosen.t
        if chosen.is_stacked:
            where = tf.reshape(where, [-1] + [1] * (a.t.shape.rank - 1))
        return _wrap(tf.where(where, a.t, b.t))

    return [select(a, b) for a, b in zip(then, otherwise, strict=True)]


def _inner(graph: func_graph.FuncGraph, inputs: Sequence[Any], pfor: Any) -> list:
    """Vectorises a called graph inline; inputs and results are pfor's wrapped tensors."""
    converter = pfor_lib.PFor(
        loop_var=pfor.loop_var,
        loop_len=pfor.loop_len_vector[0],
        pfor_ops=graph.get_operations(),
        fallback_to_while_loop=False,
        all_indices=pfor.all_indices,
        all_indices_partitioned=pfor.all_indices_partitioned,
        pfor_config=pfor.pfor_config,
    )
    for old, new in zip(graph.inputs, inputs, strict=True):
        converter._add_conversion(old, new)
    return [converter._convert_helper(output) for output in graph.outputs]


def _convert_call(op_input):
    return _inner(_function(op_input, "f"), op_input.inputs, op_input.pfor)


def _stacked_as(tensors: Sequence[Any], stacked: Any, pfor: Any) -> list:
    length = pfor.loop_len_vector
    return [
        pfor_lib._stack(x.t, length) if wanted and not x.is_stacked else x
        for x, wanted in zip(tensors, stacked, strict=True)
    ]


def _shape_of_stacked_items(shape, num_clients):
    """As pfor, but keeps the shape of a list's items if the graph knows it."""
    known = tf.get_static_value(shape)
    if known is None or -1 in np.atleast_1d(known):
        return _shape_at_run_time(shape, num_clients)
    return tf.concat([num_clients, known], 0)


_shape_at_run_time = pfor_lib._stack_tensor_list_shape


# Operations whose outputs are the same for all clients even if their inputs are not.
_OF_SHAPES = frozenset(["Rank", "Shape", "ShapeN", "Size"])


def _outputs_vary(graph: func_graph.FuncGraph, inputs_vary: Sequence[bool]) -> list[bool]:
    """Returns which outputs of a graph may differ between clients, if those inputs do."""
    vary = {t.name for t, v in zip(graph.inputs, inputs_vary, strict=True) if v}
    for op in graph.get_operations():
        if op.type not in _OF_SHAPES and any(t.name in vary for t in op.inputs):
            vary.update(t.name for t in op.outputs)
    return [t.name in vary for t in graph.outputs]


def _keeps_lists_lengths(body: func_graph.FuncGraph) -> bool:
    """Whether a loop's body reads and sets items of lists, but neither adds nor removes any."""
    return all(
        op.type in ("Identity", "TensorListGetItem", "TensorListSetItem")
        for op in body.get_operations()
        if any(t.dtype == tf.variant for t in op.inputs)
    )


def _convert_while(op_input):
    """Converts loops that all clients leave at the same time; pfor's converter does the others."""
    pfor, inputs = op_input.pfor, op_input.inputs
    cond, body = _function(op_input, "cond"), _function(op_input, "body")
    # Values that clients share before a step may differ between them afterwards.
    stacked, after = None, [x.is_stacked for x in inputs]
    while stacked != after:
        stacked = after
        after = [a or b for a, b in zip(stacked, _outputs_vary(body, stacked), strict=True)]
    if _outputs_vary(cond, stacked)[0] or not _keeps_lists_lengths(body):
        return _originals[op_input.op_type](op_input)

    def wrapped(tensors):
        return [_wrap(t, s) for t, s in zip(tensors, stacked, strict=True)]

    def run_cond(*tensors):
        return _inner(cond, wrapped(tensors), pfor)[0].t

    def run_body(*tensors):
        results = _inner(body, wrapped(tensors), pfor)
        return [x.t for x in _stacked_as(results, stacked, pfor)]

    shapes = [
        # A stacked list is a list of stacked tensors.
        tf.TensorShape([None]).concatenate(x.shape) if s and x.dtype != tf.variant else x.shape
        for x, s in zip(op_input.outputs, stacked, strict=True)
    ]
    start = [x.t for x in _stacked_as(inputs, stacked, pfor)]
    return wrapped(tf.while_loop(run_cond, run_body, start, shape_invariants=shapes))


_CONVERTERS: dict[str, Callable] = {
    # The newer operation's converter also supports matrices without leading dimensions.
    "BatchMatMul": _originals["BatchMatMulV2"],
    "Bitcast": _convert_bitcast,
    "ClipByValue": _convert_clip,
    "Conv2D": _convert_conv2d,
    "Conv2DBackpropFilter": _convert_conv2d_backprop_filter,
    "Conv2DBackpropInput": _convert_conv2d_backprop_input,
    "If": _convert_if,
    "L2Loss": _convert_l2_loss,
    "MatMul": _convert_matmul,
    "OnesLike": _convert_ones_like,
    "PadV2": _convert_pad_v2,
    "PartitionedCall": _convert_call,
    "Pow": _convert_pow,
    "Roll": _convert_roll,
    "Select": _convert_select,
    "SelectV2": _convert_select,
    **dict.fromkeys(
        ["SparseSegmentMeanGrad", "SparseSegmentSqrtNGrad", "SparseSegmentSumGrad"],
        _convert_sparse_segment_grad,
    ),
    "Squeeze": _convert_squeeze,
    "StatefulPartitionedCall": _convert_call,
    "StatelessIf": _convert_if,
    "StatelessRandomUniform": _convert_stateless_uniform,
    "StatelessRandomUniformFullInt": _convert_stateless_full_int,
    "StatelessWhile": _convert_while,
    "TensorListElementShape": _convert_list_element_shape,
    "TensorListGather": _convert_list_gather,
    **{
        f"UnsortedSegment{kind}": _convert_unsorted_segment
        for kind in ("Max", "Min", "Prod", "Sum")
    },
    "While": _convert_while,
}


class NotVectorizable(RunError):  # noqa: N818  (RunError has the suffix)
    """An operation cannot be vectorised over a cohort; the text names it and the remedy."""


# These may contain loops, whose operations are checked one by one.
_HOLD_FUNCTIONS = frozenset(
    ["Case", "If", "PartitionedCall", "StatefulPartitionedCall", "StatelessCase", "StatelessIf"]
    + ["StatelessWhile", "While"]
)


class _Strict(dict):
    """A registry whose converters raise an error, naming the operation, instead of looping.

    Attributes:
      refusal: The `NotVectorizable` that was raised first. TensorFlow's functions only pass on a
        copy with additional text.
    """

    def __init__(self, converters):
        super().__init__(converters)
        self.refusal = None
        self._calls = []

    def get(self, op_type, default=None):
        del default
        return functools.partial(self._convert, super().get(op_type))

    def _convert(self, converter, op_input):
        op = op_input.op
        if converter is None:
            self._refuse(op, "it has no form over several clients")
        holds_functions = op.type in _HOLD_FUNCTIONS
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        self._calls.extend([op.name] * holds_functions)
        try:
            results = converter(op_input)
        except NotVectorizable:
            raise
        except (
            AssertionError,
            KeyError,
            NotImplementedError,
            TypeError,
            ValueError,
            _Refused,
        ) as e:
            self._refuse(op, str(e).split("\n")[0].rstrip("."))
        del self._calls[len(self._calls) - holds_functions :]
        if not holds_functions:
            made = graph.get_operations()[before:]
            if any(new.type in ("StatelessWhile", "While") for new in made):
                self._refuse(op, "it would be done for one client after the other")
        return results

    def _refuse(self, op, reason):
        if self.refusal is None:
            # The name of the operation, or of the function around it, contains the layer's name.
            path = "/".join([*self._calls, op.name])
            self.refusal = NotVectorizable(
                f"Operation {op.type} ({path}) cannot be done for a whole cohort at once: "
                f"{reason}. Use --runtime=tff."
            )
        raise self.refusal


# TensorFlow's registry and pfor's method belong to the whole process.
_lock = threading.RLock()


@contextlib.contextmanager
def _installed() -> Iterator[_Strict]:
    """Replaces TensorFlow's converters by those of this module within this context."""
    logger = tf.get_logger()
    with _lock, contextlib.ExitStack() as stack:

        def replace(holder, name, value):
            stack.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, value)

        converters = _Strict({**_originals, **_CONVERTERS})
        replace(pfor_lib, "_pfor_converter_registry", converters)
        replace(pfor_lib, "_stack_tensor_list_shape", _shape_of_stacked_items)
        replace(pfor_lib._PforInput, "expanddim_inputs_for_broadcast", _expand_dims_for_broadcast)
        # The logger would print the graph around a refused operation.
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
        yield converters


def over_clients(
    graph: func_graph.FuncGraph,
    inputs: Sequence[tf.Tensor],
    stacked: Sequence[bool],
    num_clients: int | tf.Tensor,
) -> list[tf.Tensor]:
    """Adds a vectorised form of a graph over all clients to the graph that is being built.

    Args:
      graph: One client's computation, without random state and variables.
      inputs: A tensor for each of the graph's inputs.
      stacked: For each, whether it has a value for each client, `[K, ...]`, or one for all.
      num_clients: K, a number or int32 scalar.

    Returns:
      The graph's outputs for each client, `[K, ...]`.

    Raises:
      NotVectorizable: If an operation cannot be vectorised over clients.
    """
    with _installed() as converters:
        converter = pfor_lib.PFor(
            loop_var=tf.raw_ops.PlaceholderWithDefault(input=0, shape=[]),
            loop_len=num_clients,
            pfor_ops=graph.get_operations(),
            fallback_to_while_loop=False,
        )
        for old, new, has_clients in zip(graph.inputs, inputs, stacked, strict=True):
            converter._add_conversion(old, _wrap(new, has_clients))
        try:
            return [converter.convert(output) for output in graph.outputs]
        except Exception:
            if converters.refusal is None:
                raise
            raise converters.refusal from None
