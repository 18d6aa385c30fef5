"""`sent140`: whether a tweet is positive or negative, by the account that sent it.

AdaFedAdam (Ju et al. 2024) uses LEAF's Sent140 (Caldas et al. 2018), tweets of Go et al. (2009)
labelled by their emoticons. It has 697 accounts, and two LSTM layers on frozen GloVe vectors. The
minimum number of tweets of its accounts is not published. In the full set, 877 accounts have more
than 50 tweets and 604 more than 60.

The tweets can also come from TFDS's `sentiment140`, training and test split together. The task then
builds the same accounts as LEAF's scripts (`preprocess/`) do:

- Accounts are the senders' names, in ascending order.
- Polarity 4 is positive and any other is negative, including the neutral tweets of the test file.
- A text that is not ASCII has LEAF's spelling: LEAF reads its own UTF-8 as Latin-1.

Two things differ from LEAF's files. TFDS keeps neither the order nor the ids of tweets, so an
account's tweets are sorted by split, polarity and time, as the publisher has them. Tweets of the
same second keep TFDS's order. LEAF's split into train and test is drawn by its scripts, and TFDS
does not have it: `split=source` is refused.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import gzip
import io
import itertools
import os
import re
import sys
import zipfile
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import IO, Any

import numpy as np

from tasks import partitions, settings
from tasks.data_files import DataFiles
from tasks.formats import files as files_lib
from tasks.formats import leaf, prepared, text, tfds
from tasks.models import losses, models
from tasks.registry import TaskSpec
from tasks.task import ArrayFederatedData, DataError, Examples, Task
from tff_suite.hparams import By, Hparam, HparamError

LENGTH = 25

_SIZE = 300
_VECTORS = "glove.6B.300d.txt"
_LINES = "sent140_k30_test_part.jsonl.gz"
_ARRAYS = {"text": prepared.Array(None), "y": prepared.Array("uint8")}
_PUBLISHED = {"clients": 660_120, "examples": 1_600_498}
_PAPERS_CLIENTS = 697
_ADVICE = (
    "make LEAF's files with https://github.com/TalwalkarLab/leaf (data/sent140/preprocess.sh) and "
    "set --data_dir to their folder"
)
_TFDS = tfds.Set(
    name="sentiment140",
    version="1.0.0",
    sizes={"train": 1_600_000, "test": 498},
    features={
        "polarity": ("int32", ()),
        "date": ("object", ()),
        "user": ("object", ()),
        "text": ("object", ()),
    },
)
_MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_GLOVE = "https://nlp.stanford.edu/data/glove.6B.zip"
_VECTORS_ADVICE = (
    f"get {_VECTORS} ({_GLOVE}) into --data_dir, name a file of "
    "that form with --sent140_embedding_file, or train the vectors with --sent140_embedding=trained"
)
# No line of a file of vectors is longer.
_MAX_LINE = 1 << 20
_HEADER = re.compile(rb"\d+ \d+")
# LEAF's words: letters, digits and apostrophes, or one of some punctuation marks.
_WORD = re.compile(r"[\w']+|[.,!?;]")


_DATA = DataFiles(
    "LEAF's whole Sent140 and GloVe's vectors",
    "make it with https://github.com/TalwalkarLab/leaf (data/sent140/preprocess.sh), and "
    f"get {_GLOVE}",
    leaf.patterns("sent140"),
    56_000,
    _PAPERS_CLIENTS,
    tfds_set=_TFDS,
    tfds_cache="always",
    beside=(
        f"{_VECTORS}*",
        "glove.6B.zip",
        f"sent140/{_VECTORS}*",
        "sent140/glove.6B.zip",
    ),
)

SPEC = TaskSpec(
    name="sent140",
    summary=(
        "Positive or negative tweets by account (LEAF): AdaFedAdam's two LSTM layers on frozen "
        "word vectors (241,002 parameters)."
    ),
    preparer="prepare",
    hparams=(
        Hparam(
            name="source",
            default="auto",
            help=(
                "LEAF's JSON files or a prepared set (`leaf`), JSON lines of a tenth of LEAF's "
                "set (`lines`), or TFDS's sentiment140 (`tfds`). `auto` reads the first that it "
                "finds."
            ),
            source="AdaFedAdam, Sent140: LEAF",
            choices=("auto", "leaf", "lines", "tfds"),
        ),
        Hparam(
            name="min_examples",
            default=1,
            help=(
                "Leaves out accounts with fewer tweets, training and test together. AdaFedAdam "
                "does not say how it chose its 697 accounts. In the full set, 877 have more than "
                "50 tweets, and 604 more than 60."
            ),
            source="choice",
            minimum=1,
        ),
        Hparam(
            name="split",
            default="local",
            help=(
                "`local` splits each client's tweets at random, training and test files "
                "together. `source` keeps the files' split, by tweets or by clients (LEAF's -t "
                "user)."
            ),
            source="AdaFedAdam: local 80/20 split, drawn before training",
            choices=("local", "source"),
        ),
        Hparam(
            name="test_fraction",
            default=By("split", {"local": 0.2}),
            help="Share of each client's tweets that is its test split; 0: clients have no tests.",
            source="AdaFedAdam: local 80/20 split",
            minimum=0,
            maximum=1,
            exclusive_maximum=True,
        ),
        Hparam(
            name="embedding",
            default="glove",
            help=(
                "`glove` reads GloVe's vectors of 300 numbers from a file and freezes them; "
                "`trained` starts from random ones and trains them with the rest."
            ),
            source="AdaFedAdam, Sent140",
            choices=("glove", "trained"),
        ),
        Hparam(
            name="embedding_file",
            default=By("embedding", {"glove": None}),
            type=str,
            help=(
                "File with a word and 300 numbers per line, plain, gzip or zip. Default: "
                f"{_VECTORS} or glove.6B.zip in --data_dir."
            ),
            source="choice",
        ),
        Hparam(
            name="vocab_size",
            default=By("embedding", {"trained": 5000}),
            help=(
                "Number of words, those that most accounts have in the training tweets. With "
                "embedding=glove it is all words that have a vector."
            ),
            source="choice",
            minimum=1,
            maximum=1_000_000,
        ),
        settings.partition_seed("the accounts' train/test splits", By("split", {"local": None})),
        settings.text_init("torch", "AdaFedAdam (PyTorch)"),
    ),
    metrics=("accuracy",),
    data=(
        DataFiles(
            "a tenth of LEAF's sample of Sent140",
            f"set --data_dir to the folder of {_LINES}",
            (f"sent140/{_LINES}", _LINES),
            5_644,
            877,
            when={"source": ("lines",)},
        ),
        _DATA.replace(when={"embedding": ("trained",)}, beside=()),
        _DATA,
    ),
    known_problems=(
        "In the sample at hand a client has two to eleven test tweets, so chance hides "
        "differences in fairness.",
        "AdaFedAdam does not say which 697 accounts it took.",
    ),
    used_for=("LEAF publishes it (arXiv 1812.01097).",),
)


def load(
    *,
    data_dir: str | None,
    seed: int,
    use_synthetic_data: bool,
    source: str,
    min_examples: int,
    split: str,
    test_fraction: float | None,
    embedding: str,
    embedding_file: str | None,
    vocab_size: int | None,
    partition_seed: int | None,
    init: str,
) -> Task:
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    x is int32 `[n, 25]`: a tweet's first 25 words, 0 for padding at the end; y is int32, 1 for
    positive. The central test is all clients' test examples together.

    Raises:
      HparamError: If settings contradict each other, no account has enough tweets, or there are too
        few words.
      DataError: If the tweets or the word vectors are missing or damaged.
    """
    del seed  # It comes as partition_seed.
    if use_synthetic_data:
        tweets, found, path = prepared.in_memory(_synthetic()), source, ""
    else:
        if embedding == "glove" and data_dir is None:
            _vectors_path(data_dir, embedding_file)  # Before tweets are downloaded.
        tweets, found, path = _read(data_dir, source)
    rows = _rows_of_accounts(tweets, min_examples, use_synthetic_data)
    client_ids = test_ids = list(rows)
    if split == "local":
        assert test_fraction is not None and partition_seed is not None
        train_rows, test_rows = partitions.split_train_test(
            list(rows.values()), test_fraction, partition_seed
        )
    else:
        client_ids, test_ids, train_rows, test_rows = _rows_of_source(tweets, list(rows))

    with files_lib.decoding(path, _ADVICE, "has tweets that are no text"):
        words = _Words(tweets.strings["text"], rows.values())
    if embedding == "glove":
        vocabulary, vectors = _frozen(words.known(), data_dir, embedding_file, use_synthetic_data)
    else:
        assert vocab_size is not None
        vocabulary, vectors = _trained(words, train_rows, vocab_size, use_synthetic_data), None
        vocab_size = len(vocabulary)
    x = words.tokens(text.places(vocabulary))
    y = np.asarray(tweets.arrays["y"], np.int32)
    train = ArrayFederatedData(x, y, train_rows, client_ids)
    test = ArrayFederatedData(x, y, test_rows, test_ids)
    central = np.concatenate(test_rows)
    return Task(
        name="sent140",
        train=train,
        test=test if len(central) else None,
        central_test=Examples(x[central], y[central]) if len(central) else None,
        keras_model_fn=functools.partial(
            models.sent140_lstm,
            vocab_size=len(vocabulary) + 2,
            length=LENGTH,
            vectors=vectors,
            init=init,
        ),
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"accuracy": losses.sparse_accuracy},
        primary_metric="accuracy",
        settings={
            "source": found,
            "vocab_size": vocab_size,
            **(tfds.record(_TFDS, path) if found == "tfds" and path else {}),
            **({"leaf_path": path} if found == "leaf" and path else {}),
        },
        constants={} if vectors is None else {"the words' vectors": vectors},
    )


