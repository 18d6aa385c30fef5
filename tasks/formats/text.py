"""Words of posts as numbers: vocabularies, rows of tokens, bags of words, sentences.

The numbers are those of TFF's Stack Overflow tasks. With a vocabulary of V words, token 0 is
padding and 1 to V are the words. V + 1 is any other word, V + 2 begins a sentence and V + 3 ends
it.
"""

import collections
import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from tasks.task import ArrayFederatedData, Examples

NUM_SPECIAL_TOKENS = 4
# A word, or a tag: of TFF's files bytes.
_Word = TypeVar("_Word", str, bytes)


class Post(NamedTuple):
    """A sentence of a post, with data on the post.

    Attributes:
      words: The sentence's words, with punctuation marks.
      title: Words of the question's title.
      tags: Tags of the question.
    """

    words: Sequence[Hashable]
    title: Sequence[Hashable]
    tags: Sequence[Hashable]


def places(vocabulary: Iterable[Hashable]) -> dict[Hashable, int]:
    """Returns the position of each word in a vocabulary, from 0."""
    return {word: place for place, word in enumerate(vocabulary)}


def other_word(vocab_size: int) -> int:
    """Returns the token of words outside a vocabulary of that size."""
    return vocab_size + 1


def end_of_sentence(vocab_size: int) -> int:
    """Returns the token that ends a sentence."""
    return vocab_size + 3


def next_words(
    sentences: Iterable[Sequence[Hashable]], place: Mapping[Hashable, int], length: int
) -> Examples:
    """Makes next-word examples.

    A sentence begins with its special token, is cut off after `length` words, ends with its special
    token if it is shorter than that, and is padded with 0.

    Args:
      sentences: Words of each sentence.
      place: The vocabulary.
      length: Words per example.

    Returns:
      x and y, int32 `[n, length]`; y is x one position on.
    """
    other, end = other_word(len(place)), end_of_sentence(len(place))
    rows = []
    for words in sentences:
        tokens = [place.get(word, other - 1) + 1 for word in words[:length]]
        tokens += [end] * (len(tokens) < length)
        rows.append([other + 1, *tokens] + [0] * (length - len(tokens)))
    table = np.array(rows, np.int32).reshape(-1, length + 1)
    return Examples(table[:, :-1], table[:, 1:])


class BagsOfWords:
    """Bags of words that are stored sparsely and become dense on access.

    They replace a float32 array `[n, number of words]`. An entry is the share of a word among those
    words of a text that are in the vocabulary, as in TFF; a text without any has zeros. Slices and
    arrays of row numbers give NumPy arrays.

    Attributes:
      shape: Shape of the array.
      dtype: Type of its entries.
    """

    def __init__(self, texts: Iterable[Sequence[Hashable]], place: Mapping[Hashable, int]):
        """Counts words.

        Args:
          texts: Words of each text.
          place: The vocabulary.
        """
        known = [[place[word] for word in words if word in place] for words in texts]
        sizes = np.array([len(columns) for columns in known], np.int64)
        # All texts at once, which takes less than half the time of one after the other.
        width, row = max(len(place), 1), np.repeat(np.arange(len(known)), sizes)
        flat = np.fromiter(itertools.chain.from_iterable(known), np.int64, sizes.sum())
        found, counts = np.unique(row * width + flat, return_counts=True)
        row, columns = np.divmod(found, width)
        shares = counts.astype(np.float32) / sizes[row].astype(np.float32)
        ends = np.searchsorted(row, np.arange(1, len(known) + 1)).tolist()
        self._rows = [
            (columns[start:end].astype(np.int32), shares[start:end].copy())
            for start, end in itertools.pairwise([0, *ends])
        ]
        self.shape = (len(self._rows), len(place))
        self.dtype = np.dtype(np.float32)

    @classmethod
    def joined(cls, parts: Sequence["BagsOfWords"], limit: int) -> "BagsOfWords":
        """Returns one or more bags concatenated, cut off after the first `limit` rows."""
        whole = cls([], {})
        whole._rows = [row for part in parts for row in part._rows][:limit]
        whole.shape = (len(whole._rows), parts[0].shape[1])
        return whole

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        chosen = range(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows)
        dense = np.zeros((len(chosen), self.shape[1]), np.float32)
        for i, row in enumerate(chosen):
            columns, shares = self._rows[row]
            dense[i, columns] = shares
        return dense

    def __array__(self, dtype: npt.DTypeLike | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.float32, copy=False)


