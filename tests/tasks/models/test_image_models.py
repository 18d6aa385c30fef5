import functools

import numpy as np
import pytest
import tensorflow as tf

from tasks import layers
from tasks.models import image_models, models

_vgg11 = functools.partial(image_models.conv_net, convolutions=image_models.VGG11, padding="same")
_MAKERS = {
    # FedOpt, CIFAR-10 and CIFAR-100.
    "resnet18": (image_models.resnet18, 11_181_642),
    "resnet18_cifar100": (functools.partial(image_models.resnet18, num_classes=100), 11_227_812),
    # AdaFedAdam's VGG11, with and without FedNova's dense layers, and its released code.
    "vgg11": (_vgg11, 9_225_610),
    "vgg11_dense": (functools.partial(_vgg11, hidden=(512, 512), dropout=0.5), 9_750_922),
    "three_convolutions": (
        functools.partial(
            image_models.conv_net,
            convolutions=image_models.THREE_CONVOLUTIONS,
            padding="same",
            hidden=(512,),
        ),
        2_473_610,
    ),
    # FedCAda's SimpleCNN.
    "simple_cnn": (
        functools.partial(
            image_models.conv_net,
            convolutions=image_models.SIMPLE_CNN,
            padding="valid",
            hidden=(64,),
        ),
        122_570,
    ),
    # AdaFed's MLP on CIFAR-10, AdaFedAdam's on FEMNIST, FedCAda's on Fashion-MNIST.
    "mlp_cifar10": (functools.partial(models.mlp, input_shape=(32, 32, 3)), 656_810),
    "mlp_femnist": (functools.partial(models.mlp, hidden=(128,), num_classes=62), 108_478),
    "mlp_fashion_mnist": (models.mlp, 199_210),
}


@pytest.mark.quick_cases("[!r]*", "resnet18")
@pytest.mark.parametrize("name", _MAKERS)
def test_parameters_are_as_many_as_the_papers(name):
    make, num_parameters = _MAKERS[name]
    model = make(0)
    assert model.count_params() == num_parameters
    assert sum(int(tf.size(w)) for w in model.trainable_variables) == num_parameters


@pytest.mark.quick_cases("tff-2")
@pytest.mark.parametrize(("strides", "groups"), [("usual", 32), ("tff", 2)])
def test_resnet_has_as_many_parameters_in_every_form(strides, groups):
    assert image_models.resnet18(0, strides=strides, groups=groups).count_params() == 11_181_642


@pytest.mark.quick_cases("2")
@pytest.mark.parametrize("groups", [2, 32])
def test_resnet_is_tffs(groups, monkeypatch):
    from tensorflow_federated.python.simulation.models import resnet_models

    with monkeypatch.context() as patch:
        # TFF leaves the number of groups to Keras, whose default is 32.
        group_normalization = functools.partial(tf.keras.layers.GroupNormalization, groups)
        patch.setattr(tf.keras.layers, "GroupNormalization", group_normalization)
        theirs = resnet_models.create_resnet18((24, 24, 3), num_classes=100)
    assert {n.groups for n in theirs.layers if hasattr(n, "groups") and "norm" in n.name} == {
        groups
    }
    ours = image_models.resnet18(
        0, num_classes=100, groups=groups, strides="tff", l2=1e-4, init="keras"
    )
    rng = np.random.default_rng(0)
    values = []
    for w in theirs.get_weights():
        scale = 0.7 * (2 / np.prod(w.shape[:-1])) ** 0.5 if w.ndim > 1 else 0.2
        values.append(rng.normal(w.ndim == 1, scale, w.shape).astype(np.float32))
    theirs.set_weights(values)
    shapes = [w.shape for w in theirs.get_weights()]
    assert [w.shape for w in ours.get_weights()] == shapes
    ours.set_weights(values)
    x = rng.normal(size=(3, 24, 24, 3)).astype(np.float32)
    expected = theirs(x).numpy()
    assert expected.std(axis=1).min() > 1e-4
    np.testing.assert_allclose(tf.nn.softmax(ours(x)), expected, rtol=2e-3, atol=1e-7)
    np.testing.assert_allclose(tf.add_n(ours.losses), tf.add_n(theirs.losses), rtol=1e-5)


@pytest.mark.slow
def test_usual_strides_shrink_the_later_stages():
    sizes = {}
    for strides in ("usual", "tff"):
        model = image_models.resnet18(0, input_shape=(64, 64, 3), strides=strides)
        sizes[strides] = [model.get_layer(f"block{s}2_add").output_shape[1] for s in range(1, 5)]
    assert sizes == {"usual": [16, 8, 4, 2], "tff": [16, 16, 16, 16]}


@pytest.mark.quick_cases("torch")
@pytest.mark.parametrize("init", ["torch", "keras"])
def test_resnet_starts_as_its_scheme_says(init):
    model = image_models.resnet18(3, init=init)
    again, other = image_models.resnet18(3, init=init), image_models.resnet18(4, init=init)
    for variable, same, different in zip(
        model.trainable_variables, again.get_weights(), other.get_weights(), strict=True
    ):
        value = variable.numpy()
        np.testing.assert_array_equal(value, same)
        if value.ndim == 1:
            starts_at_random = init == "torch" and variable.name.startswith("logits")
            assert (len(np.unique(value)) > 1) == starts_at_random
            continue
        assert np.isclose(value, different).mean() < 0.1
        fan_in = np.prod(value.shape[:-1])
        if init == "torch":
            expected = (3 * fan_in) ** -0.5
        else:
            expected = (2 / fan_in) ** 0.5 if value.ndim == 4 else 0.01
        np.testing.assert_allclose(value.std(), expected, rtol=0.1)


