"""JSON that every reader takes."""

import json

import numpy as np

from tff_suite import writing


def test_json_has_no_numbers_that_are_not_finite():
    content = {
        "a": [1.5, float("nan"), (float("-inf"),)],
        "b": {"c": np.float32("inf"), "d": np.int64(3), "e": np.bool_(True), "f": None},
        "g": "NaN",
    }
    text = writing.json_text(content)
    assert json.loads(text, parse_constant=lambda name: 1 / 0) == {
        "a": [1.5, None, [None]],
        "b": {"c": None, "d": 3, "e": True, "f": None},
        "g": "NaN",
    }
