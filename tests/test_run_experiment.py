"""The command as a user runs it: results, wrong input, kills and signals."""

import contextlib
import csv
import hashlib
import importlib.util
import inspect
import json
import os
import pathlib
import re
import resource
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

import run_experiment
import tasks
from simulation import experiment, runs, runtimes
from simulation.records import checkpoints
from tests import metrics_page
from tff_suite import command_line

pytestmark = pytest.mark.usefixtures("traced_once")

_REPO = pathlib.Path(__file__).resolve().parent.parent
TOY = (
    "--import=tests.simulation.toy_extension",
    "--task=toy",
    "--algorithm=fedavgm",
    "--total_rounds=8",
    "--clients_per_round=3",
    "--client_batch_size=3",
    "--client_epochs_per_round=2",
    "--client_learning_rate=0.3",
    "--rounds_per_checkpoint=3",
    "--rounds_per_eval=2",
)
SMALL = (
    "--task=synthetic",
    "--synthetic_num_clients=6",
    "--synthetic_max_examples=30",
    "--algorithm=fedavg",
    "--total_rounds=4",
    "--clients_per_round=3",
    "--client_batch_size=5",
    "--client_learning_rate=0.05",
)


def start(*arguments, folder, log):
    """Starts the command with `folder` as working directory; output goes to files."""
    # Files, not pipes: TFF's worker may hold a pipe open longer than the run lasts.
    # A user's environment does not have what these tests set for themselves.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TF_CPP")}
    with open(f"{log}.out", "w") as out, open(f"{log}.err", "w") as err:
        return subprocess.Popen(
            [sys.executable, str(_REPO / "run_experiment.py"), *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )


def command(*arguments, folder, log="log", timeout=120):
    """Runs the command; returns exit code (minus the signal, if killed), stdout and stderr."""
    log = os.path.join(folder, log)
    process = start(*arguments, folder=folder, log=log)
    try:
        code = process.wait(timeout)
    finally:
        process.kill()
        process.wait()
    return code, *(pathlib.Path(f"{log}.{kind}").read_text() for kind in ("out", "err"))


def rows_but_times(folder):
    with open(folder / "metrics.csv", newline="") as f:
        return [
            {k: v for k, v in r.items() if not k.startswith("time/")} for r in csv.DictReader(f)
        ]


def tensorboard_values(folder):
    """Returns all scalars of metrics.csv but times as sorted (tag, step, bits)."""
    from tensorboard.backend.event_processing import event_file_loader
    from tensorboard.util import tensor_util

    values = []
    for path in folder.glob("events.out.tfevents.*"):
        for event in event_file_loader.EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if not value.tag.startswith(("time/", "at_a_glance/", "_hparams_/")):
                    number = tensor_util.make_ndarray(value.tensor)
                    values.append((value.tag, event.step, number.tobytes()))
    return sorted(values)


def bytes_of(folder):
    return {
        str(p.relative_to(folder)): (
            hashlib.sha256(p.read_bytes()).hexdigest(),
            p.stat().st_mtime_ns,
        )
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def assert_same_run(got, want):
    assert rows_but_times(got) == rows_but_times(want)
    assert tensorboard_values(got) == tensorboard_values(want)
    assert (got / "client_metrics.csv").read_bytes() == (want / "client_metrics.csv").read_bytes()
    newest = [checkpoints.load_newest(str(f / "checkpoints"))[0] for f in (got, want)]
    assert newest[0].round_num == newest[1].round_num
    for a, b in zip(newest[0].leaves, newest[1].leaves, strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
    summaries = [json.loads((f / "summary.json").read_text()) for f in (got, want)]
    for summary in summaries:
        del summary["mean_round_seconds"]
        # A run's own: its id, and digests of that and of times.
        for name in ("run_id", "seal", "seals"):
            del summary[name]
    assert summaries[0] == summaries[1]


# What a user writes, in one process.


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished small run."""
    root = tmp_path_factory.mktemp("finished")
    assert run_experiment.main([*SMALL, f"--root_output_dir={root}", "--rounds_per_eval=2"]) == 0
    return root / "synthetic_fedavg"


def test_output_folder_is_complete(finished):
    names = {p.name for p in finished.iterdir()} - {".lock"}
    (events,) = (name for name in names if name.startswith("events.out.tfevents."))
    assert names - {events} == {
        "hparams.json",
        "metrics.csv",
        "client_metrics.csv",
        "summary.json",
        "data_digests.json",
        "checkpoints",
        "model",
    }


def test_what_is_recorded_on_request(tmp_path):
    """Clients' training losses, who improved, and accuracies by class, which add up."""
    from reproduction import run_folders

    folder = tmp_path / "synthetic_fedavg"
    flags = ("--evaluate_improvement", "--track_clients=extremes", "--evaluate_classes")
    given = [*SMALL, f"--root_output_dir={tmp_path}", "--rounds_per_eval=2", *flags]
    assert run_experiment.main(given) == 0
    run = run_folders.read_run(str(folder))
    assert metrics_page.undefined(run.metrics.columns) == []
    improved = run.metrics["fairness/improved_fraction"]
    assert np.isnan(improved[0]) and improved[1:].between(0, 1).all()
    # Cohorts of three.
    np.testing.assert_allclose(3 * improved[1:] % 1, 0, atol=1e-9)
    tracked = run_folders.tracked_losses([run])
    assert tracked.groupby("client").round_num.apply(list).tolist() == [[0, 2, 4]] * 2
    first = tracked[tracked.round_num == 0].value
    assert first.min() < first.max()

    task = tasks.load("synthetic", num_clients=6, max_examples=30)
    labels = np.concatenate([task.test.examples(k).y for k in range(6)])
    last = run.metrics.iloc[-1]
    by_class = [last[f"eval/accuracy_class_{c}"] for c in range(10)]
    counts = np.bincount(labels, minlength=10)
    assert [np.isnan(a) for a in by_class] == [n == 0 for n in counts]
    assert np.nansum(by_class * counts) / counts.sum() == pytest.approx(last["eval/accuracy"])
    assert f"accuracy_class_{labels[0]}" in run.clients.columns


def test_a_client_that_is_not_there_is_one_line(tmp_path, capsys):
    given = [*SMALL, f"--root_output_dir={tmp_path}", "--track_clients=0,nobody"]
    assert run_experiment.main(given) == 2
    assert "there is no client 'nobody'" in capsys.readouterr().err


def test_metrics_have_a_row_a_round_in_groups(finished):
    with open(finished / "metrics.csv", newline="") as f:
        reader = csv.DictReader(f)
        columns, rows = reader.fieldnames, list(reader)
    assert columns[0] == "round_num"
    groups = [c.split("/")[0] for c in columns[1:]]
    assert list(dict.fromkeys(groups)) == ["train", "eval", "fairness", "time"]
    assert groups == sorted(groups, key=["train", "eval", "fairness", "time"].index)
    assert [r["round_num"] for r in rows] == ["0", "1", "2", "3", "4"]
    assert [bool(r["eval/accuracy"]) for r in rows] == [True, False, True, False, True]
    assert [bool(r["train/loss"]) for r in rows] == [False, True, True, True, True]
    assert {"train/clients_dropped", "eval/loss", "time/round_seconds"} <= set(columns)
    assert {"fairness/accuracy_avg_u", "fairness/accuracy_worst30_w"} <= set(columns)


def test_summary_client_metrics_and_fairness_agree(finished):
    final = json.loads((finished / "summary.json").read_text())
    assert final["finished"] and final["rounds"] == 4
    with open(finished / "client_metrics.csv", newline="") as f:
        clients = list(csv.DictReader(f))
    assert len(clients) == 6
    accuracy = np.array([float(c["accuracy"]) for c in clients])
    sizes = np.array([int(c["test_examples"]) for c in clients])
    final = final["final"]
    assert final["fairness/accuracy_avg_u"] == pytest.approx(accuracy.mean())
    assert final["fairness/accuracy_std_u"] == pytest.approx(accuracy.std())
    pooled = (accuracy * sizes).sum() / sizes.sum()
    assert final["fairness/accuracy_avg_w"] == pytest.approx(pooled)
    trained_on = tasks.load("synthetic", num_clients=6, max_examples=30).train.sizes
    assert final["fairness/accuracy_avg_t"] == pytest.approx(
        np.average(accuracy, weights=trained_on)
    )
    # The central test of this task is all clients' test examples together.
    assert final["eval/accuracy"] == pytest.approx(pooled)
    # The last row was evaluated on the same model and, here, on the same examples.
    assert float(rows_but_times(finished)[-1]["eval/accuracy"]) == final["eval/accuracy"]


def test_hparams_say_all_that_was_in_force(finished):
    hparams = json.loads((finished / "hparams.json").read_text())
    assert hparams["flags"]["client_learning_rate"] == 0.05
    assert hparams["flags"]["server_learning_rate"] == 1.0
    assert hparams["flags"]["synthetic_num_clients"] == 6
    assert hparams["start"]["versions"]["tensorflow-federated"] == "0.87.0"
    assert hparams["start"]["device"] == runtimes.device_description()
    assert "git_commit" in hparams["start"] and hparams["resumed"] == []


def test_tensorboard_has_the_numbers_of_the_csv(finished):
    want = sorted(
        (column, int(row["round_num"]), np.float32(row[column]).tobytes())
        for row in rows_but_times(finished)
        for column in row
        if column != "round_num" and row[column]
    )
    assert tensorboard_values(finished) == want


def test_tensorboard_shows_runs_by_name_with_their_settings_and_what_matters_first(finished):
    """As TensorBoard's own server reads them, the HParams tab by the plugin's API."""
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(finished.parent))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(finished.parent))
    board = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request_context = context.RequestContext()
    runs = provider.list_runs(request_context, experiment_id="")
    assert [run.run_name for run in runs] == ["synthetic_fedavg"]
    hparams = board.hparams_metadata(request_context, "")
    read = board.experiment_from_metadata
    # TensorBoard 2.14 has the metrics in any case.
    named = inspect.signature(read).parameters
    with_metrics = {"include_metrics": True} if "include_metrics" in named else {}
    experiment = read(
        request_context,
        "",
        hparams_run_to_tag_to_content=hparams,
        data_provider_hparams=[],
        **with_metrics,
    )
    names = {info.name for info in experiment.hparam_infos}
    assert {"client_learning_rate", "algorithm", "seed", "total_rounds"} < names
    assert not names & {"root_output_dir", "experiment_name", "data_dir"}
    metrics = [info.name.tag for info in experiment.metric_infos]
    assert metrics[0] == "at_a_glance/eval_accuracy" and "eval/accuracy" in metrics
    assert metrics == sorted(metrics), "TensorBoard's order, by which the group is the first"
    asked = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=10,
        allowed_statuses=[api_pb2.Status.Value("STATUS_SUCCESS")],
        col_params=[api_pb2.ColParams(hparam="client_learning_rate")],
    )
    handler = list_session_groups.Handler(request_context, board, "", asked)
    (group,) = handler.run().session_groups
    recorded = json.loads((finished / "hparams.json").read_text())["flags"]
    for name in ("client_learning_rate", "seed"):
        assert group.hparams[name].number_value == recorded[name]
    assert group.hparams["algorithm"].string_value == "fedavg"
    values = {v.name.tag: v.value for v in group.metric_values}
    last = rows_but_times(finished)[-1]
    assert np.float32(values["at_a_glance/eval_accuracy"]) == np.float32(last["eval/accuracy"])


