"""Final runs: another item's best points, on other seeds and on test data."""

import json

import numpy as np
import pandas as pd
import pytest

import reproduce
from reproduction import best_points, items, results, search
from reproduction.items import ReproduceError
from simulation.records import outputs

SWEEP = """
title = "t"
rounds = 4
columns = [{ name = "loss", metric = "validation/loss" }]
selection = { metric = "validation/loss", last_rounds = 2 }
[rows]
fedavg = "a.flags --algorithm=fedavg"
fedprox = "a.flags --algorithm=fedprox"
[grid]
fedavg = { client_learning_rate = [0.1, 0.2] }
fedprox = { client_learning_rate = [0.1, 0.2], fedprox_mu = [0.5] }
[setups.one]
title = "one"
seeds = [1]
[setups.two]
title = "two"
seeds = [2]
"""
FINAL = """
title = "f"
rounds = 4
seeds = [11, 12]
points_of = "sweep"
columns = [{ name = "accuracy", metric = "eval/accuracy" }]
[setups.final]
title = "final"
[setups.final.rows]
fedavg = "a.flags --algorithm=fedavg --evaluate_test=true"
fedprox = "a.flags --algorithm=fedprox --evaluate_test=true"
"""
FLAGS = (
    "--task=synthetic\n--clients_per_round=2\n--client_batch_size=5\n"
    "--validation_clients=0.2\n--evaluate_test=false\n"
)


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "sweep.toml").write_text(SWEEP)
    (folder / "sweep_final.toml").write_text(FINAL)
    (folder / "a.flags").write_text(FLAGS)
    return folder


def setups(home):
    return {s.name: s for item in items.own_items(str(home)) for s in item.setups.values()}


def done(setup, row, root, losses, rounds=4):
    """Leaves the runs of a row's grid, with these losses; `None` is a run that diverged."""
    runs = items.planned_runs(setup, [row], {row: setup.points(row)}, setup.seeds, root=root)
    for run, loss in zip(runs, losses, strict=True):
        run.folder.mkdir(parents=True)
        lines = ["round_num,validation/loss", *(f"{r},{loss}" for r in range(rounds + 1))]
        (run.folder / "metrics.csv").write_text("\n".join(lines) + "\n")
        flags = dict(run.request().in_force)
        (run.folder / "hparams.json").write_text(json.dumps({"flags": flags}))
        if loss is None:
            (run.folder / outputs.DIVERGED).write_text('{"reason": "x"}')
        else:
            summary = {"rounds": rounds, "final": {"validation/loss": loss}}
            (run.folder / "summary.json").write_text(json.dumps(summary))


def test_each_row_runs_at_its_best_point_of_all_set_ups(home, tmp_path):
    of, root = setups(home), str(tmp_path / "results")
    done(of["one"], "fedavg", root, [3.0, 2.0])
    done(of["two"], "fedavg", root, [1.0, 4.0])
    done(of["one"], "fedprox", root, [5.0, 6.0])
    done(of["two"], "fedprox", root, [7.0, 4.0])
    known, new = set(), []

    def place(runs):
        new.append({run.folder for run in runs} - known)
        known.update(new[-1])
        return runs

    setup, told = best_points.settled(of["final"], list(of["final"].rows), root, print, place)
    assert list(map(len, filter(None, new))) == [8], "one comparison of all runs is enough"
    assert setup.points("fedavg") == [{"client_learning_rate": 0.1}]
    assert setup.points("fedprox") == [{"client_learning_rate": 0.2, "fedprox_mu": 0.5}]
    assert told == [
        "fedavg: client_learning_rate=0.1, the best point of sweep.",
        "fedprox: client_learning_rate=0.2, fedprox_mu=0.5, the best point of sweep.",
    ]
    runs = items.planned_runs(
        setup, setup.rows, {row: setup.points(row) for row in setup.rows}, setup.seeds, root=root
    )
    asked = [run.request() for run in runs]
    assert [a.run["seed"] for a in asked] == [11, 12] * 2
    assert all(a.run["evaluate_test"] for a in asked)
    assert [a.in_force["client_learning_rate"] for a in asked] == [0.1, 0.1, 0.2, 0.2]


@pytest.mark.parametrize("two", ["task", "selection", "rounds"])
def test_set_ups_that_cannot_be_compared_are_told(home, tmp_path, two):
    """One data set's losses may all be lower, so its best point would serve both."""
    changed = {
        "selection": 'selection = { metric = "validation/loss", last_rounds = 1 }\n',
        "rounds": "rounds = 5\n",
    }
    text = SWEEP.replace("fedprox = ", "# ")
    if two == "task":
        text = text.split("[rows]")[0] + (
            '[setups.one]\ntitle = "one"\nseeds = [1]\n'
            '[setups.one.rows]\nfedavg = "a.flags --algorithm=fedavg"\n'
            "[setups.one.grid]\nfedavg = { client_learning_rate = [0.1, 0.2] }\n"
            '[setups.two]\ntitle = "two"\nseeds = [2]\n[setups.two.rows]\n'
            'fedavg = "a.flags --algorithm=fedavg --synthetic_data_seed=7"\n'
            "[setups.two.grid]\nfedavg = { client_learning_rate = [0.1, 0.2] }\n"
        )
    else:
        text += changed[two]
    (home / "sweep.toml").write_text(text)
    (home / "sweep_final.toml").write_text(FINAL.replace("fedprox = ", "# "))
    of, root, said = setups(home), str(tmp_path / "results"), []
    for name in ("one", "two"):
        done(of[name], "fedavg", root, [3.0, 2.0], of[name].rounds)
    _, told = best_points.settled(of["final"], ["fedavg"], root, said.append)
    assert told[0] == said[0] and "fedavg: the set-ups of sweep differ in task, select" in told[0]


