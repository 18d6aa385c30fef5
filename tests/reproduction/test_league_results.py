import json
import math
import shutil
import types

import numpy as np
import pytest

from reproduction import items, league, league_page, league_studies
from simulation.records import outputs

_RATIOS = np.array([1.0, 2.0, 4.0])


def test_profiles_are_the_share_of_problems_within_a_ratio_of_the_best():
    """Two problems: `a` is best on the first, `b` on the second, which `c` never solves."""
    costs = {"a": [10.0, 40.0], "b": [20.0, 10.0], "c": [10.0, math.inf]}
    found = league_studies.profiles({m: np.array(v) for m, v in costs.items()}, _RATIOS)
    np.testing.assert_allclose(found["a"], [0.5, 0.5, 1.0])
    np.testing.assert_allclose(found["b"], [0.5, 1.0, 1.0])
    np.testing.assert_allclose(found["c"], [0.5, 0.5, 0.5])


def test_a_problem_that_no_method_solves_counts_against_all():
    costs = {"a": np.array([1.0, math.inf]), "b": np.array([2.0, math.inf])}
    np.testing.assert_allclose(league_studies.profiles(costs, _RATIOS)["a"], [0.5, 0.5, 0.5])
    found = {method: of.mean for method, of in league_studies.area(costs, ["w", "w"]).items()}
    assert found == {"a": 0.5, "b": pytest.approx(0.5 * 2 / 3)}


def test_the_area_is_the_profile_integrated():
    generator = np.random.default_rng(0)
    costs = {m: np.exp(generator.normal(size=9)) for m in "abc"}
    costs["a"][3] = math.inf
    ratios = np.linspace(1.0, 4.0, 200_001)
    for method, profile in league_studies.profiles(costs, ratios).items():
        integral = np.mean((profile[1:] + profile[:-1]) / 2)
        of = league_studies.area(costs, ["w"] * 9)[method]
        assert of.mean == pytest.approx(integral, abs=1e-4)
        assert of.low < of.mean < of.high


def test_final_metrics_are_in_units_of_the_baseline():
    finals = {"fedavg": np.array([[0.4, 2.0], [0.6, 4.0]]), "a": np.array([[1.0, 3.0]])}
    scaled = league_studies.scaled(finals)
    np.testing.assert_allclose(scaled["a"], [[2.0, 1.0]])
    np.testing.assert_allclose(scaled["fedavg"].mean(axis=0), [1.0, 1.0])


_ITEM = """
title = "League: toy"
rounds = 8
columns = [{ name = "accuracy", metric = "validation/accuracy" }]
selection = { metric = "validation/loss", last_rounds = 1 }
search = { factor = 2, rounds = 2 }
[rows]
fedavg = "a.flags --algorithm=fedavg"
fedsam = "a.flags --algorithm=fedsam"
[grid]
fedavg = { client_learning_rate = { log = [0.01, 1] } }
fedsam = { client_learning_rate = { log = [0.01, 1] } }
[setups.study1]
title = "toy; study 1"
seeds = [1]
sample = { points = 4, seed = 1 }
"""


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "league"
    home.mkdir()
    (home / "toy.toml").write_text(_ITEM)
    (home / "a.flags").write_text(
        "--task=synthetic\n--clients_per_round=2\n--client_batch_size=5\n"
    )
    return home


def _carry_out(setup, method, root, speed, diverge=False):
    """Leaves what a search would: larger rates are better, and learn `speed` a round."""
    points = setup.points(method)
    rates = sorted((p["client_learning_rate"] for p in points), reverse=True)
    for rounds, kept in ((2, 4), (4, 2), (8, 1)):
        some = [p for p in points if p["client_learning_rate"] in rates[:kept]]
        for run in items.planned_runs(
            setup, [method], {method: some}, setup.seeds, root=root, max_rounds=rounds
        ):
            run.folder.mkdir(parents=True, exist_ok=True)
            rate = run.point["client_learning_rate"]
            lines = ["round_num,train/num_examples,validation/loss,validation/accuracy", "0,,,0"]
            for r in range(1, rounds + 1):
                lines.append(f"{r},10,{1 / rate},{speed * r}")
            (run.folder / "metrics.csv").write_text("\n".join(lines) + "\n")
            flags = dict(run.request().in_force)
            (run.folder / "hparams.json").write_text(json.dumps({"flags": flags}))
            if diverge:
                (run.folder / outputs.DIVERGED).write_text('{"reason": "x"}')
            else:
                final = {"validation/loss": 1 / rate}
                summary = {"rounds": rounds, "mean_round_seconds": 1.0, "final": final}
                (run.folder / "summary.json").write_text(json.dumps(summary))


