import gzip
import json

import numpy as np
import pytest

import tasks
from tasks.formats import text
from tasks.task import DataError
from tff_suite.hparams import HparamError

_FILE = "matheducators_2014_posts.jsonl.gz"
_FIVE = "five_sites_posts.jsonl.gz"


def _post(post_id, user_id, words, question_id=None, title="", tags=("calculus",)):
    return {
        "post_id": post_id,
        "user_id": user_id,
        "type": "answer" if question_id else "question",
        "question_id": question_id or post_id,
        "created": f"2014-03-{post_id:02}T17:48:47.183",
        "score": 3,
        "title": title,
        "tags": list(tags),
        "text": words,
    }


_POSTS = [
    _post(1, 9, "What is a limit? It is a limit.", title="On Limits", tags=("calculus", "limit")),
    _post(2, 7, "See http://x.org/a?b it's well-known!", question_id=1, tags=("calculus", "limit")),
    _post(3, 9, "Caf\u00e9 \u2014 no, don\u2019t.", title="Food", tags=("exams",)),
    _post(4, 9, "limit limit limit", question_id=3, tags=("exams",)),
    _post(5, 9, "a is a", question_id=2),
]


def _write(folder, posts, name=_FILE):
    lines = "".join(json.dumps(post) + "\n" for post in posts)
    (folder / name).write_bytes(gzip.compress(lines.encode()))


def _load(folder, **settings):
    return tasks.load("stackexchange", data_dir=str(folder), **settings)


def test_sentences_and_words_are_split_as_described():
    said = "Is it? See https://x.org/a.b?c=d, a caf\u00e9.\nIt\u2019s well-known -- (1.5)! 'Tis"
    assert text.sentences(said) == [
        ["is", "it", "?"],
        ["see", "<url>", "a", "caf", "."],
        ["it's", "well-known", "-", "-", "(", "1", ".", "5", ")", "!"],
        ["'", "tis"],
    ]
    assert text.sentences(" \n\u2014 ") == []


def test_vocabularies_count_users():
    assert text.by_users([["b", "a", "a", "a"], ["b", "c"], ["c", "d"]]) == ["b", "c", "a", "d"]


def test_word_examples_are_users_sentences(tmp_path):
    _write(tmp_path, _POSTS)
    task = _load(tmp_path, kind="word", vocab_size=3, test_fraction=0)
    assert task.train.client_ids == ["7", "9"] and task.test is None
    assert task.train.sizes.tolist() == [1, 5] and task.central_test is None
    everyone = [
        [w for p in posts for s in text.sentences(p["text"]) for w in s]
        for posts in (_POSTS[1:2], [p for p in _POSTS if p["user_id"] == 9])
    ]
    vocabulary = text.by_users(everyone)[:3]
    x, y = task.train.examples(1)
    token = {word: i + 1 for i, word in enumerate(vocabulary)}
    first = [token.get(w, 4) for w in ["what", "is", "a", "limit", "?"]]
    np.testing.assert_array_equal(x[0], [5, *first, 6] + [0] * 13)
    np.testing.assert_array_equal(y[0], [*first, 6] + [0] * 14)


def test_tag_examples_are_bags_of_sentence_and_title(tmp_path):
    _write(tmp_path, _POSTS)
    task = _load(tmp_path, kind="tag", vocab_size=4, num_tags=2, test_fraction=0)
    words = [
        [w for p in posts for s in text.sentences(p["text"]) for w in s]
        for posts in (_POSTS[1:2], [p for p in _POSTS if p["user_id"] == 9])
    ]
    vocabulary = text.by_users(words)[:4]
    x, y = task.train.examples(0)
    said = ["see", "<url>", "it's", "well-known", "!", "on", "limits"]
    counts = np.array([said.count(w) for w in vocabulary], np.float32)
    np.testing.assert_allclose(x, [counts / max(counts.sum(), 1)])
    # Both users have "calculus" and "limit".
    np.testing.assert_array_equal(y, [[1, 1]])
    np.testing.assert_array_equal(task.train.examples(1).y, [[1, 1]] * 2 + [[0, 0]] * 2 + [[1, 0]])


def test_posts_are_split_and_vocabularies_are_the_training_posts(tmp_path):
    posts = [
        _post(i + 1, i % 2, f"both only{i}. again only{i}.", tags=(f"tag{i}", "all"))
        for i in range(20)
    ]
    _write(tmp_path, posts)
    task = _load(tmp_path, kind="word", vocab_size=19, test_fraction=0.2)
    assert task.train.sizes.tolist() == [16, 16] and task.test.sizes.tolist() == [4, 4]
    assert task.test.client_ids is task.train.client_ids
    # "both", ".", "again" and the words of 16 training posts.
    assert not (task.train.examples(0).y == 20).any()
    assert ((task.test.examples(0).y == 20).sum(axis=1) == 1).all()
    np.testing.assert_array_equal(
        task.central_test.x, np.concatenate([task.test.examples(k).x for k in range(2)])
    )
    with pytest.raises(HparamError, match="vocab_size=20"):
        _load(tmp_path, kind="word", vocab_size=20, test_fraction=0.2)
    with pytest.raises(HparamError, match="num_tags=100"):
        _load(tmp_path, kind="tag", vocab_size=19)
    other = _load(tmp_path, kind="tag", vocab_size=19, num_tags=17, partition_seed=5)
    assert other.train.examples(0).y.shape == (16, 17)


