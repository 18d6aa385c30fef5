"""What reading TFF's sqlite files leaves behind."""

import sqlite3

import numpy as np
import pytest

from simulation.errors import RunError
from simulation.records import client_states
from tasks.formats import sqlite_clients
from tasks.task import DataError, Examples

_NOT_TEXT = "CAST(x'ff' AS TEXT)"


def _clients(path):
    with sqlite3.connect(path) as db:
        db.executescript(
            "CREATE TABLE client_metadata (client_id, split_name, num_examples);"
            "CREATE TABLE examples (split_name, client_id, serialized_example_proto);"
            "INSERT INTO client_metadata VALUES ('a', 'train', 2);"
            f"INSERT INTO examples VALUES ('train', 'a', x'00'), ('train', 'a', {_NOT_TEXT});"
        )
    db.close()
    parse = lambda rows: Examples(np.zeros(len(rows)), np.zeros(len(rows)))  # noqa: E731
    return sqlite_clients.SqliteFederatedData(str(path), "train", parse, "get it again")


def _states(path):
    with sqlite3.connect(path) as db:
        db.executescript(
            "CREATE TABLE facts (name, value);"
            "CREATE TABLE states (client, state, round);"
            "INSERT INTO states VALUES ('a', x'00', 1);"
            f"INSERT INTO facts VALUES ('layout', {_NOT_TEXT});"
        )
    db.close()


_READS = {
    "one client": lambda path: _clients(path).examples(0),
    "all clients": lambda path: _clients(path).pooled(),
    "client states": lambda path: (_states(path), client_states.read_all(str(path))),
}


@pytest.mark.parametrize("read", _READS)
def test_a_damaged_file_is_not_locked_for_others(tmp_path, read):
    """Not even while the error, whose traceback holds what has read, is looked at."""
    path = tmp_path / "file.sqlite"
    with pytest.raises((DataError, RunError)) as error:
        _READS[read](path)
    writer = sqlite3.connect(path, timeout=0)
    writer.execute("CREATE TABLE another (column)")
    writer.close()
    assert "\n" not in str(error.value)
