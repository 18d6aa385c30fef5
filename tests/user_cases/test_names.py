"""Files under other usual names, links, sorted folders; and what is said of names that are near."""

import gzip
import os
import shutil
from unittest import mock

import numpy as np
import pytest

import tasks
from tasks import prepare
from tasks.task import DataError
from tests.tasks import published_files
from tests.tasks.datasets import (
    test_clothing1m,
    test_fashion_mnist,
    test_mnist_writers,
    test_sent140,
    test_stackexchange,
    test_stackoverflow,
)
from tests.tasks.formats import test_image_folders as trees

_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_IDX += tuple(name.replace("train", "t10k") for name in _IDX)
_TWO = {"num_clients": 2, "partition": "iid"}


def _examples(task):
    parts = [
        data.examples(k)
        for data in (task.train, task.test)
        if data is not None
        for k in range(len(data.client_ids))
    ]
    return [*parts, task.central_test]


def _same(task, other):
    assert list(task.train.client_ids) == list(other.train.client_ids)
    for (x, y), (other_x, other_y) in zip(_examples(task), _examples(other), strict=True):
        np.testing.assert_array_equal(x, other_x)
        np.testing.assert_array_equal(y, other_y)


# How people have idx files: (path below the data folder, packed) of a published name.
_NAMES = {
    "published": lambda name, _: (f"{name}.gz", True),
    "unpacked": lambda name, _: (name, False),
    "unpacked under its old name": lambda name, _: (f"{name}.gz", False),
    "packed without the ending": lambda name, _: (name, True),
    "with a dot": lambda name, _: (name.replace("-idx", ".idx"), False),
    "with a dot and packed": lambda name, _: (f"{name.replace('-idx', '.idx')}.gz", True),
    "a folder a file": lambda name, _: (f"{name}/{name}", False),
    "a folder a file with a dot": lambda name, _: (
        f"{name.replace('-idx', '.idx')}/{name.replace('-idx', '.idx')}",
        False,
    ),
    "torchvision": lambda name, torchvision: (f"{torchvision}/raw/{name}", False),
    "torchvision packed": lambda name, torchvision: (f"{torchvision}/raw/{name}.gz", True),
    "torchvision's folder": lambda name, _: (f"raw/{name}", False),
}


@pytest.mark.parametrize("form", _NAMES)
@pytest.mark.parametrize("name", ["fashion_mnist", "mnist_writers"])
def test_idx_files_under_their_usual_names(tmp_path, name, form):
    plain, other = tmp_path / "plain", tmp_path / "other"
    if name == "fashion_mnist":
        test_fashion_mnist._write_set(plain, 40, 20)
        torchvision, settings = "FashionMNIST", _TWO
    else:
        plain.mkdir()
        test_mnist_writers._write_images(plain)
        test_mnist_writers._write_prepared(plain)
        torchvision, settings = "MNIST", {}
    for file in _IDX:
        path, packed = _NAMES[form](file, torchvision)
        content = gzip.decompress((plain / f"{file}.gz").read_bytes())
        (other / path).parent.mkdir(parents=True, exist_ok=True)
        (other / path).write_bytes(gzip.compress(content) if packed else content)
    if name == "mnist_writers":
        shutil.copy(plain / "writers.npz", other)
    _same(*(tasks.load(name, data_dir=str(d), **settings) for d in (plain, other)))


# Tiny ImageNet as the usual scripts sort its validation images: where one goes.
_SORTED = {
    "val/class": lambda wnid, name: f"val/{wnid}/{name}",
    "val/class/images": lambda wnid, name: f"val/{wnid}/images/{name}",
    "val/images/class": lambda wnid, name: f"val/images/{wnid}/{name}",
}


def _sorted_tree(where, keep_list):
    files = trees._tiny_imagenet()
    lines = files["val/val_annotations.txt"].decode().splitlines()
    for name, wnid in (line.split("\t")[:2] for line in lines):
        files[where(wnid, name)] = files.pop(f"val/images/{name}")
    if not keep_list:
        del files["val/val_annotations.txt"]
    return files


