"""The files of a run's folder are one thing: each, damaged in each way, is refused or repaired."""

import json
import pathlib
import random
import re
import shutil
import sqlite3

import numpy as np
import pytest

import tasks
from simulation import identity
from simulation.errors import RunError
from simulation.records import checkpoints, client_states, metrics_csv, outputs
from tasks import fingerprint
from tests.tasks import test_fingerprint

SETTINGS = {"task": "toy", "seed": 1}
INITIAL = (np.int32(0), np.zeros(40, np.float32))
DATA = {"client '0' of train": "aa", "client '1' of train": "bb"}
ROUNDS = 8


def _start(folder, data):
    start = {"stack": "current"}
    identity = {"data": {"digest": fingerprint.whole(data)}}
    content = {"flags": SETTINGS, "start": start, "resumed": [], "identity": identity}
    folder.write_with_checksum("hparams.json", content)


def _state(number):
    return np.int32(number), np.full(40, number / 7, np.float32)


def _write(root, seed, rounds=ROUNDS, finished=False):
    """Writes a run's folder as an experiment does, with checkpoints of rounds 3 and 6."""
    with outputs.ExperimentFolder(str(root), "x") as folder:
        _start(folder, DATA)
        folder.write_data_digests(DATA)
        table = metrics_csv.MetricsCsv(folder.file("metrics.csv"), -1)
        states = client_states.ClientStates(
            folder.file("client_states.sqlite"), INITIAL, 3 * 164, folder.run_id
        )
        states.go_on_from(0)
        rng = np.random.default_rng(seed)
        for r in range(rounds + 1):
            values = {"train/loss": rng.random(), "time/round_seconds": rng.random()}
            if r == 5:  # A column that comes later, between the others.
                values["eval/accuracy"] = rng.random()
            table.append(r, values)
            if r:
                states.write({str(k): _state(100 * r + k) for k in range(r % 3, 6)}, r)
            if r % 3 == 0:
                checksums = {
                    "run_id": folder.run_id,
                    "metrics.csv": table.checksum(),
                    "client_states.sqlite": states.commit(r),
                }
                leaves = [rng.random(5)]
                checkpoints.save(folder.file("checkpoints"), r, leaves, SETTINGS, checksums)
                states.forget_before(checkpoints.rounds(folder.file("checkpoints"))[0])
        states.commit(rounds)
        states.close()
        table.close()
        if finished:
            metrics_csv.write_client_metrics(
                folder.file("client_metrics.csv"), ["0"], [3], [2], {"loss": np.array([0.5])}
            )
            rows = metrics_csv.read_csv(folder.file("metrics.csv"))[1]
            seals = {
                "metrics.csv": metrics_csv.rows_digest(rows),
                "client_metrics.csv": outputs.file_digest(folder.file("client_metrics.csv")),
            }
            summary = {"finished": True, "rounds": rounds, "final": {"a": 0.25}, "seals": seals}
            folder.write_with_checksum("summary.json", summary)
    return pathlib.Path(folder.path)


def _difference(folder, digests):
    """Returns what a start finds other in the data than is recorded; empty if nothing is."""
    before = folder.read_hparams()["identity"]
    now = {"data": {"digest": fingerprint.whole(digests)}}
    changes = identity.differences(before, now, folder.data_digests(), digests)
    return identity.in_words(changes)


