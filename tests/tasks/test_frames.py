"""Tasks made of tables and arrays: what becomes of rows and columns, and what is refused."""

import decimal
import fractions
import json
import pathlib
import struct
import subprocess
import sys
import warnings
import zlib

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import tensorflow as tf
from PIL import ExifTags, Image

import simulation
import tasks
from tasks import partitions
from tasks.task import DataError
from tff_suite.hparams import HparamError

SETTINGS = {
    "algorithm": "fedavg",
    "total_rounds": 1,
    "clients_per_round": 2,
    "client_batch_size": 4,
    "client_learning_rate": 0.1,
    "progress": False,
}


def dense(outputs, inputs=2, **changes):
    def model(seed):
        kernel = tf.keras.initializers.GlorotUniform(seed)
        layer = tf.keras.layers.Dense(
            outputs, input_shape=(inputs,), kernel_initializer=kernel, **changes
        )
        return tf.keras.Sequential([layer])

    return model


def frame(rows=24, **columns):
    at = np.arange(rows)
    return pd.DataFrame(
        {
            "who": [f"u{k % 4}" for k in at],
            "a": at.astype(float),
            "b": (at * 7) % 5,
            "kind": np.array(["cat", "dog", "emu"])[(at // 4) % 3],
            **columns,
        }
    )


def made(df=None, **changes):
    fields = {"user": "who", "target": "kind", "model": dense(3)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Column "a" does, so that tests find rows again.
        warnings.filterwarnings("ignore", message=".*seems to number the rows")
        return tasks.from_frame(frame() if df is None else df, **{**fields, **changes})


def rows_of(data, column=0):
    """Returns client → its values of an input, which name the rows here."""
    ids = range(len(data.client_ids))
    return {data.client_ids[k]: set(data.examples(k).x[:, column].tolist()) for k in ids}


def test_rows_go_to_their_users_and_none_is_lost():
    task = made()
    train, test = rows_of(task.train), rows_of(task.test)
    df = frame()
    for user in "u0", "u1", "u2", "u3":
        assert not train[user] & test[user]
        assert train[user] | test[user] == set(df.a[df.who == user])
        assert len(test[user]) == 2, "6 rows, of which floor(0.8 x 6) train"
    assert set(task.central_test.x[:, 0]) == set.union(*test.values())
    x, y = task.train.examples(0)
    assert x.dtype == np.float32 and y.dtype == np.int32 and x.shape[1:] == (2,)
    assert task.encoding == {
        "target": "kind",
        "features": ["a", "b"],
        "classes": ["cat", "dog", "emu"],
    }
    for row, label in zip(x[:, 0], y, strict=True):
        assert task.encoding["classes"][label] == df.kind[int(row)]


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_users_split_depends_on_its_id_and_the_seed_alone(seed):
    whole = rows_of(made(seed=seed).test)
    df = frame()
    alone = df[df.who.isin(["u1", "u3"])].sample(frac=1, random_state=3).sort_values("a")
    assert rows_of(made(alone, seed=seed).test) == {k: whole[k] for k in ("u1", "u3")}
    assert rows_of(made(seed=seed + 1).test) != whole


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.99])
def test_every_client_keeps_a_row_to_train_on(fraction):
    parts = {f"é{n}": np.arange(n) for n in range(1, 40)}
    kept, held_out = partitions.split_by_id(parts, fraction, 0, "test")
    for name, rows in parts.items():
        assert sorted([*kept[name], *held_out[name]]) == rows.tolist()
        assert len(kept[name]) == max(1, int((1 - fraction) * len(rows) + 1e-9))
    other = partitions.split_by_id(parts, 0.5, 0, "validation")[1]
    if fraction == 0.5:
        assert any(not np.array_equal(other[k], held_out[k]) for k in parts)


def test_validation_is_apart_from_training_and_tests():
    task = made(validation=0.25)
    sets = [rows_of(data) for data in (task.train, task.test, task.validation)]
    df = frame()
    for user in sets[0]:
        parts = [own.get(user, set()) for own in sets]
        assert sum(map(len, parts)) == len(set.union(*parts)) == (df.who == user).sum()
    assert task.validation.sizes.sum() > 0


@pytest.mark.parametrize(
    ("target", "changes", "wanted"),
    [
        ("kind", {}, ("sparse_softmax_cross_entropy", "accuracy", True)),
        ("flag", {"model": dense(2)}, ("sparse_softmax_cross_entropy", "accuracy", True)),
        ("level", {}, ("sparse_softmax_cross_entropy", "accuracy", True)),
        ("a", {"model": dense(1, 1)}, ("squared_error", "mse", False)),
        ("b", {"target_type": "category"}, ("sparse_softmax_cross_entropy", "accuracy", True)),
        ("b", {"target_type": "number"}, ("squared_error", "mse", False)),
    ],
)
def test_the_target_decides_the_loss(target, changes, wanted):
    level = pd.Categorical(["low", "mid", "top"] * 8, ["top", "unused", "mid", "low"])
    df = frame(flag=[True] * 9 + [False] * 15, level=level)
    task = made(df, target=target, features=["a"] if target != "a" else ["b"], **changes)
    assert (task.loss.__name__, task.primary_metric, task.higher_is_better) == wanted
    if target == "level":
        assert task.encoding["classes"] == ["top", "mid", "low"], "in the order of the categories"
    if wanted[0] == "squared_error":
        y = task.train.examples(0).y
        assert y.dtype == np.float32 and y.shape[1:] == (1,) and "classes" not in task.encoding


@pytest.mark.parametrize("dtype", [int, float, object])
def test_whole_numbers_that_may_be_classes_are_said(dtype):
    df = frame().astype({"b": dtype})
    with pytest.warns(
        RuntimeWarning, match="'b' has 5 different whole .* set target_type to category"
    ):
        task = tasks.from_frame(df, user="who", target="b", features=["a"], model=dense(1, 1))
    assert task.primary_metric == "mse"


def test_numbers_that_pandas_holds_as_objects_are_numbers():
    objects = made(frame().astype({"a": object, "b": object})).train.examples(0).x
    np.testing.assert_array_equal(objects, made().train.examples(0).x)


@pytest.mark.parametrize("make", [decimal.Decimal, fractions.Fraction])
def test_decimals_and_fractions_are_numbers(make):
    def exact(column):
        return [make(str(value)) for value in column]

    df = frame().assign(y=(np.arange(24) * 7) % 11 / 10)
    fields = {"target": "y", "features": ["a", "b"], "model": dense(1)}
    wanted, objects = made(df, **fields), made(df.assign(y=exact(df.y), a=exact(df.a)), **fields)
    assert objects.primary_metric == "mse"
    np.testing.assert_array_equal(objects.train.examples(0).x, wanted.train.examples(0).x)
    np.testing.assert_array_equal(objects.train.examples(0).y, wanted.train.examples(0).y)
    arrays = tasks.from_arrays(df[["a", "b"]], exact(df.y), df.who, model=dense(1))
    assert arrays.primary_metric == "mse"
    for column in "a", "y":
        for lost in None, pd.NA:
            missing = df.assign(**{column: [lost, 1, *exact(df[column])[2:]]})
            says = f"'{column}' has 1 missing values, the first in row 0"
            with pytest.raises(DataError, match=says):
                made(missing, **fields)


@pytest.mark.parametrize("least", [2**60, 1e9])
def test_numbers_that_float32_cannot_tell_apart_are_said(least):
    df = frame(a=least + np.arange(24))
    says = "column .*: float32 rounds it by up to .*, and its standard deviation is 6.92; subtract"
    with pytest.warns(RuntimeWarning, match=says):
        tasks.from_frame(df, user="who", target="kind", features=["a"], model=dense(3, 1))
    with pytest.warns(RuntimeWarning, match=says):
        tasks.from_arrays(df[["a"]].to_numpy(), df.kind, df.who, model=dense(3, 1))
    with pytest.warns(RuntimeWarning, match="target 'a': float32 rounds it by up to"):
        tasks.from_frame(df, user="who", target="a", features=["b"], model=dense(1, 1))
    # Both things that the warning advises.
    for changed, given in (df.assign(a=df.a - df.a.min()), {}), (df, {"standardize": True}):
        task = made(changed, features=["a"], model=dense(3, 1), test=None, **given)
        x = np.concatenate([e.x for e in map(task.train.examples, range(4))])
        assert len(np.unique(x)) == 24


def test_losses_and_metrics_of_the_callers():
    task = made(loss="sparse_categorical_crossentropy")
    assert task.metrics == {} and task.primary_metric == "loss" and not task.higher_is_better
    metrics = {"top": "sparse_categorical_accuracy", "l": "sparse_categorical_crossentropy"}
    task = made(loss="sparse_categorical_crossentropy", metrics=metrics)
    assert task.primary_metric == "top" and task.higher_is_better
    # Class numbers of the caller's stay whole numbers for a loss of the caller's.
    y = made(target="b", features=["a"], loss="sparse_categorical_crossentropy").train.examples(0).y
    assert y.dtype == np.int32 and y.ndim == 1


@pytest.mark.parametrize(("target", "feature"), [("a", "b"), ("b", "a")])
def test_a_number_is_a_column_for_a_loss_of_the_callers_too(tmp_path, target, feature):
    losses = []
    for own in (None, "mse", lambda y, p: tf.reduce_mean((y - p) ** 2, -1)):
        given = {"target": target, "features": [feature], "target_type": "number"}
        task = made(**given, loss=own, model=dense(1, 1))
        y = task.train.examples(0).y
        assert y.dtype == np.float32 and y.shape[1:] == (1,)
        folder = tmp_path / str(len(losses))
        result = simulation.run(task=task, root_output_dir=folder, **SETTINGS)
        losses.append(result.rounds["eval/loss"].tolist())
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-5)


