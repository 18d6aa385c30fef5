"""Keras models for colour images, and what is done to the images before.

Models take float32 and give logits; a seed alone decides the initial weights. `of_bytes` puts the
preprocessing in front of one, so that clients hold bytes, a quarter of the memory, and distortion
is drawn anew in every step of training.
"""

import functools
import types
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tasks.layers.convolution import Conv2D
from tasks.layers.pooling import MaxPool2D
from tasks.models.models import _Initial
from tasks.task import DataError

_layers = tf.keras.layers
_initializers = tf.keras.initializers

# Filters of 3x3 convolutions, and "pool" for 2x2 max-pooling.
VGG11 = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")
SIMPLE_CNN = (32, "pool", 64, "pool", 64)
THREE_CONVOLUTIONS = (64, "pool", 128, "pool", 256, "pool")


_IMAGENET_MEANS = (103.939, 116.779, 123.68)  # Blue, green, red.


class PrepareImages(tf.keras.layers.Layer):
    """Crops, flips and scales images, as FedOpt (Reddi et al. 2021, App. C.1) does CIFAR's.

    In training with `distort` a square is cut out at random and flipped left to right with
    probability 1/2, each image for itself; else the square in the centre is cut out.
    """

    prepares_inputs = True  # See `tff_algos.from_keras`.

    def __init__(self, crop: int, distort: bool, scaling: str, **kwargs):
        """Initialises the layer.

        Args:
          crop: Height and width of the square, in pixels.
          distort: Whether to cut and flip at random in training.
          scaling: `standardize` subtracts an image's mean and divides by its standard deviation,
            over all pixels and channels; `unit` divides by 255; `imagenet` turns RGB into BGR and
            subtracts ImageNet's mean of each channel, as `tf.keras.applications.resnet` does.
          **kwargs: As for every Keras layer.

        Raises:
          ValueError: If `scaling` is none of these.
        """
        super().__init__(**kwargs)
        if scaling not in ("standardize", "unit", "imagenet"):
            raise ValueError(f"scaling={scaling!r} must be standardize, unit or imagenet.")
        self.crop = crop
        self.distort = distort
        self.scaling = scaling

    def call(
        self, inputs: tf.Tensor, training: bool | None = None, uniform: Callable = tf.random.uniform
    ) -> tf.Tensor:
        """Prepares images.

        Args:
          inputs: `[B, H, W, C]`, 0 to 255, of any type.
          training: Whether this is training.
          uniform: Function of a shape that draws from [0, 1); see `tff_algos.keras_bridge`.

        Returns:
          float32 `[B, crop, crop, C]`.
        """
        x = tf.cast(inputs, tf.float32)
        if training and self.distort:
            x = self._distorted(x, uniform(tf.stack([tf.shape(x)[0], 3])))
        else:
            top, left = (margin // 2 for margin in self._margins(x))
            x = x[:, top : top + self.crop, left : left + self.crop]
        if self.scaling == "standardize":
            return tf.image.per_image_standardization(x)
        if self.scaling == "imagenet":
            return x[..., ::-1] - _IMAGENET_MEANS
        return x / 255

    def _margins(self, x):
        margins = [size - self.crop for size in x.shape[1:3]]
        if min(margins) < 0:
            raise ValueError(f"A square of {self.crop} does not fit into images of {x.shape[1:3]}.")
        return margins

    def _distorted(self, x, draws):
        starts = []
        for margin, draw in zip(self._margins(x), (draws[:, 0], draws[:, 1]), strict=True):
            # The product may be rounded up to margin + 1.
            start = tf.minimum(tf.cast(draw * (margin + 1), tf.int32), margin)
            starts.append(start[:, tf.newaxis])
        steps = tf.range(self.crop)
        rows = starts[0] + steps
        columns = starts[1] + tf.where(draws[:, 2:] < 0.5, self.crop - 1 - steps, steps)
        x = tf.gather(x, rows, axis=1, batch_dims=1)
        return tf.gather(x, columns, axis=2, batch_dims=1)


def of_bytes(
    seed: int,
    *,
    model_fn: Callable[..., tf.keras.Model],
    shape: Sequence[int],
    crop: int,
    distort: bool,
    scaling: str,
) -> tf.keras.Model:
    """Makes a model of images as bytes.

    Args:
      seed: Seed of the initial weights.
      model_fn: Makes the model of prepared images: `model_fn(seed, input_shape=...)`.
      shape: Height, width and channels of an image.
      crop: See `PrepareImages`.
      distort: See `PrepareImages`.
      scaling: See `PrepareImages`.

    Returns:
      A built model, uint8 `[B, *shape]` to logits.
    """
    inputs = tf.keras.Input(tuple(shape), dtype=tf.uint8)
    x = PrepareImages(crop, distort, scaling, name="prepare")(inputs)
    model = model_fn(seed, input_shape=(crop, crop, shape[2]))
    return tf.keras.Model(inputs, model(x), name=f"{model.name}_of_bytes")


class FixedBatchNormalization(tf.keras.layers.BatchNormalization):
    """Batch normalisation by the statistics it starts with, in training as well.

    Scale and offset are trained. Statistics of a batch would have to be averaged between clients,
    which are not alike; fixed, the layer is a function of its weights and of one example.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Normalises `inputs`; `training` has no effect."""
        return super().call(inputs, training=False)


def resnet50(
    seed: int,
    *,
    input_shape: Sequence[int] = (224, 224, 3),
    num_classes: int = 14,
    weights: Mapping[str, Sequence[np.ndarray]] | None = None,
    init: str = "torch",
) -> tf.keras.Model:
    """Makes Keras's ResNet-50 with fixed batch statistics and a dense layer of its own.

    With 14 classes 23,563,278 trainable parameters, and 53,120 fixed statistics. AdaFed and FedCorr
    train PyTorch's, whose batch normalisation uses the batch's statistics in training.

    Args:
      seed: Seed of the initial weights: of the last layer, and of all if there are no `weights`.
      input_shape: Height, width and channels.
      num_classes: Number of classes.
      weights: Weights of each layer by name, as in Keras's own file; those of a last layer of
        theirs are not used. `None` draws all at random, which is for made-up data only.
      init: Initial weights of the last layer, `torch` or `keras`, see `tasks.builtin`.

    Returns:
      A built model, float32 `[B, *input_shape]`, prepared as `imagenet`, to logits
      `[B, num_classes]`.

    Raises:
      DataError: If a layer's weights are missing or of another shape.
    """
    layers = types.SimpleNamespace(**vars(_layers))
    layers.BatchNormalization = FixedBatchNormalization
    base = tf.keras.applications.ResNet50(
        include_top=False,
        weights=None,
        input_shape=tuple(input_shape),
        pooling="avg",
        layers=layers,
    )
    rng = np.random.default_rng(seed)
    for layer in base.layers:
        if not layer.weights:
            continue
        if weights is None:
            layer.set_weights(_drawn(layer, rng))
            continue
        given = weights.get(layer.name, ())
        if [w.shape for w in given] != [tuple(w.shape) for w in layer.weights]:
            raise DataError(
                f"The weights are not those of Keras's ResNet-50: layer {layer.name!r} is missing "
                "or of another shape."
            )
        layer.set_weights(given)
    initial = _Initial(init, seed)
    dense = _layers.Dense(num_classes, name="logits", **initial(base.output_shape[-1]))
    return tf.keras.Model(base.input, dense(base.output), name="resnet50")


def _drawn(layer: tf.keras.layers.Layer, rng: np.random.Generator) -> list[np.ndarray]:
    """Returns random weights for a layer of ResNet-50, with which the signal keeps its size."""
    first, *others = layer.get_weights()
    if first.ndim == 4:
        # What comes first are pixels, some 64 times larger than what comes later.
        inputs = np.prod(first.shape[:3]) * (64**2 if layer.name == "conv1_conv" else 1)
        return [rng.normal(0, inputs**-0.5, first.shape), *others]
    # With a scale of 0 at its end a block begins as its shortcut.
    return [first * (not layer.name.endswith("_3_bn")), *others]


def resnet18(
    seed: int,
    *,
    input_shape: Sequence[int] = (24, 24, 3),
    num_classes: int = 10,
    groups: int = 2,
    strides: str = "usual",
    l2: float = 0.0,
    init: str = "keras",
) -> tf.keras.Model:
    """Makes a ResNet-18 with group normalisation instead of batch normalisation.

    In its form with pre-activation (He et al. 2016b), as TFF has it, which FedOpt used: 11,181,642
    parameters with 10 classes, 11,227,812 with 100. A 7x7 convolution of stride 2 and 3x3
    max-pooling of stride 2 are followed by four stages of two blocks with 64, 128, 256 and 512
    filters. TFF's model ends in a softmax; this one gives the logits before it.

    Args:
      seed: Seed of the initial weights.
      input_shape: Height, width and channels of an image.
      num_classes: Number of classes.
      groups: Groups of each normalisation, a divisor of 64. FedOpt says 2, TFF has 32.
      strides: `usual` halves height and width at the start of stages two to four; `tff` does not.
      l2: Factor of the squared weights of convolutions and the dense layer in the loss. FedOpt
        names none, TFF has 1e-4.
      init: `torch`, or `keras` with He's normal rule for convolutions and N(0, 0.01) for the dense
        layer, as in TFF; see `tasks.builtin`.

    Returns:
      A built model, float32 `[B, *input_shape]` to logits `[B, num_classes]`.

    Raises:
      ValueError: If `strides` is neither or `groups` does not divide 64.
    """
    if strides not in ("usual", "tff"):
        raise ValueError(f"strides={strides!r} must be 'usual' or 'tff'.")
    if groups < 1 or 64 % groups:
        raise ValueError(f"groups={groups} must divide 64.")
    initial = _Initial(init, seed)
    regularizer = tf.keras.regularizers.L2(l2) if l2 else None

    def convolve(x, filters, size, stride, name, padding="same"):
        kernel = initial(size * size * x.shape[-1], _initializers.HeNormal)["kernel_initializer"]
        return _layers.Conv2D(
            filters,
            size,
            stride,
            padding,
            use_bias=False,
            kernel_initializer=kernel,
            kernel_regularizer=regularizer,
            name=name,
        )(x)

    def normalize(x, name):
        return _layers.GroupNormalization(groups, name=name)(x)

    def activate(x, name):
        return _layers.ReLU(name=f"{name}_relu")(normalize(x, f"{name}_norm"))

    def block(x, filters, stride, name, is_first):
        residual = x if is_first else activate(x, f"{name}_1")
        residual = convolve(residual, filters, 3, stride, f"{name}_1_conv")
        residual = activate(residual, f"{name}_2")
        residual = convolve(residual, filters, 3, 1, f"{name}_2_conv")
        if stride > 1 or x.shape[-1] != filters:
            x = convolve(x, filters, 1, stride, f"{name}_shortcut_conv", "valid")
            x = normalize(x, f"{name}_shortcut_norm")
        return _layers.Add(name=f"{name}_add")([x, residual])

    inputs = tf.keras.Input(tuple(input_shape))
    x = activate(convolve(inputs, 64, 7, 2, "stem_conv"), "stem")
    x = _layers.MaxPool2D(3, 2, "same", name="stem_pool")(x)
    for stage, filters in enumerate((64, 128, 256, 512), start=1):
        for i in (1, 2):
            starts_stage = strides == "usual" and stage > 1 and i == 1
            is_first = (stage, i) == (1, 1)
            x = block(x, filters, 2 if starts_stage else 1, f"block{stage}{i}", is_first)
    x = _layers.GlobalAveragePooling2D(name="pool")(activate(x, "last"))
    x = _layers.Dense(
        num_classes,
        kernel_regularizer=regularizer,
        bias_regularizer=regularizer,
        name="logits",
        **initial(x.shape[-1], functools.partial(_initializers.RandomNormal, stddev=0.01)),
    )(x)
    return tf.keras.Model(inputs, x, name="resnet18")


def conv_net(
    seed: int,
    *,
    convolutions: Sequence[int | str],
    padding: str,
    hidden: Sequence[int] = (),
    dropout: float = 0.0,
    input_shape: Sequence[int] = (32, 32, 3),
    num_classes: int = 10,
    init: str = "torch",
) -> tf.keras.Model:
    """Makes a plain convolutional network: 3x3 convolutions, then dense layers, ReLU after each.

    With 32x32 images and 10 classes:

      * `VGG11`, `same`: AdaFedAdam's "VGG11 adapted to CIFAR-10", 9,225,610 parameters; with
        `hidden=(512, 512), dropout=0.5` as in FedNova's code, 9,750,922.
      * `THREE_CONVOLUTIONS`, `same`, `hidden=(512,)`: as many parameters as the network in
        AdaFedAdam's released code, 2,473,610.
      * `SIMPLE_CNN`, `valid`, `hidden=(64,)`: FedCAda's three convolutions and two dense layers,
        whose widths it leaves open, 122,570.

    Args:
      seed: Seed of the initial weights.
      convolutions: Filters of each convolution, or "pool" for 2x2 max-pooling.
      padding: `same` or `valid`.
      hidden: Units of the dense layers before the last.
      dropout: Rate of dropout before each of them.
      input_shape: Height, width and channels of an image.
      num_classes: Number of classes.
      init: `torch` or `keras`, see `tasks.builtin`.

    Returns:
      A built model, float32 `[B, *input_shape]` to logits `[B, num_classes]`.
    """
    initial = _Initial(init, seed)
    x = inputs = tf.keras.Input(tuple(input_shape))
    for i, filters in enumerate(convolutions, start=1):
        if filters == "pool":
            x = MaxPool2D(name=f"pool{i}")(x)
            continue
        x = Conv2D(
            filters,
            3,
            padding=padding,
            activation="relu",
            name=f"conv{i}",
            **initial(9 * x.shape[-1]),
        )(x)
    x = _layers.Flatten(name="flatten")(x)
    for i, units in enumerate(hidden, start=1):
        if dropout:
            x = _layers.Dropout(dropout, name=f"dropout{i}")(x)
        dense = _layers.Dense(units, activation="relu", name=f"dense{i}", **initial(x.shape[-1]))
        x = dense(x)
    x = _layers.Dense(num_classes, name="logits", **initial(x.shape[-1]))(x)
    return tf.keras.Model(inputs, x, name="conv_net")
