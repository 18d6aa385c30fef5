"""Methods side by side: what `simulation.compare` runs, tells and writes."""

import dataclasses
import io
import json
import pathlib
import re

import numpy as np
import pandas as pd
import pytest
import rich.console
import rich.live
from matplotlib.text import Text
from scipy import stats

import reproduce
import simulation
import tasks
import tff_algos
from reproduction import (
    board,
    compare,
    compare_methods,
    comparison,
    items,
    latex,
    places,
    results,
    sweep,
)
from simulation.errors import RunError
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tests.tff_algos import toy
from tff_algos import registry
from tff_suite.hparams import HparamError

pytestmark = pytest.mark.slow

SETTINGS = {
    "total_rounds": 2,
    "clients_per_round": 3,
    "client_batch_size": 3,
    "client_learning_rate": 0.3,
    "server_learning_rate": 1.0,
    "qfedavg_q": 1.0,
    "runtime": "tff",
}


def own_task(**changes):
    return dataclasses.replace(tasks.load("toy"), **{"name": "mine", **changes})


def run(root, **changes):
    known = {"algorithms": ["fedavg", "qfedavg"], "seeds": 2, "task": own_task(), **SETTINGS}
    return simulation.compare(**{**known, "root_output_dir": root, **changes})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("compare")
    return root, run(root)


def test_the_numbers_are_those_of_the_runs(made):
    root, result = made
    assert result.runs.row.tolist() == ["fedavg"] * 2 + ["qfedavg"] * 2
    for one in result.runs.itertuples():
        summary = json.loads((pathlib.Path(one.run) / "summary.json").read_text())
        assert one[4] == pytest.approx(100 * summary["final"]["eval/accuracy"])
        flags = json.loads((pathlib.Path(one.run) / "hparams.json").read_text())["flags"]
        assert flags["seed"] == flags["client_datasets_random_seed"] == one.seed
        assert flags["algorithm"] == one.row and ("qfedavg_q" in flags) == (one.row == "qfedavg")
    name = result.columns[0]["name"]
    means = result.runs.groupby("row")[name].mean()
    assert result.table()[name].tolist() == pytest.approx(means.tolist())
    values = [result.values()[row] for row in ("qfedavg", "fedavg")]
    (pair,) = result.pairs()
    assert pair.p == pytest.approx(stats.ttest_rel(*(list(v.values()) for v in values)).pvalue)
    assert pair.clients is not None and pair.clients.low <= pair.clients.high
    assert {p.name for p in (root / "mine" / "comparison").iterdir()} == {
        *("asked.json", "columns.json", "results.csv", "runs.csv", "table.tex")
    }
    figure = result.plot(width=3.25)
    words = {t.get_text() for t in figure.findobj(Text)}
    assert figure.get_size_inches()[0] == 3.25 and {"FedAvg", "q-FedAvg"} <= words


def test_a_table_whose_runs_went_on_says_why_it_lost_intervals_over_clients(tmp_path):
    before = run(tmp_path)
    assert before.differences()["clients low"].notna().all()
    assert not any("gone on" in line for line in before.warnings())
    run(tmp_path, total_rounds=3)
    again = comparison.read(before.folder)
    pd.testing.assert_frame_equal(again.table(), before.table())
    assert again.differences()["clients low"].isna().all()
    told = "4 of 4 runs have gone on since this table was made."
    assert told in again.report()
    (content,) = json.loads(compare.as_json([before.folder], None))
    assert any(line.startswith(told) for line in content["caveats"])
    for line in again.plot().axes[0].get_lines():
        assert max(line.get_xdata()) == 2, "the rounds of the table"


def test_a_plot_leaves_out_diverged_seeds_as_the_table_does(tmp_path):
    lines = []
    for row, seed, values in (
        ("fedavg", 1, "0.4,0.6,0.8"),
        ("fedavg", 2, "0.4,0.0"),
        ("fedavg", 3, "0.6,0.8,1.0"),
        ("fedadam", 1, "0.2,0.1"),
    ):
        folder = tmp_path / f"{row}{seed}"
        folder.mkdir()
        numbers = values.split(",")
        rounds = "".join(f"{r},{v}\n" for r, v in enumerate(numbers))
        (folder / "metrics.csv").write_text(f"round_num,eval/accuracy\n{rounds}")
        if len(numbers) < 3:
            (folder / "diverged.json").write_text('{"reason": "x"}')
        lines.append({"row": row, "seed": seed, "run": str(folder), "accuracy": np.nan})
    columns = [{"name": "accuracy", "metric": "eval/accuracy"}]
    found = comparison.Comparison("t", columns, pd.DataFrame(lines), [], str(tmp_path))
    with pytest.warns(RuntimeWarning) as warned:
        figure = found.plot()
    (told,) = (str(one.message) for one in warned)
    assert told == "Not drawn, since they diverged: FedAvg (seed 2) after round 1."
    drawn = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    np.testing.assert_allclose(drawn["FedAvg"], [50, 70, 90])
    # Of a method that diverged on all seeds, this is all there is.
    np.testing.assert_allclose(drawn["FedAdam"], [20, 10])


