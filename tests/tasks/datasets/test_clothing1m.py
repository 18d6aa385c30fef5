import os

import h5py
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import tasks
from tasks import layers, partitions
from tasks.datasets import clothing1m
from tasks.models import image_models
from tasks.task import DataError
from tff_suite.hparams import HparamError

_NUM_TRAIN, _NUM_TEST = 60, 28


def _key(part, i):
    return f"images/{i % 10}/{'25' if part == 'train' else '07'}/{i},{part}.jpg"


def _picture(part, i):
    """Returns a picture whose corners tell which one it is, of any proportion."""
    rng = np.random.default_rng(i + (1000 if part == "test" else 0))
    colours = rng.integers(0, 256, (2, 2, 3), np.uint8)
    return colours.repeat(150 + 8 * (i % 5), axis=0).repeat(128, axis=1)


def _label(part, i):
    return (3 * i + (part == "test")) % 14


def _write(folder, annotations="."):
    """Writes Clothing1M's lists and pictures as they are published."""
    (folder / annotations).mkdir(exist_ok=True)
    names = {
        "train": ("noisy_train_key_list", "noisy_label_kv"),
        "test": ("clean_test_key_list", "clean_label_kv"),
    }
    for part, n in (("train", _NUM_TRAIN), ("test", _NUM_TEST)):
        keys, labels = (folder / annotations / f"{name}.txt" for name in names[part])
        keys.write_text("".join(f"{_key(part, i)}\n" for i in range(n)))
        # Labels are of more pictures than the list, and in another order.
        labels.write_text(
            "".join(f"{_key(part, i)} {_label(part, i)}\n" for i in range(n + 5))[::1]
        )
        for i in range(n):
            path = folder / _key(part, i)
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(_picture(part, i)).save(path, quality=95)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clothing1m")
    _write(folder)
    return folder


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory):
    """A file of weights, written by Keras; batch statistics are not those of a new model."""
    model = tf.keras.applications.ResNet50(weights=None, include_top=False)
    rng = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in layer.get_weights()])
    path = tmp_path_factory.mktemp("weights") / "resnet50_notop.h5"
    model.save_weights(path)
    return path, model


def _load(folder, weights, **settings):
    settings = {"num_clients": 3, "partition": "iid", **settings}
    return tasks.load("clothing1m", data_dir=str(folder), weights=str(weights), **settings)


def _no_weights(monkeypatch):
    """Lets tests of the data go without a file of a hundred megabytes."""
    monkeypatch.setattr(clothing1m, "read_weights", lambda path: {})


def _check_pictures(examples, part, atol):
    assert examples.x.dtype == np.uint8 and examples.y.dtype == np.int32
    x = np.asarray(examples.x[:])
    assert x.shape == (len(examples.y), 256, 256, 3)
    n = {"train": _NUM_TRAIN, "test": _NUM_TEST}[part]
    corners = [[0, 0], [0, 255], [255, 0], [255, 255]]
    wanted = np.array(
        [
            [_picture(part, i)[:: 1 - 2 * (r > 0)][0][-1 if c else 0] for r, c in corners]
            for i in range(n)
        ]
    )
    for picture, label in zip(x, examples.y, strict=True):
        got = np.array([picture[r, c] for r, c in corners], float)
        distance = np.abs(wanted - got).max(axis=(1, 2))
        assert distance.min() < atol and label == _label(part, int(distance.argmin()))
        yield int(distance.argmin())


@pytest.mark.quick_cases("prepared")
@pytest.mark.parametrize("form", ["pictures", "annotations", "prepared"])
def test_pictures_and_labels_are_the_lists(tmp_path, published, monkeypatch, form):
    _no_weights(monkeypatch)
    folder = published
    if form == "annotations":
        folder = tmp_path
        _write(folder, "annotations")
    if form == "prepared":
        monkeypatch.setattr(clothing1m, "_PICTURES_A_PIECE", 25)
        folder = tmp_path
        made = tasks.get("clothing1m").prepare_fn()(str(published), str(folder))
        assert made.counts["train"] == (_NUM_TRAIN, 1_000_000)
        assert made.counts["test"] == (_NUM_TEST, 10_526) and "clients" not in made.counts
        assert os.listdir(folder / "clothing1m.prepared")
    task = _load(folder, "w")
    atol = 12 if form == "prepared" else 6  # JPEG once or twice.
    seen = [i for k in range(3) for i in _check_pictures(task.train.examples(k), "train", atol)]
    assert sorted(seen) == list(range(_NUM_TRAIN)) and task.train.sizes.tolist() == [20, 20, 20]
    assert list(_check_pictures(task.central_test, "test", atol)) == list(range(_NUM_TEST))
    tests = [i for k in range(3) for i in _check_pictures(task.test.examples(k), "test", atol)]
    assert sorted(tests) == list(range(_NUM_TEST))


