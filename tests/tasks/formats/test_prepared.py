"""Prepared sets: whole or not there, whatever happens on the way."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tasks import plot, prepare
from tasks.formats import prepared
from tasks.task import DataError

_ARRAYS = {
    "x": prepared.Array("uint8", (3,)),
    "y": prepared.Array("float64"),
    "text": prepared.Array(None),
}


def _rows(piece, client, n):
    """Returns n rows of a client that tell where they are from."""
    x = np.tile(np.array([[piece, client, 0]], np.uint8), (n, 1))
    x[:, 2] = np.arange(n)
    text = [f"{piece}/{client}/{i}".encode() * (i % 3) for i in range(n)]
    arrays = {"x": x, "y": np.arange(n) / 7 + client, "text": text}
    return prepared.Rows("train" if piece < 3 else "test", f"c{client}", arrays)


def source(num_pieces=5, size=10, pause=0.0, fail_at=None):
    """Returns a source of some pieces with two clients each; client names repeat in `test`."""

    def read(piece):
        if piece == fail_at:
            raise DataError("the raw file is damaged")
        time.sleep(pause)
        client = 2 * (piece if piece < 3 else piece - 3)
        yield _rows(piece, client, 4)
        yield _rows(piece, client + 1, piece)

    pieces = [prepared.Piece(f"piece{i}", size + i, lambda i=i: read(i)) for i in range(num_pieces)]
    return prepared.Source(_ARRAYS, pieces)


def _assert_equal(made, wanted):
    assert made.parts == wanted.parts
    for name in ("x", "y"):
        assert made.arrays[name].dtype == wanted.arrays[name].dtype
        np.testing.assert_array_equal(made.arrays[name], wanted.arrays[name])
    texts = [a.strings["text"] for a in (made, wanted)]
    ours, theirs = ([text[i] for i in range(len(text))] for text in texts)
    assert ours == theirs and len(ours) == len(wanted.arrays["y"])


def _bytes(folder):
    return {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir()}


def test_what_is_written_is_what_is_read(tmp_path):
    made = prepared.write(source(), str(tmp_path), "toy", {"clients": 7, "train": 15})
    assert made.new and os.listdir(tmp_path / "toy.prepared") and made.path.endswith("toy.prepared")
    assert made.counts == {
        "clients": (6, 7),
        "examples": (30, None),
        "train": (15, 15),
        "test": (15, None),
    }
    got = prepared.read(prepared.find(str(tmp_path), "toy", "ADVICE"), "advice", _ARRAYS)
    assert list(got.parts) == ["train", "test"] and list(got.parts["test"]) == [
        "c0",
        "c1",
        "c2",
        "c3",
    ]
    assert isinstance(got.arrays["x"], np.memmap) and not got.arrays["x"].flags.writeable
    row = got.parts["test"]["c3"][-1]
    np.testing.assert_array_equal(got.arrays["x"][row], [4, 3, 3])
    assert got.strings["text"][got.parts["train"]["c0"][2]] == b"0/0/2" * 2
    assert got.strings["text"][0] == b""
    _assert_equal(got, prepared.in_memory(source()))


def test_an_empty_set_is_a_set(tmp_path):
    empty = prepared.Source(_ARRAYS, [prepared.Piece("none", 0, lambda: iter(()))])
    prepared.write(empty, str(tmp_path), "toy")
    got = prepared.read(str(tmp_path / "toy.prepared"), "advice", _ARRAYS)
    assert got.arrays["x"].shape == (0, 3) and len(got.strings["text"]) == 0
    _assert_equal(got, prepared.in_memory(empty))


def test_without_clients_parts_are_one_range(tmp_path):
    def read(part, n):
        yield prepared.Rows(part, "", {"y": np.arange(n)})

    def of(parts):
        pieces = [prepared.Piece(f"{i}", 1, lambda p=p: read(p, 3)) for i, p in enumerate(parts)]
        return prepared.Source({"y": prepared.Array("int32")}, pieces)

    prepared.write(of(["train", "train", "test"]), str(tmp_path), "toy")
    got = prepared.read(str(tmp_path / "toy.prepared"), "advice", of([]).arrays)
    assert got.parts == {"train": {"": range(6)}, "test": {"": range(6, 9)}}


def test_a_finished_set_is_checked_and_left(tmp_path):
    prepared.write(source(), str(tmp_path), "toy")
    before = _bytes(tmp_path / "toy.prepared")
    again = prepared.write(source(), str(tmp_path), "toy")
    assert not again.new and _bytes(tmp_path / "toy.prepared") == before
    with pytest.raises(DataError, match="made from different files"):
        prepared.write(source(size=11), str(tmp_path), "toy")
    assert _bytes(tmp_path / "toy.prepared") == before


@pytest.mark.parametrize("name", ["x", "y", "text.values", "text.ends"])
def test_damage_is_seen(tmp_path, name):
    prepared.write(source(), str(tmp_path), "toy")
    folder = str(tmp_path / "toy.prepared")
    path = tmp_path / "toy.prepared" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=f"{name} is damaged.*ADVICE"):
        prepared.read(folder, "ADVICE", _ARRAYS)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    said = "checksum"
    if name == "text.ends":
        said = "increasing order"
    else:
        prepared.read(folder, "ADVICE", _ARRAYS)  # Only the checksum tells.
    with pytest.raises(DataError, match=f"{name} is damaged.*{said}.*ADVICE"):
        prepared.verify(folder, "ADVICE", _ARRAYS)
    path.unlink()
    with pytest.raises(DataError, match=f"{name} is missing.*ADVICE"):
        prepared.read(folder, "ADVICE", _ARRAYS)


@pytest.mark.parametrize("damage", ["cut", "list", "format", "no_arrays", "clients", "missing"])
def test_damaged_manifests_are_one_line(tmp_path, damage):
    prepared.write(source(), str(tmp_path), "toy")
    path = tmp_path / "toy.prepared" / "manifest.json"
    manifest = json.loads(path.read_text())
    text = {
        "cut": path.read_text()[:-9],
        "list": "[1]",
        "format": json.dumps({**manifest, "format": 2}),
        "no_arrays": json.dumps({k: v for k, v in manifest.items() if k != "arrays"}),
        "clients": json.dumps({**manifest, "clients": [["train"]]}),
        "missing": None,
    }[damage]
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError) as error:
        prepared.read(str(tmp_path / "toy.prepared"), "ADVICE", _ARRAYS)
    assert "\n" not in str(error.value) and "manifest.json" in str(error.value)
    assert "ADVICE" in str(error.value)


def test_a_failure_leaves_no_set_and_is_resumed_from(tmp_path):
    read = []

    def counted(**arguments):
        made = source(**arguments)
        pieces = [
            piece._replace(read=lambda p=piece: (read.append(p.name), p.read())[1])
            for piece in made.pieces
        ]
        return made._replace(pieces=pieces)

    with pytest.raises(DataError, match="raw file"):
        prepared.write(counted(fail_at=3), str(tmp_path), "toy")
    assert prepared.find(str(tmp_path), "toy", "ADVICE") is None
    assert read == ["piece0", "piece1", "piece2", "piece3"]
    # What was written of a piece that did not come to an end.
    with open(tmp_path / "toy.preparing" / "x", "ab") as file:
        file.write(b"torn")
    with open(tmp_path / "toy.preparing" / "journal.jsonl", "a") as file:
        file.write('{"piece": ["piece3", 1')
    read.clear()
    prepared.write(counted(), str(tmp_path), "toy")
    assert read == ["piece3", "piece4"]
    prepared.write(source(), str(tmp_path / "whole"), "toy")
    assert _bytes(tmp_path / "toy.prepared") == _bytes(tmp_path / "whole" / "toy.prepared")


def test_other_raw_files_start_anew(tmp_path):
    with pytest.raises(DataError):
        prepared.write(source(fail_at=3), str(tmp_path), "toy")
    prepared.write(source(size=20), str(tmp_path), "toy")
    _assert_equal(
        prepared.read(str(tmp_path / "toy.prepared"), "", _ARRAYS),
        prepared.in_memory(source(size=20)),
    )


def test_two_at_once_are_refused(tmp_path):
    first = source()
    inner = []

    def read_and_try():
        with pytest.raises(DataError, match="another process"):
            prepared.write(source(), str(tmp_path), "toy")
        inner.append(True)
        return first.pieces[0].read()

    pieces = [first.pieces[0]._replace(read=read_and_try), *first.pieces[1:]]
    prepared.write(first._replace(pieces=pieces), str(tmp_path), "toy")
    assert inner


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError) as error:
        prepared.write(source(), str(tmp_path / "file" / "folder"), "toy")
    assert "cannot be written" in str(error.value) and "\n" not in str(error.value)


def _content(path):
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


_CHILD = """
import sys
from tests.tasks.formats import test_prepared
from tasks.formats import prepared
prepared.write(test_prepared.source(40, pause=0.01), sys.argv[1], "toy")
"""


def test_kills_at_any_moment_lose_little_and_never_leave_half_a_set(tmp_path):
    prepared.write(source(40), str(tmp_path / "whole"), "toy")
    wanted = _bytes(tmp_path / "whole" / "toy.prepared")
    folder, rng, kills, resumed = tmp_path / "killed", random.Random(3), 0, 0
    journal = folder / "toy.preparing" / "journal.jsonl"
    for turn in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(folder)], stderr=subprocess.PIPE, text=True
        )
        if turn < 3:
            # It takes its time to import, and some to write.
            before = _content(journal)
            while child.poll() is None and _content(journal) == before:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.1))
            child.send_signal(signal.SIGKILL)
        err = child.communicate()[1]
        resumed += "Resuming after" in err
        assert child.returncode in (0, -signal.SIGKILL), err
        kills += child.returncode != 0
        if (folder / "toy.prepared").exists():
            assert _bytes(folder / "toy.prepared").keys() - {"journal.jsonl"} == wanted.keys()
    assert kills >= 2 and resumed >= 2
    assert prepared.verify(str(folder / "toy.prepared"), "", _ARRAYS)
    got = _bytes(folder / "toy.prepared")
    assert {k: v for k, v in got.items() if k != "journal.jsonl"} == wanted


# The command.


def _leaf_files(folder):
    (folder / "all_data").mkdir()
    user = {"x": [[0.2] * 784] * 3, "y": [0, 1, 2]}
    content = {"users": ["a"], "num_samples": [3], "user_data": {"a": user}}
    (folder / "all_data" / "all_data_0.json").write_text(json.dumps(content))


def test_the_command_prints_counts_beside_the_published(tmp_path, capfd):
    _leaf_files(tmp_path)
    arguments = ["--task=femnist", f"--source={tmp_path}", f"--data_dir={tmp_path}/out"]
    assert prepare.main(arguments) == 0
    out = capfd.readouterr().out
    assert "made in" in out and str(tmp_path / "out" / "femnist.prepared") in out
    assert "clients: 1 (published: 3,550)" in out and "examples: 3 (published: 805,263)" in out
    assert prepare.main(arguments) == 0
    assert "whole and unchanged" in capfd.readouterr().out


def test_a_tilde_is_the_home_that_the_shell_left_it_to_be(tmp_path, monkeypatch):
    _leaf_files(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert prepare.main(["--task=femnist", "--source=~", "--data_dir=~/out"]) == 0
    assert (tmp_path / "out" / "femnist.prepared").is_dir()
    given = plot._parser(None).parse(["--task=x", "--data_dir=~/a", "--output=~/b"])
    assert (given.data_dir, given.output) == (f"{tmp_path}/a", f"{tmp_path}/b")


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--task=femnis", "--source=."], 2, "femnis"),
        (["--task=synthetic", "--source=."], 2, "as they are"),
        (["--task=femnist", "--source=nowhere"], 1, "nowhere"),
        (["--task=femnist", "--source=docs"], 1, "no LEAF files"),
    ],
)
def test_the_command_refuses_in_one_line(arguments, code, part, capfd):
    assert prepare.main(arguments) == code
    err = capfd.readouterr().err
    assert len(err.splitlines()) == 1 and err.startswith("error: ") and part in err