@pytest.mark.parametrize("settings", [{"strides": "none"}, {"groups": 3}, {"groups": 128}])
def test_resnet_refuses_what_it_has_not(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        image_models.resnet18(0, **settings)


def test_conv_net_is_a_loop_over_its_pixels():
    model = image_models.conv_net(
        2, convolutions=(3, "pool", 4), padding="valid", hidden=(5,), input_shape=(8, 8, 2)
    )
    kernel1, bias1, kernel2, bias2, dense, dense_bias, logits, logits_bias = (
        w.astype(np.float64) for w in model.get_weights()
    )

    def convolve(image, kernel, bias):
        side = len(image) - 2
        out = np.zeros((side, side, kernel.shape[-1]))
        for i in range(side):
            for j in range(side):
                out[i, j] = np.tensordot(image[i : i + 3, j : j + 3], kernel, 3) + bias
        return np.maximum(out, 0)

    images = np.random.default_rng(0).normal(size=(3, 8, 8, 2)).astype(np.float32)
    for image, got in zip(images, model(images).numpy(), strict=True):
        x = convolve(image.astype(np.float64), kernel1, bias1)
        x = x.reshape(3, 2, 3, 2, 3).max(axis=(1, 3))
        x = convolve(x, kernel2, bias2).reshape(-1)
        x = np.maximum(x @ dense + dense_bias, 0)
        np.testing.assert_allclose(got, x @ logits + logits_bias, rtol=1e-4, atol=1e-6)


def test_vgg_drops_only_in_training():
    model = _vgg11(0, hidden=(512, 512), dropout=0.5)
    rates = [m.rate for m in model.layers if isinstance(m, tf.keras.layers.Dropout)]
    assert rates == [0.5, 0.5]


def _images(n=6, size=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), np.uint8)


@pytest.mark.parametrize("crop", [24, 31, 32])
def test_evaluation_prepares_as_tff_does(crop):
    from tensorflow_federated.python.simulation.baselines.cifar100 import (
        image_classification_preprocessing as theirs,
    )

    images = _images()
    images[0] = 7  # Of no variance.
    prepare = theirs.build_image_map((crop, crop, 3))
    expected = [prepare({"image": image, "label": 0})[0].numpy() for image in images]
    for distort in (True, False):
        ours = layers.images.PrepareImages(crop, distort, "standardize")(images, training=False)
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_training_cuts_and_flips_where_the_draws_say():
    images = _images(8)
    layer = layers.images.PrepareImages(24, True, "unit")
    draws = np.random.default_rng(1).random((8, 3)).astype(np.float32)
    draws[0], draws[1] = 0, np.nextafter(np.float32(1), np.float32(0))
    got = layer.call(images, training=True, uniform=lambda shape: tf.constant(draws)).numpy()
    for image, (top, left, flip), prepared in zip(images, draws, got, strict=True):
        top, left = int(top * 9), int(left * 9)
        square = image[top : top + 24, left : left + 24] / 255
        np.testing.assert_allclose(prepared, square[:, ::-1] if flip < 0.5 else square, rtol=1e-6)


def test_every_cut_and_both_sides_come_up():
    images = np.repeat(_images(1), 4000, axis=0)
    layer = layers.images.PrepareImages(24, True, "unit")
    draws = tf.random.Generator.from_seed(1).uniform([4000, 3])
    got = layer.call(images, training=True, uniform=lambda shape: draws).numpy()
    cuts = {
        images[0, top : top + 24, left : left + 24][:, ::step].tobytes(): (top, left, step)
        for top in range(9)
        for left in range(9)
        for step in (1, -1)
    }
    counts = dict.fromkeys(cuts.values(), 0)
    for square in np.round(got * 255).astype(np.uint8):
        counts[cuts[square.tobytes()]] += 1
    assert len(counts) == 162 and min(counts.values()) >= 8 and max(counts.values()) <= 50


def test_without_distortion_training_is_evaluation():
    images = _images()
    layer = layers.images.PrepareImages(24, False, "standardize")
    np.testing.assert_array_equal(layer(images, training=True), layer(images, training=False))


def test_a_crop_larger_than_the_image_is_refused():
    with pytest.raises(ValueError, match="40"):
        layers.images.PrepareImages(40, False, "unit")(_images())


def test_scaling_is_one_of_two():
    with pytest.raises(ValueError, match="scaling"):
        layers.images.PrepareImages(24, False, "none")


def test_models_of_bytes_prepare_and_predict():
    make = functools.partial(models.mlp, hidden=(4,), num_classes=3)
    model = image_models.of_bytes(
        5, model_fn=make, shape=(32, 32, 3), crop=24, distort=True, scaling="unit"
    )
    images = _images()
    inner = make(5, input_shape=(24, 24, 3))
    expected = inner(images[:, 4:28, 4:28] / np.float32(255))
    assert model.inputs[0].dtype == tf.uint8
    np.testing.assert_allclose(model(images), expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(model.get_weights(), inner.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
