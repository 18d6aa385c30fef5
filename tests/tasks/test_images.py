import io
import lzma
import pickle
import tarfile

import h5py
import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks.task import DataError
from tests.tasks.tffs_files import database, field, varint
from tff_suite.hparams import HparamError

# Small models, since only data are looked at.
_SMALL = {"model": "mlp", "num_clients": 4}


def _pixels(n, seed):
    return np.random.default_rng(seed).integers(0, 256, (n, 32, 32, 3), np.uint8)


def _labels(n, num_classes):
    return np.arange(n) % num_classes


def _planar(images):
    """All red pixels of an image, then all green, then all blue, as the authors have them."""
    return np.stack([images[..., c].reshape(len(images), -1) for c in range(3)], 1).reshape(
        len(images), 3072
    )


def _cifar10_batches():
    """Five training batches of 12 and a test batch of 8, as (name, images, labels)."""
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for seed, name in enumerate(names):
        n = 8 if name == "test_batch" else 12
        yield name, _pixels(n, seed), _labels(n, 10)


def _cifar100_parts():
    """As (name, images, fine labels, coarse labels); five fine labels to a coarse one."""
    for seed, (name, n) in enumerate((("train", 200), ("test", 100))):
        fine = _labels(n, 100)
        yield name, _pixels(n, seed + 10), fine, fine % 20


def _files(kind, form):
    """Returns the authors' files as bytes, by name."""
    files = {}
    if kind == "cifar10":
        for name, images, labels in _cifar10_batches():
            if form == "python":
                batch = {
                    b"batch_label": b"a batch",
                    b"labels": labels.tolist(),
                    b"data": _planar(images),
                    b"filenames": [b"x.png"] * len(labels),
                }
                files[name] = pickle.dumps(batch, protocol=2)
            else:
                records = np.column_stack([labels.astype(np.uint8), _planar(images)])
                files[name + ".bin"] = records.tobytes()
        files["batches.meta" if form == "python" else "readme.html"] = b"other"
    else:
        for name, images, fine, coarse in _cifar100_parts():
            if form == "python":
                batch = {
                    b"fine_labels": fine.tolist(),
                    b"coarse_labels": coarse.tolist(),
                    b"data": _planar(images),
                }
                files[name] = pickle.dumps(batch, protocol=2)
            else:
                records = np.column_stack([coarse, fine, _planar(images)]).astype(np.uint8)
                files[name + ".bin"] = records.tobytes()
    return files


_FOLDERS = {
    ("cifar10", "python"): "cifar-10-batches-py",
    ("cifar10", "binary"): "cifar-10-batches-bin",
    ("cifar100", "python"): "cifar-100-python",
    ("cifar100", "binary"): "cifar-100-binary",
}
_ARCHIVES = {
    ("cifar10", "python"): "cifar-10-python.tar.gz",
    ("cifar10", "binary"): "cifar-10-binary.tar.gz",
    ("cifar100", "python"): "cifar-100-python.tar.gz",
    ("cifar100", "binary"): "cifar-100-binary.tar.gz",
}


def _write_folder(path, kind, form):
    folder = path / _FOLDERS[kind, form]
    folder.mkdir(parents=True)
    for name, data in _files(kind, form).items():
        (folder / name).write_bytes(data)
    return folder


