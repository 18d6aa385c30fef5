"""The protocol between the driver and a side: a workload as a file, and a line per turn.

A peer's environment has neither TensorFlow nor this suite. So this file only needs NumPy, and peers
import it as a top-level module.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TextIO

import numpy as np


class Work(NamedTuple):
    """A workload as passed to a peer; the peer itself defines the model and its loss.

    Attributes:
      name: `w1` to `w10`.
      clients: (x, y) of each client of a round.
      batch_size: Examples of a minibatch.
      learning_rate: Client learning rate.
      rounds_a_turn: Number of rounds that are timed together.
    """

    name: str
    clients: Sequence[tuple[np.ndarray, np.ndarray]]
    batch_size: int
    learning_rate: float
    rounds_a_turn: int


def write(path: str, work: Work) -> None:
    """Writes a workload to a file, `.npz` without compression."""
    numbers = {name: getattr(work, name) for name in Work._fields if name != "clients"}
    arrays = {}
    for k, (x, y) in enumerate(work.clients):
        arrays |= {f"x{k}": x, f"y{k}": y}
    np.savez(path, **numbers, **arrays)


def read(path: str) -> Work:
    """Returns the workload that `write` wrote."""
    with np.load(path) as arrays:
        numbers = {name: arrays[name].item() for name in Work._fields if name != "clients"}
        count = sum(name.startswith("x") for name in arrays.files)
        return Work(clients=[(arrays[f"x{k}"], arrays[f"y{k}"]) for k in range(count)], **numbers)


def take_over_output() -> TextIO:
    """Returns standard output for answers; redirects output of libraries to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def serve(rounds: Callable[[range], None], rounds_a_turn: int, answers: TextIO) -> None:
    """Runs the first round, then a turn for every line of standard input, until it closes.

    Args:
      rounds: Function that runs the rounds with given numbers and returns once they are complete.
      rounds_a_turn: Number of rounds per turn; written after the first round.
      answers: Stream for the seconds per round, one line per turn.
    """
    done = 1
    rounds(range(done))
    print(rounds_a_turn, file=answers)
    for _ in sys.stdin:
        started = time.perf_counter()
        rounds(range(done, done + rounds_a_turn))
        print((time.perf_counter() - started) / rounds_a_turn, file=answers)
        done += rounds_a_turn