def test_resizing_is_that_of_pillow(tmp_path):
    rng = np.random.default_rng(0)
    smooth = rng.integers(0, 256, (12, 20, 3), np.uint8).repeat(40, 0).repeat(30, 1)
    PIL.Image.fromarray(smooth).save(tmp_path / "a.png")
    ours = clothing1m._read_picture(str(tmp_path), ["a.png"], 0).astype(int)
    pillows = PIL.Image.fromarray(smooth).resize((256, 256), PIL.Image.Resampling.BILINEAR)
    assert np.abs(ours - np.asarray(pillows, int)).max() <= 2


def test_pictures_stand_for_an_array():
    pictures = clothing1m.Pictures(5, lambda row: np.full((256, 256, 3), row, np.uint8))
    assert len(pictures) == 5 and pictures.shape == (5, 256, 256, 3)
    np.testing.assert_array_equal(pictures[1:4][:, 0, 0, 0], [1, 2, 3])
    np.testing.assert_array_equal(pictures[np.array([4, 0])][:, 9, 9, 2], [4, 0])
    assert pictures[np.array([], int)].shape == (0, 256, 256, 3)


def test_without_weights_it_refuses(published):
    with pytest.raises(DataError) as error:
        tasks.load("clothing1m", data_dir=str(published))
    text = str(error.value)
    assert "\n" not in text and "--clothing1m_weights" in text and "random" in text


def test_partitions_of_fedcorr_and_their_settings(published, monkeypatch):
    _no_weights(monkeypatch)
    task = _load(published, "w", partition="skewed")
    assert task.train.sizes.sum() <= _NUM_TRAIN
    with pytest.raises(HparamError, match="partition=skewed"):
        _load(published, "w", alpha=3.0)


@pytest.mark.parametrize(("p", "alpha"), [(0.7, 10.0), (0.3, 5.0), (1.0, 100.0)])
def test_some_classes_dirichlet(p, alpha):
    labels = np.random.default_rng(0).integers(0, 14, 20_000)
    parts = partitions.some_classes_dirichlet(labels, 50, p, alpha, seed=1)
    rows = np.concatenate(parts)
    assert len(set(rows)) == len(rows) == 20_000
    has = np.array([[np.sum(labels[part] == c) for c in range(14)] for part in parts])
    # Of 700 pairs; those of few rows may have come out empty.
    assert (has > 0).mean() == pytest.approx(p, abs=0.1)
    shares = has / has.sum(axis=0)
    if p == 1.0:
        # The variance of a share is (1 - 1/K) / K / (alpha K + 1), and a multinomial's on top.
        dirichlet = (1 / 50) * (1 - 1 / 50) / (alpha * 50 + 1)
        multinomial = (1 / 50) / has.sum(axis=0).mean()
        assert shares.var() == pytest.approx(dirichlet + multinomial, rel=0.15)
    again = partitions.some_classes_dirichlet(labels, 50, p, alpha, seed=1)
    other = partitions.some_classes_dirichlet(labels, 50, p, alpha, seed=2)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))
    with pytest.raises(HparamError, match="num_clients=90"):
        partitions.some_classes_dirichlet(labels[:80], 90, p, alpha, seed=1)


def test_preparing_pixels_is_kerass():
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    layer = layers.images.PrepareImages(8, False, "imagenet")
    expected = tf.keras.applications.resnet.preprocess_input(images.astype(np.float32))
    np.testing.assert_allclose(layer(images), expected, rtol=1e-6)


@pytest.mark.long
def test_the_model_is_kerass_with_fixed_statistics(weights_file):
    import tff_algos

    path, theirs = weights_file
    weights = clothing1m.read_weights(str(path))
    shape = (64, 64, 3)
    ours = image_models.resnet50(1, input_shape=shape, weights=weights)
    trainable = sum(int(tf.size(w)) for w in ours.trainable_variables)
    assert trainable == 23_563_278 and ours.count_params() == 23_563_278 + 53_120
    kernel, bias = ours.get_layer("logits").get_weights()
    assert 0.75 < np.abs(kernel).max() * 2048**0.5 <= 1.0001 and bias.all()
    x = np.random.default_rng(0).normal(0, 60, (2, *shape)).astype(np.float32)
    expected = tf.reduce_mean(theirs(x), axis=(1, 2)) @ kernel + bias
    for training in (False, True):
        np.testing.assert_allclose(ours(x, training=training), expected, rtol=1e-3, atol=1e-4)

    def loss(y, logits):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)

    # What clients train are all weights but the statistics.
    model = tff_algos.from_keras(ours, loss=loss)
    assert sum(w.size for w in model.initial_weights) == 23_563_278


