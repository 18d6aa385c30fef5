"""Inputs that are a column of text."""

import collections
import functools
import re
import unicodedata
from typing import Any

import numpy as np

from tasks.tables.arguments import count
from tasks.tables.table import Table
from tasks.task import TaskError

_PADDING, _UNKNOWN = 0, 1
# Chinese characters and Japanese kana, which stand without blanks between words.
_WORDS_OF_THEIR_OWN = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"


class Texts:
    """A column of text as numbers of words, padded to one length."""

    transform = None

    def __init__(self, table: Table, name: str, size: int, length: int):
        table.require(name, "text")
        self._name = name
        self._size, self._length = count("vocabulary_size", size), count("text_length", length)
        self._words: list[str] = []

    def fit(self, table: Table, rows: np.ndarray) -> None:
        """Numbers the words of training rows by how often they occur, then by the alphabet."""
        texts = self._split(table)
        counts = collections.Counter(word for row in rows for word in texts[row])
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        self._words = ranked[: self._size]

    def take(self, table: Table) -> np.ndarray:
        """Returns the word numbers of a table's rows, int32 `[n, length]`."""
        place = {word: k for k, word in enumerate(self._words, _UNKNOWN + 1)}
        texts = self._split(table)
        x = np.full((len(texts), self._length), _PADDING, np.int32)
        for row, words in zip(x, texts, strict=True):
            numbered = [place.get(word, _UNKNOWN) for word in words[: self._length]]
            row[: len(numbered)] = numbered
        return x

    def _split(self, table: Table) -> list[list[str]]:
        table.require(self._name, "text")
        texts = table.values(self._name)
        wrong = next((row for row, text in enumerate(texts) if not isinstance(text, str)), None)
        if wrong is not None:
            raise TaskError(
                f"{table.what}: column {self._name!r} has {texts[wrong]!r} in row {wrong}; it must "
                "be text."
            )
        words = _words()
        return [words.findall(unicodedata.normalize("NFC", text.lower())) for text in texts]

    def encoding(self) -> dict[str, Any]:
        """Describes the inputs, for the record."""
        return {
            "text": self._name,
            "form": "lower case, then NFC",
            "pattern": _words().pattern,
            "length": self._length,
            "words": self._words,
            "first_word": _UNKNOWN + 1,
        }


@functools.cache
def _words() -> re.Pattern[str]:
    """Returns what finds the words and marks of a text."""
    # For `re`, the vowel signs of Indian scripts are not part of a word.
    signs = {k for k in range(0x300, 0x20000) if unicodedata.category(chr(k))[0] == "M"}
    # As ranges, since `encoding.json` has the pattern.
    starts = sorted(k for k in signs if k - 1 not in signs)
    ends = sorted(k for k in signs if k + 1 not in signs)
    ranges = "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(starts, ends, strict=True))
    own = f"[{_WORDS_OF_THEIR_OWN}]"
    return re.compile(rf"{own}|(?:(?!{own})[\w{ranges}])+|[^\w\s]")