def prepare(source: str, data_dir: str) -> prepared.Outcome:
    """Makes a prepared set from LEAF's files, for `tasks.prepare`.

    Raises:
      DataError: If a file is missing or damaged.
    """
    return leaf.prepare("sent140", source, data_dir, _ARRAYS, _convert, _ADVICE, _PUBLISHED)


def split_words(tweet: str) -> list[str]:
    """Returns a tweet's words as LEAF splits them, but in lower case.

    GloVe's vectors from six billion words are in lower case only.
    """
    return _WORD.findall(tweet.lower())


def read_vectors(path: str, words: Set[str], size: int) -> tuple[list[str], np.ndarray]:
    """Reads the vectors of some words from a GloVe text file.

    A line is a word, which may contain blanks, and its numbers. A first line of two whole numbers,
    as word2vec and fastText write it, is skipped. If a word occurs twice, the first vector is used.
    The file may be compressed by gzip or be in a ZIP archive.

    Args:
      path: The file.
      words: The words to look for.
      size: Numbers per vector.

    Returns:
      The words found, in the file's order, and their vectors, float32 `[words found, size]`.

    Raises:
      DataError: If the file cannot be read, does not have that form, or has none of the words.
    """
    found = {}
    with files_lib.reading(path, _VECTORS_ADVICE), _open_vectors(path, size) as file:
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b""), start=1):
            if len(line) == _MAX_LINE:
                raise ValueError(f"line {number} has more than {_MAX_LINE:,} bytes")
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
                if _HEADER.fullmatch(line.rstrip()):
                    continue
            coded, *numbers = line.rstrip().rsplit(b" ", size)
            if len(numbers) != size:
                raise ValueError(f"line {number} has {len(numbers)} numbers, not {size}")
            word = coded.decode()
            if word in words and word not in found:
                vector = np.array(numbers, np.float64)
                # Beyond float32 a number would become infinite.
                if not np.all(np.abs(vector) <= np.finfo(np.float32).max):
                    raise ValueError(f"line {number} has numbers that are not finite")
                found[word] = vector.astype(np.float32)
    if not found:
        raise DataError(f"{path} has none of the tweets' words; {_VECTORS_ADVICE}")
    return list(found), np.stack(list(found.values()))


