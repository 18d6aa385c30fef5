"""`stackoverflow_word` and `stackoverflow_tag`: posts of 342,477 users of Stack Overflow.

FedOpt's SO NWP and SO LR (Reddi et al. 2021), from TFF's own files. Users are read one by one from
`stackoverflow.sqlite`. Vocabularies come from TFF's counts of words and tags. An example is a
sentence.

FedOpt keeps at most 1,000 sentences per user and evaluates on 10,000 test sentences during
training. The test split has 16,586,035 sentences, later than the training ones. It is never read as
a whole, and users have no separate tests.
"""

from __future__ import annotations

import functools
import os
import tarfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks import settings
from tasks import task as task_lib
from tasks.formats import downloads, files, hdf5_clients, prepared, sqlite_clients, text, tffs
from tasks.models import losses, models
from tasks.registry import TaskSpec
from tasks.task import DataError, Examples, FederatedData, Task
from tff_suite import writing
from tff_suite.hparams import Hparam

LENGTH = 20

_WORDS = "stackoverflow.word_count"
_TAGS = "stackoverflow.tag_count"
# Of their archives, as TFF has them.
_SHA256 = {
    _WORDS: "1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
    _TAGS: "6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d",
}
# Clients and examples of each split.
_PUBLISHED = {"train": (342_477, 135_818_730), "test": (204_088, 16_586_035)}
_ADVICE = (
    "get stackoverflow.sqlite.lzma, stackoverflow.word_count.tar.bz2 and "
    "stackoverflow.tag_count.tar.bz2 from https://storage.googleapis.com/tff-datasets-public/ and "
    "set --data_dir to their folder"
)
_TFFS = tffs.Published(
    folder="stackoverflow",
    sqlite="stackoverflow.sqlite",
    h5="stackoverflow",
    features={name: tffs.Feature((), "bytes") for name in ("tokens", "title", "tags")},
    example="tokens, title and tags",
    advice=_ADVICE,
    clients=(_PUBLISHED["train"][0], _PUBLISHED["test"][0]),
)


# Of the sentences each user gives 1,000 at most.
_DATA = _TFFS.data_files(
    "TFF's Stack Overflow", 342_477 * 300, 342_477, beside=" and the counts beside it"
)


def _stackoverflow(*own: Hparam) -> tuple[Hparam, ...]:
    return (
        Hparam(
            name="vocab_size",
            default=10_000,
            help="Number of words, those that most users have; all others count as one word.",
            source="FedOpt, Stack Overflow",
            minimum=1,
            maximum=1_000_000,
        ),
        *own,
        Hparam(
            name="max_examples",
            default=1000,
            help="Most sentences of a user, the first in TFF's file.",
            source="FedOpt, Stack Overflow",
            minimum=1,
        ),
        Hparam(
            name="num_test_examples",
            default=10_000,
            help=(
                "Test sentences in the central test: those of users drawn at random from TFF's "
                "test split, which has 16,586,035."
            ),
            source="FedOpt, Stack Overflow",
            minimum=1,
        ),
        settings.partition_seed("the draw of test sentences"),
    )


# The primary one first.
WORD_METRICS = (
    "accuracy_without_out_of_vocab_or_end_of_sentence",
    "accuracy",
    "accuracy_without_out_of_vocab",
)
TAG_METRICS = ("recall_at_5", "precision")

_KNOWN_PROBLEMS = ("It was tested on small files in TFF's form only.",)
_USED_FOR = ("FedJAX ships the same clients.",)

