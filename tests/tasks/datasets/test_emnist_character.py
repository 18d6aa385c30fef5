import lzma
import os
import sqlite3
import struct

import numpy as np
import pytest

import tasks
from tasks.datasets import emnist_character
from tasks.formats import downloads, tffs
from tasks.task import DataError
from tests.tasks.server import Server
from tests.tasks.tffs_files import database, field, varint

_NAME = "emnist_all.sqlite"
_IDS = ["f1000_11", "f0000_14", "f0999_07"]


def _example(pixels, label):
    """Returns the bytes of a tf.train.Example, written out by hand from its definition."""
    floats = field(2, field(1, struct.pack(f"<{len(pixels)}f", *pixels)))
    integer = field(3, field(1, varint(label)))
    entries = field(1, field(1, b"label") + field(2, integer))
    entries += field(1, field(1, b"pixels") + field(2, floats))
    return field(1, entries)


def _pixels(client, example):
    pixels = np.ones(784, np.float32)
    pixels[:3] = [client / 255, example / 255, 0]
    return pixels


def _write(path, make=_example, sizes=(5, 3, 4), announced=None):
    """Writes a file in TFF's schema, its digits-only splits included."""
    connection = database(path)
    splits = {"all_train": 0, "all_test": 1, "digits_only_train": 0, "digits_only_test": 1}
    for split, is_test in splits.items():
        for client, (name, size) in enumerate(zip(_IDS, sizes, strict=True)):
            for i in range(1 if is_test else size):
                row = make(_pixels(client, i), 61 - client - i)
                connection.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, name, row))
            count = 1 if is_test else (announced or sizes)[client]
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (name, split, count))
    connection.commit()
    connection.close()


def _check(task):
    assert task.train.client_ids == sorted(_IDS)
    assert task.test.client_ids is task.train.client_ids
    np.testing.assert_array_equal(task.train.sizes, [3, 4, 5])
    np.testing.assert_array_equal(task.test.sizes, [1, 1, 1])
    for index, client in enumerate((1, 2, 0)):
        x, y = task.train.examples(index)
        assert x.dtype == np.float32 and y.dtype == np.int32
        expected = [_pixels(client, i).reshape(28, 28, 1) for i in range(len(y))]
        np.testing.assert_array_equal(x, expected)
        np.testing.assert_array_equal(y, 61 - client - np.arange(len(y)))
    np.testing.assert_array_equal(task.central_test.y, [60, 59, 61])
    assert task.central_test.x.shape == (3, 28, 28, 1)


@pytest.mark.parametrize("subfolder", ["", "emnist"])
def test_reads_tffs_file(tmp_path, subfolder):
    (tmp_path / subfolder).mkdir(exist_ok=True)
    _write(tmp_path / subfolder / _NAME)
    _check(tasks.load("emnist_character", data_dir=str(tmp_path)))


def test_reads_tffs_compressed_file(tmp_path):
    _write(tmp_path / _NAME)
    packed = lzma.compress((tmp_path / _NAME).read_bytes(), format=lzma.FORMAT_ALONE)
    (tmp_path / _NAME).unlink()
    (tmp_path / f"{_NAME}.lzma").write_bytes(packed)
    _check(tasks.load("emnist_character", data_dir=str(tmp_path)))
    assert sorted(os.listdir(tmp_path)) == [_NAME, f"{_NAME}.lzma"]
    _check(tasks.load("emnist_character", data_dir=str(tmp_path)))


def test_agrees_with_tffs_reader(tmp_path, monkeypatch):
    import tensorflow_federated as tff

    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".tff").mkdir()
    _write(tmp_path / ".tff" / _NAME)
    ours = tasks.load("emnist_character")
    _check(ours)
    theirs = tff.simulation.datasets.emnist.load_data(only_digits=False)
    for mine, their in zip((ours.train, ours.test), theirs, strict=True):
        assert mine.client_ids == their.client_ids
        for k, name in enumerate(their.client_ids):
            batch = next(iter(their.create_tf_dataset_for_client(name).batch(100)))
            np.testing.assert_array_equal(mine.examples(k).x[..., 0], batch["pixels"])
            np.testing.assert_array_equal(mine.examples(k).y, batch["label"])


def _assert_refused(error, *parts):
    text = str(error.value)
    assert "\n" not in text
    for part in (_NAME, "--data_dir", *parts):
        assert part in text


def _load_refused(folder, *parts):
    with pytest.raises(DataError) as error:
        tasks.load("emnist_character", data_dir=str(folder)).train.examples(0)
    _assert_refused(error, *parts)


def test_a_missing_file_is_named(tmp_path):
    _load_refused(tmp_path, "missing", "https://")


