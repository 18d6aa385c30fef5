import lzma
import os

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks.datasets import shakespeare_character
from tasks.formats import downloads, shakespeare_text
from tasks.models import losses, models
from tasks.task import DataError
from tests.tasks.tffs_files import database, field
from tff_suite.hparams import HparamError

_FILE = "shakespeare.sqlite"
_SNIPPETS = {
    "THE_TAMING_OF_THE_SHREW_IRIS": [b"Hark!", b"", b"x" * 79, b"y" * 80, b"a b\nc" * 40],
    "ALL_S_WELL_THAT_ENDS_WELL_CELIA": [b"When?", b"caf\xc3\xa9 {odd} ~ \t\r"],
}
_TEST = {
    "THE_TAMING_OF_THE_SHREW_IRIS": [b"Never."],
    "ALL_S_WELL_THAT_ENDS_WELL_CELIA": [b"Why, with my lord,\nmadam.", b"Good."],
}


def _example(snippet, key=b"snippets"):
    """Returns the bytes of a tf.train.Example, written out by hand from its definition."""
    feature = field(1, field(1, snippet))
    return field(1, field(1, field(1, key) + field(2, feature)))


def _write(path, make=_example, test=_TEST):
    connection = database(path)
    for split, snippets in (("train", _SNIPPETS), ("test", test)):
        for client, said in snippets.items():
            rows = [(split, client, make(s)) for s in said]
            connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
            connection.execute(
                "INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, len(said))
            )
    connection.commit()
    connection.close()


def _tff_examples(snippets):
    """Returns x and y as TFF's own preprocessing makes them."""
    import tensorflow_federated as tff
    from tensorflow_federated.python.simulation.baselines.shakespeare import (
        char_prediction_preprocessing,
    )

    spec = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=1000, shuffle_buffer_size=1)
    preprocess = char_prediction_preprocessing.create_preprocess_fn(spec)
    dataset = tf.data.Dataset.from_tensor_slices({"snippets": snippets})
    ((x, y),) = preprocess(dataset).as_numpy_iterator()
    return x, y


@pytest.mark.parametrize("packed", [False, True])
def test_reads_tffs_file_as_tff_preprocesses_it(tmp_path, packed):
    _write(tmp_path / _FILE)
    if packed:
        whole = lzma.compress((tmp_path / _FILE).read_bytes(), format=lzma.FORMAT_ALONE)
        (tmp_path / _FILE).unlink()
        (tmp_path / f"{_FILE}.lzma").write_bytes(whole)
    task = tasks.load("shakespeare_character", data_dir=str(tmp_path))
    assert task.settings["source"] == "tff" and task.settings["test_fraction"] is None
    assert task.train.client_ids == sorted(_SNIPPETS) == list(task.test.client_ids)
    for data, snippets in ((task.train, _SNIPPETS), (task.test, _TEST)):
        for k, name in enumerate(data.client_ids):
            x, y = data.examples(k)
            assert x.dtype == y.dtype == np.int32 and len(x) == data.sizes[k]
            expected = _tff_examples(snippets[name])
            np.testing.assert_array_equal(x, expected[0])
            np.testing.assert_array_equal(y, expected[1])
    assert task.train.sizes.tolist() == [2, 8]
    assert len(task.central_test.x) == 3
    np.testing.assert_array_equal(task.central_test.x[2], task.test.examples(1).x[0])


def test_special_tokens_are_tffs():
    from tensorflow_federated.python.simulation.baselines.shakespeare import (
        char_prediction_preprocessing as tffs,
    )

    assert shakespeare_character.CHARACTERS.decode() == "".join(tffs.CHAR_VOCAB)
    ours = (0, *(getattr(shakespeare_character, n) for n in ("UNKNOWN", "BEGIN", "END")))
    assert ours == tffs.get_special_tokens()
    assert ours[3] + 1 == 90


def _drawn_weights(model, seed=0, scale=0.05):
    rng = np.random.default_rng(seed)
    return [rng.normal(0, scale, w.shape).astype(np.float32) for w in model.get_weights()]


