import gzip
import hashlib
import struct

import numpy as np
import pytest

from tasks.formats import idx
from tasks.task import DataError

_ADVICE = "get it from example.org and set --data_dir to its folder"


def _idx(array, type_code=0x08):
    header = bytes([0, 0, type_code, array.ndim])
    return header + b"".join(struct.pack(">I", n) for n in array.shape) + array.tobytes()


def _images(n=5):
    return np.arange(n * 784).reshape(n, 28, 28).astype(np.uint8)


def _write(path, data):
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_reads_what_was_written(tmp_path, name, packed):
    """Whether a file is compressed its content tells: browsers unpack files and keep the name."""
    images, path = _images(), tmp_path / name
    path.write_bytes(gzip.compress(_idx(images)) if packed else _idx(images))
    np.testing.assert_array_equal(idx.read(str(path), 3, ""), images)


def test_reads_big_endian_integers(tmp_path):
    table = np.array([[1, 2, 70_000], [-4, 5, 6]])
    path = _write(tmp_path / "t.gz", _idx(table.astype(">i4"), 0x0C))
    np.testing.assert_array_equal(idx.read(path, 2, ""), table)


_GOOD = _idx(_images())
_DAMAGED = {
    "empty": b"",
    "short": _GOOD[:-1],
    "long": _GOOD + b"\0",
    "header_only": _GOOD[:10],
    "text": b"<html>not here</html>" * 9,
    "other_type": b"\0\0\x0d\x03" + _GOOD[4:],
    "other_dimensions": _idx(np.zeros((5, 784), np.uint8)),
    "huge_announcement": _GOOD[:4] + b"\xff" * 12 + _GOOD[16:],
}


def _assert_one_clear_line(error, path):
    text = str(error.value)
    assert "\n" not in text and str(path) in text and "--data_dir" in text


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("damage", _DAMAGED)
def test_damaged_files_are_refused(tmp_path, damage, ending):
    path = _write(tmp_path / f"file{ending}", _DAMAGED[damage])
    with pytest.raises(DataError) as error:
        idx.read(path, 3, _ADVICE)
    _assert_one_clear_line(error, path)


def test_damaged_compression_is_refused(tmp_path):
    whole = gzip.compress(_GOOD)
    middle = len(whole) // 2
    flipped = bytes([whole[middle] ^ 0xFF])
    for name, data in {
        "cut.gz": whole[:middle],
        "flipped.gz": whole[:middle] + flipped + whole[middle + 1 :],
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError) as error:
            idx.read(str(tmp_path / name), 3, _ADVICE)
        _assert_one_clear_line(error, tmp_path / name)


def _pair(tmp_path, images, labels):
    return (
        _write(tmp_path / "images.gz", _idx(images)),
        _write(tmp_path / "labels.gz", _idx(np.array(labels, np.uint8))),
    )


def test_reads_a_pair(tmp_path):
    x, y = idx.read_labelled_images(*_pair(tmp_path, _images(3), [9, 0, 4]), _ADVICE)
    np.testing.assert_array_equal(x, _images(3)[..., None])
    np.testing.assert_array_equal(y, [9, 0, 4])
    assert x.dtype == np.uint8 and y.dtype == np.int32


@pytest.mark.parametrize(
    ("images", "labels", "named"),
    [
        (_images(3), [1, 2], "labels.gz"),
        (_images(3), [1, 2, 10], "labels.gz"),
        (_images(0), [], "labels.gz"),
        (np.zeros((3, 28, 27), np.uint8), [1, 2, 3], "images.gz"),
    ],
    ids=["fewer_labels", "label_10", "none", "other_shape"],
)
def test_files_that_do_not_belong_together_are_refused(tmp_path, images, labels, named):
    with pytest.raises(DataError) as error:
        idx.read_labelled_images(*_pair(tmp_path, images, labels), _ADVICE)
    _assert_one_clear_line(error, tmp_path / named)


def test_as_many_labels_as_published_are_the_published_ones(tmp_path, capsys):
    labels = [9, 0, 4]
    paths = _pair(tmp_path, _images(3), labels)
    sha256 = hashlib.sha256(bytes(labels)).hexdigest()
    for published in ((3, sha256), (4, "another"), None):
        y = idx.read_labelled_images(*paths, _ADVICE, published=published)[1]
        assert y.tolist() == labels
        warned = f"{paths[1]} has 3 labels, the published set 4" in capsys.readouterr().err
        assert warned == (published == (4, "another"))
    with pytest.raises(DataError) as error:
        idx.read_labelled_images(*paths, _ADVICE, published=(3, "another"))
    _assert_one_clear_line(error, tmp_path / "labels.gz")


def test_finds_files_in_the_folder_and_in_its_own(tmp_path):
    assert idx.find(str(tmp_path), "mnist", "file", _ADVICE) is None
    _write(tmp_path / "file", b"")
    assert idx.find(str(tmp_path), "mnist", "file", _ADVICE) == str(tmp_path / "file")
    _write(tmp_path / "file.gz", b"")
    assert idx.find(str(tmp_path), "mnist", "file", _ADVICE) == str(tmp_path / "file.gz")
    (tmp_path / "mnist").mkdir()
    _write(tmp_path / "mnist" / "file", b"")
    assert idx.find(str(tmp_path), "mnist", "file", _ADVICE) == str(tmp_path / "mnist" / "file")


@pytest.mark.parametrize("more", [0, 1, 20])
def test_another_sets_labels_are_refused(tmp_path, more):
    """As many as the publisher's, or more: EMNIST's files under MNIST's names are transposed."""
    labels = np.arange(10 + more, dtype=np.uint8) % 10
    known = np.arange(10, dtype=np.uint8)[::-1]
    paths = [
        _write(tmp_path / "images", _idx(_images(len(labels)))),
        _write(tmp_path / "labels", _idx(labels)),
    ]
    published = len(known), hashlib.sha256(known.tobytes()).hexdigest()
    with pytest.raises(DataError, match="not the publisher's 10"):
        idx.read_labelled_images(*paths, _ADVICE, 10, published)
