"""docs/troubleshooting.md quotes messages as the source has them."""

import functools
import pathlib
import re

import pytest

from tff_suite import compat
from tools import checked_page

REPO = pathlib.Path(__file__).resolve().parent.parent
LINES = (REPO / "docs" / "troubleshooting.md").read_text().splitlines()
# What other programs say, and what a message is made of that is no literal.
OTHERS = {"pip install tensorflow-federated", "import tensorflow_federated"}


def quoted():
    """Returns the messages in the first column: code of several words."""
    cells = [line.split("|")[1] for line in LINES if line.startswith("| ")]
    return [text for cell in cells for text in re.findall(r"`([^`]+ [^`]+)`", cell)]


@functools.cache
def known():
    messages = {
        m.text for p in checked_page._sources() for m in checked_page.messages(p.read_text())
    }
    # What is put together before it is raised, and what make says, line by line.
    sources = [*(REPO / "simulation").rglob("*.py"), REPO / "Makefile"]
    lines = [line for path in sources for line in path.read_text().splitlines()]
    return [*messages, compat.KERAS_3, *lines]


@pytest.mark.parametrize("message", [text for text in quoted() if text not in OTHERS])
def test_a_quoted_message_is_one_of_the_suites(message):
    # What differs, on the page and in the source, stands between the literal parts.
    parts = re.split(r"…|flag --lr|3\.11 or 3\.12 or 3\.13", message)
    pattern = ".*".join(map(re.escape, filter(str.strip, parts)))
    assert any(re.search(pattern, text, re.S) for text in known()), pattern


def test_the_page_quotes_messages_of_every_kind():
    assert len(quoted()) >= 20
    assert all(any(text in cell for cell in LINES) for text in OTHERS)