@pytest.mark.parametrize("damage", ["empty", "cut", "text"])
@pytest.mark.parametrize("ending", ["", ".lzma"])
def test_a_damaged_file_is_named_and_nothing_is_left(tmp_path, damage, ending):
    path = tmp_path / (_NAME + ending)
    _write(tmp_path / _NAME)
    whole = (tmp_path / _NAME).read_bytes()
    if ending:
        (tmp_path / _NAME).unlink()
        whole = lzma.compress(whole, format=lzma.FORMAT_ALONE)
    path.write_bytes(
        {"empty": b"", "cut": whole[: len(whole) // 2], "text": b"<html>404</html>" * 20}[damage]
    )
    _load_refused(tmp_path, str(path))
    assert os.listdir(tmp_path) == [path.name]


def test_a_cut_off_file_inside_a_whole_archive_is_refused(tmp_path):
    _write(tmp_path / _NAME)
    part = (tmp_path / _NAME).read_bytes()[:-4096]
    (tmp_path / _NAME).unlink()
    (tmp_path / f"{_NAME}.lzma").write_bytes(lzma.compress(part, format=lzma.FORMAT_ALONE))
    _load_refused(tmp_path, "cut off")
    assert os.listdir(tmp_path) == [f"{_NAME}.lzma"]


def test_other_databases_are_refused(tmp_path):
    connection = sqlite3.connect(tmp_path / _NAME)
    connection.executescript("CREATE TABLE examples (a TEXT); INSERT INTO examples VALUES ('b');")
    connection.close()
    _load_refused(tmp_path, "client_metadata")


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda pixels, label: _example(pixels[:-1], label), "28x28"),
        (lambda pixels, label: b"\xff\xff", "28x28"),
        (lambda pixels, label: _example(pixels, 62), "labels"),
        (lambda pixels, label: _example(pixels * 255, label), "pixels"),
    ],
    ids=["short", "no_proto", "label_62", "pixels_to_255"],
)
def test_examples_that_are_not_emnists_are_refused(tmp_path, make, part):
    _write(tmp_path / _NAME, make=make)
    _load_refused(tmp_path, part)


def test_fewer_examples_than_announced_are_refused(tmp_path):
    _write(tmp_path / _NAME, announced=(5, 6, 4))
    _load_refused(tmp_path, "f0000_14")


def test_a_failed_download_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(downloads, "TFFS", "http://127.0.0.1:1/")
    with pytest.raises(DataError) as error:
        tasks.load("emnist_character")
    _assert_refused(error, "downloaded", "refused")
    assert not (tmp_path / ".tff" / _NAME).exists()


def test_a_download_is_tffs_file_and_enters_tffs_cache_only_when_whole(tmp_path, monkeypatch):
    _write(tmp_path / _NAME)
    packed = lzma.compress((tmp_path / _NAME).read_bytes(), format=lzma.FORMAT_ALONE)
    monkeypatch.setenv("HOME", str(tmp_path))
    with Server() as server:
        monkeypatch.setattr(downloads, "TFFS", server.url)
        server.files[f"{_NAME}.lzma"], server.cut_after = packed, len(packed) // 2
        with pytest.raises(DataError, match="same command"):
            tasks.load("emnist_character")
        assert not (tmp_path / ".tff" / _NAME).exists()
        server.cut_after = None
        _check(tasks.load("emnist_character"))
        assert os.listdir(tmp_path / ".tff") == [_NAME]
        assert server.asked[1][1] is not None
        _check(tasks.load("emnist_character"))
        assert len(server.asked) == 2


def test_a_download_of_a_cut_off_file_does_not_enter_the_cache(tmp_path, monkeypatch):
    _write(tmp_path / _NAME)
    content = (tmp_path / _NAME).read_bytes()[:-4096]
    monkeypatch.setenv("HOME", str(tmp_path))
    with Server() as server:
        monkeypatch.setattr(downloads, "TFFS", server.url)
        server.files[f"{_NAME}.lzma"] = lzma.compress(content, format=lzma.FORMAT_ALONE)
        with pytest.raises(DataError, match="cut off"):
            tasks.load("emnist_character")
    assert os.listdir(tmp_path / ".tff") == []


@pytest.mark.parametrize("name", ["emnist_all", "cifar100", "shakespeare", "stackoverflow"])
def test_the_addresses_are_tffs(name, monkeypatch):
    import tensorflow_federated as tff
    from tensorflow_federated.python.simulation.datasets import download

    asked = []

    def get_compressed_file(origin, cache_dir):
        asked.append(origin)
        raise ConnectionRefusedError

    monkeypatch.setattr(download, "get_compressed_file", get_compressed_file)
    module = getattr(tff.simulation.datasets, name.removesuffix("_all"))
    with pytest.raises(ConnectionRefusedError):
        module.load_data()
    assert asked == [f"{downloads.TFFS}{name}.sqlite.lzma"]


def test_parsing_no_examples_gives_none():
    x, y = emnist_character.parse(tffs.columns(emnist_character.PUBLISHED, []))
    assert x.shape == (0, 28, 28, 1) and y.shape == (0,)
