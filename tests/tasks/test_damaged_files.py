"""Whatever a data file holds: a task that is whole, or one line that names what is wrong.

Small whole files of every form (`published_forms`) are damaged as disks, downloads, editors and
other programs do it, and loaded as a user's run loads them.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import random
import resource
import sqlite3
import struct
import tarfile
import zlib

import h5py
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import tasks
from tasks import plot, prepare
from tasks.formats import plain_pickle, sqlite_clients
from tasks.task import DataError
from tests.tasks.published_forms import FORMS, Copy
from tests.tasks.tffs_files import with_text_that_is_none
from tff_suite.hparams import HparamError

pytestmark = pytest.mark.slow

_LOADS = {"whole": 0, "refused": 0}


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """Returns forms' copies by name, each made when it is asked for first."""
    made = {}

    def copy(name):
        if name not in made:
            made[name] = Copy(FORMS[name], tmp_path_factory.mktemp(name))
        made[name].restore()
        return made[name]

    yield copy
    print(f"\n{sum(_LOADS.values())} loads of damaged files: {_LOADS}")


def _load(copy):
    """Loads a damaged form: it is as the whole one, or refused in one line, which is returned."""
    try:
        assert copy.form.load(copy.folder) == copy.kind
        _LOADS["whole"] += 1
        return None
    except (DataError, HparamError) as error:
        _LOADS["refused"] += 1
        said = str(error)
        assert len(said.splitlines()) == 1 and said.isprintable() and len(said) < 4000, said
        return said
    finally:
        copy.restore()


def _load_with(copy, name, content):
    (copy.folder / name).write_bytes(content)
    return _load(copy)


# What can stand in the place of a file.


def _link_to_itself(path):
    path.symlink_to(path.name)


def _link_to_nothing(path):
    path.symlink_to("nothing")


_PLACES = {
    "missing": (lambda path: None, "missing"),
    "folder": (lambda path: path.mkdir(), "folder|directory"),
    "link to itself": (_link_to_itself, "symbolic links"),
    "link to nothing": (_link_to_nothing, "missing"),
    "pipe": (os.mkfifo, "regular"),
    "empty": (lambda path: path.write_bytes(b""), ""),
}


def _check_place(copy, name, place):
    make, word = _PLACES[place]
    path = copy.folder / name
    path.unlink()
    make(path)
    said = _load(copy)
    # Without one of several files a set of them may still be whole.
    if said is None:
        assert place in ("missing", "empty") and len(copy.names) > 1, name
    elif place != "missing" and "has no" not in said and " is missing" not in said:
        assert any(part in said for part in word.split("|")), said


@pytest.mark.quick_cases("[!t]*", "tfds_cifar10-*", "tiny*")
@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_what_stands_in_a_files_place_is_said(copies, form, place):
    copy = copies(form)
    of_an_ending = {os.path.splitext(name)[1]: name for name in copy.names}
    for name in of_an_ending.values():
        _check_place(copy, name, place)


@pytest.mark.long
@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_what_stands_in_any_files_place_is_said(copies, form, place):
    copy = copies(form)
    for name in copy.names:
        _check_place(copy, name, place)


# What can happen to bytes.

CODECS = {
    ".gz": (gzip.decompress, lambda data: gzip.compress(data, 1)),
    ".xz": (lzma.decompress, lambda data: lzma.compress(data, preset=0)),
    ".lzma": (lzma.decompress, lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE)),
    ".bz2": (bz2.decompress, bz2.compress),
}


@st.composite
def _damages(draw):
    """Draws what turns bytes into damaged ones; places are shares of the length."""
    how = draw(st.sampled_from(["cut", "flip", "flip", "replace", "repeat", "insert", "zero"]))
    place = draw(st.one_of(st.floats(0, 1), st.integers(0, 300)))
    length = draw(st.integers(1, 64))
    other = draw(st.binary(min_size=1, max_size=32))
    bit = draw(st.integers(0, 7))

    def damage(data):
        at = min(len(data), place if isinstance(place, int) else int(place * len(data)))
        rest = data[at + length :]
        if how == "cut":
            return data[:at]
        if how == "flip":
            at = min(at, len(data) - 1)
            return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        if how == "replace":
            return data[:at] + (other * length)[:length] + rest
        if how == "repeat":
            return data[: at + length] + data[at:]
        if how == "insert":
            return data[:at] + other + data[at:]
        return data[:at] + bytes(length) + rest

    return damage


def _damage_bytes(copy, data):
    name = data.draw(st.sampled_from(copy.names), "file")
    damage = data.draw(_damages(), "damage")
    unpack, pack = CODECS.get(os.path.splitext(name)[1], (None, None))
    whole = copy.files[name]
    if unpack and data.draw(st.booleans(), "inside"):
        _load_with(copy, name, pack(damage(unpack(whole))))
    else:
        _load_with(copy, name, damage(whole))


