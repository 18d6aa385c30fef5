"""Whether layers must keep to operations that `tf.vectorized_map` can turn into ones over a cohort.

Some layers have a faster form for one client at a time, in operations that have no form over
several: cuDNN's, or those whose result's shape depends on the values.
"""

import contextlib
import contextvars
from collections.abc import Iterator

_required = contextvars.ContextVar("vectorizable operations required", default=False)


@contextlib.contextmanager
def only() -> Iterator[None]:
    """Makes the layers called inside keep to operations that have a form over several clients."""
    token = _required.set(True)
    try:
        yield
    finally:
        _required.reset(token)


def required() -> bool:
    """Returns whether a layer that is called now must keep to such operations."""
    return _required.get()
