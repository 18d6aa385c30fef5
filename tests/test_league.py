"""The league's items follow its settings, and an own method joins with one line."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from reproduction import items
from simulation import experiment_flags
from tff_algos import registry
from tff_suite.errors import FedError
from tools import league

_REPO = pathlib.Path(__file__).resolve().parent.parent
_RULES = (league.LEAGUE / "RULES.md").read_text("utf-8")
_SETTINGS = league.read()
_WORKLOADS = list(_SETTINGS["workloads"])


@pytest.mark.parametrize("workload", _WORKLOADS)
def test_items_are_what_the_settings_say(workload):
    written = (league.LEAGUE / f"{workload}.toml").read_text("utf-8")
    assert written == league.item(workload, _SETTINGS)
    written = (league.LEAGUE / f"{workload}_final.toml").read_text("utf-8")
    assert written == league.final(workload, _SETTINGS)


def test_every_federated_method_takes_part():
    outside = set(_SETTINGS["outside"])
    assert outside == {"ditto", "fedcorr"}
    suite = {
        name
        for name in registry.names()
        if str(registry.get(name).builder).startswith("tff_algos.methods.")
    }
    assert suite - {"centralized"} == outside | set(_SETTINGS["methods"])


@pytest.mark.quick_cases("synthetic")
@pytest.mark.parametrize("workload", _WORKLOADS)
def test_all_methods_are_tuned_alike(workload):
    """Same points of what they share, same rounds, same batches, and validation data to choose."""
    setups = {
        s.name: s
        for i in items.own_items(str(league.LEAGUE))
        for s in i.setups.values()
        if i.name == workload
    }
    assert [s.seeds for s in setups.values()] == [[1], [2], [3]]
    for setup in setups.values():
        points = {row: setup.points(row) for row in setup.rows}
        assert {len(p) for p in points.values()} == {16}
        for flag in ("client_learning_rate", "server_learning_rate"):
            drawn = {tuple(p[flag] for p in row) for row in points.values() if flag in row[0]}
            # Without a client rate the server rate is the first setting.
            assert len(drawn) == 1 or (flag == "server_learning_rate" and len(drawn) == 2)
        runs = items.planned_runs(setup, setup.rows, points, setup.seeds, root="results")
        assert len({run.folder for run in runs}) == len(runs)
        shared = ("total_rounds", "clients_per_round", "client_batch_size", "task", "seed")
        shared += ("validation_clients", "validation_fraction", "rounds_per_eval")
        requests = [experiment_flags.parse(run.command).run for run in runs]
        assert len({tuple(request[key] for key in shared) for request in requests}) == 1
        assert requests[0]["validation_clients"] == requests[0]["validation_fraction"] == 0.1
        assert not requests[0]["evaluate_test"]
        assert setup.selection["metric"].startswith("validation/")


def test_the_rules_name_the_numbers_of_the_items():
    for name, workload in _SETTINGS["workloads"].items():
        (line,) = re.findall(rf"^\| `{name}` .*\| (\d+) \|$", _RULES, re.M)
        assert int(line) == workload["rounds"]
    assert f"A study has {_SETTINGS['points']} points" in _RULES
    low, high = _SETTINGS["server_rate"]
    assert f"the server rate in [{low:g}, {high:g}]" in _RULES


@pytest.mark.quick_cases("synthetic")
@pytest.mark.parametrize("workload", _WORKLOADS)
def test_final_runs_alone_see_test_data(workload):
    """On seeds that no study has, with the same batches and the same split."""
    (item,) = (i for i in items.own_items(str(league.LEAGUE)) if i.name == f"{workload}_final")
    tuned, untuned = item.setups["tuned"], item.setups["untuned"]
    assert tuned.points_of == workload and untuned.points_of == ""
    assert list(untuned.rows) == list(_SETTINGS["untuned"])
    for setup in (tuned, untuned):
        assert setup.seeds == [11, 12, 13, 14, 15]
        points = {row: setup.points(row) for row in setup.rows}
        runs = items.planned_runs(setup, setup.rows, points, setup.seeds, root="results")
        requests = [experiment_flags.parse(run.command).run for run in runs]
        assert all(request["evaluate_test"] for request in requests)
        shared = ("total_rounds", "clients_per_round", "client_batch_size", "task")
        shared += ("validation_clients", "validation_fraction", "rounds_per_eval")
        assert len({tuple(request[key] for key in shared) for request in requests}) == 1


@pytest.mark.parametrize("key", ["only", "left_out", "fixed"])
def test_a_method_that_the_league_lacks_is_refused(key):
    workload = {"title": "Posts", key: {"fedavg": {}, "fedcor": {}}}
    with pytest.raises(FedError, match=f"'Posts' has {key} = 'fedcor', but neither"):
        league.taking_part(_SETTINGS, workload)


@pytest.mark.slow
def test_an_own_method_joins_with_one_line(tmp_path):
    folder = tmp_path / "league"
    shutil.copytree(league.LEAGUE, folder)
    path = folder / "settings" / "league.toml"
    text = path.read_text("utf-8")
    (line,) = re.findall(r"^    (clipped_fedavg = .*)$", _RULES, re.M)
    text = text.replace("[methods]\n", f"[methods]\n{line}\n").replace("points = 16", "points = 2")
    path.write_text(text.replace("rounds = 300", "rounds = 8"), "utf-8")

    def run(*command):
        return subprocess.run(
            [sys.executable, *command], cwd=_REPO, capture_output=True, text=True, timeout=600
        )

    written = run("tools/league.py", f"--folder={folder}")
    assert written.returncode == 0, written.stderr
    done = run(
        *("reproduce.py", f"--items={folder}", "--item=synthetic", "--setup=study1"),
        *("--rows=clipped_fedavg", f"--root_output_dir={tmp_path / 'results'}"),
    )
    assert done.returncode == 0, done.stderr
    assert "clipped_fedavg: " in done.stdout and "found by successive halving" in done.stdout
    folders = {p.parent.name for p in (tmp_path / "results").rglob("metrics.csv")}
    assert len(folders) == 2 and all("clip_norm=" in name for name in folders)

    # The other methods keep what is recorded; then the own method does, too.
    recorded = (folder / "studies.csv").read_text().splitlines()
    for root in ("results", "none"):
        (tmp_path / root).mkdir(exist_ok=True)
        told = run("-m", "reproduction.league", f"--folder={folder}", f"--root={tmp_path / root}")
        assert told.returncode == 0, told.stderr
        lines = (folder / "studies.csv").read_text().splitlines()
        (own,) = [line for line in lines if line not in recorded]
        assert own.startswith("synthetic,study1,clipped_fedavg,--client_learning_rate=")
        assert [line for line in lines if line != own] == recorded
        runs = (folder / "runs.csv").read_text().splitlines()
        assert sum(",clipped_fedavg," in line for line in runs) == 2
