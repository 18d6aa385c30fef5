"""A run knows its data again: one label altered in any format gives other digests."""

import gzip
import hashlib
import json
import os
import pickle
import random
import sqlite3
import time

import h5py
import numpy as np
import pytest

import tasks
from tasks import fingerprint, task
from tasks.task import DataError
from tests.tasks import published_forms, test_damaged_files, test_images, tffs_files
from tests.tasks.datasets import (
    test_emnist_character,
    test_fashion_mnist,
    test_femnist,
    test_sent140,
    test_shakespeare_character,
    test_stackexchange,
    test_stackoverflow,
)
from tests.tasks.formats import test_image_folders
from tff_suite.hparams import HparamError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _old(path):
    """Makes a file older than what is too young to be kept in the cache."""
    then = time.time_ns() - 10**10
    os.utime(path, ns=(then, then))


def _flip_byte(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def _idx(folder, rng):
    test_fashion_mnist._write_set(folder)
    path = folder / "train-labels-idx1-ubyte.gz"

    def alter():
        content = bytearray(gzip.decompress(path.read_bytes()))
        content[8 + rng.randrange(200)] ^= 1
        path.write_bytes(gzip.compress(bytes(content)))

    return "fashion_mnist", {"partition": "iid", "num_clients": 4}, alter


def _cifar(folder, rng):
    inner = test_images._write_folder(folder, "cifar10", "binary")
    path = sorted(inner.glob("data_batch_*.bin"))[rng.randrange(5)]
    records = path.stat().st_size // 3073
    settings = {**test_images._SMALL, "partition": "iid"}
    return "cifar10_image", settings, lambda: _flip_byte(path, 3073 * rng.randrange(records))


def _cifar_pickle(folder, rng):
    kind = rng.choice(["cifar10", "cifar100"])
    inner = test_images._write_folder(folder, kind, "python")
    path = inner / ("train" if kind == "cifar100" else f"data_batch_{rng.randint(1, 5)}")

    def alter():
        batch = pickle.loads(path.read_bytes(), encoding="bytes")
        labels = batch[b"fine_labels" if kind == "cifar100" else b"labels"]
        labels[rng.randrange(len(labels))] ^= 1
        path.write_bytes(pickle.dumps(batch, protocol=2))

    return f"{kind}_image", {**test_images._SMALL, "partition": "iid"}, alter


def _hdf5(folder, rng):
    test_images._write_h5(folder)
    path = folder / "fed_cifar100_train.h5"

    def alter():
        with h5py.File(path, "r+") as file:
            labels = file["examples"][rng.choice(list(file["examples"]))]["label"]
            labels[rng.randrange(len(labels))] ^= 1

    settings = {"model": test_images._SMALL["model"], "partition": "tff"}
    return "cifar100_image", settings, alter


def _leaf(folder, rng):
    test_femnist._write_all(folder)
    path = folder / "all_data" / "all_data_0.json"

    def alter():
        content = json.loads(path.read_text())
        labels = content["user_data"][rng.choice(content["users"])]["y"]
        labels[rng.randrange(len(labels))] ^= 1
        path.write_text(json.dumps(content))

    return "femnist", {}, alter


def _prepared(folder, rng):
    test_femnist._write_all(folder)
    target = test_femnist._prepared(folder)
    path = target / "femnist.prepared" / "y"
    at = rng.randrange(path.stat().st_size)
    return "femnist", {"data_dir": str(target)}, lambda: _flip_byte(path, at)


def _prepared_pixel(folder, rng):
    task, settings, _ = _prepared(folder, rng)
    path = folder / "ready" / "femnist.prepared" / "x"
    at = rng.randrange(path.stat().st_size)
    return task, settings, lambda: _flip_byte(path, at)


def _tffs(folder, rng):
    path = folder / "emnist_all.sqlite"
    test_emnist_character._write(path)
    _old(path)

    def alter():
        with sqlite3.connect(path) as db:
            select = "SELECT rowid FROM examples WHERE split_name = 'all_train'"
            row = rng.choice(db.execute(select).fetchall())
            pixels = test_emnist_character._pixels(0, 0)
            example = test_emnist_character._example(pixels, 3)
            update = "UPDATE examples SET serialized_example_proto = ? WHERE rowid = ?"
            db.execute(update, (example, *row))

    return rng.choice(["emnist_character", "emnist_autoencoder"]), {}, alter


def _stackoverflow(folder, rng):
    test_stackoverflow._write(folder)
    path = folder / test_stackoverflow._FILE
    _old(path)

    def alter():
        with sqlite3.connect(path) as db:
            select = (
                "SELECT rowid, serialized_example_proto FROM examples WHERE split_name = 'train'"
            )
            row, example = rng.choice(db.execute(select).fetchall())
            # Another post, another tag, as long as before.
            altered = example.replace(b"the", b"sql").replace(b"is", b"to").replace(b"c#", b"c+")
            assert altered != example
            update = "UPDATE examples SET serialized_example_proto = ? WHERE rowid = ?"
            db.execute(update, (altered, row))

    if rng.random() < 0.5:
        return "stackoverflow_word", {"vocab_size": 10}, alter
    return "stackoverflow_tag", {"vocab_size": 10, "num_tags": 5}, alter


def _tiny_imagenet(folder, rng):
    files = test_image_folders._tiny_imagenet()
    test_image_folders._write(folder, files)
    wnids = rng.sample(test_image_folders._WNIDS, 2)
    a, b = (f"train/{w}/images/{w}_{rng.randrange(2)}.JPEG" for w in wnids)

    def alter():
        test_image_folders._write(folder, {a: files[b], b: files[a]})

    return "tiny_imagenet", test_image_folders._SMALL, alter


def _image_folders(folder, rng):
    files = test_image_folders._cinic10()
    test_image_folders._write(folder, files)
    a, b = (f"train/{c}/n123-{i}.png" for i, c in enumerate(test_image_folders._CLASSES[:2]))

    def alter():
        test_image_folders._write(folder, {a: files[b], b: files[a]})

    return "cinic10", test_image_folders._SMALL, alter


def _lines(folder, rng):
    test_sent140._write_lines(folder)
    test_sent140._write_vectors(folder)
    path = folder / test_sent140._LINES

    def alter():
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        i = rng.randrange(len(lines))
        tweet = json.loads(lines[i])
        lines[i] = json.dumps({**tweet, "label": 1 - tweet["label"]})
        path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))

    return "sent140", {}, alter


