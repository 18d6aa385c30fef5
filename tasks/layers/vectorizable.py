"""Whether layers must use only operations that `tf.vectorized_map` can vectorise.

Some layers have a faster form for one client at a time. It uses operations that cannot be
vectorised: cuDNN's, or those whose output shape depends on the values.
"""

import contextlib
import contextvars
from collections.abc import Iterator

_required = contextvars.ContextVar("vectorizable operations required", default=False)


@contextlib.contextmanager
def only() -> Iterator[None]:
    """Makes layers that are called inside use only vectorisable operations."""
    token = _required.set(True)
    try:
        yield
    finally:
        _required.reset(token)


def required() -> bool:
    """Returns whether a layer that is called now must use only vectorisable operations."""
    return _required.get()
