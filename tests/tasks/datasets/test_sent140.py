import gzip
import json

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks.datasets import sent140
from tasks.models import models
from tasks.task import DataError
from tff_suite.hparams import HparamError

_LINES = "sent140_k30_test_part.jsonl.gz"
_VECTORS = "glove.6B.300d.txt"

# Account -> (label, text) of its tweets, in no order of accounts.
_TWEETS = {
    "zoe": [(1, "I LOVE it!"), (0, "can't sleep, ugh"), (1, "it's ok"), (0, ""), (1, "love love")],
    "amy_1": [(0, "so sad; so very sad")],
    "bob": [(i % 2, " ".join(f"w{j}" for j in range(20 + i))) for i in range(10)],
}
# "it" stands twice, and one word has a blank in it; "sad" has no vector.
_VOCABULARY = ["the", "it", "love", ",", "at name@domain.com", "it", "ok", "w1", "caf\u00e9", "!"]


def _leaf(of):
    """Returns a file as LEAF writes it: x is [id, date, query, account, text, publisher's file]."""
    date = "Mon Apr 06 22:19:45 PDT 2009"
    return {
        "users": list(of),
        "num_samples": [len(tweets) for tweets in of.values()],
        "user_data": {
            user: {
                "x": [
                    [f"14678{i}", date, "NO_QUERY", user, text, "training"]
                    for i, (_, text) in enumerate(tweets)
                ],
                "y": [label for label, _ in tweets],
            }
            for user, tweets in of.items()
        },
    }


def _write_leaf(folder, split=False):
    parts = ("train", "test") if split else ("all_data",)
    for part in parts:
        (folder / part).mkdir()
        of = _TWEETS
        if split:
            # LEAF's split by sample leaves accounts of one tweet out.
            of = {
                u: [t for i, t in enumerate(ts) if (i % 5 == 4) == (part == "test")]
                for u, ts in _TWEETS.items()
                if len(ts) > 1
            }
        (folder / part / f"all_data_{part}_9.json").write_text(json.dumps(_leaf(of)))


def _write_lines(folder):
    lines = [
        json.dumps({"client": user, "label": label, "text": tweet}) + "\n"
        for user, tweets in _TWEETS.items()
        for label, tweet in tweets
    ]
    (folder / _LINES).write_bytes(gzip.compress("".join(lines).encode()))


def _vector(place):
    return [round((place + 1) / 10 + i / 1000, 5) for i in range(300)]


def _write_vectors(folder, name=_VECTORS):
    lines = [f"{w} {' '.join(map(str, _vector(i)))}\n" for i, w in enumerate(_VOCABULARY)]
    (folder / name).write_text("".join(lines), encoding="utf-8")


def _load(folder, **settings):
    return tasks.load("sent140", data_dir=str(folder), **settings)


def _token(word):
    """The words with a vector that occur in tweets, in the file's order: it love , ok w1 !"""
    known = ["it", "love", ",", "ok", "w1", "!"]
    return known.index(word) + 1 if word in known else len(known) + 1


def _row(*words):
    return [_token(w) for w in words[:25]] + [0] * (25 - min(len(words), 25))


def test_words_are_leafs_in_small_letters():
    said = "@user I'm SO happy!! http://x.co caf\u00e9_1; (yes)..."
    assert sent140.split_words(said) == (
        [
            "user",
            "i'm",
            "so",
            "happy",
            "!",
            "!",
            "http",
            "x",
            ".",
            "co",
            "café_1",
            ";",
            "yes",
            ".",
            ".",
            ".",
        ]
    )


@pytest.mark.parametrize("form", ["leaf", "lines", "prepared"])
def test_tokens_and_labels_are_the_tweets(tmp_path, form):
    (_write_lines if form == "lines" else _write_leaf)(tmp_path)
    folder = tmp_path
    if form == "prepared":
        folder = tmp_path / "ready"
        tasks.get("sent140").prepare_fn()(str(tmp_path), str(folder))
    _write_vectors(folder)
    task = _load(folder, test_fraction=0)
    assert task.settings["source"] == ("lines" if form == "lines" else "leaf")
    assert task.test is None and task.central_test is None
    of = dict(zip(task.train.client_ids, range(3), strict=True))
    assert of.keys() == _TWEETS.keys()
    x, y = task.train.examples(of["zoe"])
    assert x.dtype == y.dtype == np.int32
    np.testing.assert_array_equal(y, [1, 0, 1, 0, 1])
    np.testing.assert_array_equal(
        x,
        [
            _row("i", "love", "it", "!"),
            _row("can't", "sleep", ",", "ugh"),
            _row("it's", "ok"),
            _row("nothing"),  # An empty tweet is one unknown word.
            _row("love", "love"),
        ],
    )
    x, _ = task.train.examples(of["bob"])
    np.testing.assert_array_equal(x[9], _row(*(f"w{j}" for j in range(29))))
    assert x[9].all() and not x[4, 24:].any() and x[4, 23]


