"""TFDS's folders, written by TFDS itself, give the rows that the publishers' own files give."""

import hashlib
import io
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks import fingerprint
from tasks.formats import downloads, tfds
from tasks.task import DataError
from tests.tasks import test_images, tfds_files
from tests.tasks.datasets import test_fashion_mnist, test_mnist_writers
from tff_suite.hparams import HparamError

_FORMATS = ["tfrecord", "array_record"]
_SETS = ["fashion_mnist", "mnist", "cifar10", "cifar100", "sentiment140"]
_PDT = "{} {:02} {:02}:{:02}:{:02} PDT 2009"

# Polarity, id, date, query, user, text, in the order of the publisher: polarity, then time.
_TRAIN = [
    (
        polarity,
        1467810000 + i,
        _PDT.format(day, i % 30 + 1, i % 24, 7 * i % 60, i),
        "NO_QUERY",
        u,
        t,
    )
    for polarity, day in ((0, "Mon Apr"), (4, "Wed Jun"))
    for i, (u, t) in enumerate(
        [
            ("zoe", "can't sleep, ugh"),
            ("amy_1", "so sad; so very sad"),
            ("zoe", "caf\u00e9 is \u00bd shut"),
            ("Bob", 'he said "no", twice'),
            ("amy_1", "again"),
            ("zoe", ""),
        ]
    )
]
_TEST = [
    (2, 3, "Mon May 11 03:17:40 UTC 2009", "kindle2", "zoe", "neither"),
    (4, 4, "Sat May 16 22:42:07 UTC 2009", "aig", "Bob", "love it"),
    (0, 5, "Sat May 16 22:42:25 UTC 2009", "aig", "new_one", "hate it"),
]


def _idx(folder, name):
    """Writes small idx files into a folder, and returns the set."""
    folder.mkdir(parents=True)
    if name == "mnist":
        test_mnist_writers._write_images(folder)
    else:
        test_fashion_mnist._write_set(folder)
    return tfds_files.of_idx(name, folder)


def _cifar(kind):
    (_, train), (_, test) = test_images._expected(kind)
    return tfds_files.of_cifar(kind, test_images._files(kind, "binary"), train, test)


def _small(name, folder):
    if name == "sentiment140":
        return tfds_files.of_tweets(_TRAIN, _TEST)
    return _cifar(name) if name.startswith("cifar") else _idx(folder, name)


