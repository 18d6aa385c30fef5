"""Every operation that has a form over clients, against itself, client by client.

Each case is tried with every choice of the arguments that differ between clients, for three
clients, for one, and with shapes that the graph does not know. Whatever the choice, the result is
that of the clients one by one, or the operation is refused by name.
"""

import inspect
import itertools
import operator

import numpy as np
import pytest
import tensorflow as tf

from simulation.engine import batched_ops
from simulation.engine.batched_ops import NotVectorizable
from tests.simulation.engine.test_batched_ops import operations, with_gradients

R = tf.raw_ops

# What `vectorized` never meets: state, files, text, and what newer operations replace.
_ELSEWHERE = {
    *("Assert", "CheckNumerics", "DecodeCSV", "ParseExampleV2", "ParseSingleExample", "Print"),
    *("PrintV2", "StringFormat", "XlaEinsum", "XlaSharding", "_EagerConst"),
    *("OptionalFromValue", "OptionalGetValue", "StackPopV2", "StackPushV2"),
    *("Multinomial", "RandomGamma", "RandomPoissonV2", "RandomStandardNormal", "RandomUniform"),
    *("RandomUniformInt", "TruncatedNormal"),
    *("TensorArrayGatherV3", "TensorArrayGradV3", "TensorArrayReadV3", "TensorArrayScatterV3"),
    *("TensorArraySizeV3", "TensorArrayV3", "TensorArrayWriteV3"),
    "LogicalXor",  # No operation has this name.
    "TopK",  # No graph of today can have it; TopKV2 took its place.
    # Those of loops and branches are in test_batched_ops.py.
    *("Case", "If", "PartitionedCall", "StatefulPartitionedCall", "While"),
}
# Refused whatever the arguments.
_REFUSED = {
    "Gather",  # GatherV2 took its place.
    *("StatelessMultinomial", "StatelessParameterizedTruncatedNormal", "StatelessRandomBinomial"),
    *("StatelessRandomGammaV2", "StatelessRandomNormal", "StatelessRandomPoisson"),
    *("StatelessRandomUniformInt", "StatelessTruncatedNormal", "TensorListConcatV2"),
}

_rng = np.random.default_rng(0)


# Arguments. Each is a function of the number of clients, None for one that all share.


def _drawn(draw, *shape):
    return lambda clients: draw((clients or 1, *shape))[slice(None) if clients else 0]


def normal(*shape):
    return _drawn(lambda size: _rng.normal(size=size).astype(np.float32), *shape)


def between(low, high, *shape):
    return _drawn(lambda size: _rng.uniform(low, high, size).astype(np.float32), *shape)


def fractions(*shape):
    return between(0.1, 0.9, *shape)


def integers(low, high, *shape):
    return _drawn(lambda size: _rng.integers(low, high, size).astype(np.int32), *shape)


def booleans(*shape):
    return _drawn(lambda size: _rng.integers(0, 2, size).astype(bool), *shape)


def complex_numbers(*shape):
    def draw(size):
        return (_rng.normal(size=size) + 1j * _rng.normal(size=size)).astype(np.complex64)

    return _drawn(draw, *shape)


def ascending(*shape):
    return _drawn(lambda size: np.sort(_rng.normal(size=size).astype(np.float32), -1), *shape)


def positive_definite(*shape):
    def draw(size):
        a = _rng.normal(size=size).astype(np.float32)
        return a @ np.swapaxes(a, -1, -2) + size[-1] * np.eye(size[-1], dtype=np.float32)

    return _drawn(draw, *shape)


def permuted(number, of):
    def draw(size):
        rows = [_rng.permutation(of)[:number, None] for _ in range(size[0])]
        return np.stack(rows).astype(np.int32)

    return _drawn(draw)


# Cases: (name, function, arguments).

CASES = []


def _case(name, fn, *arguments):
    CASES.append((name, fn, arguments))


def _raw(name, **attributes):
    """A raw operation as a function of its tensors."""
    operation = getattr(R, name)
    names = [n for n in inspect.signature(operation).parameters if n not in attributes]

    def run(*tensors):
        return operation(**dict(zip(names, tensors, strict=False)), **attributes)

    return run


