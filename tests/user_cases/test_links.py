"""A link that lies where the suite is about to write keeps its target as it is."""

import hashlib
import lzma
import os
import pathlib
import sqlite3

import numpy as np
import pandas as pd
import pytest

import run_experiment
from reproduction import compare, results, storage, sweep
from simulation.records import checkpoints, metrics_csv
from tasks import plot
from tasks.formats import downloads, prepared, sqlite_clients
from tasks.task import ArrayFederatedData, DataError
from tests.reproduction import test_compare
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tests.tasks.formats import test_prepared
from tests.tasks.server import Server
from tff_suite import figures, writing

pytestmark = pytest.mark.slow

_SECRET = b"not the suite's"
_KINDS = {"link": os.symlink, "hard link": os.link}


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_bytes(_SECRET)
    yield path
    assert path.read_bytes() == _SECRET


def lay(kind, victim, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    _KINDS[kind](victim, path)


def _metrics(folder):
    table = metrics_csv.MetricsCsv(str(folder / "metrics.csv"), -1)
    table.append(0, {"train/loss": 1.0})
    table.append(1, {"eval/loss": 1.0})
    table.close()


def _compare(folder):
    for name in ("fedavg", "fedavgm"):
        test_compare.write_run(folder / "runs" / name, name, 1, [0, 1])
    compare.report([str(folder / "runs")], "eval/accuracy", folder)


def _pull(folder):
    (folder / "copy").mkdir()
    (folder / "copy" / "metrics.csv").write_text("round_num\n0\n")
    storage.pull(str(folder / "copy"), folder)


def _push(folder):
    (folder / "run").mkdir()
    (folder / "run" / "metrics.csv").write_text("round_num\n0\n")
    storage.push(folder / "run", str(folder))


def _unpack(folder):
    db = sqlite3.connect(folder / "set.sqlite")
    db.execute("CREATE TABLE t (x)")
    db.commit()
    db.close()
    content = (folder / "set.sqlite").read_bytes()
    (folder / "set.sqlite").unlink()
    (folder / "set.lzma").write_bytes(lzma.compress(content))
    sqlite_clients.unpack(str(folder / "set.lzma"), str(folder / "set.sqlite"), "ADVICE")


def _download(folder):
    with Server() as server:
        server.files["set"] = b"new"
        digest = hashlib.sha256(b"new").hexdigest()
        downloads.fetch(server.url + "set", str(folder / "set"), "ADVICE", sha256=digest)


def _partition(folder):
    y = np.arange(3)
    shown = plot.partition(ArrayFederatedData(y, y, [[0, 1, 2]]), np.arange(1))
    plot.write_csv(shown, str(folder / "p.csv"))


# Who writes → the temporary names that it takes.
WRITERS = {
    "any": (lambda f: writing.write_atomically(f / "x", b"new"), ["x.tmp"]),
    "metrics.csv": (_metrics, ["metrics.csv.tmp"]),
    "checkpoint": (
        lambda f: checkpoints.save(str(f), 3, [np.zeros(2)], {"a": 1}),
        ["round_00000003.checkpoint.tmp"],
    ),
    "client_metrics.csv": (
        lambda f: metrics_csv.write_client_metrics(str(f / "c.csv"), ["a"], [1], [1], {}),
        ["c.csv.tmp"],
    ),
    "results.csv": (lambda f: results.write_csv(f / "r.csv", [{"a": 1}]), ["r.csv.tmp"]),
    "figure": (
        lambda f: figures.save(figures.panels()[0], str(f / "figure"), [".png", ".pdf"]),
        ["figure.png.tmp", "figure.pdf.tmp"],
    ),
    "compare": (_compare, ["aligned.csv.tmp", "curves.png.tmp", "curves.pdf.tmp"]),
    "partition": (_partition, ["p.csv.tmp"]),
    "pull": (_pull, ["metrics.csv.tmp", "metrics.csv.part"]),
    "push": (_push, ["metrics.csv.part", ".copied.part"]),
    "unpack": (_unpack, ["set.sqlite.part"]),
    "download": (_download, ["set.part", "set.part.etag.tmp"]),
    "prepare": (
        lambda f: prepared.write(test_prepared.source(), str(f), "toy"),
        ["toy.preparing/x", "toy.preparing/journal.jsonl", "toy.preparing/y.tmp"],
    ),
}


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_follows_no_link(tmp_path, victim, name, kind):
    write, temporary = WRITERS[name]
    (tmp_path / "f").mkdir()
    for laid in temporary:
        lay(kind, victim, tmp_path / "f" / laid)
    write(tmp_path / "f")
    # Of an earlier version's names, none is taken any more.
    left = [p for p in (tmp_path / "f").rglob("*") if writing.is_link(p)]
    assert [p.name for p in left] == (["metrics.csv.part"] if name == "pull" else [])


@pytest.mark.parametrize("kind", _KINDS)
def test_a_prepared_set_that_is_resumed_follows_no_link(tmp_path, victim, kind):
    """Of a set that was cut off, one file was exchanged for a link to a longer one."""
    with pytest.raises(DataError, match="damaged"):
        prepared.write(test_prepared.source(fail_at=3), str(tmp_path), "toy")
    victim.write_bytes(_SECRET * 1000)
    (tmp_path / "toy.preparing" / "x").unlink()
    lay(kind, victim, tmp_path / "toy.preparing" / "x")
    made = prepared.write(test_prepared.source(), str(tmp_path), "toy")
    assert made.counts["examples"] == (30, None)
    assert victim.read_bytes() == _SECRET * 1000
    victim.write_bytes(_SECRET)


@pytest.mark.parametrize("kind", _KINDS)
def test_what_is_appended_to_is_not_a_link(tmp_path, victim, kind):
    lay(kind, victim, tmp_path / sweep.LOG)
    with writing.open_to_append(tmp_path / sweep.LOG, "a", encoding="utf-8") as file:
        file.write("one")
    with writing.open_to_append(tmp_path / sweep.LOG) as file:
        file.write(b" two")
    assert (tmp_path / sweep.LOG).read_bytes() == b"one two"


@pytest.mark.parametrize("kind", _KINDS)
def test_a_run_follows_no_link(tmp_path, victim, kind):
    folder = tmp_path / "r" / "toy_fedavg"
    names = [
        *("metrics.csv", "hparams.json", "summary.json", "client_metrics.csv", "data_digests.json"),
        *(f"checkpoints/round_{r:08d}.checkpoint" for r in range(4)),
        *("model/final.keras", "model/final.weights.h5"),
    ]
    for name in names:
        lay(kind, victim, folder / f"{name}.tmp")
    flags = [
        *("--task=toy", "--algorithm=fedavg", "--total_rounds=3", "--clients_per_round=2"),
        *("--client_batch_size=4", "--client_learning_rate=0.1", "--rounds_per_checkpoint=1"),
        f"--root_output_dir={tmp_path / 'r'}",
    ]
    assert run_experiment.main(flags) == 0
    assert pd.read_csv(folder / "metrics.csv").round_num.tolist() == [0, 1, 2, 3]
    # Names that no file of this run had may still lie there.
    left = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if writing.is_link(p)}
    assert left <= {"model/final.weights.h5.tmp", "checkpoints/round_00000000.checkpoint.tmp"}