def test_categories_are_one_hot_and_nothing_is_scaled():
    df = frame(town=np.array(["Bonn", "Ulm", "Bonn", "Hof"])[np.arange(24) % 4])
    task = made(df, features=["town", "a"])
    assert task.encoding["categories"] == {"town": ["Bonn", "Hof", "Ulm"]}
    x = np.concatenate([task.train.examples(k).x for k in range(4)])
    for row in x:
        assert row[:3].sum() == 1
        assert ["Bonn", "Hof", "Ulm"][int(np.argmax(row[:3]))] == df.town[int(row[3])]


def test_standardised_by_training_rows_alone():
    df = frame(constant=1.0)
    task = made(df, features=["a", "b", "constant"], standardize=True, validation=0.2)
    x = np.concatenate([task.train.examples(k).x for k in range(4)])
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(0), [1, 1, 0], atol=1e-6)
    mean, deviation = task.encoding["mean"], task.encoding["deviation"]
    assert np.abs(task.central_test.x.mean(0)[:2]).max() > 1e-3
    back = task.central_test.x * deviation + mean
    assert set(np.round(back[:, 0], 3)) <= set(df.a)


def test_standardised_far_from_0_as_near_it():
    at = np.arange(24)
    df = frame(seconds=1_700_000_000 + at, near=at, constant=0.1)
    task = made(df, features=["seconds", "near", "constant"], standardize=True, test=None)
    x = np.concatenate([task.train.examples(k).x for k in range(4)])
    np.testing.assert_allclose(x[:, 0], x[:, 1], atol=1e-6)
    assert not x[:, 2].any()


@pytest.mark.parametrize("dtype", ["int64", "uint64", "Int64"])
def test_standardised_beyond_float64_as_near_0(dtype):
    at = np.arange(24)
    df = frame(big=pd.array(2**60 + 5 * at, dtype), near=at)
    others = df.assign(near=df.near + 0.2, big=df.big + 1)
    fields = {"features": ["big", "near"], "standardize": True, "test_frame": others}
    task = made(df, **fields)
    x = np.concatenate([task.train.examples(k).x for k in range(4)])
    np.testing.assert_allclose(x[:, 0], x[:, 1], atol=1e-6)
    tests = task.central_test.x
    np.testing.assert_allclose(tests[:, 0], tests[:, 1], atol=1e-6)
    assert task.encoding["subtracted_before"] == {"big": 2**60}
    whole = [int(v) - 2**60 for v in others.big]
    by_record = (np.array(whole) - task.encoding["mean"][0]) / task.encoding["deviation"][0]
    np.testing.assert_allclose(tests[:, 0], by_record, rtol=1e-6)


def test_rounding_errors_are_not_blown_up():
    df = frame(sum=[0.3, 0.1 + 0.2] * 12)
    fields = {"user": "who", "target": "kind", "model": dense(3)}
    with pytest.warns(RuntimeWarning, match="column 'sum' differs by rounding errors only and is"):
        task = tasks.from_frame(df, features=["b", "sum"], standardize=True, **fields)
    x = np.concatenate([task.train.examples(k).x for k in range(4)])
    assert np.abs(x[:, 1]).max() < 1e-12 and np.abs(x[:, 0]).max() > 1
    # Whole numbers are exact, also as floats.
    df = frame(ticks=1e15 + np.arange(24))
    task = made(df, features=["b", "ticks"], standardize=True)
    assert np.abs(task.train.examples(0).x[:, 1]).max() > 1


def test_a_word_is_the_same_in_both_forms_of_unicode():
    df = frame(said=["caf\u00e9", "cafe\u0301"] * 12)
    task = made(df, text="said", features=None, text_length=2, test=None)
    assert task.encoding["words"] == ["caf\u00e9"]
    assert set(task.train.examples(0).x[:, 1]) == {0}


