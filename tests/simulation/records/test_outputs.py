import json
import math
import os
import threading

import numpy as np
import pytest

from simulation.errors import RunError
from simulation.records import checkpoints, metrics_csv, outputs, tensorboard

SETTINGS = {"task": "toy", "seed": 1, "total_rounds": 5}


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


@pytest.fixture
def table(tmp_path):
    return str(tmp_path / "metrics.csv")


def test_rows_are_appended_in_groups_and_blank_where_not_given(table):
    csv = metrics_csv.MetricsCsv(table, -1)
    csv.append(0, {"eval/loss": 2.5, "time/eval_seconds": 0.1})
    csv.append(1, {"train/loss": 1.0, "time/round_seconds": 0.25})
    csv.append(2, {"train/loss": 0.1, "eval/loss": math.nan, "fairness/std": 1 / 3})
    csv.close()
    assert read(table) == (
        "round_num,train/loss,eval/loss,fairness/std,time/eval_seconds,time/round_seconds\n"
        "0,,2.5,,0.1,\n"
        "1,1.0,,,,0.25\n"
        "2,0.1,nan,0.3333333333333333,,\n"
    )


def test_numbers_come_back_exactly(table):
    values = [0.1, 1 / 3, 1e-300, float(np.float32(0.7)), 123456789.123456789, math.pi * 1e20]
    csv = metrics_csv.MetricsCsv(table, -1)
    for i, value in enumerate(values):
        csv.append(i, {"train/loss": value})
    csv.close()
    assert [float(row["train/loss"]) for row in metrics_csv.read_csv(table)[1]] == values


@pytest.mark.parametrize("torn", ["", "3", "3,0.", "1", "12345", '3,"'])
def test_continuing_after_a_kill_gives_what_never_stopped_gives(table, torn):
    def rows(start, stop, csv):
        for r in range(start, stop):
            csv.append(r, {"train/loss": r / 7, **({"eval/loss": r / 3} if r % 2 else {})})

    csv = metrics_csv.MetricsCsv(table, -1)
    rows(0, 6, csv)
    csv.close()
    whole = read(table)
    os.remove(table)

    csv = metrics_csv.MetricsCsv(table, -1)
    rows(0, 4, csv)
    csv.close()
    with open(table, "a") as f:
        f.write(torn)
    csv = metrics_csv.MetricsCsv(table, 2)
    rows(3, 6, csv)
    csv.close()
    assert read(table) == whole
    assert os.listdir(os.path.dirname(table)) == ["metrics.csv"]


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "round_num,x\nfour,2\n", "round_num\n\n,1\n"])
def test_other_peoples_csv_is_not_taken_for_ours(table, content):
    with open(table, "w") as f:
        f.write(content)
    with pytest.raises(RunError, match="damaged"):
        metrics_csv.MetricsCsv(table, 3)
    assert read(table) == content


def test_summary_means_and_best():
    rows = [{"round_num": "0", "train/loss": "", "eval/acc": "0.1", "time/round_seconds": ""}]
    for r in range(1, 121):
        rows.append(
            {
                "round_num": str(r),
                "train/loss": str(float(r)),
                "eval/acc": str(r / 1000 if r != 60 else 0.9) if r % 10 == 0 else "",
                "time/round_seconds": "0.5",
            }
        )
    s = metrics_csv.summarize_rows(rows, "eval/acc", higher_is_better=True)
    # Rounds 71 to 120 and 21 to 120.
    assert s["mean_last_50"]["train/loss"] == pytest.approx(95.5)
    assert s["mean_last_50"]["eval/acc"] == pytest.approx((80 + 90 + 100 + 110 + 120) / 5000)
    assert s["mean_last_100"]["train/loss"] == pytest.approx(70.5)
    assert s["best"] == {"round_num": 60, "eval/acc": 0.9}
    assert s["mean_round_seconds"] == 0.5
    assert metrics_csv.summarize_rows(rows, "eval/acc", False)["best"]["round_num"] == 10
    empty = metrics_csv.summarize_rows(rows[:1], "eval/none", True)
    assert empty["best"] == {"round_num": None, "eval/none": None}
    assert empty["mean_last_50"]["train/loss"] is None


