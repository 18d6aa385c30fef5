"""`shakespeare_character`: the next character in the lines of a role of Shakespeare's.

FedOpt's and TFF's task (Reddi et al. 2021) has 715 roles. Speeches are cut into sequences of 80
characters, with the character after each as its target. AdaFed and FedCAda use LEAF's form: windows
of 80 characters, with the character after the window as the only target.
`tasks.formats.shakespeare_text` has the rules by which a role becomes a client. LEAF's own JSON
files also hold such windows. They come from a later edition of the text, and some of LEAF's samples
mix the roles (`-s iid`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks import settings
from tasks.data_files import DataFiles
from tasks.formats import files, leaf, prepared, shakespeare_text, tffs
from tasks.models import losses, models
from tasks.registry import Clients, TaskSpec
from tasks.task import DataError, Examples, Task
from tff_suite.hparams import By, Hparam, HparamError, Settings

LENGTH = 80

# TFF's characters in TFF's order: their tokens are 1, 2, ...; 0 is padding.
CHARACTERS = (
    b"dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
UNKNOWN, BEGIN, END = (len(CHARACTERS) + i for i in (1, 2, 3))
_NUM_TOKENS = len(CHARACTERS) + 4

# LEAF's characters; what is not among them becomes the last one, as its index -1 there does.
_LEAF_CHARACTERS = (
    b"\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)

_TEST_FRACTION = 0.2
# What LEAF's files have of a role: windows of 80 characters' codes, each with the code after it.
_WINDOWS = {"tokens": prepared.Array("uint8", (LENGTH + 1,))}

_ADVICE = (
    "get https://storage.googleapis.com/tff-datasets-public/shakespeare.sqlite.lzma, or the play "
    "text (see tasks/formats/shakespeare_text.py), and set --data_dir to its folder"
)
_LEAF_ADVICE = (
    "make LEAF's files with https://github.com/TalwalkarLab/leaf (data/shakespeare/preprocess.sh) "
    "and set --data_dir to their folder"
)
_TFFS = tffs.Published(
    folder="shakespeare",
    sqlite="shakespeare.sqlite",
    h5="shakespeare",
    features={"snippets": tffs.Feature((), "bytes")},
    example="a snippet of text",
    advice=_ADVICE,
    clients=(715, 715),
)
_TFFS_DATA = _TFFS.data_files("TFF's Shakespeare", 37_784, 715)
_TEXT_DATA = DataFiles(
    "the play text",
    "get t8.shakespeare.txt of January 1994",
    ("t8.shakespeare.txt*", "shakespeare/t8.shakespeare.txt*"),
    34_863,
    715,
)


def _check(chosen: Settings) -> None:
    form = chosen["roles"], chosen["examples"]
    if chosen["source"] == "leaf" and form != ("leaf", "windows"):
        raise HparamError(
            "shakespeare_character: LEAF's files have roles=leaf and examples=windows only; "
            "use source=text."
        )
    if chosen["split"] == "source" and chosen["test_fraction"] not in (None, _TEST_FRACTION):
        raise HparamError("shakespeare_character: test_fraction is not used with split=source.")
    if chosen["source"] == "tff" and form != ("tff", "sequences"):
        raise HparamError(
            "shakespeare_character: TFF's file has roles=tff and examples=sequences only; "
            "use source=text."
        )


def _clients(chosen: Settings, synthetic: bool) -> Clients | None:
    if chosen["source"] == "leaf" and not synthetic:
        # LEAF's own script makes more or fewer roles by its arguments.
        return None if chosen["num_clients"] is None else Clients(chosen["num_clients"])
    published = {"tff": 715, "leaf": 1129, "mcmahan": 1146}[chosen["roles"]]
    number = 10 if synthetic else published
    if chosen["num_clients"] is None:
        return Clients(max(0, number - chosen["num_heldout_clients"]))
    return Clients(min(number, chosen["num_clients"]))


SPEC = TaskSpec(
    name="shakespeare_character",
    summary=(
        "Next character in what a role of Shakespeare's says: FedOpt's two LSTM layers "
        "(820,522 parameters)."
    ),
    version=2,
    history=("roles=tff on the play text follows TFF's rule: 707 clients in place of 661.",),
    check=_check,
    clients=_clients,
    hparams=(
        Hparam(
            name="source",
            default="auto",
            help=(
                "TFF's sqlite file (`tff`), the play text of 1994 (`text`) or LEAF's JSON "
                "(`leaf`). `auto` reads the first of these that it finds and that fits the "
                "settings."
            ),
            source="FedOpt, Shakespeare: TFF's file",
            choices=("auto", "tff", "text", "leaf"),
        ),
        Hparam(
            name="roles",
            default=By("source", {"leaf": "leaf"}, otherwise="tff"),
            help=(
                "Which roles are clients: `tff`, over 80 characters in 23 plays; `leaf`, 1,129 "
                "roles of over 80 characters and three lines; `mcmahan`, 1,146 roles of three "
                "lines."
            ),
            source="FedOpt, Shakespeare; AdaFed and FedCAda: leaf",
            choices=("tff", "leaf", "mcmahan"),
        ),
        Hparam(
            name="examples",
            default=By("source", {"leaf": "windows"}, otherwise="sequences"),
            help=(
                "`sequences` cuts speeches into 80 characters and predicts each next one. "
                "`windows` takes every 80 characters of a role and predicts the one after them."
            ),
            source="FedOpt, Shakespeare; AdaFed and FedCAda: windows",
            choices=("sequences", "windows"),
        ),
        Hparam(
            name="num_layers",
            default=2,
            help="Number of LSTM layers of 256 units.",
            source="FedOpt Table 5; AdaFed's second setup and FedCAda: 1",
            minimum=1,
            maximum=100,
        ),
        Hparam(
            name="num_clients",
            default=None,
            type=int,
            help="Number of roles, drawn at random; by default all.",
            source="FedOpt; AdaFed: 31, and 20 in its second setup",
            minimum=1,
        ),
        Hparam(
            name="min_examples",
            default=1,
            help="Leaves out roles with fewer examples, training and test together.",
            source="FedOpt; AdaFed's second setup: 10000",
            minimum=1,
        ),
        Hparam(
            name="num_heldout_clients",
            default=0,
            help=(
                "Number of further roles, drawn at random, whose examples are the central "
                "test; 0: the central test is all clients' test examples together."
            ),
            source="FedOpt; FedCAda: 20",
            minimum=0,
        ),
        Hparam(
            name="split",
            default=By("source", {"auto": None, "leaf": "local"}),
            type=str,
            help=(
                "With LEAF's files: `local` makes a role's last windows its tests and leaves out "
                "those that reach into both. `source` keeps the files' split, by windows or by "
                "roles."
            ),
            source="McMahan et al. 2017: 80/20 by time",
            choices=("local", "source"),
        ),
        Hparam(
            name="test_fraction",
            default=By("source", {"auto": None, "text": _TEST_FRACTION, "leaf": _TEST_FRACTION}),
            help=(
                "Share of a role's speeches (of its text, with windows) that is its test split, "
                "the last in the play; not used with split=source. In TFF's file it is 2,356 of "
                "18,424 speeches."
            ),
            source="McMahan et al. 2017: 80/20 by time; FedCAda: 0.25",
            minimum=0,
            maximum=1,
            exclusive_maximum=True,
        ),
        settings.partition_seed("the draw of roles"),
        settings.text_init(
            "keras", "FedOpt (TFF); AdaFed and FedCAda: PyTorch", "He's normal rule"
        ),
    ),
    metrics=("accuracy",),
    data=(
        _TFFS_DATA.replace(when={"source": ("tff",)}),
        _TEXT_DATA.replace(when={"source": ("text",)}),
        DataFiles(
            "LEAF's Shakespeare",
            "make it with https://github.com/TalwalkarLab/leaf (data/shakespeare/preprocess.sh)",
            leaf.patterns("shakespeare"),
            4_226_158,
            1_129,
            when={"source": ("leaf",)},
        ),
        _TFFS_DATA.replace(
            name="TFF's Shakespeare, or the play text",
            files=(*_TFFS_DATA.files, *_TEXT_DATA.files),
            examples=_TEXT_DATA.examples,
        ),
    ),
    known_problems=(
        "With `roles=tff` the play text gives 707 clients and TFF's file 715: TFF's file was "
        "made from a later edition.",
    ),
    used_for=(
        "LEAF publishes it (arXiv 1812.01097).",
        "FedJAX ships TFF's clients of it.",
    ),
)


def load(*, data_dir: str | None, seed: int, use_synthetic_data: bool, **chosen: Any) -> Task:
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    Tokens are int32, x `[n, 80]`; y is `[n, 80]` with `examples=sequences` and `[n]` with
    `examples=windows`. The central test is the test examples of all clients together, or all
    examples of held-out clients.

    Raises:
      HparamError: If settings contradict each other, or there are fewer roles than `num_clients`.
      DataError: If a file is missing or damaged.
    """
    del seed  # It comes as partition_seed.
    source = "text" if use_synthetic_data else _source(data_dir, chosen)
    if use_synthetic_data:
        chosen["split"] = None
    chosen = SPEC.settled(chosen, source=source)
    every = chosen["examples"] == "sequences"
    if source == "tff":
        clients = _read_tff(data_dir)
    elif source == "leaf":
        clients, path = _read_leaf(data_dir, chosen["split"], chosen["test_fraction"])
    else:
        said = _synthetic() if use_synthetic_data else _read_text(data_dir, chosen["roles"])
        split = _split_speeches if every else _split_windows
        clients = {role.client_id: split(role, chosen["test_fraction"]) for role in said}
    ids, heldout = _choose(clients, chosen)
    train = _TokenData(ids, [clients[i].train for i in ids], every)
    # Only LEAF's own split has roles that are tested and do not train.
    test_ids = _tested(clients, ids) if chosen["split"] == "source" else train.client_ids
    test = _TokenData(test_ids, [clients[i].test for i in test_ids], every)
    if heldout:
        central = np.concatenate([tokens for i in heldout for tokens in clients[i]])
    else:
        central = np.concatenate([clients[i].test for i in test_ids])
    return Task(
        name="shakespeare_character",
        train=train,
        test=test if np.any(test.sizes) else None,
        central_test=_examples(central, every) if len(central) else None,
        keras_model_fn=functools.partial(
            models.shakespeare_lstm,
            vocab_size=_NUM_TOKENS if every else len(_LEAF_CHARACTERS),
            length=LENGTH,
            num_layers=chosen["num_layers"],
            next_of_each=every,
            init=chosen["init"],
        ),
        loss=losses.sequence_cross_entropy if every else losses.sparse_softmax_cross_entropy,
        metrics={"accuracy": losses.masked_accuracy(0) if every else losses.sparse_accuracy},
        primary_metric="accuracy",
        settings={
            **chosen,
            **({"test_fraction": None} if chosen["split"] == "source" else {}),
            **({"leaf_path": path} if source == "leaf" else {}),
        },
    )


