"""Maps over clients whose results are consumed one by one.

A block of a TFF computation maps a function over clients and aggregates parts of the results. If
these parts are used nowhere else, they need not be held for all clients at once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow_federated as tff


class Streamed(NamedTuple):
    """How a block uses the results of a map.

    Attributes:
      names: Names of the results and of all their parts.
      taken: Name that an aggregate or the block's result uses → function that extracts it from a
        client's result.
      gathered: Those of the names that the block's result contains: client states.
    """

    names: set[str]
    taken: dict[str, Callable]
    gathered: set[str]


def streamed(block: Any) -> dict[str, Streamed]:
    """Finds maps over clients whose results go only into aggregates and the block's result.

    Args:
      block: A `tff.framework.Block`.

    Returns:
      Name of the map → how its results are used. Maps whose results have other uses are left out.
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


def _taken_by_aggregates(block: Any, map_name: str) -> Streamed | None:
    """Returns the entry of `streamed` for one map, `None` if its results have other uses."""
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


def _called(value: Any, uri: str) -> bool:
    """Returns whether a building block is a call of an intrinsic."""
    blocks = tff.framework
    return (
        isinstance(value, blocks.Call)
        and isinstance(value.function, blocks.Intrinsic)
        and value.function.uri == uri
    )


def _references(block: Any) -> set[str]:
    """Returns the names that a building block refers to, including those that it binds."""
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


def _is_projection(function: Any) -> bool:
    """Returns whether a building block is a function that only selects parts of its argument."""
    blocks = tff.framework

    def selects(body):
        if isinstance(body, blocks.Selection):
            return selects(body.source)
        if isinstance(body, blocks.Struct):
            return all(map(selects, body))
        return isinstance(body, blocks.Reference) and body.name == function.parameter_name

    return isinstance(function, blocks.Lambda) and selects(function.result)


def _projection(body: Any) -> Callable:
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