def test_frozen_vectors_are_the_files(tmp_path):
    _write_leaf(tmp_path)
    _write_vectors(tmp_path)
    model = _load(tmp_path).keras_model_fn(0)
    assert sum(int(tf.size(w)) for w in model.trainable_variables) == 241_002
    vectors = model.get_layer("embedding").get_weights()[0]
    expected = [np.zeros(300)] + [_vector(i) for i in (1, 2, 3, 6, 7, 9)] + [np.zeros(300)]
    np.testing.assert_array_equal(vectors, np.array(expected, np.float32))


def test_a_file_of_vectors_can_be_named(tmp_path):
    (tmp_path / "data").mkdir()
    _write_leaf(tmp_path / "data")
    _write_vectors(tmp_path, "mine.txt")
    task = _load(tmp_path / "data", embedding_file=str(tmp_path / "mine.txt"))
    assert task.keras_model_fn(0).get_layer("embedding").input_dim == 8


def test_trained_vectors_are_chosen_never_silent(tmp_path):
    _write_leaf(tmp_path)
    with pytest.raises(
        DataError, match=r"glove.6B.300d.txt is missing.*--sent140_embedding=trained"
    ):
        _load(tmp_path)
    task = _load(tmp_path, embedding="trained", vocab_size=4, test_fraction=0)
    model = task.keras_model_fn(0)
    assert sum(int(tf.size(w)) for w in model.trainable_variables) == 241_002 + 6 * 300
    # Words by accounts, then by the alphabet: "," and "!" have one account, as all others have.
    bob = task.train.examples(task.train.client_ids.index("bob")).x
    zoe = task.train.examples(task.train.client_ids.index("zoe")).x
    np.testing.assert_array_equal(zoe[0, :5], [5, 5, 5, 1, 0])  # ! , ; can't
    np.testing.assert_array_equal(zoe[1, :5], [4, 5, 2, 5, 0])
    assert (bob[0, :20] == 5).all()
    with pytest.raises(HparamError, match="vocab_size=5000"):
        _load(tmp_path, embedding="trained")
    with pytest.raises(HparamError, match="embedding=trained"):
        _load(tmp_path, vocab_size=4)
    with pytest.raises(HparamError, match="embedding=glove"):
        _load(tmp_path, embedding="trained", embedding_file="x")


def test_the_vocabulary_is_of_training_tweets_only(tmp_path):
    tweets = {"a": [(0, f"only{i}") for i in range(10)]}
    (tmp_path / "all_data").mkdir()
    (tmp_path / "all_data" / "all_data.json").write_text(json.dumps(_leaf(tweets)))
    task = _load(tmp_path, embedding="trained", vocab_size=8)
    assert (task.test.examples(0).x[:, 0] == 9).all()
    assert (task.train.examples(0).x[:, 0] < 9).all()
    with pytest.raises(HparamError, match="vocab_size=9"):
        _load(tmp_path, embedding="trained", vocab_size=9)


def test_accounts_of_few_tweets_are_left_out(tmp_path, capfd):
    _write_leaf(tmp_path)
    _write_vectors(tmp_path)
    for fewest, wanted in ((1, {"zoe", "amy_1", "bob"}), (5, {"zoe", "bob"}), (6, {"bob"})):
        task = _load(tmp_path, min_examples=fewest)
        assert set(task.train.client_ids) == wanted
        line = capfd.readouterr().err.splitlines()[-1]
        assert f"{len(wanted)} accounts with {fewest} or more" in line and "697" in line
    with pytest.raises(HparamError, match="min_examples=11"):
        _load(tmp_path, min_examples=11)


@pytest.mark.parametrize("prepare", [False, True])
def test_leafs_own_split_is_kept_or_drawn_anew(tmp_path, prepare):
    _write_leaf(tmp_path, split=True)
    folder = tmp_path
    if prepare:
        folder = tmp_path / "ready"
        tasks.get("sent140").prepare_fn()(str(tmp_path), str(folder))
    _write_vectors(folder)
    kept = _load(folder, split="source")
    assert kept.train.client_ids == ["zoe", "bob"]
    assert kept.train.sizes.tolist() == [4, 8] and kept.test.sizes.tolist() == [1, 2]
    np.testing.assert_array_equal(kept.test.examples(0).x, [_row("love", "love")])
    anew = _load(folder, test_fraction=0.4)
    assert anew.test.sizes.tolist() == [2, 4]
    np.testing.assert_array_equal(
        anew.central_test.x, np.concatenate([anew.test.examples(k).x for k in range(2)])
    )
    seeds = [_load(folder, partition_seed=s).train.examples(1).x for s in (1, 1, 2)]
    np.testing.assert_array_equal(seeds[0], seeds[1])
    assert not np.array_equal(seeds[0], seeds[2])