def test_the_same_call_reuses_runs_and_other_settings_get_folders_of_their_own(made, capsys):
    root, before = made
    again = run(root)
    assert "4 of 4 runs are done already and reused." in capsys.readouterr().out
    pd.testing.assert_frame_equal(again.runs, before.runs)
    changed = {"algorithms": ["fedavg"], "seeds": [1], "qfedavg_q": None}
    changed["client_learning_rate"] = 0.1
    other = run(root, **changed)
    told = capsys.readouterr().out
    assert "own folders for 1 (fedavg_seed1" in told
    assert "earlier runs differ in client_learning_rate, and are kept" in told
    (folder,) = other.runs.run
    assert re.fullmatch(r"fedavg_seed1\.\w{8}", pathlib.Path(folder).name)
    assert run(root, **changed).runs.run.tolist() == [folder]
    assert "1 of 1 runs are done already and reused." in capsys.readouterr().out
    assert run(root).runs.run.tolist() == before.runs.run.tolist(), "and back again"


def scaled(task, factor):
    """A task of other data: a wrapper over the examples of each client."""
    parts = [task.train.examples(k) for k in range(len(task.train.client_ids))]
    ends = np.cumsum(task.train.sizes)
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    data = tasks.task.ArrayFederatedData(x * np.float32(factor), y, rows)
    return dataclasses.replace(task, train=data, test=data)


def other_loss(y, outputs):
    return 2.0 * toy.cross_entropy(y, outputs)


def test_each_state_of_settings_code_and_data_has_its_own_runs_and_table(tmp_path, capsys):
    """Nothing is overwritten, each change is told, and one that is taken back finds its runs."""
    states = {
        "first": {},
        "settings": {"client_learning_rate": 0.1},
        "data": {"task": scaled(own_task(), 0.5)},
        "more data": {"task": scaled(own_task(), 0.25)},
        "code": {"task": dataclasses.replace(own_task(), loss=other_loss)},
        "both": {"task": scaled(own_task(), 0.5), "client_learning_rate": 0.1},
        "longer": {"total_rounds": 3},
    }
    says = {"data": "of other code or data (data:", "code": "of other code or data (loss "}

    def contents():
        return {p: p.read_bytes() for p in tmp_path.rglob("*.*") if p.is_file()}

    def compared(state, **more):
        own = {"algorithms": ["fedavg"], "seeds": 1, "qfedavg_q": None, **states[state]}
        found = run(tmp_path, **own, **more)
        return found, capsys.readouterr().out

    made, folders = {}, set()
    for state in states:
        before = contents()
        found, told = compared(state)
        assert says.get(state, "") in told and f"The table is in {found.folder} (" in told
        assert "differ in code or data" not in told, "told twice"
        if state != "longer":
            assert contents().items() >= before.items(), f"{state} overwrote something"
            assert found.runs.run[0] not in made
            made[found.runs.run[0]] = state
        assert found.folder not in folders
        folders.add(found.folder)
    before = contents()
    for state in list(states)[1:-1]:
        found, told = compared(state)
        assert "1 of 1 runs are done already and reused." in told
        assert made[found.runs.run[0]] == state and found.folder in folders
    assert contents().keys() == before.keys() and not list(tmp_path.rglob("*.replaced-*"))
    found, told = compared("data", fresh=True)
    assert "is there already: run anew" in told
    assert len(list(tmp_path.rglob("*.replaced-1"))) == 1
    assert "are done already" in compared("data")[1], "afresh only once"


