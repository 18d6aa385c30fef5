"""Any runs side by side."""

import dataclasses
import json
import re

import numpy as np
import pytest
from scipy import stats

import tasks
import tff_algos
from reproduction import compare, load_runs, run_folders
from simulation.errors import RunError


def write_run(folder, algorithm, seed, values, **flags):
    folder.mkdir(parents=True)
    flags = {"algorithm": algorithm, "seed": seed, "client_learning_rate": 0.1, **flags}
    (folder / "hparams.json").write_text(json.dumps({"flags": flags}))
    rows = "".join(f"{i},{v}\n" for i, v in enumerate(values))
    (folder / "metrics.csv").write_text(f"round_num,eval/accuracy\n{rows}")


@pytest.fixture
def root(tmp_path):
    """Differences of fedadam after round 2, the last common one: 0.1, 0.2, 0.6."""
    for seed, (a, b) in {1: (0.5, 0.6), 2: (0.5, 0.7), 3: (0.2, 0.8)}.items():
        write_run(tmp_path / "a" / f"s{seed}", "fedavg", seed, [0, 0.1, a], total_rounds=2)
        write_run(tmp_path / "b" / f"s{seed}", "fedadam", seed, [0, 0.1, b, 0.9], fedadam_tau=1e-3)
    write_run(tmp_path / "b" / "s9", "fedadam", 9, [0, 0.1, 1.0, 1.0], fedadam_tau=1e-3)
    return tmp_path


def test_runs_as_one_table(root):
    table = load_runs([str(root)])
    assert len(table) == 3 * 3 + 4 * 4 and set(table.label) == {"fedavg", "fedadam"}
    last = table[(table.run == str(root / "b" / "s2")) & (table.round_num == 2)].iloc[0]
    assert last["eval/accuracy"] == 0.7
    assert (last["flag/seed"], last["flag/fedadam_tau"]) == (2, 1e-3)


def test_differences_are_paired_over_common_seeds_and_rounds(root):
    runs = run_folders.find_runs([str(root / "a"), str(root / "b")])
    (difference,) = compare.paired_differences(runs, "eval/accuracy")
    assert (difference.label, difference.reference) == ("fedadam", "fedavg")
    assert (difference.round_num, difference.seeds) == (2, (1, 2, 3))
    changes = np.array([0.1, 0.2, 0.6])
    half = stats.t.ppf(0.975, 2) * np.std(changes, ddof=1) / np.sqrt(3)
    assert difference.mean == pytest.approx(0.3)
    assert (difference.low, difference.high) == pytest.approx((0.3 - half, 0.3 + half))
    assert difference.p == pytest.approx(stats.ttest_1samp(changes, 0).pvalue)


def test_one_common_seed_has_no_interval(root):
    runs = run_folders.find_runs([str(root / "a" / "s1"), str(root / "b")])
    (difference,) = compare.paired_differences(runs, "eval/accuracy")
    assert difference.seeds == (1,) and np.isnan(difference.low)


def test_flags_that_differ(root):
    flags = compare.differing_flags(run_folders.find_runs([str(root)]))
    assert list(flags.index) == ["algorithm", "total_rounds", "fedadam_tau"]
    assert list(flags.loc["algorithm"]) == ["fedavg", "fedadam"]


def test_curves_are_aligned_by_round(root):
    table = compare.aligned(run_folders.find_runs([str(root)]), "eval/accuracy")
    assert list(table.index) == [0, 1, 2, 3]
    assert table.loc[2, ("fedavg", 3)] == 0.2 and np.isnan(table.loc[3, ("fedavg", 3)])


def test_the_report_and_its_files(root, tmp_path):
    text = compare.report([str(root / "a"), str(root / "b")], "eval/accuracy", tmp_path / "out")
    assert "| fedadam - fedavg |" in text and "| algorithm" in text
    cells = [[c.strip() for c in line.split("|")] for line in text.splitlines()]
    ends = {line[1]: line[2:4] for line in cells if line[1:2] in (["fedavg"], ["fedadam"])}
    assert ends == {"fedavg": ["1 2 3", "2"], "fedadam": ["1 2 3 9", "3"]}, "seeds as seeds"
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "aligned.csv",
        "curves.png",
        "curves.pdf",
    }