_QUICK = hypothesis.settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
_LONG = hypothesis.settings(
    max_examples=600,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.mark.quick_cases("[!t]*", "tfds_cifar10", "tiny*")
@pytest.mark.parametrize("form", FORMS)
def test_damaged_bytes(copies, form):
    hypothesis.given(st.data())(_QUICK(lambda data: _damage_bytes(copies(form), data)))()


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("form", FORMS)
def test_damaged_bytes_in_numbers(copies, form):
    hypothesis.given(st.data())(_LONG(lambda data: _damage_bytes(copies(form), data)))()


# What can happen to JSON.

_DEEP = "@deep"
_STRANGE = [
    None,
    True,
    False,
    -1,
    62,
    10**12,
    10**30,
    1.5,
    float("nan"),
    float("inf"),
    1e308,
    "",
    "0",
    "\ud800",
    "\n\0",
    "x" * 5000,
    [],
    [[]],
    {},
    {"a": [None]},
    _DEEP,
]


def _dumps(value):
    deep = 100_000
    return json.dumps(value).replace(f'"{_DEEP}"', "[" * deep + "]" * deep).encode()


def _replaced(value, data):
    """Returns JSON with one value in it, drawn at random, replaced, doubled or removed."""
    if isinstance(value, (dict, list)) and value and data.draw(st.integers(0, 5), "deeper"):
        keys = list(value) if isinstance(value, dict) else list(range(min(len(value), 40)))
        key = data.draw(st.sampled_from(keys), "key")
        value = value.copy()
        how = data.draw(st.sampled_from(["deeper"] * 4 + ["remove", "double"]), "how")
        if how == "deeper":
            value[key] = _replaced(value[key], data)
        elif how == "remove":
            del value[key]
        elif isinstance(value, list):
            value.insert(key, value[key])
        else:
            value[f"{key} "] = value[key]
        return value
    return data.draw(st.sampled_from(_STRANGE), "value")


_JSON = {
    "femnist": "all_data/all_data_1.json",
    "femnist_split": "test/all_data_0_niid_0_keep_0_test_8.json",
    "femnist_prepared": "femnist.prepared/manifest.json",
    "femnist_by_user": "train/all_data_0_keep_1_train_6.json",
    "sent140_leaf": "all_data/all_data_all_data_9.json",
    "sent140_scripts": "test/all_data_test_8.json",
    "shakespeare_leaf": "train/all_data_0_train_6.json",
    "sent140_prepared": "sent140.prepared/manifest.json",
    "cinic10_prepared": "cinic10.prepared/manifest.json",
    "clothing1m_prepared": "clothing1m.prepared/manifest.json",
    "stackoverflow_tag": "stackoverflow.tag_count",
    "sent140_lines": "sent140_k30_test_part.jsonl.gz",
    "stackexchange_word": "matheducators_2014_posts.jsonl.gz",
    "stackexchange_tag": "matheducators_2014_posts.jsonl.gz",
    "tfds_cifar10": "cifar10/3.0.2/dataset_info.json",
    "tfds_cifar100": "cifar100/3.0.2/features.json",
}


def _damage_json(copy, name, data):
    whole = copy.files[name]
    if name.endswith(".jsonl.gz"):
        lines = [json.loads(line) for line in gzip.decompress(whole).splitlines()]
        place = data.draw(st.integers(0, len(lines) - 1), "line")
        lines[place] = _replaced(lines[place], data)
        content = gzip.compress(b"".join(_dumps(line) + b"\n" for line in lines), 1)
    else:
        content = _dumps(_replaced(json.loads(whole), data))
    _load_with(copy, name, content)


@pytest.mark.parametrize("form", _JSON)
def test_damaged_json(copies, form):
    hypothesis.given(st.data())(
        hypothesis.settings(_QUICK, max_examples=30)(
            lambda data: _damage_json(copies(form), _JSON[form], data)
        )
    )()


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("form", _JSON)
def test_damaged_json_in_numbers(copies, form):
    hypothesis.given(st.data())(_LONG(lambda data: _damage_json(copies(form), _JSON[form], data)))()


def _every_value(value, path=()):
    yield path
    if isinstance(value, (dict, list)):
        for key in list(value)[:3] if isinstance(value, dict) else range(min(len(value), 2)):
            yield from _every_value(value[key], (*path, key))


def _with(value, path, new):
    if not path:
        return new
    value = value.copy()
    value[path[0]] = _with(value[path[0]], path[1:], new)
    return value


@pytest.mark.long
@pytest.mark.parametrize("form", _JSON)
def test_every_strange_value_at_every_place_of_json(copies, form):
    copy, name = copies(form), _JSON[form]
    whole, lines = copy.files[name], None
    if name.endswith(".jsonl.gz"):
        lines = [json.loads(line) for line in gzip.decompress(whole).splitlines()]
    one = json.loads(whole) if lines is None else lines[0]
    for path in _every_value(one):
        for strange in _STRANGE:
            changed = _dumps(_with(one, path, strange))
            if lines is not None:
                changed = b"\n".join([changed, *map(_dumps, lines[1:])])
                changed = gzip.compress(changed, 1)
            _load_with(copy, name, changed)


@pytest.mark.parametrize(
    ("form", "path", "value", "said"),
    [
        ("femnist", ("user_data", "f0100_08", "x", 0, 5), float("nan"), "NaN"),
        ("femnist", ("user_data", "f0100_08", "x", 0, 5), "0.5", "type"),
        ("femnist", ("user_data", "f0100_08", "x", 0, 5), 1e308, "pixels"),
        ("femnist", ("user_data", "f0100_08", "y", 0), 62, "labels"),
        ("femnist", ("user_data", "f0100_08", "y", 0), True, "labels"),
        ("femnist", ("users", 0), "", "name"),
        ("femnist", (), _DEEP, "deep"),
        ("femnist", (), {"users": [], "num_samples": [], "user_data": {}}, None),
        ("sent140_leaf", (), {"users": [], "num_samples": [], "user_data": {}}, "no tweets"),
        ("sent140_leaf", ("user_data", "bob", "x", 0, 4), "love \ud83d", None),
        ("sent140_leaf", ("user_data", "bob", "y", 0), True, "labels"),
        ("sent140_leaf", (), _DEEP, "deep"),
        ("stackoverflow_tag", ("sql",), float("inf"), "Infinity"),
        ("stackoverflow_tag", ("sql",), 5.5, "float"),
        ("stackoverflow_tag", (), [1, 0], "object"),
        ("stackoverflow_tag", (), {"\ud800": 1}, "surrogates"),
        ("stackoverflow_tag", (), _DEEP, "deep"),
        ("femnist_prepared", ("rows",), -1, "rows"),
        ("femnist_prepared", ("rows",), 10**12, "rows"),
        ("femnist_prepared", ("clients",), [["all", "a", 99]], "rows"),
        ("femnist_prepared", ("clients", 0, 2), 7.0, "rows"),
        ("femnist_prepared", ("arrays", "x", "dtype"), "|O", "arrays"),
        ("femnist_prepared", ("arrays", "x"), {"dtype": "<i8", "shape": [98]}, "arrays"),
        ("femnist_prepared", (), _DEEP, "deep"),
        ("cinic10_prepared", ("clients", 0, 0), "test", None),
        ("cinic10_prepared", ("clients", 0, 1), "a", "parts"),
        ("clothing1m_prepared", ("clients", 1, 0), "train", "parts"),
    ],
)
def test_values_that_got_through(copies, form, path, value, said):
    copy, name = copies(form), _JSON[form]
    error = _load_with(copy, name, _dumps(_with(json.loads(copy.files[name]), path, value)))
    if said is not None:
        assert said in error and os.path.dirname(name) in error


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tags": "abc"}, "'tags' is str"),
        ({"tags": [1, "a"]}, "a tag"),
        ({"tags": [["a"]]}, "a tag"),
        ({"text": None}, "'text' is NoneType"),
        ({"user_id": {}}, "'user_id' is dict"),
        ({"title": _DEEP}, "deep"),
        ({"post_id": 2}, "twice"),
    ],
)
def test_posts_that_got_through(copies, change, said):
    copy, name = copies("stackexchange_tag"), _JSON["stackexchange_tag"]
    first, *rest = gzip.decompress(copy.files[name]).splitlines()
    content = b"\n".join([_dumps({**json.loads(first), **change}), *rest])
    assert said in _load_with(copy, name, gzip.compress(content, 1))
    assert "no posts" in _load_with(copy, name, gzip.compress(b""))