@pytest.fixture(autouse=True)
def no_caches(tmp_path, monkeypatch):
    """No test sees the caches of who runs it, nor downloads."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    with tfds_files.no_network():
        yield


def _assert_same(one, other):
    for data, others in ((one.train, other.train), (one.test, other.test)):
        assert (data is None) == (others is None)
        if data is not None:
            assert list(data.client_ids) == list(others.client_ids)
            for k in range(len(data.client_ids)):
                for array, its in zip(data.examples(k), others.examples(k), strict=True):
                    assert array.dtype == its.dtype
                    np.testing.assert_array_equal(array, its)
    for array, its in zip(one.central_test, other.central_test, strict=True):
        assert array.dtype == its.dtype
        np.testing.assert_array_equal(array, its)
    # By which a run knows its data: it may go on with the other's.
    assert fingerprint.of_task(one) == fingerprint.of_task(other)


@pytest.mark.parametrize("file_format", _FORMATS)
def test_fashion_mnist_is_that_of_its_idx_files(tmp_path, file_format):
    small = _idx(tmp_path / "idx", "fashion_mnist")
    folder = small.write(tmp_path / "tfds", file_format)
    settings = {"num_clients": 5, "partition": "dirichlet", "alpha": 1.0, "seed": 3}
    with small.patched():
        one, other = (
            tasks.load("fashion_mnist", data_dir=str(tmp_path / name), **settings)
            for name in ("idx", "tfds")
        )
    _assert_same(one, other)
    assert other.settings["tfds"] == "fashion_mnist:3.0.1"
    assert other.settings["tfds_path"] == str(folder)
    assert not any(name.startswith("tfds") for name in one.settings)


@pytest.mark.parametrize("file_format", _FORMATS)
@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
def test_cifar_is_that_of_the_authors_files(tmp_path, kind, file_format):
    small = _cifar(kind)
    small.write(tmp_path / "tfds", file_format)
    test_images._write_folder(tmp_path / "own", kind, "python")
    partition = "multinomial" if kind == "cifar10" else "pachinko"
    settings = {"partition": partition, "num_clients": 4, "seed": 1, "client_tests": "split"}
    with small.patched():
        one, other = (
            tasks.load(f"{kind}_image", data_dir=str(tmp_path / name), model="mlp", **settings)
            for name in ("own", "tfds")
        )
    _assert_same(one, other)
    assert other.settings["tfds"] == f"{kind}:3.0.2"


@pytest.mark.parametrize("where", ["folder", "cache"])
@pytest.mark.parametrize("task", ["mnist_writers", "emnist_autoencoder"])
def test_mnists_images_beside_its_writers(tmp_path, monkeypatch, task, where):
    small = _idx(tmp_path / "idx", "mnist")
    named, cache = tmp_path / "named", tmp_path / "cache"
    named.mkdir()
    small.write(named if where == "folder" else cache)
    monkeypatch.setenv("TFDS_DATA_DIR", str(cache))
    for folder in (tmp_path / "idx", named):
        test_mnist_writers._write_qmnist(folder)
    settings = {"source": "mnist"} if task == "emnist_autoencoder" else {}
    with small.patched():
        one, other = (
            tasks.load(task, data_dir=str(folder), seed=2, **settings)
            for folder in (tmp_path / "idx", named)
        )
    _assert_same(one, other)
    root = named if where == "folder" else cache
    assert other.settings["tfds_path"] == str(root / "mnist" / "3.0.1")
    assert "tfds" not in one.settings


def _as_leaf(folder):
    """Writes what LEAF's combine_data.py and data_to_json.py make of the two files of tweets."""
    stream = io.BytesIO()
    for row in [*_TRAIN, *_TEST]:
        stream.write(("\t".join(map(str, row)) + "\n").encode())
    rows = [line.split("\t") for line in stream.getvalue().decode("iso-8859-1").split("\n")[:-1]]
    users = {}
    for row in sorted(rows, key=lambda row: row[4]):
        own = users.setdefault(row[4], {"x": [], "y": []})
        own["x"].append(row[1:])
        own["y"].append(1 if row[0] == "4" else 0)
    (folder / "all_data").mkdir(parents=True)
    sizes = [len(own["y"]) for own in users.values()]
    content = {"users": list(users), "num_samples": sizes, "user_data": users}
    (folder / "all_data" / "all_data.json").write_text(json.dumps(content))


@pytest.mark.parametrize("file_format", _FORMATS)
def test_accounts_are_those_of_leafs_files(tmp_path, file_format):
    small = tfds_files.of_tweets(_TRAIN, _TEST)
    small.write(tmp_path / "tfds", file_format)
    _as_leaf(tmp_path / "leaf")
    settings = {"embedding": "trained", "vocab_size": 12, "seed": 4}
    with small.patched():
        one, other = (
            tasks.load("sent140", data_dir=str(tmp_path / name), **settings)
            for name in ("leaf", "tfds")
        )
        with pytest.raises(HparamError, match="split=source"):
            tasks.load("sent140", data_dir=str(tmp_path / "tfds"), split="source", **settings)
    assert one.train.client_ids == ["Bob", "amy_1", "new_one", "zoe"]
    _assert_same(one, other)
    assert one.settings["source"] == "leaf" and other.settings["source"] == "tfds"
    assert other.settings["tfds"] == "sentiment140:1.0.0"


def test_tweets_beside_word_vectors_come_from_the_cache(tmp_path, monkeypatch):
    small = tfds_files.of_tweets(_TRAIN, _TEST)
    small.write(tmp_path / "home" / "tensorflow_datasets")
    (tmp_path / "glove.6B.300d.txt").write_text(f"sad {' '.join(['0.5'] * 300)}\n")
    with small.patched():
        task = tasks.load("sent140", data_dir=str(tmp_path))
    assert task.settings["source"] == "tfds"
    assert task.settings["tfds_path"].startswith(str(tmp_path / "home" / "tensorflow_datasets"))