def test_the_same_as_json(root):
    answer = json.loads(compare.as_json([str(root / "a"), str(root / "b")], "eval/accuracy"))
    assert answer["column"] == "eval/accuracy" and len(answer["last"]) == 7
    (difference,) = answer["differences"]
    assert difference["seeds"] == [1, 2, 3] and difference["mean"] == pytest.approx(0.3)
    assert "fedadam_tau" in json.dumps(answer["flags"])
    one_seed = [str(root / "a" / "s1"), str(root / "b" / "s1")]
    (alone,) = json.loads(compare.as_json(one_seed, None))["differences"]
    assert alone["low"] is None


def test_runs_beside_a_table_are_not_left_out(root, tmp_path):
    (tmp_path / "item").mkdir()
    known = {"title": "T", "columns": [], "caveats": []}
    (tmp_path / "item" / "columns.json").write_text(json.dumps(known))
    (tmp_path / "item" / "runs.csv").write_text("row,seed,rounds,chosen,run\nfedavg,1,2,True,r\n")
    folders = [str(tmp_path / "item"), str(root / "a")]
    for answer in (
        lambda: compare.as_json(folders, None),
        lambda: compare.report(folders, None, tmp_path / "out"),
    ):
        with pytest.raises(RunError, match=r"/a holds no table of an item, and .*/item does"):
            answer()


def test_json_has_every_digit(tmp_path):
    """Ten decimals would make a small p-value, or a loss of 1e-12, 0."""
    for seed, noise in enumerate((0, 1e-16, 3e-16)):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, [0, 1e-12])
        write_run(tmp_path / f"b{seed}", "fedadam", seed, [0, 3e-12 + noise])
    answer = json.loads(compare.as_json([str(tmp_path)], None))
    assert {one["value"] for one in answer["last"][:3]} == {1e-12}
    (difference,) = answer["differences"]
    assert difference["mean"] == pytest.approx(2e-12, rel=1e-3) and 0 < difference["p"] < 1e-6


def test_runs_that_end_at_different_rounds_are_told(root, tmp_path):
    write_run(root / "b" / "s4", "fedadam", 4, [0, 0.1], fedadam_tau=1e-3)
    text = compare.report([str(root / "a"), str(root / "b")], "eval/accuracy", tmp_path / "out")
    assert "| 1 2 3 4 9 | 1 to 3  |" in text


def test_diverged_runs_are_named_and_left_out(root, tmp_path):
    write_run(root / "b" / "s4", "fedadam", 4, [0.1, ""], fedadam_tau=1e-3)
    (root / "b" / "s4" / "diverged.json").write_text('{"reason": "too far"}')
    write_run(root / "a" / "s4", "fedavg", 4, [0, 0.1, 0.3], total_rounds=2)
    folders = [str(root / "a"), str(root / "b")]
    text = compare.report(folders, None, tmp_path / "out")
    assert "Diverged, so not in means and differences: fedadam (seed 4) after round 1." in text
    runs = run_folders.find_runs(folders)
    drawn, left_out = run_folders.without_diverged(runs, "eval/accuracy")
    assert left_out == ["fedadam (seed 4) after round 1"]
    assert sorted(drawn[drawn.method == "fedadam"].seed.unique()) == [1, 2, 3, 9]
    assert "| fedadam - fedavg | 2             | 1 2 3   | 0.3 " in text
    assert "| fedadam | 1 2 3 9 | 3 " in text, "no value of round 0"
    answer = json.loads(compare.as_json(folders, None))
    assert [(r["method"], r["seed"]) for r in answer["last"] if r["diverged"]] == [("fedadam", 4)]
    assert answer["differences"][0]["seeds"] == [1, 2, 3]
    alone = [str(root / "a" / "s4"), str(root / "b" / "s4")]
    # Of a method without other runs, the curve is shown to its end.
    runs = run_folders.find_runs(alone)
    points = run_folders.curve(runs, "eval/accuracy")
    assert run_folders.without_diverged(runs, "eval/accuracy")[0].equals(points)
    text = compare.report(alone, None, tmp_path / "out")
    assert "Diverged" in text and "Differences" not in text and "Not the same number" not in text