@pytest.mark.parametrize("keep_list", [True, False])
@pytest.mark.parametrize("form", _SORTED)
def test_tiny_imagenets_sorted_validation_images(tmp_path, form, keep_list):
    trees._write(tmp_path / "plain", trees._tiny_imagenet())
    files = _sorted_tree(_SORTED[form], keep_list)
    # Some sort the training images' folders, too.
    moved = {
        n.replace("/images/", "/") if n.startswith("train") else n: f for n, f in files.items()
    }
    for name, tree in (("sorted", files), ("all_sorted", moved)):
        trees._write(tmp_path / name, tree)
        _same(
            *(
                tasks.load("tiny_imagenet", data_dir=str(tmp_path / d), **trees._SMALL)
                for d in ("plain", name)
            )
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("other class", "several classes of val/n01/val_0.JPEG"),
        ("twice", "val_0.JPEG in "),
        ("no class", "no class of val/images/val_0.JPEG"),
        ("half in test", "validation images below test"),
        ("none", "no images of class n02 in val"),
        ("none of a class", "no images of class n10 in val"),
        ("list", "no val/images/val_0.JPEG, which val/val_annotations.txt has"),
    ],
)
def test_validation_images_that_are_not_sure_are_refused(tmp_path, change, said):
    """The image val_0.JPEG is of class n10."""
    files = _sorted_tree(_SORTED["val/class"], change in ("other class", "list"))
    image = files["val/n10/val_0.JPEG"]
    if change != "twice":
        del files["val/n10/val_0.JPEG"]
    if change == "other class":
        files["val/n01/val_0.JPEG"] = image
    elif change in ("twice", "no class"):
        files["val/images/val_0.JPEG"] = image
    elif change == "half in test":
        files["test/n10/images/val_0.JPEG"] = image
    elif change == "none":
        files = {name: data for name, data in files.items() if not name.startswith("val/")}
    trees._write(tmp_path, files)
    with pytest.raises(DataError) as error:
        tasks.load("tiny_imagenet", data_dir=str(tmp_path), **trees._SMALL)
    assert said in str(error.value) and "http" in str(error.value)


_TREES = {"cinic10": trees._cinic10, "tiny_imagenet": trees._tiny_imagenet}


def _link_classes(store, folder):
    for part in ("train", "valid", "val"):
        if not (store / part).is_dir():
            continue
        (folder / part).mkdir(parents=True)
        for entry in (store / part).iterdir():
            (folder / part / entry.name).symlink_to(entry)
    for entry in store.glob("*.txt"):
        shutil.copy(entry, folder)
    if (store / "test").is_dir():
        (folder / "test").symlink_to(store / "test")


def _link_files(store, folder):
    for path in sorted(store.rglob("*")):
        target = folder / path.relative_to(store)
        if path.is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)


def _link_root(store, folder):
    folder.symlink_to(store)


@pytest.mark.parametrize("link", [_link_classes, _link_files, _link_root])
@pytest.mark.parametrize("name", _TREES)
def test_trees_of_links(tmp_path, name, link):
    store = tmp_path / "store"
    trees._write(store, _TREES[name]())
    # What macOS puts beside files on other systems' disks.
    image = next(p for p in sorted(store.rglob("*")) if p.suffix in (".png", ".JPEG"))
    image.with_name(f"._{image.name}").write_bytes(b"\0\5\x16\7")
    link(store, tmp_path / "linked")
    _same(
        *(tasks.load(name, data_dir=str(tmp_path / d), **trees._SMALL) for d in ("store", "linked"))
    )