def _write_archive(path, kind, form):
    path.mkdir(parents=True, exist_ok=True)
    archive = path / _ARCHIVES[kind, form]
    with tarfile.open(archive, "w:gz") as tar:
        folder = tarfile.TarInfo(_FOLDERS[kind, form])
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in _files(kind, form).items():
            member = tarfile.TarInfo(f"{folder.name}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return archive


def _expected(kind):
    if kind == "cifar10":
        batches = list(_cifar10_batches())
        train = [np.concatenate([b[i] for b in batches[:5]]) for i in (1, 2)]
        return train, batches[5][1:]
    parts = list(_cifar100_parts())
    return parts[0][1:3], parts[1][1:3]


def _check(kind, task):
    (train_x, train_y), (test_x, test_y) = _expected(kind)
    got = [task.train.examples(k) for k in range(4)]
    x, y = (np.concatenate(arrays) for arrays in zip(*got, strict=True))
    assert x.dtype == np.uint8 and y.dtype == np.int32
    # Clients have every image once, in any order.
    want = sorted(
        (image.tobytes(), int(label)) for image, label in zip(train_x, train_y, strict=True)
    )
    assert sorted((image.tobytes(), int(label)) for image, label in zip(x, y, strict=True)) == want
    np.testing.assert_array_equal(task.central_test.x, test_x)
    np.testing.assert_array_equal(task.central_test.y, test_y)
    assert task.central_test.y.dtype == np.int32


def _load(kind, data_dir, **settings):
    return tasks.load(
        f"{kind}_image", data_dir=str(data_dir), **{**_SMALL, "partition": "iid", **settings}
    )


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
@pytest.mark.parametrize("form", ["python", "binary"])
@pytest.mark.parametrize("place", ["", "own", "the folder itself"])
def test_the_authors_folders(tmp_path, kind, form, place):
    folder = _write_folder(tmp_path / kind if place == "own" else tmp_path, kind, form)
    _check(kind, _load(kind, folder if place == "the folder itself" else tmp_path))


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
@pytest.mark.parametrize("form", ["python", "binary"])
def test_other_numbers_than_published_are_reported(tmp_path, capsys, kind, form):
    folder = _write_folder(tmp_path, kind, form)
    _load(kind, tmp_path)
    train, test = (len(labels) for _, labels in _expected(kind))
    assert capsys.readouterr().err == (
        f"warning: {folder} has {train} training images and {test} test images, the published set "
        "50,000 and 10,000; results on it are not comparable with those on the published set\n"
    )


_LABELS = {
    "list": lambda labels: labels,
    "array": np.array,
    "scalars": lambda labels: [np.int64(label) for label in labels],
}


@pytest.mark.parametrize("labels", _LABELS)
@pytest.mark.parametrize("keys", [bytes, str])
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_batches_that_python_3_pickled_again(tmp_path, protocol, keys, labels):
    """As people do who load a batch with `encoding="bytes"` or `"latin1"` and write it."""
    encoding = {bytes: "bytes", str: "latin1"}[keys]
    for kind in ("cifar10", "cifar100"):
        folder = _write_folder(tmp_path, kind, "python")
        for path in folder.iterdir():
            if "meta" in path.name:
                continue
            batch = pickle.loads(path.read_bytes(), encoding=encoding)
            # What this test wrote has bytes for keys whatever the encoding.
            batch = {
                (k.decode() if keys is str else k): (_LABELS[labels](v) if b"labels" in k else v)
                for k, v in batch.items()
            }
            path.write_bytes(pickle.dumps(batch, protocol=protocol))
        _check(kind, _load(kind, tmp_path))


@pytest.mark.parametrize("protocol", [2, 5])
def test_batches_that_numpy_2_pickled(tmp_path, protocol):
    folder = _write_folder(tmp_path, "cifar10", "python")
    for path in folder.iterdir():
        if "meta" in path.name:
            continue
        batch = pickle.loads(path.read_bytes(), encoding="bytes")
        content = pickle.dumps(batch, protocol=protocol)
        # The longer name as NumPy 2 writes it; in protocol 5 its length stands before it.
        old, new = b"numpy.core.", b"numpy._core."
        if protocol == 5 and old in content:  # NumPy 2 writes the longer name itself.
            at = content.index(old)
            length = content[at - 1]
            content = content[: at - 1] + bytes([length + 1]) + content[at:]
        content = content.replace(old, new)
        if protocol == 5:  # Nor does the frame's length count.
            assert content[2:3] == b"\x95"
            content = content[:2] + content[11:]
        path.write_bytes(content)
    _check("cifar10", _load("cifar10", tmp_path))


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
@pytest.mark.parametrize("form", ["python", "binary"])
def test_the_authors_archives(tmp_path, kind, form):
    _write_archive(tmp_path / kind, kind, form)
    _check(kind, _load(kind, tmp_path))


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
def test_without_a_folder_keras_cache_is_read(tmp_path, monkeypatch, kind):
    folder = _write_folder(tmp_path, kind, "python")
    asked = []

    def get_file(name, origin, untar, file_hash):
        asked.append((name, origin.rsplit("/", 1)[1], untar, len(file_hash)))
        return str(tmp_path / name)

    monkeypatch.setattr(tf.keras.utils, "get_file", get_file)
    _check(kind, tasks.load(f"{kind}_image", partition="iid", **_SMALL))
    assert asked == [(folder.name, _ARCHIVES[kind, "python"], True, 64)]


def test_a_failed_download_is_one_line(monkeypatch):
    def get_file(name, origin, untar, file_hash):
        raise Exception(f"URL fetch failure\non {origin}")

    monkeypatch.setattr(tf.keras.utils, "get_file", get_file)
    with pytest.raises(DataError) as error:
        tasks.load("cifar10_image")
    text = str(error.value)
    assert "\n" not in text and "cifar-10-python.tar.gz" in text and "--data_dir" in text


def _refused(kind, data_dir, *named, **settings):
    with pytest.raises(DataError) as error:
        _load(kind, data_dir, **settings)
    text = str(error.value)
    assert "\n" not in text
    for part in (*named, "--data_dir", "https://"):
        assert part in text, text


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
@pytest.mark.parametrize("form", ["python", "binary"])
@pytest.mark.parametrize("damage", ["cut", "missing", "empty"])
def test_a_damaged_file_is_named(tmp_path, kind, form, damage):
    folder = _write_folder(tmp_path, kind, form)
    path = sorted(p for p in folder.iterdir() if "meta" not in p.name)[0]
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else -100])
    _refused(kind, tmp_path, path.name)