def test_the_command_compares_the_chosen_rows_by_the_same_numbers(made, capsys, tmp_path):
    root, _ = made
    result = run(root)
    capsys.readouterr()
    out = f"--root_output_dir={tmp_path}"
    assert reproduce.main(["--compare", str(root / "mine" / "comparison"), out]) == 0
    told = capsys.readouterr().out
    assert told.strip() == result.report().strip() and f"Files: {result.folder}" in told
    assert ": accuracy (%) = eval/accuracy × 100, final model" in told
    assert "q-FedAvg - FedAvg" in told
    assert "With 2 seeds a 95 % interval is ± 12.7 standard errors: use at least 5 seeds" in told
    other = run(root, algorithms=["fedavg"], qfedavg_q=None)
    assert other.folder != result.folder
    capsys.readouterr()
    assert reproduce.main(["--compare", str(root / "mine"), out]) == 0
    told = capsys.readouterr().out
    assert f"Files: {result.folder}\n" in told and f"Files: {other.folder}\n" in told
    assert "tables are of one task" in told and "Over all" not in told, "calls are no tasks"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"algorithms": []}, "must name at least one method"),
        ({"algorithms": ["fedavgg"]}, "Did you mean fedavg"),
        ({"algorithms": [1]}, "algorithms: 1 must be a method's name, or a row's name with a"),
        ({"algorithms": {"fedavg": None}}, "algorithms: 'fedavg' must be a method's name, or a"),
        (
            {"algorithms": {"fedavg": {"total_rounds": 1}, "fedavg b": {}}},
            "fedavg cannot have its own total_rounds, which all rows share",
        ),
        ({"algorithms": {"fedavg": {"seed": 1}}}, "fedavg cannot have its own seed"),
        ({"max_minutes": "1"}, "max_minutes='1' must be a finite number above 0"),
        ({"seeds": 0}, "must name at least one seed"),
        ({"tune": "all"}, "must be 'rates' or None"),
        ({"jobs": 2}, "jobs does not support a task"),
        ({"seed": 3}, "compare sets seed itself"),
        ({"task": own_task(test=None, central_test=None)}, "has no test examples to compare by"),
        ({"task": own_task(name="../mine")}, "must not lead out of the results' folder"),
        ({"task": own_task(name="/mine")}, "must not lead out of the results' folder"),
        ({"total_rounds": -1}, "total_rounds"),
        ({"total_round": 3}, "total_round"),
        ({"fedadam_tau": 1e-3}, "fedadam_tau is used by none of fedavg, qfedavg"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_one_line_before_any_run(tmp_path, changes, says):
    with pytest.raises(HparamError) as e:
        run(tmp_path, **changes)
    assert says in str(e.value) and "\n" not in str(e.value)
    assert not list(tmp_path.iterdir())


# Without runs.

ACCURACY = {"name": "accuracy (%)", "metric": "eval/accuracy", "scale": 100, "digits": 1}
LOSS = {"name": "loss", "metric": "eval/loss", "digits": 3, "last_rounds": 5}


def by_hand(values, **more):
    """Returns the comparison of row → values by seed, of two columns."""
    rows = [
        {"row": row, "seed": seed, "accuracy (%)": v, "loss": (100 - v) / 10, "run": "nowhere"}
        for row, some in values.items()
        for seed, v in enumerate(some, 1)
    ]
    more = {"caveats": [], **more}
    runs = pd.DataFrame(rows)
    return comparison.Comparison("T", [ACCURACY, LOSS], runs, folder="nowhere", **more)


def test_a_caption_says_how_many_rounds_a_mean_is_over():
    """A mean covers at most the second half of a run: 4 of 7 rounds, of 0 to 7."""
    found = by_hand({"fedavg": [1.0, 3.0], "term": [2.0, 4.0]})
    found.runs["rounds"] = 7
    column = {**ACCURACY, "last_rounds": 5}
    found = dataclasses.replace(found, columns=[column])
    for told in (found.to_latex(), found.report()):
        assert "mean of the last 4 rounds" in told
    found.runs["rounds"] = 1000
    assert "mean of the last 5 rounds" in found.report()


def parsed(text):
    """Reads a LaTeX table strictly; returns its caption and its rows, a cell for each column.

    Environments nest, braces balance, each row has as many cells as the columns that are declared.
    """
    stack, rows, columns = [], [], 0
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    lines = [line.strip() for line in text.splitlines() if not line.startswith("%")]
    for line in lines:
        plain = re.sub(r"\\[{}]", "", line)
        assert plain.count("{") == plain.count("}") and not re.search(r"[^\x00-\x7f]", plain), line
        if found := re.fullmatch(r"\\begin\{tabular\}\{(.*)\}", line):
            columns = len(re.sub(r"@\{.*?\}|\s", "", found[1]))
        elif line.endswith(r"\\"):
            cells = []
            for cell in re.split(r"(?<!\\)&", line.removesuffix(r"\\")):
                wide = re.fullmatch(r"\s*\\multicolumn\{(\d)\}\{c\}\{(.*)\}\s*", cell)
                cells += [wide[2], *[""] * (int(wide[1]) - 1)] if wide else [cell.strip()]
            assert len(cells) == columns, line
            rows.append(cells)
    caption = re.search(r"\\caption\{(.*)\}$", text, re.MULTILINE)
    assert [line for line in lines if line.endswith("rule")] == [
        *(r"\toprule", r"\midrule", r"\bottomrule")
    ]
    assert re.search(r"^  \\label\{\S+\}$", text, re.MULTILINE)
    return caption[1], rows


def test_a_table_of_latex_can_be_pasted():
    found = by_hand(
        {
            "fedavg": [80.0, 82.0, 81.0],
            "qfedavg q=1": [80.5, 81.0, 80.0],
            "term": [50.0, 51.0, 52.0],
            "afl": [np.nan] * 3,
        },
        published={"fedavg": {"accuracy (%)": 85.25}},
    )
    caption, (head, *rows) = parsed(found.to_latex(label="tab:x"))
    assert head == ["Method", r"accuracy (\%)", "", "paper", "loss", ""]
    # Half of the interval of 80, 82 and 81 is 4.3027 / sqrt(3), and 80.5 lies within it.
    assert rows[0] == ["FedAvg", r"\textbf{81.0}", "2.5", "85.2", r"\textbf{1.900}", "0.248"]
    assert rows[1][:3] == ["q-FedAvg q=1", r"\underline{80.5}", "1.2"]
    assert rows[2][:3] == ["TERM", "51.0", "2.5"]
    assert rows[3] == ["AFL", "diverged", "", "", "diverged", ""]
    assert "final model" in caption and "mean of the last 5 rounds" in caption
    assert "seconds" not in found.to_latex()


def cells_by_parser(text):
    """Returns rows of cells of a LaTeX table, by a parser that tolerates no fault."""
    latexwalker = pytest.importorskip("pylatexenc.latexwalker", reason="`make venv` installs it")
    macrospec = pytest.importorskip("pylatexenc.macrospec")
    rules = [macrospec.std_macro(f"{name}rule", False, 0) for name in ("top", "mid", "bottom")]
    rules.append(macrospec.std_macro("multicolumn", False, 3))
    known = latexwalker.get_default_latex_context_db()
    known.add_context_category("booktabs", macros=rules, prepend=True)
    walker = latexwalker.LatexWalker(text, latex_context=known, tolerant_parsing=False)

    def inner(nodes, name):
        (found,) = [n for n in nodes if getattr(n, "environmentname", "") == name]
        return found.nodelist

    rows, cells = [], [""]
    for node in inner(inner(walker.get_latex_nodes()[0], "table"), "tabular"):
        if getattr(node, "specials_chars", "") == "&":
            cells.append("")
        elif getattr(node, "macroname", "") == "\\":
            rows.append([cell.strip() for cell in cells])
            cells = [""]
        elif not getattr(node, "macroname", "").endswith("rule"):
            cells[-1] += node.latex_verbatim()
    assert cells == [""] or not cells[0].strip()
    return rows


def test_a_parser_of_latex_finds_the_same_cells():
    values = {"fedavg": [80.0, 82.0, 81.0], "term": [50.0, 51.0, 52.0], "afl": [np.nan] * 3}
    found = by_hand(
        values,
        published={"fedavg": {"accuracy (%)": 85.25}},
        settings=["client_learning_rate"],
        caveats=["50 % of {x} & $ more_or_less"],
    )
    found.runs["client_learning_rate"] = 0.1
    text = found.to_latex(caption="of a 95 % {interval} & ~more^ \\ #1", rates=True)
    _, rows = parsed(text)
    wide = re.compile(r"\\multicolumn\{2\}\{c\}\{(.*)\}")
    read = []
    for cells in cells_by_parser(text):
        of_row = [[m[1], ""] if (m := wide.fullmatch(cell)) else [cell] for cell in cells]
        read.append([cell for some in of_row for cell in some])
    assert read == rows and len(rows) == 4


def test_settings_are_shown_only_if_asked_for():
    found = by_hand({"fedavg": [1.0, 2.0]}, settings=["client_learning_rate"])
    found.runs["client_learning_rate"] = 0.1
    assert "learning" not in found.to_latex()
    _, (head, row) = parsed(found.to_latex(rates=True))
    assert (head[1], row[1]) == (r"client\_learning\_rate", "0.1")


def test_one_seed_has_no_interval_and_no_sign():
    _, (_, row) = parsed(by_hand({"fedavg": [80.0]}).to_latex())
    assert row == ["FedAvg", r"\textbf{80.0}", "", r"\textbf{2.000}", ""]


def test_one_method_has_a_table_of_no_differences():
    one, two = (by_hand({m: [1.0, 2.0] for m in some}) for some in (["fedavg"], ["fedavg", "term"]))
    assert one.differences().empty and len(two.differences()) == 1
    assert list(one.differences()) == list(two.differences())


def test_a_row_that_begins_with_a_bracket_is_no_argument_of_the_line_before():
    text = by_hand({"[a] fedavg": [1.0, 2.0], "[b]": [3.0, 4.0]}).to_latex()
    parsed(text)
    assert not re.search(r"(\\\\|midrule)\s*\[", text) and "{[}a]" in text


@pytest.mark.parametrize("seeds", [(s for s in (4, 5)), {4, 5}, np.array([4, 5])])
def test_seeds_may_be_anything_that_lists_them(seeds):
    assert compare_methods._seeds(seeds) == [4, 5]


@pytest.mark.parametrize("text", ["50 % & more_or_less #1 $", r"a\b{c}~^", "two\nlines"])
def test_any_words_are_text_in_latex(text):
    found = dataclasses.replace(by_hand({"fedavg": [1.0, 2.0]}), title=text)
    parsed(found.to_latex())
    assert "\n" not in latex.escape(text)


def test_what_is_better_is_told_by_the_column():
    assert results.higher_is_better(ACCURACY) and not results.higher_is_better(LOSS)
    assert not results.higher_is_better({**ACCURACY, "scale": -100, "offset": 1})
    found = by_hand({"fedavg": [1.0, 2.0], "term": [3.0, 4.0]})
    assert found.pairs()[0].wins == found.pairs("loss")[0].wins == 2
    with pytest.raises(RunError, match=r"no column f1 .* it has accuracy \(%\), loss"):
        found.pairs("f1")


def test_several_tasks_are_compared_as_in_rliable():
    one = by_hand({"fedavg": [1.0, 3.0], "term": [2.0, 4.0]})
    other = by_hand({"term": [9.0, 9.0], "fedavg": [1.0, 2.0], "afl": [0.0, 0.0]})
    means, better = comparison.over_tasks([one, other])
    # Of 1 3 1 2 the middle half is 1 2, of 2 4 9 9 it is 4 9.
    assert means["mean"].tolist() == [1.5, 6.5] and list(means.index) == ["FedAvg", "TERM"]
    # 2 beats 1; 4 beats 1 and 3: 3 of 4. On the other task all of 4.
    assert better.loc["TERM > FedAvg", "mean"] == 0.875
    fewer = by_hand({"fedavg": [1.0], "term": [2.0]})
    with pytest.raises(RunError, match="not have the same number"):
        comparison.over_tasks([one, fewer])
    with pytest.raises(RunError, match="nothing to compare: pass a list"):
        comparison.over_tasks([])


def test_scores_of_several_kinds_have_no_common_mean():
    one = by_hand({"fedavg": [1.0, 3.0], "term": [2.0, 4.0]})
    of_loss = dataclasses.replace(one, columns=[{"name": "mse", "metric": "eval/mse"}])
    fraction = dataclasses.replace(one, columns=[{**ACCURACY, "scale": 1}])
    of_loss.runs["mse"] = 1.0
    for other, names in ((of_loss, r"accuracy \(%\), mse"), (fraction, r"accuracy \(%\)")):
        with pytest.raises(
            RunError, match=f"average different metrics: {names}; name a column of one kind"
        ):
            comparison.over_tasks([one, other])
        told = compare._over_tasks([one, other], None)
        assert told.startswith("Not pooled. Cannot average different metrics")


ITEM = """
title = "T"
[setups.s]
title = "S"
rounds = 3
seeds = [1, 2]
columns = [{ name = "a", metric = "eval/accuracy" }]
[setups.s.rows]
fedavg = "a.flags"
"""
FLAGS = "--task=synthetic\n--algorithm=fedavg\n--clients_per_round=2\n--client_batch_size=5\n"


@pytest.mark.parametrize("works", [True, False])
def test_a_dry_run_measures_what_it_has_no_figure_for_or_says_unknown(
    tmp_path, capsys, monkeypatch, works
):
    def execute(runs, resources, *_):
        for run in runs if works else ():
            assert run.flags["total_rounds"] == run.rounds == 2
            run.folder.mkdir()
            (run.folder / "metrics.csv").write_text("round_num,time/round_seconds\n1,9\n2,0.5\n")
        if not works:
            raise items.ReproduceError("runs failed")

    monkeypatch.setattr(reproduce.sweep, "execute", execute)
    monkeypatch.setattr(reproduce.needs, "of_row", lambda *_: None)
    (tmp_path / "x.toml").write_text(ITEM)
    (tmp_path / "a.flags").write_text(f"{FLAGS}--client_learning_rate=0.1\n")
    root = f"--root_output_dir={tmp_path / 'runs'}"
    assert reproduce.main([f"--items={tmp_path}", "--item=x", "--dry_run", root]) == 0
    told = capsys.readouterr().out
    assert "Measuring the time of two rounds of fedavg" in told and "0.00 " not in told
    if works:
        # Two runs of three rounds of half a second.
        assert "two rounds, measured just now" in told and "0.00083 hours" in told
    else:
        assert "| unknown |" in told and "Unknown: 6 rounds" in told
    assert not (tmp_path / "runs").exists()


def test_a_changed_flag_file_starts_runs_in_folders_of_their_own(tmp_path):
    """And the old file finds the old runs again: nothing is overwritten, nothing is a dead end."""
    (tmp_path / "x.toml").write_text(ITEM)

    def planned(rate):
        (tmp_path / "a.flags").write_text(f"{FLAGS}--client_learning_rate={rate}\n")
        (item,) = items.own_items(str(tmp_path))
        (setup,) = item.setups.values()
        runs = items.planned_runs(setup, ["fedavg"], {"fedavg": [{}]}, [1, 2], root=str(tmp_path))
        for run in runs:
            flags = run.request().in_force
            assert flags["client_learning_rate"] == rate
            assert flags["experiment_name"] == run.folder.name
            run.folder.mkdir(parents=True, exist_ok=True)
            (run.folder / "hparams.json").write_text(json.dumps({"flags": dict(flags)}))
        return runs

    first, second = planned(0.1), planned(0.25)
    assert [run.name for run in first] == ["fedavg_seed1", "fedavg_seed2"]
    assert [run.kept for run in second] == [run.folder for run in first]
    (ending,) = {run.name.partition(".")[2] for run in second}
    assert re.fullmatch(r"\w{8}", ending), "the same for all seeds"
    for rate, before in ((0.1, first), (0.25, second)):
        assert [run.folder for run in planned(rate)] == [run.folder for run in before]


def test_a_dry_run_names_the_settings_that_changed(tmp_path, capsys):
    (tmp_path / "x.toml").write_text(f"seconds = {{ '*' = 1.0 }}\n{ITEM}")
    asked = [f"--items={tmp_path}", "--item=x", f"--root_output_dir={tmp_path}", "--dry_run"]
    for rate in (0.1, 0.25):
        (tmp_path / "a.flags").write_text(f"{FLAGS}--client_learning_rate={rate}\n")
        assert reproduce.main(asked) == 0
        told = capsys.readouterr().out
        if rate == 0.1:
            assert "own folders" not in told
            (item,) = items.own_items(str(tmp_path))
            setup = item.setups["s"]
            points = {"fedavg": [{}]}
            for run in items.planned_runs(setup, ["fedavg"], points, [1], root=str(tmp_path)):
                run.folder.mkdir(parents=True)
                flags = dict(run.request().in_force)
                (run.folder / "hparams.json").write_text(json.dumps({"flags": flags}))
    assert re.search(r"own folders for 1 \(fedavg_seed1\.\w{8}\): earlier runs differ in ", told)
    assert "client_learning_rate, and are kept." in told


def test_a_flag_file_within_another_is_read_again_when_it_changes(tmp_path):
    inner = tmp_path / "inner.flags"
    (tmp_path / "outer.flags").write_text(f"{FLAGS}--total_rounds=3\n--flagfile={inner}\n")
    for rate in (0.1, 0.25):
        inner.write_text(f"--client_learning_rate={rate}\n")
        found = items.settings_of_file(str(tmp_path / "outer.flags"))
        assert found["client_learning_rate"] == rate


def test_time_ends_a_comparison_and_the_same_call_resumes_it(tmp_path):
    own = {"algorithms": ["fedavg"], "seeds": 1, "qfedavg_q": None, "total_rounds": 40}
    short = run(tmp_path, max_minutes=1e-9, **own)
    assert short.runs.rounds.tolist()[0] < 40
    told = r"Fewer rounds than asked for \(fedavg \d+ of 40\)\. The same call does the rest, unless"
    assert any(re.match(told, caveat) for caveat in short.caveats)
    whole = run(tmp_path, **own)
    assert whole.runs.rounds.tolist() == [40] and whole.folder == short.folder
    assert whole.runs.run.tolist() == short.runs.run.tolist()
    with pytest.raises(items.ReproduceError, match=r"Out of time: .* same command again"):
        run(tmp_path, max_minutes=1e-9, tune="rates", budget=2, **own)
    with pytest.raises(HparamError, match="max_minutes=0 must be a finite number above 0"):
        run(tmp_path, max_minutes=0, **own)


def test_a_table_that_cannot_be_written_is_one_line_and_runs_are_kept(tmp_path):
    own = {"algorithms": ["fedavg"], "seeds": 1, "qfedavg_q": None}
    blocked = tmp_path / "mine" / "comparison"
    blocked.parent.mkdir()
    blocked.write_text("")
    with pytest.raises(RunError, match=f"^Cannot use {blocked}: "):
        run(tmp_path, **own)
    blocked.unlink()
    before = (tmp_path / "mine/fedavg_seed1/hparams.json").stat().st_mtime_ns
    assert run(tmp_path, **own).runs.rounds.tolist() == [2]
    assert (tmp_path / "mine/fedavg_seed1/hparams.json").stat().st_mtime_ns == before


def test_rates_are_tuned_on_held_out_examples_of_the_first_seed(tmp_path, capsys):
    rows = ["fedadam"]  # It has a default for neither rate.
    tuned = {"tune": "rates", "budget": 3, "total_rounds": 3, "runtime": "vectorized"}
    result = run(tmp_path, algorithms=rows, qfedavg_q=None, **tuned)
    told = capsys.readouterr().out
    assert "Points of grids" not in told
    for row in rows:
        of_row = result.runs[result.runs.row == row]
        assert of_row.seed.tolist() == [1, 2]
        for rate in ("client_learning_rate", "server_learning_rate"):
            assert of_row[rate].notna().all() and of_row[rate].nunique() == 1
        tried = [p for p in (tmp_path / "mine").glob(f"{row}_*_seed1") if p.is_dir()]
        assert len(tried) == 3 and len(list((tmp_path / "mine").glob(f"{row}_*_seed2"))) == 1
        flags = json.loads((pathlib.Path(of_row.run.iloc[0]) / "hparams.json").read_text())["flags"]
        assert flags["validation_fraction"] == 0.1
    assert sum("successive halving" in line for line in result.caveats) == len(rows)


@pytest.mark.long
def test_runs_of_a_registered_task_may_run_at_a_time(tmp_path):
    own = {"task": "synthetic", "algorithms": ["fedavg"], "seeds": 2, "jobs": 2}
    result = simulation.compare(**{**SETTINGS, "qfedavg_q": None}, **own, root_output_dir=tmp_path)
    assert len(result.runs) == 2 and result.runs[result.columns[0]["name"]].notna().all()


def test_processes_must_be_able_to_import_your_own_method(tmp_path, monkeypatch):
    """They would only fail after their start, with `Unknown algorithm`."""
    fedavg = tff_algos.get("fedavg")
    mine = dataclasses.replace(fedavg, name="mine", builder=lambda *_, **__: None)
    monkeypatch.setitem(registry._SPECS, "mine", mine)
    own = {"task": "synthetic", "algorithms": ["mine"], "seeds": 1, "jobs": 1}
    with pytest.raises(HparamError, match="other processes do not know your own mine"):
        simulation.compare(**{**SETTINGS, "qfedavg_q": None}, **own, root_output_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_fresh_sets_what_is_there_aside_once(tmp_path):
    """What a search has just made is not made again by its next rung."""
    runs = [
        items.PlannedRun("fedavg", s, {}, tmp_path / f"run{s}", "", {}, 2, 2) for s in (1, 2, 3)
    ]

    def begin(run):
        run.folder.mkdir(exist_ok=True)
        (run.folder / "hparams.json").write_text('{"flags": {}}')

    def begun():
        return {path.parent.name for path in tmp_path.glob("*/hparams.json")}

    for run_ in runs[:2]:
        begin(run_)
    said = []
    found = places.Places(sweep.Resources(), True, said.append)
    assert found.of(runs) == runs, "not compared"
    assert found.to_start_over(runs) == runs[:2]
    assert begun() == {"run1", "run2"}, "a dry run moves nothing"
    found.start_over(runs)
    assert begun() == {"run1.replaced-1", "run2.replaced-1"}
    assert "2 runs (run1, ...) are there already: run anew" in said[0]
    begin(runs[0])
    found.start_over(runs)
    assert begun() == {"run1", "run1.replaced-1", "run2.replaced-1"}
    assert places.Places(sweep.Resources(), False, said.append).to_start_over(runs) == []


def test_a_sweep_tells_the_time_left_and_its_table_goes_when_it_is_stopped(tmp_path, monkeypatch):
    runs = [items.PlannedRun("a", s, {}, tmp_path / f"s{s}", "", {}, 10, 10) for s in (1, 2)]

    def reach(run, rounds):
        run.folder.mkdir(exist_ok=True)
        lines = "".join(f"{i},0.5\n" for i in range(1, rounds + 1))
        (run.folder / "metrics.csv").write_text(f"round_num,train/loss\n{lines}")

    clock = [0.0]
    monkeypatch.setattr(board.time, "monotonic", lambda: clock[0])
    reach(runs[0], 5)
    shown = board.Board(runs, runs)
    assert shown.time_left() == "time left unknown"
    reach(runs[0], 10)
    clock[0] = 600.0
    assert shown.time_left() == "about 20 minutes left", "of 15 rounds 5 took 10 minutes"
    terminal = io.StringIO()
    console = rich.console.Console(file=terminal, force_terminal=True, width=40)
    live = rich.live.Live
    monkeypatch.setattr(board.rich.live, "Live", lambda **k: live(console=console, **k))
    monkeypatch.setattr(board.sys.stdout, "isatty", lambda: True, raising=False)
    with pytest.raises(KeyboardInterrupt), board.Board(runs, runs) as shown:
        shown.started(runs[1])
        shown.refresh()
        raise KeyboardInterrupt
    # A line of the table is erased by moving up and clearing it.
    assert terminal.getvalue().rstrip("\x1b[?25h\r\n").endswith("\x1b[2K")
    assert shown._live is None


ONE = {"algorithms": ["fedavg"], "seeds": 1, "qfedavg_q": None, "runtime": "vectorized"}


def test_a_metric_named_as_a_column_of_the_runs_has_a_column_of_its_own(tmp_path):
    toy = own_task()
    named = {"rounds": toy.metrics["accuracy"], **toy.metrics}
    task = own_task(metrics=named, primary_metric="rounds", higher_is_better=True)
    runs = run(tmp_path, **ONE, task=task, metric="eval/rounds").runs
    (summary,) = tmp_path.rglob("summary.json")
    final = json.loads(summary.read_text())["final"]
    assert runs["eval/rounds"].tolist() == pytest.approx([final["eval/rounds"]])
    assert runs.rounds.tolist() == [SETTINGS["total_rounds"]]


def test_runs_of_more_rounds_are_kept_and_fewer_rounds_are_run_anew(tmp_path, capsys):
    longer = run(tmp_path, **{**ONE, "total_rounds": 4})
    before = longer.runs.run[0]
    capsys.readouterr()
    fewer = run(tmp_path, **{**ONE, "total_rounds": 2})
    assert "earlier runs differ in total_rounds, and are kept" in capsys.readouterr().out
    assert fewer.runs.rounds.tolist() == [2] and fewer.runs.run[0] == f"{before}.rounds=2"
    assert run(tmp_path, **{**ONE, "total_rounds": 2}).runs.run[0] == fewer.runs.run[0]
    assert "1 of 1 runs are done already and reused." in capsys.readouterr().out
    again = run(tmp_path, **{**ONE, "total_rounds": 4})
    assert again.runs.run[0] == before and again.runs.rounds.tolist() == [4]
    # The folder of other settings may hold more rounds, too.
    other = {**ONE, "client_learning_rate": 0.1}
    folders = [run(tmp_path, **{**other, "total_rounds": n}).runs.run[0] for n in (4, 2, 4, 2)]
    assert folders[:2] == folders[2:] and len({*folders}) == 2


def test_fewer_rounds_of_a_run_with_other_code_are_run_anew(tmp_path):
    changed = {**ONE, "task": dataclasses.replace(own_task(), loss=other_loss)}
    rounds, folders = (4, 2, 4, 2), []
    run(tmp_path, **{**ONE, "total_rounds": 4})
    for n in rounds:
        found = run(tmp_path, **{**changed, "total_rounds": n})
        assert found.runs.rounds.tolist() == [n]
        folders.append(found.runs.run[0])
    assert folders[:2] == folders[2:]


def test_a_method_whose_rounds_depend_on_their_number_starts_anew_for_more(tmp_path):
    own = {
        **ONE,
        "algorithms": ["fedda_adam"],
        "client_learning_rate": 0.1,
        "server_learning_rate": 0.1,
    }
    for n in (3, 5, 3, 5):
        found = run(tmp_path, **{**own, "total_rounds": n})
        assert found.runs.rounds.tolist() == [n]


def test_a_search_takes_up_its_runs_beyond_its_rungs_but_not_those_of_more_rounds(tmp_path, capsys):
    own = {**ONE, "client_learning_rate": None, "tune": "rates", "budget": 3}
    first = run(tmp_path, **{**own, "total_rounds": 3})
    made = {path.parent.name for path in tmp_path.rglob("summary.json")}
    assert run(tmp_path, **{**own, "total_rounds": 3}).runs.equals(first.runs)
    assert "starts" not in capsys.readouterr().out.partition("The table is")[2]
    longer = run(tmp_path, **{**own, "total_rounds": 6})
    assert longer.runs.rounds.tolist() == [6]
    assert {path.parent.name for path in tmp_path.rglob("summary.json")} == made
    again = run(tmp_path, **{**own, "total_rounds": 3})
    assert again.runs.rounds.tolist() == [3]
    assert np.allclose(again.values()["fedavg"][1], first.values()["fedavg"][1])


def test_runs_that_stopped_early_are_those_of_the_same_condition_only(tmp_path, capsys):
    conditions = ["eval/loss<1e9", None, "eval/loss<1e8"]
    made = {}
    for condition in [*conditions, *conditions]:
        capsys.readouterr()
        found = run(tmp_path, **ONE, stop_at=condition)
        assert (found.runs.rounds.tolist() == [2]) == (condition is None), found.runs.rounds
        reused = "1 of 1 runs are done already and reused." in capsys.readouterr().out
        assert reused == (condition in made)
        assert made.setdefault(condition, found.runs.run[0]) == found.runs.run[0]
    assert len({*made.values()}) == 3


def test_rates_that_runs_tune_themselves_are_found_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare_methods.tuning, "_VALUES", [0.01, 0.1])
    fixed = run(tmp_path, **ONE, validation_fraction=0.1)
    own = {**ONE, "client_learning_rate": "tune", "validation_fraction": 0.1}
    first = run(tmp_path, **own)
    assert first.runs.rounds.tolist() == [2] and first.runs.iloc[0, 4] == first.runs.iloc[0, 4]
    assert first.runs.run[0] != fixed.runs.run[0] and not any("div" in c for c in first.caveats)
    flags = json.loads(pathlib.Path(first.runs.run[0], "hparams.json").read_text())["flags"]
    assert flags["client_learning_rate"] in (0.01, 0.1)
    capsys.readouterr()
    again = run(tmp_path, **own)
    assert "1 of 1 runs are done already and reused." in capsys.readouterr().out
    assert again.runs.equals(first.runs)
    del own["validation_fraction"]
    other = run(tmp_path, **own)
    assert other.runs.rounds.tolist() == [2]
    run(tmp_path, **own, fresh=True)
    assert len(list(tmp_path.rglob("*.tuning.replaced-1"))) == 1
