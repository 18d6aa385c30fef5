import json

import numpy as np
import pytest

import tasks
from tasks.models import models
from tasks.task import DataError
from tests.tasks.datasets import test_emnist_character as tffs
from tff_suite.hparams import HparamError

_SIZES = {"f0000_14": 7, "f0001_41": 12, "f0099_10": 5, "f0100_08": 20}


def _image(writer, example):
    pixels = np.full(784, 255)
    pixels[:3] = [writer, example, 128]
    return pixels


def _label(writer, example):
    return (7 * writer + example) % 62


def _content(examples_of, **changed):
    """Returns a file as LEAF writes it: pixels divided by 255, as a list of Python floats."""
    content = {
        "users": list(examples_of),
        "num_samples": [len(examples) for examples in examples_of.values()],
        "user_data": {
            user: {
                "x": [(_image(*e) / 255).tolist() for e in examples],
                "y": [_label(*e) for e in examples],
            }
            for user, examples in examples_of.items()
        },
    }
    return {**content, **changed}


def _write_all(folder):
    """Writes `all_data` in two files, of three writers and one."""
    (folder / "all_data").mkdir(parents=True)
    of = {user: [(w, e) for e in range(n)] for w, (user, n) in enumerate(_SIZES.items())}
    users = list(of)
    for i, part in enumerate((users[:3], users[3:])):
        content = _content({user: of[user] for user in part})
        (folder / "all_data" / f"all_data_{i}.json").write_text(json.dumps(content))


def _write_split(folder, overlap=False):
    """Writes `train` and `test` as LEAF's split by sample does, beside `all_data`."""
    _write_all(folder)
    for part in ("train", "test"):
        (folder / part).mkdir()
        of = {
            user: [(w, e) for e in range(n) if (e % 5 == 0) == (part == "test")]
            for w, (user, n) in enumerate(_SIZES.items())
        }
        name = f"all_data_0_niid_0_keep_0_{part}_8.json"
        (folder / part / name).write_text(json.dumps(_content(of)))
        if overlap:
            more = {"f0001_41": of["f0001_41"]}
            other = f"all_data_0_niid_05_keep_0_{part}_9.json"
            (folder / part / other).write_text(json.dumps(_content(more)))


def _seen(*datas):
    """Returns the (writer, example) of each client's examples, by client."""
    seen = {}
    for data in datas:
        for k, client in enumerate(data.client_ids):
            x, y = data.examples(k)
            assert x.dtype == np.float32 and y.dtype == np.int32 and len(x) == data.sizes[k]
            for image, label in zip(x, y, strict=True):
                writer, example = np.rint(image.reshape(-1)[:2] * 255).astype(int)
                expected = _image(writer, example).reshape(28, 28, 1) / np.float32(255)
                np.testing.assert_allclose(image, expected, rtol=0, atol=1e-7)
                assert label == _label(writer, example)
                seen.setdefault(client, []).append((writer, example))
    return seen


def _load(folder, **settings):
    return tasks.load("femnist", data_dir=str(folder), **settings)


def _prepared(folder):
    """Prepares LEAF's files into a folder of its own, which has nothing else."""
    target = folder / "ready"
    tasks.get("femnist").prepare_fn()(str(folder), str(target))
    return target


@pytest.mark.parametrize("prepare", [False, True])
@pytest.mark.parametrize("subfolder", [".", "data", "femnist", "femnist/data"])
def test_every_example_of_leafs_writers_is_in_one_split(tmp_path, subfolder, prepare):
    _write_all(tmp_path / subfolder)
    task = _load(_prepared(tmp_path) if prepare else tmp_path)
    assert task.settings["source"] == "leaf"
    assert task.train.client_ids == task.test.client_ids == sorted(_SIZES)
    assert task.train.sizes.tolist() == [5, 9, 4, 16] and task.test.sizes.tolist() == [2, 3, 1, 4]
    seen = _seen(task.train, task.test)
    for writer, (user, n) in enumerate(_SIZES.items()):
        assert sorted(seen[user]) == [(writer, e) for e in range(n)]
    np.testing.assert_array_equal(
        task.central_test.x, np.concatenate([task.test.examples(k).x for k in range(4)])
    )


@pytest.mark.parametrize("prepare", [False, True])
def test_leafs_own_split_is_kept_or_drawn_anew(tmp_path, prepare):
    _write_split(tmp_path)
    folder = _prepared(tmp_path) if prepare else tmp_path
    kept = _load(folder, split="source")
    assert kept.settings["test_fraction"] is None
    for part, data in (("train", kept.train), ("test", kept.test)):
        for user, examples in _seen(data).items():
            assert all((e % 5 == 0) == (part == "test") for _, e in examples)
            assert len(examples) == sum(
                (e % 5 == 0) == (part == "test") for e in range(_SIZES[user])
            )
    anew = _load(folder, test_fraction=0.5)
    assert anew.test.sizes.tolist() == [4, 6, 3, 10]
    both = _seen(anew.train, anew.test)
    assert {user: len(set(e)) for user, e in both.items()} == _SIZES


