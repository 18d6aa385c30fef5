import gzip
import struct

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks.datasets import fashion_mnist
from tasks.task import DataError
from tff_suite.hparams import HparamError

_FILES = [
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
]


def _write_set(folder, num_train=200, num_test=30):
    """Writes the four files; the first pixel of an image is its label, the second its row."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", num_train), ("t10k", num_test)):
        labels = np.arange(n) % 10
        images = np.zeros((n, 28, 28), np.uint8)
        images[:, 0, 0], images[:, 0, 1] = labels, np.arange(n)
        for kind, header, data in (
            ("images-idx3", struct.pack(">4I", 0x803, n, 28, 28), images),
            ("labels-idx1", struct.pack(">2I", 0x801, n), labels.astype(np.uint8)),
        ):
            with gzip.open(folder / f"{part}-{kind}-ubyte.gz", "wb") as file:
                file.write(header + data.tobytes())


@pytest.mark.parametrize("subfolder", ["", "fashion_mnist"])
@pytest.mark.parametrize("partition", ["dirichlet", "iid", "shards"])
def test_every_training_example_has_one_owner(tmp_path, subfolder, partition):
    _write_set(tmp_path / subfolder)
    task = tasks.load("fashion_mnist", data_dir=str(tmp_path), partition=partition, num_clients=5)
    rows = []
    for data in (task.train, task.test):
        for k in range(5):
            x, y = data.examples(k)
            assert x.shape == (data.sizes[k], 28, 28, 1) and x.dtype == np.float32
            np.testing.assert_array_equal(np.round(x[:, 0, 0, 0] * 255), y)
            rows += list(np.round(x[:, 0, 1, 0] * 255).astype(int))
    assert sorted(rows) == list(range(200))
    np.testing.assert_array_equal(task.central_test.y, np.arange(30) % 10)
    assert task.test.client_ids is task.train.client_ids
    assert abs(task.test.sizes.sum() - 50) <= 5


def test_partitions_follow_their_settings(tmp_path):
    _write_set(tmp_path)

    def sizes(**settings):
        task = tasks.load("fashion_mnist", data_dir=str(tmp_path), num_clients=5, **settings)
        return list(task.train.sizes + task.test.sizes)

    assert sizes(partition="iid") == [40] * 5
    assert sizes(partition="shards", shards_per_client=4) == [40] * 5
    uneven, even = sizes(alpha=0.1), sizes(alpha=1000.0)
    assert np.std(uneven) > 5 * np.std(even)
    assert min(sizes(alpha=0.1, min_share=0.6)) >= 24
    assert sizes(seed=1) == sizes(seed=1) != sizes(seed=2)
    assert sizes(seed=1, partition_seed=3) == sizes(seed=2, partition_seed=3)


def test_without_a_test_fraction_clients_have_no_tests(tmp_path):
    _write_set(tmp_path)
    task = tasks.load("fashion_mnist", data_dir=str(tmp_path), num_clients=4, test_fraction=0.0)
    assert task.test is None and task.train.sizes.sum() == 200


def test_a_client_of_one_class_has_that_class_alone(tmp_path):
    _write_set(tmp_path)
    task = tasks.load(
        "fashion_mnist", data_dir=str(tmp_path), partition="class", classes="bag,trouser"
    )
    assert task.train.client_ids == task.test.client_ids == ["bag", "trouser"]
    assert list(task.train.sizes) == [20, 20] and list(task.test.sizes) == [3, 3]
    for k, label in enumerate((8, 1)):
        for data, rows in ((task.train, range(label, 200, 10)), (task.test, range(label, 30, 10))):
            x, y = data.examples(k)
            np.testing.assert_array_equal(np.round(x[:, 0, 0, 0] * 255), label)
            np.testing.assert_array_equal(np.round(x[:, 0, 1, 0] * 255), rows)
            np.testing.assert_array_equal(y, k)
            assert y.dtype == np.int32
    np.testing.assert_array_equal(task.central_test.y, [0] * 3 + [1] * 3)
    np.testing.assert_array_equal(
        task.central_test.x, np.concatenate([task.test.examples(k).x for k in range(2)])
    )
    assert task.keras_model_fn(0).output_shape == (None, 2)
    assert list(task.metrics) == ["accuracy", "accuracy_bag", "accuracy_trouser"]
    logits = np.array([[1, 0], [0, 1], [0, 1]], np.float32)
    hits, weights = task.metrics["accuracy_trouser"](np.array([0, 0, 1]), logits)
    np.testing.assert_array_equal([hits, weights], [[1, 0, 1], [0, 0, 1]])


def test_the_three_classes_of_afl(data_dir):
    task = tasks.load("fashion_mnist", data_dir=str(data_dir), partition="class")
    assert task.train.client_ids == ["shirt", "pullover", "t_shirt"]
    assert list(task.train.sizes) == [6000] * 3 and list(task.test.sizes) == [1000] * 3
    # 784-200-200 and one output a class, as in the code released with q-FFL.
    assert task.keras_model_fn(0).count_params() == 197_803


def test_standardized_pixels(tmp_path):
    _write_set(tmp_path)
    for partition in ("iid", "class"):
        unit, standardized = (
            tasks.load(
                "fashion_mnist", data_dir=str(tmp_path), seed=1, partition=partition, pixels=pixels
            )
            for pixels in ("unit", "standardized")
        )
        for of in (lambda t: t.train.examples(0), lambda t: t.central_test):
            want = (of(unit).x.astype(np.float64) - 0.2860) / 0.3530
            np.testing.assert_allclose(of(standardized).x, want, rtol=1e-5, atol=1e-6)
            assert of(standardized).x.dtype == np.float32


def _bilinear(image, side):
    """An image at another size, from the four pixels around each new pixel's centre."""
    old = len(image)
    at = np.clip((np.arange(side) + 0.5) * old / side - 0.5, 0, old - 1)
    low = np.minimum(at.astype(int), old - 2)
    share = at - low
    rows = image[low] * (1 - share)[:, None] + image[low + 1] * share[:, None]
    return rows[:, low] * (1 - share) + rows[:, low + 1] * share