def test_words_are_numbered_by_training_rows():
    df = frame(said=["The cat.", "the DOG", "the emu!", "a b c d e f"] * 6)
    task = made(df, text="said", features=None, text_length=4, vocabulary_size=5, test=None)
    words = task.encoding["words"]
    assert len(words) == 5 and words[0] == "the"
    place = {word: k + task.encoding["first_word"] for k, word in enumerate(words)}
    train = {tuple(x) for k in range(4) for x in task.train.examples(k).x.tolist()}
    assert (place["the"], place.get("dog", 1), 0, 0) in train
    assert all(len(row) == 4 and max(row) <= 6 for row in train)
    # A word that only test rows have is unknown.
    test = pd.DataFrame({"who": ["u0"], "kind": ["cat"], "said": ["the zebra"]})
    task = made(df, text="said", test_frame=test, text_length=3)
    assert task.central_test.x.tolist() == [[task.encoding["first_word"], 1, 0]]


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 3), ("P", 3)])
def test_images_are_read(tmp_path, mode, channels):
    pixels = np.arange(12 * 2, dtype=np.uint8).reshape(12, 2, 1) * 5
    for k in range(24):
        array = np.repeat(np.roll(pixels, k, 0)[:4], 3, 2)
        Image.fromarray(array).convert(mode).save(tmp_path / f"{k}.png")
    df = frame(file=[f"{k}.png" for k in range(24)])
    task = made(df, image="file", image_dir=str(tmp_path), test=None)
    x = task.train.examples(0).x
    assert x.dtype == np.float32 and x.shape == (6, 4, 2, channels) and 0 <= x.min() < x.max() <= 1
    with Image.open(tmp_path / "4.png") as file:
        wanted = np.asarray(file.convert("L" if channels == 1 else "RGB"))
    np.testing.assert_array_equal(np.round(x[1] * 255).reshape(wanted.shape), wanted)
    Image.new("L", (3, 3)).save(tmp_path / "5.png")
    with pytest.raises(ValueError, match=r"row 5: .*5.png is 3x3 with 1 channel, others are 2x4"):
        made(df, image="file", image_dir=str(tmp_path))
    (tmp_path / "0.png").write_text("no image")
    with pytest.raises(ValueError, match=r"row 0: .*0.png cannot be read as an image"):
        made(df, image="file", image_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (b"\x89PNG", "a bytes, which is not a path; write the bytes to files and give their paths"),
        (
            {"bytes": b"\x89PNG", "path": None},
            "a dict, which is not a path; write the bytes to f",
        ),
        (np.zeros((2, 2), np.uint8), "a ndarray, which is not a path; from_arrays takes arrays"),
        (Image.new("L", (2, 2)), "a Image, which is not a path; from_arrays takes arrays"),
    ],
    ids=["bytes", "of a data hub", "array", "image"],
)
def test_images_in_place_of_paths_name_a_way_on(cell, says):
    df = frame()
    df["file"] = pd.Series([cell] * len(df), df.index, object)
    with pytest.raises(ValueError, match=f"^df: column 'file', row 0 has {says}"):
        made(df, image="file")
    df.loc[0, "file"] = None
    with pytest.raises(ValueError, match="column 'file', row 1 has"):
        made(df, image="file")


@pytest.mark.parametrize("form", ["sequential", "functional", "nested"])
def test_words_without_a_row_of_the_embedding_are_refused(form):
    """On a CPU they end a run; on a GPU they would count as zeros."""

    def model(rows):
        embedding = tf.keras.layers.Embedding(rows, 2, input_length=2)
        flat, last = tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)
        if form == "functional":
            x = tf.keras.Input([2])
            return tf.keras.Model(x, last(flat(embedding(x))))
        if form == "nested":
            return tf.keras.Sequential([tf.keras.Sequential([embedding, flat]), last])
        return tf.keras.Sequential([embedding, flat, last])

    df = frame(said=["the cat", "the dog", "a bird", "no fish"] * 6)
    texts = {"text": "said", "text_length": 2, "vocabulary_size": 5, "test": None}
    with pytest.raises(DataError, match=r"has 6 rows, but .* numbers up to 6: .* \+ 2 rows"):
        made(df, model=lambda seed: model(6), **texts).keras_model(0)
    made(df, model=lambda seed: model(7), **texts).keras_model(0)
    # A model may change the numbers first.
    made(df, model=lambda seed: dense(3)(seed), **texts).keras_model(0)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_pixels_beyond_eight_bits_are_not_cut_off(tmp_path, dtype):
    pixels = np.arange(12, dtype=dtype).reshape(4, 3) * 1000
    Image.fromarray(pixels).save(tmp_path / "deep.tiff")
    with pytest.raises(ValueError, match=r"row 0: .*deep.tiff has pixels of more than 8 bits"):
        made(frame(file="deep.tiff"), image="file", image_dir=str(tmp_path))


