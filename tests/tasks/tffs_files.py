"""Files in TFF's form, written from their definitions: sqlite tables and tf.train.Example.

Shares nothing with the readers under test.
"""

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