for _names, _argument in (
    (
        "Abs Asinh Atan Ceil Cos Cosh Digamma Elu Erf Erfc Exp Expm1 Floor IsFinite IsInf IsNan "
        "Lgamma LogSoftmax Neg Relu Relu6 Rint Round Selu Sigmoid Sign Sin Sinh Softmax Softplus "
        "Softsign Square Tan Tanh ZerosLike OnesLike BesselI0 BesselI0e BesselI1 BesselI1e "
        "BesselJ0 BesselJ1 FresnelCos FresnelSin Dawsn Expint LeakyRelu Identity StopGradient",
        normal(4, 5),
    ),
    (
        "Acos Asin Atanh Erfinv Inv Log Log1p Ndtri Reciprocal Rsqrt Spence Sqrt BesselK0 "
        "BesselK0e BesselK1 BesselK1e BesselY0 BesselY1",
        fractions(4, 5),
    ),
    ("Acosh", between(1.1, 3, 4, 5)),
    ("Angle ComplexAbs Conj Imag Real", complex_numbers(4, 5)),
    ("Invert", integers(0, 9, 4, 5)),
    ("LogicalNot", booleans(4, 5)),
):
    for _name in _names.split():
        _case(_name, _raw(_name), _argument)

_SHAPES = [
    ((4, 5), (4, 5)),
    ((4, 5), (5,)),
    ((5,), (4, 5)),
    ((4, 1), (1, 5)),
    ((), (4, 5)),
    ((4, 5), ()),
    # The number of clients is that of a dimension, too.
    ((3,), (3, 3)),
    ((3, 3), (3,)),
]
for _names, _draw in (
    (
        "Add AddV2 Atan2 Div DivNoNan Equal FloorDiv FloorMod Greater GreaterEqual Less LessEqual "
        "Maximum Minimum Mul MulNoNan NotEqual RealDiv SquaredDifference Sub Xdivy",
        normal,
    ),
    ("Igamma IgammaGradA Igammac Polygamma Pow Xlog1py Xlogy Zeta", lambda *s: between(1.1, 3, *s)),
    ("Mod TruncateDiv TruncateMod", lambda *s: integers(1, 9, *s)),
    ("BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift", lambda *s: integers(0, 9, *s)),
    ("LogicalAnd LogicalOr", booleans),
    ("Complex", normal),
):
    for _name in _names.split():
        for _a, _b in _SHAPES:
            _case(f"{_name}{_a}{_b}", _raw(_name), _draw(*_a), _draw(*_b))
for _name in (
    "EluGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad "
    "SoftplusGrad SoftsignGrad SqrtGrad TanhGrad"
).split():
    _case(_name, _raw(_name), fractions(4, 5), fractions(4, 5))

_case("square", lambda x: x**2.0, fractions(4))
_case("LogicalXor", tf.math.logical_xor, booleans(4, 5), booleans(5))
_case("cube", lambda x: x**3.0, fractions(4))
_case("AddN", lambda *x: tf.add_n(x), *[normal(4, 5)] * 3)
_case("ApproximateEqual", _raw("ApproximateEqual", tolerance=0.5), normal(4, 5), normal(4, 5))
_case("ClipByValue", _raw("ClipByValue"), normal(4, 5), between(-1, 0), fractions())
_case("ClipByValue, each", _raw("ClipByValue"), normal(4), between(-1, 0, 4), fractions(4))
_case("Bucketize", _raw("Bucketize", boundaries=[-1.0, 0.0, 1.0]), normal(4, 5))
_case("Cast", lambda x: (tf.cast(x, tf.int32), tf.cast(x, tf.float16)), normal(4))
_case("Bitcast", lambda x: (tf.bitcast(x, tf.int32), tf.bitcast(x, tf.int16)), normal(4, 2))
_case("IdentityN", lambda x, y: tf.identity_n([x, y]), normal(4, 5), normal(2))
_case("sizes", lambda x: (tf.shape(x), R.Size(input=x), R.Rank(input=x)), normal(4, 5))
_case("ShapeN", lambda x, y: R.ShapeN(input=[x, y]), normal(4, 5), normal(2))
_case("EnsureShape", lambda x: tf.ensure_shape(x, [None, 5]), normal(4, 5))

