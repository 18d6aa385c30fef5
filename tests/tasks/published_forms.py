"""A small, whole set of files in every form that a task reads, and what is true of each loaded.

The files are written by the test code of each reader, which shares nothing with the readers.
"""

import contextlib
import dataclasses
import gzip
import lzma
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import h5py
import numpy as np

import tasks
from tests.tasks import published_files, test_images, tfds_files, tffs_files
from tests.tasks.datasets import (
    test_clothing1m,
    test_emnist_character,
    test_fashion_mnist,
    test_femnist,
    test_mnist_writers,
    test_sent140,
    test_shakespeare_character,
    test_stackexchange,
    test_stackoverflow,
)
from tests.tasks.formats import test_image_folders, test_tfds


@dataclasses.dataclass(frozen=True)
class Form:
    """A form of a task's data.

    Attributes:
      task: Name of the task.
      write: Writes the files into a folder.
      settings: Settings with which the task is loaded.
      y_limit: Targets are whole numbers below it.
      x_limit: So are inputs that are whole numbers.
      named: A setting that names a file, and the name of that file below the folder.
      patched: Returns a context in which the files are the published ones.
      unread: Parts of the names of files that are there, and not read with these settings.
    """

    task: str
    write: Callable[[pathlib.Path], Any]
    settings: Mapping[str, Any]
    y_limit: int
    x_limit: int = 256
    named: tuple[str, str] | None = None
    patched: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    unread: tuple[str, ...] = ()

    def open(self, folder):
        """Loads the task; of some forms the data are read later."""
        settings = dict(self.settings)
        if self.named:
            settings[self.named[0]] = str(folder / self.named[1])
        with self.patched():
            return tasks.load(self.task, data_dir=str(folder), **settings)

    def load(self, folder):
        """Loads the task and reads all of its data; returns what must be alike in every load."""
        task = self.open(folder)
        kinds = set()
        for data in (task.train, task.test):
            if data is None:
                continue
            ids = list(data.client_ids)
            assert ids and len(set(ids)) == len(ids) == len(data.sizes)
            assert all(isinstance(i, str) and i.encode() for i in ids)
            for k in range(len(ids)):
                x, y = data.examples(k)
                kinds.add(self._checked(np.asarray(x[:]), y))
                assert len(x) == len(y) == data.sizes[k]
        assert np.sum(task.train.sizes) > 0
        if task.central_test is not None:
            x, y = task.central_test
            kinds.add(self._checked(np.asarray(x[:]), y))
        (kind,) = kinds
        return kind

    def _checked(self, x, y):
        assert len(x) == len(y)
        for values, limit in ((x, self.x_limit), (y, self.y_limit)):
            if values.dtype.kind == "f":
                assert np.isfinite(values).all() and np.all((values >= 0) & (values <= 1))
            else:
                assert np.all((values >= 0) & (values < limit))
        return x.dtype, x.shape[1:], y.dtype, y.shape[1:]


def _writers(folder):
    test_mnist_writers._write_images(folder)
    test_mnist_writers._write_prepared(folder)


def _qmnist(folder):
    test_mnist_writers._write_images(folder)
    test_mnist_writers._write_qmnist(folder)