def test_word_vectors_are_missed_before_tweets_are_downloaded(monkeypatch):
    monkeypatch.setattr(tfds, "download", lambda of: pytest.fail("it is downloaded"))
    with pytest.raises(DataError, match="word vectors"):
        tasks.load("sent140")


def test_without_a_folder_tfds_downloads_tweets(tmp_path, monkeypatch):
    import tensorflow_datasets

    small = tfds_files.of_tweets(_TRAIN, _TEST)
    with monkeypatch.context() as patch, small.patched():
        for file, content in small.files.items():
            (tmp_path / file).write_bytes(content)
        manager = tensorflow_datasets.download.DownloadManager
        patch.setattr(manager, "download_and_extract", lambda *_: str(tmp_path))
        task = tasks.load("sent140", embedding="trained", vocab_size=5)
    folder = tmp_path / "home" / "tensorflow_datasets" / "sentiment140" / "1.0.0"
    assert task.settings["tfds_path"] == str(folder) and folder.is_dir()


def test_a_download_that_fails_is_one_line():
    with pytest.raises(DataError, match="sentiment140 cannot be downloaded") as error:
        tasks.load("sent140", embedding="trained", vocab_size=5)
    assert "\n" not in str(error.value) and "--data_dir" in str(error.value)


# Where it is looked for.


@pytest.mark.parametrize("variable", [True, False])
@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_tfdss_cache_comes_after_kerass_and_before_a_download(
    tmp_path, monkeypatch, name, variable
):
    small = _small(name, tmp_path / "idx")
    root = tmp_path / ("elsewhere" if variable else "home/tensorflow_datasets")
    if variable:
        monkeypatch.setenv("TFDS_DATA_DIR", str(root))
    small.write(root)
    if name == "cifar10":
        archive = test_images._write_archive(tmp_path / "own", name, "python")
        keras, task = {"cifar-10-batches-py.tar.gz": archive.read_bytes()}, "cifar10_image"
        test_images._write_folder(tmp_path / "home" / ".keras" / "datasets", name, "python")
    else:
        names = test_fashion_mnist._FILES
        keras = {f"fashion-mnist/{n}": (tmp_path / "idx" / n).read_bytes() for n in names}
        task = name
    asked = []

    def get_file(file, origin, **_):
        asked.append(file)
        cache = tmp_path / "home" / ".keras" / "datasets"
        return str(cache / ("" if name == "cifar10" else "fashion-mnist") / file)

    monkeypatch.setattr(tf.keras.utils, "get_file", get_file)
    settings = {"partition": "iid", "num_clients": 4}
    with small.patched():
        of_tfds = tasks.load(task, **settings)
        assert not asked and of_tfds.settings["tfds_path"].startswith(str(root))
        for file, content in keras.items():
            path = tmp_path / "home" / ".keras" / "datasets" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        of_keras = tasks.load(task, **settings)
    assert asked and "tfds" not in of_keras.settings
    _assert_same(of_tfds, of_keras)


def test_a_folder_that_is_named_is_not_filled_up_from_the_cache(tmp_path):
    small = _idx(tmp_path / "idx", "fashion_mnist")
    small.write(tmp_path / "home" / "tensorflow_datasets")
    (tmp_path / "named").mkdir()
    with small.patched(), pytest.raises(DataError, match="is missing"):
        tasks.load("fashion_mnist", data_dir=str(tmp_path / "named"))


def test_own_files_come_before_tfdss(tmp_path):
    small = _idx(tmp_path / "fashion_mnist", "fashion_mnist")
    small.write(tmp_path)
    with small.patched():
        task = tasks.load("fashion_mnist", data_dir=str(tmp_path), num_clients=5)
    assert "tfds" not in task.settings


def test_another_version_in_the_cache_is_passed_over(tmp_path, monkeypatch):
    small = _idx(tmp_path / "idx", "fashion_mnist")
    folder = small.write(tmp_path / "cache")
    folder.rename(folder.parent / "3.0.0")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tf.keras.utils, "get_file", lambda n, *_, **__: str(tmp_path / "idx" / n))
    with small.patched():
        assert "tfds" not in tasks.load("fashion_mnist", num_clients=5).settings