def what_next(folder, more="with more --total_rounds"):
    """The last lines of a run; `more` says how its command goes on."""
    python = command_line.python()
    plot = [python, "-m", "reproduction.plots", "curves", str(folder), "--output=curves.png"]
    compare = [python, "reproduce.py", "--compare", str(folder), "OTHER_RUN"]
    return [
        f"Results are in {folder}. Next:",
        *command_line.to_try("plot:", plot).splitlines(),
        *command_line.to_try("compare:", compare).splitlines(),
        f"  go on:    the same command {more}",
    ]


def test_a_run_names_its_numbers_and_ends_with_what_to_do_next(tmp_path, capfd):
    arguments = [*SMALL, f"--root_output_dir={tmp_path}"]
    assert run_experiment.main(arguments) == 0
    out = capfd.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("round 4/4 ")]
    assert re.fullmatch(r"round 4/4  train_loss \S+  test_accuracy \S+  .* s/round  .* left", line)
    wanted = what_next(tmp_path / "synthetic_fedavg")
    assert out.splitlines()[-len(wanted) :] == wanted
    assert run_experiment.train(arguments) == 0
    out = capfd.readouterr().out
    assert len(out.splitlines()) == 1, "a sweep has what is next of its own"


@pytest.mark.parametrize(
    ("flag", "more"),
    [("--max_minutes=0.0001", "again"), ("--stop_at=train/loss<=1e9", "with another --stop_at")],
)
def test_a_run_that_ended_early_says_how_it_goes_on(tmp_path, capfd, flag, more):
    assert run_experiment.main([*SMALL, f"--root_output_dir={tmp_path}", flag]) == 0
    wanted = what_next(tmp_path / "synthetic_fedavg", more)
    assert capfd.readouterr().out.splitlines()[-len(wanted) :] == wanted


