import io
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import tasks
from tasks.task import DataError
from tff_suite.hparams import HparamError

_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
_WNIDS = ["n02", "n01", "n10"]  # As in wnids.txt, in no order.
_SMALL = {"model": "mlp", "num_clients": 2, "partition": "iid"}


def _pixels(size, *key):
    """A smooth image, so that JPEG keeps it nearly as it is."""
    rng = np.random.default_rng([size, *key])
    x, y = np.meshgrid(np.linspace(0, 1, size), np.linspace(0, 1, size))
    planes = [rng.uniform(0, 250) * (x if c % 2 else y) + rng.uniform(0, 5) for c in range(3)]
    return np.stack(planes, axis=-1).astype(np.uint8)


def _encoded(pixels, kind):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"quality": 100} if kind == "JPEG" else {}))
    return buffer.getvalue()


def _cinic10():
    """CINIC-10 with two images of each class and part, by path."""
    files = {}
    for p, part in enumerate(("train", "valid", "test")):
        for c, name in enumerate(_CLASSES):
            for i in range(2):
                path = f"{part}/{name}/{['n123', 'cifar10'][i]}-{c}.png"
                files[path] = _encoded(_pixels(32, p, c, i), "PNG")
    files["synsets-to-cifar-10-classes.txt"] = b"n02690373 airplane\n"
    files["imagenet-contributors.csv"] = b"one,two\n"
    return files


def _tiny_imagenet():
    """Tiny ImageNet with three classes of two training and one validation image each."""
    files = {"wnids.txt": "\n".join(_WNIDS).encode() + b"\n", "words.txt": b"n01\ta fish\n"}
    lines = []
    for c, wnid in enumerate(_WNIDS):
        for i in range(2):
            pixels = _pixels(64, 0, c, i)
            if (c, i) == (2, 1):
                pixels = pixels[..., 0]  # A few are grey.
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = _encoded(pixels, "JPEG")
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"x\t0\t0\t62\t62\n"
        name = f"val_{2 - c}.JPEG"
        files[f"val/images/{name}"] = _encoded(_pixels(64, 1, c), "JPEG")
        lines.append(f"{name}\t{wnid}\t0\t0\t62\t62\n")
    files["val/val_annotations.txt"] = "".join(lines).encode()
    files["test/images/test_0.JPEG"] = _encoded(_pixels(64, 2), "JPEG")
    return files