@contextlib.contextmanager
def _open_vectors(path: str, size: int) -> Iterator[io.BufferedIOBase | IO[bytes]]:
    """Opens a file of vectors, unpacked; in an archive, its only text file or that of this size."""
    if not zipfile.is_zipfile(path):
        with files_lib.open_plain_or_gzip(path) as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive:
        # What macOS adds to an archive is below a folder of its own.
        texts = [
            name for name in archive.namelist() if not name.endswith("/") and "__MACOSX" not in name
        ]
        chosen = texts if len(texts) == 1 else [name for name in texts if f".{size}d." in name]
        if len(chosen) != 1:
            raise ValueError(
                f"it has {len(texts)} files, but must have one with {size} numbers per word"
            )
        with archive.open(chosen[0]) as file:
            yield file


class _Words:
    """The words of those tweets that belong to clients."""

    def __init__(self, tweets: prepared.Ragged, rows: Iterable[np.ndarray]):
        self._tweets = {
            int(row): split_words(tweets[row].decode("utf-8", "surrogatepass"))
            for row in np.sort(np.concatenate(list(rows)))
        }
        self._total = len(tweets)

    def known(self) -> set[str]:
        return set().union(*self._tweets.values())

    def of(self, rows: np.ndarray) -> Iterator[str]:
        for row in rows:
            yield from self._tweets[int(row)]

    def tokens(self, place: Mapping[Hashable, int]) -> np.ndarray:
        """Returns the tokens of all tweets, int32 `[n, 25]`; zeros for tweets of no client.

        0 is padding, 1 to V are the vocabulary's words, and V + 1 is any other word. A tweet
        without words consists of V + 1.
        """
        other = len(place)
        tokens = np.zeros((self._total, LENGTH), np.int32)
        for row, words in self._tweets.items():
            own = [place.get(word, other) + 1 for word in words[:LENGTH]] or [other + 1]
            tokens[row, : len(own)] = own
        return tokens


