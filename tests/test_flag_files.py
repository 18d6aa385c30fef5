"""Rows of every item run two rounds, by their own flag files, on generated data.

Of rows that differ in numbers only, the first one stands for all; that every row's flags are valid
is tested in `test_reproduce.py`.
"""

import json
import pathlib

import pytest

import run_experiment
from reproduction import items
from simulation import experiment_flags

REPO = pathlib.Path(__file__).resolve().parent.parent

# Generated data are of the true shape and few: what asks for many clients or examples gets less.
FEWER = {
    "clients_per_round": 2,
    "client_epochs_per_round": 1,
    "max_elements_per_client": 8,
    "rounds_per_eval": 2,
    "client_batch_size": 4,
    "shakespeare_character_min_examples": 1,
    "shakespeare_character_num_heldout_clients": 1,
    "fedcorr_iterations": 1,
    "fedcorr_stage1_clients": 2,
    "fedcorr_stage2_rounds": 1,
}


def command(flagfile, settings):
    return [f"--flagfile={REPO / flagfile}", *(f"--{k}={v}" for k, v in settings.items())]


def form(given):
    """What a run's program depends on: its flags, of numbers only which are zero."""
    return tuple(
        (name, value == 0 if type(value) in (int, float) else str(value))
        for name, value in sorted(given.items())
    )


def rows():
    """One row for each form, with the first settings that an item runs its flag file with."""
    files = {}
    for item in items.all_items():
        for setup in item.setups.values():
            for row in setup.rows.values():
                settings = {**row.settings, **setup.points(row.name)[0]}
                settings.pop("total_rounds", None)
                files.setdefault(row.flagfile, settings)
    found = {}
    for file, settings in sorted(files.items()):
        given = experiment_flags.parse(command(file, settings)).in_force
        found.setdefault(form(given), (file, settings))
    return [
        pytest.param(file, settings, id=file.removeprefix("papers/").removesuffix(".flags"))
        for file, settings in found.values()
    ]


def smaller(given):
    """Returns flags that make a row's run small, of those that it may set."""
    flags = {
        name: value
        for name, value in FEWER.items()
        if given.get(name) not in (None, 1) or name == "max_elements_per_client"
    }
    for name, value in given.items():
        if name.endswith("_num_clients") and value is not None:
            flags[name] = 4
        if name.endswith("_num_validation") and value:
            flags[name] = 8
        if name.endswith("_num_test_examples") and value:
            flags[name] = 20
    if given["algorithm"] == "fedcorr":
        # Two rounds of stage 1, one of stage 2.
        flags["clients_per_round"] = 2
    return flags


@pytest.mark.slow
@pytest.mark.quick_cases("adafedadam/flags/table5_synthetic_splits_adafedadam")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("flagfile", "settings"), rows())
def test_two_rounds(monkeypatch, tmp_path, flagfile, settings):
    monkeypatch.chdir(REPO)
    arguments = command(flagfile, settings)
    given = experiment_flags.parse(arguments).in_force
    task = given["task"]
    rounds = 3 if given["algorithm"] == "fedcorr" else 2
    arguments += [f"--{name}={value}" for name, value in smaller(given).items()]
    if task != "synthetic":
        arguments.append("--use_synthetic_data")
    arguments += [f"--total_rounds={rounds}", f"--root_output_dir={tmp_path}"]
    assert run_experiment.main([*arguments, "--experiment_name=x"]) in (0, 3), (
        "3: two rounds of so little may diverge"
    )
    assert json.loads((tmp_path / "x" / "hparams.json").read_text())["flags"]["task"] == task
    rows = (tmp_path / "x" / "metrics.csv").read_text().splitlines()
    assert len(rows) >= 2
