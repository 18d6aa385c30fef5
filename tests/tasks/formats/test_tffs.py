"""TFF's sets are the same whichever form they are read from."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys

import h5py
import numpy as np
import pytest

import tasks
from tasks import fingerprint, prepare
from tasks.task import DataError
from tests.tasks import published_forms, test_images, tffs_files
from tests.tasks.datasets import test_stackoverflow

_REPO = pathlib.Path(__file__).resolve().parents[3]
_ALL = ("all_train", "all_test")


def _cifar100(folder):
    test_images._write_sqlite(folder / "cifar100.sqlite")


def _stackoverflow(folder):
    test_stackoverflow._write(folder, packed=False)


# Task, settings, writer of the database, its name, stem of the HDF5 files, names of the splits.
_SETS = {
    "emnist": ("emnist_character", {}, published_forms._emnist, "emnist_all", "fed_emnist", _ALL),
    "autoencoder": (
        "emnist_autoencoder",
        {},
        published_forms._emnist,
        "emnist_all",
        "fed_emnist",
        _ALL,
    ),
    "femnist": (
        "femnist",
        {"source": "tff", "split": "source"},
        published_forms._emnist,
        "emnist_all",
        "fed_emnist",
        _ALL,
    ),
    "cifar100": (
        "cifar100_image",
        {"model": "mlp"},
        _cifar100,
        "cifar100",
        "fed_cifar100",
        ("train", "test"),
    ),
    "shakespeare": (
        "shakespeare_character",
        {},
        published_forms._shakespeare,
        "shakespeare",
        "shakespeare",
        ("train", "test"),
    ),
    "word": (
        "stackoverflow_word",
        {"vocab_size": 10, "max_examples": 2},
        _stackoverflow,
        "stackoverflow",
        "stackoverflow",
        ("train", "test"),
    ),
    "tag": (
        "stackoverflow_tag",
        {"vocab_size": 10, "num_tags": 5},
        _stackoverflow,
        "stackoverflow",
        "stackoverflow",
        ("train", "test"),
    ),
}


def _numbers(task):
    """Returns all that a run takes from a task."""
    numbers = []
    for data in (task.train, task.test):
        if data is not None:
            numbers += [list(data.client_ids), data.sizes.tolist()]
            numbers += [data.examples(k) for k in range(len(data.client_ids))]
    return [*numbers, task.central_test]


def _assert_equal(found, expected):
    for a, b in zip(found, expected, strict=True):
        if a is None or isinstance(a, list):
            assert a == b
            continue
        for mine, theirs in zip(a, b, strict=True):
            mine, theirs = np.asarray(mine[:]), np.asarray(theirs[:])
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("form", ["files", "archive", "strings of any length"])
@pytest.mark.parametrize("name", _SETS)
def test_hdf5_gives_what_the_database_gives(tmp_path, name, form):
    task, settings, write, database, stem, splits = _SETS[name]
    write(tmp_path)
    expected = _numbers(tasks.load(task, data_dir=str(tmp_path), **settings))
    dtype = h5py.string_dtype() if form.startswith("strings") else None
    path = tmp_path / f"{database}.sqlite"
    tffs_files.to_h5(path, stem, splits, dtype, archive=form == "archive")
    loaded = tasks.load(task, data_dir=str(tmp_path), **settings)
    _assert_equal(_numbers(loaded), expected)
    left = {path.name for path in tmp_path.glob(f"{stem}_*")}
    assert left == {f"{stem}_train.h5", f"{stem}_test.h5"} and not list(tmp_path.glob("*.part"))


def test_the_database_comes_first(tmp_path):
    for folder in ("shakespeare", "other"):
        (tmp_path / folder).mkdir()
        published_forms._shakespeare(tmp_path / folder)
    tffs_files.to_h5(tmp_path / "shakespeare" / "shakespeare.sqlite", "shakespeare")
    (tmp_path / "other" / "shakespeare.sqlite").rename(tmp_path / "shakespeare.sqlite")
    (tmp_path / "shakespeare" / "shakespeare_test.h5").write_bytes(b"damaged")
    assert len(tasks.load("shakespeare_character", data_dir=str(tmp_path)).train.client_ids) == 2


@pytest.mark.parametrize("form", ["sqlite", "h5"])
def test_other_numbers_of_clients_than_published_are_reported(tmp_path, capsys, form):
    published_forms._shakespeare(tmp_path)
    path = tmp_path / "shakespeare.sqlite"
    if form == "h5":
        tffs_files.to_h5(path, "shakespeare")
        path = tmp_path / "shakespeare_train.h5"
    tasks.load("shakespeare_character", data_dir=str(tmp_path))
    assert f"warning: {path} has 2 training clients and 2 test clients, the published set 715" in (
        capsys.readouterr().err
    )


def _open_emnist(tmp_path):
    published_forms.FORMS["emnist_h5"].write(tmp_path)
    return tasks.load("emnist_character", data_dir=str(tmp_path)).train


def test_clients_are_read_when_they_are_needed_by_any_thread(tmp_path):
    data = _open_emnist(tmp_path)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        read = list(pool.map(data.examples, [0, 1] * 20))
    for k, (x, y) in enumerate(read):
        np.testing.assert_array_equal(x, read[k % 2].x)
        np.testing.assert_array_equal(y, read[k % 2].y)
    # A file that is gone is noticed only now, and named: nothing is kept in memory.
    os.remove(tmp_path / "fed_emnist_train.h5")
    with pytest.raises(DataError, match=r"fed_emnist_train.h5 is missing"):
        data.examples(0)


def test_a_forked_process_reads(tmp_path):
    """Forked in a process of its own: where gRPC's threads are, as here, a child may crash."""
    expected = _open_emnist(tmp_path).examples(0).y.tolist()
    script = """
import os
import sys

import tasks

data = tasks.load("emnist_character", data_dir=sys.argv[1]).train
data.examples(0)
child = os.fork()
if not child:
    print(data.examples(0).y.tolist(), flush=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], cwd=_REPO, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{expected}\n"), done.stderr


def test_the_files_are_the_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    published_forms.FORMS["emnist_h5"].write(tmp_path)
    digests = fingerprint.of_task(tasks.load("emnist_character", data_dir=str(tmp_path)))
    assert {"file fed_emnist_train.h5", "file fed_emnist_test.h5"} <= set(digests)


@pytest.mark.parametrize("missing", ["train", "test"])
def test_one_file_without_the_other_is_said(tmp_path, missing):
    published_forms.FORMS["shakespeare_h5"].write(tmp_path)
    (tmp_path / f"shakespeare_{missing}.h5").unlink()
    with pytest.raises(DataError, match=f"shakespeare_{missing}.h5 is missing") as error:
        tasks.load("shakespeare_character", data_dir=str(tmp_path))
    assert "\n" not in str(error.value)


def test_an_archive_in_a_folder_that_refuses_says_what_to_do(tmp_path):
    published_forms.FORMS["emnist_h5_packed"].write(tmp_path)
    # A folder in the place of the file to write: refused whoever runs the test.
    (tmp_path / "fed_emnist_train.h5.part").mkdir()
    with pytest.raises(DataError, match=r"cannot be unpacked.*tar xjf") as error:
        tasks.load("emnist_character", data_dir=str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("archive", [False, True])
def test_stack_overflows_files_are_prepared(tmp_path, capsys, archive):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    _stackoverflow(source)
    tffs_files.to_h5(source / "stackoverflow.sqlite", "stackoverflow", archive=archive)
    command = ["--task=stackoverflow_word", f"--source={source}", f"--data_dir={target}"]
    folder = target if archive else source
    for _ in range(2):
        assert prepare.main(command) == 0
        said = capsys.readouterr()
        assert str(folder / "stackoverflow_train.h5") in said.out
        assert "train clients: 2 (published: 342,477)" in said.out
    task = tasks.load("stackoverflow_word", data_dir=str(folder), vocab_size=10)
    assert task.train.sizes.tolist() == [3, 5]


def _shakespeare_database(folder, path):
    """Writes the examples of two HDF5 files as TFF's database has them."""
    from tests.tasks.datasets import test_shakespeare_character as writer

    connection = tffs_files.database(path)
    for split in ("train", "test"):
        with h5py.File(folder / f"shakespeare_{split}.h5") as file:
            # In another order of clients, as TFF's has.
            for client in reversed(list(file["examples"])):
                snippets = [bytes(s) for s in file["examples"][client]["snippets"][()]]
                rows = [(split, client, writer._example(snippet)) for snippet in snippets]
                connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
                row = (client, split, len(rows))
                connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", row)
    connection.commit()
    connection.close()


