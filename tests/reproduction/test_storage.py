"""Copies of runs' folders, which can be gone on from whenever the copying stopped."""

import contextlib
import pathlib
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


def go_on(folder, *rounds):
    """Leaves a run's folder as it is when the last of some rounds is in a checkpoint."""
    write(folder, {f"checkpoints/{r}.npz": str(r) for r in rounds})
    for path in (folder / "checkpoints").iterdir():
        if path.name not in [f"{r}.npz" for r in rounds]:
            path.unlink()
    table = "".join(f"{r}\n" for r in range(max(rounds) + 1))
    write(folder, {"metrics.csv": f"round_num\n{table}"})
    with contextlib.closing(sqlite3.connect(folder / "client_states.sqlite")) as database:
        database.execute("create table if not exists states (round)")
        database.execute("delete from states")
        database.executemany("insert into states values (?)", [[r] for r in rounds])
        database.commit()


def assert_can_be_gone_on_from(folder):
    """Checks that table and database have what the newest checkpoint of a folder needs."""
    rounds = [int(line) for line in (folder / "metrics.csv").read_text().splitlines()[1:]]
    newest = max(int(path.stem) for path in (folder / "checkpoints").iterdir())
    assert rounds == list(range(len(rounds))) and newest <= max(rounds)
    with contextlib.closing(sqlite3.connect(folder / "client_states.sqlite")) as database:
        assert (newest,) in database.execute("select round from states").fetchall()
    return newest


@pytest.mark.parametrize("after", range(16))
def test_a_copy_that_stopped_half_way_can_be_gone_on_from(tmp_path, monkeypatch, after):
    """Whatever was copied last, and so can one of a machine that copies after that."""
    url = str(tmp_path / "copy")
    go_on(tmp_path / "a", 0, 1)
    storage.push(tmp_path / "a", url)
    go_on(tmp_path / "a", 4, 5)
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
    assert assert_can_be_gone_on_from(tmp_path / "b") in (1, 5)
    go_on(tmp_path / "b", 6, 7)
    storage.push(tmp_path / "b", url)
    storage.pull(url, tmp_path / "c")
    assert assert_can_be_gone_on_from(tmp_path / "c") == 7
    assert not list((tmp_path / "copy").rglob("*.part"))


def test_a_copy_of_a_run_that_goes_on_meanwhile_can_be_gone_on_from(tmp_path, monkeypatch):
    """While the copy is made, the run removes all checkpoints that it had, and their states."""
    url = str(tmp_path / "copy")
    go_on(tmp_path / "a", 0, 1)
    storage.push(tmp_path / "a", url)
    go_on(tmp_path / "a", 2, 3)
    system, rounds = type(fsspec.filesystem("file")), iter(range(4, 100))
    original = system.pipe_file

    def slowly(*arguments, **named):
        original(*arguments, **named)
        r = next(rounds)
        go_on(tmp_path / "a", r, r + 1)

    monkeypatch.setattr(system, "pipe_file", slowly)
    storage.push(tmp_path / "a", url)
    storage.pull(url, tmp_path / "b")
    assert assert_can_be_gone_on_from(tmp_path / "b") == 3


@pytest.mark.parametrize("copied", [["metrics.csv"], ["checkpoints/1.npz.part"]])
def test_a_copy_without_a_checkpoint_does_not_replace_one(tmp_path, url, copied):
    """Made while a run evaluated its initial model, or of which nothing is whole yet."""
    write(tmp_path / "start", {"metrics.csv": "round_num\n"})
    storage.push(tmp_path / "start", url)
    system, root = fsspec.core.url_to_fs(url)
    for name in copied:
        system.makedirs(f"{root}/checkpoints", exist_ok=True)
        system.pipe_file(f"{root}/{name}", b"round_num\n")
    write(tmp_path / "a", FILES)
    storage.pull(url, tmp_path / "a")
    assert read(tmp_path / "a") == FILES


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


def test_a_copy_is_moved_beside(tmp_path):
    url = str(tmp_path / "kept" / "run")
    storage.set_aside(url)
    for number in (1, 2):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        (folder / "hparams.json").write_text(f"{number}")
        storage.push(folder, url)
        storage.set_aside(url)
        moved = pathlib.Path(f"{url}.replaced-{number}", "hparams.json")
        assert moved.read_text() == f"{number}"
    assert not pathlib.Path(url).exists()
