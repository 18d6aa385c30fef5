"""Files in TFF's form, written from their definitions: sqlite tables, tf.train.Example, HDF5.

Shares nothing with the readers under test.
"""

import collections
import contextlib
import re
import sqlite3
import tarfile

import h5py
import numpy as np
import tensorflow as tf

_SCHEMA = """
    CREATE TABLE examples (
        split_name TEXT NOT NULL,
        client_id TEXT NOT NULL,
        serialized_example_proto BLOB NOT NULL);
    CREATE INDEX idx_examples_client_id ON examples (client_id);
    CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id);
    CREATE TABLE client_metadata (
        client_id TEXT NOT NULL,
        split_name TEXT NOT NULL,
        num_examples INTEGER NOT NULL);
    CREATE INDEX idx_metadata_client_id ON client_metadata (client_id);
"""


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n % 128 + 128]), n // 128
    return out + bytes([n])


def field(number, payload):
    return bytes([number * 8 + 2]) + varint(len(payload)) + payload


def database(path):
    """Returns a connection to a new file with TFF's empty tables."""
    connection = sqlite3.connect(path)
    connection.executescript(_SCHEMA)
    return connection


def _values(feature):
    """Returns a feature of a tf.train.Example as TFF's HDF5 files have it."""
    if feature.HasField("bytes_list"):
        (value,) = feature.bytes_list.value
        return value
    is_float = feature.HasField("float_list")
    values = np.array(feature.float_list.value if is_float else feature.int64_list.value)
    if len(values) == 1:
        return np.int64(values[0])
    side = 28 if is_float else 32
    return values.reshape(side, side, -1).squeeze().astype("float32" if is_float else "uint8")


def to_h5(path, stem, splits=("train", "test"), dtype=None, archive=False):
    """Makes TFF's two HDF5 files of a database, which is removed.

    Args:
      path: The database.
      stem: What the names of the files begin with.
      splits: Names of the training and the test split in the database.
      dtype: Type of byte strings; fixed length by default, as TFF wrote them.
      archive: Whether the files are packed as TFF shipped them.
    """
    select = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ?"
    made = []
    for name, split in zip(("train", "test"), splits, strict=True):
        clients = collections.defaultdict(lambda: collections.defaultdict(list))
        with contextlib.closing(sqlite3.connect(path)) as db:
            for client, serialized in db.execute(f"{select} ORDER BY rowid", (split,)):
                example = tf.train.Example.FromString(serialized)
                for key, feature in example.features.feature.items():
                    clients[client][key].append(_values(feature))
        made.append(path.parent / f"{stem}_{name}.h5")
        with h5py.File(made[-1], "w") as file:
            for client, columns in clients.items():
                for key, values in columns.items():
                    own = None
                    if isinstance(values[0], bytes):
                        own = dtype or f"S{max(1, *map(len, values))}"
                    name = f"examples/{client}/{key}"
                    file.create_dataset(name, data=values, dtype=own, compression="gzip")
    path.unlink()
    if archive:
        with tarfile.open(path.parent / f"{stem}.tar.bz2", "w:bz2") as tar:
            for file in made:
                tar.add(file, file.name)
                file.unlink()


def with_text_that_is_none(content, rng):
    """Returns a file with one letter of one of its words made a byte that UTF-8 does not have so.

    SQLite hands such words on as they are, in values and in its messages.
    """
    word = rng.choice(list(re.finditer(rb"[A-Za-z_]{4,}", content)))
    at = rng.randrange(*word.span())
    return content[:at] + bytes([content[at] | 0x80]) + content[at + 1 :]