def test_model_loss_and_accuracy_are_tffs():
    from tensorflow_federated.python.simulation.baselines import keras_metrics
    from tensorflow_federated.python.simulation.baselines.shakespeare import char_prediction_models

    theirs = char_prediction_models.create_recurrent_model(90, 80)
    ours = models.shakespeare_lstm(0)
    weights = _drawn_weights(ours)
    weights[-1][shakespeare_character.CHARACTERS.index(b"x") + 1] = 1  # To be right sometimes.
    ours.set_weights(weights)
    theirs.set_weights(weights)
    x, y = _tff_examples([b"Hark!", b"x" * 120, b"z" * 79])
    expected, logits = theirs(x), ours(x.astype(np.int32))
    is_token = x > 0
    assert 0.3 < is_token.mean() < 0.9
    np.testing.assert_allclose(logits[is_token], expected[is_token], rtol=1e-4, atol=1e-5)

    values, loss_weights = losses.sequence_cross_entropy(y.astype(np.int32), logits)
    np.testing.assert_array_equal(loss_weights, is_token)
    loss = np.sum(values * loss_weights) / np.sum(loss_weights)
    keras_loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, expected)
    np.testing.assert_allclose(loss, keras_loss, rtol=1e-5)

    metric = keras_metrics.MaskedCategoricalAccuracy(masked_tokens=[0])
    metric.update_state(y, expected)
    hits, counts = losses.masked_accuracy(0)(y, logits)
    np.testing.assert_array_equal(counts, y > 0)
    assert 0 < np.sum(hits * counts)
    np.testing.assert_allclose(np.sum(hits * counts) / np.sum(counts), metric.result(), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "num_parameters"),
    [
        ({}, 820_522),
        ({"vocab_size": 80, "next_of_each": False}, 817_872),
        ({"vocab_size": 80, "next_of_each": False, "num_layers": 1}, 292_560),
    ],
)
def test_parameters_are_as_many_as_the_papers(settings, num_parameters):
    model = models.shakespeare_lstm(0, **settings)
    assert model.count_params() == num_parameters
    each = settings.get("next_of_each", True)
    assert model(np.ones((2, 80), np.int32)).shape == ((2, 80, 90) if each else (2, 80))


@pytest.mark.quick_cases("torch")
@pytest.mark.parametrize("init", ["keras", "torch"])
def test_weights_are_a_function_of_the_seed_alone(init):
    tf.random.set_seed(1)
    first = models.shakespeare_lstm(7, init=init).get_weights()
    tf.random.set_seed(2)
    again = models.shakespeare_lstm(7, init=init).get_weights()
    other = models.shakespeare_lstm(8, init=init).get_weights()
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        if len(np.unique(a)) > 2:
            assert np.isclose(a, c).mean() < 0.1


def test_initial_weights_are_as_in_tff_or_pytorch():
    embedding, kernel, recurrent, bias = models.shakespeare_lstm(0, init="keras").get_weights()[:4]
    assert np.abs(embedding).max() <= 0.05
    np.testing.assert_allclose(kernel.std(), (2 / 8) ** 0.5, rtol=0.05)
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(256), atol=1e-4)
    np.testing.assert_array_equal(bias, np.repeat([0, 1, 0, 0], 256))
    embedding, kernel, recurrent, bias = models.shakespeare_lstm(0, init="torch").get_weights()[:4]
    np.testing.assert_allclose(embedding.std(), 1, rtol=0.1)
    for weight in (kernel, recurrent):
        np.testing.assert_allclose(weight.std(), 1 / 16 / 3**0.5, rtol=0.05)
        assert np.abs(weight).max() <= 1 / 16
    # The sum of two biases.
    np.testing.assert_allclose(bias.std(), 1 / 16 * (2 / 3) ** 0.5, rtol=0.05)
    assert 1 / 16 < np.abs(bias).max() <= 2 / 16


def _play_text():
    """Returns 36 plays, each with a role of ten speeches and one that is rarely heard."""
    titles = [p for group in shakespeare_text.TFF_GROUPS.values() for p in group]
    titles.remove("THE COMEDY OF ERRORS")  # Its form is another.
    titles += [f"PLAY {i}" for i in range(36 - len(titles))]
    text = ""
    for title in titles:
        text += f"{title}\n\nby William Shakespeare\n\n"
        for i in range(10):
            text += f"  LEAR. Speech {i} of {title.lower()}\n    goes on here for a second line.\n"
        text += "  FOOL. Ay.\n\nTHE END\n\n"
    return text


def test_reads_the_play_text(tmp_path):
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "t8.shakespeare.txt").write_text(_play_text(), "latin-1")
    task = tasks.load("shakespeare_character", data_dir=str(tmp_path))
    assert task.settings["source"] == "text" and task.settings["test_fraction"] == 0.2
    # Six titles, under each LEAR of all plays of the group; FOOL says too little.
    assert task.train.client_ids == [
        shakespeare_text.Role(title, "LEAR", ()).client_id
        for title in sorted(shakespeare_text.TFF_GROUPS)
    ]
    lear = task.train.client_ids.index("MUCH_ADO_ABOUT_NOTHING_LEAR")
    rest = "goes on here for a second line.\n"
    firsts = [f"Speech {i} of the tragedy of othello, moor of venice" for i in range(10)]
    # Cut after each speech's first line; the last two of eleven are the test split.
    examples = [firsts[0], *(rest + first for first in firsts[1:]), rest]
    for data, said in ((task.train, examples[:9]), (task.test, examples[9:])):
        expected = _tff_examples([text.encode() for text in said])
        x, y = data.examples(lear)
        np.testing.assert_array_equal(x, expected[0])
        np.testing.assert_array_equal(y, expected[1])
    everyone = tasks.load("shakespeare_character", data_dir=str(tmp_path), roles="leaf")
    assert len(everyone.train.client_ids) == 36