def test_a_quiet_run_prints_warnings_and_errors_only(tmp_path, capfd):
    try:
        assert run_experiment.main([*SMALL, "-q", f"--root_output_dir={tmp_path}"]) == 0
        out, err = capfd.readouterr()
        assert (out, err) == ("", "")
        more = ["-q", f"--root_output_dir={tmp_path}", "--experiment_name=other", "--profile=99"]
        assert run_experiment.main([*SMALL, *more]) == 0
        out, err = capfd.readouterr()
        assert not out and err.startswith("warning: --profile=99: these rounds were not done")
        assert run_experiment.main([*SMALL, "-q", "--task=nothing"]) == 2
        assert "Unknown task nothing" in capfd.readouterr().err
    finally:
        command_line.set_verbosity(0)


def test_finished_run_says_so_and_changes_nothing(finished, capfd):
    before = bytes_of(finished)
    arguments = [*SMALL, f"--root_output_dir={finished.parent}", "--rounds_per_eval=2"]
    assert run_experiment.main(arguments) == 0
    out, err = capfd.readouterr()
    first, *after = out.splitlines()
    assert "is finished" in first and after == what_next(finished) and not err
    assert run_experiment.main([*arguments, "--evaluate_classes"]) == 0
    out, err = capfd.readouterr()
    assert "is finished" in out and err.count("\n") == 1
    assert "was finished without --evaluate_classes=True, which only counts in new" in err
    assert bytes_of(finished) == before


