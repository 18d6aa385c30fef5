"""Figures of set-ups: titles, units, rounds, published values, and what tells rows apart."""

import dataclasses
import re
import types

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot

from reproduction import drawing, items, quantities, results
from reproduction.looks import looks_of
from tests import canvas

EVERY = [setup for item in items.all_items() for setup in item.setups.values()]
SETUP = items.load_item("adafedadam", "fig2").setups["synthetic"]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


def named(setup):
    return f"{setup.paper}/{setup.item}/{setup.name}"


def words_of(figure):
    """Returns all words of a figure, without its line breaks."""
    words = [figure._suptitle] + [axes.title for axes in figure.axes]
    words += [axes._left_title for axes in figure.axes]
    words += [t for axes in figure.axes for t in (axes.xaxis.label, axes.yaxis.label)]
    words += [t for legend in figure.legends for t in legend.get_texts()]
    return [" ".join(t.get_text().split()) for t in words if t is not None]


def swept(setup):
    return any(drawing.KINDS[wanted["kind"]].swept for wanted in setup.figures)


def test_rows_that_a_figure_shows_together_differ_in_colour_or_line_style():
    for setup in EVERY:
        names = [row.split(" ")[0] for row in setup.rows] if swept(setup) else list(setup.rows)
        looks = looks_of(names)
        pairs = {(look.colour, look.dashes) for look in looks.values()}
        assert len(pairs) == len(set(names)), named(setup)


def test_titles_stand_alone():
    for setup in EVERY:
        leans = re.search(r"\b(as|see) above\b|\bthe same\b|\bbelow\b", setup.title)
        assert not leans, named(setup)
        number = re.match(r"the (\d+ \w+)", setup.stand_in)
        assert not number or number[1] in setup.title, named(setup)


@pytest.mark.parametrize(
    ("column", "label"),
    [
        ({"metric": "eval/accuracy", "scale": -100, "offset": 100}, "error (%)"),
        ({"metric": "eval/accuracy", "scale": -1, "offset": 1}, "error"),
        ({"metric": "eval/accuracy", "scale": -1}, "negative"),
        ({"metric": "eval/loss", "scale": -1}, "negative"),
    ],
)
def test_a_column_that_is_turned_round_keeps_its_unit(column, label):
    setup = dataclasses.replace(EVERY[0], curve="eval/loss")
    found = drawing._column_label(setup, {"name": "c", **column})
    assert found.endswith(label) or found.startswith(label)
    assert ("(%)" in found) == ("(%)" in label)


@pytest.mark.parametrize(
    ("column", "declared", "better"),
    [
        ({"metric": "eval/accuracy"}, None, True),
        ({"metric": "eval/loss"}, None, False),
        ({"metric": "eval/loss", "scale": -1}, None, True),
        ({"metric": "eval/accuracy", "scale": -100, "offset": 100}, None, False),
        ({"metric": "eval/gain"}, None, None),
        ({"metric": "eval/gain", "higher_is_better": False}, None, False),
        ({"metric": "eval/gain"}, True, True),
        ({"metric": "eval/gain"}, False, False),
    ],
)
def test_the_best_settings_are_the_best_by_their_columns_name(column, declared, better):
    columns = [{"name": "c", **column}]
    setup = dataclasses.replace(EVERY[0], columns=columns, higher_is_better=declared)
    assert drawing._known_better(setup) is better


def test_a_share_has_one_unit_in_all_figures_of_a_setup():
    for setup in EVERY:
        units = set()
        for column in setup.columns:
            share = quantities.of_column(column["metric"]).factor != 1
            if share and column.get("power", 1) == 1:
                units.add(drawing._column_label(setup, column).endswith("(%)"))
        for wanted in setup.figures if setup.rows else ():
            if wanted["kind"] in ("curves", "density"):
                column = wanted.get("column", setup.curve)
            elif wanted["kind"] == "improved":
                column = "fairness/improved_fraction"
                units.add(True)
            else:
                continue
            if quantities.of_column(column).factor != 1:
                units.add(drawing._quantity(setup, column).label.endswith("(%)"))
        assert len(units) <= 1, named(setup)


def curve_points(rows, last=0.5):
    at = np.arange(0, 11)
    parts = [
        pd.DataFrame({"method": row, "seed": 1, "round_num": at, "value": last * at / 10})
        for row in rows
    ]
    return pd.concat(parts)


def test_shares_are_in_the_unit_of_the_papers_tables():
    of_fractions = items.load_item("fedda", "table10").setups["stackexchange"]
    figure = drawing._curves(of_fractions, curve_points(of_fractions.rows), {})
    assert figure.axes[0].get_ylabel() == "recall@5"
    assert max(line.get_ydata().max() for line in figure.axes[0].get_lines()) < 1
    in_percent = items.load_item("adaptive_federated_optimization", "table10")
    in_percent = in_percent.setups["stackexchange"]
    figure = drawing._curves(in_percent, curve_points(in_percent.rows), {})
    assert figure.axes[0].get_ylabel().endswith("(%)")


