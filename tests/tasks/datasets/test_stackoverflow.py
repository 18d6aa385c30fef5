import fcntl
import hashlib
import io
import json
import lzma
import os
import sqlite3
import tarfile

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks import prepare
from tasks.datasets import stackoverflow
from tasks.formats import downloads, text
from tasks.models import losses, models
from tasks.task import DataError
from tests.tasks.server import Server
from tests.tasks.tffs_files import database, field, varint

_FILE = "stackoverflow.sqlite"
_WORDS = ["the", ".", "a", "is", "how", "c#", "simple-ish", "to", "you're", "sql"]
_TAGS = {"sql": 5, "c#": 40, "vb . net": 7, "css": 7, "git": 1, "rounded-corners": 6, "html": 2}
_POSTS = {
    "train": {
        "00000002": [
            ("the sql is a simple-ish one .", "how to sql", "sql|css"),
            ("", "unknown words only", "unknown"),
            ("the  is", "", "vb . net|git|rounded-corners"),
        ],
        "00000010": [(" ".join(["a"] * n), "is a  the\ta", "c#") for n in (18, 19, 20, 21, 40)],
    },
    "test": {
        "00000002": [("you're to .", "a", "html")],
        "00000033": [(f"a{'n' * i} is", "the", "git") for i in range(6)],
    },
    "heldout": {"00000040": [("not to be read", "", "sql")]},
}


def _example(post, keys=("tokens", "title", "tags")):
    """Returns the bytes of a tf.train.Example, written out by hand from its definition."""
    features = {
        key.encode(): field(1, field(1, value.encode()))
        for key, value in zip(keys, post, strict=True)
    }
    features[b"creation_date"] = field(1, field(1, b"2010-01-08 09:34:05 UTC"))
    features[b"type"] = field(1, field(1, b"answer"))
    features[b"score"] = field(3, field(1, varint(172)))
    entries = [field(1, field(1, key) + field(2, f)) for key, f in sorted(features.items())]
    return field(1, b"".join(entries))


def _write(folder, make=_example, packed=True):
    """Writes TFF's three files."""
    connection = database(folder / _FILE)
    for split, users in _POSTS.items():
        for user, posts in users.items():
            rows = [(split, user, make(post)) for post in posts]
            connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
            row = (user, split, len(posts))
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", row)
    connection.commit()
    connection.close()
    words = "".join(f"{w} {1000 - i}\n" for i, w in enumerate([*_WORDS, "more", "words"]))
    files = {
        "stackoverflow.word_count": words.encode(),
        "stackoverflow.tag_count": json.dumps(_TAGS).encode(),
    }
    for name, content in files.items():
        if not packed:
            (folder / name).write_bytes(content)
            continue
        with tarfile.open(folder / f"{name}.tar.bz2", "w:bz2") as archive:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _dataset(posts):
    columns = zip(*posts, strict=True)
    return tf.data.Dataset.from_tensor_slices(
        dict(zip(("tokens", "title", "tags"), map(list, columns), strict=True))
    )


def _one_batch(preprocess, posts):
    ((x, y),) = preprocess(_dataset(posts)).as_numpy_iterator()
    return x, y


def _tff_spec():
    import tensorflow_federated as tff

    return tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=100, shuffle_buffer_size=1)


def _tff_words(posts):
    from tensorflow_federated.python.simulation.baselines.stackoverflow import (
        word_prediction_preprocessing as tffs,
    )

    return _one_batch(tffs.create_preprocess_fn(_tff_spec(), _WORDS), posts)


def _tff_tags(posts, num_tags):
    from tensorflow_federated.python.simulation.baselines.stackoverflow import (
        tag_prediction_preprocessing as tffs,
    )

    # As TFF sorts the tags it has read.
    tags = sorted(_TAGS.items(), key=lambda item: item[1], reverse=True)[:num_tags]
    return _one_batch(tffs.create_preprocess_fn(_tff_spec(), _WORDS, [t for t, _ in tags]), posts)


def _load(kind, folder, **settings):
    settings = {"vocab_size": 10, **({"num_tags": 5} if kind == "tag" else {}), **settings}
    return tasks.load(f"stackoverflow_{kind}", data_dir=str(folder), **settings)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["word", "tag"])