def test_run_can_be_extended_and_equals_one_of_that_length(finished, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for root, rounds in ((parts, 3), (parts, 5), (whole, 5)):
        arguments = [*SMALL, f"--root_output_dir={root}", f"--total_rounds={rounds}"]
        assert run_experiment.main(arguments) == 0
    assert_same_run(parts / "synthetic_fedavg", whole / "synthetic_fedavg")
    hparams = json.loads((parts / "synthetic_fedavg" / "hparams.json").read_text())
    assert hparams["flags"]["total_rounds"] == 5
    assert [s["round_num"] for s in hparams["resumed"]] == [3]


def test_damaged_newest_checkpoint_costs_rounds_not_the_run(finished, tmp_path, capfd):
    arguments = [*SMALL, f"--root_output_dir={tmp_path}", "--rounds_per_eval=2"]
    short = [*arguments, "--rounds_per_checkpoint=1", "--total_rounds=3"]
    assert run_experiment.main(short) == 0
    folder = tmp_path / "synthetic_fedavg"
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-5])
    capfd.readouterr()
    assert run_experiment.main(arguments) == 0
    assert f"{newest} is damaged" in capfd.readouterr().err
    assert_same_run(folder, finished)
    # The damaged one is none of the two that are kept.
    assert checkpoints.rounds(str(folder / "checkpoints")) == [2, 4]


def test_out_of_time_stops_with_results_and_goes_on(finished, tmp_path, capfd):
    arguments = [*SMALL, f"--root_output_dir={tmp_path}", "--rounds_per_eval=2"]
    folder = tmp_path / "synthetic_fedavg"
    for done in (1, 2):
        assert run_experiment.main([*arguments, "--max_minutes=0.0001"]) == 0
        out = capfd.readouterr().out
        assert f"{done} of 4 rounds are done" in out and "same command again" in out
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["rounds"] == done and not summary["finished"]
    assert run_experiment.main(arguments) == 0
    assert_same_run(folder, finished)


