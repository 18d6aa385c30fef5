"""Data at an fsspec address, copied once and told from other content."""

import pathlib

import fsspec
import pytest

import tasks
from tasks import fingerprint
from tasks.formats import remote
from tasks.task import DataError

FILES = {"a.txt": b"one", "deep/er/b.bin": b"\0" * 1000, "empty": b""}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def address():
    for name, content in FILES.items():
        fsspec.filesystem("memory").pipe(f"/bucket/set/{name}", content)
    return "memory://bucket/set"


def contents(folder):
    root = pathlib.Path(folder)
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def counted(monkeypatch):
    system, asked = type(fsspec.filesystem("memory")), []
    plain = system.get_file
    monkeypatch.setattr(
        system, "get_file", lambda self, name, *a, **k: asked.append(name) or plain(self, name, *a)
    )
    return asked


def test_a_folder_is_copied_once_until_it_holds_something_else(address, monkeypatch):
    asked = counted(monkeypatch)
    first = remote.folder(address, "--data_dir")
    assert contents(first) == FILES and len(asked) == 3
    assert remote.folder(address, "--data_dir") == first and len(asked) == 3
    fsspec.filesystem("memory").pipe("/bucket/set/a.txt", b"two")
    second = remote.folder(address, "--data_dir")
    assert contents(second) == {**FILES, "a.txt": b"two"}
    # Who still reads the first one is not disturbed.
    assert contents(first) == FILES


def test_a_copy_that_broke_off_leaves_nothing(address, cache, monkeypatch):
    system = type(fsspec.filesystem("memory"))
    plain = system.get_file

    def cut(self, name, target, **more):
        plain(self, name, target)
        if name.endswith("b.bin"):
            with open(target, "r+b") as file:
                file.truncate(10)

    with monkeypatch.context() as patched:
        patched.setattr(system, "get_file", cut)
        with pytest.raises(
            DataError, match=r"deep/er/b.bin came incomplete: 10 of 1,000 bytes"
        ) as error:
            remote.folder(address, "--data_dir")
        assert "\n" not in str(error.value)
    assert not [p for p in cache.rglob("*") if p.is_file() and not p.name.endswith(".lock")]
    assert contents(remote.folder(address, "--data_dir")) == FILES


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("memory://bucket/nothing", "has no file"),
        ("memory://bucket/set/a.txt", "is not a folder"),
        ("nonsense://x/y", "Protocol not known"),
        ("s3://bucket/set", "s3fs"),
    ],
)
def test_what_is_wrong_is_one_line(address, wrong, said):
    with pytest.raises(DataError, match=rf"^--data_dir={wrong} .*{said}") as error:
        remote.folder(wrong, "--data_dir")
    assert "\n" not in str(error.value)


def test_paths_of_this_machine_stay_as_they_are(tmp_path, cache):
    assert remote.folder("data/set", "--data_dir") == "data/set"
    assert remote.folder(f"file://{tmp_path}", "--data_dir") == str(tmp_path)
    assert not cache.exists()


def test_a_task_of_an_address_is_that_of_the_folder(data_dir, monkeypatch):
    """Examples and the digests by which a resumed run knows its data."""
    store = fsspec.filesystem("memory")
    for path in data_dir.glob("fashion_mnist/*"):
        store.pipe(f"/bucket/fashion_mnist/{path.name}", path.read_bytes())
    asked = counted(monkeypatch)
    found, wanted = (
        tasks.load("fashion_mnist", data_dir=folder)
        for folder in ("memory://bucket", str(data_dir))
    )
    assert fingerprint.of_task(found) == fingerprint.of_task(wanted) and asked