SPECS = (
    TaskSpec(
        name="stackoverflow_word",
        summary=(
            "Next word in sentences of 342,477 users of Stack Overflow: FedOpt's LSTM "
            "(4,050,748 parameters)."
        ),
        loader="load_word",
        preparer="prepare",
        clients=settings.at_most(342_477, 10),
        hparams=(*_stackoverflow(), settings.text_init("keras", "FedOpt (TFF)")),
        metrics=WORD_METRICS,
        data=(_DATA,),
        known_problems=_KNOWN_PROBLEMS,
        used_for=_USED_FOR,
    ),
    TaskSpec(
        name="stackoverflow_tag",
        summary=(
            "Tags of posts of 342,477 users of Stack Overflow: FedOpt's logistic regression on "
            "bags of words (5,000,500 parameters)."
        ),
        loader="load_tag",
        preparer="prepare",
        clients=settings.at_most(342_477, 10),
        hparams=(
            *_stackoverflow(
                Hparam(
                    name="num_tags",
                    default=500,
                    help="Number of tags, those that most users have.",
                    source="FedOpt, Stack Overflow",
                    minimum=1,
                    maximum=100_000,
                )
            ),
            settings.init("keras", "FedOpt (TFF)"),
        ),
        metrics=TAG_METRICS,
        data=(_DATA,),
        known_problems=_KNOWN_PROBLEMS,
        used_for=_USED_FOR,
    ),
)


def load_word(
    *,
    data_dir: str | None,
    seed: int,
    use_synthetic_data: bool,
    vocab_size: int,
    max_examples: int,
    num_test_examples: int,
    partition_seed: int,
    init: str,
) -> Task:
    """Loads `stackoverflow_word`; see `SPEC` for the settings and `tasks.load` for more.

    x and y are int32 `[n, 20]`, see `tasks.formats.text`.

    Raises:
      DataError: If a file is missing or damaged and cannot be downloaded.
    """
    del seed  # It comes as partition_seed.
    if use_synthetic_data:
        words = [b"word%d" % i for i in range(vocab_size)]
        make = functools.partial(word_examples, place=text.places(words))
        train, central_test = _synthetic(make, words, [b"tag"])
    else:
        words = _vocabulary(data_dir, vocab_size)
        make = functools.partial(word_examples, place=text.places(words))
        train, test = _open(data_dir, make, max_examples)
        parts = tffs.some(test, num_test_examples, partition_seed)
        central_test = Examples(
            *(np.concatenate(part)[:num_test_examples] for part in zip(*parts, strict=True))
        )
    return Task(
        name="stackoverflow_word",
        train=train,
        test=None,
        central_test=central_test,
        keras_model_fn=functools.partial(
            models.word_lstm,
            vocab_size=vocab_size + text.NUM_SPECIAL_TOKENS,
            length=LENGTH,
            init=init,
        ),
        **word_measures(vocab_size),
        constants={"the vocabulary": np.array(words)},
    )


def load_tag(
    *,
    data_dir: str | None,
    seed: int,
    use_synthetic_data: bool,
    vocab_size: int,
    num_tags: int,
    max_examples: int,
    num_test_examples: int,
    partition_seed: int,
    init: str,
) -> Task:
    """Loads `stackoverflow_tag`; see `SPEC` for the settings and `tasks.load` for more.

    x is float32 `[n, vocab_size]`, the share of each word in a sentence and its question's title. y
    is float32 `[n, num_tags]`, 1 for each tag. The central test's x becomes dense only on access.

    Raises:
      DataError: If a file is missing or damaged and cannot be downloaded.
    """
    del seed  # It comes as partition_seed.
    if use_synthetic_data:
        words = [b"word%d" % i for i in range(vocab_size)]
        tags = [b"tag%d" % i for i in range(num_tags)]
    else:
        words = _vocabulary(data_dir, vocab_size)
        tags = _tag_vocabulary(data_dir, num_tags)
    make = functools.partial(tag_examples, words=text.places(words), tags=text.places(tags))
    if use_synthetic_data:
        train, central_test = _synthetic(make, words, tags)
    else:
        train, test = _open(data_dir, make, max_examples)
        train = _Dense(train)
        x, y = zip(*tffs.some(test, num_test_examples, partition_seed), strict=True)
        central_test = Examples(
            text.BagsOfWords.joined(x, num_test_examples),
            np.concatenate(y)[:num_test_examples],
        )
    return Task(
        name="stackoverflow_tag",
        train=train,
        test=None,
        central_test=central_test,
        keras_model_fn=functools.partial(
            models.tag_regression, num_words=vocab_size, num_tags=num_tags, init=init
        ),
        **tag_measures(),
        constants={"the vocabulary": np.array(words), "the tags": np.array(tags)},
    )