def test_windows_are_leafs(tmp_path):
    (tmp_path / "t8.shakespeare.txt").write_text(_play_text(), "latin-1")
    settings = {"roles": "leaf", "examples": "windows", "test_fraction": 0.25}
    task = tasks.load("shakespeare_character", data_dir=str(tmp_path), **settings)
    letters = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
    title = "PLAY 0"
    lear = task.train.client_ids.index("PLAY_0_LEAR")
    lines = [
        (f"Speech {i} of {title.lower()}", "goes on here for a second line.") for i in range(10)
    ]
    codes = [letters.index(c) for line in lines for c in " ".join(line) + " "]
    cut = int(0.75 * len(codes))
    for data, part in ((task.train, codes[:cut]), (task.test, codes[cut:])):
        x, y = data.examples(lear)
        assert x.dtype == y.dtype == np.int32 and len(x) == len(part) - 80
        np.testing.assert_array_equal(x, [part[i : i + 80] for i in range(len(x))])
        np.testing.assert_array_equal(y, part[80:])


def test_roles_are_drawn_and_held_out(tmp_path):
    (tmp_path / "t8.shakespeare.txt").write_text(_play_text(), "latin-1")

    def load(**settings):
        settings = {"roles": "leaf", "examples": "windows", **settings}
        return tasks.load("shakespeare_character", data_dir=str(tmp_path), **settings)

    full = load()
    task = load(num_clients=5, num_heldout_clients=3, partition_seed=1)
    assert len(task.train.client_ids) == 5
    assert set(task.train.client_ids) < set(full.train.client_ids)
    again = load(num_clients=5, num_heldout_clients=3, partition_seed=1)
    other = load(num_clients=5, num_heldout_clients=3, partition_seed=2)
    assert task.train.client_ids == again.train.client_ids != other.train.client_ids
    of_client = full.train.sizes + full.test.sizes
    assert 3 * of_client.min() <= len(task.central_test.y) <= 3 * of_client.max()
    smallest = int(np.sort(of_client)[-4])
    large = load(min_examples=smallest)
    assert len(large.train.client_ids) >= 4
    assert (large.train.sizes + large.test.sizes).min() >= smallest
    with pytest.raises(HparamError, match="num_clients=36"):
        load(num_clients=36, num_heldout_clients=3)


def test_settings_that_do_not_fit_tffs_file_are_refused(tmp_path):
    _write(tmp_path / _FILE)
    load = lambda **s: tasks.load("shakespeare_character", data_dir=str(tmp_path), **s)  # noqa: E731
    with pytest.raises(HparamError, match="source=text"):
        load(source="tff", examples="windows")
    with pytest.raises(HparamError, match="test_fraction"):
        load(test_fraction=0.5)
    with pytest.raises(DataError, match="play text"):
        load(roles="leaf")


@pytest.mark.parametrize("damage", ["missing", "cut", "other_example", "clients"])
def test_missing_and_damaged_files_are_one_line(tmp_path, damage):
    make = (lambda s: _example(s, b"pixels")) if damage == "other_example" else _example
    if damage != "missing":
        _write(tmp_path / _FILE, make, {"A": [b"x"]} if damage == "clients" else _TEST)
    if damage == "cut":
        os.truncate(tmp_path / _FILE, 20_000)
    with pytest.raises(DataError) as error:
        tasks.load("shakespeare_character", data_dir=str(tmp_path))
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)
    assert "https://" in str(error.value) and "--data_dir" in str(error.value)


def test_a_failed_download_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(downloads, "TFFS", "http://127.0.0.1:1/")
    with pytest.raises(DataError, match=r"shakespeare.sqlite.lzma cannot be downloaded.*refused"):
        tasks.load("shakespeare_character")


def test_real_text_gives_the_documented_clients(data_dir):
    task = tasks.load("shakespeare_character", data_dir=str(data_dir), source="text")
    assert len(task.train.client_ids) == 707
    assert (task.test.sizes > 0).all() and task.test.client_ids is task.train.client_ids
    x, y = task.train.examples(0)
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])


@pytest.mark.quick_cases("settings[02]-*")
@pytest.mark.parametrize(
    ("settings", "num_clients", "num_parameters"),
    [
        ({"num_clients": 31}, 31, 817_872),  # AdaFed's first setup.
        ({"num_clients": 20, "min_examples": 10_000, "num_layers": 1}, 20, 292_560),  # Its second.
        (  # FedCAda, cross-device.
            {"num_clients": 100, "num_heldout_clients": 20, "num_layers": 1, "test_fraction": 0.25},
            100,
            292_560,
        ),
    ],
)
def test_the_papers_setups_can_be_made_of_the_play_text(
    data_dir, settings, num_clients, num_parameters
):
    settings = {"roles": "leaf", "examples": "windows", "init": "torch", **settings}
    task = tasks.load("shakespeare_character", data_dir=str(data_dir), seed=1, **settings)
    sizes = task.train.sizes + task.test.sizes
    assert len(sizes) == num_clients and sizes.min() >= settings.get("min_examples", 1)
    assert task.keras_model_fn(0).count_params() == num_parameters
    x, y = task.train.examples(0)
    assert x.shape == (task.train.sizes[0], 80) and y.shape == (len(x),)