def test_part_of_the_central_test_during_the_run_all_of_it_at_the_end(finished, tmp_path):
    arguments = [*SMALL, f"--root_output_dir={tmp_path}", "--num_validation_examples=5"]
    assert run_experiment.main(arguments) == 0
    folder = tmp_path / "synthetic_fedavg"
    during = [float(row["eval/accuracy"]) * 5 for row in rows_but_times(folder)]
    assert during == pytest.approx(np.round(during))
    whole, part = (json.loads((f / "summary.json").read_text()) for f in (finished, folder))
    assert part["final"] == whole["final"]


def test_diverged_run_is_one_line_and_keeps_its_rows(tmp_path, capfd):
    arguments = [*SMALL, f"--root_output_dir={tmp_path}", "--server_learning_rate=1e38"]
    assert run_experiment.main([*arguments, "--client_learning_rate=1e20"]) == 3
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and "not finite" in error
    assert len(rows_but_times(tmp_path / "synthetic_fedavg")) > 1
    (run,) = runs.find(str(tmp_path))
    assert run.state == "diverged" and f"error: {run.note}" == error


@pytest.mark.parametrize(("rate", "says"), [("5e37", "larger than 1e+10"), ("1e8", "10 rounds in")])
def test_a_run_whose_model_stays_finite_has_diverged(rate, says, tmp_path, capfd):
    """Its weights or its losses are far too large; the same command ends in the same round."""
    arguments = [
        *("--task=synthetic", "--algorithm=fedavg", "--total_rounds=20", "--clients_per_round=6"),
        *("--client_optimizer=adam", f"--client_learning_rate={rate}", "--client_batch_size=30"),
        *("--client_weighting=uniform", "--synthetic_num_clients=20"),
        *(f"--root_output_dir={tmp_path}", "--experiment_name=run"),
    ]
    lines, tables = [], []
    for _ in range(2):
        assert run_experiment.main(arguments) == 3
        lines.append(capfd.readouterr().err.splitlines()[-1])
        tables.append(rows_but_times(tmp_path / "run"))
    assert lines[0] == lines[1] and says in lines[0]
    assert tables[0] == tables[1]
    assert not (tmp_path / "run" / "summary.json").exists()


# Wrong input.


def error_line(capfd, arguments, code):
    assert run_experiment.main(arguments) == code
    err = capfd.readouterr().err
    assert len(err.splitlines()) == 1 and err.startswith("error: "), err
    return err


def test_more_clients_than_there_are(tmp_path, capfd):
    arguments = [*SMALL, f"--root_output_dir={tmp_path}", "--clients_per_round=7"]
    line = error_line(capfd, arguments, 2)
    assert "--clients_per_round=7" in line and "6 clients" in line


def test_fewer_rounds_than_are_done(finished, capfd):
    arguments = [*SMALL, f"--root_output_dir={finished.parent}", "--rounds_per_eval=2"]
    before = bytes_of(finished)
    assert "4 rounds already" in error_line(capfd, [*arguments, "--total_rounds=2"], 2)
    assert bytes_of(finished) == before


def test_folder_of_another_experiment(finished, capfd):
    arguments = [*SMALL, f"--root_output_dir={finished.parent}", "--rounds_per_eval=2"]
    before = bytes_of(finished)
    line = error_line(capfd, [*arguments, "--client_learning_rate=0.1", "--seed=4"], 1)
    assert "--client_learning_rate was 0.05, is 0.1" in line and "--seed was 0, is 4" in line
    assert bytes_of(finished) == before