def _rows_of_accounts(
    tweets: prepared.Prepared, min_examples: int, use_synthetic_data: bool
) -> dict[str, np.ndarray]:
    """Returns the rows of each account with enough tweets, and prints the number of accounts."""
    rows = tweets.rows_of_clients(*tweets.parts)
    rows = {client: own for client, own in rows.items() if len(own) >= min_examples}
    if not rows:
        raise HparamError(f"sent140: no account has min_examples={min_examples} tweets.")
    if not use_synthetic_data:
        print(
            f"sent140: {len(rows)} accounts with {min_examples} or more tweets each "
            f"(AdaFedAdam: {_PAPERS_CLIENTS})",
            file=sys.stderr,
        )
    return rows


def _frozen(
    words: Set[str], data_dir: str | None, embedding_file: str | None, use_synthetic_data: bool
) -> tuple[list[str], np.ndarray]:
    """Returns the words that have a vector, and the vectors with a zero vector before and after."""
    if use_synthetic_data:
        vocabulary = sorted(words)
        vectors = np.random.default_rng(0).normal(0, 0.4, (len(vocabulary), _SIZE))
    else:
        vocabulary, vectors = read_vectors(_vectors_path(data_dir, embedding_file), words, _SIZE)
    return vocabulary, np.pad(vectors.astype(np.float32), [(1, 1), (0, 0)])


def _trained(
    words: _Words, train_rows: Sequence[np.ndarray], size: int, use_synthetic_data: bool
) -> list[str]:
    """Returns the words that most accounts use; generated tweets may have fewer."""
    vocabulary = text.by_users(words.of(own) for own in train_rows)
    if len(vocabulary) < size and not use_synthetic_data:
        raise HparamError(
            f"sent140: vocab_size={size}, but the training tweets have {len(vocabulary)} words."
        )
    return vocabulary[:size]