def test_reads_tffs_file_as_tff_preprocesses_it(tmp_path, kind, packed):
    _write(tmp_path, packed=packed)
    task = _load(kind, tmp_path)
    assert task.train.client_ids == ["00000002", "00000010"]
    assert task.train.sizes.tolist() == [3, 5] and task.test is None
    expected_of = _tff_words if kind == "word" else lambda posts: _tff_tags(posts, 5)
    for k, posts in enumerate(_POSTS["train"].values()):
        x, y = task.train.examples(k)
        expected = expected_of(posts)
        assert isinstance(x, np.ndarray)
        assert x.dtype == (np.int32 if kind == "word" else np.float32)
        assert y.dtype == (np.int32 if kind == "word" else np.float32)
        np.testing.assert_array_equal(x, expected[0])
        np.testing.assert_array_equal(y, expected[1])
        assert x.any() and y.any()


@pytest.mark.parametrize("kind", ["word", "tag"])
def test_the_central_test_is_drawn_from_test_users(tmp_path, kind):
    _write(tmp_path)
    users = list(_POSTS["test"].values())
    expected_of = _tff_words if kind == "word" else lambda posts: _tff_tags(posts, 5)
    expected = {first: expected_of(users[first] + users[1 - first]) for first in (0, 1)}
    orders = set()
    for seed in range(6):
        x, y = _load(kind, tmp_path, partition_seed=seed).central_test
        assert len(x) == len(y) == 7
        matches = {
            first
            for first, (tff_x, tff_y) in expected.items()
            if np.array_equal(x, tff_x) and np.array_equal(y, tff_y)
        }
        assert len(matches) == 1
        orders |= matches
        few = _load(kind, tmp_path, partition_seed=seed, num_test_examples=4).central_test
        assert len(few.x) == len(few.y) == 4
        np.testing.assert_array_equal(few.x, x[:4])
        np.testing.assert_array_equal(few.y, y[:4])
    assert orders == {0, 1}


def test_users_are_capped_and_read_only_when_asked_for(tmp_path):
    _write(tmp_path)
    task = _load("word", tmp_path, max_examples=2)
    assert task.train.sizes.tolist() == [2, 2]
    np.testing.assert_array_equal(
        task.train.examples(1).x, _tff_words(_POSTS["train"]["00000010"][:2])[0]
    )
    connection = sqlite3.connect(tmp_path / _FILE)
    connection.execute("DELETE FROM examples WHERE client_id = '00000010'")
    connection.commit()
    connection.close()
    assert len(task.train.examples(0).y) == 2
    with pytest.raises(DataError, match="00000010"):
        task.train.examples(1)


def _drawn_weights(model):
    rng = np.random.default_rng(0)
    return [rng.normal(0, 0.05, w.shape).astype(np.float32) for w in model.get_weights()]


def test_word_model_loss_and_metrics_are_tffs():
    from tensorflow_federated.python.simulation.baselines import keras_metrics
    from tensorflow_federated.python.simulation.baselines.stackoverflow import (
        word_prediction_models,
    )

    theirs = word_prediction_models.create_recurrent_model(14, lstm_size=67)
    ours = models.word_lstm(0, vocab_size=14, units=67)
    weights = _drawn_weights(ours)
    weights[-1][[1, 11, 13]] = 0.3  # To be right sometimes, also in what metrics leave out.
    ours.set_weights(weights)
    theirs.set_weights(weights)
    posts = [post for user in _POSTS["train"].values() for post in user]
    x, y = _tff_words(posts)
    expected, logits = theirs(x), ours(x.astype(np.int32))
    is_token = x > 0
    np.testing.assert_allclose(logits[is_token], expected[is_token], rtol=1e-4, atol=1e-6)

    values, loss_weights = losses.sequence_cross_entropy(y.astype(np.int32), logits)
    loss = np.sum(values * loss_weights) / np.sum(loss_weights)
    keras_loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, expected)
    np.testing.assert_allclose(loss, keras_loss, rtol=1e-5)

    left_out = ([0], [0, 11], [0, 11, 13])
    # Every metric must tell the tokens that it leaves out: each is the prediction somewhere.
    predicted = np.zeros((*y.shape, 14), np.float32)
    predicted[..., [1, 11, 13]] = np.random.default_rng(0).random((*y.shape, 3))
    measured = stackoverflow.word_measures(10)["metrics"]
    results = []
    for fn, tokens in zip(measured.values(), left_out, strict=True):
        metric = keras_metrics.MaskedCategoricalAccuracy(masked_tokens=tokens)
        metric.update_state(y, predicted)
        hits, counts = fn(y, predicted)
        results.append(np.sum(hits * counts) / np.sum(counts))
        np.testing.assert_allclose(results[-1], metric.result(), rtol=1e-6)
    assert len(set(results)) == 3 and min(results) > 0