class _Client(NamedTuple):
    """A client's examples, each a row of 81 tokens: uint8 `[n, 81]`."""

    train: np.ndarray
    test: np.ndarray


class _TokenData:
    """Federated data that is built from a client's rows of tokens on access."""

    def __init__(self, client_ids: Sequence[str], tokens: Sequence[np.ndarray], every: bool):
        self.client_ids = client_ids
        self.sizes = np.array([len(t) for t in tokens], np.int64)
        self._tokens = tokens
        self._every = every

    def examples(self, index: int) -> Examples:
        return _examples(self._tokens[index], self._every)

    def held_in_memory(self, index: int) -> Sequence[np.ndarray]:
        return [self._tokens[index]]


def _examples(tokens: np.ndarray, every: bool) -> Examples:
    """Returns inputs, and the next token after every position or only after the last."""
    tokens = tokens.astype(np.int32)
    return Examples(tokens[:, :-1], tokens[:, 1:] if every else tokens[:, -1])


def sequences(speech: bytes) -> np.ndarray:
    """Returns a speech as rows of tokens, as TFF cuts it.

    Args:
      speech: The characters.

    Returns:
      uint8 `[n, 81]`: `BEGIN`, a token for each character, `END`, then 0 up to the end of a row.
    """
    characters = _TOKEN_OF[np.frombuffer(speech, np.uint8)]
    tokens = np.concatenate([[BEGIN], characters, [END]]).astype(np.uint8)
    return np.pad(tokens, (0, -len(tokens) % (LENGTH + 1))).reshape(-1, LENGTH + 1)