@pytest.mark.quick_cases("cut", "missing", "text")
@pytest.mark.parametrize("damage", ["cut", "text", "missing", "no_layer", "shape"])
def test_damaged_weights_are_one_line(tmp_path, weights_file, damage):
    path = tmp_path / "weights.h5"
    if damage == "cut":
        path.write_bytes(weights_file[0].read_bytes()[:100_000])
    elif damage == "text":
        path.write_text("<html>404</html>")
    elif damage != "missing":
        with h5py.File(path, "w") as file:
            group = file.create_group("conv1_conv")
            group.create_dataset("kernel", data=np.zeros((7, 7, 3, 64 - (damage == "shape"))))
            group.attrs["weight_names"] = [b"kernel"]
            file.attrs["layer_names"] = [b"conv1_conv"]
    with pytest.raises(DataError) as error:
        image_models.resnet50(
            1, input_shape=(32, 32, 3), weights=clothing1m.read_weights(str(path))
        )
    assert "\n" not in str(error.value)
    if damage in ("no_layer", "shape"):
        assert "conv1_" in str(error.value)
    else:
        assert str(path) in str(error.value) and "--clothing1m_weights" in str(error.value)


def test_a_whole_model_is_a_file_of_weights_too(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,), name="one")])
    model.save(tmp_path / "whole.h5")
    read = clothing1m.read_weights(str(tmp_path / "whole.h5"))
    for ours, theirs in zip(read["one"], model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _edit(folder, name, change):
    path = folder / name
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        ("no_list", "noisy_train_key_list.txt is missing"),
        ("no_labels", "clean_label_kv.txt is missing"),
        ("empty", "noisy_train_key_list.txt is empty"),
        ("label", "line 3"),
        ("cut", "line 33"),
        ("unknown", "no label of images/x.jpg"),
        ("no_picture", "0,train.jpg is missing"),
        ("cut_picture", "0,train.jpg is damaged"),
    ],
)
@pytest.mark.parametrize("how", ["load", "prepare"])
def test_missing_and_damaged_files_are_one_line(tmp_path, monkeypatch, damage, part, how):
    _no_weights(monkeypatch)
    _write(tmp_path)
    lists = "noisy_train_key_list.txt"
    picture = tmp_path / _key("train", 0)
    if damage == "no_list":
        (tmp_path / lists).unlink()
    elif damage == "no_labels":
        (tmp_path / "clean_label_kv.txt").unlink()
    elif damage == "empty":
        (tmp_path / lists).write_text("\n")
    elif damage == "label":
        _edit(
            tmp_path,
            "noisy_label_kv.txt",
            lambda t: t.replace("train.jpg 6\n", "train.jpg 14\n", 1),
        )
    elif damage == "cut":
        _edit(tmp_path, "clean_label_kv.txt", lambda t: t[:-3])
    elif damage == "unknown":
        _edit(tmp_path, lists, lambda t: t + "images/x.jpg\n")
    elif damage == "no_picture":
        picture.unlink()
    else:
        picture.write_bytes(picture.read_bytes()[:200])
    with pytest.raises(DataError) as error:
        if how == "load":
            task = _load(tmp_path, "w")
            for k in range(3):
                task.train.examples(k)
        else:
            tasks.get("clothing1m").prepare_fn()(str(tmp_path), str(tmp_path / "ready"))
    text = str(error.value)
    assert "\n" not in text and part in text and "--data_dir" in text
    assert not (tmp_path / "ready" / "clothing1m.prepared").exists()


def test_a_picture_listed_twice_counts_once(tmp_path, monkeypatch):
    _no_weights(monkeypatch)
    _write(tmp_path)
    _edit(tmp_path, "noisy_train_key_list.txt", lambda t: t + _key("train", 7) + "\n")
    assert _load(tmp_path, "w").train.sizes.sum() == _NUM_TRAIN


def test_without_data_dir_it_says_what_it_needs(monkeypatch):
    _no_weights(monkeypatch)
    with pytest.raises(DataError, match="--data_dir"):
        tasks.load("clothing1m", weights="w")