@pytest.mark.parametrize(("depth", "kind"), [(8, 2), (16, 2), (16, 4), (16, 6)])
def test_png_files_of_two_bytes_a_channel_are_refused(tmp_path, depth, kind):
    """Colour, grey with alpha, colour with alpha: Pillow would keep the upper bytes of each."""
    width = {2: 3, 4: 2, 6: 4}[kind] * depth // 8

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", 2, 2, depth, kind, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff" * 2 * width) * 2)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    (tmp_path / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    fields = {"image": "file", "image_dir": str(tmp_path), "test": None}
    if depth == 8:
        assert made(frame(file="deep.png"), **fields).train.examples(0).x.min() == 1.0
        return
    with pytest.raises(ValueError, match=r"deep.png has pixels of more than 8 bits"):
        made(frame(file="deep.png"), **fields)


@pytest.mark.parametrize(("mode", "channels"), [("LA", 1), ("RGBA", 3)])
def test_transparent_pixels_are_said(tmp_path, mode, channels):
    image = Image.new(mode, (3, 4), (9,) * channels + (100,))
    image.save(tmp_path / "seen.png")
    df = frame(file="seen.png")
    with pytest.warns(RuntimeWarning, match="24 images have transparent pixels, .* seen.png"):
        task = tasks.from_frame(
            df, user="who", target="kind", model=dense(3), image="file", image_dir=str(tmp_path)
        )
    assert task.train.examples(0).x.shape[-1] == channels


def test_a_transparent_colour_of_a_palette_is_said(tmp_path):
    image = Image.new("P", (3, 4), 0)
    image.putpalette([0, 0, 0, 255, 255, 255])
    image.save(tmp_path / "seen.png", transparency=0)
    given = {"user": "who", "target": "kind", "image": "file", "image_dir": str(tmp_path)}
    with pytest.warns(RuntimeWarning, match="24 images have transparent pixels"):
        tasks.from_frame(frame(file="seen.png"), model=dense(3), **given)


@pytest.mark.parametrize("ending", ["gif", "tiff"])
def test_frames_and_pages_that_are_not_used_are_said(tmp_path, ending):
    pages = [Image.new("L", (3, 4), grey) for grey in (0, 100, 200)]
    pages[0].save(tmp_path / f"seen.{ending}", save_all=True, append_images=pages[1:])
    given = {"user": "who", "target": "kind", "image": "file", "image_dir": str(tmp_path)}
    with pytest.warns(RuntimeWarning, match="24 images have several frames or pages, .* seen"):
        task = tasks.from_frame(frame(file=f"seen.{ending}"), model=dense(3), **given)
    assert not task.train.examples(0).x.any()


def test_previews_in_a_cameras_picture_are_not_told(tmp_path):
    pages = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    pages[0].save(tmp_path / "seen.mpo", save_all=True, append_images=pages[1:])
    with Image.open(tmp_path / "seen.mpo") as file:
        assert file.format == "MPO" and file.n_frames == 2
    made(frame(file="seen.mpo"), image="file", image_dir=str(tmp_path), test=None)


def test_turned_photographs_are_told_and_read_as_stored(tmp_path):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    stored = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    stored.save(tmp_path / "turned.png", exif=exif)
    given = {"user": "who", "target": "kind", "image": "file", "image_dir": str(tmp_path)}
    with pytest.warns(RuntimeWarning, match="24 images are shown turned .EXIF .* turned.png"):
        task = tasks.from_frame(frame(file="turned.png"), model=dense(3), **given)
    np.testing.assert_array_equal(
        task.train.examples(0).x[0, :, :, 0] * 255, np.arange(12).reshape(3, 4)
    )


def test_whatever_a_decoder_raises_is_one_line(tmp_path, monkeypatch):
    Image.new("L", (3, 4)).save(tmp_path / "odd.png")

    def convert(*_):
        raise NotImplementedError("Unimplemented pixel format 0")

    monkeypatch.setattr(Image.Image, "convert", convert)
    with pytest.raises(ValueError, match=r"odd\.png cannot be read as an image: Unimplemented"):
        made(frame(file="odd.png"), image="file", image_dir=str(tmp_path))


def test_an_image_too_large_for_pillow_is_one_line(tmp_path, monkeypatch):
    Image.new("L", (30, 40)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(ValueError, match=r"row 0: .*large.png cannot be read as an image"):
        made(frame(file="large.png"), image="file", image_dir=str(tmp_path))


def test_tests_of_another_table():
    other = frame(8, b=9)
    task = made(test_frame=other)
    assert task.train.sizes.sum() == 24 and rows_of(task.test)["u1"] == {1.0, 5.0}
    central = made(test_frame=other.drop(columns="who"))
    assert central.test is None and len(central.central_test.y) == 8
    validation = made(validation=other, test=None)
    assert validation.validation.sizes.tolist() == [2, 2, 2, 2] and validation.test is None
    with pytest.warns(RuntimeWarning, match=r"1 client \(new\) of 4 in test_frame have no train"):
        tasks.from_frame(
            frame(), user="who", target="kind", model=dense(3),
            test_frame=other.replace({"who": {"u3": "new"}}),
        )  # fmt: skip


@pytest.mark.parametrize("partition", ["dirichlet", "shards", "iid"])
def test_clients_that_are_drawn(partition):
    settings = {"user": None, "partition": partition, "num_clients": 3, "test": 0.25}
    df = frame().drop(columns="who")
    task = made(df, **settings, alpha=1.0)
    train, test = rows_of(task.train), rows_of(task.test)
    assert list(train) == ["0", "1", "2"]
    assert sorted(row for own in (train, test) for part in own.values() for row in part) == [
        *map(float, range(24))
    ]
    assert rows_of(made(df, **settings, alpha=1.0).train) == train
    assert rows_of(made(df, **settings, alpha=1.0, seed=5).train) != train
    if partition != "iid":
        with pytest.raises(ValueError, match="divides rows by class, and the target is a number"):
            made(df, **settings, target="a", features=["b"], model=dense(1, 1))


def test_arrays_are_taken_as_they_are():
    x = np.arange(48, dtype=np.uint8).reshape(12, 2, 2)
    y = np.array(list("abc") * 4)
    users = pd.Series(list("pppqqq") * 2, index=range(12, 0, -1))
    task = tasks.from_arrays(x, y, users, model=dense(3), test=None)
    assert list(task.train.client_ids) == ["p", "q"] and task.test is None
    got = task.train.examples(0)
    assert got.x.dtype == np.uint8 and np.array_equal(got.x, x[[0, 1, 2, 6, 7, 8]])
    assert task.encoding["classes"] == ["a", "b", "c"]
    drawn = tasks.from_arrays(
        x, y, None, model=dense(3), partition="iid", num_clients=4, test_arrays=(x[:3], y[:3])
    )
    assert drawn.train.sizes.tolist() == [3] * 4 and drawn.test is None
    assert drawn.central_test.y.tolist() == [0, 1, 2]
    by_user = tasks.from_arrays(x, y, users, model=dense(3), test_arrays=(x[:2], y[:2], ["q", "p"]))
    assert dict(zip(by_user.test.client_ids, by_user.test.sizes, strict=True)) == {"p": 1, "q": 1}


@pytest.mark.parametrize("target_type", ["number", "category"])
def test_numbers_in_another_byte_order_are_the_same_numbers(target_type):
    x, y = np.arange(24.0).reshape(12, 2) ** 2, np.arange(12) * 7 % 3
    users, swapped = np.arange(12) % 2, []
    for one, two, three in ((x, y, users), (x.astype(">f4"), y.astype(">i2"), users.astype(">i8"))):
        options = {"model": dense(3), "target_type": target_type, "test": None}
        swapped.append(tasks.from_arrays(one, two, three, **options))
        df = pd.DataFrame({"a": one[:, 0], "b": one[:, 1], "y": two, "who": three})
        swapped.append(tasks.from_frame(df, user="who", target="y", **options))
    for found, wanted in zip(swapped[2:], swapped[:2], strict=True):
        assert found.train.client_ids == wanted.train.client_ids
        for got, want in zip(found.train.examples(1), wanted.train.examples(1), strict=True):
            assert got.dtype.isnative
            np.testing.assert_array_equal(got, want)


def test_later_changes_of_the_callers_data_change_nothing():
    df, x, y = frame(), np.arange(24.0).reshape(12, 2), np.arange(12) % 3.0
    options = {"loss": "mse", "model": dense(1)}
    made_of = (
        made(df, target="b", features=["a"], **options),
        tasks.from_arrays(x, y, list("pq") * 6, **options),
    )

    def held():
        parts = [(t.train.examples(0), t.test.examples(0), t.central_test) for t in made_of]
        return [examples for some in parts for examples in some]

    before = held()
    df["a"], df["b"] = -1.0, -1
    x *= -1
    y *= -1
    for one, two in zip(before, held(), strict=True):
        for array, same in zip(one, two, strict=True):
            np.testing.assert_array_equal(array, same)


NAN = float("nan")


def with_value(column, value, row=3):
    df = frame().astype({column: object})
    df.loc[row, column] = value
    return df if column in ("who", "kind") else df.astype({column: float})


@pytest.mark.parametrize(
    ("df", "changes", "says"),
    [
        (with_value("a", NAN), {}, "column 'a' has 1 missing values, the first in row 3; drop"),
        (with_value("a", np.inf), {}, "column 'a' has 1 infinite values, the first in row 3"),
        (
            frame(a=pd.array([pd.NA, *range(1, 24)], "Int64")),
            {},
            "column 'a' has 1 missing values, the first in row 0; drop",
        ),
        (with_value("kind", None), {}, "column 'kind' has 1 missing values"),
        (frame(b=NAN), {}, "column 'b' has no values; drop the column, or name others"),
        (with_value("who", None), {}, "column 'who' has 1 missing values"),
        (with_value("who", 7), {}, "column 'who': users must be all text or all numbers"),
        (frame(who=[1, True, 2, 3] * 6), {}, "column 'who': users must be all text or all numbers"),
        (with_value("kind", 7), {}, "column 'kind' mixes values of several types"),
        (frame(kind=[1, True, 2, 3] * 6), {}, "column 'kind' mixes values of several types"),
        (None, {"user": "whom"}, "user: df has no column 'whom'; it has who, a, b, kind"),
        (None, {"target": "sort"}, "target: df has no column 'sort'"),
        (None, {"target": ["a", "b"]}, "target must be one column, found a, b; a tasks.task.Task"),
        (None, {"target": "a,b"}, "target must be one column, found a, b; a tasks.task.Task"),
        (None, {"user": ["who", "kind"]}, "user must be one column, found who, kind; join them"),
        (None, {"features": ["a", "c"]}, "features: df has no column 'c'"),
        (None, {"features": ["a", "kind"]}, "features includes the target 'kind'"),
        (None, {"features": "a"}, "features must be a list of columns, found 'a'"),
        (None, {"features": ["a", "a"]}, "features names a column twice"),
        (None, {"features": ["a"], "text": "kind"}, "pass only one of features, text and image"),
        (None, {"text": "a"}, "column 'a' has 0.0 in row 0; it must be text"),
        (None, {"text": "who", "standardize": True}, "standardize is used with features only"),
        (None, {"user": "kind"}, "user, target and id must be three different columns"),
        (
            frame().drop(columns="who"),
            {"user": None},
            "name the column of users with user=, or have clients drawn",
        ),
        (None, {"partition": "iid"}, "partition and num_clients are not used with user"),
        (frame().drop(columns="who"), {"user": None, "partition": "iid"}, "needs num_clients"),
        (
            frame()[["a", "kind"]],
            {"user": None, "partition": "pie", "num_clients": 2},
            "must be one of dirichlet",
        ),
        (
            frame()[["a", "kind"]],
            {"user": None, "partition": "iid", "num_clients": 0},
            "num_clients=0 must be",
        ),
        (None, {"test": 1.0}, "test=1.0 must be a share"),
        (None, {"test": "0.2"}, "test='0.2' must be a share"),
        (None, {"validation": -0.1}, "validation=-0.1 must be a share"),
        (None, {"seed": -1}, "seed=-1 must be a whole number"),
        (None, {"target_type": "class"}, "target_type='class' must be category or number"),
        (
            None,
            {"target_type": "number"},
            "target 'kind' is .*, not a number; convert it with pd.to_numeric",
        ),
        (None, {"model": dense(3)(0)}, "model must be a function .* found a Sequential"),
        (None, {"test_frame": [1]}, "test_frame must be a pandas DataFrame, found a list"),
        (None, {"test_frame": frame().drop(columns="a")}, "features: test_frame has no column 'a'"),
        (
            None,
            {"test_frame": frame().replace({"kind": {"cat": "ant"}})},
            r"test_frame: column 'kind' has 'ant', which the training table lacks \(it has 'cat', ",
        ),
        (None, {"validation": frame().drop(columns="who")}, "validation must have the column of u"),
        (frame()[:0], {}, "df has no rows"),
        (frame(kind="cat"), {}, "target 'kind' has one value only, 'cat'"),
        (
            frame(id=[1, 2] * 12),
            {"id": "id"},
            "id: row 0 of df and row 2 of df both have 1; drop one",
        ),
        (
            frame(id=range(24)),
            {"id": "id", "test_frame": frame(2, id=[70, 5])},
            "id: row 5 of df and row 1 of test_frame both have 5",
        ),
        (
            pd.concat([frame(), frame()[["a"]]], axis=1),
            {},
            "df has two columns named 'a'; rename one",
        ),
        (
            frame(120, town=[f"t{k}" for k in range(120)]),
            {"features": ["town"]},
            "'town' has 120 different texts, more than 100",
        ),
        (
            frame(when=pd.date_range("2020", periods=24)),
            {"features": ["when"]},
            "'when' is datetime64.*; make it a number",
        ),
        (
            frame(since=pd.to_timedelta(np.arange(24), "h")),
            {"features": ["since"]},
            "'since' is timedelta64.*; make it a number",
        ),
        (
            frame(price=[frozenset()] * 24),
            {"features": ["price"]},
            "'price' is frozenset; make it a number",
        ),
        (
            frame(huge=[10**20 + k for k in range(24)]),
            {"features": ["huge"]},
            r"'huge' has whole numbers beyond 64 bits; .astype\(float\) rounds them",
        ),
        (
            frame(old=np.arange(24) > 7),
            {"target": "old", "target_type": "number", "features": ["a"]},
            r"target 'old' is bool, not a number; convert it with .astype\(int\)",
        ),
        (frame(big=1e300), {"features": ["big"]}, "features hold numbers beyond float32"),
        (
            frame(),
            {"test_frame": frame(a=pd.Categorical(pd.date_range("2020", periods=24)))},
            "test_frame: column 'a' is datetime64.*, not a number",
        ),
        (
            frame(),
            {"test_frame": frame(a=["1", "inf"] * 12)},
            "test_frame: column 'a' has 'inf' in row 1, which is not a finite number; drop these",
        ),
        (
            frame().set_index("who"),
            {},
            r"has no column 'who'; .*, and reset_index\(\) makes columns",
        ),
        (
            frame().rename(columns={"a": 1, "b": "1"}),
            {"features": [1, "1"]},
            "2 columns are '1' as text, by which encoding.json knows them; rename one",
        ),
        (
            frame(big=1e300 * np.arange(24)),
            {"target": "big", "features": ["a"]},
            "target 'big' is beyond float32; scale it",
        ),
        (frame()[["who", "kind"]], {}, "df has no column of numbers beside user and target"),
        (
            frame(b=["1,234", "5"] * 12)[["who", "kind", "b"]],
            {},
            "and target; write 'b' as plain numbers, such as 1234.5, or name features, text or",
        ),
        (
            frame(kind=[[0, 1], [1, 0]] * 12),
            {},
            "column 'kind' has a list in row 0; it mu",
        ),
        (frame(who=[np.array([1, 2])] * 24), {}, "column 'who' has a ndarray in row 0"),
        (frame(key=[[k] for k in range(24)]), {"id": "key"}, "column 'key' has a list in row 0"),
        (
            frame(who=[b"u", b"v"] * 12),
            {},
            r"column 'who' has bytes; convert them to text: \[value.decode",
        ),
        (frame(kind=[b"u", b"v"] * 12), {}, "column 'kind' has bytes; convert them to text"),
        (frame().rename(columns={"b": 0}), {"id": 0}, "id: row 0 of df and row 5 of df both"),
        (
            pd.concat({"x": frame()}, axis=1),
            {"user": "x"},
            r"df has no column 'x'; it has \('x', 'who'\)",
        ),
        (
            frame(n=2**40 + np.arange(24)),
            {"target": "n", "features": ["a"], "loss": "mse"},
            "target 'n' is beyond int32; set target_type to number, or to category",
        ),
        (
            frame(n=range(24)),
            {"target": "n", "features": ["b"], "loss": "mse", "test_frame": frame(n=0.5)},
            "test_frame: target 'n' has fractions, but the training table has whole numbers",
        ),
        (
            None,
            {"test_frame": frame(a=pd.date_range("2020", periods=24))},
            "test_frame: column 'a' is datetime64.*, not a number",
        ),
        (
            None,
            {"test_frame": frame(a=np.arange(24) * 1j)},
            "test_frame: column 'a' is complex128, not a number",
        ),
        *(
            (
                frame()[["a", "kind"]],
                {"user": None, "partition": "dirichlet", "num_clients": 2, "alpha": alpha},
                f"alpha={alpha!r} must be a finite number above 0",
            )
            for alpha in (np.inf, "1", 0)
        ),
    ],
)
def test_what_cannot_be_right_is_one_line(df, changes, says):
    with pytest.raises((DataError, HparamError), match=says) as error:
        made(df, **changes)
    assert isinstance(error.value, ValueError) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("x", "y", "users", "says"),
    [
        (np.zeros((3, 2)), list("aab"), list("pq"), "3 in x, 3 in y, 2 in users; give one row"),
        (np.zeros((3, 2)), list("ab"), None, "3 in x, 2 in y"),
        (np.array([["x"], ["y"]]), list("ab"), list("pq"), r"found <U1; .* x.astype\('float32'\)"),
        ([{"image": 1}, {"image": 2}], list("ab"), list("pq"), r"found a dict .* np.stack\(rows\)"),
        (np.array([[0], [NAN]]), list("ab"), list("pq"), "x has 1 rows .* the first is row 1"),
        (np.zeros((2, 2)), np.eye(2), list("pq"), r"shape \[2, 2\]; .* argmax\(axis=1\)"),
        (np.eye(2) * 1e300, list("ab"), list("pq"), "x holds numbers beyond float32; scale them"),
        (np.ma.masked_less(np.eye(2), 1), list("ab"), list("pq"), "x has masked values; drop or"),
        (scipy.sparse.csr_matrix(np.eye(2)), list("ab"), list("pq"), r"give x.toarray\(\)"),
        ([[1, 2], [3]], list("ab"), list("pq"), "x is not an array: setting an array element"),
        (np.eye(2), pd.date_range("2020", periods=2), list("pq"), "make it a number or text"),
        (np.eye(2), np.array([b"a", b"b"]), list("pq"), "column 'y' has bytes"),
        (np.eye(2), list("ab"), ["p", "\ud800"], "an unpaired surrogate; rename it"),
        (None, list("ab"), list("pq"), "x must be an array .*, found a NoneType"),
        (np.eye(2), 3, list("pq"), "y must be an array .*, found a int"),
    ],
)
def test_arrays_that_cannot_be_right(x, y, users, says):
    with pytest.raises(DataError, match=says):
        tasks.from_arrays(x, y, users, model=dense(2))


@pytest.mark.parametrize("tests", [(np.eye(2),), (np.eye(2), [0, 1], [0, 1], 1), {"x": 1, "y": 2}])
def test_test_arrays_are_two_or_three(tests):
    with pytest.raises(DataError, match=r"test_arrays must be \(x, y\) or \(x, y, users\)"):
        tasks.from_arrays(np.eye(2), list("ab"), [0, 1], model=dense(2), test_arrays=tests)


def test_a_colour_named_a_is_not_transparency(tmp_path):
    Image.new("LAB", (4, 2)).save(tmp_path / "lab.tif")
    df = frame(photo="lab.tif")
    task = made(df, image="photo", image_dir=str(tmp_path), test=None)
    assert task.train.examples(0).x.shape[1:] == (2, 4, 3)


def test_the_record_keeps_booleans_of_a_sparse_column():
    task = made(frame(kind=pd.arrays.SparseArray(np.arange(24) % 3 == 0)))
    assert json.loads(json.dumps(task.encoding))["classes"] == [False, True]


def test_features_may_be_an_index_of_pandas():
    task = made(features=frame().columns[1:3])
    assert task.encoding["features"] == ["a", "b"]


def test_rows_of_other_indexes_are_said_to_go_by_position():
    df = frame()
    turned = df.kind.set_axis(df.index[::-1])
    with pytest.warns(RuntimeWarning, match="are matched by position, though their indexes differ"):
        task = tasks.from_arrays(df[["a"]], turned, df.who, model=dense(3, 1), test=None)
    assert task.train.examples(0).y.tolist() == made(test=None).train.examples(0).y.tolist()


@pytest.mark.parametrize(
    ("df", "says"),
    [
        (frame(kind=["cat", "dog", "dog", "emu"] * 6), r"4 clients \(u0, .* of one class only"),
        (
            frame(who=pd.Categorical(["u0", "u1"] * 12, ["u0", "gone", "u1"])),
            r"left out: 1 client \(gone\) of column 'who', without any rows",
        ),
        (
            frame(who=["Ann", "ann ", "bob", "cy"] * 6),
            "differ only in capitals, blanks or the form of Unicode count as different users: "
            "'Ann' and 'ann '",
        ),
        (
            frame(who=["Ren\u00e9", "Rene\u0301", "bob", "cy"] * 6),
            r"count as different users: 'Rene\\u0301' and 'Ren\\xe9'",
        ),
        (
            frame(kind=["yes", "Yes ", "no", "no"] * 6),
            "capitals, blanks or the form of Unicode count as different classes: 'Yes ' and 'yes'",
        ),
        (
            frame(kind=["1", "1.0", "2", "2.50"] * 6),
            "names are the same number count as different classes: '1' and '1.0'.",
        ),
        (frame(who=["7", "007", "8", "80"] * 6), "count as different users: '007' and '7'."),
        (frame(b=["01", "1", "-"] * 8), "different categories of feature 'b': '01' and '1'."),
        (
            frame(b=["x  y", "x y"] * 12),
            "count as different categories of feature 'b': 'x  y' and 'x y'",
        ),
        (frame(note=["x", "y"] * 12), "non-numeric columns are left out: note"),
        (
            frame(note=["1,234", "5"] * 12),
            "df: numbers written as text are left out: column 'note'",
        ),
        (frame(kind=[f"k{k}" for k in range(24)]), "'kind' has 24 different values in 24 rows"),
        (
            frame(who=np.array(["u0", np.nan, "u1", "u2"] * 6)),
            "df: column 'who' has 'nan' in 6 rows, the first in row 1; if it stands for a missing",
        ),
        (
            # As UCI's files write what is missing, which makes a column of numbers text.
            frame(b=["1", " ?", "2", "1"] * 6),
            r"column 'b' has ' \?' in 6 rows, the first in row 1; if it stands for a missing",
        ),
        (frame(b=["1", "2.5"] * 12), "feature 'b' is text, though every value reads as a number"),
        (frame(b=["1", "2.5", "high"] * 8), "'b' is text, though most values read, unlike 'high',"),
        (frame(b=["1,5", "2,5"] * 12), "'b' is text, though most values read, unlike '1,5',"),
        (frame(b=["1,234", "900"] * 12), "'b' is text, though most values read, unlike '1,234',"),
        (frame(b=["<0.1", "5 %"] * 12), "'b' is text, though most values read, unlike '<0.1',"),
        (frame(b=["\N{MINUS SIGN}5", "5"] * 12), "'b' is text, though most values read, unlike"),
        (frame(b=["-", "5", "6"] * 8), "column 'b' has '-' in 8 rows, the first in row 0"),
        (frame(kind=["1", "2", "n. d."] * 8), r"'kind' has text such as 'n\. d\.' among numbers"),
        (frame(), "df: column 'a' seems to number the rows and is used as a feature; if it"),
        (frame(b=np.arange(1, 25)), "df: column 'a', 'b' seems to number the rows"),
        (frame(b=(7 * np.arange(24)) % 24), "df: column 'a', 'b' seems to number the rows"),
        (frame(b=np.arange(892, 916.0)), "df: column 'a', 'b' seems to number the rows"),
        (frame().rename(columns={"b": "Unnamed: 0"}), "column 'a', 'Unnamed: 0' seems to number"),
    ],
)
def test_what_may_be_meant_otherwise_is_said_by_name(df, says):
    named = {"features": ["a", "b"]} if "'b'" in says and "number the" not in says else {}
    with pytest.warns(RuntimeWarning, match=says) as warned:
        tasks.from_frame(df, user="who", target="kind", model=dense(3), **named)
    # The first test of a process may also see warnings of what it imports.
    ours = [w for w in warned if w.category is RuntimeWarning]
    assert all(w.filename == __file__ for w in ours), "it names the caller's line"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"who": ["00", "01", "02", "03"] * 6}, "'00' may be '0' of the training table; write bo"),
        (
            {"who": [0.0, 1.0, 2.0, 3.5] * 6},
            r"4 clients .* '0\.0' may be '0' of the training table",
        ),
        ({"id": [str(k) for k in range(24)]}, "rows: 0 in row 0 of df and '0' in row 0 of test_f"),
    ],
)
def test_names_of_a_test_table_that_are_written_otherwise_are_said(change, says):
    df = frame(who=[0, 1, 2, 3] * 6, id=range(24))
    others = frame(**{"a": np.arange(24) + 0.5, "who": df.who, "id": range(70, 94), **change})
    fields = {"user": "who", "target": "kind", "model": dense(3), "features": ["a", "b"]}
    with pytest.warns(RuntimeWarning, match=says):
        tasks.from_frame(df, id="id", test_frame=others, **fields)