def _write(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def _write_tar(path, files, top=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(top + name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def _write_zip(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir("tiny-imagenet-200")
        for name, data in files.items():
            archive.writestr(f"tiny-imagenet-200/{name}", data)


def _of_all(data):
    parts = [data.examples(k) for k in range(len(data.client_ids))]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    assert x.dtype == np.uint8 and y.dtype == np.int32
    return x, y


def _check_cinic10(task, with_valid=False):
    x, y = _of_all(task.train)
    want = {
        _pixels(32, p, c, i).tobytes(): c
        for p in range(1 + with_valid)
        for c in range(10)
        for i in range(2)
    }
    assert {image.tobytes(): label for image, label in zip(x, y, strict=True)} == want
    test_x, test_y = task.central_test
    assert list(test_y) == [c for c in range(10) for _ in range(2)]
    # The names of cifar10's files come before ImageNet's.
    expected = [_pixels(32, 2, c, i) for c in range(10) for i in (1, 0)]
    np.testing.assert_array_equal(test_x, expected)


def _check_tiny_imagenet(task):
    x, y = _of_all(task.train)
    assert sorted(y) == [0, 0, 1, 1, 2, 2]
    for c in range(3):
        own = x[y == c]
        wanted = [_pixels(64, 0, c, i) for i in range(2)]
        if c == 2:
            wanted[1] = np.repeat(wanted[1][..., :1], 3, axis=-1)
        for pixels in wanted:
            assert min(np.abs(image.astype(int) - pixels).max() for image in own) <= 6
    assert list(task.central_test.y) == [0, 1, 2]
    for c in range(3):
        image = task.central_test.x[c].astype(int)
        assert np.abs(image - _pixels(64, 1, c)).max() <= 6


@pytest.mark.parametrize("place", ["", "CINIC-10", "cinic10", "cinic10/CINIC-10"])
def test_cinic10s_folders(tmp_path, place):
    _write(tmp_path / place, _cinic10())
    _check_cinic10(tasks.load("cinic10", data_dir=str(tmp_path), **_SMALL))


@pytest.mark.parametrize("top", ["", "./", "CINIC-10/"])
def test_cinic10s_archive(tmp_path, top):
    _write_tar(tmp_path / "CINIC-10.tar.gz", _cinic10(), top)
    task = tasks.load("cinic10", data_dir=str(tmp_path), with_valid=True, **_SMALL)
    _check_cinic10(task, with_valid=True)


def test_hidden_folders_are_not_of_the_set_and_a_part_is_reported(tmp_path, capsys):
    files = _cinic10()
    name, content = next((n, c) for n, c in files.items() if n.startswith("train/"))
    hidden = name.replace("train/", "train/.copies/"), name.replace("/", "/.copies/", 2)
    _write(tmp_path, {**files, **dict.fromkeys(hidden, content)})
    _check_cinic10(tasks.load("cinic10", data_dir=str(tmp_path), **_SMALL))
    err = capsys.readouterr().err
    assert err.startswith(f"warning: {tmp_path} has ") and "the published set 90,000" in err


def test_tiny_imagenets_folders(tmp_path):
    _write(tmp_path / "tiny-imagenet-200", _tiny_imagenet())
    _check_tiny_imagenet(tasks.load("tiny_imagenet", data_dir=str(tmp_path), **_SMALL))


def test_tiny_imagenets_archive(tmp_path):
    _write_zip(tmp_path / "tiny-imagenet-200.zip", _tiny_imagenet())
    _check_tiny_imagenet(tasks.load("tiny_imagenet", data_dir=str(tmp_path), **_SMALL))


def test_jpegs_are_decoded_as_elsewhere(tmp_path):
    noisy = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    files = _tiny_imagenet()
    files["val/images/val_0.JPEG"] = _encoded(noisy, "JPEG")
    _write(tmp_path, files)
    task = tasks.load("tiny_imagenet", data_dir=str(tmp_path), **_SMALL)
    expected = np.asarray(Image.open(io.BytesIO(files["val/images/val_0.JPEG"])), int)
    assert np.abs(task.central_test.x[2] - expected).max() <= 2


@pytest.mark.parametrize("name", ["cinic10", "tiny_imagenet"])
def test_prepared_sets_are_the_same(tmp_path, name):
    raw, made = tmp_path / "raw", tmp_path / "made"
    _write(raw, _cinic10() if name == "cinic10" else _tiny_imagenet())
    outcome = tasks.get(name).prepare_fn()(str(raw), str(made))
    assert outcome.new and outcome.counts["train"][0] == (20 if name == "cinic10" else 6)
    task = tasks.load(name, data_dir=str(made), **_SMALL)
    (_check_cinic10 if name == "cinic10" else _check_tiny_imagenet)(task)
    plain = tasks.load(name, data_dir=str(raw), **_SMALL)
    for a, b in zip(_of_all(plain.train), _of_all(task.train), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not tasks.get(name).prepare_fn()(str(raw), str(made)).new


@pytest.mark.slow
def test_the_command_prepares(tmp_path):
    _write(tmp_path, _cinic10())
    command = [sys.executable, "-m", "tasks.prepare", "--task=cinic10", f"--source={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "train: 20 (published: 90,000)" in done.stdout


@pytest.mark.parametrize(
    ("name", "archive"),
    [("cinic10", "CINIC-10.tar.gz"), ("tiny_imagenet", "tiny-imagenet-200.zip")],
)
def test_without_a_folder_kerass_cache_is_read(tmp_path, monkeypatch, name, archive):
    asked = []

    def get_file(file, origin, file_hash):
        asked.append((file, origin.rsplit("/", 1)[1], len(file_hash)))
        return str(tmp_path / file)

    monkeypatch.setattr(tf.keras.utils, "get_file", get_file)
    if name == "cinic10":
        _write_tar(tmp_path / archive, _cinic10())
        _check_cinic10(tasks.load(name, **_SMALL))
    else:
        _write_zip(tmp_path / archive, _tiny_imagenet())
        _check_tiny_imagenet(tasks.load(name, **_SMALL))
    assert asked == [(archive, archive, 32)]


def test_a_failed_download_is_one_line(monkeypatch):
    def get_file(file, origin, file_hash):
        raise Exception(f"URL fetch failure\non {origin}")

    monkeypatch.setattr(tf.keras.utils, "get_file", get_file)
    with pytest.raises(DataError) as error:
        tasks.load("tiny_imagenet")
    text = str(error.value)
    assert "\n" not in text and "tiny-imagenet-200.zip" in text and "--data_dir" in text


def _refused(name, data_dir, *named):
    with pytest.raises(DataError) as error:
        tasks.load(name, data_dir=str(data_dir), **_SMALL)
    text = str(error.value)
    assert "\n" not in text
    for part in (*named, "--data_dir", "http"):
        assert part in text, text


@pytest.mark.parametrize("name", ["cinic10", "tiny_imagenet"])
def test_nothing_there_is_said(tmp_path, name):
    _refused(name, tmp_path, "missing")
    (tmp_path / name).write_text("no folder")
    _refused(name, tmp_path, "missing")


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "size"])
def test_a_damaged_image_is_named(tmp_path, damage):
    for name, files, path in (
        ("cinic10", _cinic10(), "valid/dog/n123-5.png"),
        ("tiny_imagenet", _tiny_imagenet(), "train/n10/images/n10_0.JPEG"),
    ):
        whole = files[path]
        files[path] = {
            "cut": whole[: len(whole) // 2],
            "text": b"a picture",
            "empty": b"",
            "size": _encoded(_pixels(48), path.rsplit(".", 1)[1].upper()),
        }[damage]
        _write(tmp_path / name, files)
        _refused(name, tmp_path, path, "48, 48" if damage == "size" else "image")


@pytest.mark.parametrize(
    ("name", "path", "named"),
    [
        ("cinic10", "test/cat/n123-3.png", "1 images of class 3 in test/cat and 2"),
        ("cinic10", "train/ship/", "no images in train/ship"),
        ("tiny_imagenet", "train/n01/images/n01_1.JPEG", "1 images of class 1"),
        ("tiny_imagenet", "train/n01/", "no images in train/n01/images"),
        ("tiny_imagenet", "wnids.txt", "wnids.txt"),
        ("tiny_imagenet", "val/val_annotations.txt", "val_annotations.txt"),
        ("tiny_imagenet", "val/images/val_1.JPEG", "val_1.JPEG"),
    ],
)
def test_a_missing_file_is_said(tmp_path, name, path, named):
    files = _cinic10() if name == "cinic10" else _tiny_imagenet()
    _write(tmp_path, {n: data for n, data in files.items() if not n.startswith(path)})
    _refused(name, tmp_path, named)


@pytest.mark.parametrize("kept", [0.5, 0.95, 0])
def test_a_damaged_archive_is_named(tmp_path, kept):
    for name, archive, write, files in (
        ("cinic10", "CINIC-10.tar.gz", _write_tar, _cinic10()),
        ("tiny_imagenet", "tiny-imagenet-200.zip", _write_zip, _tiny_imagenet()),
    ):
        path = tmp_path / archive
        write(path, files)
        path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
        _refused(name, tmp_path, archive)


def test_an_archive_of_something_else_is_named(tmp_path):
    _write_tar(tmp_path / "CINIC-10.tar.gz", {"readme.txt": b"hello"})
    _refused("cinic10", tmp_path, "CINIC-10.tar.gz", "train")


@pytest.mark.quick_cases("cinic10-*")
@pytest.mark.parametrize(
    ("name", "num_parameters"), [("cinic10", 11_181_642), ("tiny_imagenet", 11_279_112)]
)
def test_models_are_adafeds(name, num_parameters):
    task = tasks.load(name, use_synthetic_data=True)
    assert task.keras_model_fn(0).count_params() == num_parameters
    size = 32 if name == "cinic10" else 64
    assert task.train.examples(0).x.shape[1:] == (size, size, 3)
    settings = task.settings
    assert settings["crop"] == size and not settings["distort"] and settings["init"] == "torch"
    assert settings["partition"] == "dirichlet"
    assert settings["alpha"] == {"cinic10": 0.5, "tiny_imagenet": 0.05}[name]
    assert len(task.train.client_ids) == {"cinic10": 50, "tiny_imagenet": 20}[name]


def test_an_image_smaller_than_the_crop_is_refused():
    with pytest.raises(HparamError, match="crop=65"):
        tasks.load("tiny_imagenet", use_synthetic_data=True, crop=65)