# Along axes.
for _reduce in (tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min, tf.reduce_prod):
    for _axis in (None, 0, -1, [0, 1], [-2, -1], []):
        for _keep in (False, True):
            _case(
                f"{_reduce.__name__} {_axis} {_keep}",
                lambda x, f=_reduce, a=_axis, k=_keep: f(x, a, keepdims=k),
                normal(4, 5),
            )
for _reduce in (tf.reduce_all, tf.reduce_any):
    for _axis in (None, -1):
        _case(f"{_reduce.__name__} {_axis}", lambda x, f=_reduce, a=_axis: f(x, a), booleans(4, 5))
for _axis in (0, 1, -1):
    for _name, _fn in {
        "ArgMax": tf.argmax,
        "ArgMin": tf.argmin,
        "ExpandDims": tf.expand_dims,
        "softmax": tf.nn.softmax,
        "log_softmax": tf.nn.log_softmax,
        "logsumexp": tf.reduce_logsumexp,
        "variance": tf.math.reduce_variance,
        "sort": tf.sort,
    }.items():
        _case(f"{_name} {_axis}", lambda x, f=_fn, a=_axis: f(x, axis=a), normal(4, 5))
    for _cumulate in (tf.cumsum, tf.math.cumprod):
        for _options in itertools.product([False, True], repeat=2):
            _case(
                f"{_cumulate.__name__} {_axis} {_options}",
                lambda x, f=_cumulate, a=_axis, o=_options: f(x, a, *o),
                normal(4, 5),
            )
    _case(f"ConcatV2 {_axis}", lambda *x, a=_axis: tf.concat(x, a), normal(4, 4), normal(4, 4))
    _case(f"Pack {_axis}", lambda *x, a=_axis: tf.stack(x, a), normal(4, 5), normal(4, 5))
    _case(f"Split {_axis}", lambda x, a=_axis: tf.split(x, 2, a), normal(4, 4))
    _case(f"SplitV {_axis}", lambda x, a=_axis: tf.split(x, [1, -1], a), normal(4, 4))
    _case(f"Unpack {_axis}", lambda x, a=_axis: tf.unstack(x, 4, a), normal(4, 4))
    _case(f"ReverseV2 {_axis}", lambda x, a=_axis: tf.reverse(x, [a]), normal(4, 5))
    _case(f"Roll {_axis}", lambda x, s, a=_axis: tf.roll(x, s, a), normal(4, 5), integers(0, 4))
    _case(f"repeat {_axis}", lambda x, a=_axis: tf.repeat(x, 3, axis=a), normal(4, 5))
    for _shape in ((3,), (3, 2), ()):
        _case(
            f"GatherV2 {_axis} {_shape}",
            lambda x, i, a=_axis: tf.gather(x, i, axis=a),
            normal(4, 5),
            integers(0, 4, *_shape),
        )
        _case(
            f"OneHot {_axis} {_shape}",
            lambda i, a=_axis: tf.one_hot(i, 5, 2.0, -1.0, axis=a if a < 1 else -1),
            integers(0, 6, *_shape),
        )
_case("TopKV2", lambda x: tf.math.top_k(x, 2), normal(4, 5))
_case("Roll twice", lambda x: tf.roll(x, [1, 2], [0, -1]), normal(4, 5))
_case("Squeeze", lambda x: (tf.squeeze(x), tf.squeeze(x, [1, -1])), normal(4, 1, 5, 1))