def prepare(source: str, data_dir: str) -> prepared.Outcome:
    """Unpacks TFF's files and counts their examples, for `tasks.prepare`.

    Raises:
      DataError: If a file is missing or damaged, or the number of examples differs from the
        announced one.
    """
    found = tffs.find(_TFFS, source)
    if found is None:
        raise files.missing(os.path.join(source, _TFFS.sqlite), _ADVICE, ending="[.lzma]")
    path, new = _unpacked(found, data_dir)
    for name in (_WORDS, _TAGS):
        _, content = _read(source, name)
        target = os.path.join(os.path.dirname(path), name)
        if not os.path.isfile(target):
            advice = "fix that and run the same command again"
            with files.decoding(target, advice, "cannot be written"):
                writing.write_atomically(target, content)
    counts = {}
    opened = tffs.open_clients(
        _TFFS, os.path.dirname(path), lambda features: word_examples(_posts(features), {})
    )
    for data, (split, (num_clients, num_examples)) in zip(opened, _PUBLISHED.items(), strict=True):
        counts[f"{split} clients"] = (len(data.client_ids), num_clients)
        counts[f"{split} examples"] = (data.count(), num_examples)
    return prepared.Outcome(path, new, counts)


def _unpacked(found: str, data_dir: str) -> tuple[str, bool]:
    """Unpacks the file that `tffs.find` found, if it is packed.

    Returns:
      The database or the training clients' HDF5 file, and whether this call unpacked it.
    """
    in_h5 = os.path.isdir(found) or found.endswith(".tar.bz2")
    name = f"{_TFFS.h5}_train.h5" if in_h5 else _TFFS.sqlite
    source = found if os.path.isdir(found) else os.path.dirname(found)
    for path in (os.path.join(source, name), os.path.join(data_dir, name)):
        if os.path.lexists(path):
            return path, False
    with files.decoding(data_dir, "name another --data_dir", "cannot be made"):
        os.makedirs(data_dir, exist_ok=True)
    if in_h5:
        hdf5_clients.unpack(found, data_dir, _ADVICE)
    else:
        sqlite_clients.unpack(f"{found}.lzma", path, _ADVICE)
    return path, True


def word_measures(vocab_size: int) -> dict[str, Any]:
    """Returns loss and metrics of next-word prediction, as fields of `Task`.

    Metrics ignore padding. The loss counts the first of it, see `losses.sequence_cross_entropy`.

    Args:
      vocab_size: Number of words, without special tokens.
    """
    other, end = text.other_word(vocab_size), text.end_of_sentence(vocab_size)
    return {
        "loss": losses.sequence_cross_entropy,
        "metrics": {
            "accuracy": losses.masked_accuracy(0),
            "accuracy_without_out_of_vocab": losses.masked_accuracy(0, other),
            "accuracy_without_out_of_vocab_or_end_of_sentence": (
                losses.masked_accuracy(0, other, end)
            ),
        },
        "primary_metric": "accuracy_without_out_of_vocab_or_end_of_sentence",
    }


def tag_measures() -> dict[str, Any]:
    """Returns loss and metrics of tag prediction, as fields of `Task`.

    The loss is summed over a batch, as in TFF. Hence FedOpt's client rate of 100.
    """
    return {
        "loss": losses.binary_cross_entropy,
        "loss_reduction": "sum",
        "metrics": {"recall_at_5": losses.recall_at(5), "precision": losses.precision},
        "primary_metric": "recall_at_5",
    }


def word_examples(posts: Sequence[text.Post], place: Mapping[Hashable, int]) -> Examples:
    """Returns examples of next-word prediction, see `tasks.formats.text.next_words`."""
    return text.next_words([post.words for post in posts], place, LENGTH)


def tag_examples(
    posts: Sequence[text.Post], words: Mapping[Hashable, int], tags: Mapping[Hashable, int]
) -> Examples:
    """Returns examples of tag prediction: bags of the words of sentence and title, and tags."""
    bags = text.BagsOfWords([[*post.words, *post.title] for post in posts], words)
    return Examples(bags, text.tag_vectors([post.tags for post in posts], tags))