def test_client_metrics(tmp_path):
    path = str(tmp_path / "client_metrics.csv")
    metrics_csv.write_client_metrics(
        path,
        ["a", 'b,"c"', "d"],
        [3, None, 5],
        [2, 0, 1],
        {"loss": np.array([0.5, np.nan, 1 / 3]), "accuracy": np.array([1.0, np.nan, 0.0])},
    )
    assert read(path) == (
        "client_id,train_examples,test_examples,loss,accuracy\n"
        "a,3,2,0.5,1.0\n"
        '"b,""c""",,0,,\n'
        "d,5,1,0.3333333333333333,0.0\n"
    )


def test_json_has_null_for_what_is_not_finite(tmp_path):
    with outputs.ExperimentFolder(str(tmp_path), "x") as folder:
        content = {"a": math.nan, "b": [np.float32(0.5), {"c": math.inf}], "d": None, "e": True}
        folder.write_json("summary.json", content)
    assert json.loads(read(tmp_path / "x" / "summary.json")) == {
        "a": None,
        "b": [0.5, {"c": None}],
        "d": None,
        "e": True,
    }


def test_a_folder_made_for_a_run_that_is_refused_is_removed(tmp_path):
    (tmp_path / "there").mkdir()
    for root in ("there", "a/b"):
        with pytest.raises(KeyError), outputs.ExperimentFolder(str(tmp_path / root), "x/y"):
            assert os.path.exists(tmp_path / root / "x/y/.lock")
            raise KeyError
    assert [p.name for p in tmp_path.rglob("*")] == ["there"]
    with pytest.raises(KeyError), outputs.ExperimentFolder(str(tmp_path), "z") as folder:
        folder.write_json("summary.json", {})
        raise KeyError
    assert os.path.exists(tmp_path / "z" / "summary.json")
    # What was there before stays, empty or not.
    os.makedirs(tmp_path / "empty")
    with pytest.raises(KeyError), outputs.ExperimentFolder(str(tmp_path), "empty"):
        raise KeyError
    assert os.path.isdir(tmp_path / "empty")


def open_folder(root, settings=SETTINGS, may_change=("total_rounds",)):
    with outputs.ExperimentFolder(str(root), "x") as folder:
        return folder.resume_point(settings, may_change)


def recorded(root, flags=SETTINGS, round_num=None, identity=None):
    content = {"flags": flags, "start": {"stack": "current"}, "resumed": []}
    content["identity"] = identity or {}
    with outputs.ExperimentFolder(str(root), "x") as folder:
        folder.write_with_checksum("hparams.json", content)
    if round_num is not None:
        checkpoints.save(str(root / "x" / "checkpoints"), round_num, [np.ones(2)], flags)


def test_resume_point_of_an_empty_folder(tmp_path):
    assert open_folder(tmp_path) == (None, [])


def test_resume_point_is_the_newest_checkpoint(tmp_path):
    recorded(tmp_path, round_num=3)
    assert open_folder(tmp_path, {**SETTINGS, "total_rounds": 9})[0].round_num == 3


IDENTITY = {
    "method": {"version": 1},
    "task": {"version": 2},
    "suite": {"files": {"tasks/toy.py": "#12"}, "edited": ["tasks/toy.py"]},
    "code": {"my_task.py": {"load()": "#34"}},
    "values": {"loss, factor": "2.0"},
    "model": {"layers": "dense", "layer 1 (dense), initial weights": "(3,) #56 1.0 2.0"},
    "data": {"digest": "78", "training clients": 3},
    "own_functions": {"the evaluator norm": "#90"},
}