@pytest.mark.parametrize("form", ["python", "binary"])
def test_a_damaged_archive_is_named(tmp_path, form):
    archive = _write_archive(tmp_path, "cifar10", form)
    whole = archive.read_bytes()
    for data in (whole[: len(whole) // 2], whole[:-3000], b"", b"nothing of the kind" * 99):
        archive.write_bytes(data)
        _refused("cifar10", tmp_path, archive.name)
    with tarfile.open(archive, "w:gz"):
        pass
    _refused("cifar10", tmp_path, archive.name, "data_batch_1")


def test_nothing_there_is_said(tmp_path):
    _refused("cifar10", tmp_path, "cifar-10-python.tar.gz", "missing")
    _refused("cifar100", tmp_path, "cifar-100-python.tar.gz", "missing")


def test_a_pickle_cannot_run_code(tmp_path):
    folder = _write_folder(tmp_path, "cifar10", "python")
    ran = tmp_path / "ran"
    # os.system by its name, as a hostile file would have it.
    code = f"cposix\nsystem\n(S'touch {ran}'\ntR.".encode()
    (folder / "data_batch_3").write_bytes(code)
    _refused("cifar10", tmp_path, "data_batch_3", "posix.system")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({b"labels": [0] * 11 + [10]}, "labels from 0 to 10"),
        ({b"labels": [0] * 11}, "11 labels for 12 images"),
        ({b"data": np.zeros((12, 3072), np.float32)}, "float32"),
        ({b"data": np.zeros((12, 3071), np.uint8)}, "3071"),
        (None, "labels"),
    ],
)
def test_a_batch_that_is_not_cifars_is_refused(tmp_path, change, named):
    folder = _write_folder(tmp_path, "cifar10", "python")
    path = folder / "data_batch_2"
    batch = pickle.loads(path.read_bytes(), encoding="bytes")
    batch = {b"data": batch[b"data"]} if change is None else {**batch, **change}
    path.write_bytes(pickle.dumps(batch, protocol=2))
    _refused("cifar10", tmp_path, "data_batch_2", named)


def test_batches_of_unequal_size_are_refused(tmp_path):
    folder = _write_folder(tmp_path, "cifar10", "binary")
    path = folder / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-3073])
    _refused("cifar10", tmp_path, "[11, 12]")