def test_a_constant_target_is_said():
    df = frame(y=5.0)
    fields = {"target": "y", "features": ["a", "b"], "model": dense(1)}
    for given in {}, {"target_type": "number"}:
        with pytest.warns(RuntimeWarning, match="^target 'y' is 5.0 in every row: nothing to") as w:
            tasks.from_frame(df, user="who", **fields, **given)
        assert not any("whole numbers" in str(warning.message) for warning in w)
    # A loss of the caller's need not use it.
    made(df, loss="mse", **fields)


@pytest.mark.parametrize("copy", [lambda y: y, lambda y: 32 + 1.8 * y, lambda y: -100 * y])
def test_a_feature_that_is_the_target_is_said(copy):
    y = np.random.default_rng(0).normal(size=24).round(3)
    df = frame(y=y, copy=copy(y), near=y + 1e-4 * np.arange(24), constant=1.0)
    fields = {"target": "y", "model": dense(1)}
    with pytest.warns(
        RuntimeWarning, match="^df: feature 'copy' determines target 'y' exactly; if"
    ):
        tasks.from_frame(df, user="who", features=["copy", "near", "constant"], **fields)
    made(df, features=["b", "near", "constant"], **fields)
    # Few rows may agree by chance.
    made(df[:12], features=["copy"], **fields)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_feature_made_of_the_class_is_said(sparse):
    df = frame(48)
    made_of = pd.get_dummies(df.kind, sparse=sparse)
    near = made_of.emu.astype(bool) ^ (df.index == 7)
    df = df.assign(emu=made_of.emu, near=near, constant=1)
    fields = {"user": "who", "target": "kind", "model": dense(3, 4)}
    with pytest.warns(RuntimeWarning, match="^df: feature 'emu' has one value for each class"):
        tasks.from_frame(df, features=["emu", "near", "constant", "a"], **fields)
    made(df, features=["near", "constant", "a"], model=dense(3, 4))
    # In few rows it may be chance.
    made(df[:24], features=["emu", "a"])


