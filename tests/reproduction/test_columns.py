"""What an item shows of its runs is known before them, or when the first of a row has ended."""

import contextlib
import csv
import json
import pathlib
import types

import pytest

import reproduce
import tasks
from reproduction import columns, items, sweep
from reproduction.items import ReproduceError
from simulation import experiment_flags
from simulation.measures import columns as written
from tests import metrics_page
from tests.reproduction import test_own_items

RUN = (
    "--task=synthetic\n--algorithm=fedavg\n--clients_per_round=2\n--client_batch_size=5\n"
    "--client_learning_rate=0.1\n"
)
WHOLE = test_own_items.WHOLE.replace("[setups.s.rows]", 'curve = "eval/accuracy"\n[setups.s.rows]')


def request(*flags):
    return experiment_flags.parse([*RUN.split(), "--total_rounds=2", *flags])


def setup_of(folder, text=WHOLE, flags=RUN):
    (folder / "a.flags").write_text(flags)
    (folder / "x.toml").write_text(text)
    (item,) = items.own_items(str(folder))
    return item.setups["s"]


def test_every_column_that_is_foreseen_is_defined():
    measures = ["--evaluate_all_local_data", "--evaluate_improvement", "--track_clients=a,b"]
    for flags in (
        ["--algorithm=fedcorr", "--synthetic_noisy_clients=0.5"],
        ["--algorithm=adafed", "--server_learning_rate=1", "--clients_per_chunk=2", "--workers=1"],
        ["--task=fashion_mnist", "--fashion_mnist_partition=class", *measures[:2]],
        ["--task=stackexchange", "--stackexchange_kind=word", *measures],
    ):
        foreseen = written.in_rounds(request(*flags))
        assert metrics_page.undefined(foreseen.names) == [] and not foreseen.beginnings


@pytest.mark.parametrize(
    ("flags", "columns", "others"),
    [
        ([], ["train/loss", "fairness/accuracy_worst30_t"], ["eval/mse", "train/direction_norm"]),
        ([], ["time/round_seconds"], ["time/up_mb", "fairness_all/accuracy_avg_u"]),
        (["--algorithm=ditto"], ["train/personal_diverged"], ["train/stage"]),
        (["--evaluate_classes"], ["eval/accuracy_class_3"], ["eval/accuracy_klass_3"]),
        (["--evaluate_improvement"], ["fairness/improved_fraction"], ["client_loss/0"]),
        (["--track_clients=extremes"], ["client_loss/0"], ["noise/recall"]),
        (["--aggregator=robust"], ["train/aggregator/clipping"], ["train/aggregated"]),
    ],
)
def test_columns_are_those_of_task_method_and_flags(flags, columns, others):
    foreseen = written.in_rounds(request(*flags))
    assert all(map(foreseen.may_have, columns))
    assert not any(map(foreseen.may_have, others))
    assert not any(map(written.in_rounds(request()).may_have, columns)) or not flags


SAID = "is not a column of metrics.csv in runs of fedavg; "


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('metric = "eval/accuracy"', 'metric = "eval/accurcy"', f"columns.a: eval/accurcy {SAID}"),
        ('metric = "eval/accuracy"', 'metric = "eval/accurcy"', "the nearest are eval/accuracy, "),
        ('metric = "eval/accuracy"', 'metric = "auc"', f"auc {SAID}docs/metrics.md has them."),
        ('metric = "eval/accuracy"', 'metric = "train/loss"', "set last_rounds or best"),
        ('"train/loss"', '"train/los"', f"selection.metric: train/los {SAID}the nearest are"),
        ('curve = "eval/', 'curve = "eval/non', f"curve: eval/nonaccuracy {SAID}"),
        (
            'curve = "eval/accuracy"',
            'figures = [{ kind = "curves", column = "eval/los" }]',
            f"figures.curves: eval/los {SAID}the nearest are eval/loss",
        ),
        (
            'curve = "eval/accuracy"',
            'figures = [{ kind = "density", column = "acuracy" }]',
            "acuracy is not a column of client_metrics.csv in runs of fedavg; the nearest",
        ),
        ('curve = "eval/accuracy"', 'figures = [{ kind = "direction" }]', "train/direction_norm"),
        ('curve = "eval/accuracy"', 'figures = [{ kind = "client_losses" }]', "client_loss/ is no"),
        ('curve = "eval/accuracy"', 'figures = [{ kind = "curve" }]', "kind curve is unknown"),
    ],
)
def test_a_column_that_no_run_can_write_is_refused_before_the_runs(
    tmp_path, capsys, old, new, says
):
    assert old in WHOLE
    setup_of(tmp_path, WHOLE.replace(old, new))
    asked = [f"--items={tmp_path}", "--item=x", f"--root_output_dir={tmp_path}"]
    for flags in ([*asked, "--dry_run"], asked):
        assert reproduce.main(flags) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: x s: ") and says in line