def test_tag_model_loss_and_metrics_are_tffs():
    theirs = tf.keras.Sequential([tf.keras.layers.Dense(8, "sigmoid", input_shape=(30,))])
    ours = models.tag_regression(0, num_words=30, num_tags=8)
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, 2, w.shape).astype(np.float32) for w in ours.get_weights()]
    ours.set_weights(weights)
    theirs.set_weights(weights)
    x = rng.dirichlet(np.ones(30), 40).astype(np.float32)
    y = (rng.random((40, 8)) < 0.3).astype(np.float32)
    y[0] = 0
    logits, probabilities = ours(x), theirs(x)
    np.testing.assert_allclose(tf.sigmoid(logits), probabilities, rtol=1e-5, atol=1e-7)
    loss = tf.keras.losses.BinaryCrossentropy(reduction=tf.keras.losses.Reduction.SUM)
    np.testing.assert_allclose(
        np.sum(losses.binary_cross_entropy(y, logits)), loss(y, probabilities), rtol=1e-5
    )
    measures = stackoverflow.tag_measures()
    assert measures["loss"] is losses.binary_cross_entropy and measures["loss_reduction"] == "sum"
    keras = {
        "precision": tf.keras.metrics.Precision(),
        "recall_at_5": tf.keras.metrics.Recall(top_k=5),
    }
    assert keras.keys() == measures["metrics"].keys()
    for name, fn in measures["metrics"].items():
        keras[name].update_state(y, probabilities)
        values, counts = fn(y, logits)
        assert values.shape == counts.shape == (40, 8)
        ratio = np.sum(values * counts) / np.sum(counts)
        assert 0.1 < ratio < 0.9
        np.testing.assert_allclose(ratio, keras[name].result(), rtol=1e-6)


def test_losses_and_metrics_vectorise_over_clients():
    rng = np.random.default_rng(0)
    tokens = tf.constant(rng.integers(0, 6, (3, 4, 5)), tf.int32)
    labels = tf.constant(rng.integers(0, 2, (3, 4, 6)), tf.float32)
    logits = tf.constant(rng.normal(size=(3, 4, 5, 6)), tf.float32)
    cases = [
        (losses.sequence_cross_entropy, tokens, logits),
        (losses.masked_accuracy(0, 3), tokens, logits),
        (losses.binary_cross_entropy, labels, logits[:, :, 0]),
        (losses.precision, labels, logits[:, :, 0]),
        (losses.recall_at(5), labels, logits[:, :, 0]),
    ]
    for fn, y, z in cases:
        together = tf.vectorized_map(
            lambda pair, fn=fn: fn(*pair), (y, z), fallback_to_while_loop=False
        )
        for k in range(3):
            for a, b in zip(
                tf.nest.flatten(together), tf.nest.flatten(fn(y[k], z[k])), strict=True
            ):
                np.testing.assert_allclose(a[k], b, rtol=1e-6)


def test_parameters_are_as_many_as_the_papers():
    assert models.word_lstm(0).count_params() == 4_050_748
    assert models.tag_regression(0).count_params() == 5_000_500


def test_the_word_model_of_the_papers_size_is_tffs():
    from tensorflow_federated.python.simulation.baselines.stackoverflow import (
        word_prediction_models,
    )

    theirs = word_prediction_models.create_recurrent_model(10_004)
    ours = models.word_lstm(0)
    assert theirs.count_params() == 4_050_748
    weights = _drawn_weights(ours)
    ours.set_weights(weights)
    theirs.set_weights(weights)
    x = np.random.default_rng(0).integers(1, 10_004, (2, 20)).astype(np.int32)
    x[0, 7:] = 0
    expected = theirs(x).numpy()
    assert expected[x > 0].std() > 0.01
    np.testing.assert_allclose(ours(x)[x > 0], expected[x > 0], rtol=1e-4, atol=1e-5)