def _vectors(folder, rng):
    name, settings, _ = _lines(folder, rng)
    path = folder / test_sent140._VECTORS
    return name, settings, lambda: path.write_text(path.read_text().replace("it 0.2 ", "it 0.3 "))


def _play(folder, rng):
    path = folder / "t8.shakespeare.txt"
    path.write_text(test_shakespeare_character._play_text(), "latin-1")
    at = rng.choice(range(4))

    def alter():
        text = path.read_text("latin-1")
        line = f"Speech {at} of"
        path.write_text(text.replace(line, line.replace("Speech", "Sqeech"), 1), "latin-1")

    return "shakespeare_character", {}, alter


def _posts(folder, rng):
    test_stackexchange._write(folder, test_stackexchange._POSTS)

    def alter():
        posts = [dict(post) for post in test_stackexchange._POSTS]
        posts[3]["text"] = "limit limit"  # A word less, whatever the vocabulary.
        test_stackexchange._write(folder, posts)

    return "stackexchange", {"kind": "word", "vocab_size": 4, "test_fraction": 0.0}, alter


FORMATS = [
    _idx,
    _cifar,
    _cifar_pickle,
    _hdf5,
    _stackoverflow,
    _tiny_imagenet,
    _leaf,
    _prepared,
    _prepared_pixel,
    _tffs,
    _image_folders,
    _lines,
    _vectors,
    _play,
    _posts,
]


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_one_label_altered_in_a_file_is_noticed(make, tmp_path):
    rng = random.Random(make.__name__)
    folder = tmp_path / "data"
    folder.mkdir()
    name, settings, alter = make(folder, rng)
    settings = {"data_dir": str(folder), **settings}

    def digests():
        return fingerprint.of_task(tasks.load(name, **settings))

    before = digests()
    assert digests() == before, "the same files must give the same digests"
    alter()
    now = digests()
    assert fingerprint.whole(now) != fingerprint.whole(before)
    (first, *_) = fingerprint.differences(before, now)
    assert first.startswith(("client ", "file ", "the words' vectors")), first