def _rows_of_source(
    tweets: prepared.Prepared, accounts: Sequence[str]
) -> tuple[list[str], list[str], list[np.ndarray], list[np.ndarray]]:
    """Returns the training accounts, the tested accounts, and the tweets of both."""
    parts = [tweets.rows_of_clients(part) for part in ("train", "test")]
    train, test = ({c: own[c] for c in accounts if len(own.get(c, ()))} for own in parts)
    if not (train and test):
        raise HparamError(
            "sent140: split=source, but the source has no train and test tweets of these "
            "accounts; use split=local."
        )
    test_ids = leaf.tested(list(train), train, list(test))
    none = np.zeros(0, np.int64)
    return list(train), test_ids, list(train.values()), [test.get(c, none) for c in test_ids]


def _convert(x: Sequence[Any], y: Sequence[Any]) -> Mapping[str, Any]:
    """Returns LEAF's tweets: x is id, date, query, account, text, and `training` or `test`.

    The last field names the publisher's file that has the tweet; some copies lack it.
    """
    if any(type(label) is not int or label not in (0, 1) for label in y):
        raise ValueError("labels that are not 0 or 1")
    if any(type(t) is not list or len(t) not in (5, 6) or not isinstance(t[4], str) for t in x):
        raise ValueError("a tweet that is not id, date, query, account, text and file")
    texts = [tweet[4].encode("utf-8", "surrogatepass") for tweet in x]
    return {"text": texts, "y": np.array(y, np.uint8)}


def _read(data_dir: str | None, source: str) -> tuple[prepared.Prepared, str, str]:
    """Returns the tweets, the name of their source, and its file or folder."""
    tweets, found, path = _find_and_read(data_dir, source)
    if not len(tweets.arrays["y"]):
        raise DataError(f"{path} has no tweets; {_ADVICE}")
    return tweets, found, path


def _find_and_read(data_dir: str | None, source: str) -> tuple[prepared.Prepared, str, str]:
    if data_dir is not None and source in ("auto", "leaf"):
        read = leaf.read("sent140", data_dir, _ARRAYS, _convert, _ADVICE, num_classes=2)
        if read is not None:
            return read[0], "leaf", read[1]
    if data_dir is not None and source in ("auto", "lines"):
        path = files_lib.find(_paths(data_dir, _LINES), _ADVICE)
        if path is not None:
            piece = prepared.Piece(_LINES, 0, functools.partial(_read_lines, path))
            return prepared.in_memory(prepared.Source(_ARRAYS, [piece])), "lines", path
    if source in ("auto", "tfds"):
        folder = _tfds_folder(data_dir)
        if folder is not None:
            piece = prepared.Piece(_TFDS.name, 0, functools.partial(_read_tfds, folder))
            return prepared.in_memory(prepared.Source(_ARRAYS, [piece])), "tfds", folder
    if data_dir is None:
        raise DataError(f"sent140 with source={source} needs --data_dir: {_ADVICE}")
    if source == "lines":
        paths = _paths(data_dir, _LINES)
        raise files_lib.missing(paths[-1], _ADVICE, paths)
    if source == "tfds":
        raise DataError(f"{data_dir} has no TFDS's {_TFDS.folder}, nor has TFDS's cache; {_ADVICE}")
    others = f", {_LINES} nor TFDS's sentiment140" if source == "auto" else ""
    raise leaf.missing(data_dir, "sent140", others, _ADVICE)


def _paths(data_dir: str, *names: str) -> list[str]:
    """Returns the paths at which to look for files, in order of preference."""
    folders = (os.path.join(data_dir, "sent140"), data_dir)
    return [os.path.join(folder, name) for folder in folders for name in names]


def _tfds_folder(data_dir: str | None) -> str | None:
    """Returns TFDS's folder, downloading it if `data_dir` is not given; `None` if there is none.

    TFDS's cache is used even if `data_dir` is given, which may only hold the words' vectors.
    """
    if data_dir is not None:
        return tfds.find(_TFDS, data_dir) or tfds.find_in_cache(_TFDS)
    return tfds.find_in_cache(_TFDS) or tfds.download(_TFDS)