# What is wrong with it.


def _change(path, **changed):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def _one_line(small, folder, *named):
    with small.patched(), pytest.raises(DataError) as error:
        tasks.load("fashion_mnist", data_dir=str(folder), num_clients=5)
    text = str(error.value)
    assert "\n" not in text and len(text) < 700, text
    for part in named:
        assert part in text, text


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns a small set and a folder in which TFDS wrote it, which a test must leave whole."""
    folder = tmp_path_factory.mktemp("whole")
    small = _idx(folder / "idx", "fashion_mnist")
    return small, {f: small.write(folder / f, f) for f in _FORMATS}


@pytest.fixture
def copied(whole, tmp_path):
    """Returns the set, what --data_dir names and the set's folder in it, as TFRecords."""
    import shutil

    folder = tmp_path / "named" / "fashion_mnist" / "3.0.1"
    shutil.copytree(whole[1]["tfrecord"], folder)
    return whole[0], tmp_path / "named", folder


def test_another_version_is_refused(copied):
    small, root, folder = copied
    folder.rename(folder.parent / "3.0.0")
    _one_line(small, root, "has version 3.0.0", "not 3.0.1", 'load("fashion_mnist:3.0.1")')


@pytest.mark.parametrize("changed", [{"name": "mnist"}, {"version": "2.0.0"}, {"version": 3}])
def test_another_set_under_that_name_is_refused(copied, changed):
    small, root, folder = copied
    _change(folder / "dataset_info.json", **changed)
    _one_line(small, root, "dataset_info.json", next(iter(changed)))


@pytest.mark.parametrize(
    ("features", "named"),
    [
        ({"image": ("uint8", (32, 32, 3)), "label": ("int64", ())}, "shape (28, 28, 1)"),
        ({"image": ("uint8", (28, 28, 1)), "label": ("int32", ())}, "'label' is int64"),
        ({"id": ("object", ()), "label": ("int64", ())}, "lack the feature 'id'"),
    ],
)
def test_examples_of_another_form_are_refused(copied, features, named):
    _, _, folder = copied
    of = tfds_files.published("fashion_mnist")._replace(features=features)
    with pytest.raises(DataError) as error:
        tfds.read(of, str(folder), "train")
    assert named in str(error.value)


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json", "train", "test"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "other"])
def test_a_damaged_folder_is_one_line(copied, name, damage):
    small, root, folder = copied
    (path,) = folder.glob(f"*-{name}.*") if "." not in name else [folder / name]
    if damage == "missing":
        path.unlink()
    else:
        content = path.read_bytes()
        half = len(content) // 2
        other = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
        if name == "features.json" and damage == "other":
            other = content.replace(b"tensorflow_datasets.core", b"antigravity.core")
        path.write_bytes({"cut": content[:half], "empty": b"", "other": other}[damage])
    if (name, damage) == ("dataset_info.json", "other"):
        return  # A letter of the citation.
    _one_line(small, root, "fashion_mnist/3.0.1", "--data_dir")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("file_format", _FORMATS)
@pytest.mark.parametrize("size", [199, 201])
def test_more_or_fewer_examples_than_published_are_refused(whole, file_format, size):
    of = tfds_files.published("fashion_mnist")._replace(sizes={"train": size, "test": 30})
    with pytest.raises(DataError, match="fewer" if size == 201 else "more"):
        tfds.read(of, str(whole[1][file_format]), "train")


def test_labels_in_another_order_are_refused(copied):
    small, root, _ = copied
    other = tfds_files.Small(small.name, small.files, (small.labels[0][::-1], small.labels[1]))
    _one_line(other, root, "labels are not the publisher's")


def test_classes_of_unequal_size_are_refused_where_no_digest_is_known(tmp_path):
    for kind in ("cifar10", "cifar100"):
        small = _cifar(kind)
        folder = small.write(tmp_path)
        with small.patched():
            of = tfds_files.published(kind)._replace(labels={})
        if kind == "cifar100":
            assert len(tfds.read_images(of, str(folder), "train")["label"]) == 200
            continue
        with pytest.raises(DataError, match="more examples than others"):
            tfds.read_images(of, str(folder), "train")


