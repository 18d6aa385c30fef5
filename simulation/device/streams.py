"""Applies a function to each client on several threads, with results in the cohort's order."""

import collections
import concurrent.futures
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


class Stream:
    """Applies a function to each client's argument; results are consumed in cohort order.

    It only holds results that are finished ahead of their turn. This saves memory, since a client's
    result is often as large as the model.
    """

    def __init__(
        self, function: Callable, arguments: Sequence[Any], projections: Mapping[str, Callable]
    ):
        """Initializes the stream.

        Args:
          function: The function.
          arguments: An argument for each client.
          projections: Name → function that extracts a part of a client's result.
        """
        self._function, self._arguments, self._projections = function, arguments, projections
        self._taken = {name: {} for name in projections}
        self._failures = {}
        self._done = [False] * len(arguments)
        self._one_more = threading.Condition()
        # An idle thread takes the next client; `next` on a range's iterator is atomic.
        self._clients = iter(range(len(arguments)))
        self._workers = []

    def start(self, pool: concurrent.futures.Executor, num_threads: int) -> None:
        """Starts work on all threads except one: the thread that consumes the results helps."""
        helpers = min(num_threads, len(self._arguments)) - 1
        self._workers = [pool.submit(self._work) for _ in range(helpers)]

    def end(self) -> None:
        """Starts no further clients and waits for those in progress."""
        collections.deque(self._clients, maxlen=0)
        concurrent.futures.wait(self._workers)

    def values(self, name: str) -> Iterator[Any]:
        """Yields the parts of results under a name, once, in cohort order.

        Raises:
          Exception: What the function raised for a client, at that client's turn.
        """
        taken = self._taken[name]
        for i in range(len(self._done)):
            while not self._done[i] and self._work_on_next():
                pass
            with self._one_more:
                self._one_more.wait_for(lambda: self._done[i])  # noqa: B023
            if i in self._failures:
                raise self._failures[i]
            # No local variable may keep it alive while the caller works on it.
            yield taken.pop(i)

    def _work(self):
        while self._work_on_next():
            pass

    def _work_on_next(self) -> bool:
        """Works on the next client; returns `False` if none is left."""
        i = next(self._clients, None)
        if i is None:
            return False
        try:
            result = self._function(self._arguments[i])
            for name, projection in self._projections.items():
                self._taken[name][i] = projection(result)
            del result
        except BaseException as error:
            self._failures[i] = error
            collections.deque(self._clients, maxlen=0)
        with self._one_more:
            self._done[i] = True
            self._one_more.notify_all()
        return True