def test_runs_that_start_anew_at_each_rung_are_compared_at_once(home, tmp_path):
    search_of = 'title = "t"\nsearch = { factor = 2, rounds = 20, restart = true }'
    text = SWEEP.replace("rounds = 4", "rounds = 40")
    text = text.replace('title = "t"', search_of).replace(", fedprox_mu = [0.5]", "")
    other = "--algorithm=fedda_adam --server_learning_rate=1"
    (home / "sweep.toml").write_text(text.replace("--algorithm=fedprox", other))
    of, asked = setups(home), []

    def place(runs):
        asked.append({run.folder for run in runs})
        return runs

    with pytest.raises(ReproduceError, match="unfinished"):
        best_points.settled(of["final"], ["fedprox"], str(tmp_path), print, place)
    first, *later = asked
    assert len(first) == 2 * 2 * 2, "two set-ups, two points, two rungs"
    assert set.union(*later) <= first


def test_a_row_that_diverged_everywhere_is_left_out_with_a_line(home, tmp_path):
    of, root, said = setups(home), str(tmp_path / "results"), []
    for name, losses in (("one", [None, 2.0]), ("two", [None, None])):
        done(of[name], "fedavg", root, losses)
        done(of[name], "fedprox", root, [None, None])
    setup, _ = best_points.settled(of["final"], ["fedavg", "fedprox"], root, said.append)
    assert list(setup.rows) == ["fedavg"]
    assert setup.points("fedavg") == [{"client_learning_rate": 0.2}]
    assert said == ["fedprox is left out: it diverged at every point of sweep."]
    with pytest.raises(ReproduceError, match="every row diverged at every point of sweep, so no"):
        best_points.settled(of["final"], ["fedprox"], root, said.append)


@pytest.mark.parametrize("rounds", [None, 2])
def test_nothing_runs_until_the_searches_are_done(home, tmp_path, rounds):
    of, root = setups(home), str(tmp_path / "results")
    done(of["one"], "fedavg", root, [3.0, 2.0])
    if rounds is not None:
        done(of["two"], "fedavg", root, [3.0, 2.0], rounds)
    with pytest.raises(ReproduceError, match="searches of fedavg in sweep are unfinished"):
        best_points.settled(of["final"], ["fedavg"], root, print)