def test_num_tags_is_only_for_tags(tmp_path):
    with pytest.raises(HparamError, match="num_tags"):
        _load(tmp_path, kind="word", num_tags=5)


@pytest.mark.parametrize(
    ("kind", "num_parameters", "primary"),
    [
        ("word", 2_506_748, "accuracy_without_out_of_vocab_or_end_of_sentence"),
        ("tag", 200_100, "recall_at_5"),
    ],
)
def test_synthetic_data_of_both_kinds(kind, num_parameters, primary):
    task = tasks.load("stackexchange", use_synthetic_data=True, kind=kind)
    assert task.keras_model_fn(0).count_params() == num_parameters
    assert task.primary_metric == primary
    assert task.loss_reduction == ("sum" if kind == "tag" else None)
    x, y = task.train.examples(0)
    assert (x.shape[1], y.shape[1]) == ((20, 20) if kind == "word" else (2000, 100))
    assert task.settings["num_tags"] == (None if kind == "word" else 100)


def test_real_posts(data_dir):
    task = _load(data_dir)
    assert len(task.train.client_ids) == 360
    assert task.train.sizes.sum() + task.test.sizes.sum() == 19_840
    x, y = task.central_test
    assert x.shape == (len(y), 2000) and (y.sum(axis=1) > 0).mean() > 0.9


def test_users_and_posts_of_several_sites_are_kept_apart(tmp_path):
    """Numbers of users and posts are a site's own: equal ones mean nothing across sites."""
    _write(tmp_path, _POSTS)
    others = [
        {"site": site, **_post(1, 9, f"{site} {word}.", title=f"On {site}", tags=(site,))}
        for site, word in (("beer", "ale"), ("ai", "net"))
    ]
    others.append({"site": "beer", **_post(2, 8, "Lager.", question_id=1, tags=("beer",))})
    _write(tmp_path, others, _FIVE)
    chosen = dict(sites="all", kind="tag", vocab_size=3, num_tags=2, test_fraction=0)
    task = _load(tmp_path, **chosen)
    names = ["ai/9", "beer/8", "beer/9", "matheducators/7", "matheducators/9"]
    assert task.train.client_ids == names
    assert task.train.sizes.tolist() == [1, 1, 1, 1, 5]
    posts = [p for site in ("ai", "beer", "matheducators") for p in _by_user(site, others)]
    words = [[w for p in own for s in text.sentences(p["text"]) for w in s] for own in posts]
    vocabulary = text.by_users(words)[:3]
    # An answer has the title of its own site's question.
    said = ["lager", ".", "on", "beer"]
    counts = np.array([said.count(w) for w in vocabulary], np.float32)
    np.testing.assert_allclose(task.train.examples(1).x, [counts / max(counts.sum(), 1)])
    alone = _load(tmp_path, **{**chosen, "sites": "matheducators"})
    assert alone.train.client_ids == ["7", "9"]


def _by_user(site, others):
    posts = _POSTS if site == "matheducators" else [p for p in others if p["site"] == site]
    return [[p for p in posts if p["user_id"] == user] for user in (7, 8, 9)]


def test_a_post_without_its_site_is_one_line(tmp_path):
    _write(tmp_path, _POSTS)
    _write(tmp_path, _POSTS, _FIVE)
    with pytest.raises(DataError, match=r"five_sites_posts.*line 1 .*site") as error:
        _load(tmp_path, sites="all")
    assert "\n" not in str(error.value)
    (tmp_path / _FIVE).unlink()
    with pytest.raises(DataError, match="five_sites_posts"):
        _load(tmp_path, sites="all")


def test_real_posts_of_six_sites(data_dir):
    task = _load(data_dir, sites="all")
    assert len(task.train.client_ids) == 360 + 1297
    assert sum(name.startswith("beer/") for name in task.train.client_ids) == 554
    assert task.central_test.x.shape[1] == 2000


@pytest.mark.parametrize("damage", ["missing", "cut", "text", "no_user", "list"])
def test_missing_and_damaged_files_are_one_line(tmp_path, damage):
    posts = [dict(p) for p in _POSTS]
    if damage == "no_user":
        del posts[2]["user_id"]
    if damage != "missing":
        _write(tmp_path, [[1]] if damage == "list" else posts)
    if damage == "cut":
        (tmp_path / _FILE).write_bytes((tmp_path / _FILE).read_bytes()[:-20])
    if damage == "text":
        (tmp_path / _FILE).write_bytes(gzip.compress(b"<html>\n"))
    with pytest.raises(DataError) as error:
        _load(tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path / _FILE) in str(error.value) and "--data_dir" in str(error.value)


def test_without_data_dir_it_says_what_it_needs():
    with pytest.raises(DataError, match="--data_dir"):
        tasks.load("stackexchange")