# Shapes and slices.
_case("Reshape", lambda x: tf.reshape(x, [2, -1]), normal(4, 5))
_case("Reshape as", lambda x, y: tf.reshape(x, tf.shape(y)), normal(4, 5), normal(2, 10))
_case("Transpose", lambda x: (tf.transpose(x), tf.transpose(x, [1, 0, 2])), normal(4, 5, 2))
_case("ConjugateTranspose", _raw("ConjugateTranspose", perm=[1, 0]), complex_numbers(4, 5))
_case("Tile", lambda x: tf.tile(x, [2, 3]), normal(4, 5))
_case("Pad", lambda x: tf.pad(x, [[1, 2], [0, 1]]), normal(4, 5))
_case("PadV2", lambda x: tf.pad(x, [[1, 2], [0, 1]], constant_values=3.0), normal(4, 5))
_case("PadV2 by", _raw("PadV2", paddings=[[1, 2], [0, 1]]), normal(4, 5), normal())
_case("MirrorPad", lambda x: tf.pad(x, [[1, 2], [0, 1]], "REFLECT"), normal(4, 5))
for _shape in ((4, 5), (5,), (4, 1), ()):
    _case(f"BroadcastTo {_shape}", lambda x: tf.broadcast_to(x, [2, 4, 5]), normal(*_shape))
_case("Fill", lambda x: tf.fill([2, 3], x), normal())
_case("range", lambda x: tf.range(tf.shape(x)[0]), normal(4))
_case("linspace", lambda x: tf.linspace(x, x + 1.0, 5), normal())
for _number, _slice in enumerate(
    [
        np.s_[1:3],
        np.s_[..., 1],
        np.s_[:, None, 1:, 0],
        np.s_[::-1, ::2],
        np.s_[-1],
        np.s_[None, ..., None],
        np.s_[1, ..., -2:],
        np.s_[-3:-1],
        np.s_[:, -1, None],
        np.s_[:-1, ..., ::-1],
    ]
):
    _sliced = operator.itemgetter(_slice)
    _case(f"StridedSlice {_number}", lambda x, f=_sliced: f(x), normal(4, 5, 3))
    _case(f"StridedSliceGrad {_number}", with_gradients(_sliced), normal(4, 5, 3))
_case("StridedSlice from", lambda x, i: x[i:], normal(4, 5), integers(0, 4))
_case("StridedSlice at", lambda x, i: x[i], normal(4, 5), integers(0, 4))
_case("Slice", lambda x: tf.slice(x, [1, 0], [2, -1]), normal(4, 5))
_case("Slice at", lambda x, i: tf.slice(x, tf.stack([i, 0]), [2, 3]), normal(4, 5), integers(0, 2))

# Indices.
_case("GatherV2 b", lambda x, i: tf.gather(x, i, batch_dims=1), normal(4, 5), integers(0, 5, 4))
_case("GatherV2 b2", lambda x, i: tf.gather(x, i, batch_dims=1), normal(4, 5), integers(0, 5, 4, 2))
_case(
    "GatherV2 b3",
    lambda x, i: tf.gather(x, i, axis=2, batch_dims=1),
    normal(4, 5, 3),
    integers(0, 3, 4, 2),
)
_case("Gather", _raw("Gather"), normal(4, 5), integers(0, 4, 3))
for _shape in ((3, 2), (3, 1), (2,), (2, 3, 2)):
    _case(f"GatherNd {_shape}", tf.gather_nd, normal(4, 4), integers(0, 4, *_shape))
_case(
    "TensorScatterUpdate",
    tf.tensor_scatter_nd_update,
    normal(4, 5),
    permuted(2, 4),
    normal(2, 5),
)
for _name in ("Sum", "Max", "Min", "Prod"):
    # Negative ids are of no segment.
    for _shape, _ids in (((4,), (4,)), ((4, 3), (4,)), ((4, 3, 2), (4, 3))):
        _case(
            f"UnsortedSegment{_name} {_shape}",
            _raw(f"UnsortedSegment{_name}", num_segments=5),
            normal(*_shape),
            integers(-1, 5, *_ids),
        )
