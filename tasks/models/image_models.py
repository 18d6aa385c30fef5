"""Keras models for colour images, and their preprocessing.

Models take float32 and return logits; only the seed determines the initial weights. `of_bytes` puts
the preprocessing in front of a model. Clients then hold bytes, a quarter of the memory, and random
distortion is drawn anew in every training step.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import layers
from tasks.models.models import _Initial
from tasks.task import DataError

# Filters of 3x3 convolutions, and "pool" for 2x2 max-pooling.
VGG11 = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")
SIMPLE_CNN = (32, "pool", 64, "pool", 64)
THREE_CONVOLUTIONS = (64, "pool", 128, "pool", 256, "pool")


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
      crop: See `tasks.layers.images.PrepareImages`.
      distort: See `tasks.layers.images.PrepareImages`.
      scaling: See `tasks.layers.images.PrepareImages`.

    Returns:
      A built model, uint8 `[B, *shape]` to logits.
    """
    inputs = tf.keras.Input(tuple(shape), dtype=tf.uint8)
    x = layers.images.PrepareImages(crop, distort, scaling, name="prepare")(inputs)
    model = model_fn(seed, input_shape=(crop, crop, shape[2]))
    return tf.keras.Model(inputs, model(x), name=f"{model.name}_of_bytes")