def test_the_primary_metric_is_compared_by_default(root, tmp_path):
    for method, value in (("fedavg", 0.25), ("fedadam", 0.5)):
        folder = tmp_path / "own" / method
        write_run(folder, method, 1, [1, value])
        (folder / "metrics.csv").write_text(f"round_num,eval/mse,eval/mae\n0,1,2\n1,{value},2\n")
    answer = json.loads(compare.as_json([str(tmp_path / "own")], None))
    assert answer["column"] == "eval/mse" and answer["differences"][0]["mean"] == -0.25
    (folder / "summary.json").write_text('{"best": {"round_num": 1, "eval/mae": 2}}')
    assert json.loads(compare.as_json([str(tmp_path / "own")], None))["column"] == "eval/mae"
    with pytest.raises(RunError, match=r"eval/mae of .*, eval/accuracy of .*; choose .* --column"):
        compare.report([str(tmp_path / "own"), str(root / "a")], None, tmp_path / "out")


@pytest.mark.parametrize(
    ("folders", "column", "says"),
    [
        (["nowhere"], "eval/accuracy", "nowhere holds no run"),
        (["a", "b"], "eval/mse", "no column eval/mse"),
        (["a/s1", "b/s9"], "eval/accuracy", "no seed in common"),
    ],
)
def test_what_cannot_be_compared(root, tmp_path, monkeypatch, folders, column, says):
    monkeypatch.chdir(root)
    with pytest.raises(RunError, match=says):
        compare.report(folders, column, tmp_path / "out")


def test_the_same_run_twice_is_refused(root):
    write_run(root / "again", "fedavg", 1, [0, 0.1, 0.2], total_rounds=2)
    with pytest.raises(RunError, match="same settings and the same seed"):
        compare.paired_differences(run_folders.find_runs([str(root)]), "eval/accuracy")


def test_runs_of_two_versions_of_own_code_are_told_apart(root):
    """Before and after an edit of a method's file, settings and seed are the same."""
    for folder, digest in (("a/s1", "x"), ("edited", "y")):
        if folder == "edited":
            write_run(root / folder, "fedavg", 1, [0, 0.1, 0.9], total_rounds=2)
        path = root / folder / "hparams.json"
        recorded = json.loads(path.read_text())
        recorded["identity"] = {"code": {"mine.py": {"build()": digest}}}
        path.write_text(json.dumps(recorded))
    with pytest.raises(RunError, match=r"Yet they differ: .* code of mine\.py one in fedavg"):
        compare.paired_differences(run_folders.find_runs([str(root)]), "eval/accuracy")
    with pytest.warns(RuntimeWarning, match=r"a/s1 and .*edited have the same settings and the"):
        table = load_runs([str(root)])
    assert len(table) == 3 * 4 + 4 * 4


def test_equal_differences_on_all_seeds_are_told(tmp_path):
    for seed, value in enumerate((0.25, 0.5)):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, [0, value])
        write_run(tmp_path / f"b{seed}", "fedadam", seed, [0, value + 0.125])
    says = "The spread over seeds of eval/accuracy is 0 for fedadam - fedavg: all seeds give"
    assert says in compare.report([str(tmp_path)], None, tmp_path / "out")
    (told,) = json.loads(compare.as_json([str(tmp_path)], None))["caveats"]
    assert told.startswith(says)


def test_equal_values_on_all_seeds_have_no_spread(tmp_path):
    """In floating point, a third of 0.7 + 0.7 + 0.7 is not 0.7."""
    for seed in (1, 2, 3):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, [0, 0.7])
        write_run(tmp_path / f"b{seed}", "fedadam", seed, [0, 0.1 * seed])
    text = compare.report([str(tmp_path)], None, tmp_path / "out")
    assert re.search(r"\| fedavg +\| 1 2 3 +\| 1 +\| 0\.7 +\| 0 +\|", text)
    assert re.search(r"\| fedadam +\| 1 2 3 +\| 1 +\| 0\.2 +\| 0\.1 +\|", text)


def write_finished(folder, algorithm, seed, values, seconds=1.0, **flags):
    write_run(folder, algorithm, seed, values, **flags)
    rows = "".join(f"{i},{v},{seconds + i}\n" for i, v in enumerate(values))
    (folder / "metrics.csv").write_text(f"round_num,eval/accuracy,time/round_seconds\n{rows}")
    ended = {"rounds": len(values) - 1, "final": {"eval/accuracy": values[-1]}}
    (folder / "summary.json").write_text(json.dumps(ended))


def alike(root):
    return run_folders.alike(run_folders.find_runs([str(root)]))