class _Dense:
    """Federated data with compact bags of words, which become dense client by client."""

    def __init__(self, data: FederatedData):
        self.client_ids = data.client_ids
        self.sizes = data.sizes
        self.files = task_lib.files(data)
        self._data = data

    def examples(self, index: int) -> Examples:
        x, y = self._data.examples(index)
        return Examples(np.asarray(x), y)

    def held_in_memory(self, index: int) -> Sequence[np.ndarray]:
        return task_lib.held_in_memory(self._data, index)


def _open(
    data_dir: str | None, make: Callable[[Sequence[text.Post]], Examples], max_examples: int
) -> tuple[FederatedData, FederatedData]:
    """Opens TFF's file and returns its training and test clients."""
    return tffs.open_clients(_TFFS, data_dir, lambda f: make(_posts(f)), max_examples)


def _posts(features: Mapping[str, np.ndarray]) -> list[text.Post]:
    """Returns posts in the form of TFF's file, with words split as TFF does."""
    return [
        text.Post(words.split(b" "), title.split(), tags.split(b"|"))
        for words, title, tags in zip(*(features[name] for name in _TFFS.features), strict=True)
    ]


def _vocabulary(data_dir: str | None, size: int) -> list[bytes]:
    """Returns the words that most users have, most frequent first.

    TFF's file has a line for each word, with the number of users, in descending order.
    """
    source, content = _read(data_dir, _WORDS)
    with files.decoding(source, _ADVICE, "is not a list of words and counts"):
        rows = [line.split() for line in content.splitlines()[:size]]
        words = [word for word, count in rows if int(count) > 0]
    return _enough(words, size, source, "vocab_size")


def _tag_vocabulary(data_dir: str | None, size: int) -> list[bytes]:
    """Returns the tags that most users have, most frequent first.

    TFF's file is a JSON object of tags and numbers of users, unordered.
    """
    source, content = _read(data_dir, _TAGS)
    with files.decoding(source, _ADVICE, "is not a JSON object of tags and counts"):
        counts = files.json_of(content)
        found = {tag.encode(): files.entry(counts, tag, int) for tag in counts}
        tags = sorted(found, key=lambda tag: -found[tag])
    return _enough(tags[:size], size, source, "num_tags")


def _enough(entries: list[bytes], size: int, source: str, setting: str) -> list[bytes]:
    if len(set(entries)) < size:
        raise DataError(
            f"{source} has {len(set(entries))} entries, fewer than {setting}={size}; {_ADVICE}"
        )
    return entries


def _read(data_dir: str | None, name: str) -> tuple[str, bytes]:
    """Returns the path and content of a file of counts, unpacked in memory if needed."""
    if data_dir is None:
        path = files.keras_path(name)
        if not os.path.isfile(path):
            archive = f"{name}.tar.bz2"
            downloads.fetch(
                downloads.TFFS + archive, files.keras_path(archive), _ADVICE, _SHA256[name]
            )
        folders = [os.path.dirname(path)]
    else:
        folders = [os.path.join(data_dir, "stackoverflow"), data_dir]
    endings = ("", ".tar.bz2")
    paths = [os.path.join(f, name + e) for f in folders for e in endings]
    found = files.find(paths, _ADVICE)
    if found is None:
        # Both files of counts are in one folder.
        known = [n + e for n in _SHA256 for e in endings]
        where = os.path.join(folders[-1], name)
        raise files.missing(where, _ADVICE, paths, "[.tar.bz2]", known)
    with files.reading(found, _ADVICE):
        if not found.endswith(".tar.bz2"):
            with open(found, "rb") as file:
                return found, files.read_at_most(file)
        with tarfile.open(found, "r:bz2") as packed:
            return found, files.read_member(packed, packed.getmember(name))


def _synthetic(
    make: Callable[[Sequence[text.Post]], Examples], words: list[bytes], tags: list[bytes]
) -> tuple[FederatedData, Examples]:
    """Generates ten users, and the examples of an eleventh as the central test."""
    users = text.synthetic(11, words, tags)
    client_ids = [f"synthetic{k}" for k in range(10)]
    return text.federated(users[:10], client_ids, make), make(users[10])