def _setup(folder):
    (item,) = items.own_items(str(folder))
    return item.setups["study1"]


def test_a_study_is_its_best_point_and_its_cost_to_the_target(folder, tmp_path):
    setup, root = _setup(folder), str(tmp_path / "results")
    _carry_out(setup, "fedavg", root, 0.1)
    _carry_out(setup, "fedsam", root, 0.2)
    studies = league_studies.studies_of(folder, root)
    assert [s.method for s in studies] == ["fedavg", "fedsam"]
    best = max(p["client_learning_rate"] for p in setup.points("fedavg"))
    assert studies[0].run.point == {"client_learning_rate": best}
    records = {r["method"]: r for r in league_studies.table(folder, studies)}
    # The mean of FedAvg's rounds 2 to 6 of 8 is 0.1 x 4. FedSAM has it after rounds 0 to 4, with
    # two gradients a step.
    assert records["fedavg"]["target"] == pytest.approx(0.4)
    assert [records["fedavg"][m] for m in league_studies.MEASURES] == [6, 60.0, 12]
    assert [records["fedsam"][m] for m in league_studies.MEASURES] == [4, 80.0, 8]
    costs, workloads = league_studies.costs_of(list(records.values()), "rounds")
    assert workloads == ["toy"]
    means = {method: of.mean for method, of in league_studies.area(costs, workloads).items()}
    assert means == {"fedavg": pytest.approx(2.5 / 3), "fedsam": 1.0}
    tie = league_studies.improvement(list(records.values()), "fedsam")
    assert tie.mean == 0.5, "the same validation loss"


def test_a_search_on_its_way_is_no_study(folder, tmp_path):
    setup, root = _setup(folder), str(tmp_path / "results")
    _carry_out(setup, "fedavg", root, 0.1)
    _carry_out(setup, "fedsam", root, 0.1)
    best = max(p["client_learning_rate"] for p in setup.points("fedsam"))
    (run,) = items.planned_runs(
        setup, ["fedsam"], {"fedsam": [{"client_learning_rate": best}]}, [1], root=root
    )
    (run.folder / "summary.json").unlink()
    lines = (run.folder / "metrics.csv").read_text().splitlines()
    (run.folder / "metrics.csv").write_text("\n".join(lines[:7]) + "\n")
    assert [s.method for s in league_studies.studies_of(folder, root)] == ["fedavg"]


def test_a_study_whose_points_all_diverged_never_reaches_the_target(folder, tmp_path):
    setup, root = _setup(folder), str(tmp_path / "results")
    _carry_out(setup, "fedavg", root, 0.1)
    _carry_out(setup, "fedsam", root, 0.1, diverge=True)
    _, failed = league_studies.studies_of(folder, root)
    assert failed.run is None and failed.loss == math.inf
    _, record = league_studies.table(folder, [*league_studies.studies_of(folder, root)])
    assert [record[m] for m in league_studies.MEASURES] == [math.inf] * 3


def test_without_the_baseline_there_is_no_target(folder, tmp_path, capsys):
    setup, root = _setup(folder), str(tmp_path / "results")
    _carry_out(setup, "fedsam", root, 0.1)
    (record,) = league_studies.table(folder, league_studies.studies_of(folder, root))
    assert record["target"] == record["rounds"] == ""
    assert league_studies.costs_of([record], "rounds") == ({}, [])
    assert league.main([f"--root={root}", f"--folder={folder}"]) == 0
    assert "No study is complete" in capsys.readouterr().out


