"""A function of each client's argument on several threads, results in the cohort's order."""

import collections
import concurrent.futures
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Stream:
    """A function of each client's argument, whose results are taken as they come, in cohort order.

    So nobody holds more results than are ahead of their turn: what a client sends back is often as
    large as the model.
    """

    def __init__(self, function: Callable, arguments: list, projections: Mapping[str, Callable]):
        """Initializes the stream.

        Args:
          function: The function.
          arguments: An argument for each client.
          projections: Name → what to take of a client's result, by a function.
        """
        self._function, self._arguments, self._projections = function, arguments, projections
        self._taken = {name: {} for name in projections}
        self._failures = {}
        self._done = [False] * len(arguments)
        self._one_more = threading.Condition()
        # A thread takes the next client when it is free; taking from a range's iterator is atomic.
        self._clients = iter(range(len(arguments)))
        self._workers = []

    def start(self, pool: concurrent.futures.Executor, num_threads: int) -> None:
        """Starts to work through the clients, on one thread less: who takes the results helps."""
        helpers = min(num_threads, len(self._arguments)) - 1
        self._workers = [pool.submit(self._work) for _ in range(helpers)]

    def end(self) -> None:
        """Starts no further client and waits for those under way."""
        collections.deque(self._clients, maxlen=0)
        concurrent.futures.wait(self._workers)

    def values(self, name: str) -> Iterator[Any]:
        """Yields what is taken under a name, once, in cohort order.

        Raises:
          What the function raised for a client when it is that client's turn.
        """
        taken = self._taken[name]
        for i in range(len(self._done)):
            while not self._done[i] and self._work_on_next():
                pass
            with self._one_more:
                self._one_more.wait_for(lambda: self._done[i])  # noqa: B023
            if i in self._failures:
                raise self._failures[i]
            # No name may hold it while the caller is at work on it.
            yield taken.pop(i)

    def _work(self):
        while self._work_on_next():
            pass

    def _work_on_next(self) -> bool:
        """Works on the next client; returns whether there was one."""
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