def test_tffs_own_shakespeare(data_dir, tmp_path, capsys):
    folder = data_dir / "shakespeare_tff"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    with h5py.File(folder / "shakespeare_train.h5") as file:
        order = list(file["examples"])
    task = tasks.load("shakespeare_character", data_dir=str(folder))
    assert task.settings["source"] == "tff" and "published" not in capsys.readouterr().err
    assert len(order) == 715 and list(task.train.client_ids) == order == list(task.test.client_ids)
    from tasks.datasets import shakespeare_character
    from tasks.formats import tffs

    parts = tffs.open_clients(
        shakespeare_character._TFFS, str(folder), shakespeare_character._speeches
    )
    assert [part.count() for part in parts] == [16_068, 2356]
    speeches = [part.pooled().x for part in parts]
    assert [sum(s == b"" for s in said) for said in speeches] == [150, 45]
    # As TFF has it, an empty example is a sequence of a beginning and an end.
    empty = shakespeare_character.sequences(b"")[0]
    (begin, end), rest = empty[:2], empty[2:]
    assert (begin, end) == (shakespeare_character.BEGIN, shakespeare_character.END)
    assert not rest.any()
    every = np.concatenate([task.train.examples(k).x for k in range(715)])
    assert np.sum(np.all(every == empty[:-1], axis=1)) == 150
    # The tutorial's first lines of the king in King Lear.
    king = parts[0].examples(order.index("THE_TRAGEDY_OF_KING_LEAR_KING")).x
    assert any(b"Navarre shall be the wonder of the world" in speech for speech in king)

    _shakespeare_database(folder, tmp_path / "shakespeare.sqlite")
    _assert_equal(
        _numbers(task), _numbers(tasks.load("shakespeare_character", data_dir=str(tmp_path)))
    )