# What can happen to arrays.


def _npy(array, **header):
    """Returns an array in NumPy's format, with another header if one is given."""
    buffer = io.BytesIO()
    if header:
        known = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(buffer, {**known, **header})
        return buffer.getvalue() + array.tobytes()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def _npz(members):
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def _strange_arrays(array):
    """Yields an array's bytes in NumPy's format, changed in each way in which it can be wrong."""
    yield _npy(array.astype(np.float32))
    yield _npy(np.full(array.shape, np.nan))
    yield _npy(array.astype(bool))
    yield _npy(array.astype("U8"))
    yield _npy(array.astype(object))
    yield _npy(array[:-1])
    yield _npy(array[None])
    yield _npy(array[0])
    yield _npy(array[:0])
    yield _npy(np.full(array.shape, -1))
    yield _npy(np.full(array.shape, 2**40))
    yield _npy(np.full(array.shape, 2**63, np.uint64))
    for n in (10**12, 10**18, -1):
        yield _npy(array, shape=(n, *array.shape[1:]))
    yield _npy(array, descr="|O")
    yield _npy(array)[:-5]
    yield _npy(array) + b"more"
    yield b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535
    yield b"no array"
    yield b""


def test_damaged_arrays(copies):
    copy, name = copies("mnist_writers"), "writers.npz"
    with np.load(io.BytesIO(copy.files[name])) as arrays:
        whole = dict(arrays)
    for changed in whole:
        for content in _strange_arrays(whole[changed]):
            members = {k: _npy(v) for k, v in whole.items()}
            # A writer's id may be any number.
            said = _load_with(copy, name, _npz({**members, changed: content}))
            assert said is None or name in said
    # One array by itself, no archive of arrays: a file of another kind by the same name.
    assert name in _load_with(copy, name, _npy(np.arange(3)))
    # What NumPy's own reader let through as zlib's error.
    content = bytearray(_npz({k: _npy(np.tile(v, 50)) for k, v in whole.items()}))
    for place in range(60, len(content) // 2, 7):
        content[place] ^= 0xFF
    assert name in _load_with(copy, name, bytes(content))


# What can happen to a database.

_SQL_FORMS = ("emnist", "shakespeare", "stackoverflow_word", "cifar100_tff")
_VALUES = (
    "NULL",
    "-1",
    "0",
    "2.5",
    "'three'",
    "1000000000",
    "1000000000000",
    "9223372036854775807",
    "1e300",
    "x''",
    "x'ff00ff'",
    "CAST(x'ff' AS TEXT)",
    "''",
    "'a' || char(10) || 'b'",
    "zeroblob(3000)",
)
_COLUMNS = (
    ("client_metadata", "num_examples"),
    ("client_metadata", "client_id"),
    ("client_metadata", "split_name"),
    ("examples", "serialized_example_proto"),
    ("examples", "client_id"),
    ("examples", "split_name"),
)
_STATEMENTS = (
    "DROP TABLE examples",
    "DROP TABLE client_metadata",
    "DELETE FROM examples",
    "DELETE FROM client_metadata",
    "DELETE FROM examples WHERE rowid = 1",
    "DELETE FROM examples WHERE rowid = (SELECT max(rowid) FROM examples)",
    "INSERT INTO examples SELECT * FROM examples",
    "INSERT INTO client_metadata SELECT * FROM client_metadata",
    "INSERT INTO client_metadata SELECT client_id, split_name, 3 FROM client_metadata",
    "INSERT INTO client_metadata SELECT 'new', split_name, 2 FROM client_metadata",
    "UPDATE client_metadata SET num_examples = num_examples + 1",
    "UPDATE client_metadata SET num_examples = num_examples + 1 WHERE split_name LIKE '%test'",
    "ALTER TABLE examples RENAME COLUMN serialized_example_proto TO other",
    "ALTER TABLE client_metadata RENAME COLUMN num_examples TO other",
    "ALTER TABLE examples RENAME TO other",
)


def _sql_damages():
    yield from _STATEMENTS
    for table, column in _COLUMNS:
        for value in _VALUES:
            # Without its own rules, a table takes anything.
            free = (
                f"CREATE TABLE free AS SELECT * FROM {table}; DROP TABLE {table}; "
                f"ALTER TABLE free RENAME TO {table}; "
            )
            for which in ("", " WHERE rowid = 2"):
                yield f"{free} UPDATE {table} SET {column} = {value}{which}"


def _damage_database(copy, statements):
    (name,) = (name for name in copy.names if name.endswith(".sqlite"))
    connection = sqlite3.connect(copy.folder / name)
    connection.executescript(statements)
    connection.commit()
    connection.close()
    return _load(copy)


@pytest.mark.parametrize("form", _SQL_FORMS)
def test_damaged_databases(copies, form):
    for i, statements in enumerate(_sql_damages()):
        if i < len(_STATEMENTS) or form == "emnist" or i % 7 == 0:
            _damage_database(copies(form), statements)


@pytest.mark.long
@pytest.mark.parametrize("form", _SQL_FORMS)
def test_databases_damaged_in_every_way(copies, form):
    for statements in _sql_damages():
        _damage_database(copies(form), statements)


@pytest.mark.quick_cases("*-30")
@pytest.mark.parametrize("times", [30, 1000])
@pytest.mark.parametrize("form", _SQL_FORMS)
def test_databases_with_text_that_is_none(copies, form, times):
    copy, rng = copies(form), random.Random(times)
    (name,) = (name for name in copy.names if name.endswith(".sqlite"))
    said = {
        _load_with(copy, name, with_text_that_is_none(copy.files[name], rng)) for _ in range(times)
    }
    assert any(line and name in line for line in said)


@pytest.mark.parametrize("column", ["client_id", "split_name", "num_examples"])
@pytest.mark.parametrize("form", _SQL_FORMS)
def test_databases_with_values_that_are_no_text(copies, form, column):
    value = f"CAST({column} || x'ff' AS TEXT)"
    said = _damage_database(copies(form), f"UPDATE client_metadata SET {column} = {value}")
    assert ".sqlite" in said


@pytest.mark.parametrize("form", _SQL_FORMS)
@pytest.mark.parametrize("value", ["NULL", "-1", "2.5", "'three'", "1000000000000", "1e300"])
def test_sizes_that_are_none_are_refused(copies, form, value):
    free = (
        "CREATE TABLE free AS SELECT * FROM client_metadata; DROP TABLE client_metadata; "
        "ALTER TABLE free RENAME TO client_metadata; "
    )
    said = _damage_database(copies(form), f"{free} UPDATE client_metadata SET num_examples={value}")
    assert "is damaged in its split" in said or "different sizes" in said


def test_labels_beyond_32_bits_are_refused(tmp_path):
    # 2**32 + 5 became 5.
    from tests.tasks.datasets import test_emnist_character as writer

    writer._write(
        tmp_path / "emnist_all.sqlite", lambda pixels, y: writer._example(pixels, 2**32 + 5)
    )
    with pytest.raises(DataError, match="labels from 4294967301"):
        FORMS["emnist"].load(tmp_path)


def test_pooled_examples_are_as_many_as_announced(copies):
    said = _damage_database(
        copies("cifar100_tff"),
        "UPDATE examples SET client_id = '1' WHERE rowid = "
        "(SELECT rowid FROM examples WHERE split_name = 'test' AND client_id = '0')",
    )
    assert "2 examples of client '0'" in said and "announces 3" in said


# What can happen to a pickle.


def test_no_pickled_value_gets_through(copies):
    copy = copies("cifar100_python")
    name = "cifar-100-python/test"
    whole = pickle.loads(copy.files[name], encoding="bytes")
    for key in whole:
        for strange in [
            *(value for value in _STRANGE if value != _DEEP),
            np.full(100, 100),
            np.full(100, 1.5),
            np.full(100, np.nan),
            np.arange(100)[None],
            np.array([0, None]),
            np.zeros((100, 3072), np.uint8)[:, :-1],
            np.zeros((99, 3072), np.uint8),
            [0] * 99,
            [True] * 100,
            [[0]] * 100,
            [2**70] * 100,
        ]:
            changed = pickle.dumps({**whole, key: strange}, protocol=2)
            assert name in _load_with(copy, name, changed)
    assert name in _load_with(copy, name, pickle.dumps([1, 2], protocol=2))
    for protocol in range(6):
        assert _load_with(copy, name, pickle.dumps(whole, protocol)) is None


def _global(module, name):
    return f"c{module}\n{name}\n".encode()


def test_a_pickle_calls_nothing_of_anybody_elses(copies, tmp_path):
    copy = copies("cifar100_python")
    name = "cifar-100-python/train"
    array = _global("numpy", "ndarray")
    hostile = {
        # An array of objects over bytes of the file's choice: a pointer to anywhere.
        "pointers": array + b"((I1\nt(VO\nC\x08AAAAAAAAtR.",
        "objects": _global("numpy", "dtype") + b"(VO\nI0\nI1\ntR.",
        "memory": array + b"((L1000000000000L\ntVu1\ntR.",
        "shell": _global("os", "system") + f"(Vtouch {tmp_path}/ran\ntR.".encode(),
        "loader": _global("numpy.core.multiarray", "_reconstruct.__globals__") + b".",
        "extension": b"\x82\x01.",
        "persistent": b"Pname\n.",
        # A place in the memo that takes 34 GB in the unpickler written in C.
        "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
        "buffer": _global("numpy.core.numeric", "_frombuffer")
        + b"(VO\n"
        + _global("numpy", "dtype")
        + b"(Vu1\nI0\nI1\ntR(I1\ntVC\ntR.",
        "deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    }
    for what, content in hostile.items():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert name in _load_with(copy, name, content), what
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000, what
    assert not (tmp_path / "ran").exists()
    assert all(
        kind.__module__ == plain_pickle.__name__
        for kind in plain_pickle.PlainUnpickler._STAND_INS.values()
    )


# What can happen to HDF5.


def _huge(group, name, shape, dtype):
    del group[name]
    group.create_dataset(name, shape, dtype, chunks=(1, *shape[1:]))


# The training file of each form, and a client of it.
_H5_FORMS = {
    "cifar100_h5": ("fed_cifar100_train.h5", "0"),
    "emnist_h5": ("fed_emnist_train.h5", "f0000_14"),
    "shakespeare_h5": ("shakespeare_train.h5", "ALL_S_WELL_THAT_ENDS_WELL_CELIA"),
    "stackoverflow_h5": ("stackoverflow_train.h5", "00000010"),
}


def _h5_changes(group, name):
    """Yields what turns a dataset of a client's into one that is not TFF's."""
    whole = group[name][()]
    is_text = whole.dtype.kind == "S"

    def set_to(value):
        def change(group):
            del group[name]
            group[name] = value

        return change

    yield lambda group: group.__delitem__(name)
    yield set_to(3)
    yield set_to(np.full(whole.shape, np.nan))
    yield set_to(np.full(whole.shape, 1 if is_text else b"a"))
    yield set_to(whole[None])
    yield set_to(h5py.SoftLink("/nowhere"))
    yield set_to(h5py.ExternalLink("other.h5", "/x"))
    yield lambda group: (group.__delitem__(name), group.create_group(name))
    if whole.ndim > 1:
        yield set_to(whole.reshape(len(whole), -1))
        yield set_to(np.full(whole.shape, 256.0 if whole.dtype.kind == "f" else 256))
    if len(group) > 1:
        yield set_to(whole[:-1])
    types = [whole.dtype, h5py.string_dtype()] if is_text else [whole.dtype]
    for dtype in types:
        for rows in (10**12, 10**7):
            yield lambda group, t=dtype, n=rows: _huge(group, name, (n, *whole.shape[1:]), t)


@pytest.mark.parametrize("form", _H5_FORMS)
def test_damaged_hdf5(copies, form):
    copy, (name, client) = copies(form), _H5_FORMS[form]
    with h5py.File(copy.folder / name) as file:
        group = file["examples"][client]
        read = {"image", "label", "pixels", "snippets", "tokens", "title", "tags"}
        changes = [c for key in sorted(read & set(group)) for c in _h5_changes(group, key)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for change in changes:
        with h5py.File(copy.folder / name, "r+") as file:
            change(file["examples"][client])
        said = _load(copy)
        assert said and name in said, change
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


@pytest.mark.parametrize("value", [100, -1, np.nan])
def test_labels_in_hdf5_are_in_range(copies, value):
    copy = copies("cifar100_h5")
    with h5py.File(copy.folder / "fed_cifar100_train.h5", "r+") as file:
        del file["examples/0/label"]
        file["examples/0/label"] = np.full(3, value)
    assert "fed_cifar100_train.h5" in _load(copy)


def test_both_rows_of_a_client_do_not_take_memory(copies):
    copy = copies("cifar100_h5")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with h5py.File(copy.folder / "fed_cifar100_train.h5", "r+") as file:
        group = file["examples/0"]
        _huge(group, "label", (10**6,), np.int64)
        _huge(group, "image", (10**6, 32, 32, 3), np.uint8)
    assert "fed_cifar100_train.h5" in _load(copy)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


@pytest.mark.parametrize(
    "value", [np.full((7, 7, 3, 64), np.nan), np.full((7, 7, 3, 64), b"a"), "huge"]
)
def test_damaged_weights(copies, value):
    copy = copies("clothing1m")
    with h5py.File(copy.folder / "weights.h5", "r+") as file:
        if isinstance(value, str):
            _huge(file["conv1_conv"], "kernel", (10**7, 10**3), np.float32)
        else:
            del file["conv1_conv/kernel"]
            file["conv1_conv/kernel"] = value
    assert "weights.h5" in _load(copy)


# What a header may claim.


@pytest.mark.parametrize("rows", [10**9, 2**32 - 1])
def test_an_idx_header_does_not_take_memory(copies, rows):
    copy = copies("fashion_mnist")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in copy.names:
        inner = gzip.decompress(copy.files[name])
        content = gzip.compress(inner[:4] + struct.pack(">I", rows) + inner[8:])
        assert name in _load_with(copy, name, content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("form", "name", "member"),
    [
        ("cifar10_archive", "cifar-10-python.tar.gz", "cifar-10-batches-py/data_batch_1"),
        ("cinic10_archive", "CINIC-10.tar.gz", "CINIC-10/train/dog/a.png"),
        ("stackoverflow_word", "stackoverflow.word_count.tar.bz2", "stackoverflow.word_count"),
    ],
)
def test_an_archives_member_does_not_take_memory(copies, form, name, member, sparse):
    copy = copies(form)
    info = tarfile.TarInfo(member)
    info.size = 10**12
    if sparse:
        info.size = 512
        info.pax_headers = {
            "GNU.sparse.map": "0,512",
            "GNU.sparse.size": str(10**12),
            "GNU.sparse.realsize": str(10**12),
        }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=f"w:{name[-2:].replace('z2', 'bz2')}") as archive:
        archive.addfile(info if sparse else tarfile.TarInfo("first"), io.BytesIO(bytes(512)))
    content = packed.getvalue()
    if not sparse:
        pack = gzip.compress if name.endswith("gz") else bz2.compress
        content = pack(info.tobuf() + bytes(1024))
    assert name in _load_with(copy, name, content)


def _png(width, height):
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(99)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("form", ["cinic10", "tiny_imagenet", "clothing1m"])
def test_a_pictures_header_does_not_take_memory(copies, form):
    copy = copies(form)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pictures = [name for name in copy.names if name.endswith((".png", ".JPEG", ".jpg"))]
    assert pictures[0] in _load_with(copy, pictures[0], _png(12_000, 12_000))
    whole = copy.files[pictures[0]]
    if whole.startswith(b"\xff\xd8"):
        at = whole.index(b"\xff\xc0") + 5
        content = whole[:at] + struct.pack(">2H", 65_000, 65_000) + whole[at + 4 :]
        assert pictures[0] in _load_with(copy, pictures[0], content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700_000


# What belongs together and does not.


def test_pictures_of_a_set_have_their_shape(copies):
    # One of 1x1 became one of 256x256.
    copy = copies("clothing1m_prepared")
    small = io.BytesIO()
    from PIL import Image

    Image.fromarray(np.zeros((1, 1, 3), np.uint8)).save(small, "JPEG")
    small = small.getvalue()
    folder = copy.folder / "clothing1m.prepared"
    number = len(copy.files["clothing1m.prepared/y"])
    manifest = json.loads(copy.files["clothing1m.prepared/manifest.json"])
    (folder / "image.values").write_bytes(small * number)
    ends = np.arange(1, number + 1, dtype="<i8") * len(small)
    (folder / "image.ends").write_bytes(ends.tobytes())
    manifest["files"]["image.values"]["bytes"] = len(small) * number
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "its shape is" in _load(copy)


@pytest.mark.parametrize(
    ("form", "limit"), [("femnist", 62), ("sent140", 2), ("cinic10", 10), ("clothing1m", 14)]
)
def test_labels_of_a_set_are_in_range(copies, form, limit):
    copy = copies(f"{form}_prepared")
    name = f"{form}.prepared/y"
    said = _load_with(copy, name, bytes([limit]) + copy.files[name][1:])
    assert name in said and f"to {limit}, outside" in said


@pytest.mark.parametrize("form", ["sent140", "clothing1m"])
def test_strings_of_a_set_follow_each_other(copies, form):
    copy = copies(f"{form}_prepared")
    for array in ("text.ends", "image.ends"):
        name = f"{form}.prepared/{array}"
        if name in copy.files:
            ends = np.frombuffer(copy.files[name], "<i8")
            for changed in (ends[::-1], ends - 1, np.full_like(ends, 2**62), -ends):
                assert name in _load_with(copy, name, changed.astype("<i8").tobytes())


def test_classes_of_tiny_imagenet_are_different_and_not_more_than_200(copies):
    copy = copies("tiny_imagenet")
    assert "2 of them different" in _load_with(copy, "wnids.txt", b"n02\nn01\nn02\n")
    many = "\n".join(f"n{i:03}" for i in range(257)).encode()
    assert "257 classes" in _load_with(copy, "wnids.txt", many)
    lines = copy.files["val/val_annotations.txt"].splitlines(keepends=True)
    assert "twice" in _load_with(copy, "val/val_annotations.txt", b"".join([lines[0], *lines]))


def test_a_play_that_is_cut_off_or_there_twice_is_refused(copies):
    copy, name = copies("play_text"), "t8.shakespeare.txt"
    whole = copy.files[name]
    half = len(whole) // 2
    assert "35 of 36 works have an end" in _load_with(copy, name, whole[:-300])
    assert "a play twice" in _load_with(copy, name, whole[:half] + whole[half - 2000 :])
    # Time must not grow with the square of the works' number.
    _load_with(copy, name, b"A\n\nby William Shakespeare\n\n  LEAR. Ay.\n" * 50_000)


def test_what_is_left_of_a_preparation_is_not_trusted(tmp_path):
    from tests.tasks.formats import test_prepared

    whole = tmp_path / "whole"
    test_prepared.prepared.write(test_prepared.source(), str(whole), "toy")
    wanted = test_prepared._bytes(whole / "toy.prepared")
    for i, damage in enumerate(["shorter", "no journal", "deep", "list", "counts", "file"]):
        folder = tmp_path / str(i)
        with pytest.raises(DataError):
            test_prepared.prepared.write(test_prepared.source(fail_at=3), str(folder), "toy")
        left = folder / "toy.preparing"
        journal = left / "journal.jsonl"
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        if damage == "shorter":
            (left / "x").write_bytes((left / "x").read_bytes()[:-3])
        elif damage == "no journal":
            journal.write_bytes(b"\xff\xfe\n")
        elif damage == "deep":
            journal.write_bytes(_dumps(_DEEP) + b"\n")
        elif damage == "list":
            journal.write_text("[1]\n")
        elif damage == "counts":
            lines[0]["clients"] = [["train", "c0", "4"]]
            journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
        else:
            for path in left.iterdir():
                path.unlink()
            left.rmdir()
            left.write_text("a file")
        test_prepared.prepared.write(test_prepared.source(), str(folder), "toy")
        assert test_prepared._bytes(folder / "toy.prepared") == wanted


@pytest.mark.parametrize("key", ["files", "made_of", "arrays"])
def test_a_set_is_checked_by_a_manifest_that_is_checked(tmp_path, key):
    from tests.tasks.formats import test_prepared

    made = test_prepared.prepared.write(test_prepared.source(), str(tmp_path), "toy")
    path = os.path.join(made.path, "manifest.json")
    with open(path) as file:
        manifest = json.load(file)
    for strange in (None, 3, [], {}, {"x": None}, {"x": {"bytes": 90, "sha256": 5}}):
        with open(path, "w") as file:
            json.dump({**manifest, key: strange}, file)
        with pytest.raises(DataError):
            test_prepared.prepared.write(test_prepared.source(), str(tmp_path), "toy")


# The folder.

_ODD_NAMES = ["d\u00e4ta \u6570", "two\nlines", "a?b#c%41&d", "\udcff\udc80", "'quoted\"", "-x=y"]


@pytest.mark.quick_cases("[!t]*", "tfds_sent140")
@pytest.mark.parametrize("form", FORMS)
def test_a_folder_of_any_name_is_read(copies, tmp_path, form):
    copy = copies(form)
    for name in _ODD_NAMES:
        folder = tmp_path / name
        # Its path is in a setting, and so must be text that hparams.json can hold.
        refused = "clothing1m" in form and not _is_text(name)
        # TensorFlow opens these files itself.
        beyond_tensorflow = form.startswith("tfds") and not _is_text(name)
        os.rename(copy.folder, folder)
        try:
            if refused:
                with pytest.raises(HparamError, match="weights must be UTF-8"):
                    copy.form.load(folder)
            elif beyond_tensorflow:
                with pytest.raises(DataError, match="codec can't encode"):
                    copy.form.load(folder)
            else:
                assert copy.form.load(folder) == copy.kind
                _LOADS["whole"] += 1
        finally:
            os.rename(folder, copy.folder)
            copy.restore()
        if refused:
            continue
        os.mkdir(folder)
        with pytest.raises(DataError) as error:
            copy.form.load(folder)
        assert str(error.value).isprintable() and len(str(error.value).splitlines()) == 1


def _is_text(name):
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _without_privileges(call):
    """Calls a function as a user to whom nothing belongs, where the tests run as root."""
    if os.geteuid():
        return call()
    os.seteuid(65534)
    try:
        return call()
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text(""), "is not a folder"),
        (_link_to_itself, "symbolic links"),
        (_link_to_nothing, "does not exist"),
        (os.mkfifo, "is not a folder"),
    ],
)
@pytest.mark.parametrize("name", ["data", "two\nlines \u00e4"])
def test_a_data_dir_that_is_none_is_one_line(tmp_path, make, said, name, capsys):
    path = tmp_path / name
    make(path)
    for form in ("femnist", "emnist", "play_text"):
        with pytest.raises(DataError) as error:
            FORMS[form].load(path)
        text = str(error.value)
        assert said in text and "--data_dir=" in text and text.isprintable()
    output = f"--output={tmp_path}/a.png"
    assert plot.main(["--task=femnist", f"--data_dir={path}", output]) == 1
    assert prepare.main(["--task=femnist", f"--source={path}"]) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 2 and err.count(said) == 2 and "--source=" in err