# TFF's federated CIFAR-100, in both of its forms.

_IDS = {"train": ["0", "10", "2"], "test": ["0", "1"]}


def _tffs_client(part, i):
    n = 3 + i
    seed = 100 * (part == "test") + i
    return _pixels(n, seed), (np.arange(n) * 7 + i) % 100


def _integers(values):
    return field(3, field(1, b"".join(varint(int(v)) for v in values)))


def _example(image, label):
    """Returns the bytes of a tf.train.Example, written out by hand from its definition."""
    features = {b"coarse_label": [3], b"image": image.reshape(-1), b"label": [label]}
    entries = [field(1, k) + field(2, _integers(v)) for k, v in sorted(features.items())]
    return field(1, b"".join(field(1, entry) for entry in entries))


def _write_sqlite(path, make=_example):
    connection = database(path)
    for part, ids in _IDS.items():
        for i, client_id in enumerate(ids):
            images, labels = _tffs_client(part, i)
            for image, label in zip(images, labels, strict=True):
                row = (part, client_id, make(image, label))
                connection.execute("INSERT INTO examples VALUES (?, ?, ?)", row)
            row = (client_id, part, len(labels))
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", row)
    connection.commit()
    connection.close()


def _write_h5(folder):
    folder.mkdir(exist_ok=True)
    for part, ids in _IDS.items():
        with h5py.File(folder / f"fed_cifar100_{part}.h5", "w") as file:
            for i, client_id in enumerate(ids):
                images, labels = _tffs_client(part, i)
                group = file.create_group(f"examples/{client_id}")
                group["image"] = images
                group["label"] = labels.astype(np.int64)
                group["coarse_label"] = np.full(len(labels), 3, np.int64)


def _check_tffs(task):
    assert task.settings["partition"] == "tff" and task.settings["num_clients"] is None
    assert list(task.train.client_ids) == sorted(_IDS["train"])
    assert list(task.test.client_ids) == ["test0", "test1"]
    for part, data in (("train", task.train), ("test", task.test)):
        for k, client_id in enumerate(sorted(_IDS[part])):
            images, labels = _tffs_client(part, _IDS[part].index(client_id))
            x, y = data.examples(k)
            np.testing.assert_array_equal(x, images)
            np.testing.assert_array_equal(y, labels)
            assert x.dtype == np.uint8 and y.dtype == np.int32 and data.sizes[k] == len(y)
    every = np.concatenate([_tffs_client("test", i)[1] for i in range(2)])
    np.testing.assert_array_equal(task.central_test.y, every)
    assert task.central_test.x.shape == (7, 32, 32, 3)


@pytest.mark.parametrize("partition", ["auto", "tff"])
@pytest.mark.parametrize("packed", [False, True])
def test_tffs_database(tmp_path, partition, packed):
    path = tmp_path / "cifar100.sqlite"
    _write_sqlite(path)
    if packed:
        (tmp_path / "cifar100.sqlite.lzma").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
    _check_tffs(tasks.load("cifar100_image", data_dir=str(tmp_path), partition=partition))


@pytest.mark.parametrize("packed", [False, True])
def test_tffs_older_files(tmp_path, packed):
    _write_h5(tmp_path / "cifar100")
    if packed:
        with tarfile.open(tmp_path / "fed_cifar100.tar.bz2", "w:bz2") as tar:
            for path in sorted((tmp_path / "cifar100").iterdir()):
                tar.add(path, path.name)
                path.unlink()
    _check_tffs(tasks.load("cifar100_image", data_dir=str(tmp_path)))


def test_without_a_folder_tffs_cache_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".tff").mkdir()
    _write_sqlite(tmp_path / ".tff" / "cifar100.sqlite")
    _check_tffs(tasks.load("cifar100_image"))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda image, label: b"no proto", "32x32"),
        (lambda image, label: _example(image[:8], label), "32x32"),
        (lambda image, label: _example(image, 100), "labels"),
        (lambda image, label: _example(image.astype(int) + 9, label), "pixels"),
    ],
)
def test_what_is_not_tffs_is_refused(tmp_path, make, named):
    _write_sqlite(tmp_path / "cifar100.sqlite", make)
    with pytest.raises(DataError, match=named) as error:
        tasks.load("cifar100_image", data_dir=str(tmp_path))
    assert "cifar100.sqlite" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["cut", "missing", "text", "none"])