def _numbers(loaded):
    """All that a run takes from a task, client by client, in one digest."""
    digest = hashlib.sha256()
    for data in (loaded.train, loaded.test):
        for k, client in enumerate(data.client_ids if data is not None else ()):
            digest.update(client.encode())
            for array in data.examples(k):
                digest.update(np.asarray(array[:]).tobytes())
    for array in (*(loaded.central_test or ()), *loaded.constants.values()):
        digest.update(np.asarray(array[:]).tobytes())
    return digest.digest()


# Forms in which nearly every bit is of a number, and no checksum stands beside it.
_BARE = ("fashion_mnist", "cifar100_binary", "cifar100_h5")


@pytest.mark.quick_cases("[!t]*-8", "tfds_sent140*-8")
@pytest.mark.parametrize("times", [8, 200])
@pytest.mark.parametrize("form", published_forms.FORMS)
def test_a_bit_that_alters_what_is_read_is_noticed(form, times, tmp_path):
    """In any file of every form."""
    rng = random.Random(f"{form} {times}")
    folder = tmp_path / "data"
    folder.mkdir()
    copy = published_forms.Copy(published_forms.FORMS[form], folder)

    def read():
        loaded = copy.form.open(folder)
        return _numbers(loaded), fingerprint.of_task(loaded)

    numbers, before = read()
    altered = 0
    for _ in range(times):
        copy.restore()
        name = rng.choice(copy.names)
        unpack, pack = test_damaged_files.CODECS.get(os.path.splitext(name)[1], (bytes, bytes))
        content = bytearray(unpack(copy.files[name]))
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(pack(bytes(content)))
        try:
            now_read, now = read()
        except (DataError, HparamError):
            continue
        if now_read != numbers:
            altered += 1
            assert fingerprint.differences(before, now), name
    assert altered or form not in _BARE


@pytest.mark.parametrize("noisy", [0.0, 0.5])
def test_one_label_altered_in_memory_is_noticed_by_client(noisy):
    loaded = tasks.load("synthetic", num_clients=8, max_examples=20, noisy_clients=noisy)
    before = fingerprint.of_task(loaded)
    data = loaded.clean_train or loaded.train
    rng = random.Random(3)
    for client in rng.sample(range(8), 4):
        row = rng.choice(data._rows[client])
        data._y[row] ^= 1
        differing = fingerprint.differences(before, fingerprint.of_task(loaded))
        data._y[row] ^= 1
        assert differing == [f"client '{client}' of train"]
    assert fingerprint.of_task(loaded) == before


def test_data_of_users_classes_are_read_through_their_examples():
    class Own:
        client_ids, sizes = ["a", "b"], np.array([2, 1])

        def __init__(self):
            self.y = {0: np.array([1, 2]), 1: np.array([3])}

        def examples(self, index):
            return task.Examples(np.zeros((len(self.y[index]), 2)), self.y[index])

    own = Own()
    before = fingerprint._of_clients(own, "train")
    own.y[1][0] = 4
    now = fingerprint._of_clients(own, "train")
    assert fingerprint.differences(before, now) == ["client 'b' of train"]


