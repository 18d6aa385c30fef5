"""Whatever is given as flags or has happened to a folder: one line, a code, and no traceback.

The examples written out are those that found a defect.
"""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import reproduce
import run_experiment
from reproduction import compare, items, sweep
from reproduction import results as tables
from simulation import experiment, experiment_flags, run_parser
from simulation.errors import RunError
from simulation.records import checkpoints, metrics_csv, outputs
from tests import fuzz
from tff_suite import command_line, compat
from tff_suite.hparams import HparamError

LONG = pytest.mark.long
FLAGS = (
    "--task=synthetic",
    "--algorithm=fedavg",
    "--total_rounds=4",
    "--clients_per_round=3",
    "--client_batch_size=5",
    "--client_learning_rate=0.05",
)
OWNERS = sorted(run_parser.flag_owners())


def one_line(error):
    assert str(error).strip() and len(" ".join(str(error).split()).splitlines()) == 1


def said(main, arguments):
    """Returns exit code and standard error of a command; fails where it raises."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    text = err.getvalue()
    assert (code == 0) == (text == ""), text
    assert len(text) < 4000
    assert len(text.splitlines()) <= 1 and (not text or text.startswith("error: ")), text
    return code, text


# Flags.


def _given(names, *more):
    flag = st.builds(
        lambda dashes, name, value: f"{dashes}{name}" + ("" if value is None else f"={value}"),
        st.sampled_from(["--", "-", "--no"]),
        st.one_of(st.sampled_from(names), st.text(max_size=8)),
        st.one_of(fuzz.VALUES, st.none(), *more),
    )
    return st.lists(st.one_of(flag, fuzz.VALUES), max_size=4)


ARGUMENTS = _given([*OWNERS, "flagfile", "help", "undefok"])


def check_flags(arguments):
    try:
        experiment_flags.parse([*FLAGS, *arguments])
    except command_line.Answered:
        pass
    except HparamError as e:
        one_line(e)


@fuzz.QUICK
@given(ARGUMENTS)
@example(["--nouse_synthetic_data=3"])
@example(["--flagfile=/"])
@example(["--flagfile=a\0b"])
@example(["--help=3"])
@example(["--experiment_name=a\0b"])
@example(["--seed=" + "9" * 5000])
@example(["--import="])
@example(["--import=."])
def test_any_flags(arguments):
    check_flags(arguments)


@LONG
@fuzz.LONG
@given(ARGUMENTS)
def test_any_flags_at_length(arguments):
    check_flags(arguments)


@pytest.fixture
def _no_sweep(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep, "execute", lambda runs, *_: dict.fromkeys(runs))
    monkeypatch.setattr(reproduce.readme, "write", lambda: [])
    monkeypatch.setattr(reproduce.readme, "record", lambda *_: None)
    monkeypatch.chdir(tmp_path)


REPRODUCE = _given([*reproduce.PARSER.flags, "flagfile"])
OF_REPRODUCE = ("--paper=adafedadam", "--item=table5", "--setup=synthetic", "--rows=fedavg")


def check_reproduce(arguments):
    said(reproduce.main, [*OF_REPRODUCE, *arguments, "--dry_run"])


@pytest.mark.usefixtures("_no_sweep")
@fuzz.QUICK
@given(REPRODUCE)
@example(["--memory_gb_per_run=nan"])
@example(["--memory_gb_per_run=inf"])
@example(["--nolist=3"])
@example(["--cpus_per_run=nan"])
@example(["--flagfile=/"])
@example(["--root_output_dir=a\0b"])
@example(["--data_dir=\0"])
@example(["--item=../adafed/table7"])
def test_any_flags_of_reproduce(arguments):
    check_reproduce(arguments)


@LONG
@pytest.mark.usefixtures("_no_sweep")
@fuzz.LONG
@given(REPRODUCE)
def test_any_flags_of_reproduce_at_length(arguments):
    check_reproduce(arguments)


# Folders.


def write_run(folder, flags, seed=0, total_rounds=4):
    """Writes what a finished run of `flags` leaves, without training."""
    request = experiment_flags.parse([*flags, f"--seed={seed}"])
    start = {
        "round_num": 0,
        "device": "CPU",
        "git_commit": None,
        "command": [],
        "stack": compat.stack(),
    }
    recorded = {
        "flags": {**request.in_force, "runtime": "tff"},
        "task_settings": {},
        "num_clients": 100,
        "num_training_examples": 1000,
        "start": start,
        "resumed": [],
        "identity": {},
    }
    folder.mkdir(parents=True)
    table = metrics_csv.MetricsCsv(str(folder / "metrics.csv"), -1)
    for r in range(total_rounds + 1):
        of_training = {"train/loss": 1 / (r + 1), "time/round_seconds": 0.5} if r else {}
        table.append(r, {**of_training, "eval/accuracy": 0.1 * r})
    table.close()
    metrics_csv.write_client_metrics(
        str(folder / "client_metrics.csv"),
        ["0", "1"],
        [3, 4],
        [1, 2],
        {"accuracy": np.array([0.5, 0.25])},
    )
    summary = {
        "finished": True,
        "rounds": total_rounds,
        "final": {"eval/accuracy": 0.4, "eval/loss": None},
        "mean_round_seconds": 0.5,
        "seals": {
            "metrics.csv": table.checksum(),
            "client_metrics.csv": outputs.file_digest(str(folder / "client_metrics.csv")),
        },
    }
    with outputs.ExperimentFolder(str(folder.parent), folder.name) as opened:
        opened.write_with_checksum("hparams.json", recorded)
        opened.write_with_checksum("summary.json", summary)
        checksums = {
            "run_id": opened.run_id,
            "metrics.csv": table.checksum(),
            "client_states.sqlite": None,
        }
    (folder / ".lock").unlink(missing_ok=True)
    for r in (total_rounds - 1, total_rounds):
        leaves = [np.arange(3.0), np.int32(r)]
        checkpoints.save(str(folder / "checkpoints"), r, leaves, request.in_force, checksums)


@pytest.fixture(scope="module")
def a_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    write_run(root / "whole", FLAGS)
    return root


@pytest.fixture
def _no_training(monkeypatch):
    monkeypatch.setattr(experiment, "_work", lambda *_: experiment.Outcome("", None))


def check_run(root, damages):
    """The command is refused or would resume; what reads the folder is refused or has a table."""
    folder = fuzz.copied(root / "whole", root / "damaged")
    for damage in damages:
        damage.apply(folder)
    for rounds in (4, 5):
        arguments = [*FLAGS, f"--root_output_dir={root}", "--experiment_name=damaged"]
        said(run_experiment.main, [*arguments, f"--total_rounds={rounds}"])
    try:
        compare.load_runs([str(folder)])
    except RunError as e:
        one_line(e)


# Files in order: checkpoints 3 and 4, client_metrics.csv, hparams.json, metrics.csv, summary.json.
_CLIENTS, _HPARAMS, _METRICS, _SUMMARY = range(2, 6)


def folder_examples(test):
    for damage in (
        fuzz.Damage(_SUMMARY, "json", 2, 0),  # rounds
        fuzz.Damage(_SUMMARY, "json", 0, 7),  # a list
        fuzz.Damage(_HPARAMS, "json", 1, 7),  # flags are a list
        fuzz.Damage(_HPARAMS, "garble", 0, 2),  # deep
        fuzz.Damage(_METRICS, "cell", 6, 1),  # no number
        fuzz.Damage(_METRICS, "cell", 5, 6),  # a digit that int() does not know
        fuzz.Damage(_METRICS, "cell", 6, 5),  # a column more
        fuzz.Damage(_METRICS, "garble", 30, 1),  # zero bytes
        fuzz.Damage(_METRICS, "folder", 0, 0),
        fuzz.Damage(_CLIENTS, "truncate", 0, 0),
        fuzz.Damage(_CLIENTS, "garble", 0, 0),
        fuzz.Damage(_CLIENTS, "cell", 6, 1),
        fuzz.Damage(_SUMMARY, "folder", 0, 0),
    ):
        test = example([damage])(test)
    return test


@pytest.mark.usefixtures("_no_training")
@fuzz.QUICK
@given(damages=st.lists(fuzz.DAMAGES, min_size=1, max_size=2))
def test_any_damage_to_the_folder_of_a_run(a_run, damages):
    check_run(a_run, damages)


@LONG
@pytest.mark.usefixtures("_no_training")
@fuzz.LONG
@given(damages=st.lists(fuzz.DAMAGES, min_size=1, max_size=3))
def test_any_damage_to_the_folder_of_a_run_at_length(a_run, damages):
    check_run(a_run, damages)


@pytest.fixture(scope="module")
def a_sweep(tmp_path_factory):
    """Runs of a set-up with a grid, whole."""
    root = tmp_path_factory.mktemp("sweep")
    setup = next(
        s for s in items.load_item("adafedadam", "table5").setups.values() if s.name == "synthetic"
    )
    for run in planned(setup, root / "whole"):
        write_run(run.folder, [*run.command, "--total_rounds=4"], seed=run.seed)
    return root, setup


def planned(setup, root):
    rows = list(setup.rows)[:2]
    points = {row: setup.points(row)[:2] for row in rows}
    return items.planned_runs(setup, rows, points, [1, 2], root=str(root), max_rounds=4)


def check_sweep(a_sweep, damages):
    root, setup = a_sweep
    fuzz.copied(root / "whole", root / "damaged")
    for damage in damages:
        damage.apply(root / "damaged")
    runs = planned(setup, root / "damaged")
    for read in (
        lambda: [sweep.is_done(run) for run in runs],
        lambda: sweep.estimate(runs, {}),
        lambda: tables.choose(runs, setup),
        lambda: tables.records(runs, setup, {r.row: r.point for r in runs}),
        lambda: tables.grid_records(runs, setup, {r.row: r.point for r in runs}),
        lambda: compare.load_runs([str(root / "damaged")]),
    ):
        try:
            read()
        except (RunError, items.ReproduceError) as e:
            one_line(e)


@pytest.mark.long
@fuzz.QUICK
@given(damages=st.lists(fuzz.DAMAGES, min_size=1, max_size=2))
def test_any_damage_to_the_folder_of_a_sweep(a_sweep, damages):
    check_sweep(a_sweep, damages)


@LONG
@fuzz.LONG
@given(damages=st.lists(fuzz.DAMAGES, min_size=1, max_size=3))
def test_any_damage_to_the_folder_of_a_sweep_at_length(a_sweep, damages):
    check_sweep(a_sweep, damages)


test_any_damage_to_the_folder_of_a_run = folder_examples(test_any_damage_to_the_folder_of_a_run)
test_any_damage_to_the_folder_of_a_sweep = folder_examples(test_any_damage_to_the_folder_of_a_sweep)