@pytest.mark.parametrize("name", _TREES)
@pytest.mark.parametrize("where", ["loop", "nothing"])
def test_links_that_lead_nowhere_are_one_line(tmp_path, name, where):
    trees._write(tmp_path, _TREES[name]())
    link = tmp_path / "train" / "link"
    link.symlink_to(tmp_path if where == "loop" else tmp_path / "gone")
    with pytest.raises(DataError) as error:
        tasks.load(name, data_dir=str(tmp_path), **trees._SMALL)
    said = str(error.value)
    assert (
        "\n" not in said
        and ("link to one of its parent folders" if where == "loop" else "missing") in said
    )


def _write_clothing(folder):
    with mock.patch.multiple(test_clothing1m, _NUM_TRAIN=4, _NUM_TEST=2):
        test_clothing1m._write(folder)


def _newer(path, than):
    later = than.stat().st_mtime + 5
    os.utime(path, (later, later))


@pytest.mark.parametrize("name", [*_TREES, "archive"])
def test_a_prepared_tree_beside_newer_images_warns(tmp_path, capfd, name):
    if name == "archive":
        name, raw = "tiny_imagenet", tmp_path / "tiny-imagenet-200.zip"
        trees._write_zip(raw, _TREES[name]())
    else:
        trees._write(tmp_path, _TREES[name]())
        # The folder whose time changes when an image comes or goes.
        raw = next(p for p in sorted(tmp_path.rglob("*")) if p.suffix in (".png", ".JPEG")).parent
    tasks.get(name).prepare_fn()(str(tmp_path), str(tmp_path))
    tasks.load(name, data_dir=str(tmp_path), **trees._SMALL)
    assert "which is older" not in capfd.readouterr().err
    _newer(raw, tmp_path / f"{name}.prepared" / "manifest.json")
    tasks.load(name, data_dir=str(tmp_path), **trees._SMALL)
    assert f", although {raw} is newer" in capfd.readouterr().err


def test_prepared_pictures_beside_newer_lists_warn(tmp_path, capfd, monkeypatch):
    from tasks.datasets import clothing1m

    monkeypatch.setattr(clothing1m, "read_weights", lambda path: {})
    _write_clothing(tmp_path)
    tasks.get("clothing1m").prepare_fn()(str(tmp_path), str(tmp_path))
    settings = {"data_dir": str(tmp_path), "weights": os.devnull, **_TWO}
    tasks.load("clothing1m", **settings)
    assert "warning" not in capfd.readouterr().err
    (path,) = tmp_path.rglob("clean_label_kv.txt")
    _newer(path, tmp_path / "clothing1m.prepared" / "manifest.json")
    tasks.load("clothing1m", **settings)
    assert f", although {path} is newer" in capfd.readouterr().err


def _write_fashion(folder):
    test_fashion_mnist._write_set(folder, 20, 12)


def _write_mnist(folder):
    test_mnist_writers._write_images(folder)
    test_mnist_writers._write_prepared(folder)


def _write_vectors(folder):
    published_files.write_leaf(folder, "sent140", "all")
    test_sent140._write_vectors(folder)


def _write_posts(folder):
    test_stackexchange._write(folder, test_stackexchange._POSTS)


def _write_play(folder):
    (folder / "t8.shakespeare.txt").write_text("a play")


def _write_archive(folder):
    trees._write_tar(folder / "CINIC-10.tar.gz", trees._cinic10())


def _write_leaf(name):
    return lambda folder: published_files.write_leaf(folder, name, "all")


