"""What comparisons say of their numbers: directions, clients, rounds and warnings, without runs."""

import json
import math
import types

import numpy as np
import pandas as pd
import pytest

import simulation
from reproduction import compare_methods, comparison, items, results, study
from reproduction.items import Row, Setup
from tff_suite.hparams import HparamError


def task(metric, more):
    return types.SimpleNamespace(primary_metric=metric, higher_is_better=more)


def run_folder(folder, rounds, values, clients=None, flags=None):
    """Writes the folder of a finished run; values are column → its numbers in all rounds.

    Args:
      folder: Path of the folder.
      rounds: Number of rounds.
      values: Column of metrics.csv → number in each round; the first one is the primary metric.
      clients: Columns of client_metrics.csv.
      flags: Further flags.
    """
    folder.mkdir(parents=True)
    known = {"algorithm": "fedavg", "task": "t", "seed": 1, **(flags or {})}
    (folder / "hparams.json").write_text(json.dumps({"flags": known}))
    table = pd.DataFrame({"round_num": range(1, rounds + 1), **values})
    table.to_csv(folder / "metrics.csv", index=False)
    final = {column: some[-1] for column, some in values.items()}
    ended = {"rounds": rounds, "final": final, "mean_round_seconds": 1.0}
    (folder / "summary.json").write_text(json.dumps(ended))
    if clients is not None:
        pd.DataFrame(clients).to_csv(folder / "client_metrics.csv", index=False)


def written(tmp_path, values, *, own=None, title="mine, 4000 rounds", done=None, **more):
    """Writes and reads the comparison of (row, seed) → value; `done` are rounds by (row, seed)."""
    columns = more.pop("columns", [{"name": "x", "metric": "eval/x"}])
    rows = list(dict.fromkeys(row for row, _ in values))
    setup = Setup(
        paper="",
        item="mine",
        name="comparison",
        home=tmp_path,
        title=title,
        rounds=4000,
        seeds=sorted({seed for _, seed in values}),
        rows={row: Row(row, "", {}, {"algorithm": row}) for row in rows},
        columns=columns,
        published="comparison",
        objects={} if own is None else {"task": own},
        **more,
    )
    runs = []
    for (row, seed), value in values.items():
        rounds = (done or {}).get((row, seed), 4000)
        folder = tmp_path / "runs" / f"{row}{seed}"
        few = max(1, min(rounds, 3))
        if not isinstance(value, dict):
            value = {column["metric"]: value for column in columns}
        some = {metric: [0.5] * (few - 1) + [one] for metric, one in value.items()}
        run_folder(folder, few, some, flags={"algorithm": row, "seed": seed})
        if rounds != few:
            table = pd.read_csv(folder / "metrics.csv")
            table["round_num"] += rounds - few
            table.to_csv(folder / "metrics.csv", index=False)
        runs.append(items.PlannedRun(row, seed, {}, folder, "", {}, 4000, 4000))
    outcome = study.Outcome(setup, runs, {row: {} for row in rows}, [])
    folder = tmp_path / "comparison"
    folder.mkdir()
    return comparison.write(outcome, folder), folder


TWO = {("fedavg", 1): 13.0, ("fedavg", 2): 14.0, ("fedprox", 1): 0.3, ("fedprox", 2): 0.4}


@pytest.mark.parametrize(
    ("metric", "own", "more", "lower_wins"),
    [
        ("eval/mse", task("mse", False), {}, True),
        ("eval/rmse", task("rmse", False), {}, True),
        ("eval/mine", task("mine", False), {}, True),
        ("eval/mine", task("mine", True), {}, False),
        ("eval/error_reduction", task("error_reduction", True), {}, False),
        ("fairness/mine_worst10_u", task("mine", False), {}, True),
        ("fairness/mine_std_u", task("mine", True), {}, True),
        ("eval/mine", None, {"higher_is_better": False}, True),
        ("eval/mse", None, {}, True),
        ("eval/mine", task("other", True), {}, None),
    ],
)
def test_the_direction_that_is_declared_decides(tmp_path, metric, own, more, lower_wins):
    """In the table, in pairs and over tasks, and after reading the files back."""
    columns = [{"name": "x", "metric": metric}]
    found, folder = written(tmp_path, TWO, own=own, columns=columns, **more)
    for one in (found, comparison.read(folder)):
        (pair,) = one.pairs()
        _, better = comparison.over_tasks([one, one])
        chance = better.loc["FedProx > FedAvg", "mean"]
        lines = {line.split(" & ")[0].strip(): line for line in one.to_latex().splitlines()}
        bold = [name for name in ("FedAvg", "FedProx") if "textbf" in lines[name]]
        if lower_wins is None:
            assert math.isnan(pair.wins) and math.isnan(chance) and bold == []
            assert "Whether higher or lower values of x are better is unknown" in one.report()
        else:
            assert pair.wins == 2 * lower_wins and chance == lower_wins
            assert bold == (["FedProx"] if lower_wins else ["FedAvg"])
            assert "unknown" not in one.report()