def test_other_first_labels_are_refused(tmp_path):
    small = _cifar("cifar10")
    folder = small.write(tmp_path)
    with small.patched():
        of = tfds_files.published("cifar10")
    tfds.read_images(of._replace(first={"train": [0, 1, 2]}), str(folder), "train")
    with pytest.raises(DataError, match=r"first labels.*7, 1, 2"):
        tfds.read_images(of._replace(first={"train": [7, 1, 2]}), str(folder), "train")


def test_ids_that_are_no_numbering_are_refused(tmp_path):
    small = _cifar("cifar10")
    folder = small.write(tmp_path)
    with small.patched(), pytest.raises(DataError, match="ids"):
        of = tfds_files.published("cifar10")
        arrays = tfds.read(of, str(folder), "train")
        arrays["id"][3] = arrays["id"][4]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tfds, "read", lambda *_: arrays)
            tfds.read_images(of, str(folder), "train")


# What is known of the sets.


@pytest.mark.parametrize("name", _SETS)
def test_forms_and_versions_are_tfdss(name):
    import tensorflow_datasets

    of = tfds_files.published(name)
    with tensorflow_datasets.testing.mock_data(num_examples=3):
        builder = tensorflow_datasets.builder(name)
        assert str(builder.version) == of.version
        data = tensorflow_datasets.load(name, split="train")
        examples = list(tensorflow_datasets.as_numpy(data))
    assert len(examples) == 3
    for example in examples:
        for feature, (dtype, shape) in of.features.items():
            value = np.asarray(example[feature])
            assert value.shape == shape
            assert (value.dtype.kind == "S") if dtype == "object" else (value.dtype.name == dtype)
    for feature, number in of.classes.items():
        assert builder.info.features[feature].num_classes == number


@pytest.mark.parametrize("name", ["fashion_mnist", "mnist"])
def test_the_publishers_labels_have_the_digests(data_dir, name):
    small = tfds_files.of_idx(name, data_dir / name)
    of = tfds_files.published(name)
    for split, labels in zip(("train", "test"), small.labels, strict=True):
        assert len(labels) == of.sizes[split]
        assert hashlib.sha256(labels.tobytes()).hexdigest() == of.labels[split]


@pytest.mark.long
@pytest.mark.parametrize("file_format", _FORMATS)
def test_the_whole_of_fashion_mnist_is_put_back_in_order(tmp_path, data_dir, file_format):
    small = tfds_files.of_idx("fashion_mnist", data_dir / "fashion_mnist")
    small.write(tmp_path, file_format)
    one, other = (
        tasks.load("fashion_mnist", data_dir=str(folder), seed=1) for folder in (data_dir, tmp_path)
    )
    assert "tfds" in other.settings
    _assert_same(one, other)


def test_nothing_imports_tfds_that_does_not_read_it():
    program = (
        "import sys; from tff_suite import imports; imports.import_tensorflow(); import tasks; "
        "[tasks.get(name).load_fn() for name in tasks.names()]; "
        "tasks.load('fashion_mnist', use_synthetic_data=True); "
        "sys.exit('tensorflow_datasets' in sys.modules)"
    )
    repo = pathlib.Path(__file__).resolve().parents[3]
    assert subprocess.run([sys.executable, "-c", program], cwd=repo).returncode == 0


def test_cifar100_without_tffs_file_names_what_takes_tfdss_copy(tmp_path, monkeypatch):
    """It does not take it by itself: one command is to give the same clients everywhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TFDS_DATA_DIR", "~/sets")

    def fetch(url, path, advice):
        raise DataError(f"{path} cannot be downloaded (offline); {advice}")

    monkeypatch.setattr(downloads, "fetch", fetch)
    with pytest.raises(DataError, match="offline") as error:
        tasks.load("cifar100_image", seed=0)
    assert "pachinko" not in str(error.value)
    copy = tmp_path / "sets" / "cifar100" / "3.0.2"
    copy.mkdir(parents=True)
    with pytest.raises(DataError, match="offline") as error:
        tasks.load("cifar100_image", seed=0)
    assert f"{copy}, " in str(error.value)
    assert str(error.value).endswith("with --cifar100_image_partition=pachinko")
