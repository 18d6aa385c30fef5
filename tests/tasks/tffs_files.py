"""Files in TFF's form, written from their definitions: sqlite tables and tf.train.Example.

Shares nothing with the readers under test.
"""

import re
import sqlite3

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


def with_text_that_is_none(content, rng):
    """Returns a file with one letter of one of its words made a byte that UTF-8 does not have so.

    SQLite hands such words on as they are, in values and in its messages.
    """
    word = rng.choice(list(re.finditer(rb"[A-Za-z_]{4,}", content)))
    at = rng.randrange(*word.span())
    return content[:at] + bytes([content[at] | 0x80]) + content[at + 1 :]
