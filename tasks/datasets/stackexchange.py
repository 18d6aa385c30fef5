"""`stackexchange`: a small stand-in for Stack Overflow on posts of up to six sites.

Math Educators, spring 2014, has 360 users, 1,896 posts, 19,840 sentences and 148 tags. With
`sites=all` five more sites join: 1,657 users and 6,723 posts. This is enough to run FedOpt's
next-word and tag prediction on natural users and text, without the 342,477 users of TFF's file. It
is not enough to compare numbers with the paper's. Each account of each site is one client.

Models, examples and metrics are those of `tasks.datasets.stackoverflow`, with vocabularies built
from the training posts. As there, an answer inherits its question's tags and title.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks import partitions, settings
from tasks.data_files import DataFiles
from tasks.datasets import stackoverflow
from tasks.formats import files, text
from tasks.models import models
from tasks.registry import Clients, TaskSpec
from tasks.task import DataError, Task
from tff_suite.hparams import By, Hparam, HparamError, Settings

_MATH_EDUCATORS = "matheducators_2014_posts.jsonl.gz"
_FIVE_SITES = "five_sites_posts.jsonl.gz"
# Files by the setting `sites`; posts of the first have no field `site`.
_FILES = {"matheducators": (_MATH_EDUCATORS,), "all": (_MATH_EDUCATORS, _FIVE_SITES)}


_DUMPS = "https://archive.org/details/stackexchange"


def _advice(file: str) -> str:
    site = "site, " if file == _FIVE_SITES else ""
    return (
        f"set --data_dir to the folder of {file}, or to the one above it if it is called "
        f"stackexchange; a line is a JSON object with {site}post_id, user_id, type, question_id, "
        "created, title, tags and text, made of a Stack Exchange data dump "
        f"({_DUMPS})"
    )


# What is read of a post.
_TYPES = {
    "post_id": int,
    "user_id": int,
    "question_id": int,
    "created": str,
    "title": str,
    "tags": list,
    "text": str,
}


def _clients(chosen: Settings, synthetic: bool) -> Clients | None:
    published = {"matheducators": 360, "all": 1657}[chosen["sites"]]
    return settings.at_most(published, 10)(chosen, synthetic)


def _metrics(chosen: Settings) -> Sequence[str]:
    word = chosen["kind"] == "word"
    return stackoverflow.WORD_METRICS if word else stackoverflow.TAG_METRICS


SPEC = TaskSpec(
    name="stackexchange",
    summary=(
        "360 users of Math Educators, or 1,657 of six sites, a small stand-in for Stack Overflow: "
        "FedOpt's next-word or tag prediction."
    ),
    clients=_clients,
    hparams=(
        Hparam(
            name="sites",
            default="matheducators",
            help="Whose posts: `matheducators`, one site; `all`, these and five further sites.",
            source="choice",
            choices=tuple(_FILES),
        ),
        Hparam(
            name="kind",
            default="tag",
            help=(
                "`tag` predicts a post's tags as stackoverflow_tag does, `word` the next word "
                "as stackoverflow_word does. This task stands in for them and is not them."
            ),
            source="choice",
            choices=("tag", "word"),
        ),
        Hparam(
            name="vocab_size",
            default=2000,
            help=(
                "Number of words, those that most users have in the training posts; they make "
                "up 90 % of the text."
            ),
            source="choice (FedOpt, Stack Overflow: 10000)",
            minimum=1,
            maximum=1_000_000,
        ),
        Hparam(
            name="num_tags",
            default=By("kind", {"tag": 100}),
            help="Number of tags, those that most users have in the training posts.",
            source="choice (FedOpt, Stack Overflow: 500)",
            minimum=1,
            maximum=100_000,
        ),
        Hparam(
            name="test_fraction",
            default=0.2,
            help="Share of each user's posts that is its test split; 0: users have no tests.",
            source="choice, after AdaFedAdam's local 80/20 split",
            minimum=0,
            maximum=1,
            exclusive_maximum=True,
        ),
        settings.partition_seed("the users' train/test splits"),
        settings.text_init("keras", "FedOpt (TFF)"),
    ),
    metrics=_metrics,
    data=(
        DataFiles(
            "posts of Math Educators, spring 2014",
            f"set --data_dir to the folder of {_MATH_EDUCATORS}, made of {_DUMPS}",
            (_MATH_EDUCATORS, f"stackexchange/{_MATH_EDUCATORS}"),
            15_660,
            360,
        ),
    ),
    known_problems=(
        "It stands in for Stack Overflow: 360 users of one site. Its numbers do not compare "
        "with those on Stack Overflow.",
    ),
)


def load(
    *,
    data_dir: str | None,
    seed: int,
    use_synthetic_data: bool,
    sites: str,
    kind: str,
    vocab_size: int,
    num_tags: int | None,
    test_fraction: float,
    partition_seed: int,
    init: str,
) -> Task:
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    Clients are users, ordered by id; with `sites=all` by site and id, such as `beer/28`. The split
    into train and test keeps a user's posts whole, and puts at least one post into train. The
    central test is all users' test sentences. x and y are those of `stackoverflow_word` or
    `stackoverflow_tag`.

    Raises:
      HparamError: If there are fewer words than `vocab_size` or fewer tags than `num_tags`.
      DataError: If the file is missing or damaged.
    """
    del seed  # It comes as partition_seed.
    if use_synthetic_data:
        words = [f"word{i}" for i in range(vocab_size)]
        tags = [f"tag{i}" for i in range(num_tags or 1)]
        posts = [[[post] for post in user] for user in text.synthetic(10, words, tags)]
        users = [str(k) for k in range(len(posts))]
    else:
        users, posts = _read(data_dir, sites)
    ends = np.cumsum([len(user) for user in posts])
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    train_rows, test_rows = partitions.split_train_test(rows, test_fraction, partition_seed)
    every = list(itertools.chain.from_iterable(posts))
    train_posts, test_posts = (
        [[sentence for row in part for sentence in every[row]] for part in parts]
        for parts in (train_rows, test_rows)
    )
    if not use_synthetic_data:
        words = text.by_users([w for s in user for w in s.words] for user in train_posts)
        tags = text.by_users([t for s in user for t in s.tags] for user in train_posts)
    words = _first(words, vocab_size, "vocab_size")
    if kind == "word":
        make, learnt = _next_word(words, init)
    else:
        assert num_tags is not None
        make, learnt = _tags(words, _first(tags, num_tags, "num_tags"), init)
    train = text.federated(train_posts, users, make)
    test = text.federated(test_posts, users, make) if any(test_posts) else None
    central = list(itertools.chain.from_iterable(test_posts))
    return Task(
        name="stackexchange",
        train=train,
        test=test,
        central_test=make(central) if central else None,
        **learnt,
    )