for _name in ("Mean", "SqrtN", "Sum"):
    _data, _indices = normal(4, 3), integers(0, 4, 3)
    _case(
        f"SparseSegment{_name}",
        _raw(f"SparseSegment{_name}", segment_ids=[0, 0, 1]),
        _data,
        _indices,
    )
    _case(
        f"SparseSegment{_name}WithNumSegments",
        _raw(f"SparseSegment{_name}WithNumSegments", segment_ids=[0, 0, 2], num_segments=4),
        _data,
        _indices,
    )
    # Of as many segments as have members, and of more.
    for _rows in (2, 4):
        _case(
            f"SparseSegment{_name}Grad {_rows}",
            _raw(f"SparseSegment{_name}Grad", segment_ids=[0, 0, 1], output_dim0=4),
            normal(_rows, 3),
            _indices,
        )
for _name in ("LowerBound", "UpperBound"):
    _case(_name, _raw(_name), ascending(2, 5), normal(2, 3))

# Matrices.
for _shape in ((), (2,)):

    def _of(name, fn, *arguments, s=_shape):
        _case(f"{name} {s}", fn, *arguments)

    for _t in itertools.product([False, True], repeat=2):
        for _draw in (normal, complex_numbers):
            _of(
                f"MatMul {_t} {_draw.__name__}",
                lambda x, y, t=_t: tf.matmul(x, y, transpose_a=t[0], transpose_b=t[1]),
                _draw(*_shape, *((4, 3) if _t[0] else (3, 4))),
                _draw(*_shape, *((2, 4) if _t[1] else (4, 2))),
            )
    _square, _wide = positive_definite(*_shape, 3, 3), normal(*_shape, 3, 4)
    _of("adjoint", lambda x: tf.matmul(x, x, adjoint_a=True), complex_numbers(*_shape, 3, 4))
    _of("BatchMatMul", _raw("BatchMatMul", adj_x=True), _wide, normal(*_shape, 3, 2))
    _of("Cholesky", tf.linalg.cholesky, _square)
    _of("MatrixInverse", lambda x: tf.linalg.inv(x, adjoint=True), _square)
    _of("MatrixSolve", tf.linalg.solve, _square, normal(*_shape, 3, 2))
    _of("MatrixTriangularSolve", tf.linalg.triangular_solve, _square, normal(*_shape, 3, 2))
    _of("LogMatrixDeterminant", tf.linalg.slogdet, _square)
    _of("SelfAdjointEigV2", tf.linalg.eigvalsh, _square)
    _of("MatrixBandPart", lambda x: tf.linalg.band_part(x, 1, 0), _wide)
    _of("MatrixDiag", _raw("MatrixDiag"), normal(*_shape, 3))
    _of("MatrixDiagPart", _raw("MatrixDiagPart"), _wide)
    _of("MatrixSetDiag", _raw("MatrixSetDiag"), _wide, normal(*_shape, 3))
    _size = {"num_rows": -1, "num_cols": -1, "padding_value": 5.0}
    for _v in ("V2", "V3"):
        _of(f"MatrixDiag{_v}", _raw(f"MatrixDiag{_v}", k=1, **_size), normal(*_shape, 3))
        _part = _raw(f"MatrixDiagPart{_v}", k=[-1, 1], padding_value=9.0)
        _of(f"MatrixDiagPart{_v}", _part, _wide)
        _of(f"MatrixSetDiag{_v}", _raw(f"MatrixSetDiag{_v}", k=1), _wide, normal(*_shape, 3))
for _a, _b in (((3, 4), (2, 4, 2)), ((2, 3, 4), (4, 2)), ((5, 1, 3, 4), (2, 4, 2))):
    _case(f"BatchMatMulV2 {_a} {_b}", tf.matmul, normal(*_a), normal(*_b))
_case("Diag", _raw("Diag"), normal(3))
_case("DiagPart", _raw("DiagPart"), normal(3, 3))
_case("Cross", tf.linalg.cross, normal(4, 3), normal(4, 3))
_case("tensordot", lambda x, y: tf.tensordot(x, y, [[1], [0]]), normal(3, 4, 2), normal(4, 5))
for _equation, _a, _b in (
    ("ij,jk->ik", (3, 4), (4, 2)),
    ("i,i->", (3,), (3,)),
    ("bij,bkj->bik", (2, 3, 4), (2, 5, 4)),
    ("...ij,...jk->...ik", (3, 4), (2, 4, 2)),
    ("aecd,abcd->acbe", (2, 3, 4, 5), (2, 6, 4, 5)),
    ("ii,j->ij", (3, 3), (2,)),
    ("...i,i->...", (2, 3), (3,)),
):
    _case(_equation, lambda x, y, e=_equation: tf.einsum(e, x, y), normal(*_a), normal(*_b))
