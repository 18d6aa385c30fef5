"""docs/what_is_checked.md lists what the source refuses, and nothing else."""

import pytest

from tools import checked_page
from tools.checked_page import Message


def test_the_page_is_current():
    assert checked_page.PAGE.read_text() == checked_page.page(), "run python tools/checked_page.py"


def test_every_module_has_an_area():
    assert all(map(checked_page._area, checked_page._sources()))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (
            'raise HparamError(f"{name} must be at most {self.most}, not {len(x)}.")',
            [Message("HparamError", "<name> must be at most <most>, not ….")],
        ),
        ('raise lib.DataError("no " + what)', [Message("DataError", "no …")]),
        ('def f():\n  refuse(f"key {key} is unknown")', [Message("error", "key <key> is unknown")]),
        ('self.warn("a client is gone")', [Message("warning", "a client is gone")]),
        ('warnings.warn("too much", stacklevel=2)', [Message("warning", "too much")]),
        ('raise AttributeError("module has none")', []),
        ("raise ValueError(text)", []),
        ("raise", []),
        ('print("not a refusal")', []),
    ],
)
def test_messages_are_found(source, found):
    assert list(checked_page.messages(source)) == found


def test_every_file_of_user_cases_says_what_it_is_about():
    assert all(line.lstrip(" -") for line in checked_page._cases())