def test_synthetic_data_have_the_true_form():
    word = tasks.load("stackoverflow_word", use_synthetic_data=True)
    x, y = word.train.examples(3)
    assert x.shape[1:] == y.shape[1:] == (20,) and x.dtype == y.dtype == np.int32
    assert set(x[:, 0]) == {10_002} and y.max() == 10_003 and x.min() == 0
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    tag = tasks.load("stackoverflow_tag", use_synthetic_data=True)
    x, y = tag.train.examples(3)
    assert x.shape[1:] == (10_000,) and y.shape[1:] == (500,) and x.dtype == np.float32
    np.testing.assert_allclose(x.sum(axis=1), 1, rtol=1e-5)
    assert set(np.unique(y)) == {0, 1}
    assert tag.loss_reduction == "sum" and word.loss_reduction is None


@pytest.mark.parametrize("kind", ["word", "tag"])
@pytest.mark.parametrize(
    ("damage", "part"),
    [
        ("no_database", _FILE),
        ("no_words", "stackoverflow.word_count"),
        ("cut_words", "stackoverflow.word_count.tar.bz2"),
        ("cut_database", "cut off"),
        ("other_examples", "tokens, title and tags"),
        ("few_words", "vocab_size=13"),
    ],
)
def test_missing_and_damaged_files_are_one_line(tmp_path, kind, damage, part):
    keys = (
        ("pixels", "title", "tags") if damage == "other_examples" else ("tokens", "title", "tags")
    )
    _write(tmp_path, lambda post: _example(post, keys))
    words = tmp_path / "stackoverflow.word_count.tar.bz2"
    if damage == "no_database":
        (tmp_path / _FILE).unlink()
    elif damage == "no_words":
        words.unlink()
    elif damage == "cut_words":
        words.write_bytes(words.read_bytes()[:-30])
    elif damage == "cut_database":
        os.truncate(tmp_path / _FILE, 20_000)
    with pytest.raises(DataError) as error:
        _load(kind, tmp_path, vocab_size=13 if damage == "few_words" else 10)
    message = str(error.value)
    assert "\n" not in message and part in message
    assert "https://" in message and "--data_dir" in message