def test_a_data_dir_with_a_null_byte_is_one_line():
    with pytest.raises(DataError, match=r"--data_dir=a.x00b cannot be read"):
        tasks.load("femnist", data_dir="a\0b")


@pytest.fixture
def open_folder():
    """A folder that any user reaches, which those of pytest are not."""
    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


@pytest.mark.parametrize("form", FORMS)
def test_what_may_not_be_read_is_named(open_folder, form):
    if os.geteuid() == 0:
        tasks.get(FORMS[form].task).load_fn()  # Imports what this user may not read.
    copy = Copy(FORMS[form], open_folder)
    closed = copy.folder / copy.names[-1]
    closed.chmod(0)
    with pytest.raises(DataError, match="Permission denied") as error:
        _without_privileges(lambda: copy.form.load(copy.folder))
    assert copy.names[-1].rsplit("/", 1)[-1] in str(error.value)
    closed.chmod(0o644)
    copy.folder.chmod(0)
    try:
        with pytest.raises(DataError, match="Permission denied"):
            _without_privileges(lambda: copy.form.load(copy.folder))
    finally:
        copy.folder.chmod(0o755)


def test_unpacking_leaves_nothing_of_a_damaged_file(tmp_path):
    packed = tmp_path / "a.sqlite.lzma"
    for content in (lzma.compress(b"no database"), b"\x5d\x00\x00\xff\xff" + b"\xff" * 90, b""):
        packed.write_bytes(content)
        with pytest.raises(DataError):
            sqlite_clients.unpack(str(packed), str(tmp_path / "a.sqlite"), "ADVICE")
        assert os.listdir(tmp_path) == [packed.name]
