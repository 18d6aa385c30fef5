"""Cost of loading, rounds and long runs with as many clients as Stack Overflow has.

    python -m benchmarks.many_clients --clients=342477 --rounds=200

It writes a database in TFF's format with as many users as Stack Overflow has. One user in 1,000 has
1,000 sentences, the others one to four, so that the file is small. The code that reads the real
database reads this one. No model is trained. It prints:

- the seconds until the task is loaded,
- the time to read the data of a round of 50 users (FedOpt's number), relative to a database with a
  hundredth of the users,
- the growth of the process's memory over the rounds.
"""

import os
import sqlite3
import statistics
import tempfile
import time

from tff_suite import command_line, parser, tables

PARSER = parser.Parser(__doc__)
PARSER.flag("clients", 342_477, "Users in the large database.", minimum=1)
PARSER.flag("rounds", 200, "Rounds of 50 users.", minimum=1)
PARSER.flag("folder", help="Where to write the databases. Unset: a temporary folder.", path=True)

PARSER.flag("csv", help="File to write the records to.", path=True)
tables.add_flag(PARSER)

if __name__ == "__main__":
    command_line.begin(PARSER)

import psutil
import tensorflow as tf

import tasks
from benchmarks import common

_SCHEMA = """
    CREATE TABLE examples (
        split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB NOT NULL);
    CREATE TABLE client_metadata (
        client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL);
"""
_INDICES = """
    CREATE INDEX idx_examples_client_id ON examples (client_id);
    CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id);
    CREATE INDEX idx_metadata_client_id ON client_metadata (client_id);
"""
_NUM_WORDS = 10_000
_WORKLOAD = common.Workload("stackoverflow_word", clients=50, batch_size=16, learning_rate=0.3)


def _proto(number: int) -> bytes:
    words = " ".join(f"word{(number * 7 + i * i) % _NUM_WORDS}" for i in range(5 + number % 20))

    def text(value):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))

    features = {"tokens": text(words), "title": text(words[:20]), "tags": text("a|b")}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(folder: str, num_clients: int) -> int:
    """Writes TFF's three files and returns the number of training examples."""
    protos = [_proto(number) for number in range(500)]
    sizes = [1000 if k % 1000 == 500 else 1 + k % 4 for k in range(num_clients)]

    def rows(split, sizes):
        for k, size in enumerate(sizes):
            for i in range(size):
                yield split, f"{k:08d}", protos[(k + i) % len(protos)]

    connection = sqlite3.connect(os.path.join(folder, "stackoverflow.sqlite"))
    connection.executescript(_SCHEMA)
    for split, part in (("train", sizes), ("test", [10] * min(num_clients, 2000))):
        connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows(split, part))
        metadata = ((f"{k:08d}", split, size) for k, size in enumerate(part))
        connection.executemany("INSERT INTO client_metadata VALUES (?, ?, ?)", metadata)
    connection.executescript(_INDICES)
    connection.commit()
    connection.close()
    with open(os.path.join(folder, "stackoverflow.word_count"), "w") as file:
        file.writelines(f"word{i} {_NUM_WORDS - i}\n" for i in range(_NUM_WORDS))
    return sum(sizes)


def measure(folder: str, rounds: int) -> tuple[float, float, list[int]]:
    """Opens the files and reads the data of some rounds.

    Returns:
      Seconds until the task is loaded, median milliseconds for a round's data, and the process's
      resident memory in bytes after the first tenth of the rounds and after the last.
    """
    started = time.perf_counter()
    task = tasks.load(_WORKLOAD.task, data_dir=folder, seed=1)
    opened = time.perf_counter() - started
    times, memory = [], []
    started = time.perf_counter()
    for i, _ in enumerate(common.cohorts(task, _WORKLOAD, rounds), start=1):
        times.append((time.perf_counter() - started) * 1e3)
        if i in (max(1, rounds // 10), rounds):
            memory.append(psutil.Process().memory_info().rss)
        started = time.perf_counter()
    return opened, statistics.median(times), memory


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the benchmark and prints the result."""
    options = PARSER.parse(arguments)
    with common.report(options) as table:
        table.say(f"{common.machine()}; rounds of {_WORKLOAD.clients} clients\n")
        for clients in (max(_WORKLOAD.clients, options.clients // 100), options.clients):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                started = time.perf_counter()
                examples = write(folder, clients)
                written = time.perf_counter() - started
                size = os.path.getsize(os.path.join(folder, "stackoverflow.sqlite"))
                opened, median, memory = measure(folder, options.rounds)
            table.add(
                {
                    "clients": clients,
                    "examples": examples,
                    "mib": round(size / 2**20, 1),
                    "written_seconds": round(written, 1),
                    "task_seconds": round(opened, 2),
                    "data_of_a_round_ms": round(median, 1),
                    "memory_mib_after_a_tenth": round(memory[0] / 2**20),
                    "memory_mib_after_all": round(memory[-1] / 2**20),
                    "growth": round(memory[-1] / memory[0] - 1, 3),
                }
            )
        few, all_of_them = (record["data_of_a_round_ms"] for record in table.records)
        table.say(
            f"\na round's data, full over a hundredth of the clients: {all_of_them / few:.2f}"
        )
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