def _next_word(words: Sequence[str], init: str) -> tuple[Callable, dict[str, Any]]:
    """Returns a function from posts to examples, and fields of `Task` for model and measures."""
    make = functools.partial(stackoverflow.word_examples, place=text.places(words))
    model_fn = functools.partial(
        models.word_lstm,
        vocab_size=len(words) + text.NUM_SPECIAL_TOKENS,
        length=stackoverflow.LENGTH,
        init=init,
    )
    return make, {"keras_model_fn": model_fn, **stackoverflow.word_measures(len(words))}


def _tags(words: Sequence[str], tags: Sequence[str], init: str) -> tuple[Callable, dict[str, Any]]:
    """Returns the same for tag prediction."""
    make = functools.partial(
        stackoverflow.tag_examples, words=text.places(words), tags=text.places(tags)
    )
    model_fn = functools.partial(
        models.tag_regression, num_words=len(words), num_tags=len(tags), init=init
    )
    return make, {"keras_model_fn": model_fn, **stackoverflow.tag_measures()}


def _first(entries: list[str], size: int, setting: str) -> list[str]:
    if len(entries) < size:
        raise HparamError(
            f"stackexchange: {setting}={size}, but the training posts have {len(entries)}."
        )
    return entries[:size]


def _read(data_dir: str | None, sites: str) -> tuple[list[str], list[list[list[text.Post]]]]:
    """Returns the users' names, and each user's posts by date, each a list of sentences."""
    posts = {}
    for file in _FILES[sites]:
        posts |= _read_file(data_dir, file)
    users = {}
    for (site, _), post in sorted(
        posts.items(), key=lambda p: (p[0][0], p[1]["user_id"], p[1]["created"], p[0][1])
    ):
        question = posts.get((site, post["question_id"]))
        of_title = text.sentences(question["title"]) if question else []
        title = list(itertools.chain.from_iterable(of_title))
        sentences = [text.Post(s, title, post["tags"]) for s in text.sentences(post["text"])]
        name = str(post["user_id"])
        users.setdefault(name if sites == "matheducators" else f"{site}/{name}", []).append(
            sentences
        )
    return list(users), list(users.values())


def _read_file(data_dir: str | None, file_name: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns a file's posts by site and number."""
    advice = _advice(file_name)
    if data_dir is None:
        raise DataError(f"stackexchange reads a file and needs --data_dir: {advice}")
    folders = (os.path.join(data_dir, "stackexchange"), data_dir)
    paths = [os.path.join(folder, file_name) for folder in folders]
    path = files.find(paths, advice)
    if path is None:
        raise files.missing(os.path.join(data_dir, file_name), advice, paths)
    types = {"site": str, **_TYPES} if file_name == _FIVE_SITES else _TYPES
    posts = {}
    with files.reading(path, advice), gzip.open(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            with files.decoding(path, advice, f"has in line {number} what is not a post"):
                post = _checked(files.json_of(line), types)
                key = post.get("site", "matheducators"), post["post_id"]
                if key in posts:
                    raise ValueError(f"post {post['post_id']} occurs twice")
                posts[key] = post
        if not posts:
            raise ValueError("it has no posts")
    return posts


def _checked(post: Any, types: Mapping[str, type]) -> dict[str, Any]:
    """Returns a post.

    Raises:
      ValueError: If a field is missing or has the wrong type.
    """
    for key, kind in types.items():
        files.entry(post, key, kind)
    if not all(isinstance(tag, str) for tag in post["tags"]):
        raise ValueError("a tag that is not text")
    return post