def tag_vectors(tags: Iterable[Sequence[Hashable]], place: Mapping[Hashable, int]) -> np.ndarray:
    """Returns which tags of a vocabulary each text has.

    Args:
      tags: Tags of each text.
      place: The vocabulary of tags.

    Returns:
      Zeros and ones, float32 `[n, number of tags]`.
    """
    tags = list(tags)
    vectors = np.zeros((len(tags), len(place)), np.float32)
    for row, names in enumerate(tags):
        vectors[row, [place[name] for name in names if name in place]] = 1
    return vectors


def by_users(words_of_users: Iterable[Iterable[str]]) -> list[str]:
    """Returns all words, ordered by the number of users who have them, then alphabetically.

    TFF's Stack Overflow vocabularies also count users.
    """
    users = collections.Counter()
    for words in words_of_users:
        users.update(set(words))
    return sorted(users, key=lambda word: (-users[word], word))


def sentences(text: str) -> list[list[str]]:
    """Splits a text into sentences and these into words, as in the description of TFF's data.

    Words are in lower case. Characters outside ASCII are dropped, and a web address becomes
    `<url>`. A punctuation mark is a separate word, except apostrophes and hyphens within a word. A
    sentence ends at a full stop, question mark or exclamation mark before a blank, and at a line's
    end.

    Args:
      text: The text, without markup.

    Returns:
      The words of each non-empty sentence.
    """
    text = re.sub(r"https?://\S+", " <url> ", text.lower())
    text = text.replace("\u2019", "'").encode("ascii", "ignore").decode()
    split = (_WORD.findall(part) for part in re.split(r"(?<=[.?!])\s+|\n", text))
    return [words for words in split if words]


_WORD = re.compile(r"<url>|[a-z0-9]+(?:['-][a-z0-9]+)*|[^\sa-z0-9]")


def federated(
    users: Sequence[Sequence[Post]],
    client_ids: Sequence[str],
    make: Callable[[Sequence[Post]], Examples],
) -> ArrayFederatedData:
    """Makes federated data, held in memory, from users' posts.

    Args:
      users: Sentences of each user.
      client_ids: Name of each user.
      make: Converts sentences to examples.
    """
    x, y = make([post for posts in users for post in posts])
    ends = np.cumsum([len(posts) for posts in users])
    return ArrayFederatedData(x, y, np.split(np.arange(ends[-1]), ends[:-1]), client_ids)


def synthetic(
    num_users: int, vocabulary: Sequence[_Word], tags: Sequence[_Word]
) -> list[list[Post]]:
    """Generates posts of the true form, in which words follow a rule and determine the tags.

    Args:
      num_users: Number of users; the k-th has 8 + 4 k sentences.
      vocabulary: The words to use, the most frequent first.
      tags: The tags to use, the most frequent first.

    Returns:
      Sentences of each user.
    """
    users = []
    for k in range(num_users):
        rng = np.random.default_rng(k)
        posts = []
        for _ in range(8 + 4 * k):
            tag = int(rng.integers(min(20, len(tags))))
            start = tag * 7 + int(rng.integers(3))
            steps = np.arange(rng.integers(3, 30))
            words = [vocabulary[int(i)] for i in (start + steps) % min(200, len(vocabulary))]
            also = (tag + 1) % min(20, len(tags))
            posts.append(Post(words, words[:2], sorted({tags[tag], tags[also]})))
        users.append(posts)
    return users
