"""Copies of runs' folders, which can be gone on from whenever the copying stopped."""

import contextlib
import sqlite3

import fsspec
import pytest

from reproduction import storage


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(params=["folder", "memory"])
def url(request, tmp_path):
    if request.param == "folder":
        yield str(tmp_path / "copies" / "run")
        return
    yield "memory://copies/run"
    fsspec.filesystem("memory").store.clear()


FILES = {
    "metrics.csv": "round_num\n0\n1\n",
    "hparams.json": "{}",
    "checkpoints/1.npz": "one",
    "checkpoints/0.npz": "zero",
}


def test_a_copy_comes_back_whole(tmp_path, url):
    write(
        tmp_path / "a", {**FILES, ".lock": "", "events.out.tfevents.1": "x", "metrics.csv.tmp": "x"}
    )
    storage.push(tmp_path / "a", url)
    storage.pull(url, tmp_path / "b")
    assert read(tmp_path / "b") == FILES
    storage.pull(url, tmp_path / "c", results_only=True)
    assert read(tmp_path / "c") == {n: t for n, t in FILES.items() if "checkpoints" not in n}


def test_what_is_no_longer_there_is_removed_from_the_copy(tmp_path, url):
    write(tmp_path / "a", FILES)
    storage.push(tmp_path / "a", url)
    (tmp_path / "a" / "checkpoints" / "0.npz").unlink()
    write(tmp_path / "a", {"checkpoints/2.npz": "two", "metrics.csv": "round_num\n0\n1\n2\n"})
    storage.push(tmp_path / "a", url)
    # A machine that had begun the run earlier: its own checkpoints are older than the copy's.
    write(tmp_path / "b", FILES)
    storage.pull(url, tmp_path / "b")
    assert read(tmp_path / "b") == read(tmp_path / "a")


def test_no_copy_is_nothing_to_bring(tmp_path, url):
    write(tmp_path / "a", FILES)
    storage.pull(url, tmp_path / "a")
    assert read(tmp_path / "a") == FILES


@pytest.mark.parametrize("after", range(12))
def test_a_copy_that_stopped_half_way_can_be_gone_on_from(tmp_path, monkeypatch, after):
    """Whatever was copied last: the table has a row for every checkpoint, and one is whole."""
    url = str(tmp_path / "copy")
    write(tmp_path / "a", FILES)
    storage.push(tmp_path / "a", url)
    write(tmp_path / "a", {"checkpoints/2.npz": "two", "metrics.csv": "round_num\n0\n1\n2\n"})
    (tmp_path / "a" / "checkpoints" / "0.npz").unlink()
    system = type(fsspec.filesystem("file"))
    calls = []

    def interrupted(method):
        original = getattr(system, method)

        def call(*arguments, **named):
            calls.append(method)
            if len(calls) > after:
                raise KeyboardInterrupt
            return original(*arguments, **named)

        monkeypatch.setattr(system, method, call)

    for method in ("pipe_file", "mv", "rm_file"):
        interrupted(method)
    try:
        storage.push(tmp_path / "a", url)
        assert after >= len(calls)
    except KeyboardInterrupt:
        pass
    monkeypatch.undo()
    storage.pull(url, tmp_path / "b")
    found = read(tmp_path / "b")
    rounds = [int(line) for line in found["metrics.csv"].splitlines()[1:]]
    states = [int(n.split("/")[1][0]) for n in found if n.startswith("checkpoints/")]
    assert states and max(states) <= max(rounds)
    assert rounds == list(range(len(rounds)))


def test_a_database_in_use_is_copied_between_transactions(tmp_path, url):
    (tmp_path / "a").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / "a" / "states.sqlite")) as database:
        database.execute("pragma journal_mode=wal")
        database.execute("create table states (round)")
        database.execute("insert into states values (1)")
        database.commit()
        database.execute("insert into states values (2)")
        storage.push(tmp_path / "a", url)
    storage.pull(url, tmp_path / "b")
    assert [p.name for p in (tmp_path / "b").iterdir()] == ["states.sqlite"]
    with contextlib.closing(sqlite3.connect(tmp_path / "b" / "states.sqlite")) as database:
        assert database.execute("select round from states").fetchall() == [(1,)]


def test_addresses():
    assert storage.join("s3://bucket/runs", "a", "b") == "s3://bucket/runs/a/b"
    assert storage.join("/mnt/runs", "a") == "/mnt/runs/a"