for _name in ("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D"):
    _case(_name, _raw(_name), complex_numbers(2, 4, 8))
for _name, _n in (("RFFT", 1), ("RFFT2D", 2), ("RFFT3D", 3)):
    _length = [2, 4, 6][-_n:]
    _case(_name, _raw(_name, fft_length=_length), normal(2, 4, 8))
    _case(f"I{_name}", _raw(f"I{_name}", fft_length=_length), complex_numbers(2, 4, 5))

# Images.
_images, _pictures = normal(2, 8, 8, 3), fractions(2, 8, 8, 3)
_volumes = normal(2, 4, 4, 4, 3)


def _twice(fn):
    return with_gradients(lambda x: with_gradients(fn)(x)[1])


for _padding in ("SAME", "VALID"):
    for _pool, _argument in (
        (tf.nn.avg_pool2d, _images),
        (tf.nn.max_pool2d, _images),
        (tf.nn.avg_pool3d, _volumes),
        (tf.nn.max_pool3d, _volumes),
    ):

        def _pooled(x, f=_pool, p=_padding):
            return f(x, 2, 2, p)

        for _kind, _fn in (
            ("", _pooled),
            ("Grad", with_gradients(_pooled)),
            ("Twice", _twice(_pooled)),
        ):
            _case(f"{_pool.__name__}{_kind} {_padding}", _fn, _argument)
    _sizes = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": _padding}
    _case(f"MaxPoolV2 {_padding}", _raw("MaxPoolV2", **_sizes), _images)
    for _name, _argument in (("MaxPoolGradV2", normal(2, 4, 4, 3)), ("MaxPoolGradGradV2", _images)):

        def _of_pool(x, dy, f=_name, o=_sizes):
            y = R.MaxPoolV2(input=x, **o)
            return getattr(R, f)(orig_input=x, orig_output=y, grad=dy, **o)

        _case(f"{_name} {_padding}", _of_pool, _images, _argument)
    for _stride in (1, 2):
        _strides = [1, _stride, _stride, 1]
        for _name, _fn, _arguments in (
            ("conv2d", tf.nn.conv2d, (_images, normal(3, 3, 3, 4))),
            ("depthwise", tf.nn.depthwise_conv2d, (_images, normal(3, 3, 3, 2))),
        ):

            def _convolved(x, w, f=_fn, s=_strides, p=_padding):
                return f(x, w, s, p)

            _case(f"{_name} {_padding} {_stride}", _convolved, *_arguments)
            _case(
                f"{_name} gradients {_padding} {_stride}", with_gradients(_convolved), *_arguments
            )
for _format, _argument in (("NHWC", _images), ("NCHW", normal(2, 3, 4, 4))):
    _case(f"BiasAdd {_format}", _raw("BiasAdd", data_format=_format), _argument, normal(3))
    _case(f"BiasAddGrad {_format}", _raw("BiasAddGrad", data_format=_format), _argument)
_case("SpaceToBatchND", lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]), _images)
_case(
    "BatchToSpaceND", lambda x: tf.batch_to_space(x, [2, 2], [[0, 0], [0, 0]]), normal(8, 4, 4, 3)
)
_case("SpaceToDepth", lambda x: tf.nn.space_to_depth(x, 2), _images)
_case("DepthToSpace", lambda x: tf.nn.depth_to_space(x, 2), normal(2, 4, 4, 8))
_case("AdjustContrastv2", tf.image.adjust_contrast, _pictures, fractions())
_case("AdjustHue", tf.image.adjust_hue, _pictures, fractions())
_case("AdjustSaturation", tf.image.adjust_saturation, _pictures, fractions())
_case("standardized", tf.image.per_image_standardization, _images)