def test_what_another_row_writes_is_no_mistake(tmp_path):
    text = WHOLE.replace('fedavg = "a.flags"\n', 'fedavg = "a.flags"\nditto = "b.flags"\n')
    text = text.replace('"eval/accuracy" }', '"train/personal_diverged", best = "max" }')
    (tmp_path / "b.flags").write_text(RUN.replace("fedavg", "ditto"))
    check = columns.Check(setup_of(tmp_path, text))
    check.before()
    of_fedavg, of_ditto = (run_of(tmp_path, row) for row in ("fedavg", "ditto"))
    check.after(of_fedavg)
    with pytest.raises(ReproduceError, match="in runs of ditto"):
        check.after(of_ditto)


@pytest.mark.parametrize("home", ["benchmarks/sweeps", "examples/own_sweep"])
def test_items_beside_the_papers_show_what_their_runs_write(monkeypatch, home):
    monkeypatch.syspath_prepend(str(items.REPO / home))
    for item in items.own_items(str(items.REPO / home)):
        for setup in item.setups.values():
            columns.Check(setup).before()


def run_of(folder, row, columns=("train/loss", "eval/accuracy"), final=("eval/accuracy",)):
    """Returns a run that has ended with these columns."""
    run = items.PlannedRun(row, 1, {}, folder / f"run_{row}", "", {}, 1, 1)
    write_run(run.folder, columns, final)
    return run


def write_run(folder, columns=("train/loss", "eval/accuracy"), final=("eval/accuracy",)):
    folder.mkdir(parents=True)
    with open(folder / "metrics.csv", "w", newline="") as file:
        csv.writer(file).writerows([["round_num", *columns], [1, *[0.5] * len(columns)]])
    summary = {"rounds": 1, "final": dict.fromkeys(final, 0.5), "mean_round_seconds": 1.0}
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", None),
        ('"eval/accuracy" }', '"eval/accurcy" }', "columns.a: eval/accurcy is no"),
        (
            '"train/loss"',
            '"train/los", higher_is_better = false',
            "selection.metric: train/los is no",
        ),
        ('curve = "eval/', 'curve = "eval/non', "curve: eval/nonaccuracy is no"),
    ],
)
def test_what_only_a_run_tells_ends_the_sweep_with_the_first_one(
    tmp_path, monkeypatch, capsys, old, new, says
):
    """Of two points the second does not begin."""
    # It says nothing of its metrics, as a user's may.
    task = tasks.TaskSpec(name="own", summary="s", loader=lambda **_: None, needs_data=False)
    monkeypatch.setitem(tasks.registry._SPECS, "own", task)
    setup = setup_of(tmp_path, WHOLE.replace(old, new), RUN.replace("synthetic", "own"))
    check = columns.Check(setup)
    check.before()
    points = {row: setup.points(row) for row in setup.rows}
    runs = items.planned_runs(setup, setup.rows, points, [1], root=str(tmp_path))
    started = []

    def start(repository, command, folder, url, home):
        started.append(folder)
        write_run(pathlib.Path(folder))

    ray = types.SimpleNamespace(
        remote=lambda **_: (
            lambda _: types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=start))
        ),
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 1}}],
        wait=lambda some, **_: (some[:1], some[1:]),
        get=lambda _: sweep.Outcome(0, "done"),
        exceptions=types.SimpleNamespace(
            RayTaskError=KeyError, LocalRayletDiedError=KeyError, RayError=KeyError
        ),
    )
    monkeypatch.setattr(sweep, "with_ray", lambda _: contextlib.nullcontext(ray))
    refused = pytest.raises(ReproduceError, match=says) if says else contextlib.nullcontext()
    with refused:
        sweep.execute(runs, sweep.Resources(), check=check.after)
    assert len(started) == (1 if says else 2)


def test_runs_that_are_done_are_looked_at_before_others_begin(tmp_path, monkeypatch):
    setup = setup_of(tmp_path, WHOLE.replace("eval/accuracy", "fairness/accuracy_avg_t"))
    check = columns.Check(setup)
    check.before()
    monkeypatch.setattr(sweep, "is_done", lambda run: run.row == "fedavg")
    monkeypatch.setattr(sweep, "with_ray", None)
    runs = [run_of(tmp_path, row) for row in ("other", "fedavg")]
    with pytest.raises(ReproduceError, match="fairness/accuracy_avg_t is not a column"):
        sweep.execute(runs, sweep.Resources(), check=check.after)


def test_a_run_that_diverged_tells_nothing(tmp_path):
    check = columns.Check(setup_of(tmp_path))
    check.before()
    run = run_of(tmp_path, "fedavg", ["train/loss"])
    (run.folder / "summary.json").unlink()
    check.after(run)
