"""Digits, notes and captions of LaTeX tables, without runs."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest

from reproduction import comparison, latex
from simulation.records import outputs


def made(values, *, metric="eval/mse", runs=None, caption=None, **column):
    """Returns the table of row → values by seed."""
    rows = [
        {
            "row": row,
            "seed": seed,
            "x": value,
            "run": "nowhere",
            **(runs or {}).get((row, seed), {}),
        }
        for row, some in values.items()
        for seed, value in enumerate(some, 1)
    ]
    columns = [{"name": "x", "metric": metric, **column}]
    return comparison.Comparison("T", columns, pd.DataFrame(rows), [], "nowhere")


def cells(found):
    """Returns method → its cells as text."""
    lines = re.findall(r"^    (\S.*) \\\\$", found.to_latex(), re.MULTILINE)[1:]
    return {(parts := line.split(" & "))[0]: parts[1:] for line in lines}


@pytest.mark.parametrize(
    ("values", "column", "shown"),
    [
        # Half of the interval of two values is 12.706 times half of their distance.
        ([0.5, 0.52], {}, [r"\textbf{0.51}", "0.13"]),
        ([0.5, 0.5001], {}, [r"\textbf{0.50005}", "0.00064"]),
        ([80.0, 82.0], {}, [r"\textbf{81}", "13"]),
        ([4.0e-6, 4.02e-6], {}, [r"(\textbf{4.01}", r"0.13) $\times 10^{-6}$"]),
        ([4.0e-6, 4.02e-6], {"digits": 4}, [r"(\textbf{4.01}", r"0.13) $\times 10^{-6}$"]),
        ([4.0e12, 4.02e12], {"digits": 1}, [r"(\textbf{4.01}", r"0.13) $\times 10^{12}$"]),
        ([80.0, 82.0], {"digits": 1}, [r"\textbf{81.0}", "12.7"]),
        ([4.1234e-6], {}, [r"\multicolumn{2}{c}{\textbf{4.123} $\times 10^{-6}$}"]),
        ([0.0123456], {}, [r"\multicolumn{2}{c}{\textbf{0.01235}}"]),
        ([123.456], {}, [r"\multicolumn{2}{c}{\textbf{123.5}}"]),
        ([0.0], {}, [r"\multicolumn{2}{c}{\textbf{0.0}}"]),
        ([2.0, 2.0], {}, [r"\textbf{2.000}", "0.000"]),
        # In floating point, a third of their sum is another number.
        ([0.7, 0.7, 0.7], {}, [r"\textbf{0.7000}", "0.0000"]),
    ],
)
def test_digits_follow_the_interval(values, column, shown):
    assert cells(made({"fedavg": values}, **column)) == {"FedAvg": shown}


def test_the_numbers_are_read_back_to_their_digits():
    """Values of any size keep three digits and lie within half of the last one."""
    for size in range(-12, 13):
        text = cells(made({"fedavg": [-3.14159 * 10.0**size]}))["FedAvg"][0]
        found = re.fullmatch(
            r"\\multicolumn\{2\}\{c\}\{\\textbf\{(.*?)\}(?: \$\\times 10\^\{(.*)\}\$)?\}", text
        )
        assert len(text) < 60
        assert float(found[1]) * 10.0 ** int(found[2] or 0) == pytest.approx(
            -3.14159 * 10.0**size, rel=5e-4
        )


def test_a_diverged_seed_is_noted_and_the_others_are_shown(tmp_path):
    (tmp_path / outputs.DIVERGED).write_text(json.dumps({}))
    runs = {("fedavg", 2): {"run": str(tmp_path)}, ("afl", 1): {"run": str(tmp_path)}}
    values = {"fedavg": [1.0, math.nan, 3.0], "fedprox": [5.0, 6.0, 7.0], "afl": [math.nan] * 3}
    found = made(values, runs=runs)
    shown = cells(found)
    assert shown["FedAvg$^{1}$"] == [r"\textbf{2}", "13"]
    assert shown["FedProx"] == [r"\underline{6.0}", "2.5"]
    assert shown["AFL"] == [r"\multicolumn{2}{c}{diverged}"]
    assert "$^{1}$ Mean over 2 of 3 seeds; 1 diverged." in found.to_latex()
    table = found.table()
    assert table.seeds.tolist() == [2, 3, 0] and table.x.tolist()[:2] == [2, 6]


def test_what_was_not_run_has_not_diverged(tmp_path):
    runs = {("afl", seed): {"rounds": np.nan} for seed in (1, 2)}
    runs |= {("fedavg", seed): {"rounds": 5.0} for seed in (1, 2)}
    runs |= {("term", seed): {"rounds": 5.0, "run": str(tmp_path)} for seed in (1, 2)}
    none = [math.nan] * 2
    shown = cells(made({"fedavg": [1.0, 2.0], "afl": none, "term": none}, runs=runs))
    assert shown["AFL"] == [r"\multicolumn{2}{c}{not run}"]
    assert shown["TERM"] == [r"\multicolumn{2}{c}{no value}"]


def test_greek_and_signs_are_what_pdflatex_can_set():
    assert latex.escape("μ_1 α≥2 Δ Ω ο") == r"$\mu$\_1 $\alpha$$\geq$2 $\Delta$ $\Omega$ o"
    greek = "".join(map(chr, range(0x3B1, 0x3CA))) + "ΓΔΘΛΞΠΣΥΦΨΩ"
    assert latex.escape(greek).isascii()


def test_the_caption_of_one_seed_speaks_of_no_interval():
    one = made({"fedavg": [1.0]}).to_latex()
    assert "One seed, so there are no intervals. Bold: the best. Columns: x = eval/mse" in one
    assert "underlined" not in one and "1 seeds" not in one
    assert r"Mean over 2 seeds $\pm$ half" in made({"fedavg": [1.0, 2.0]}).to_latex()


def test_where_the_direction_is_unknown_nothing_is_bold():
    found = made({"fedavg": [1.0, 2.0], "term": [3.0, 4.0]}, metric="eval/own")
    text = found.to_latex()
    assert "textbf" not in text and "underline{" not in text and "in bold" not in text
    assert "Whether more is better is unknown for x." in text
    known = made(
        {"fedavg": [1.0, 1.1], "term": [3.0, 4.0]}, metric="eval/own", higher_is_better=False
    )
    assert cells(known)["FedAvg"][0].startswith(r"\textbf")