@pytest.mark.parametrize("role", ["user", "id", "target"])
def test_names_that_floats_have_made_one_are_said(role):
    """pandas makes floats of whole numbers beside a missing value."""
    df = frame()
    step = 2 if role == "id" else 1
    names = 2**53 + step * (df.index if role == "id" else df.index % 4)
    fields = {"user": "who", "target": "kind", "model": dense(3), role: "name"}
    if role == "target":
        fields |= {"target_type": "category", "features": ["a"], "model": dense(4, 1)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(seems to number the rows|left out|one class)")
        tasks.from_frame(df.assign(name=names), **fields)
    with pytest.warns(RuntimeWarning, match="^df: values of column 'name' are float64, which rou"):
        tasks.from_frame(df.assign(name=names.astype(float)), **fields)


def test_classes_of_many_digits_are_recorded_as_numbers():
    y = np.array([0, 1, 2.5], np.longdouble)[np.arange(24) // 4 % 3]
    users = [f"u{k % 4}" for k in range(24)]
    x = np.random.default_rng(0).normal(size=(24, 2))
    task = tasks.from_arrays(x, y, users, target_type="category", model=dense(3))
    assert task.encoding["classes"] == [0, 1, 2.5]


def test_a_feature_that_is_the_class_under_another_name_is_said():
    df = frame().assign(code=lambda d: d.kind.map({"cat": 7, "dog": 1, "emu": 3}))
    df["other"] = df.code.where(df.index != 5, 7)
    for feature in df.code, df.code.map("k{}".format):
        named = df.assign(code=feature)
        with pytest.warns(RuntimeWarning, match="feature 'code' determines target 'kind' exactly"):
            tasks.from_frame(
                named, user="who", target="kind", features=["code", "a"], model=dense(3)
            )
    made(df, features=["other", "a"])
    # Classes of one row each are reported otherwise.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one_each = frame(kind=[f"k{k}" for k in range(24)])
        tasks.from_frame(one_each, user="who", target="kind", features=["a"], model=dense(24, 1))
    assert caught and not any("determines" in str(w.message) for w in caught)


def test_different_whole_numbers_are_no_index():
    made(frame(b=1000 + 3 * np.arange(24)))
    made(frame(19, b=np.roll(np.arange(19), 1)))


def test_what_only_rows_held_out_have_is_said():
    fields = {"user": "who", "target": "kind", "model": dense(3)}
    df = frame(b="x")
    held_out = made().central_test.x[0, 0]
    df.loc[df.a == held_out, ["b", "kind"]] = ["y", "ox"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tasks.from_frame(df, features=["a", "b"], **fields)
    told = [str(w.message) for w in caught if "only held-out rows" in str(w.message)]
    says = "{}: only held-out rows have {}, so no client learns it; drop these rows, or draw others"
    assert len(told) == 2
    assert told[0].startswith(says.format("target 'kind'", "'ox'"))
    assert told[1].startswith(says.format("feature 'b'", "'y'"))
    made(df, features=["a", "b"], test=None)


def test_ids_that_are_not_the_same_number_are_not_reported():
    # The last two are one number in float64.
    users = ["1e3", "1000", "0e1", "0e2", "x1", str(2**60), str(2**60 + 1), "2"]
    made(frame(32, who=users * 4), test=None)


@pytest.mark.parametrize(
    ("name", "higher"),
    [
        ("mae", False),
        ("accuracy", True),
        ("neg_mean_squared_error", True),
        ("hinge", False),
        ("macro_f1", True),
    ],
)
def test_a_metrics_name_says_whether_more_is_better(name, higher):
    task = made(metrics={name: lambda y, outputs: outputs[:, 0]})
    assert task.primary_metric == name and task.higher_is_better is higher
    # Who says it, knows it.
    other = made(metrics={name: lambda y, outputs: outputs[:, 0]}, higher_is_better=not higher)
    assert other.higher_is_better is not higher


def test_a_metric_whose_name_says_nothing_is_said():
    df = frame().drop(columns="a")
    with pytest.warns(
        RuntimeWarning, match="assuming that higher gain is better, since its name does"
    ):
        task = tasks.from_frame(
            df, user="who", target="kind", model=dense(3, 1), metrics={"gain": "mse"}
        )
    assert task.higher_is_better is True


@pytest.mark.parametrize("dtype", ["int64[pyarrow]", "double[pyarrow]", "bool[pyarrow]"])
def test_tables_of_pyarrow_are_those_of_numpy(dtype):
    pytest.importorskip("pyarrow")
    df = frame(b=np.arange(24) // 4 % 2)
    df["b"] = df.b.astype(dtype)
    plain = df.assign(b=df.b.astype(dtype.removesuffix("[pyarrow]").replace("double", "float")))
    kinds = {"loss": "mse", "features": ["a"], "target": "b", "model": dense(1, 1)}
    for changes in ({}, {**kinds, "target_type": "category", "model": dense(2, 1), "loss": None}):
        found, wanted = (made(d, test=None, **changes) for d in (df, plain))
        for k in range(4):
            for one, two in zip(found.train.examples(k), wanted.train.examples(k), strict=True):
                np.testing.assert_array_equal(one, two)
                assert one.dtype == two.dtype
        assert found.encoding == wanted.encoding


def test_dates_of_pyarrow_and_of_python_are_one_line():
    pytest.importorskip("pyarrow")
    days = pd.Series(pd.date_range("2020-01-01", periods=24))
    for column in (days.dt.date, days.astype("timestamp[ns][pyarrow]"), days.dt.to_period("D")):
        with pytest.raises(DataError, match=r"target 'kind' is .*; make it a number or text"):
            made(frame(kind=column))


def test_texts_without_blanks_between_words():
    text = ["\u6211\u559c\u6b22", "\u0928\u092e\u0938\u094d\u0924\u0947 you"] * 12
    task = made(frame(note=text), text="note", text_length=3, test=None)
    assert sorted(task.encoding["words"]) == [
        "you",
        "\u0928\u092e\u0938\u094d\u0924\u0947",
        *sorted(text[0]),
    ]


@pytest.mark.parametrize(
    "end",
    [
        lambda x: tf.keras.Sequential([tf.keras.layers.Dense(3, activation="softmax")])(x),
        lambda x: tf.keras.layers.Lambda(tf.nn.softmax)(tf.keras.layers.Dense(3)(x)),
        lambda x: tf.nn.softmax(tf.keras.layers.Dense(3)(x)),
        lambda x: tf.keras.layers.Reshape((3,))(tf.keras.layers.Dense(3, activation="softmax")(x)),
    ],
    ids=["nested", "layer", "function", "reshaped"],
)
def test_a_softmax_is_found_wherever_it_is(end):
    def model(seed):
        x = tf.keras.Input((2,))
        return tf.keras.Model(x, end(x))

    with pytest.raises(DataError, match=r"last layer has a softmax, .* takes logits"):
        made(model=model).keras_model(0)
    loss = "sparse_categorical_crossentropy"
    assert made(model=model, loss=loss, target_type="category").keras_model(0).count_params() == 9


def test_test_columns_in_another_order_are_refused():
    df = frame().assign(a=np.arange(24) % 7)
    fields = {"model": dense(3), "users": df.who}
    with pytest.raises(DataError, match=r"its columns in another order; give test_x\[x\.columns\]"):
        tasks.from_arrays(df[["a", "b"]], df.kind, test_arrays=(df[["b", "a"]], df.kind), **fields)
    other = df[["a", "b"]].rename(columns={"b": "c"})
    with pytest.raises(DataError, match="only one of both x has the column 'c'"):
        tasks.from_arrays(df[["a", "b"]], df.kind, test_arrays=(other, df.kind), **fields)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ddof", [0, 1])
def test_test_rows_standardised_by_themselves_are_said(dtype, ddof):
    """As by `StandardScaler().fit_transform(x_test)`."""
    rng = np.random.default_rng(0)
    x, other = rng.normal(50, 9, (5000, 2)), rng.normal(53, 9, (60, 2))
    mean, deviation = x.mean(0), x.std(0, ddof=ddof)
    constant = np.ones((5000, 1))

    def warned(test_x, rows=slice(None), training=x):
        # A column that is not standardised, as of a category, says nothing.
        scaled = [(training - mean) / deviation, constant[: len(training)]]
        others = np.concatenate([test_x, constant[: len(test_x)]], 1)[rows].astype(dtype)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            tasks.from_arrays(
                np.concatenate(scaled, 1).astype(dtype),
                np.arange(len(training)) / 7,
                np.arange(len(training)) % 4,
                model=dense(1, 3),
                test_arrays=(others, np.arange(len(others)) / 9),
            )
        return [str(w.message) for w in found]

    by_itself = (other - other.mean(0)) / other.std(0, ddof=ddof)
    (line,) = warned(by_itself)
    assert line.startswith("test rows have a mean of 0 and a deviation of 1 by themselves")
    assert not warned((other - mean) / deviation)
    assert not warned(by_itself, slice(10, 60))
    assert not warned(by_itself[:19])
    assert not warned(by_itself, training=x[:4000])


def test_copies_of_training_rows_are_counted_wherever_they_are_held_out():
    df = frame()
    near = df.assign(a=df.a + 0.5)
    both = pd.concat([near[:20], df[:4]])
    fields = {"user": "who", "target": "kind", "model": dense(3)}
    says = "4 of 24 test rows have the inputs and target of a training row; if they are copies"
    with pytest.warns(RuntimeWarning, match=says):
        tasks.from_frame(df, test_frame=both, **fields)
    with pytest.warns(RuntimeWarning, match="24 of 24 validation rows have"):
        tasks.from_frame(df, validation=df, test=None, **fields)
    made(df, test_frame=near)
    # Another target is another example.
    made(df, test_frame=df.assign(kind=np.roll(df.kind, 4)))
    twice = pd.concat([df, df], ignore_index=True)
    with pytest.warns(RuntimeWarning, match=r"\d of \d+ test rows have the inputs and target"):
        tasks.from_frame(twice, **fields)
    x = np.repeat(np.arange(12.0), 2)[:, None]
    with pytest.warns(RuntimeWarning, match="6 of 6 test rows have"):
        tasks.from_arrays(
            x[::2],
            x[::2, 0],
            None,
            partition="iid",
            num_clients=2,
            model=dense(1, 1),
            test_arrays=(x[:6].astype(np.float32), x[:6, 0]),
        )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": dense(4)}, "the model gives 4 outputs, but target 'kind' has 3 classes"),
        ({"model": dense(3, activation="softmax")}, "last layer has a softmax, .* takes logits"),
        ({"target": "a", "features": ["b"], "model": dense(2, 1)}, "target 'a' is a number: give"),
    ],
)
def test_a_model_that_does_not_fit_the_target(tmp_path, changes, says):
    with pytest.raises(DataError, match=says):
        simulation.run(task=made(**changes), root_output_dir=tmp_path, **SETTINGS)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target": "a", "features": ["b"], "model": dense(1, 1)},
        {"loss": "sparse_categorical_crossentropy", "model": dense(3, activation="softmax")},
        {"validation": 0.2, "standardize": True},
    ],
    ids=["classes", "numbers", "own loss", "validation"],
)
def test_it_runs_and_keeps_what_numbers_stand_for(tmp_path, changes):
    task = made(**changes)
    result = simulation.run(task=task, root_output_dir=tmp_path, **SETTINGS)
    assert np.isfinite(result.rounds["eval/loss"]).all()
    kept = json.loads(pathlib.Path(result.folder, "encoding.json").read_text())
    assert kept == task.encoding


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool"])
def test_whole_numbers_train_a_float_model_as_the_same_floats_do(tmp_path, dtype):
    df = frame()
    x = df[["a", "b"]].to_numpy().astype(dtype)
    rounds = []
    for inputs in (x, x.astype("float32")):
        task = tasks.from_arrays(inputs, df.kind, df.who, model=dense(3))
        folder = tmp_path / inputs.dtype.name
        rounds.append(simulation.run(task=task, root_output_dir=folder, **SETTINGS).rounds)
    measured = [c for c in rounds[0] if c.startswith(("train/", "eval/", "fairness/"))]
    pd.testing.assert_frame_equal(rounds[0][measured], rounds[1][measured], check_exact=True)


def test_other_rows_are_another_run(tmp_path):
    from simulation.errors import ChangedError

    simulation.run(task=made(), root_output_dir=tmp_path, **SETTINGS)
    with pytest.raises(ChangedError, match="data"):
        simulation.run(task=made(frame(28)), root_output_dir=tmp_path, **SETTINGS)


def test_no_tensorflow_is_imported_to_make_a_task():
    program = """
import sys
import pandas as pd
import tasks
df = pd.DataFrame({"u": list("aabb"), "x": [1.0, 2, 3, 4], "y": list("pqpq")})
tasks.from_frame(df, user="u", target="y", model=lambda seed: None)
assert "tensorflow" not in sys.modules
"""
    repo = pathlib.Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=repo, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