POINTS = pd.DataFrame(
    {
        "method": ["fedavg", "fedadam"] * 4,
        "seed": 1,
        "round_num": [1, 1, 2, 2, 3, 3, 4, 4],
        "value": np.linspace(0.1, 0.9, 8),
        "client": "7",
        "other": 0,
        "parameter": [np.nan, 1] * 4,
        "mean_error": np.linspace(5, 9, 8),
        "rsd": np.linspace(1, 2, 8),
        "client_learning_rate": [1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.1],
        "server_learning_rate": [1.0, 1.0, 0.1, 0.1, 1.0, 1.0, 0.1, 0.1],
        "tau": [0.1, 0.1, 0.01, 0.01] * 2,
        "setting": [1, 1, 2, 2, 3, 3, 4, 4],
        "rounds": 4,
    }
)
TABLES = {"similarity": POINTS[:1]}


@pytest.mark.parametrize("kind", drawing.KINDS)
def test_every_kind_has_the_setups_title(kind):
    wanted = {"kind": kind, "column": "fairness/accuracy_avg_t", "setting": "steps"}
    figure = drawing.KINDS[kind].figure(SETUP, TABLES.get(kind, POINTS), wanted)
    assert any(words.startswith(SETUP.heading) for words in words_of(figure))


def test_a_figure_says_where_rounds_are_fewer_than_the_protocols():
    """Also where nothing is published, whose mark would say it."""
    setup = dataclasses.replace(SETUP, published="nothing of this name")
    column = {"column": setup.columns[0]["name"], "value": 50.0, "spread": np.nan, "status": ""}
    rows = pd.DataFrame([{"row": "fedavg", "rounds": 20, "protocol_rounds": 1000, **column}])
    runs = pd.DataFrame({"row": ["fedavg"], "chosen": True, "seed": "1"})
    words = words_of(drawing._results(setup, rows, runs))
    assert any("after 20 rounds of the protocol's 1,000" in w for w in words)
    whole = drawing._results(setup, rows.assign(rounds=1000), runs)
    assert any(w.endswith("after 1,000 rounds") for w in words_of(whole))
    # Rows of other lengths, all of them whole.
    mixed = pd.concat([rows.assign(rounds=1000), rows.assign(rounds=20, protocol_rounds=20)])
    assert not any("of the protocol's" in w for w in words_of(drawing._results(setup, mixed, runs)))


@pytest.mark.parametrize(
    ("further", "words"),
    [
        ({}, "published"),
        ({"best": "max"}, "published best of the run"),
        ({"last_rounds": 100}, "published mean of the last 100 rounds"),
        ({"power": 0.5}, None),
        ({"offset": 100}, None),
    ],
)
def test_a_mark_beside_curves_says_what_is_published(monkeypatch, further, words):
    column = {"name": "a", "metric": "eval/accuracy", "scale": 100, **further}
    setup = dataclasses.replace(SETUP, columns=[column], curve="eval/accuracy", rounds=10)
    theirs = {("fedavg", "a"): {"value": "60"}, ("fedavg", "b"): {"value": "70"}}
    monkeypatch.setattr(results, "published", lambda setup: theirs)
    figure = drawing._curves(setup, curve_points(["fedavg"]), {})
    marks = [m for m in figure.axes[0].get_lines() if m.get_gid() == "published"]
    assert [m.get_ydata()[0] for m in marks] == ([60.0] if words else [])
    assert (words is None) == (not any(w.startswith("published") for w in words_of(figure)))
    assert words is None or words in words_of(figure)
    # The final value goes before others.
    both = [column, {"name": "b", "metric": "eval/accuracy", "scale": 100}]
    figure = drawing._curves(dataclasses.replace(setup, columns=both), curve_points(["fedavg"]), {})
    assert "published" in words_of(figure)


def test_a_loss_may_have_a_logarithmic_axis_and_curves_a_running_mean():
    setup = items.load_item("fedda", "fig8").setups["stackexchange"]
    (wanted,) = setup.figures
    figure = drawing._curves(setup, curve_points(list(setup.rows)[:2], last=5), wanted)
    assert figure.axes[0].get_yscale() == "log"
    rows = pd.DataFrame(
        [
            {"row": row, "column": column, "value": value, "rounds": 1500, "protocol_rounds": 1500}
            for row in list(setup.rows)[:2]
            for column, value in (("final", 0.5), ("loss", 0.1))
        ]
    ).assign(spread=np.nan, status="")
    runs = pd.DataFrame({"row": list(setup.rows)[:2], "chosen": True, "seed": "1"})
    scales = {a.get_xlabel(): a.get_xscale() for a in drawing._results(setup, rows, runs).axes}
    assert scales == {"recall@5": "linear", "loss": "log"}
    figure = drawing._curves(setup, curve_points(["fedavg"]), {"smooth": 2})
    assert "running mean of 2 values" in words_of(figure)
    wrong = dataclasses.replace(setup, figures=[{"kind": "curves", "smooth": 0}])
    with pytest.raises(items.ReproduceError, match="smooth must be a whole number above 0"):
        drawing.check(wrong, [])