# Task, its settings, what writes its files, a file, and the name that it gets.
_NEAR = {
    "counts of words": (
        "stackoverflow_word",
        {"vocab_size": 10},
        lambda folder: test_stackoverflow._write(folder, packed=False),
        "stackoverflow.word_count",
        "stackoverflow_word_count",
    ),
    "letter case": ("fashion_mnist", {}, _write_fashion, f"{_IDX[0]}.gz", f"{_IDX[0].upper()}.gz"),
    "underscores": (
        "mnist_writers",
        {},
        _write_mnist,
        f"{_IDX[3]}.gz",
        f"{_IDX[3].replace('-', '_')}.gz",
    ),
    "plural": ("mnist_writers", {}, _write_mnist, "writers.npz", "writer.npz"),
    "another release": (
        "sent140",
        {},
        _write_vectors,
        "glove.6B.300d.txt",
        "glove.840B.300d.txt",
    ),
    "typing mistake": (
        "stackexchange",
        {"kind": "word"},
        _write_posts,
        "matheducators_2014_posts.jsonl.gz",
        "mathseducators_2014_posts.jsonl.gz",
    ),
    "play": ("shakespeare_character", {}, _write_play, "t8.shakespeare.txt", "t8.shakespear.txt"),
    "clothing": (
        "clothing1m",
        {"weights": os.devnull},
        _write_clothing,
        "noisy_train_key_list.txt",
        "noisy_train_keys_list.txt",
    ),
    "archive": ("cinic10", {}, _write_archive, "CINIC-10.tar.gz", "cinic-10.tar.gz"),
    "pickled batches": (
        "cifar10_image",
        {},
        lambda folder: (folder / "cifar-10-python.tar.gz").touch(),
        "cifar-10-python.tar.gz",
        "cifar10-python.tar.gz",
    ),
    "database": (
        "shakespeare_character",
        {"source": "tff"},
        lambda folder: (folder / "shakespeare.sqlite").touch(),
        "shakespeare.sqlite",
        "shakespeare.sqlit",
    ),
    "femnist": ("femnist", {"source": "leaf"}, _write_leaf("femnist"), "all_data", "All_Data"),
    "tweets": (
        "sent140",
        {"embedding": "trained"},
        _write_leaf("sent140"),
        "all_data",
        "all_data_old",
    ),
    "leafs play": (
        "shakespeare_character",
        {"source": "leaf", "roles": "leaf", "examples": "windows"},
        _write_leaf("shakespeare"),
        "all_data",
        "alldata",
    ),
}


@pytest.mark.parametrize("case", _NEAR)
def test_a_missing_file_names_what_is_like_it(tmp_path, monkeypatch, case):
    name, settings, write, file, other = _NEAR[case]
    if name == "clothing1m":
        from tasks.datasets import clothing1m

        monkeypatch.setattr(clothing1m, "read_weights", lambda path: {})
    write(tmp_path)
    (path,) = [p for p in tmp_path.rglob("*") if p.name == file]
    path.rename(path.with_name(other))
    with pytest.raises(DataError) as error:
        tasks.load(name, data_dir=str(tmp_path), **settings)
    said = str(error.value)
    assert f", but {path.parent} has " in said and other in said, said
    # Not the set's other files, whose names are alike.
    names = said.split(f", but {path.parent} has ")[1].split(";")[0].split(", ")
    assert names == [other], names


def test_a_missing_file_that_a_flag_names(tmp_path, capsys):
    published_files.write_leaf(tmp_path / "leaf", "sent140", "all")
    test_sent140._write_vectors(tmp_path, "vectors.txt")
    with pytest.raises(DataError, match=f"but {tmp_path} has vectors.txt"):
        tasks.load(
            "sent140",
            data_dir=str(tmp_path / "leaf"),
            embedding_file=str(tmp_path / "vector.txt"),
        )
    with pytest.raises(DataError, match=f"does not exist, but {tmp_path} has leaf"):
        tasks.load("sent140", data_dir=str(tmp_path / "leafs"))
    arguments = ["--task=sent140", f"--source={tmp_path / 'Leaf'}"]
    assert prepare.main(arguments) == 1
    assert f"but {tmp_path} has leaf" in capsys.readouterr().err


def test_nothing_is_said_of_names_that_are_not_alike(tmp_path):
    _write_fashion(tmp_path)
    (tmp_path / f"{_IDX[0]}.gz").unlink()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError) as error:
        tasks.load("fashion_mnist", data_dir=str(tmp_path))
    assert ", but " not in str(error.value)