def test_what_is_recorded_stays_where_there_are_no_new_runs(folder, tmp_path, capsys):
    """An own method joins on a machine that has none of the other methods' runs."""
    setup, both, new = _setup(folder), str(tmp_path / "both"), str(tmp_path / "new")
    _carry_out(setup, "fedavg", both, 0.1)
    _carry_out(setup, "fedsam", both, 0.2)
    assert league.main([f"--root={both}", f"--folder={folder}"]) == 0
    pages = ("studies.csv", "runs.csv", "summary.csv", "README.md")
    whole = {name: (folder / name).read_bytes() for name in pages}
    for name in ("studies.csv", "runs.csv"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(line for line in lines if "fedsam" not in line))

    _carry_out(setup, "fedsam", new, 0.2)
    capsys.readouterr()
    assert league.main([f"--root={new}", f"--folder={folder}"]) == 0
    assert {name: (folder / name).read_bytes() for name in pages} == whole
    assert f"2 studies in {folder / 'studies.csv'}, 1 of them from" in capsys.readouterr().out

    # Other runs of FedAvg give another target, to which FedSAM's costs are not known.
    other = str(tmp_path / "other")
    _carry_out(setup, "fedavg", other, 0.3)
    assert league.main([f"--root={other}", f"--folder={folder}"]) == 0
    assert "1 recorded studies are left out" in capsys.readouterr().out
    assert "fedsam" not in (folder / "runs.csv").read_text()


def test_a_missing_root_changes_nothing(folder, tmp_path, capsys):
    assert league.main([f"--root={tmp_path / 'none'}", f"--folder={folder}"]) != 0
    assert "There is no folder" in capsys.readouterr().err
    assert not (folder / "studies.csv").exists()