def test_the_store_of_clients_states_is_not_a_link(tmp_path, victim, capsys):
    folder = tmp_path / "r" / "toy_scaffold"
    folder.mkdir(parents=True)
    (folder / "client_states.sqlite").symlink_to(victim)
    flags = [
        *("--task=toy", "--algorithm=scaffold", "--total_rounds=1", "--clients_per_round=2"),
        *("--client_batch_size=4", "--client_learning_rate=0.1"),
        f"--root_output_dir={tmp_path / 'r'}",
    ]
    assert run_experiment.main(flags) == 1
    assert "client_states.sqlite is a link; remove it" in capsys.readouterr().err


def test_a_link_that_leads_nowhere_is_not_made_to_lead_somewhere(tmp_path):
    (tmp_path / "x.tmp").symlink_to(tmp_path / "elsewhere")
    writing.write_atomically(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new" and not (tmp_path / "elsewhere").exists()


def test_what_a_kill_left_is_replaced(tmp_path):
    (tmp_path / "x.tmp").write_bytes(b"half of a longer content")
    writing.write_atomically(tmp_path / "x", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_faster_program_is_reported_and_not_followed(tmp_path, victim, monkeypatch):
    """A link that is laid between the removal of the old one and the opening."""
    path = tmp_path / "x.tmp"
    monkeypatch.setattr(writing.os, "unlink", lambda _: None)
    path.symlink_to(victim)
    with pytest.raises(FileExistsError):
        writing.write_new(path, b"new")
    with pytest.raises(OSError, match="symbolic links"):
        writing.open_to_append(path)


def test_a_folder_of_the_name_is_an_error_of_the_system(tmp_path):
    (tmp_path / "x.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        writing.write_atomically(str(tmp_path / "x"), b"new")
    assert pathlib.Path(tmp_path / "x.tmp").is_dir() and not (tmp_path / "x").exists()