def test_shares_of_improved_clients_are_smoothed_as_their_line_says():
    setup = items.load_item("adafed", "fig2").setups["cifar10_setup1_subset"]
    points = curve_points(["adafed"], last=1.0).assign(value=lambda p: p.round_num % 2)
    figure = drawing._improved(setup, points, {"kind": "improved", "smooth": 2})
    assert "running mean of 2 values" in words_of(figure)
    heights = figure.axes[0].get_lines()[0].get_ydata()
    np.testing.assert_allclose(heights[1:], 50.0)


def test_a_key_that_a_figure_does_not_take_is_refused():
    setup = items.load_item("adafed", "fig4").setups["cifar10_setup1_subset"]
    for wanted, words in (
        ({"kind": "direction", "smooth": 5}, "direction takes no smooth; known: kind"),
        ({"kind": "curves", "smoth": 5}, "curves takes no smoth; known: kind, column, label"),
    ):
        wrong = dataclasses.replace(setup, figures=[wanted])
        with pytest.raises(items.ReproduceError, match=words):
            drawing.check(wrong, [])


@pytest.mark.parametrize("kind", ["rates", "best_rates", "tau"])
def test_a_best_point_needs_a_direction(kind):
    columns = [{"name": "c", "metric": "eval/gain"}]
    setup = dataclasses.replace(EVERY[0], columns=columns, figures=[{"kind": kind}])
    with pytest.raises(items.ReproduceError, match=f"{kind}: set higher_is_better to true or fal"):
        drawing.check(setup, [])
    drawing.check(dataclasses.replace(setup, higher_is_better=False), [])


def test_items_of_papers_say_which_values_are_better():
    for setup in EVERY:
        if any(drawing.KINDS[wanted["kind"]].of_best for wanted in setup.figures):
            assert drawing._known_better(setup) is not None, named(setup)


def test_a_swept_setting_is_named_and_its_numbers_lie_on_nothing():
    setup = items.load_item("adafedadam", "fig3").setups["synthetic"]
    table = pd.DataFrame(
        {
            "method": ["fedavg", *["adafedadam"] * 4, *["qfedavg"] * 3, *["qfedavg_reweight"] * 3],
            "parameter": [np.nan, 1, 2, 4, 8, 1, 2, 4, 1, 2, 4],
            "mean_error": [9.6, 5.1, 5.15, 5.6, 6.2, 11.6, 12.8, 13.6, 9.3, 9.1, 9.5],
            "rsd": [1.5, 1.39, 1.34, 1.28, 1.25, 1.26, 1.24, 1.23, 1.28, 1.27, 1.24],
        }
    )
    figure = drawing._pareto(setup, table, {"kind": "pareto"})
    assert canvas.hidden(figure) == []
    legend = words_of(figure)
    assert "AdaFedAdam; numbers: alpha" in legend and "q-FedAvg reweight; numbers: q" in legend
    sizes = {line.get_markersize() for line in figure.axes[0].get_lines()[1:]}
    assert len(sizes) == 1, "a size would mean something"


def test_figures_of_partitions_that_stand_side_by_side_have_one_scale_of_colours():
    for item in items.all_items():
        drawn = [s.draws for s in item.setups.values() if "tasks.plot" in s.draws]
        scales = {tuple(part for part in draws if part.startswith("--most=")) for draws in drawn}
        assert len(drawn) < 2 or (len(scales) == 1 and scales != {()}), item.name


def test_a_setting_of_which_a_seed_has_no_value_has_no_point(monkeypatch):
    """Without an error, a seed has no relative deviation. The mean of the others would be wrong."""
    setup = items.load_item("adafedadam", "fig3").setups["synthetic"]
    one, other = list(setup.rows)[:2]
    values = {one: [(2.0, 0.5), (4.0, 1.0)], other: [(0.0, np.nan), (4.0, 1.0)]}
    runs = [types.SimpleNamespace(row=row, values=v) for row, some in values.items() for v in some]
    names = ["mean_error", "error_rsd"]
    monkeypatch.setattr(results, "column_value", lambda r, c: r.values[names.index(c["name"])])
    points = drawing._pareto_points(setup, runs, {"kind": "pareto"})
    assert points[["mean_error", "rsd"]].to_numpy().tolist() == [[3.0, 0.75]]