def _prepared(task, write):
    """Writes a prepared set of a form, made by the suite itself."""

    def write_set(folder):
        (folder / "raw").mkdir()
        write(folder / "raw")
        tasks.get(task).prepare_fn()(str(folder / "raw"), str(folder))
        for path in sorted((folder / "raw").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (folder / "raw").rmdir()
        for path in folder.glob(".*.lock"):
            path.unlink()

    return write_set


def _cifar(kind, write, *arguments):
    return lambda folder: write(folder, kind, *arguments)


def _packed(name, write):
    def write_packed(folder):
        write(folder / name)
        whole = lzma.compress((folder / name).read_bytes(), format=lzma.FORMAT_ALONE)
        (folder / name).unlink()
        (folder / f"{name}.lzma").write_bytes(whole)

    return write_packed


def _clothing(folder):
    with mock.patch.multiple(test_clothing1m, _NUM_TRAIN=4, _NUM_TEST=2):
        test_clothing1m._write(folder)
    _weights(folder)


def _weights(folder):
    with h5py.File(folder / "weights.h5", "w") as file:
        group = file.create_group("conv1_conv")
        group.create_dataset("kernel", data=np.zeros((7, 7, 3, 64)))
        group.attrs["weight_names"] = [b"kernel"]
        file.attrs["layer_names"] = [b"conv1_conv"]


def _prepared_clothing(folder):
    _prepared("clothing1m", _clothing)(folder)
    _weights(folder)


def _tweets(write):
    def write_with_vectors(folder):
        write(folder)
        test_sent140._write_vectors(folder)

    return write_with_vectors


def _play(folder):
    text = test_shakespeare_character._play_text()
    (folder / "t8.shakespeare.txt").write_text(text, "latin-1")


def _stackoverflow(packed):
    return lambda folder: test_stackoverflow._write(folder, packed=packed)


_ALL = ("all_train", "all_test")


def _h5(write, name, stem, **options):
    def write_h5(folder):
        write(folder)
        tffs_files.to_h5(folder / name, stem, **options)

    return write_h5


def _emnist(folder):
    test_emnist_character._write(folder / "emnist_all.sqlite")


def _shakespeare(folder):
    test_shakespeare_character._write(folder / "shakespeare.sqlite")


def _tfds(task, small, file_format, settings, y_limit, x_limit=256):
    return Form(
        task,
        lambda folder: small.write(folder, file_format),
        settings,
        y_limit,
        x_limit,
        patched=small.patched,
    )


def _gloves(folder):
    published_files.write_leaf(folder, "sent140", "all")
    (folder / "glove.6B.300d.txt.gz").write_bytes(
        gzip.compress(published_files.vectors("header.txt"))
    )


def _sorted_tiny_imagenet():
    """Tiny ImageNet with its validation images in folders by class, as many scripts sort them."""
    files = test_image_folders._tiny_imagenet()
    for line in files.pop("val/val_annotations.txt").decode().splitlines():
        name, wnid = line.split("\t")[:2]
        files[f"val/{wnid}/images/{name}"] = files.pop(f"val/images/{name}")
    return files


_TWO = {"num_clients": 2, "partition": "iid"}
_IMAGES = {**_TWO, "model": "mlp"}
_TFFS = {"model": "mlp", "partition": "tff"}
_TRAINED = {"embedding": "trained", "vocab_size": 5}
_WORD = {"vocab_size": 10}
_TAG = {"vocab_size": 10, "num_tags": 5}

FORMS = {
    "fashion_mnist": Form(
        "fashion_mnist", lambda f: test_fashion_mnist._write_set(f, 20, 12), _TWO, 10
    ),
    "mnist_writers": Form("mnist_writers", _writers, {}, 10),
    "qmnist": Form("mnist_writers", _qmnist, {}, 10),
    "autoencoder": Form("emnist_autoencoder", _writers, {"source": "mnist"}, 1),
    "emnist": Form("emnist_character", _emnist, {}, 62),
    "emnist_packed": Form(
        "emnist_character", _packed("emnist_all.sqlite", test_emnist_character._write), {}, 62
    ),
    "emnist_h5": Form(
        "emnist_character", _h5(_emnist, "emnist_all.sqlite", "fed_emnist", splits=_ALL), {}, 62
    ),
    "emnist_h5_packed": Form(
        "emnist_character",
        _h5(_emnist, "emnist_all.sqlite", "fed_emnist", splits=_ALL, archive=True),
        {},
        62,
    ),
    "femnist": Form("femnist", test_femnist._write_all, {}, 62),
    "femnist_split": Form(
        "femnist", test_femnist._write_split, {"split": "source"}, 62, unread=("all_data/",)
    ),
    "femnist_prepared": Form("femnist", _prepared("femnist", test_femnist._write_all), {}, 62),
    "sent140_leaf": Form("sent140", test_sent140._write_leaf, _TRAINED, 2, 7),
    "femnist_by_user": Form(
        "femnist",
        lambda f: published_files.write_leaf(f, "femnist", "k1_user", ("train", "test")),
        {"split": "source"},
        62,
    ),
    "sent140_scripts": Form(
        "sent140",
        lambda f: published_files.write_leaf(f, "sent140", "sample_2018", ("train", "test")),
        _TRAINED,
        2,
        7,
    ),
    "shakespeare_leaf": Form(
        "shakespeare_character",
        lambda f: published_files.write_leaf(f, "shakespeare", "user_2018", ("train", "test")),
        {"source": "leaf", "roles": "leaf", "examples": "windows", "split": "source"},
        80,
        80,
    ),
    "sent140_glove": Form("sent140", _gloves, {}, 2, 99),
    "sent140_lines": Form("sent140", test_sent140._write_lines, _TRAINED, 2, 7),
    "sent140_prepared": Form(
        "sent140", _prepared("sent140", test_sent140._write_leaf), _TRAINED, 2, 7
    ),
    "sent140_vectors": Form("sent140", _tweets(test_sent140._write_lines), {}, 2, 99),
    "stackexchange_word": Form(
        "stackexchange",
        lambda f: test_stackexchange._write(f, test_stackexchange._POSTS),
        {"kind": "word", "vocab_size": 3},
        7,
        7,
    ),
    "stackexchange_tag": Form(
        "stackexchange",
        lambda f: test_stackexchange._write(f, test_stackexchange._POSTS),
        {"kind": "tag", "vocab_size": 3, "num_tags": 2},
        1,
    ),
    "stackoverflow_word": Form(
        "stackoverflow_word", _stackoverflow(True), _WORD, 14, 14, unread=("tag_count",)
    ),
    "stackoverflow_tag": Form("stackoverflow_tag", _stackoverflow(False), _TAG, 1),
    "stackoverflow_h5": Form(
        "stackoverflow_word",
        _h5(_stackoverflow(False), "stackoverflow.sqlite", "stackoverflow"),
        _WORD,
        14,
        14,
        unread=("tag_count",),
    ),
    "shakespeare": Form("shakespeare_character", _shakespeare, {}, 90, 90),
    "shakespeare_h5": Form(
        "shakespeare_character",
        _h5(_shakespeare, "shakespeare.sqlite", "shakespeare"),
        {},
        90,
        90,
    ),
    "play_text": Form("shakespeare_character", _play, {}, 90, 90),
    "cifar10_python": Form(
        "cifar10_image", _cifar("cifar10", test_images._write_folder, "python"), _IMAGES, 10
    ),
    "cifar10_archive": Form(
        "cifar10_image", _cifar("cifar10", test_images._write_archive, "python"), _IMAGES, 10
    ),
    "cifar100_python": Form(
        "cifar100_image", _cifar("cifar100", test_images._write_folder, "python"), _IMAGES, 100
    ),
    "cifar100_binary": Form(
        "cifar100_image", _cifar("cifar100", test_images._write_folder, "binary"), _IMAGES, 100
    ),
    "cifar100_tff": Form(
        "cifar100_image", lambda f: test_images._write_sqlite(f / "cifar100.sqlite"), _TFFS, 100
    ),
    "cifar100_h5": Form("cifar100_image", test_images._write_h5, _TFFS, 100),
    "cinic10": Form(
        "cinic10",
        lambda f: test_image_folders._write(f, test_image_folders._cinic10()),
        _IMAGES,
        10,
    ),
    "cinic10_archive": Form(
        "cinic10",
        lambda f: test_image_folders._write_tar(
            f / "CINIC-10.tar.gz", test_image_folders._cinic10()
        ),
        _IMAGES,
        10,
    ),
    "cinic10_prepared": Form(
        "cinic10",
        _prepared("cinic10", lambda f: test_image_folders._write(f, test_image_folders._cinic10())),
        _IMAGES,
        10,
    ),
    "tiny_imagenet": Form(
        "tiny_imagenet",
        lambda f: test_image_folders._write(f, test_image_folders._tiny_imagenet()),
        _IMAGES,
        200,
    ),
    "tiny_imagenet_archive": Form(
        "tiny_imagenet",
        lambda f: test_image_folders._write_zip(
            f / "tiny-imagenet-200.zip", test_image_folders._tiny_imagenet()
        ),
        _IMAGES,
        200,
    ),
    "tiny_imagenet_sorted": Form(
        "tiny_imagenet",
        lambda f: test_image_folders._write(f, _sorted_tiny_imagenet()),
        _IMAGES,
        200,
    ),
    "tfds_cifar10": _tfds("cifar10_image", test_tfds._cifar("cifar10"), "tfrecord", _IMAGES, 10),
    "tfds_cifar100": _tfds(
        "cifar100_image", test_tfds._cifar("cifar100"), "array_record", _IMAGES, 100
    ),
    "tfds_sent140": _tfds(
        "sent140",
        tfds_files.of_tweets(test_tfds._TRAIN, test_tfds._TEST),
        "tfrecord",
        _TRAINED,
        2,
        7,
    ),
    "clothing1m": Form("clothing1m", _clothing, _TWO, 14, named=("weights", "weights.h5")),
    "clothing1m_prepared": Form(
        "clothing1m", _prepared_clothing, _TWO, 14, named=("weights", "weights.h5")
    ),
}


class Copy:
    """A form's files in a folder, which come back after each damage."""

    def __init__(self, form: Form, folder: pathlib.Path):
        self.form = form
        self.folder = folder
        form.write(folder)
        self.files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        # What a form has, but nobody reads.
        unread = ("batches.meta", "readme.html", "synsets-to", "imagenet-contr", "words.txt")
        unread += ("_boxes.txt", "test/images", "all_data_0.json.bak", *form.unread)
        self.names = [name for name in self.files if not any(part in name for part in unread)]
        self.kind = form.load(folder)
        self.restore()

    def restore(self):
        """Makes the folder what it was."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            name = str(path.relative_to(self.folder))
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                path.unlink()
            elif path.is_dir():
                if name in self.files:
                    path.rmdir()
            elif name not in self.files:
                path.unlink()
        for name, content in self.files.items():
            path = self.folder / name
            if not os.path.lexists(path) or path.read_bytes() != content:
                path.write_bytes(content)
