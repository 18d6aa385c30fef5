import gzip
import struct

import numpy as np
import pytest

import tasks
from tasks.task import DataError
from tff_suite.hparams import HparamError

_WRITERS = np.array([7, 3, 3, 7, 12, 3, 7, 3, 12, 3, 3, 3])


def _idx(array, type_code):
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(bytes([0, 0, type_code, array.ndim]) + shape + array.tobytes())


def _write_images(folder):
    """Writes twelve training images whose first pixel is their row, and four test images."""
    for part, n in (("train", 12), ("t10k", 4)):
        images = np.zeros((n, 28, 28), np.uint8)
        images[:, 0, 0] = np.arange(n)
        labels = (np.arange(n) % 10).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(_idx(images, 8))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(_idx(labels, 8))


def _write_prepared(folder, **changed):
    arrays = {"train_writer": _WRITERS, "test_writer": np.arange(4), **changed}
    np.savez(folder / "writers.npz", **{k: v for k, v in arrays.items() if v is not None})


def _write_qmnist(folder):
    for part, n, writers in (("train", 12, _WRITERS), ("test", 9, np.arange(50, 59))):
        table = np.zeros((n, 8), ">i4")
        table[:, 0], table[:, 1], table[:, 2] = np.arange(n) % 10, 4, writers
        (folder / f"qmnist-{part}-labels-idx2-int.gz").write_bytes(_idx(table, 0x0C))


def _rows(data, index):
    return list(np.round((1 - data.examples(index).x[:, 0, 0, 0]) * 255).astype(int))


@pytest.mark.parametrize("write_writers", [_write_prepared, _write_qmnist])
@pytest.mark.parametrize("subfolder", ["", "mnist"])
def test_clients_are_the_writers(tmp_path, write_writers, subfolder):
    folder = tmp_path / subfolder
    folder.mkdir(exist_ok=True)
    _write_images(folder)
    write_writers(folder)
    task = tasks.load("mnist_writers", data_dir=str(tmp_path), test_fraction=0.3)
    assert task.train.client_ids == ["3", "7", "12"]
    assert task.test.client_ids is task.train.client_ids
    for k, writer in enumerate((3, 7, 12)):
        rows = sorted(_rows(task.train, k) + _rows(task.test, k))
        assert rows == list(np.flatnonzero(writer == _WRITERS))
        np.testing.assert_array_equal(task.train.examples(k).y, np.array(_rows(task.train, k)) % 10)
    np.testing.assert_array_equal(task.train.sizes, [4, 2, 1])
    np.testing.assert_array_equal(task.test.sizes, [3, 1, 1])
    np.testing.assert_array_equal(task.central_test.y, np.arange(4))


def test_the_background_is_one(tmp_path):
    _write_images(tmp_path)
    _write_prepared(tmp_path)
    task = tasks.load("mnist_writers", data_dir=str(tmp_path))
    for x in (task.train.examples(0).x, task.central_test.x):
        assert x.dtype == np.float32 and x.shape[1:] == (28, 28, 1)
        assert np.all(x[:, 5] == 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"train_writer": _WRITERS[:-1]},
        {"train_writer": _WRITERS.astype(float)},
        {"test_writer": None},
    ],
    ids=["fewer", "not_whole", "no_test"],
)
def test_writers_that_do_not_fit_are_refused(tmp_path, changed):
    _write_images(tmp_path)
    _write_prepared(tmp_path, **changed)
    _assert_refused(tmp_path, "writers.npz")


def test_qmnist_labels_of_other_images_are_refused(tmp_path):
    _write_images(tmp_path)
    _write_qmnist(tmp_path)
    table = np.zeros((12, 8), ">i4")
    (tmp_path / "qmnist-train-labels-idx2-int.gz").write_bytes(_idx(table, 0x0C))
    _assert_refused(tmp_path, "qmnist-train-labels-idx2-int.gz")


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "text"])
@pytest.mark.parametrize("name", ["writers.npz", "t10k-images-idx3-ubyte.gz"])
def test_a_missing_or_damaged_file_is_named(tmp_path, name, damage):
    _write_images(tmp_path)
    _write_prepared(tmp_path)
    path = tmp_path / name
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        text = b"not found\n"
        path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "text": text}[damage])
    _assert_refused(tmp_path, name)


def _assert_refused(folder, name):
    with pytest.raises(DataError) as error:
        tasks.load("mnist_writers", data_dir=str(folder))
    text = str(error.value)
    assert "\n" not in text and all(part in text for part in (name, "--data_dir", "https://"))


def test_without_a_folder_it_says_what_is_needed():
    with pytest.raises(DataError, match=r"--data_dir.*writers"):
        tasks.load("mnist_writers")


def test_real_data(data_dir):
    task = tasks.load("mnist_writers", data_dir=str(data_dir), seed=1)
    sizes = task.train.sizes + task.test.sizes
    assert len(task.train.client_ids) == 539
    assert sizes.sum() == 60_000 and sizes.min() == 19 and sizes.max() == 131
    assert np.median(sizes) == 116 and task.train.sizes.min() >= 1
    assert len(task.central_test.y) == 10_000
    # MNIST's test images average 0.1325 with a background of 0.
    np.testing.assert_allclose(1 - task.central_test.x.mean(dtype=np.float64), 0.1325, atol=1e-3)
    other = tasks.load("mnist_writers", data_dir=str(data_dir), seed=2)
    np.testing.assert_array_equal(other.train.sizes, task.train.sizes)
    assert not np.array_equal(other.train.examples(0).x, task.train.examples(0).x)


def test_some_of_the_writers_can_be_drawn(data_dir):
    some = {"num_clients": 100, "partition_seed": 0}
    task = tasks.load("mnist_writers", data_dir=str(data_dir), seed=1, **some)
    every = tasks.load("mnist_writers", data_dir=str(data_dir), seed=1, partition_seed=0)
    ids = task.train.client_ids
    assert len(set(ids)) == 100 and ids == sorted(ids, key=int) and ids == task.test.client_ids
    place = every.train.client_ids.index(ids[7])
    np.testing.assert_array_equal(task.train.examples(7).x, every.train.examples(place).x)
    np.testing.assert_array_equal(task.test.examples(7).y, every.test.examples(place).y)
    other = {"num_clients": 100, "partition_seed": 1}
    assert tasks.load("mnist_writers", data_dir=str(data_dir), **other).train.client_ids != ids
    with pytest.raises(HparamError, match="there are 539 writers"):
        tasks.load("mnist_writers", data_dir=str(data_dir), num_clients=540)
