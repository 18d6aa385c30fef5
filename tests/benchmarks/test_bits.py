"""Comparing the numbers of two devices' runs."""

import json
import math

import pytest

from benchmarks import bits


def _kept(**others):
    return {"train": "abc", "others": {f"metrics.csv 0 {k}": v for k, v in others.items()}}


@pytest.mark.parametrize(
    ("a", "b", "largest"),
    [
        ({"x": "1.5"}, {"x": "1.5"}, 0),
        ({"x": "0.5", "y": "2"}, {"x": "0.25", "y": "2"}, 0.25),
        ({"x": "200"}, {"x": "100"}, 1),  # Relative, above 1.
        ({"x": "nan"}, {"x": "NaN"}, 0),
        ({"x": "nan"}, {"x": "1"}, math.inf),
        ({"x": ""}, {"x": "1"}, math.inf),
        ({"x": "1"}, {"x": "1", "y": "1"}, math.inf),
    ],
)
def test_the_largest_difference_of_two_runs(a, b, largest):
    assert bits.largest_difference(_kept(**a), _kept(**b)) == largest


@pytest.mark.parametrize(("tolerance", "differs"), [(0.3, False), (0.2, True), (None, True)])
def test_a_tolerance_takes_the_place_of_bits(tolerance, differs):
    a, b = _kept(x="0.5"), {**_kept(x="0.25"), "train": "def"}
    assert bits._differs(a, b, tolerance) is differs
    assert bits._differs("exit code 1: out of memory", a, tolerance)


def test_an_error_is_the_result_of_its_case(monkeypatch):
    def digest(arguments, of_run):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(bits, "digest", digest)
    assert bits._one(("a case", []), None) == ("a case", "exit code 1: no kernel")


def test_a_tolerance_needs_numbers(tmp_path, capsys):
    path = tmp_path / "before.json"
    path.write_text(json.dumps({}))
    assert bits.main([f"--against={path}", "--tolerance=0.1"]) == 2
    assert "add --apart" in capsys.readouterr().err