def test_the_model_is_kerass_with_its_own_lstm():
    vectors = np.random.default_rng(0).normal(size=(9, 300)).astype(np.float32)
    vectors[0] = 0
    ours = models.sent140_lstm(3, vocab_size=9, vectors=vectors)
    keras = tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(9, 300, mask_zero=True, input_length=25),
            tf.keras.layers.LSTM(100, return_sequences=True),
            tf.keras.layers.LSTM(100),
            tf.keras.layers.Dense(2),
        ]
    )
    # Keras lists trainable weights before frozen ones.
    by_name = {w.name: w.numpy() for w in ours.weights}
    order = [n for n in by_name if "embedding" in n] + [n for n in by_name if "embedding" not in n]
    keras.set_weights([by_name[name] for name in order])
    x = np.array([_row("it", "love", "w1"), _row(*["it"] * 30), _row("nothing")], np.int32)
    np.testing.assert_allclose(ours(x), keras(x), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(by_name[order[0]], vectors)


def test_frozen_vectors_stay_frozen_in_training():
    import tff_algos

    task = tasks.load("sent140", use_synthetic_data=True)
    model = tff_algos.from_keras(task.keras_model_fn(0), loss=task.loss, metrics=task.metrics)
    assert sum(w.size for w in model.initial_weights) == 241_002


_DAMAGE = ["announced", "label", "short", "number", "cut"]


@pytest.mark.parametrize("damage", _DAMAGE)
def test_damaged_leaf_files_are_one_line(tmp_path, damage):
    content = _leaf(_TWEETS)
    data = content["user_data"]["zoe"]
    if damage == "announced":
        content["num_samples"][0] = 4
    elif damage == "label":
        data["y"][0] = 4
    elif damage == "short":
        data["x"][0] = data["x"][0][:4]
    elif damage == "number":
        data["x"][0][4] = 7
    text = json.dumps(content)
    (tmp_path / "all_data").mkdir()
    path = tmp_path / "all_data" / "all_data.json"
    path.write_text(text[:-40] if damage == "cut" else text)
    _refused(tmp_path, str(path))


@pytest.mark.parametrize("damage", ["cut", "text", "label", "no_client", "empty"])
def test_damaged_lines_are_one_line(tmp_path, damage):
    _write_lines(tmp_path)
    path = tmp_path / _LINES
    whole = path.read_bytes()
    path.write_bytes(
        {
            "cut": whole[:-20],
            "text": gzip.compress(b"<html>\n"),
            "label": gzip.compress(b'{"client": 1, "label": 4, "text": "a"}\n'),
            "no_client": gzip.compress(b'{"label": 1, "text": "a"}\n'),
            "empty": b"",
        }[damage]
    )
    _refused(tmp_path, str(path))


def test_missing_files_are_one_line(tmp_path):
    _refused(tmp_path, "no LEAF files", _LINES, "sentiment140")
    _refused(tmp_path, _LINES, source="lines")
    with pytest.raises(DataError, match="--data_dir"):
        tasks.load("sent140")
    with pytest.raises(DataError, match="no LEAF files"):
        tasks.get("sent140").prepare_fn()(str(tmp_path), str(tmp_path))


def _refused(folder, *parts, **settings):
    with pytest.raises(DataError) as error:
        _load(folder, embedding="trained", vocab_size=2, **settings)
    text = str(error.value)
    assert "\n" not in text and "--data_dir" in text and "https://" in text
    assert all(part in text for part in parts)


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        ("cut", "line 10 has"),
        ("other_size", "line 1 has 200 numbers, not 300"),
        ("word", "could not convert"),
        ("infinite", "not finite"),
        ("none_known", "none of the tweets' words"),
        ("missing", "is missing"),
    ],
)
def test_damaged_vectors_are_one_line(tmp_path, damage, part):
    _write_leaf(tmp_path)
    _write_vectors(tmp_path)
    path = tmp_path / _VECTORS
    lines = path.read_text().splitlines(keepends=True)
    if damage == "cut":
        text = "".join(lines)[:-100]
    elif damage == "other_size":
        text = "".join(" ".join(line.split(" ")[:201]) + "\n" for line in lines)
    elif damage == "word":
        text = "".join(lines).replace("love 0.3 ", "love x ", 1)
    elif damage == "infinite":
        text = "".join(lines).replace("love 0.3 ", "love inf ", 1)
    else:
        text = lines[0]
    path.write_text(text)
    settings = {"embedding_file": str(tmp_path / "none.txt")} if damage == "missing" else {}
    with pytest.raises(DataError) as error:
        _load(tmp_path, **settings)
    text = str(error.value)
    assert "\n" not in text and part in text and "--sent140_embedding=trained" in text


def test_real_tweets(data_dir):
    task = _load(data_dir, embedding="trained", min_examples=6)
    # Accounts with six tweets or more in this tenth have more than 50 in the full set.
    assert len(task.train.client_ids) == 877
    every = _load(data_dir, embedding="trained")
    assert len(every.train.client_ids) == 2875
    assert every.train.sizes.sum() + every.test.sizes.sum() == 16_025
    labels = np.concatenate([every.train.examples(k).y for k in range(2875)])
    np.testing.assert_allclose((labels.sum() + every.central_test.y.sum()) / 16_025, 9717 / 16_025)
