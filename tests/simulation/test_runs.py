"""The list of runs: every state, damaged folders, and no TensorFlow."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import filelock
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_algos
from simulation import runs
from tests import fuzz
from tests.test_fuzz import FLAGS, write_run

_REPO = pathlib.Path(__file__).resolve().parents[2]


def change(folder, name="hparams.json", **parts):
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))


@pytest.fixture
def root(tmp_path):
    """A sweep of three seeds, and a run in every other state."""
    for seed in range(3):
        write_run(tmp_path / "sweep" / f"fedavg_seed{seed}", FLAGS, seed)
    write_run(tmp_path / "resumable", FLAGS)
    (tmp_path / "resumable" / "summary.json").unlink()
    (tmp_path / "resumable" / "checkpoints" / "round_00000004.checkpoint").unlink()
    shutil.copytree(tmp_path / "resumable", tmp_path / "diverged")
    (tmp_path / "diverged" / "diverged.json").write_text('{"reason": "Too large."}')
    shutil.copytree(tmp_path / "resumable", tmp_path / "other")
    change(tmp_path / "other", identity={"method": {"version": 99}})
    shutil.copytree(tmp_path / "resumable", tmp_path / "early")
    shutil.rmtree(tmp_path / "early" / "checkpoints")
    shutil.copytree(tmp_path / "resumable", tmp_path / "damaged")
    (tmp_path / "damaged" / "hparams.json").write_text("{")
    (tmp_path / "empty").mkdir()
    return tmp_path


def found(root):
    return {str(pathlib.Path(run.folder).relative_to(root)): run for run in runs.find(str(root))}


def test_every_state(root):
    states = {name: run.told() for name, run in found(root).items()}
    assert states == {
        "damaged": "damaged",
        "diverged": "diverged after round 4 of 4",
        "early": "not started",
        "other": "other version",
        "resumable": "resumable at round 3 of 4",
        **{f"sweep/fedavg_seed{seed}": "finished" for seed in range(3)},
    }
    run = found(root)["sweep/fedavg_seed2"]
    assert (run.method, run.task, run.seed, run.round) == ("fedavg", "synthetic", 2, 4)
    assert (run.metric, run.value) == ("eval/accuracy", 0.4) and run.bytes > 4096
    now = tff_algos.get("fedavg").version
    assert f"had version 99, now has {now}" in found(root)["other"].note


def test_a_run_that_a_process_holds_is_running(root):
    with filelock.FileLock(root / "resumable" / ".lock"):
        assert found(root)["resumable"].told() == "running at round 4 of 4"
    assert found(root)["resumable"].state == "resumable"


def test_seeds_share_a_line_and_sweeps_are_counted(root, capsys):
    assert runs.main([str(root)]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "sweep/" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:5] == ["sweep/fedavg_seed*", "fedavg", "synthetic", "0 1 2", "finished"]
    assert cells[5] == "eval/accuracy 0.4000 ± 0.0000"
    (counted,) = [line for line in out.splitlines() if line.startswith("| sweep  ")][1:]
    assert "3 finished" in counted
    assert "damaged: " in out and "hparams.json is damaged" in out


def test_json_has_every_run_and_sweep(root, capsys):
    assert runs.main([str(root), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert len(content["runs"]) == 8
    assert {"finished": 3} in [sweep["states"] for sweep in content["sweeps"]]
    run = next(run for run in content["runs"] if run["folder"].endswith("seed1"))
    assert run["flags"]["client_learning_rate"] == 0.05 and run["state"] == "finished"


@pytest.fixture(scope="module")
def a_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "whole", FLAGS)
    return root


@fuzz.QUICK
@given(damage=fuzz.DAMAGES, finished=st.booleans())
def test_whatever_has_happened_to_a_folder_it_is_listed(a_run, damage, finished):
    folder = a_run / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(a_run / "whole", folder)
    if not finished:
        (folder / "summary.json").unlink()
    damage.apply(folder)
    listed = runs.find(str(a_run))
    assert [run.state for run in listed if run.folder.endswith("whole")] == ["finished"]
    assert runs.table(listed, str(a_run)) and json.loads(runs.as_json(listed, str(a_run)))


def test_a_folder_that_is_not_there_or_empty(tmp_path, capsys):
    assert runs.main([str(tmp_path)]) == 0
    assert runs.main([str(tmp_path / "nowhere")]) == 1
    out, err = capsys.readouterr()
    assert out == f"{tmp_path} holds no run.\n"
    assert err == f"error: Cannot use {tmp_path}/nowhere: No such file or directory.\n"


def test_tensorflow_is_not_imported(root):
    text = (
        "import sys\nfrom simulation import runs\n"
        f"assert runs.main([{str(root)!r}]) == 0\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=_REPO, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_locks_that_a_process_waits_for_are_read(tmp_path):
    """The kernel lists a waiting process on a line of another form."""
    (tmp_path / "locks").write_text(
        "1: FLOCK  ADVISORY  WRITE 19212 fe:00:6679030 0 EOF\n"
        "1: -> FLOCK  ADVISORY  WRITE 11 fe:00:6679030 0 EOF\n"
        "2: POSIX  ADVISORY  READ 17622 fe:00:7785108 128 128\n"
        "3: FLOCK  ADVISORY  WRITE 7 08:1a:12 0 EOF\n"
    )
    held = runs._held_files(str(tmp_path / "locks"))
    assert held == {(os.makedev(0xFE, 0), 6679030), (os.makedev(8, 0x1A), 12)}
    assert runs._held_files(str(tmp_path / "none")) == set()


def test_runs_with_other_code_models_or_data_are_no_seeds_of_one_line():
    def made(folder, seed, **of):
        return runs.Run(f"root/{folder}", "finished", seed=seed, flags={"algorithm": "a"}, **of)

    identity = {"method": {"version": 1}, "data": {"digest": "x"}}
    model = {"layers": "3", "layer 1, initial weights": "random"}
    first = runs._made_of({"identity": {**identity, "model": model}})
    seeded = {**model, "layer 1, initial weights": "other"}
    assert first == runs._made_of({"identity": {**identity, "model": seeded}})
    other = runs._made_of({"identity": {**identity, "model": {**model, "layers": "4"}}})
    assert other != first and runs._made_of({}) == runs._made_of({"identity": 3}) == ""
    given = [
        made("a1", 1, made_of=first),
        made("a2", 2, made_of=first),
        made("b1", 1, made_of=other),
        made("c1", 1, made_of=first),  # Other data.
    ]
    found = [[run.folder for run in group] for group in runs.by_settings(given)]
    assert found == [["root/a1", "root/a2"], ["root/b1"], ["root/c1"]]


def test_runs_that_stopped_elsewhere_are_no_seeds_of_one_line():
    def made(seed, rounds, state="finished", **flags):
        flags = {"algorithm": "a", "total_rounds": 9, **flags}
        return runs.Run(f"root/{seed}", state, round=rounds, seed=seed, flags=flags)

    given = [
        made(1, 9),
        made(2, 9, experiment_name="x"),
        made(3, 4),  # Stopped by a callback.
        made(4, 6, "resumable"),
        made(5, 3, stop_at="eval/loss<1"),
        made(6, 5, stop_at="eval/loss<1"),
        made(7, 5, stop_at="eval/loss<2"),
    ]
    found = [[run.seed for run in group] for group in runs.by_settings(given)]
    assert found == [[1, 2], [3], [4], [5, 6], [7]]