def test_checkpoint_of_a_state_of_another_form(finished, tmp_path, capfd):
    arguments = [*SMALL, f"--root_output_dir={tmp_path}"]
    assert run_experiment.main([*arguments, "--total_rounds=2"]) == 0
    folder = str(tmp_path / "synthetic_fedavg" / "checkpoints")
    good = checkpoints.load_newest(folder)[0]
    checkpoints.save(folder, good.round_num, good.leaves[:-1], good.settings, good.checksums)
    capfd.readouterr()
    assert "structure differs" in error_line(capfd, arguments, 1)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("metrics.csv", lambda p: p.unlink()),
        ("metrics.csv", lambda p: p.write_text(p.read_text().replace("\n1,", "\n1,1"))),
        ("hparams.json", lambda p: p.write_text(p.read_text().replace("0.87.0", "0.88.0"))),
        (
            "summary.json",
            lambda p: p.write_text(p.read_text().replace('"rounds": 2', '"rounds": 4')),
        ),
        ("client '3' of train", None),
    ],
)
def test_altered_files_and_data_are_refused(tmp_path, capfd, monkeypatch, name, damage):
    from tasks.datasets import synthetic

    arguments = [*SMALL, f"--root_output_dir={tmp_path}"]
    assert run_experiment.main([*arguments, "--total_rounds=2"]) == 0
    if damage:
        damage(tmp_path / "synthetic_fedavg" / name)
    else:
        made = synthetic.leaf_clients

        def altered(*given):
            clients = made(*given)
            clients[3].y[:] = 9 - clients[3].y
            return clients

        monkeypatch.setattr(synthetic, "leaf_clients", altered)
    capfd.readouterr()
    before = bytes_of(tmp_path)
    line = error_line(capfd, arguments, 1 if damage else 2)
    assert name in line and "restore" in line
    assert bytes_of(tmp_path) == before


def test_altered_client_states_are_refused_and_nothing_is_lost(tmp_path, capfd):
    arguments = [*SMALL, "--algorithm=scaffold", f"--root_output_dir={tmp_path}"]
    for rounds in (1, 2):  # Whole files are gone on with.
        assert run_experiment.main([*arguments, f"--total_rounds={rounds}"]) == 0
    with contextlib.closing(
        sqlite3.connect(tmp_path / "synthetic_scaffold" / "client_states.sqlite")
    ) as db:
        db.execute("DELETE FROM states WHERE rowid = (SELECT MAX(rowid) FROM states)")
        db.commit()
    capfd.readouterr()
    before = bytes_of(tmp_path)
    line = error_line(capfd, arguments, 1)
    assert "client_states.sqlite does not hold" in line and "restore" in line
    assert bytes_of(tmp_path) == before


def test_all_checkpoints_damaged(finished, tmp_path, capfd):
    arguments = [*SMALL, f"--root_output_dir={tmp_path}"]
    assert run_experiment.main([*arguments, "--total_rounds=2"]) == 0
    for path in (tmp_path / "synthetic_fedavg" / "checkpoints").iterdir():
        path.write_bytes(b"")
    capfd.readouterr()
    before = bytes_of(tmp_path)
    assert "is damaged" in error_line(capfd, arguments, 1)
    assert bytes_of(tmp_path) == before


def test_plan_that_depends_on_the_number_of_rounds_cannot_be_extended(tmp_path, capfd, monkeypatch):
    import dataclasses

    from tff_algos import registry

    def plan(settings, round_index, total_rounds):
        late = round_index >= total_rounds - 2
        return registry.RoundPlan(cohort="all" if late else "sampled")

    phased = dataclasses.replace(registry.get("fedavg"), name="phased", plan=plan)
    monkeypatch.setattr(registry, "_SPECS", {**registry._SPECS, "phased": phased})
    arguments = [*SMALL, "--algorithm=phased", f"--root_output_dir={tmp_path}"]
    assert run_experiment.main(arguments) == 0
    cohorts = [r["train/num_clients"] for r in rows_but_times(tmp_path / "synthetic_phased")]
    assert cohorts == ["", "3.0", "3.0", "6.0", "6.0"]
    capfd.readouterr()
    line = error_line(capfd, [*arguments, "--total_rounds=6"], 2)
    assert "--total_rounds=6 cannot replace 4: " in line and "completed round 3 for 4" in line


_EARLY = """
import io, contextlib, json, sys
sys.path.insert(0, {repo!r})
results = []
import run_experiment
for arguments in json.loads({cases!r}):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_experiment.main(arguments)
    results.append((code, out.getvalue(), err.getvalue(), "tensorflow" in sys.modules))
print(json.dumps(results))
"""