def _read_tfds(folder: str) -> Iterator[prepared.Rows]:
    """Yields the accounts of TFDS's set, built as LEAF does from the publisher's two files."""
    parts = [tfds.read(_TFDS, folder, split) for split in ("train", "test")]
    with files_lib.decoding(folder, _TFDS.advice, "is not TFDS's sentiment140"):
        is_test = np.repeat([False, True], [len(part["user"]) for part in parts])
        polarity, date, user, tweet = (
            np.concatenate([part[name] for part in parts]) for name in _TFDS.features
        )
        times = map(_sortable, date)
        keys = list(zip(user, is_test.tolist(), polarity.tolist(), times, strict=True))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        for name, of_user in itertools.groupby(order, key=lambda i: user[i]):
            rows = list(of_user)
            # LEAF reads its own UTF-8 as Latin-1.
            texts = [tweet[i].decode("latin-1").encode() for i in rows]
            y = (polarity[rows] == 4).astype(np.uint8)
            client = files_lib.check_client_id(name.decode())
            yield prepared.Rows("all", client, {"text": texts, "y": y})


def _sortable(date: bytes) -> bytes:
    """Returns a date such as `Mon Apr 06 22:19:45 PDT 2009` as year, month, day and time."""
    _, month, day, time, _, year = date.split()
    return b"%s%02d%s%s" % (year, _MONTHS.index(month), day, time)


def _read_lines(path: str) -> Iterator[prepared.Rows]:
    """Yields the accounts of a compressed file with one JSON object per tweet."""
    accounts = {}
    with files_lib.reading(path, _ADVICE), gzip.open(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            with files_lib.decoding(path, _ADVICE, f"has in line {number} what is not a tweet"):
                tweet = files_lib.json_of(line)
                client = str(files_lib.entry(tweet, "client", (int, str)))
                files_lib.check_client_id(client)
                label = files_lib.entry(tweet, "label", int)
                if label not in (0, 1):
                    raise ValueError(f"label {label!r:.80}")
                own = accounts.setdefault(client, ([], []))
                own[0].append(files_lib.entry(tweet, "text", str).encode("utf-8", "surrogatepass"))
                own[1].append(label)
    for client, (texts, labels) in accounts.items():
        yield prepared.Rows("all", client, {"text": texts, "y": np.array(labels, np.uint8)})


def _vectors_path(data_dir: str | None, embedding_file: str | None) -> str:
    if embedding_file is not None:
        return embedding_file
    if data_dir is None:
        raise DataError(f"sent140's word vectors need --data_dir: {_VECTORS_ADVICE}")
    # Unpacked, or packed as users and the publisher pack it.
    names = (_VECTORS, f"{_VECTORS}.gz", f"{_VECTORS}.zip", "glove.6B.zip")
    paths = _paths(data_dir, *names)
    path = files_lib.find(paths, _VECTORS_ADVICE)
    if path is None:
        raise files_lib.missing(os.path.join(data_dir, _VECTORS), _VECTORS_ADVICE, paths)
    return path


def _synthetic() -> prepared.Source:
    """Generates twelve accounts of 12 to 34 tweets, in which some words reveal the label."""
    glad, sad = (["love", "great", "yay"], ["sad", "miss", "ugh"])
    others = "i am at home now with you and the dog , it is late today".split()

    def read() -> Iterator[prepared.Rows]:
        for k in range(12):
            rng = np.random.default_rng(k)
            y = rng.integers(0, 2, 12 + 2 * k).astype(np.uint8)
            tweets = []
            for label in y:
                words = list(rng.choice(others, rng.integers(2, 30)))
                words.insert(int(rng.integers(3)), str(rng.choice(glad if label else sad)))
                tweets.append(" ".join(words).encode())
            yield prepared.Rows("all", f"synthetic{k:02}", {"text": tweets, "y": y})

    return prepared.Source(_ARRAYS, [prepared.Piece("synthetic", 0, read)])