def test_splits_follow_the_seed(tmp_path):
    _write_all(tmp_path)
    first, again, other = (_seen(_load(tmp_path, partition_seed=s).train) for s in (1, 1, 2))
    assert first == again and first != other


def test_some_writers_are_drawn(tmp_path):
    _write_all(tmp_path)
    drawn = {tuple(_load(tmp_path, num_clients=2, seed=s).train.client_ids) for s in range(12)}
    assert len(drawn) > 2 and all(len(set(ids)) == 2 and list(ids) == sorted(ids) for ids in drawn)
    with pytest.raises(HparamError, match=r"num_clients=5.*4 writers"):
        _load(tmp_path, num_clients=5)


def test_tffs_file_is_another_source(tmp_path):
    tffs._write(tmp_path / tffs._NAME)
    task = _load(tmp_path, test_fraction=0.5)
    assert task.settings["source"] == "tff"
    assert task.train.client_ids == sorted(tffs._IDS)
    # TFF's files of 3, 4 and 5 training examples have one test example each.
    assert (task.train.sizes + task.test.sizes).tolist() == [4, 5, 6]
    theirs = tasks.load("emnist_character", data_dir=str(tmp_path))
    kept = _load(tmp_path, split="source")
    for k in range(3):
        np.testing.assert_array_equal(kept.train.examples(k).x, theirs.train.examples(k).x)
        np.testing.assert_array_equal(kept.test.examples(k).y, theirs.test.examples(k).y)
    with pytest.raises(DataError, match="no LEAF files"):
        _load(tmp_path, source="leaf")


def test_skewed_clients_have_five_letters_each():
    task = tasks.load("femnist", partition="skewed", use_synthetic_data=True, seed=4)
    assert len(task.train.client_ids) == 100
    of_class = np.zeros(10, int)
    for k in range(100):
        labels = np.concatenate([task.train.examples(k).y, task.test.examples(k).y])
        assert len(set(labels)) == 5
        of_class += np.bincount(labels, minlength=10)
    whole = tasks.load("femnist", use_synthetic_data=True)
    labels = np.concatenate(
        [d.examples(k).y for d in (whole.train, whole.test) for k in range(len(d.client_ids))]
    )
    # Every a to j, and nothing else.
    np.testing.assert_array_equal(of_class, np.bincount(labels, minlength=62)[36:46])
    assert task.keras_model_fn(0).output_shape == (None, 10)
    with pytest.raises(HparamError, match="split=local"):
        tasks.load("femnist", partition="skewed", split="source", use_synthetic_data=True)
    with pytest.raises(HparamError, match="partition=skewed"):
        tasks.load("femnist", classes_per_client=3, use_synthetic_data=True)


@pytest.mark.parametrize(
    ("settings", "num_parameters"),
    [
        ({}, 108_478),
        ({"model": "cnn"}, 222_078),
        ({"model": "fedopt_cnn"}, 1_206_590),
        ({"model": "cnn", "partition": "skewed"}, 215_370),
    ],
)
def test_models_have_the_papers_parameters(settings, num_parameters):
    task = tasks.load("femnist", use_synthetic_data=True, **settings)
    assert task.keras_model_fn(0).count_params() == num_parameters