@pytest.mark.parametrize("partition", ["iid", "class"])
def test_images_of_32_by_32_pixels(tmp_path, partition, monkeypatch):
    _write_set(tmp_path)
    monkeypatch.setattr(fashion_mnist, "_RESIZED_AT_ONCE", 70)
    small, large = (
        tasks.load("fashion_mnist", data_dir=str(tmp_path), seed=1, partition=partition, side=side)
        for side in (28, 32)
    )
    for of in (
        lambda t: t.train.examples(1),
        lambda t: t.test.examples(1),
        lambda t: t.central_test,
    ):
        np.testing.assert_array_equal(of(large).y, of(small).y)
        want = [_bilinear(image, 32) for image in of(small).x[..., 0].astype(np.float64)]
        assert of(large).x.shape == (len(want), 32, 32, 1) and of(large).x.dtype == np.float32
        # Half a step of a byte.
        np.testing.assert_allclose(of(large).x[..., 0], want, atol=0.5001 / 255)
    model = large.keras_model_fn(0)
    assert model.input_shape == (None, 32, 32, 1)
    # 1024-200-200 and an output for each class.
    assert model.count_params() == 245_200 + 201 * (10 if partition == "iid" else 3)


def test_the_mean_and_deviation_are_those_of_the_training_images(data_dir):
    task = tasks.load(
        "fashion_mnist", data_dir=str(data_dir), seed=1, partition="iid", test_fraction=0.0
    )
    x = np.concatenate([task.train.examples(k).x for k in range(len(task.train.client_ids))])
    assert len(x) == 60_000
    assert x.mean(dtype=np.float64) == pytest.approx(0.2860, abs=5e-5)
    assert x.std(dtype=np.float64) == pytest.approx(0.3530, abs=5e-5)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"partition": "iid", "classes": "shirt"}, "partition=class"),
        ({"partition": "class", "num_clients": 3}, "num_clients"),
        ({"partition": "class", "test_fraction": 0.5}, "test_fraction"),
        ({"partition": "class", "classes": "shirt,hat"}, "'hat'"),
        ({"partition": "class", "classes": "shirt,shirt"}, "twice"),
        ({"partition": "iid", "alpha": 0.1}, "partition=dirichlet"),
        ({"partition": "shards", "min_share": 0.1}, "partition=dirichlet"),
        ({"shards_per_client": 3}, "partition=shards"),
        ({"alpha": 0.0}, r"in \[1e-05, 1e\+12\]"),
        ({"test_fraction": 1.0}, "test_fraction"),
        ({"side": 27}, "side"),
        ({"partition": "pathological"}, "partition"),
        ({"num_clients": 4000, "use_synthetic_data": False}, "num_clients=4000"),
    ],
)
def test_settings_out_of_place_are_refused(tmp_path, settings, named):
    _write_set(tmp_path)
    with pytest.raises(HparamError, match=named) as error:
        tasks.load("fashion_mnist", data_dir=str(tmp_path), **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", _FILES)
def test_a_missing_or_damaged_file_is_named(tmp_path, name):
    _write_set(tmp_path)
    whole = (tmp_path / name).read_bytes()
    for damage in ("cut", "missing"):
        if damage == "cut":
            (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        else:
            (tmp_path / name).unlink()
        with pytest.raises(DataError) as error:
            tasks.load("fashion_mnist", data_dir=str(tmp_path))
        text = str(error.value)
        assert "\n" not in text
        assert all(part in text for part in (name, "--data_dir", "https://"))


def test_without_a_folder_keras_cache_is_read(tmp_path, monkeypatch):
    _write_set(tmp_path)
    asked = []

    def get_file(name, origin, cache_subdir):
        asked.append((name, origin.rsplit("/", 1)[1], cache_subdir))
        return str(tmp_path / name)

    monkeypatch.setattr(tf.keras.utils, "get_file", get_file)
    task = tasks.load("fashion_mnist", num_clients=5)
    assert len(task.central_test.y) == 30
    assert asked == [(name, name, "datasets/fashion-mnist") for name in _FILES]


def test_a_failed_download_is_one_line(monkeypatch):
    def get_file(name, origin, cache_subdir):
        raise Exception(f"URL fetch failure\non {origin}")

    monkeypatch.setattr(tf.keras.utils, "get_file", get_file)
    with pytest.raises(DataError) as error:
        tasks.load("fashion_mnist")
    text = str(error.value)
    assert "\n" not in text and _FILES[0] in text and "--data_dir" in text


def test_the_files_of_mnist_are_refused(data_dir):
    """They have the same names and form."""
    with pytest.raises(DataError, match="60,000 labels are not the publisher's"):
        tasks.load("fashion_mnist", data_dir=str(data_dir / "mnist"))


def test_real_data(data_dir):
    task = tasks.load("fashion_mnist", data_dir=str(data_dir), seed=1)
    assert len(task.train.client_ids) == 20
    assert task.train.sizes.sum() + task.test.sizes.sum() == 60_000
    labels, total, squares = np.zeros(10, int), 0.0, 0.0
    for data in (task.train, task.test):
        for k in range(20):
            x, y = data.examples(k)
            labels += np.bincount(y, minlength=10)
            total += x.sum(dtype=np.float64)
            squares += np.square(x, dtype=np.float64).sum()
    np.testing.assert_array_equal(labels, [6000] * 10)
    # The mean and standard deviation that are commonly used to normalise the set.
    mean = total / (60_000 * 784)
    np.testing.assert_allclose(mean, 0.2860, atol=1e-4)
    np.testing.assert_allclose((squares / (60_000 * 784) - mean**2) ** 0.5, 0.3530, atol=1e-4)
    np.testing.assert_array_equal(np.bincount(task.central_test.y), [1000] * 10)


def test_clients_tests_have_their_own_label_distribution(data_dir):
    task = tasks.load("fashion_mnist", data_dir=str(data_dir), seed=1)
    for k in range(20):
        shares = [
            np.bincount(data.examples(k).y, minlength=10) / data.sizes[k]
            for data in (task.train, task.test)
        ]
        assert np.abs(shares[0] - shares[1]).sum() / 2 < 2 / task.test.sizes[k] ** 0.5