@pytest.mark.parametrize(
    ("column", "better"),
    [
        ({"metric": "eval/accuracy", "higher_is_better": False}, False),
        ({"metric": "eval/mape"}, False),
        ({"metric": "eval/rmse", "scale": -1}, True),
        ({"metric": "eval/rmse", "power": -1}, True),
        ({"metric": "eval/rmse", "power": 0.5}, False),
        ({"metric": "fairness/accuracy_angle"}, False),
        ({"metric": "fairness/accuracy_worst10_u"}, True),
        ({"metric": "eval/recall_at_5"}, True),
        ({"metric": "eval/own"}, None),
        ({"metric": "eval/mselection"}, None),
        ({"metric": "time/round_seconds"}, False),
    ],
)
def test_names_tell_the_direction_where_it_is_not_declared(column, better):
    assert results.higher_is_better(column) is better


def test_a_negative_power_turns_the_direction_of_the_primary_metric(tmp_path):
    columns = [{"name": "x", "metric": "eval/mine", "power": -1}]
    found, _ = written(tmp_path, TWO, own=task("mine", False), columns=columns)
    (pair,) = found.pairs()
    assert pair.difference.mean > 0 and pair.wins == 2


@pytest.mark.parametrize("more", [True, False])
def test_a_run_tells_the_direction_by_its_best_round(tmp_path, more):
    """So tables of tasks that are known by name alone, and of earlier versions, have it."""
    run_folder(tmp_path / "run", 3, {"eval/own": [2.0, 1.0, 3.0]})
    path = tmp_path / "run" / "summary.json"
    best = {"round_num": 3 if more else 2, "eval/own": 3.0 if more else 1.0}
    path.write_text(json.dumps({**json.loads(path.read_text()), "best": best}))
    runs = pd.DataFrame([{"row": "fedavg", "seed": 1, "x": 3.0, "run": str(tmp_path / "run")}])
    columns = [{"name": "x", "metric": "eval/own"}, {"name": "y", "metric": "eval/other"}]
    found = comparison.Comparison("T", columns, runs.assign(y=1.0), [], "nowhere")
    assert found.better() is more and found.better("y") is None


def of_clients(tmp_path, scale=100, seeds=(1, 2)):
    """Two methods: the large client gains, all small ones lose."""
    sizes = np.array([200] + [10] * 7)
    rows = []
    for row, large, small in (("fedavg", 0.5, 0.6), ("fedprox", 0.8, 0.2)):
        for seed in seeds:
            values = np.array([large] + [small] * 7) + (0.01 if row == "fedavg" else 0.02) * seed
            pooled = float((values * sizes).sum() / sizes.sum())
            clients = {"client_id": range(8), "test_examples": sizes, "accuracy": values}
            folder = tmp_path / f"{row}{seed}"
            run_folder(folder, 1, {"eval/accuracy": [pooled]}, clients)
            rows.append({"row": row, "seed": seed, "x": scale * pooled, "run": str(folder)})
    columns = [{"name": "x", "metric": "eval/accuracy", "scale": scale}]
    return comparison.Comparison("T", columns, pd.DataFrame(rows), [], "nowhere")


def test_the_interval_over_clients_is_of_the_mean_beside_it(tmp_path):
    (line,) = of_clients(tmp_path).differences().to_dict("records")
    assert line["mean"] > 0, "though seven of eight clients are worse"
    (pair,) = of_clients(tmp_path / "again").pairs()
    assert pair.clients.mean == pytest.approx(pair.difference.mean)
    assert line["clients low"] <= line["mean"] <= line["clients high"]


def test_rows_with_other_tests_leave_the_intervals_of_the_rest_alone(tmp_path):
    """A third row whose clients have other numbers of tests, or are fewer, as with other data."""
    found = of_clients(tmp_path, seeds=(1,))
    (alone,) = found.pairs()
    for name, sizes in (("alike", [5] * 8), ("fewer", [200, 10])):
        values = np.linspace(0.1, 0.9, len(sizes))
        pooled = float((values * sizes).sum() / sum(sizes))
        clients = {
            "client_id": range(len(sizes)),
            "test_examples": sizes,
            "accuracy": values,
        }
        folder = tmp_path / name
        run_folder(folder, 1, {"eval/accuracy": [pooled]}, clients)
        row = {"row": f"fedavg {name}", "seed": 1, "x": 100 * pooled, "run": str(folder)}
        runs = pd.concat([found.runs, pd.DataFrame([row])], ignore_index=True)
        pairs = {
            (pair.one, pair.other): pair.clients
            for pair in comparison.Comparison("T", found.columns, runs, [], "nowhere").pairs()
        }
        assert pairs["fedprox", "fedavg"] == alone.clients
        # Of other tests, no mean over clients is the difference of the means.
        assert pairs[f"fedavg {name}", "fedavg"] is pairs[f"fedavg {name}", "fedprox"] is None


