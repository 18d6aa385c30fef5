"""Rows of an item with similar names, or names that no folder can have, are separate runs."""

import re

import pytest

import reproduce
from reproduction import items
from reproduction.items import ReproduceError

pytestmark = pytest.mark.slow

_FLAGS = """--task=synthetic
--algorithm=fedprox
--fedprox_mu={mu}
--clients_per_round=10
--client_batch_size=10
--client_learning_rate=0.05
"""


def planned(home, rows, more="", root="/results"):
    """Returns the runs of an item whose rows have these names, each with a mu of its own."""
    home.mkdir(exist_ok=True)
    named = []
    for mu, row in enumerate(rows):
        (home / f"{mu}.flags").write_text(_FLAGS.format(mu=mu))
        quoted = row.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
        named.append(f'"{quoted}" = "{mu}.flags"\n')
    (home / "col.toml").write_text(
        'title = "T"\n[setups.syn]\ntitle = "S"\nrounds = 2\nseeds = [1]\n'
        'columns = [{ name = "final", metric = "eval/accuracy" }]\n'
        + more
        + "[setups.syn.rows]\n"
        + "".join(named)
    )
    (item,) = items.own_items(str(home))
    (setup,) = item.setups.values()
    points = {row: setup.points(row) for row in setup.rows}
    return items.planned_runs(setup, setup.rows, points, setup.seeds, root=root)


@pytest.mark.parametrize(
    "rows",
    [
        ["FedProx small", "FedProx large"],
        ["FedProx", "FedProx large"],
        ["FedProx 1/2", "FedProx 1-2", "FedProx 1 2", "FedProx-1-2"],
        ["x" * 200 + "a", "x" * 200 + "b"],
        ["μ = 1", "μ = 2"],
        ["a\tb", "a b"],
        ["..", "."],
    ],
    ids=str,
)
def test_every_row_has_its_own_folder(tmp_path, rows):
    runs = planned(tmp_path / "own", rows)
    assert [run.row for run in runs] == rows
    assert len({run.folder for run in runs}) == len(rows)
    for run in runs:
        assert run.folder.parent.as_posix() == "/results/own/col/syn"
        assert re.fullmatch(r"[^\s/]{1,130}_seed1", run.name)


def test_a_folder_depends_on_its_own_row_only(tmp_path):
    alone = planned(tmp_path / "own", ["FedProx small"])[0].name
    others = planned(tmp_path / "own", ["FedProx large", "FedProx small"])
    assert alone == others[1].name == "FedProx-small-8f4912c5_seed1"


def test_a_sweep_names_its_settings_once(tmp_path):
    sweep = '[setups.syn.sweep]\n"Fed Prox" = { fedprox_mu = [3.0, 4.0] }\n'
    names = [run.name for run in planned(tmp_path / "own", ["Fed Prox"], sweep)]
    assert [name.count("mu=") for name in names] == [1, 1] and len(set(names)) == 2


def test_settings_that_look_alike_are_refused_before_they_run(tmp_path):
    grid = "[setups.syn.selection]\nmetric = 'train/loss'\nlast_rounds = 1\n"
    grid += "[setups.syn.grid]\nfedprox = { client_learning_rate = [0.1234561, 0.1234562] }\n"
    with pytest.raises(ReproduceError, match=r"0.1234561 and .*0.1234562 would share the folder"):
        planned(tmp_path / "own", ["fedprox"], grid)


def test_the_dry_run_and_the_papers_plan_as_they_did(tmp_path, capsys):
    planned(tmp_path / "own", ["FedProx small", "FedProx large"])
    flags = [f"--items={tmp_path / 'own'}", "--item=col", f"--root_output_dir={tmp_path / 'r'}"]
    assert reproduce.main([*flags, "--dry_run"]) == 0
    table = capsys.readouterr().out
    assert "FedProx small" in table and "FedProx large" in table
    item = items.load_item("adafed", "table7")
    for setup in item.setups.values():
        # Results of years lie in folders of these names.
        points = {row: setup.points(row)[:1] for row in setup.rows}
        for run in items.planned_runs(setup, setup.rows, points, [1], root="/r"):
            assert run.name.startswith(run.row.split(" ")[0] + "_") and " " not in run.name
