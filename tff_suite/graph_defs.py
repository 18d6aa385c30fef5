"""The operations of TensorFlow's graphs."""

import itertools
from collections.abc import Iterator
from typing import Any


def nodes(graph_def: Any) -> Iterator[Any]:
    """Yields the operations (`NodeDef`) of a `GraphDef` and of its functions."""
    return itertools.chain(graph_def.node, *(f.node_def for f in graph_def.library.function))