def test_wrong_input_is_refused_in_one_line_before_tensorflow_is_imported(finished, tmp_path):
    (tmp_path / "file").write_text("")
    damaged = tmp_path / "synthetic_fedavg"
    damaged.mkdir()
    (damaged / "hparams.json").write_text("{")
    here = [*SMALL, f"--root_output_dir={finished.parent}", "--rounds_per_eval=2"]
    new = [f"--root_output_dir={tmp_path}/new"]
    trackers = {"wandb": "--wandb_project=x", "mlflow": "--mlflow_uri=x"}
    missing = [flag for name, flag in trackers.items() if importlib.util.find_spec(name) is None]
    cases = [
        ([], 2, "--task"),
        ([*SMALL, "--task=nothing"], 2, "Unknown task nothing"),
        ([*SMALL, "--algorithm=nothing"], 2, "Unknown algorithm nothing"),
        ([*SMALL, "--fedadam_beta1=0.5"], 2, "--fedadam_beta1"),
        ([*SMALL, "--client_learning_rate=-1"], 2, "--client_learning_rate=-1"),
        ([*SMALL, "--client_learning_rte=1"], 2, "Did you mean --client_learning_rate?"),
        ([*SMALL, "--client_momentum=0.1"], 2, "client_optimizer=sgd"),
        ([*SMALL, f"--root_output_dir={tmp_path}/file"], 1, "Not a directory"),
        ([*SMALL, f"--root_output_dir={tmp_path}"], 1, "hparams.json is damaged"),
        ([*here, "--seed=9"], 1, "--seed was 0, is 9"),
        ([*here, "--total_rounds=1"], 2, "4 rounds already"),
        ([*SMALL, *new, "--clients_per_round=7"], 2, "--clients_per_round=7 is more than the 6"),
        ([*SMALL, *new, "--track_clients=0,6"], 2, "there is no client '6'"),
        ([*SMALL, *new, "--synthetic_alpha=1"], 2, "alpha is not used with generator=leaf"),
        ([*SMALL, *new, "--synthetic_label_noise=0.1"], 2, "not used with noisy_clients=0.0"),
        ([*SMALL, *new, "--initial_weights=nowhere.keras"], 1, "there is no such file"),
        *(([*SMALL, *new, flag], 1, "make venv-tracking") for flag in missing),
        (["--task=synthetic", "--algorithm=fedadam", "--help"], 0, ""),
        (here, 0, ""),
    ]
    text = _EARLY.format(repo=str(_REPO), cases=json.dumps([arguments for arguments, *_ in cases]))
    result = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    results = json.loads(result.stdout)
    for (arguments, want_code, words), (code, out, err, tensorflow) in zip(
        cases, results, strict=True
    ):
        assert code == want_code, (arguments, err)
        assert not tensorflow, arguments
        assert words in err
        assert len(err.splitlines()) == (1 if code else 0)
        assert bool(out) == (code == 0)
    assert not (tmp_path / "new").exists(), "nothing is claimed by a run that is refused"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(28, "No space left on device", "/full/x"), 1, "Cannot use /full/x: No space left"),
        (OSError("x.sqlite: database or disk is full"), 1, "x.sqlite: database or disk is full"),
        (MemoryError("Unable to allocate 9 TiB"), 1, "Out of memory (Unable to allocate 9 TiB)"),
        (MemoryError(), 1, "Out of memory (no more is free)"),
        (KeyboardInterrupt(), 130, "stopped by SIGINT"),
    ],
)
def test_what_the_system_refuses_is_one_line(capfd, monkeypatch, error, code, words):
    def fail(*_):
        raise error

    monkeypatch.setattr(experiment, "run", fail)
    assert words in error_line(capfd, list(SMALL), code)


def test_wrong_flag_takes_less_than_a_second_and_a_half(tmp_path):
    # Processor time, so that a busy machine does not fail the test.
    def seconds():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = seconds()
    code, out, err = command(*SMALL, "--task=nothing", folder=tmp_path)
    assert code == 2 and not out and len(err.splitlines()) == 1
    assert seconds() - before < 1.5


def test_missing_data_is_one_line(tmp_path):
    arguments = [a for a in SMALL if "synthetic" not in a]
    arguments += ["--task=mnist_writers", f"--data_dir={tmp_path}"]
    code, out, err = command(*arguments, folder=tmp_path)
    assert code == 1 and not out
    assert len(err.splitlines()) == 1 and str(tmp_path) in err and "Traceback" not in err
    assert not (tmp_path / "results").exists(), "nothing is claimed by a run that is refused"


# Kills. Each module is imported by the run that it is to disturb, and only by that one.

_KILL = "import os, signal\nkill = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"