def test_settings_without_effect_are_told(tmp_path):
    for seed in (1, 2):
        for mu in (0.1, 0.2, 0.5):
            values = [0, 0.5 + seed / 8, 0.75 if mu == 0.5 else 0.7]
            folder = tmp_path / f"{mu}_{seed}"
            write_finished(folder, "fedprox", seed, values, seconds=mu, fedprox_mu=mu)
    (line,) = alike(tmp_path)
    assert line.startswith("fedprox mu=0.1 and fedprox mu=0.2 have the same numbers in every round")
    assert "(seed 1 2)" in line and line.endswith("has no effect.")
    assert line in compare.report([str(tmp_path)], None, tmp_path / "out")
    assert line in json.loads(compare.as_json([str(tmp_path)], None))["caveats"]


def test_seeds_without_effect_are_told(tmp_path):
    for seed in (1, 2, 3):
        write_finished(tmp_path / f"a{seed}", "fedavg", seed, [0, 0.25])
        write_finished(tmp_path / f"b{seed}", "fedadam", seed, [0, 0.25 + min(seed, 2) / 8])
    assert [line.partition(":")[0] for line in alike(tmp_path)] == [
        "The seeds 1 2 3 give the same numbers in every round in fedavg",
        "The seeds 2 3 give the same numbers in every round in fedadam",
    ]


def test_equal_ends_of_unequal_runs_are_not_told(tmp_path):
    write_finished(tmp_path / "a", "fedavg", 1, [0, 0.2, 0.5])
    write_finished(tmp_path / "b", "fedadam", 1, [0, 0.3, 0.5])
    write_finished(tmp_path / "c", "fedadam", 2, [0, 0.5])
    write_run(tmp_path / "d", "fedyogi", 1, [0, 0.2, 0.5])  # It has not ended.
    assert alike(tmp_path) == []


def start(folder, data, commit="c" * 40, digests=None):
    """Says how a run was computed, as a run of today does."""
    path = folder / "hparams.json"
    recorded = json.loads(path.read_text())
    recorded["flags"]["task"] = "synthetic"
    recorded |= {"num_clients": data[0], "num_training_examples": data[1]}
    recorded["start"] = {"device": "CPU", "git_commit": commit}
    path.write_text(json.dumps(recorded))
    if digests is not None:
        (folder / "data_digests.json").write_text(json.dumps(digests))


def reported(tmp_path, *folders):
    folders = folders or ("a", "b")
    return compare.report([str(tmp_path / f) for f in folders], "eval/accuracy", tmp_path / "out")


def test_equal_data_rounds_and_code_are_not_told(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, f"fed{name}"[:3] + "avg" + "m" * (name == "b"), 1, [0, 1])
        start(tmp_path / name, (10, 100), digests={"client 0": "1"})
    assert "What else differs" not in reported(tmp_path)


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (
            {"data": (10, 100)},
            {"data": (9, 90)},
            "100 training examples .*; fedavgm on .* 90 training examples",
        ),
        (
            {"digests": {"client 0": "1"}},
            {"digests": {"client 0": "2"}},
            r"Not the same data \(seed 1\): fedavg on .* \(digest \w{8}\); fedavgm on",
        ),
        ({"values": [0, 1]}, {"values": [0, 1, 2]}, "rounds: 1 of fedavg; 2 of fedavgm"),
        ({"commit": "a" * 40}, {"commit": "b" * 40}, "code: aaaaaaaa of fedavg; bbbbbbbb of"),
    ],
    ids=["examples", "content", "rounds", "code"],
)
def test_what_differs_beside_flags_is_told(tmp_path, one, other, says):
    for name, algorithm, how in (("a", "fedavg", one), ("b", "fedavgm", other)):
        write_run(tmp_path / name, algorithm, 1, how.pop("values", [0, 1]))
        start(tmp_path / name, **({"data": (10, 100), "digests": {"client 0": "1"}} | how))
    text = reported(tmp_path)
    (told,) = text.split("## What else differs\n\n")[1].split("\n\n")[0].splitlines()
    assert re.search(says, told)


def test_other_draws_of_clients_under_one_seed_are_told(tmp_path):
    for name, algorithm, draws in (("a", "fedavg", 1), ("b", "fedavgm", 5)):
        write_run(tmp_path / name, algorithm, 1, [0, 1], client_datasets_random_seed=draws)
        start(tmp_path / name, (10, 100))
    says = "draws of clients (seed 1): client_datasets_random_seed=1 of fedavg; 5 of fedavgm."
    assert says in reported(tmp_path)