def test_an_identity_is_read_as_it_was_written(tmp_path):
    recorded(tmp_path, identity=IDENTITY)
    with outputs.ExperimentFolder(str(tmp_path), "x") as folder:
        assert folder.read_hparams()["identity"] == IDENTITY


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *((part, None) for part in IDENTITY),
        ("suite", {"files": None, "edited": []}),
        ("suite", {"files": {}, "edited": None}),
        ("suite", {"files": {}, "edited": [["tasks/toy.py"]]}),
        ("code", {"my_task.py": "#34"}),
        ("model", {"layers": ["dense"]}),
        ("data", {"digest": "78", "training clients": [3]}),
        ("data", {"digest": "78", "training clients": "three"}),
    ],
)
def test_an_identity_of_other_types_is_refused(tmp_path, part, value):
    recorded(tmp_path, identity={**IDENTITY, part: value})
    with pytest.raises(RunError, match="is damaged: parts of it are missing"):
        open_folder(tmp_path)


def test_all_differing_flags_are_named(tmp_path):
    recorded(tmp_path, round_num=3)
    changed = {"task": "toy", "seed": 2, "total_rounds": 5, "fedadam_tau": 0.1}
    with pytest.raises(RunError) as e:
        open_folder(tmp_path, changed)
    assert "--seed was 1, is 2" in str(e.value)
    assert "--fedadam_tau was absent, is 0.1" in str(e.value)
    assert "--task" not in str(e.value) and "--total_rounds" not in str(e.value)


def test_checkpoint_of_another_experiment_beside_our_hparams(tmp_path):
    recorded(tmp_path)
    folder = str(tmp_path / "x" / "checkpoints")
    checkpoints.save(folder, 3, [np.ones(2)], {**SETTINGS, "seed": 8})
    with pytest.raises(RunError, match="--seed was 8, is 1"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("hparams.json", "{", "hparams.json is damaged"),
        ("hparams.json", "[]", "hparams.json is damaged"),
        ("hparams.json", "{}", "hparams.json was changed"),
        ("metrics.csv", "round_num,a\n1,2\n", "no checkpoint to resume from"),
    ],
)
def test_damaged_folder(tmp_path, name, content, match):
    recorded(tmp_path)
    with open(tmp_path / "x" / name, "w") as f:
        f.write(content)
    with pytest.raises(RunError, match=match):
        open_folder(tmp_path)


def test_results_without_hparams_are_not_overwritten(tmp_path):
    recorded(tmp_path, round_num=3)
    os.remove(tmp_path / "x" / "hparams.json")
    with pytest.raises(RunError, match=r"no hparams.json"):
        open_folder(tmp_path)


def test_second_process_is_refused_and_the_lock_ends_with_the_first(tmp_path):
    with outputs.ExperimentFolder(str(tmp_path), "x"):
        with pytest.raises(RunError, match="Another process is running in"):
            with outputs.ExperimentFolder(str(tmp_path), "x"):
                pass
    with outputs.ExperimentFolder(str(tmp_path), "x"):
        pass


def test_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"Cannot use .*file.*: Not a directory"):
        with outputs.ExperimentFolder(str(tmp_path / "file"), "x"):
            pass


def test_tensorboard_leaves_an_experiment_of_that_name(tmp_path):
    """`--experiment_name=` has the results in --root_output_dir itself, beside the others."""
    other = tmp_path / "tensorboard" / "hparams.json"
    other.parent.mkdir()
    other.touch()
    tensorboard.TensorBoard(str(tmp_path), []).close()
    assert other.exists()


@pytest.mark.parametrize("flushed_after", [0.0, 10.0])
def test_tensorboard_tells_of_a_full_disk_as_the_system_does(
    tmp_path, monkeypatch, capfd, flushed_after
):
    import tensorflow as tf

    monkeypatch.setattr(tensorboard, "_SECONDS_TO_FLUSH", flushed_after)
    board = tensorboard.TensorBoard(str(tmp_path), [])
    board._writer.close()
    board._writer = tf.io.TFRecordWriter("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        board.write(1, {"a": 1.0})
        assert flushed_after, "it is told at once"
        board.close()
    del board
    assert "Traceback" not in capfd.readouterr().err
    assert not [t for t in threading.enumerate() if "Writer" in type(t).__name__]