@pytest.mark.slow
def test_until_then_a_dry_run_estimates(home, tmp_path, capsys):
    asked = [f"--items={home}", "--item=sweep_final", f"--root_output_dir={tmp_path}"]
    assert reproduce.main([*asked, "--dry_run"]) == 0
    assert "| fedprox | 2 " in capsys.readouterr().out
    assert reproduce.main(asked) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "are unfinished, or were done with other code or data; run --item=sweep first" in line


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"sweep"', '"swep"', "points_of: there is no item"),
        ('points_of = "sweep"', 'points_of = "sweep"\nsample = { points = 2 }', "cannot be comb"),
        ("fedprox = ", "fedsam = ", "points_of: sweep has no row fedsam"),
        ('"sweep"', '"sweep_final"', "points_of: sweep_final has points_of itself"),
    ],
)
def test_what_is_wrong_is_one_line(home, capsys, old, new, says):
    (home / "sweep_final.toml").write_text(FINAL.replace(old, new))
    assert reproduce.main([f"--items={home}", "--item=sweep_final", "--dry_run"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {home}/sweep_final.toml") and says in line


def test_a_source_that_is_wrong_is_one_line(home, capsys):
    (home / "sweep.toml").write_text('title = "t"\nsetups = { one = 1 }\n')
    assert reproduce.main([f"--items={home}", "--item=sweep_final", "--dry_run"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: {home}/sweep.toml: setups.one must be a table."


@pytest.mark.long
def test_one_command_tunes_and_then_runs_on_other_seeds(home, tmp_path, capsys):
    (home / "sweep.toml").write_text(SWEEP.split("[setups.two]")[0])
    assert reproduce.main([f"--items={home}", f"--root_output_dir={tmp_path}"]) == 0
    told = capsys.readouterr().out
    assert "the best point of sweep." in told
    (tuned, *_) = (tmp_path / "own/sweep/one").rglob("metrics.csv")
    assert "eval/" not in tuned.read_text().splitlines()[0]
    final = list((tmp_path / "own/sweep_final/final").rglob("metrics.csv"))
    assert len(final) == 4
    assert all("eval/accuracy" in path.read_text().splitlines()[0] for path in final)


def test_runs_that_stop_at_ended_are_finished(home, tmp_path):
    of, root = setups(home), str(tmp_path / "results")
    for name in ("one", "two"):
        done(of[name], "fedavg", root, [3.0, 2.0], 2)
    for path in (tmp_path / "results").rglob("summary.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"stopped": "x after round 2"}))
    setup, _ = best_points.settled(of["final"], ["fedavg"], root, print)
    assert setup.points("fedavg") == [{"client_learning_rate": 0.2}]


def test_points_of_runs_on_other_data_are_not_taken(home, tmp_path, capsys):
    """The correction of a table changes the best point, so the old searches do not count."""
    table = pd.DataFrame({"who": list("abcd") * 10, "x": np.linspace(-1, 1, 40), "n": 0})
    table["y"] = 3 * table.x
    path = tmp_path / "table.csv"
    table.to_csv(path, index=False)
    (home / "a.flags").write_text(
        f"--task=table\n--table_path={path}\n--table_user=who\n--table_target=y\n"
        "--clients_per_round=2\n--client_batch_size=5\n--validation_fraction=0.2\n"
        "--table_features=x,n\n"
    )
    rows = '[rows]\nfedavg = "a.flags --algorithm=fedavg"\n'
    (home / "sweep.toml").write_text(
        'title = "t"\nrounds = 2\nseeds = [1]\n'
        'columns = [{ name = "loss", metric = "validation/loss" }]\n'
        'selection = { metric = "validation/loss", last_rounds = 1 }\n'
        f"{rows}[grid]\nfedavg = {{ client_learning_rate = [0.3, 0.0003] }}\n"
        '[setups.one]\ntitle = "one"\n'
    )
    (home / "sweep_final.toml").write_text(
        'title = "f"\nrounds = 2\nseeds = [2]\npoints_of = "sweep"\n'
        'columns = [{ name = "loss", metric = "eval/loss" }]\n[setups.final]\ntitle = "final"\n'
        '[setups.final.rows]\nfedavg = "a.flags --algorithm=fedavg"\n'
    )
    arguments = [f"--items={home}", f"--root_output_dir={tmp_path / 'results'}", "--jobs=1"]
    assert reproduce.main([*arguments, "--item=sweep"]) == 0
    table.assign(n=np.arange(40)).to_csv(path, index=False)
    assert reproduce.main([*arguments, "--item=sweep_final"]) == 1
    said = capsys.readouterr().err
    assert "unfinished, or were done with other code or data; run --item=sweep first" in said
    assert reproduce.main([*arguments, "--item=sweep"]) == 0
    assert reproduce.main([*arguments, "--item=sweep_final"]) == 0
    assert "client_learning_rate=0.0003, the best point of sweep" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "flags", "says"),
    [
        (
            "",
            "--rounds_per_eval=3",
            "after round 4, but rounds_per_eval=3 gives no validation/loss",
        ),
        ("", "--rounds_per_eval=4", None),
        ("search = { factor = 2 }", "--rounds_per_eval=4", "after round 2, but rounds_per_eval=4"),
        ("search = { factor = 2 }", "--rounds_per_eval=2", None),
        ("search = { factor = 2 }", "--stop_at=train/loss<1", "has stop_at=train/loss<1, but a"),
        ("", "--stop_at=train/loss<1", None),
    ],
)
def test_points_that_cannot_be_compared_are_told_before_they_run(
    home, tmp_path, changes, flags, says
):
    text = SWEEP.replace("last_rounds = 2", "last_rounds = 1")
    (home / "sweep.toml").write_text(text.replace('title = "t"', f'title = "t"\n{changes}', 1))
    (home / "a.flags").write_text(FLAGS + flags + "\n")
    setup = setups(home)["one"]
    points = {"fedavg": setup.points("fedavg")}
    runs = items.planned_runs(setup, points, points, [1], root=str(tmp_path))
    if says is None:
        assert not search.cautions(setup, runs)
    elif "stop_at" in says:
        with pytest.raises(ReproduceError, match=says):
            search.cautions(setup, runs)
    else:
        (line,) = search.cautions(setup, runs)
        assert says in line


def test_an_evaluation_that_counts_is_not_told_to_be_missing(home, tmp_path):
    """Rounds 0 to 3 are four rows, so the mean is over rounds 2 and 3, and round 2 has a value."""
    (home / "sweep.toml").write_text(SWEEP.replace("rounds = 4", "rounds = 3"))
    (home / "a.flags").write_text(FLAGS + "--rounds_per_eval=2\n")
    setup = setups(home)["one"]
    points = {"fedavg": setup.points("fedavg")}
    runs = items.planned_runs(setup, points, points, [1], root=str(tmp_path))
    assert not search.cautions(setup, runs)
    for run in runs:
        run.folder.mkdir(parents=True)
        lines = ["round_num,validation/loss", "0,9.0", "1,", "2,0.5", "3,"]
        (run.folder / "metrics.csv").write_text("\n".join(lines) + "\n")
        (run.folder / "summary.json").write_text('{"rounds": 3, "final": {}}')
    assert {results.selection_value(run, setup.selection) for run in runs} == {0.5}