def _go_on(path):
    """Does what a start does before the first round; returns all that the rounds rest on."""
    with outputs.ExperimentFolder(str(path.parent), path.name) as folder:
        checkpoint, _ = folder.resume_point(SETTINGS, ())
        if folder.finished_rounds() == ROUNDS:
            folder.check_results()
            return "finished"
        folder.check_checkpoint(checkpoint)
        problem = _difference(folder, DATA)
        assert not problem
        r = checkpoint.round_num
        table = metrics_csv.MetricsCsv(folder.file("metrics.csv"), r)
        table.close()
        states = client_states.ClientStates(
            folder.file("client_states.sqlite"), INITIAL, 1 << 20, folder.run_id
        )
        try:
            states.go_on_from(r, checkpoint.checksums["client_states.sqlite"])
            kept = [s[1].tobytes() for s in states.read([str(k) for k in range(6)])]
        finally:
            states.close()
        text = pathlib.Path(folder.file("metrics.csv")).read_text()
        return r, checkpoint.leaves[0].tobytes(), text, kept


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that was killed, another of the same settings, a finished one; and what is right."""
    root = tmp_path_factory.mktemp("runs")
    killed, other = _write(root / "killed", 1), _write(root / "other", 2)
    finished = _write(root / "finished", 1, finished=True)
    copy = root / "copy" / "x"
    shutil.copytree(killed, copy)
    newest = _go_on(copy)
    shutil.rmtree(copy)
    shutil.copytree(killed, copy)
    (copy / "checkpoints" / "round_00000006.checkpoint").unlink()
    return {"killed": killed, "other": other, "finished": finished, "right": (newest, _go_on(copy))}


FILES = (
    "hparams.json",
    "metrics.csv",
    "client_states.sqlite",
    "checkpoints/round_00000006.checkpoint",
    "data_digests.json",
)


def _digit(path, rng):
    content = bytearray(path.read_bytes())
    places = [i for i, c in enumerate(content) if chr(c).isdigit()]
    at = rng.choice(places)
    content[at] = ord("0") + (content[at] - ord("0") + rng.randrange(1, 10)) % 10
    path.write_bytes(content)


def _bit(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _cut(path, rng):
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])


def _outcome(path, name):
    """Returns what a start comes to, or `None` if it is refused by one line that names the file."""
    try:
        return _go_on(path)
    except (RunError, OSError) as e:
        assert "\n" not in str(e)
        parts = name.split("/")
        assert parts[0] in str(e), (name, str(e))
        return None


def _sweep(runs, tmp_path, name, way, times, seed=0):
    refused = 0
    rng = random.Random(f"{name} {way.__name__} {seed}")
    for i in range(times):
        path = tmp_path / f"{i}" / "x"
        shutil.copytree(runs["killed"], path)
        way(path / name, rng)
        outcome = _outcome(path, name)
        assert outcome is None or outcome in runs["right"], (name, way.__name__, i)
        refused += outcome is None
        shutil.rmtree(path.parent)
    return refused


@pytest.mark.parametrize("way", [_digit, _bit, _cut], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", FILES)
def test_damage_is_refused_or_repaired(runs, tmp_path, name, way):
    refused = _sweep(runs, tmp_path, name, way, 8)
    if name == "hparams.json" or (name, way) == ("client_states.sqlite", _cut):
        assert refused


@pytest.mark.long
@pytest.mark.parametrize("way", [_digit, _bit, _cut], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", FILES)
def test_damage_is_refused_or_repaired_at_many_places(runs, tmp_path, name, way):
    _sweep(runs, tmp_path, name, way, 400, seed=1)


@pytest.mark.parametrize("name", FILES)
def test_missing_and_other_runs_files(runs, tmp_path, name):
    for i, other in enumerate((None, runs["other"] / name)):
        path = tmp_path / str(i) / "x"
        shutil.copytree(runs["killed"], path)
        (path / name).unlink()
        if other:
            shutil.copyfile(other, path / name)
        outcome = _outcome(path, name)
        if name == "data_digests.json":
            assert outcome in runs["right"], "it only helps to say what differs"
        elif name.startswith("checkpoints") and other is None:
            assert outcome == runs["right"][1], "the older one is as good"
        else:
            assert outcome is None


def test_every_digit_of_rows_up_to_the_checkpoint_counts_and_later_rows_do_not(runs, tmp_path):
    lines = (runs["killed"] / "metrics.csv").read_text().splitlines(keepends=True)
    rng = random.Random(5)
    for number, line in enumerate(lines):
        path = tmp_path / str(number) / "x"
        shutil.copytree(runs["killed"], path)
        at = rng.choice([i for i, c in enumerate(line) if c.isdigit() or number == 0])
        altered = line[:at] + ("8" if line[at] != "8" else "9") + line[at + 1 :]
        text = "".join([*lines[:number], altered, *lines[number + 1 :]])
        (path / "metrics.csv").write_text(text)
        outcome = _outcome(path, "metrics.csv")
        # The header is line 0, row 0 line 1.
        assert outcome == (runs["right"][0] if number > 7 else None), line


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM states WHERE client = '3'",
        "DELETE FROM states",
        "DELETE FROM states WHERE round = 6 AND client = '2'",
        "DROP TABLE states",
        "DROP TABLE facts",
        "UPDATE states SET state = zeroblob(164) WHERE client = '4'",
        "UPDATE states SET round = round - 1 WHERE client = '1' AND round = 6",
        "INSERT INTO states SELECT 'new', round, digest, state FROM states WHERE client = '1'",
        "UPDATE facts SET value = 'x' WHERE name = 'layout'",
        "UPDATE facts SET value = 'x' WHERE name = 'round'",
    ],
)
def test_altered_states_are_refused(runs, tmp_path, statement):
    path = tmp_path / "x"
    shutil.copytree(runs["killed"], path)
    with sqlite3.connect(path / "client_states.sqlite") as db:
        db.execute(statement)
    assert _outcome(path, "client_states.sqlite") is None


def test_the_older_checkpoints_rows_and_states_have_checksums_too(runs, tmp_path):
    for name in ("metrics.csv", "client_states.sqlite"):
        path = tmp_path / name / "x"
        shutil.copytree(runs["killed"], path)
        _cut(path / "checkpoints" / "round_00000006.checkpoint", random.Random(0))
        if name == "metrics.csv":
            text = (path / name).read_text().splitlines(keepends=True)
            (path / name).write_text("".join([*text[:3], text[3].replace("0.", "1."), *text[4:]]))
        else:
            with sqlite3.connect(path / name) as db:
                db.execute("DELETE FROM states WHERE round = 3 AND client = '5'")
        assert _outcome(path, name) is None


@pytest.mark.parametrize("way", [_digit, _bit, _cut], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", ["summary.json", "client_metrics.csv", "metrics.csv"])
def test_a_finished_runs_results(runs, tmp_path, name, way):
    rng = random.Random(0)
    for i in range(8):
        path = tmp_path / str(i) / "x"
        shutil.copytree(runs["finished"], path)
        assert _go_on(path) == "finished"
        before = (path / name).read_text()
        way(path / name, rng)
        outcome = _outcome(path, name)
        if outcome is not None:
            # The same numbers, written otherwise.
            assert name != "client_metrics.csv" and outcome == "finished"
            if name == "summary.json":
                assert json.loads((path / name).read_text()) == json.loads(before)
            else:
                read = metrics_csv.read_csv(str(path / name))[1]
                assert (
                    metrics_csv.rows_digest(read)
                    == json.loads((path / "summary.json").read_text())["seals"]["metrics.csv"]
                )


def test_a_finished_mark_set_by_hand_is_refused(runs, tmp_path):
    shutil.copytree(runs["killed"], tmp_path / "x")
    summary = json.loads((runs["finished"] / "summary.json").read_text())
    for content in (
        {"finished": True, "rounds": ROUNDS},
        summary,  # Of another run.
        {**summary, "rounds": 9},
    ):
        (tmp_path / "x" / "summary.json").write_text(json.dumps(content))
        assert _outcome(tmp_path / "x", "summary.json") is None


@pytest.mark.parametrize("run", ["killed", "finished"])
@pytest.mark.parametrize("lacking", ["seal", "run_id", "identity", "stack"])
def test_a_folder_of_an_earlier_version_is_refused_in_a_line(runs, tmp_path, run, lacking):
    """Earlier versions recorded no checksums and ids, then no identity, then no stack."""
    path = tmp_path / "x"
    shutil.copytree(runs[run], path)
    content = json.loads((path / "hparams.json").read_text())
    del (content["start"] if lacking == "stack" else content)[lacking]
    (path / "hparams.json").write_text(json.dumps(content))
    with pytest.raises(RunError) as e:
        _go_on(path)
    assert "written by an earlier version of the suite" in str(e.value) and "\n" not in str(e.value)
    assert "start anew with --fresh (this run is then kept as x.replaced-1)" in str(e.value)
    with outputs.ExperimentFolder(str(tmp_path), "x") as folder:
        assert folder.set_aside() == f"{folder.path}.replaced-1"
        assert folder.resume_point(SETTINGS, ()) == (None, [])


def test_other_data_are_named(runs, tmp_path):
    shutil.copytree(runs["killed"], tmp_path / "x")
    altered = {**DATA, "client '1' of train": "bc"}
    with outputs.ExperimentFolder(str(tmp_path), "x") as folder:
        assert _difference(folder, DATA) == ""
        assert "client '1' of train" in _difference(folder, altered)
        folder.remove("data_digests.json")
        assert "not known" in _difference(folder, altered)


@pytest.mark.parametrize("make", test_fingerprint.FORMATS, ids=lambda make: make.__name__)
def test_one_label_altered_between_start_and_resumption_is_refused(tmp_path, monkeypatch, make):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    name, settings, alter = make(data, random.Random(f"{make.__name__} of a run"))
    settings = {"data_dir": str(data), **settings}

    def problem():
        """What a start finds wrong with the data."""
        with outputs.ExperimentFolder(str(tmp_path), "x") as folder:
            digests = fingerprint.of_task(tasks.load(name, **settings))
            checkpoint, _ = folder.resume_point(SETTINGS, ())
            if checkpoint is not None:
                return _difference(folder, digests)
            _start(folder, digests)
            folder.write_data_digests(digests)
            checksums = {"run_id": folder.run_id}
            checkpoints.save(folder.file("checkpoints"), 1, [np.ones(2)], SETTINGS, checksums)
            return None

    assert problem() is None
    assert problem() == ""
    alter()
    line = problem()
    assert "\n" not in line
    assert re.search(r"^data: (client '.+' of (train|test)|file .+|the words)", line), line