def resnet50(
    seed: int,
    *,
    input_shape: Sequence[int] = (224, 224, 3),
    num_classes: int = 14,
    weights: Mapping[str, Sequence[np.ndarray]] | None = None,
    init: str = "torch",
) -> tf.keras.Model:
    """Makes Keras's ResNet-50 with fixed batch statistics and a new last dense layer.

    With 14 classes it has 23,563,278 trainable parameters, and 53,120 fixed statistics. AdaFed and
    FedCorr train PyTorch's, whose batch normalisation uses the batch's statistics in training.

    Args:
      seed: Seed of the initial weights: of the last layer, or of all layers without `weights`.
      input_shape: Height, width and channels.
      num_classes: Number of classes.
      weights: Weights of each layer by name, as in Keras's own file; those of the file's last layer
        are not used. `None` draws all at random, which is for generated data only.
      init: Initial weights of the last layer, `torch` or `keras`, see `tasks.settings`.

    Returns:
      A built model, float32 `[B, *input_shape]`, prepared as for `imagenet`, to logits `[B,
      num_classes]`.

    Raises:
      DataError: If a layer's weights are missing or of another shape.
    """
    of_keras = types.SimpleNamespace(**vars(tf.keras.layers))
    of_keras.BatchNormalization = layers.normalization.FixedBatchNormalization
    base = tf.keras.applications.ResNet50(
        include_top=False,
        weights=None,
        input_shape=tuple(input_shape),
        pooling="avg",
        layers=of_keras,
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
    dense = tf.keras.layers.Dense(num_classes, name="logits", **initial(base.output_shape[-1]))
    return tf.keras.Model(base.input, dense(base.output), name="resnet50")


def _drawn(layer: tf.keras.layers.Layer, rng: np.random.Generator) -> list[np.ndarray]:
    """Returns random weights for a layer of ResNet-50 that preserve the signal's scale."""
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

    It is TFF's model with pre-activation (He et al. 2016b), which FedOpt used: 11,181,642
    parameters with 10 classes, 11,227,812 with 100. A 7x7 convolution of stride 2 and 3x3
    max-pooling of stride 2 are followed by four stages of two blocks with 64, 128, 256 and 512
    filters. TFF's model ends in a softmax; this one returns the logits before it.

    Args:
      seed: Seed of the initial weights.
      input_shape: Height, width and channels of an image.
      num_classes: Number of classes.
      groups: Groups of each normalisation, a divisor of 64. FedOpt states 2, TFF has 32.
      strides: `usual` halves height and width at the start of stages two to four; `tff` does not.
      l2: Factor of the squared weights of convolutions and the dense layer in the loss. FedOpt
        states none, TFF has 1e-4.
      init: `torch`, or `keras` with He's normal rule for convolutions and N(0, 0.01) for the dense
        layer, as in TFF; see `tasks.settings`.

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

    def convolve(
        x: Any, filters: int, size: int, stride: int, name: str, padding: str = "same"
    ) -> Any:
        kernel = initial(size * size * x.shape[-1], tf.keras.initializers.HeNormal)[
            "kernel_initializer"
        ]
        return layers.convolution.Conv2D(
            filters,
            size,
            stride,
            padding,
            use_bias=False,
            kernel_initializer=kernel,
            kernel_regularizer=regularizer,
            name=name,
        )(x)

    def normalize(x: Any, name: str) -> Any:
        return layers.normalization.GroupNormalization(groups, name=name)(x)

    def activate(x: Any, name: str) -> Any:
        return tf.keras.layers.ReLU(name=f"{name}_relu")(normalize(x, f"{name}_norm"))

    def block(x: Any, filters: int, stride: int, name: str, is_first: bool) -> Any:
        residual = x if is_first else activate(x, f"{name}_1")
        residual = convolve(residual, filters, 3, stride, f"{name}_1_conv")
        residual = activate(residual, f"{name}_2")
        residual = convolve(residual, filters, 3, 1, f"{name}_2_conv")
        if stride > 1 or x.shape[-1] != filters:
            x = convolve(x, filters, 1, stride, f"{name}_shortcut_conv", "valid")
            x = normalize(x, f"{name}_shortcut_norm")
        return tf.keras.layers.Add(name=f"{name}_add")([x, residual])

    inputs = tf.keras.Input(tuple(input_shape))
    x = activate(convolve(inputs, 64, 7, 2, "stem_conv"), "stem")
    x = tf.keras.layers.MaxPool2D(3, 2, "same", name="stem_pool")(x)
    for stage, filters in enumerate((64, 128, 256, 512), start=1):
        for i in (1, 2):
            starts_stage = strides == "usual" and stage > 1 and i == 1
            is_first = (stage, i) == (1, 1)
            x = block(x, filters, 2 if starts_stage else 1, f"block{stage}{i}", is_first)
    x = tf.keras.layers.GlobalAveragePooling2D(name="pool")(activate(x, "last"))
    x = tf.keras.layers.Dense(
        num_classes,
        kernel_regularizer=regularizer,
        bias_regularizer=regularizer,
        name="logits",
        **initial(x.shape[-1], functools.partial(tf.keras.initializers.RandomNormal, stddev=0.01)),
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
        whose widths are not published, 122,570.

    Args:
      seed: Seed of the initial weights.
      convolutions: Filters of each convolution, or "pool" for 2x2 max-pooling.
      padding: `same` or `valid`.
      hidden: Units of the dense layers before the last.
      dropout: Rate of dropout before each of them.
      input_shape: Height, width and channels of an image.
      num_classes: Number of classes.
      init: `torch` or `keras`, see `tasks.settings`.

    Returns:
      A built model, float32 `[B, *input_shape]` to logits `[B, num_classes]`.
    """
    initial = _Initial(init, seed)
    x = inputs = tf.keras.Input(tuple(input_shape))
    for i, filters in enumerate(convolutions, start=1):
        if filters == "pool":
            x = layers.pooling.MaxPool2D(name=f"pool{i}")(x)
            continue
        x = layers.convolution.Conv2D(
            filters,
            3,
            padding=padding,
            activation="relu",
            name=f"conv{i}",
            **initial(9 * x.shape[-1]),
        )(x)
    x = tf.keras.layers.Flatten(name="flatten")(x)
    for i, units in enumerate(hidden, start=1):
        if dropout:
            x = tf.keras.layers.Dropout(dropout, name=f"dropout{i}")(x)
        dense = tf.keras.layers.Dense(
            units, activation="relu", name=f"dense{i}", **initial(x.shape[-1])
        )
        x = dense(x)
    x = tf.keras.layers.Dense(num_classes, name="logits", **initial(x.shape[-1]))(x)
    return tf.keras.Model(inputs, x, name="conv_net")