def windows(text: bytes) -> np.ndarray:
    """Returns every run of 81 consecutive characters of a text, in LEAF's codes.

    Args:
      text: The characters.

    Returns:
      uint8 `[n, 81]`, a view of one array; no rows if the text is shorter.
    """
    codes = _LEAF_CODE_OF[np.frombuffer(text, np.uint8)]
    if len(codes) <= LENGTH:
        return np.zeros((0, LENGTH + 1), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(codes, LENGTH + 1)


def _table(characters: bytes, first: int, other: int) -> np.ndarray:
    """Returns the code of each byte: its position in `characters` plus `first`, or `other`."""
    table = np.full(256, other, np.uint8)
    table[np.frombuffer(characters, np.uint8)] = np.arange(first, first + len(characters))
    return table


_TOKEN_OF = _table(CHARACTERS, 1, UNKNOWN)
_LEAF_CODE_OF = _table(_LEAF_CHARACTERS, 0, len(_LEAF_CHARACTERS) - 1)


def _pack(speeches: Iterable[bytes]) -> np.ndarray:
    rows = [np.zeros((0, LENGTH + 1), np.uint8), *map(sequences, speeches)]
    return np.concatenate(rows)


def _split_speeches(role: shakespeare_text.Role, test_fraction: float) -> _Client:
    """Makes sequences; the last speeches are the test: at least one of several, if any is wanted.

    The code with which McMahan et al. and TFF made their files does the same.
    """
    speeches = ["\n".join(lines).encode("latin-1") for lines in role.speeches]
    num_test = int(test_fraction * len(speeches) + 1e-9)
    if test_fraction and len(speeches) > 1:
        num_test = max(1, num_test)
    num_train = len(speeches) - num_test
    return _Client(_pack(speeches[:num_train]), _pack(speeches[num_train:]))


def _split_windows(role: shakespeare_text.Role, test_fraction: float) -> _Client:
    """Makes windows; the last part of the text is test, and no window reaches into both parts."""
    text = role.running_text().encode("latin-1")
    num_train = int((1 - test_fraction) * len(text) + 1e-9)
    return _Client(windows(text[:num_train]), windows(text[num_train:]))


def _source(data_dir: str | None, chosen: Mapping[str, Any]) -> str:
    """Returns the name of the source to read: `tff`, `text` or `leaf`."""
    if chosen["source"] != "auto":
        return chosen["source"]
    if (chosen["roles"], chosen["examples"]) != ("tff", "sequences"):
        return _text_or_leaf(data_dir, chosen)
    has_file = data_dir is None or tffs.find(_TFFS, data_dir) is not None
    return "tff" if has_file else "text"


def _text_or_leaf(data_dir: str | None, chosen: Mapping[str, Any]) -> str:
    """Returns `leaf` if the settings fit LEAF's files and only these exist, else `text`."""
    form = chosen["roles"], chosen["examples"]
    if data_dir is None or form != ("leaf", "windows") or shakespeare_text.find(data_dir):
        return "text"
    return "leaf" if leaf.find(data_dir, "shakespeare", _LEAF_ADVICE) else "text"


def _tested(clients: Mapping[str, _Client], drawn: Sequence[str]) -> list[str]:
    """Returns the clients to test, see `leaf.tested`."""
    train = [name for name, client in clients.items() if len(client.train)]
    test = sorted(name for name, client in clients.items() if len(client.test))
    return leaf.tested(drawn, train, test)


def _choose(
    clients: Mapping[str, _Client], chosen: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Returns the ids of the clients and of those held out, each in ascending order."""
    num_clients, num_heldout = chosen["num_clients"], chosen["num_heldout_clients"]
    min_examples = chosen["min_examples"]
    eligible = sorted(
        i
        for i, client in clients.items()
        if len(client.train) and len(client.train) + len(client.test) >= min_examples
    )
    if num_clients is None:
        num_clients = len(eligible) - num_heldout
    if num_clients < 1 or num_clients + num_heldout > len(eligible):
        wanted = f"num_clients={num_clients} and num_heldout_clients={num_heldout}"
        raise HparamError(
            f"shakespeare_character: {wanted}, but {len(eligible)} roles have training examples"
            + (f" and min_examples={min_examples}." if min_examples > 1 else ".")
        )
    # The first word sets these draws apart from other uses of the seed.
    rng = np.random.default_rng((715, chosen["partition_seed"]))
    drawn = rng.permutation(len(eligible))
    clients_that_train, heldout = (
        [eligible[i] for i in np.sort(part)]
        for part in (drawn[:num_clients], drawn[num_clients : num_clients + num_heldout])
    )
    return clients_that_train, heldout


def _read_tff(data_dir: str | None) -> dict[str, _Client]:
    """Reads all clients of TFF's file; as sequences they take a few megabytes."""
    parts = []
    for data in tffs.open_clients(_TFFS, data_dir, _speeches):
        parts.append({name: _pack(data.examples(k).x) for k, name in enumerate(data.client_ids)})
    train, test = parts
    if train.keys() != test.keys():
        (path,) = data.files
        raise DataError(f"{path} has different clients in test and train; {_ADVICE}")
    return {name: _Client(train[name], test[name]) for name in train}


def _speeches(features: Mapping[str, np.ndarray]) -> Examples:
    """Returns speeches, bytes `[n]`, as x; y is a dummy row of zeros."""
    speeches = features["snippets"]
    return Examples(speeches, np.zeros(len(speeches), np.int32))


def _read_leaf(
    data_dir: str | None, split: str, test_fraction: float
) -> tuple[dict[str, _Client], str]:
    """Reads all clients of LEAF's files, split as stored or by time; also returns the folder."""
    if data_dir is None:
        raise DataError(f"shakespeare_character with source=leaf needs --data_dir: {_LEAF_ADVICE}")
    read = leaf.read("shakespeare", data_dir, _WINDOWS, _convert, _LEAF_ADVICE, left_out=LENGTH - 1)
    if read is None:
        raise leaf.missing(data_dir, "shakespeare", "", _LEAF_ADVICE)
    made, folder = read
    tokens = made.arrays["tokens"]
    if not len(tokens):
        raise DataError(f"{folder} has no examples; {_LEAF_ADVICE}")
    if split == "local":
        clients = {}
        for name, rows in made.rows_of_clients(*made.parts).items():
            num_train = int((1 - test_fraction) * len(rows) + 1e-9)
            # The windows between would hold characters of both.
            start = num_train + LENGTH - 1 if test_fraction else len(rows)
            clients[name] = _Client(tokens[rows[:num_train]], tokens[rows[start:]])
        return clients, folder
    if not made.parts.keys() >= {"train", "test"}:
        raise HparamError(
            f"shakespeare_character: split=source, but {folder} is not split into train and "
            "test; use split=local."
        )
    none = np.zeros(0, np.int64)
    train, test = (made.rows_of_clients(part) for part in ("train", "test"))
    clients = {
        name: _Client(tokens[train.get(name, none)], tokens[test.get(name, none)])
        for name in {**train, **test}
    }
    return clients, folder


def _convert(x: Sequence[Any], y: Sequence[Any]) -> Mapping[str, np.ndarray]:
    """Returns LEAF's windows: x is 80 characters, y the one after them."""
    rows = list(map(_joined, x, y))
    if any(len(row) != LENGTH + 1 for row in rows):
        raise ValueError(f"an example that is not {LENGTH} characters and the one after them")
    codes = np.frombuffer("".join(rows).encode("utf-32-le", "surrogatepass"), "<u4")
    # Beyond one byte there are no characters of LEAF's.
    tokens = _LEAF_CODE_OF[np.minimum(codes, 255)]
    return {"tokens": tokens.reshape(len(rows), LENGTH + 1)}


def _joined(window: Any, following: Any) -> str:
    if not isinstance(window, str) or not isinstance(following, str) or len(following) != 1:
        return ""
    return window + following


def _read_text(data_dir: str | None, rule: str) -> list[shakespeare_text.Role]:
    if data_dir is None:
        raise DataError(f"The play text needs --data_dir: {shakespeare_text.ADVICE}")
    path = shakespeare_text.find(data_dir)
    if path is None:
        paths = [*shakespeare_text.paths(data_dir), os.path.join(data_dir, _TFFS.sqlite)]
        there = files.but_there_is(paths)
        raise DataError(
            f"{data_dir} has neither {_TFFS.sqlite}[.lzma] nor the play text{there}; {_ADVICE}"
        )
    return shakespeare_text.roles(shakespeare_text.read(path), rule)


def _synthetic() -> list[shakespeare_text.Role]:
    """Generates ten roles that say the same few words, each in a different order."""
    words = "the king and queen of a fair land speak to thee my good lord".split()
    roles = []
    for k in range(10):
        rng = np.random.default_rng(k)
        lines = [
            " ".join(rng.choice(words, rng.integers(2, 9))).capitalize() + "."
            for _ in range(3 * (8 + 2 * k))
        ]
        speeches = tuple(tuple(lines[i : i + 3]) for i in range(0, len(lines), 3))
        roles.append(shakespeare_text.Role("SYNTHETIC", f"ROLE {k}", speeches))
    return roles