@pytest.mark.parametrize(
    ("name", "content"),
    [("tag_count", b"[1]"), ("tag_count", b"{"), ("word_count", b"a b c\n" * 20)],
)
def test_other_counts_are_refused(tmp_path, name, content):
    _write(tmp_path, packed=False)
    (tmp_path / f"stackoverflow.{name}").write_bytes(content)
    with pytest.raises(DataError, match=f"stackoverflow.{name} is not") as error:
        _load("tag", tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", ["database", "words"])
def test_a_failed_download_is_one_line(tmp_path, monkeypatch, missing):
    (tmp_path / ".keras" / "datasets").mkdir(parents=True)
    if missing == "database":
        _write(tmp_path / ".keras" / "datasets", packed=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(downloads, "TFFS", "http://127.0.0.1:1/")
    with pytest.raises(DataError, match=r"cannot be downloaded.*refused") as error:
        tasks.load("stackoverflow_word", vocab_size=10)
    assert "\n" not in str(error.value)


def test_counts_are_downloaded_into_kerass_cache_and_checked(tmp_path, monkeypatch):
    import tensorflow_federated as tff

    (tmp_path / "published").mkdir()
    _write(tmp_path / "published")
    (tmp_path / ".tff").mkdir()
    (tmp_path / "published" / _FILE).rename(tmp_path / ".tff" / _FILE)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ["stackoverflow.word_count", "stackoverflow.tag_count"]
    with Server() as server:
        monkeypatch.setattr(downloads, "TFFS", server.url)
        for name in names:
            path = tmp_path / "published" / f"{name}.tar.bz2"
            server.files[path.name] = path.read_bytes()
        with pytest.raises(DataError, match="sha256 1dc00256d6"):
            _load_cached()
        known = {
            name: hashlib.sha256(server.files[f"{name}.tar.bz2"]).hexdigest() for name in names
        }
        monkeypatch.setattr(stackoverflow, "_SHA256", known)
        assert _load_cached().train.examples(0).y.shape == (3, 3)
        assert _load_cached() and len(server.asked) == 3
    # TFF's own digests, and TFF takes what is there for its own download.
    asked = []

    def get_file(fname, origin, file_hash, **_):
        asked.append((origin.rsplit("/", 1)[1], file_hash))
        raise ConnectionRefusedError

    monkeypatch.undo()
    monkeypatch.setattr(tf.keras.utils, "get_file", get_file)
    for load in ("load_word_counts", "load_tag_counts"):
        with pytest.raises(ConnectionRefusedError):
            getattr(tff.simulation.datasets.stackoverflow, load)()
    assert dict(asked) == {f"{name}.tar.bz2": h for name, h in stackoverflow._SHA256.items()}


def _load_cached():
    return tasks.load("stackoverflow_tag", vocab_size=10, num_tags=3)


def test_reads_tffs_and_kerass_caches(tmp_path, monkeypatch):
    (tmp_path / ".keras" / "datasets").mkdir(parents=True)
    (tmp_path / ".tff").mkdir()
    _write(tmp_path / ".keras" / "datasets", packed=False)
    (tmp_path / ".keras" / "datasets" / _FILE).rename(tmp_path / ".tff" / _FILE)
    monkeypatch.setenv("HOME", str(tmp_path))
    task = tasks.load("stackoverflow_tag", vocab_size=10, num_tags=3)
    assert task.train.examples(0).y.shape == (3, 3)


def test_bags_of_words_stand_for_an_array():
    bags = text.BagsOfWords([["a", "b", "a", "z"], [], ["c"]], text.places("abc"))
    dense = np.array([[2 / 3, 1 / 3, 0], [0, 0, 0], [0, 0, 1]], np.float32)
    assert len(bags) == 3 and bags.shape == (3, 3) and bags.dtype == np.float32
    np.testing.assert_array_equal(bags, dense)
    np.testing.assert_array_equal(bags[1:], dense[1:])
    np.testing.assert_array_equal(bags[np.array([2, 0])], dense[[2, 0]])
    joined = text.BagsOfWords.joined([bags, bags], 4)
    np.testing.assert_array_equal(joined, np.concatenate([dense, dense])[:4])


def _packed(folder):
    """Packs the database as TFF ships it."""
    content = (folder / _FILE).read_bytes()
    (folder / f"{_FILE}.lzma").write_bytes(lzma.compress(content, format=lzma.FORMAT_ALONE))
    (folder / _FILE).unlink()
    return content


@pytest.mark.parametrize("elsewhere", [False, True])
def test_preparing_unpacks_and_counts(tmp_path, elsewhere, capfd):
    source = tmp_path / "source"
    source.mkdir()
    _write(source)
    whole = _packed(source)
    target = tmp_path / "target" if elsewhere else source
    arguments = ["--task=stackoverflow_word", f"--source={source}", f"--data_dir={target}"]
    assert prepare.main(arguments) == 0
    out, err = capfd.readouterr()
    assert "train clients: 2 (published: 342,477)" in out and "test examples: 7" in out
    assert "Unpacking" in err
    assert (target / _FILE).read_bytes() == whole and not list(tmp_path.rglob("*.part"))
    assert _load("tag", target).train.sizes.tolist() == [3, 5]
    assert prepare.main(arguments) == 0
    assert "whole and unchanged" in capfd.readouterr().out


def test_preparing_counts_every_example(tmp_path, capfd):
    _write(tmp_path)
    connection = sqlite3.connect(tmp_path / _FILE)
    connection.execute("DELETE FROM examples WHERE rowid = 2")
    connection.commit()
    connection.close()
    assert prepare.main(["--task=stackoverflow_tag", f"--source={tmp_path}"]) == 1
    warning, error = capfd.readouterr().err.splitlines()
    assert "has 2 training clients" in warning
    assert "has 7 examples" in error and "announces 8" in error


def test_a_kill_while_unpacking_leaves_nothing_that_is_taken_for_whole(tmp_path):
    _write(tmp_path)
    whole = _packed(tmp_path)
    # What a kill leaves.
    (tmp_path / f"{_FILE}.part").write_bytes(whole[:9000] + b"longer than the whole" * 10_000)
    assert prepare.main(["--task=stackoverflow_tag", f"--source={tmp_path}"]) == 0
    assert (tmp_path / _FILE).read_bytes() == whole


def test_two_at_once_do_not_unpack_the_same_file(tmp_path):
    _write(tmp_path)
    _packed(tmp_path)
    with open(tmp_path / f"{_FILE}.part", "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process"):
            _load("word", tmp_path)
    assert _load("word", tmp_path).train.sizes.tolist() == [3, 5]