def test_a_column_that_is_no_number_is_told_as_such(tmp_path):
    for name, algorithm in (("a", "fedavg"), ("b", "fedavgm"), ("c", "fedprox")):
        write_run(tmp_path / name, algorithm, 1, ["nan", "nan"] if name == "b" else [0, 1])
    runs = run_folders.find_runs([str(tmp_path / "a"), str(tmp_path / "b")])
    with pytest.raises(RunError, match="have eval/accuracy in no common round"):
        compare.paired_differences(runs, "eval/accuracy")


def of_version(folder, **versions):
    """Says of which version the method or task of a run was."""
    path = folder / "hparams.json"
    recorded = json.loads(path.read_text())
    made_of = recorded.setdefault("identity", {})
    made_of |= {kind: {"version": version} for kind, version in versions.items()}
    path.write_text(json.dumps(recorded))


@pytest.mark.parametrize("kind", ["method", "task"])
def test_other_versions_are_told_with_the_runs_and_the_change(tmp_path, monkeypatch, kind):
    registry, name = (tff_algos, "fedavg") if kind == "method" else (tasks, "synthetic")
    spec = dataclasses.replace(registry.get(name), version=2, history=("All numbers doubled.",))
    monkeypatch.setattr(registry, "get", lambda _: spec)
    for seed, version in ((1, 1), (2, 2)):
        folder = tmp_path / f"s{seed}"
        write_run(folder, "fedavg", seed, [0, 1])
        start(folder, (10, 100))
        of_version(folder, **{"method": 1, "task": 1, kind: version})
    text = reported(tmp_path, "s1", "s2")
    assert (
        f"The runs are not all of one version: {kind} {name}, version 1 in fedavg (seed 1); "
        "2 in fedavg (seed 2) (All numbers doubled.)." in text
    )
    told = json.loads(compare.as_json([str(tmp_path)], None))["caveats"]
    assert any("2 in fedavg (seed 2)" in line for line in told)


def test_items_of_other_versions_are_told(tmp_path):
    """Each item's table tells of its own runs; that the runs of two differ only both show."""
    for name, version in (("one", 1), ("two", 2)):
        run = tmp_path / name / "run"
        write_run(run, "fedavg", 1, [0, 1])
        start(run, (10, 100))
        of_version(run, method=1, task=version)
        known = {"title": name, "columns": [{"name": "acc", "metric": "eval/accuracy"}]}
        known |= {"caveats": [], "settings": [], "published": {}}
        (tmp_path / name / "columns.json").write_text(json.dumps(known))
        (tmp_path / name / "runs.csv").write_text(
            "row,seed,acc,chosen,run\nfedavg,1,0.5,True,run\n"
        )
    told = "task synthetic, version 1 in fedavg of one (seed 1); 2 in fedavg of two (seed 1)"
    assert told in reported_items(tmp_path, "one", "two")
    assert "not all of one version" not in reported_items(tmp_path, "one")
    text = compare.as_json([str(tmp_path / name) for name in ("one", "two")], None)
    assert all(told in one["caveats"][0] for one in json.loads(text))


def reported_items(tmp_path, *folders):
    return compare.report([str(tmp_path / f) for f in folders], None, tmp_path / "out")


def test_equal_versions_are_not_told(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / f"s{seed}", "fedavg", seed, [0, 1])
        start(tmp_path / f"s{seed}", (10, 100))
        of_version(tmp_path / f"s{seed}", method=2, task=3)
    assert "not all of one version" not in reported(tmp_path, "s1", "s2")


def test_data_that_follow_the_seed_are_not_told(tmp_path):
    for seed in (1, 2):
        for algorithm in ("fedavg", "fedavgm"):
            folder = tmp_path / "runs" / f"{algorithm}{seed}"
            write_run(folder, algorithm, seed, [0, seed])
            start(folder, (10, 100 + seed), digests={"client 0": str(seed)})
    assert "What else differs" not in reported(tmp_path, "runs")


def test_twins_are_named_with_what_differs(tmp_path):
    for name, examples in (("a", 100), ("b", 90)):
        write_run(tmp_path / name, "fedavg", 1, [0, 1])
        start(tmp_path / name, (10, examples))
    with pytest.raises(RunError, match=r"/a and .*/b have the same settings .* 90 training") as e:
        reported(tmp_path)
    assert "\n" not in str(e.value) and not (tmp_path / "out").exists()