def test_the_command_writes_a_table(folder, tmp_path, capsys):
    setup, root = _setup(folder), str(tmp_path / "results")
    _carry_out(setup, "fedavg", root, 0.1)
    assert league.main([f"--root={root}", f"--folder={folder}"]) == 0
    header, line = (folder / "studies.csv").read_text().splitlines()
    assert header.startswith("workload,study,method,point") and line.startswith("toy,study1,fedavg")
    told = capsys.readouterr().out
    assert "| method | area_rounds | " in told and "| fedavg | 1.0 | 1.0 | 1.0 |" in told
    assert league.main([f"--root={root}", f"--folder={folder}", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["method"] == "fedavg" and record["improvement"] == 0.5
    runs = (folder / "runs.csv").read_text().splitlines()
    assert len(runs) == 5, "four points"
    page = (folder / "README.md").read_text()
    assert "No answer yet. The rules ask for 3 studies" in page
    assert (folder / "profiles.png").exists()


def _record(workload, study, method, rounds, loss=1.0):
    costs = dict.fromkeys(league_studies.MEASURES, rounds)
    known = {"workload": workload, "study": study, "method": method, "target": 0.5}
    return {**known, "point": "", "validation_loss": loss, **costs}


def test_a_study_counts_once_all_methods_have_ended_it():
    records = [_record("w", "study1", m, 10) for m in ("fedavg", "fedsam")]
    records.append(_record("w", "study2", "fedavg", 10))
    assert league_studies.complete(records) == [("w", "study1")]


def test_a_workload_under_way_does_not_change_what_the_others_say():
    some = [_record("new", "study1", m, n) for m, n in (("fedavg", 5), ("fedsam", 50))]
    assert league_studies.counted(some) == [("new", "study1")]
    whole = _league(0.5)
    assert league_studies.counted([*some, *whole]) == league_studies.complete(whole)
    assert league_page.summary([*some, *whole], []) == league_page.summary(whole, [])


def test_a_joined_method_under_way_is_named_and_takes_no_study_from_the_others(
    folder, tmp_path, capsys
):
    (folder / "settings").mkdir()
    (folder / "settings" / "league.toml").write_text('[methods]\nfedsam = { import = "own" }\n')
    toy = (folder / "toy.toml").read_text()
    for k in (2, 3):
        toy += f'[setups.study{k}]\ntitle = "toy"\nseeds = [{k}]\nsample = {{ points = 4 }}\n'
    (folder / "toy.toml").write_text(toy)
    (item,) = items.own_items(str(folder))
    root = str(tmp_path / "results")
    for setup in item.setups.values():
        _carry_out(setup, "fedavg", root, 0.1)
    _carry_out(item.setups["study1"], "fedsam", root, 0.2)

    assert league.main([f"--root={root}", f"--folder={folder}"]) == 0
    told = "fedsam: 1 of 3 studies of toy; not ranked yet."
    assert told in capsys.readouterr().out
    assert "toy,study1,fedsam," in (folder / "studies.csv").read_text()
    page = (folder / "README.md").read_text()
    assert f"\n- {told}\n" in page and "3 of 3 studies on `toy`, with 1 methods" in page
    assert "No answer yet" not in page

    for name in ("study2", "study3"):
        _carry_out(item.setups[name], "fedsam", root, 0.2)
    assert league.main([f"--root={root}", f"--folder={folder}"]) == 0
    assert "not ranked" not in capsys.readouterr().out
    assert "| FedSAM | 1.00 |" in (folder / "README.md").read_text()


def test_a_suite_workload_under_way_takes_no_method_out_of_the_ranking():
    records = [_record("w", "study1", "fedavg", 10), _record("w", "study1", "fedsam", 10)]
    records.append(_record("w", "study2", "fedavg", 10))
    assert league_page.unfinished(records, ()) == {}
    assert league_page.unfinished(records, {"fedsam"}) == {"fedsam": {"w": 1}}
    # FedAvg itself has no more.
    assert league_page.unfinished(records[:2], {"fedsam"}) == {}


def _league(own_loss):
    """Three studies in which FedSAM takes half of FedAvg's rounds."""
    of_methods = ("fedavg", 20, 1.0), ("fedsam", 10, own_loss)
    return [_record("w", f"study{k}", *of) for k in (1, 2, 3) for of in of_methods]


@pytest.mark.parametrize(("loss", "is_better"), [(0.5, True), (1.0, False), (2.0, False)])
def test_a_claim_needs_both_intervals(loss, is_better):
    records = _league(loss)
    methods = {r["method"]: r for r in league_page.summary(records, [])}
    assert methods["fedsam"]["area_rounds"] == 1.0
    assert methods["fedavg"]["area_rounds"] == pytest.approx(2 / 3, abs=1e-4)
    assert league_page.better(methods["fedsam"], methods["fedavg"]) == is_better
    told, *rest = league_page._advice(list(methods.values()), ["w"], 3)
    assert ("these clearly beat tuned FedAvg" in told) == is_better
    alone = ["Clearly better in rounds to the target alone: FedSAM."]
    alone.append("Try FedAvg first, and tune both its rates.")
    assert (rest == alone) == (not is_better)
    # One in eight wins three studies by chance, and its interval from 1 to 1 does not show it.
    chance = "of 1 methods no better than FedAvg, 0.12 would have the lower validation loss in all"
    assert any(chance in line for line in [told, *rest]) == is_better
    (told, *_) = league_page._advice(list(methods.values()), ["w"], 2)
    assert told.startswith("No answer yet")


def test_methods_that_end_above_the_baseline_on_test_data_are_named():
    records = _league(2.0)

    def told(*of_workloads, others=()):
        finals = [
            {"workload": w, "track": "tuned", "method": m, "seed": k, "accuracy": v, "spread": 0.0}
            for w, own in zip("wv", of_workloads, strict=False)
            for m, some in (("fedavg", (0.5, 0.51, 0.49)), ("fedsam", own))
            for k, v in enumerate(some)
        ]
        methods = league_page.summary(records, finals)
        return league_page._advice(methods, ["w"], 3, [*finals, *others])[2:]

    first = ["Try FedAvg first, and tune both its rates."]
    above, overlapping = (0.6, 0.61, 0.59), (0.6, 0.61, 0.4)
    assert told(overlapping) == told(overlapping, overlapping) == first
    on_w = "| `w` | accuracy | FedSAM (1.20) |"
    assert on_w in told(above)
    one = told(above, overlapping)
    assert on_w in one and "| `v` | accuracy | none |" in one
    assert "On every workload: none." in one
    assert "On every workload: FedSAM." in told(above, above)
    assert first[0] not in one
    untuned = [
        {"workload": "v", "track": "untuned", "method": "fedavg", "seed": 0, "accuracy": 0.5}
    ]
    assert told(above, others=untuned) == told(above)


def test_a_claim_does_not_hide_the_table_of_test_data():
    records = _league(0.5)
    finals = [
        {"workload": "w", "track": "tuned", "method": m, "seed": k, "accuracy": v + k / 100}
        for m, v in (("fedavg", 0.5), ("fedsam", 0.6))
        for k in (1, 2, 3)
    ]
    told = league_page._advice(league_page.summary(records, finals), ["w"], 3, finals)
    assert "rounds to the target: FedSAM. *Clearly*" in told[0]
    assert told[-1] == "| `w` | accuracy | FedSAM (1.19) |"


_FINAL = """
title = "toy; test data"
rounds = 4
seeds = [11, 12]
columns = [{ name = "accuracy", metric = "eval/accuracy" }]
[rows]
fedavg = "a.flags --algorithm=fedavg --client_learning_rate=0.1"
fedsam = "a.flags --algorithm=fedsam --client_learning_rate=0.1"
[setups.untuned]
title = "toy; as published"
"""


def test_final_runs_count_once_all_of_a_track_have_ended(folder, tmp_path):
    (folder / "toy_final.toml").write_text(_FINAL)
    root = str(tmp_path / "results")
    (setup,) = next(
        i for i in items.own_items(str(folder)) if "untuned" in i.setups
    ).setups.values()
    points = {row: setup.points(row) for row in setup.rows}
    runs = items.planned_runs(setup, setup.rows, points, setup.seeds, root=root)
    for number, run in enumerate(runs):
        assert league_studies.finals_of(folder, root) == []
        run.folder.mkdir(parents=True)
        (run.folder / "metrics.csv").write_text("round_num\n4\n")
        flags = dict(run.request().in_force)
        (run.folder / "hparams.json").write_text(json.dumps({"flags": flags}))
        if number:
            final = {"eval/accuracy": number / 10}
            content = {"rounds": 4, "mean_round_seconds": 1.0, "final": final}
            (run.folder / "summary.json").write_text(json.dumps(content))
        else:
            (run.folder / outputs.DIVERGED).write_text('{"reason": "x"}')
    found = league_studies.finals_of(folder, root)
    assert [(r["method"], r["seed"], r["accuracy"]) for r in found] == [
        (run.row, run.seed, number / 10) for number, run in enumerate(runs) if number
    ]
    # On record, they stay without their runs; with runs of one method, those of the other one.
    assert league_studies.finals_of(folder, str(tmp_path / "none"), found) == found
    for run in runs[2:]:
        shutil.rmtree(run.folder)
    before = [{**r, "accuracy": -1.0} for r in found]
    assert league_studies.finals_of(folder, root, before) == [*found[:1], *before[1:]]
    # The diverged run leaves one seed, which has no spread.
    lines = list(league_page._finals(found))
    assert any(line.startswith("| FedAvg | 0.1000 | 1 |") for line in lines), lines


def test_what_holds_for_a_part_of_the_workloads_says_so():
    whole = _league(2.0)
    names = [f"study{k}" for k in (1, 2, 3)]
    of_v = [_record("v", s, m, 10) for s in names for m in ("fedavg", "scaffold")]
    finals = [
        {"workload": "w", "track": "tuned", "method": m, "seed": s, "accuracy": v}
        for m, v in (("fedavg", 0.5), ("fedsam", 0.6))
        for s in (11, 12)
    ]
    records = [*whole, *of_v]
    methods = league_page.summary(records, finals)
    page = "\n".join(league_page._page(records, [], methods, methods, finals, ["w", "x"]))
    assert "Not ranked, since it has not run on all of them: FedSAM, SCAFFOLD." in page
    assert "over workloads and five fresh seeds, so far only on `w`." in page
    assert "Not complete yet: `x`." in page
    methods = league_page.summary(whole, finals)
    page = "\n".join(league_page._page(whole, [], methods, methods, finals, ["w"]))
    assert "Not ranked" not in page and "Not complete" not in page and "so far only" not in page


def test_a_workload_of_the_best_methods_alone_has_a_table_of_its_own():
    """Methods that did not run on it keep their place in the ranking."""
    names = [f"study{k}" for k in (1, 2, 3)]
    every = [
        _record("w", s, m, n, loss)
        for s in names
        for m, n, loss in (("fedavg", 20, 1.0), ("fedsam", 10, 0.5), ("scaffold", 40, 1.0))
    ]
    narrow = [_record("v", s, m, n) for s in names for m, n in (("fedavg", 5), ("fedsam", 20))]
    finals = [
        {"workload": w, "track": "tuned", "method": m, "seed": s, "accuracy": v + s / 1000}
        for w, m, v in (
            *(("w", "fedavg", 0.5), ("w", "fedsam", 0.4), ("w", "scaffold", 0.4)),
            *(("v", "fedavg", 0.5), ("v", "fedsam", 0.6)),
        )
        for s in (11, 12)
    ]

    def page(records, finals=finals):
        methods = league_page.summary(every, league_page.of_all(finals, {"v"}))
        return "\n".join(
            league_page._page(records, [], methods, methods, finals, ["w", "v"], {"v"})
        )

    whole = page([*every, *narrow])
    ranking, best = whole.split("## The best methods, with `v`")
    assert "| SCAFFOLD | 0.00 |" in ranking and "Not ranked" not in ranking
    assert "| FedSAM | 1.00 |" in ranking, "the fastest on w"
    # On v it takes four times FedAvg's rounds, which the area no longer counts.
    assert "| FedSAM | 0.50 |" in best
    assert "SCAFFOLD" not in best.split("## Test data")[0]
    assert "| `v` | accuracy | FedSAM (1.20) |" in ranking
    # FedSAM is ahead on w alone, and its area of both equals FedAvg's.
    assert "On `w`, these clearly beat tuned FedAvg" in ranking
    assert "With `v` as well, where only the best methods and FedAvg ran, these do: none." in whole
    faster = [_record("v", s, "fedsam", 1, 0.5) for s in names]
    as_well = page([*every, *narrow[::2], *faster])
    assert "where only the best methods and FedAvg ran, these do: FedSAM." in as_well
    assert "The best methods" not in page([*every, *narrow[:-1]])
    said = "*Final* leaves out `v`: no final runs yet."
    assert said not in whole
    assert said in page([*every, *narrow], league_page.of_all(finals, {"v"}))


def test_best_points_at_an_end_of_the_range_are_named():
    """In half of the studies or more; a setting with few values has no ends."""
    rates = [10.0**-k for k in range(8)]

    def run(study, method, rate, a):
        point = f"--client_learning_rate={rate} --a={a} --loss=all"
        return {"workload": "w", "study": study, "method": method, "point": point}

    names = ("study1", "study2")
    runs = [
        run(s, m, rate, a)
        for s in names
        for m in ("fedavg", "fedsam", "scaffold")
        for rate in rates
        for a in (0.1, 0.9)
    ]
    best = {"fedavg": (0.1, 0.01), "fedsam": (0.01, 1e-3), "scaffold": (1e-7, 1e-6)}
    records = [run(s, m, best[m][k], 0.9) for k, s in enumerate(names) for m in best]
    found = league_page.at_edges(records, runs)
    assert found == {
        ("client_learning_rate", "highest"): ["fedavg"],
        ("client_learning_rate", "lowest"): ["scaffold"],
    }
    told = list(league_page._on_ranges(records, runs))
    assert "- the highest `--client_learning_rate`: FedAvg" in told
    assert "- the lowest `--client_learning_rate`: SCAFFOLD" in told
    assert list(league_page._on_ranges(records, [])) == []


def test_final_scores_count_methods_with_all_seeds_of_the_baseline():
    def final(method, seed, value, track="tuned"):
        known = {"workload": "w", "track": track, "method": method, "seed": seed}
        return {**known, "accuracy": value, "worst tenth": 0.0}

    finals = [final("fedavg", 11, 0.4), final("fedavg", 12, 0.6), final("fedsam", 11, 1.0)]
    finals += [final("scaffold", 11, 0.5), final("scaffold", 12, 1.0)]
    finals.append(final("fedavg", 11, 9.0, track="untuned"))
    found = league_page.scaled_finals(finals)
    assert {m: of.mean for m, of in found.items()} == {"fedavg": 1.0, "scaffold": 1.5}


def test_a_run_without_evaluations_never_reaches_a_target():
    none = np.zeros(0, np.int64), np.zeros(0)
    run = types.SimpleNamespace(read=lambda: types.SimpleNamespace(values=lambda metric: none))
    assert set(league_studies.reached(run, "validation/accuracy", 0.5)) == {math.inf}
