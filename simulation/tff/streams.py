"""Maps over clients whose results are taken one by one, as they come.

A block of a TFF computation maps a function over clients and aggregates parts of what it gives.
What goes nowhere else, nobody needs to hold of all of them.
"""

import collections
import concurrent.futures
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow_federated as tff


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


class Streamed(NamedTuple):
    """What becomes of a map's results.

    Attributes:
      names: Names of them and of all parts of them.
      taken: Name that an aggregate, or the block's result, takes → that as a function of a result.
      gathered: Which of these the block's result takes: what clients keep.
    """

    names: set[str]
    taken: dict[str, Callable]
    gathered: set[str]


def streamed(block: Any) -> dict[str, Streamed]:
    """Finds maps over clients that aggregates of the same block take their values from.

    Args:
      block: A `tff.framework.Block`.

    Returns:
      Name of the map → what becomes of its results. Of a map with results that go elsewhere than
      into aggregates and the block's own result nothing is told.
    """
    found = {}
    for name, value in block.locals:
        if (
            _called(value, "federated_map")
            and isinstance(value.argument, tff.framework.Struct)
            and not _is_projection(value.argument[0])
        ):
            taken = _taken_by_aggregates(block, name)
            if taken is not None:
                found[name] = taken
    return found


def _taken_by_aggregates(block, map_name: str) -> Streamed | None:
    """Returns what `streamed` does for one map, `None` if something else takes of its results."""
    of_result = {map_name: lambda result: result}
    taken = {}
    for name, value in block.locals:
        used = _references(value) & of_result.keys()
        if not used:
            continue
        source = value.argument if isinstance(value, tff.framework.Call) else None
        parts = list(source) if isinstance(source, tff.framework.Struct) else []
        if (
            _called(value, "federated_map")
            and _is_projection(parts[0])
            and isinstance(parts[1], tff.framework.Reference)
        ):
            of_result[name] = _composed(_projection(parts[0].result), of_result[parts[1].name])
        elif _called(value, "federated_zip_at_clients") and all(
            isinstance(p, tff.framework.Reference) and p.name in of_result for p in parts
        ):
            of_result[name] = _joined([of_result[p.name] for p in parts])
        elif (
            _called(value, "federated_aggregate")
            and isinstance(parts[0], tff.framework.Reference)
            and used == {parts[0].name}
            and parts[0].name not in taken
            and not any(_references(p) & of_result.keys() for p in parts[1:])
        ):
            taken[parts[0].name] = of_result[parts[0].name]
        else:
            return None
    gathered = _references(block.result) & of_result.keys()
    if not taken or gathered & taken.keys():
        return None
    taken.update((name, of_result[name]) for name in gathered)
    return Streamed(set(of_result), taken, gathered)


def _called(value, uri: str) -> bool:
    """Returns whether a building block is a call of an intrinsic."""
    blocks = tff.framework
    return (
        isinstance(value, blocks.Call)
        and isinstance(value.function, blocks.Intrinsic)
        and value.function.uri == uri
    )


def _references(block) -> set[str]:
    """Returns the names that a building block refers to, those it binds itself included."""
    blocks = tff.framework
    if isinstance(block, blocks.Reference):
        return {block.name}
    if isinstance(block, blocks.Call):
        parts = [block.function, block.argument]
    elif isinstance(block, blocks.Selection):
        parts = [block.source]
    elif isinstance(block, blocks.Lambda):
        parts = [block.result]
    elif isinstance(block, blocks.Block):
        parts = [value for _, value in block.locals] + [block.result]
    elif isinstance(block, blocks.Struct):
        parts = list(block)
    else:
        parts = []
    return set().union(*(_references(part) for part in parts if part is not None))


def _is_projection(function) -> bool:
    """Returns whether a building block is a function that only selects parts of its argument."""
    blocks = tff.framework

    def selects(body):
        if isinstance(body, blocks.Selection):
            return selects(body.source)
        if isinstance(body, blocks.Struct):
            return all(map(selects, body))
        return isinstance(body, blocks.Reference) and body.name == function.parameter_name

    return isinstance(function, blocks.Lambda) and selects(function.result)


def _projection(body) -> Callable:
    blocks = tff.framework
    if isinstance(body, blocks.Selection):
        source, index = _projection(body.source), body.as_index()
        return lambda argument: source(argument)[index]
    if isinstance(body, blocks.Struct):
        return _joined([_projection(part) for part in body])
    return lambda argument: argument


def _composed(second: Callable, first: Callable) -> Callable:
    return lambda argument: second(first(argument))


def _joined(functions: list[Callable]) -> Callable:
    return lambda argument: tuple([function(argument) for function in functions])