def test_the_cnn_is_numpys():
    model = models.femnist_cnn(0)
    weights = model.get_weights()
    x = np.random.default_rng(0).random((2, 28, 28, 1), np.float32)
    hidden = x
    for kernel, bias in (weights[:2], weights[2:4]):
        padded = np.pad(hidden, [(0, 0), (2, 2), (2, 2), (0, 0)])
        views = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(1, 2))
        hidden = np.maximum(np.einsum("bhwcij,ijco->bhwo", views, kernel) + bias, 0)
        n, h, w, c = hidden.shape
        hidden = hidden.reshape(n, h // 2, 2, w // 2, 2, c).max(axis=(2, 4))
    hidden = np.maximum(hidden.reshape(2, -1) @ weights[4] + weights[5], 0)
    np.testing.assert_allclose(model(x), hidden @ weights[6] + weights[7], rtol=1e-4, atol=1e-5)
    assert [layer.rate for layer in model.layers if hasattr(layer, "rate")] == [0.25, 0.5]


def _damaged(damage):
    of = {"f0000_14": [(0, e) for e in range(3)]}
    content = _content(of)
    data = content["user_data"]["f0000_14"]
    if damage == "announced":
        content["num_samples"] = [4]
    elif damage == "no_user":
        content["users"] = ["f0000_15"]
    elif damage == "two_users":
        content["user_data"]["f0000_15"] = data
    elif damage == "no_data":
        del content["user_data"]
    elif damage == "list":
        content = [content]
    elif damage == "short_image":
        data["x"][1] = data["x"][1][:-1]
    elif damage == "bytes":
        data["x"][1] = [200 for _ in data["x"][1]]
    elif damage == "steps":
        data["x"][1] = [0.12345 for _ in data["x"][1]]
    elif damage == "label":
        data["y"][1] = 62
    elif damage == "float_label":
        data["y"][1] = 0.5
    text = json.dumps(content)
    return text[: len(text) // 2] if damage == "cut" else "" if damage == "empty" else text


@pytest.mark.parametrize("how", ["load", "prepare"])
@pytest.mark.parametrize(
    "damage",
    "announced no_user two_users no_data list short_image bytes steps label float_label cut "
    "empty".split(),
)
def test_damaged_files_are_one_line(tmp_path, damage, how):
    (tmp_path / "all_data").mkdir()
    path = tmp_path / "all_data" / "all_data_0.json"
    path.write_text(_damaged(damage))
    with pytest.raises(DataError) as error:
        _load(tmp_path) if how == "load" else _prepared(tmp_path)
    text = str(error.value)
    assert "\n" not in text and len(text) < 600
    assert str(path) in text and "--data_dir" in text and "https://" in text
    assert not (tmp_path / "ready" / "femnist.prepared").exists()


@pytest.mark.parametrize("how", ["load", "prepare"])
def test_files_of_two_samplings_in_one_folder_are_refused(tmp_path, how):
    _write_split(tmp_path, overlap=True)
    with pytest.raises(DataError, match=r"f0001_41.*was already read"):
        _load(tmp_path) if how == "load" else _prepared(tmp_path)


@pytest.mark.parametrize("name", ["all_data_1.json.gz", "all_data_1.JSON"])
def test_a_file_that_would_be_left_out_is_refused(tmp_path, name):
    _write_all(tmp_path)
    (tmp_path / "all_data" / "all_data_1.json").rename(tmp_path / "all_data" / name)
    with pytest.raises(DataError, match=f"{name} would be left out.*unpack or rename it"):
        _load(tmp_path)


def test_a_packed_copy_beside_its_file_is_passed_over(tmp_path):
    _write_all(tmp_path)
    before = _load(tmp_path).train.client_ids
    (tmp_path / "all_data" / "all_data_0.json.gz").write_bytes(b"")
    assert _load(tmp_path).train.client_ids == before


@pytest.mark.parametrize(
    ("step", "refused"), [("all_data", False), ("rem_user_data", False), ("train", True)]
)
def test_packed_files_of_an_earlier_step_are_passed_over(tmp_path, step, refused):
    _write_split(tmp_path)
    before = _load(tmp_path).train.client_ids
    (tmp_path / step).mkdir(exist_ok=True)
    (tmp_path / step / "more.json.gz").write_bytes(b"")
    if refused:
        with pytest.raises(DataError, match=r"more\.json\.gz would be left out"):
            _load(tmp_path)
    else:
        assert _load(tmp_path).train.client_ids == before


def test_a_packed_file_of_a_later_step_is_refused(tmp_path):
    _write_all(tmp_path)
    (tmp_path / "rem_user_data").mkdir()
    (tmp_path / "rem_user_data" / "more.json.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"rem_user_data/more\.json\.gz would be left out"):
        _load(tmp_path)


@pytest.mark.parametrize("source", ["auto", "leaf"])
def test_missing_files_are_one_line(tmp_path, source):
    with pytest.raises(DataError) as error:
        _load(tmp_path, source=source)
    assert "\n" not in str(error.value) and "--data_dir" in str(error.value)
    with pytest.raises(DataError, match="no LEAF files"):
        _prepared(tmp_path)


def test_a_split_that_the_source_lacks_is_refused(tmp_path):
    _write_all(tmp_path)
    with pytest.raises(HparamError, match="split=source"):
        _load(tmp_path, split="source")
    with pytest.raises(HparamError, match="split=local"):
        _load(tmp_path, split="source", test_fraction=0.1)


@pytest.mark.long  # A quarter of a gigabyte of JSON.
def test_real_writers(unpacked_dir):
    if not (unpacked_dir / "femnist").is_dir():
        pytest.skip(f"{unpacked_dir} has no femnist")
    task = tasks.load("femnist", data_dir=str(unpacked_dir), source="leaf", model="fedopt_cnn")
    assert task.settings["source"] == "leaf" and len(task.train.client_ids) == 396
    assert task.train.sizes.sum() + task.test.sizes.sum() == 60_359
    labels = np.concatenate([task.train.examples(k).y for k in range(396)])
    assert set(labels) == set(range(62))
    # A small share of digits' pixels is ink.
    x = task.train.examples(0).x
    assert x.max() == 1 and np.mean(x) > 0.7