@pytest.mark.parametrize("part", ["train", "central_test"])
@pytest.mark.parametrize("rows", [slice(1, 7), slice(5, None, -1), slice(0, 12, 2)])
def test_another_slice_of_a_memory_map_is_other_data(tmp_path, part, rows):
    np.save(tmp_path / "x.npy", np.arange(24, dtype=np.float32).reshape(12, 2))
    y = np.arange(6) % 2

    def digests(rows):
        x = np.load(tmp_path / "x.npy", mmap_mode="r")
        own = {"train": x[:6], "central_test": x[:6]} | {part: x[rows]}
        return fingerprint.of_task(
            task.Task(
                name="of_mine",
                train=task.ArrayFederatedData(own["train"], y, [np.arange(6)]),
                test=None,
                central_test=task.Examples(own["central_test"], y),
                keras_model_fn=None,
                loss="mse",
                metrics={},
                primary_metric="loss",
                higher_is_better=False,
            )
        )

    assert digests(slice(6)) == digests(slice(0, 6))
    (differing,) = fingerprint.differences(digests(slice(6)), digests(rows))
    assert differing == ("client '0' of train" if part == "train" else "x of the central test")


def _digest_of(path):
    (digest,) = fingerprint._of_files([str(path)], True).values()
    return digest


def test_cached_by_size_time_and_inode(tmp_path, monkeypatch):
    path = tmp_path / "large"
    path.write_bytes(b"first")
    _old(path)
    read = []
    original = fingerprint.hashlib.file_digest

    def file_digest(file, name):
        read.append(file.name)
        return original(file, name)

    monkeypatch.setattr(fingerprint.hashlib, "file_digest", file_digest)
    first = _digest_of(path)
    assert _digest_of(path) == first and len(read) == 1
    assert fingerprint._of_files([str(path)], False) and len(read) == 2
    status = path.stat()
    path.write_bytes(b"other")  # As long, and as old except for a nanosecond.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert _digest_of(path) != first
    path.write_bytes(b"third")  # Just changed: not kept.
    third = _digest_of(path)
    count = len(read)
    assert _digest_of(path) == third and len(read) == count + 1


@pytest.mark.parametrize("damage", ["unwritable", "no database", "other table"])
def test_a_cache_that_cannot_be_used_is_done_without(tmp_path, damage):
    path = tmp_path / "large"
    path.write_bytes(b"content")
    _old(path)
    cache = fingerprint.cache_path()
    if damage == "unwritable":
        cache.parent.parent.write_bytes(b"a file where the folder should be")
    else:
        cache.parent.mkdir(parents=True)
    if damage == "no database":
        cache.write_bytes(b"no database" * 1000)
    if damage == "other table":
        sqlite3.connect(cache).execute("CREATE TABLE digests (path TEXT)")
    first = _digest_of(path)
    path.write_bytes(b"Content")
    assert _digest_of(path) != first


def test_a_cache_with_text_that_is_none_is_done_without(tmp_path):
    paths = [tmp_path / name for name in ("large", "other")]
    for path in paths:
        path.write_bytes(path.name.encode())
        _old(path)
    first = [_digest_of(path) for path in paths]
    whole = fingerprint.cache_path().read_bytes()
    rng = random.Random(0)
    for _ in range(100):
        fingerprint.cache_path().write_bytes(tffs_files.with_text_that_is_none(whole, rng))
        assert [_digest_of(path) for path in paths] == first


def test_data_may_be_moved_and_many_files_are_told_by_folder(tmp_path):
    for folder in ("one", "two"):
        for i in range(120):
            path = tmp_path / folder / f"part{i % 3}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes([i]))
    one, two = (
        fingerprint._of_files(sorted(map(str, (tmp_path / f).rglob("*.png"))), True)
        for f in ("one", "two")
    )
    assert one == two and len(one) == 3
    (tmp_path / "two" / "part1" / "4.png").write_bytes(b"x")
    two = fingerprint._of_files(sorted(map(str, (tmp_path / "two").rglob("*.png"))), True)
    assert fingerprint.differences(one, two) == ["files of folder part1"]