def _in_append(round_num, before="pass"):
    return f"""
from simulation.records import metrics_csv
original = metrics_csv.MetricsCsv.append
def append(self, round_num, values):
    if round_num == {round_num}:
        {before}
        kill()
    original(self, round_num, values)
metrics_csv.MetricsCsv.append = append
"""


def _in_replace(suffix, after, nth=1):
    return f"""
original, seen = os.replace, []
def replace(source, target):
    if target.endswith({suffix!r}):
        seen.append(target)
        if len(seen) == {nth}:
            if {after}:
                original(source, target)
            kill()
    original(source, target)
os.replace = replace
"""


def _signal_in_round(round_num, name):
    # Not where the round's data is made, which may be a round ahead.
    return f"""
from simulation.engine.process import EngineProcess
original = EngineProcess.next
def next_round(process, state, *rest):
    if int(state.round_num) + 1 == {round_num}:
        os.kill(os.getpid(), signal.{name})
    return original(process, state, *rest)
EngineProcess.next = next_round
"""


_TORN = "self._file.write('5,0.12'); self._file.flush()"
_NO_CHECKPOINT = _in_replace(".checkpoint", False)
_KILLED = -signal.SIGKILL
# One after the other in one folder: what is disturbed, by what module, the exit code, and the
# rounds that have a checkpoint afterwards.
SOME_DISTURBANCES = [
    ("row 5, half written", _in_append(5, _TORN), _KILLED, [0, 3]),
    ("summary.json", _in_replace("summary.json", False), _KILLED, [6, 8]),
]
ALL_DISTURBANCES = [
    ("row 0", _in_append(0), _KILLED, []),
    ("first checkpoint", _NO_CHECKPOINT, _KILLED, []),
    ("round 2", _signal_in_round(2, "SIGKILL"), _KILLED, [0]),
    ("SIGTERM in round 2", _signal_in_round(2, "SIGTERM"), 143, [0, 2]),
    ("row 5, half written", _in_append(5, _TORN), _KILLED, [2, 3]),
    ("checkpoint of round 6", _NO_CHECKPOINT, _KILLED, [2, 3]),
    ("SIGINT in round 5", _signal_in_round(5, "SIGINT"), 130, [3, 5]),
    ("removal of old checkpoints", _in_replace(".checkpoint", True), _KILLED, [3, 5, 6]),
    ("rewriting rows", _in_replace("metrics.csv", False), _KILLED, [3, 5, 6]),
    ("client_metrics.csv", _in_replace("client_metrics.csv", False), _KILLED, [6, 8]),
    ("summary.json", _in_replace("summary.json", False), _KILLED, [6, 8]),
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    from tests.reliability import runs  # Which itself uses what is above.

    root = tmp_path_factory.mktemp("uninterrupted")
    code, _, err = runs.run(TOY, root)
    assert code == 0, err
    assert err == ""
    return root / "results" / "toy_fedavgm"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.quick_cases("some")
@pytest.mark.parametrize("disturbances", [SOME_DISTURBANCES, ALL_DISTURBANCES], ids=["some", "all"])
def test_killed_again_and_again_it_ends_as_if_it_had_not_been(
    uninterrupted, tmp_path, disturbances
):
    from tests.reliability import runs

    folder = tmp_path / "results" / "toy_fedavgm"
    for i, (what, code, want, rounds) in enumerate(disturbances):
        (tmp_path / f"disturb_{i}.py").write_text(_KILL + code)
        # Not as a command of its own, most of which is imports: the one that ends well is.
        got, out, err = runs.run([*TOY, f"--import=disturb_{i}"], tmp_path)
        assert got == want, (what, out, err)
        assert checkpoints.rounds(str(folder / "checkpoints")) == rounds, what
        assert err == "", what
        if want > 0:
            assert f"{rounds[-1]} of 8 rounds are done" in out and "same command again" in out
    code, out, err = command(*TOY, folder=tmp_path)
    assert code == 0 and err == "", err
    assert_same_run(folder, uninterrupted)
    before = bytes_of(folder)
    code, out, err = runs.run(TOY, tmp_path)
    assert code == 0 and err == "" and "is finished" in out
    assert bytes_of(folder) == before
    leftovers = [p.name for p in folder.rglob("*.tmp")]
    assert leftovers == []