def _batch_norm(x, scale, offset):
    return R.FusedBatchNormV3(
        x=x, scale=scale, offset=offset, mean=[], variance=[], is_training=True
    ).y


_case("FusedBatchNormV3", _batch_norm, _images, normal(3), normal(3))
_case("FusedBatchNormGradV3", with_gradients(_batch_norm), _images, normal(3), normal(3))

# Losses and choices.
_case(
    "SoftmaxCrossEntropyWithLogits",
    lambda x, y: tf.nn.softmax_cross_entropy_with_logits(labels=x, logits=y),
    fractions(4, 5),
    normal(4, 5),
)
_case(
    "SparseSoftmaxCrossEntropyWithLogits",
    lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=x, logits=y),
    integers(0, 5, 4),
    normal(4, 5),
)
_case("L2Loss", tf.nn.l2_loss, normal(4, 5))
for _condition, _a, _b in (
    ((4, 5), (4, 5), (4, 5)),
    ((4, 1), (4, 5), (5,)),
    ((), (4, 5), (5,)),
    ((5,), (4, 5), ()),
    ((), (), (3,)),
    ((3,), (3, 3), (3, 3)),
    ((), (1, 3), (2, 3)),
    ((2, 2), (), (2,)),
):
    _case(
        f"SelectV2 {_condition} {_a} {_b}",
        tf.where,
        booleans(*_condition),
        normal(*_a),
        normal(*_b),
    )
for _condition, _a in (((4, 5), (4, 5)), ((4,), (4, 5)), ((), (4, 5)), ((), ()), ((3,), (3, 3))):
    _case(
        f"Select {_condition} {_a}",
        _raw("Select"),
        booleans(*_condition),
        normal(*_a),
        normal(*_a),
    )

# Branches, loops and lists.
_case("StatelessIf", lambda b, x: tf.cond(b, lambda: x * 2, lambda: x + 1), booleans(), normal(3))
_case(
    "StatelessCase",
    lambda i, x: tf.switch_case(i, [lambda: x * 2, lambda: x + 1, lambda: x]),
    integers(0, 3),
    normal(3),
)
_case("map_fn", lambda x: tf.map_fn(lambda r: tf.reduce_sum(r) * r, x), normal(4, 3))
_case("scan", lambda x: tf.scan(lambda a, r: a * 0.5 + r, x), normal(4, 3))


def _written(x):
    items = tf.TensorArray(tf.float32, 4, clear_after_read=False)
    for i in range(4):
        items = items.write(i, x[i] * 2)
    return items


def _scattered(x):
    return tf.TensorArray(tf.float32, 4, element_shape=[3]).scatter([2, 0, 1, 3], x)


def _unstacked(x):
    return tf.TensorArray(tf.float32, 4, clear_after_read=False).unstack(x)


def _lengths(x):
    handle = R.TensorListFromTensor(tensor=x, element_shape=x.shape[1:])
    handle = R.TensorListPushBack(input_handle=handle, tensor=x[0])
    shape = R.TensorListElementShape(input_handle=handle, shape_type=tf.int32)
    handle, last = R.TensorListPopBack(
        input_handle=handle, element_shape=x.shape[1:], element_dtype=tf.float32
    )
    return shape, last, R.TensorListLength(input_handle=handle)


for _make in (_written, _scattered, _unstacked):
    for _name, _read in (
        ("read", lambda items: items.read(2) * items.read(1)),
        ("gather", lambda items: items.gather([1, 3])),
        ("stack", lambda items: items.stack()),
        ("concat", lambda items: items.concat()),
    ):

        def _through_list(x, make=_make, read=_read):
            return read(make(x))

        _case(f"list{_make.__name__} {_name}", _through_list, normal(4, 3))
        _case(f"list{_make.__name__} {_name} gradient", with_gradients(_through_list), normal(4, 3))
_case("list, lengths", _lengths, normal(4, 3))

# Random numbers.
_seeds = integers(0, 99, 2)
for _name in ("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"):
    _case(_name, _raw(_name, shape=[3]), _seeds)