def test_a_damaged_older_file_is_named(tmp_path, damage):
    _write_h5(tmp_path)
    path = tmp_path / "fed_cifar100_test.h5"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:9000])
    elif damage == "missing":
        path.unlink()
    elif damage == "text":
        path.write_bytes(b"text" * 999)
    else:
        with h5py.File(path, "w") as file:
            file.create_group("examples")
    _refused("cifar100", tmp_path, path.name, partition="tff", num_clients=None)


def test_partition_tff_needs_tffs_file(tmp_path):
    _write_folder(tmp_path, "cifar100", "python")
    _refused("cifar100", tmp_path, "cifar100.sqlite", partition="tff", num_clients=None)


# How the images are assigned.


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"partition": "multinomial"}, [15] * 4),
        ({"partition": "shards", "shards_per_client": 3}, [15] * 4),
        ({"partition": "classes", "classes_per_client": 5}, None),
        ({"partition": "dirichlet", "alpha": 100.0}, None),
        ({"partition": "multinomial", "size_sigma": 1.0}, None),
    ],
)
def test_every_partition_deals_every_image(tmp_path, settings, sizes):
    _write_folder(tmp_path, "cifar10", "binary")
    task = _load("cifar10", tmp_path, **settings)
    _check("cifar10", task)
    if sizes:
        assert list(task.train.sizes) == sizes
    else:
        assert len(set(task.train.sizes)) > 1


def test_pachinko_follows_coarse_labels(tmp_path):
    _write_folder(tmp_path, "cifar100", "binary")
    task = _load("cifar100", tmp_path, partition="auto", alpha=0.01, num_clients=10)
    assert task.settings["partition"] == "pachinko" and list(task.train.sizes) == [20] * 10
    # Coarse label c has fine labels c, c + 20, ...: with alpha = 0.01 a client has one or two.
    y = task.train.examples(0).y
    assert len(set(y % 20)) <= 4 and len(set(y)) > len(set(y % 20))


def test_clients_tests(tmp_path):
    _write_folder(tmp_path, "cifar100", "binary")
    assert _load("cifar100", tmp_path).test is None
    split = _load("cifar100", tmp_path, client_tests="split", test_fraction=0.25)
    assert list(split.test.sizes) == [13] * 4 and list(split.train.sizes) == [37] * 4
    official = _load("cifar100", tmp_path, client_tests="official", partition="shards")
    assert official.test.sizes.sum() == 100 and official.train.sizes.sum() == 200
    for k in range(4):
        train, test = official.train.examples(k).y, official.test.examples(k).y
        assert set(test) <= set(train)
    assert len(official.central_test.y) == 100
    assert official.test.client_ids is official.train.client_ids