def test_there_is_no_interval_over_clients_of_another_quantity(tmp_path):
    found = of_clients(tmp_path)
    found.runs["x"] += 1.0  # Such as a metric of a central test set.
    assert found.pairs()[0].clients is None


@pytest.mark.parametrize(
    ("done", "title"),
    [
        ({}, "mine, 4000 rounds"),
        (dict.fromkeys(TWO, 1), "mine, 1 of 4000 rounds"),
        ({("fedavg", 1): 1, ("fedavg", 2): 7}, "mine, 1 to 4000 of 4000 rounds"),
        # `stop_at` may end a run after the evaluation of the initial model.
        ({("fedavg", 1): 0, ("fedavg", 2): 7}, "mine, 0 to 4000 of 4000 rounds"),
    ],
)
def test_the_caption_states_the_rounds_that_were_done(tmp_path, done, title):
    found, _ = written(tmp_path, TWO, done=done, own=task("x", False))
    assert found.title == title and rf"\caption{{{title}. Mean over" in found.to_latex()


def test_titles_without_rounds_get_those_of_short_runs(tmp_path):
    assert written(tmp_path / "a", TWO, title="MSE")[0].title == "MSE"
    done = dict.fromkeys(TWO, 2)
    assert written(tmp_path / "b", TWO, title="MSE", done=done)[0].title == "MSE, 2 of 4000 rounds"


def test_equal_differences_are_not_to_be_trusted(tmp_path):
    values = {("fedavg", 1): 50.0, ("fedavg", 2): 60.0, ("fedprox", 1): 52.0, ("fedprox", 2): 62.0}
    found, folder = written(tmp_path, values, own=task("x", True))
    told = "The spread over seeds of x is 0 for FedProx - FedAvg"
    for one in (found, comparison.read(folder)):
        assert any(told in line for line in one.caveats)
        assert one.report().count(told) == 1 and told in one.to_latex()
    assert (folder / "table.tex").read_text() == found.to_latex()


def test_the_report_counts_the_seeds_of_the_pairs():
    rows = [
        {"row": row, "seed": seed, "x": value, "run": "nowhere"}
        for row, some in {"fedavg": [1.0, math.nan, 3.0], "fedprox": [1.0, 2.0, 5.0]}.items()
        for seed, value in enumerate(some, 1)
    ]
    columns = [{"name": "x", "metric": "eval/accuracy"}]
    found = comparison.Comparison("T", columns, pd.DataFrame(rows), [], "nowhere")
    assert "With 2 seeds a 95 % interval is ± 12.7 standard errors" in found.report()
    rows = [{**row, "x": math.nan if row["row"] == "fedprox" else 1.0} for row in rows]
    found = comparison.Comparison("T", columns, pd.DataFrame(rows), [], "nowhere")
    assert "With 3 seeds a 95 % interval is ± 4.3" in found.report(), "of the only method"
    rows = [{**row, "x": math.nan} for row in rows]
    found = comparison.Comparison("T", columns, pd.DataFrame(rows), [], "nowhere")
    assert "No seed has a value." in found.report()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"algorithms": "fedavg"}, "must be a list: pass ['fedavg']"),
        ({"seeds": "12"}, "seeds='12' must be a number of seeds, such as 5, or a list"),
        ({"seeds": 2.5}, "must be a number of seeds"),
        ({"seeds": True}, "must be a number of seeds"),
        ({"seeds": [1, "a"]}, "or a list of whole numbers"),
        ({"seeds": -2}, "must name at least one seed"),
        ({"budget": 0}, "budget=0 must be a whole number"),
        ({"client_learnin_rate": 0.1}, "Did you mean --client_learning_rate?"),
        ({"max_minute": 3}, "compare has no argument max_minute. Did you mean max_minutes?"),
        ({"seds": 3}, "compare has no argument seds. Did you mean seeds?"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, changes, says):
    known = {"task": "synthetic", "algorithms": ["fedavg"], "seeds": 1, "total_rounds": 1}
    known |= {"clients_per_round": 2, "client_batch_size": 2}
    with pytest.raises(HparamError) as e:
        simulation.compare(**{**known, **changes}, root_output_dir=tmp_path)
    assert says in str(e.value) and "\n" not in str(e.value)


@pytest.mark.parametrize("given", [2, 2.0, np.int64(2), [1, 2], np.arange(1, 3), (1, 2.0, 1)])
def test_seeds_are_whole_numbers_of_any_type(given):
    found = compare_methods._seeds(given)
    assert found == [1, 2] and all(type(seed) is int for seed in found)