_case(
    "StatelessRandomUniformFullInt",
    lambda s: R.StatelessRandomUniformFullInt(shape=[3], seed=s, dtype=tf.int32),
    _seeds,
)
_case(
    "StatelessRandomUniformInt",
    lambda s: R.StatelessRandomUniformInt(shape=[3], seed=s, minval=0, maxval=9),
    _seeds,
)
_case(
    "StatelessMultinomial",
    lambda s, x: R.StatelessMultinomial(logits=x, num_samples=3, seed=s),
    _seeds,
    normal(2, 4),
)
_case(
    "StatelessRandomPoisson",
    lambda s, x: tf.random.stateless_poisson([3], s, x),
    _seeds,
    fractions(),
)


def _traced(fn, specs):
    return tf.function(fn, autograph=False).get_concrete_function(*specs)


def _at_once(traced, specs, stacked, clients):
    """The function of the clients' values, in which those that are not shared are stacked.

    Raises:
      NotVectorizable: If there is none.
    """

    @tf.function(autograph=False)
    def program(*inputs):
        shared = [False] * len(traced.captured_inputs)
        return batched_ops.over_clients(
            traced.graph, [*inputs, *traced.captured_inputs], [*stacked, *shared], clients
        )

    given = [
        tf.TensorSpec([clients, *spec.shape], spec.dtype) if s else spec
        for spec, s in zip(specs, stacked, strict=True)
    ]
    return program.get_concrete_function(*given)


def _choices(arguments):
    choices = itertools.product([True, False], repeat=len(arguments))
    return [stacked for stacked in choices if any(stacked)]


def _compare(fn, arguments, stacked, clients, known):
    values = [draw(clients if s else None) for draw, s in zip(arguments, stacked, strict=True)]
    shapes = [v.shape[1:] if s else v.shape for v, s in zip(values, stacked, strict=True)]
    if not known:
        shapes = [[None] * len(shape) for shape in shapes]
    specs = [tf.TensorSpec(s, v.dtype) for s, v in zip(shapes, values, strict=True)]
    try:
        traced = _traced(fn, specs)
    except ValueError:
        assert not known
        return  # It must know its shapes.
    try:
        program = _at_once(traced, specs, stacked, clients)
    except NotVectorizable as e:
        assert str(e).startswith("Operation ") and str(e).endswith("Use --runtime=tff.")
        return
    got = program(*map(tf.constant, values))
    rows = [
        tf.nest.flatten(
            traced(*[tf.constant(v[k] if s else v) for v, s in zip(values, stacked, strict=True)])
        )
        for k in range(clients)
    ]
    for of_all, of_each in zip(got, zip(*rows, strict=True), strict=True):
        want = np.stack(of_each)
        assert of_all.shape == want.shape
        if want.dtype.kind in "fc":
            scale = max(1, np.nanmax(np.abs(want), initial=0)) if want.size else 1
            np.testing.assert_allclose(of_all, want, rtol=2e-5, atol=2e-5 * scale)
        else:
            np.testing.assert_array_equal(of_all, want)


@pytest.mark.quick_cases("sort *", "TopKV2", "StridedSlice *")
@pytest.mark.parametrize(("fn", "arguments"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_is_what_it_is_for_each_client(fn, arguments):
    for stacked in _choices(arguments):
        for clients, known in ((3, True), (1, True), (2, False)):
            _compare(fn, arguments, stacked, clients, known)


@pytest.mark.slow
def test_no_operation_is_left_out():
    wanted = {n for n in batched_ops._originals if isinstance(n, str)} - _ELSEWHERE - _REFUSED
    seen, with_form = set(), set()
    for _, fn, arguments in CASES:
        specs = [tf.TensorSpec.from_tensor(tf.constant(draw(None))) for draw in arguments]
        traced = _traced(fn, specs)
        graph_operations = set(operations(traced.graph))
        seen |= graph_operations
        for stacked in _choices(arguments) if graph_operations & wanted - with_form else ():
            try:
                _at_once(traced, specs, stacked, 2)
            except NotVectorizable:
                continue
            with_form |= graph_operations
            break
    assert wanted - seen == set()
    assert wanted - with_form == set()