def test_validation_images_belong_to_nobody(tmp_path):
    _write_folder(tmp_path, "cifar10", "binary")
    task = _load("cifar10", tmp_path, num_validation=20)
    assert task.train.sizes.sum() == 40 and len(task.central_test.y) == 8
    validated = _load("cifar10", tmp_path, num_validation=20, central_test="validation")
    own = {image.tobytes() for k in range(4) for image in validated.train.examples(k).x}
    held = {image.tobytes() for image in validated.central_test.x}
    assert len(own) == 40 and len(held) == 20 and not own & held


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        ("cifar10", {"partition": "iid", "alpha": 0.1}, "alpha"),
        ("cifar10", {"partition": "dirichlet", "size_sigma": 1.0}, "size_sigma"),
        ("cifar10", {"min_share": 0.1}, "min_share"),
        ("cifar10", {"shards_per_client": 2}, "shards_per_client"),
        ("cifar10", {"classes_per_client": 2}, "classes_per_client"),
        ("cifar10", {"test_fraction": 0.2}, "test_fraction"),
        ("cifar10", {"central_test": "validation"}, "num_validation"),
        ("cifar10", {"model": "mlp", "groups": 2}, "groups"),
        ("cifar10", {"groups": 3}, "groups=3"),
        ("cifar10", {"model": "vgg11", "strides": "tff"}, "strides"),
        ("cifar10", {"crop": 33}, "crop=33"),
        ("cifar10", {"model": "vgg11", "crop": 24}, "crop"),
        ("cifar10", {"partition": "pachinko"}, "partition"),
        ("cifar10", {"num_clients": 10_001}, "num_clients=10001"),
        ("cifar100", {"partition": "iid", "beta": 1.0}, "beta"),
        ("cifar100", {"partition": "tff", "num_clients": 5}, "num_clients"),
        ("cifar100", {"partition": "tff", "client_tests": "split"}, "client_tests"),
        ("cifar100", {"partition": "tff"}, "partition=tff"),
    ],
)
def test_settings_out_of_place_are_refused(kind, settings, named, monkeypatch):
    if "num_clients=" in named:  # As many images as there are clients are made otherwise.
        monkeypatch.setattr("tasks.images.synthetic", lambda *_: _no_images())
    with pytest.raises(HparamError, match=named) as error:
        tasks.load(f"{kind}_image", use_synthetic_data=True, **settings)
    assert "\n" not in str(error.value)


def _no_images():
    from tasks.formats.cifar import Images

    part = Images(_pixels(10, 0), _labels(10, 10).astype(np.int32))
    return part, part


@pytest.mark.quick_cases("[!r]*")
@pytest.mark.parametrize(
    ("model", "num_parameters"),
    [
        ("resnet18", 11_181_642),
        ("vgg11", 9_225_610),
        ("vgg11_dense", 9_750_922),
        ("three_convolutions", 2_473_610),
        ("simple_cnn", 122_570),
        ("mlp", 656_810),
    ],
)
def test_models_are_the_papers(model, num_parameters):
    task = tasks.load("cifar10_image", use_synthetic_data=True, model=model, num_clients=4)
    assert task.keras_model_fn(0).count_params() == num_parameters
    assert task.settings["crop"] == (24 if model == "resnet18" else 32)
    assert task.settings["distort"] == (model == "resnet18")


@pytest.mark.slow
def test_cifar100s_resnet_is_the_papers():
    task = tasks.load("cifar100_image", use_synthetic_data=True)
    assert task.keras_model_fn(0).count_params() == 11_227_812


# The official CIFAR-10, and the subset of CIFAR-100 that `unpack.py` writes.
@pytest.mark.quick_cases("cifar10-*")
@pytest.mark.parametrize(
    ("kind", "num_train", "num_test", "classes"),
    [("cifar10", 50_000, 10_000, 10), ("cifar100", 10_000, 2000, 100)],
)
def test_real_data(unpacked_dir, capsys, kind, num_train, num_test, classes):
    task = tasks.load(f"{kind}_image", data_dir=str(unpacked_dir), model="mlp", num_clients=100)
    assert task.train.sizes.sum() == num_train and set(task.train.sizes) == {num_train // 100}
    # Of CIFAR-100 only a part is there.
    assert ("the published set" in capsys.readouterr().err) == (num_train != 50_000)
    labels = np.concatenate([task.train.examples(k).y for k in range(100)])
    np.testing.assert_array_equal(np.bincount(labels), [num_train // classes] * classes)
    np.testing.assert_array_equal(np.bincount(task.central_test.y), [num_test // classes] * classes)
    if kind == "cifar10":  # The first test labels, as many programs print them.
        assert task.central_test.y[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    pixels = np.concatenate([task.train.examples(k).x for k in range(100)]).reshape(-1, 3)
    # The means of the whole sets that are commonly used to normalise them.
    published = {"cifar10": [0.4914, 0.4822, 0.4465], "cifar100": [0.5071, 0.4865, 0.4409]}
    tolerance = {"cifar10": 1e-4, "cifar100": 0.01}
    np.testing.assert_allclose(pixels.mean(0) / 255, published[kind], atol=tolerance[kind])
