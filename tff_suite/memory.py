"""Refuses data that would not fit into memory before allocating any; pauses garbage collection."""

import contextlib
import gc
import math
import operator
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tff_suite.hparams import HparamError

# Less than this is not worth the question.
_UNASKED = 1 << 28
_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_OWN_CGROUPS = pathlib.Path("/proc/self/cgroup")


def require(num_bytes: float, what: str, advice: str) -> None:
    """Checks that enough memory is free.

    Args:
      num_bytes: Bytes about to be allocated, or a lower bound.
      what: Description of their purpose.
      advice: What the user can do about it.

    Raises:
      HparamError: If less is free on this machine, or in this process's control groups.
    """
    if num_bytes <= _UNASKED:
        return
    free = available()
    if num_bytes > free:
        raise HparamError(
            f"{what} would take {gib(num_bytes)} of memory, but {gib(free)} are free; {advice}."
        )


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Pauses the garbage collector, within a `with` statement or a decorated function.

    A TensorFlow graph consists of thousands of objects that stay alive. While it is built, the
    collector would scan all of them repeatedly, which takes a sixth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def gib(num_bytes: float) -> str:
    """Returns a number of bytes as readable text."""
    return f"{num_bytes / 2**30:,.1f} GiB"


def size_of(shape: Iterable[int | None], dtype: Any) -> int:
    """Returns the bytes of an array that need not exist.

    Args:
      shape: Its shape; an unknown dimension (`None`) is taken as 1.
      dtype: Its type, of NumPy or TensorFlow.
    """
    numbers = math.prod(1 if length is None else operator.index(length) for length in shape)
    return numbers * (dtype.itemsize if hasattr(dtype, "itemsize") else dtype.size)


def nbytes(structure: Any) -> int:
    """Returns the bytes of all arrays in a structure of mappings, lists and tuples.

    An array is anything with a shape and a dtype: of NumPy, a tensor, a `tf.TensorSpec`, or an
    array that is only made on access. Other sequences say their size themselves. Everything else
    (`None`, a Python number) has size 0.
    """
    if isinstance(structure, Mapping):
        return sum(map(nbytes, structure.values()))
    if isinstance(structure, list | tuple):
        return sum(map(nbytes, structure))
    if not hasattr(structure, "shape"):
        return getattr(structure, "nbytes", 0)
    return size_of(structure.shape, structure.dtype)


def available() -> int:
    """Returns how many bytes this process can still allocate.

    This includes swap space, and the kernel's file cache that it would give up.
    """
    import psutil

    swap = 0
    # Some machines do not tell, which psutil warns of.
    with contextlib.suppress(OSError, RuntimeError):
        swap = psutil.swap_memory().free
    free = psutil.virtual_memory().available
    return max(0, min([free, *_free_in_groups()]) + swap)


def _free_in_groups() -> Iterator[int]:
    """Yields the free memory of each of this process's control groups that has a limit.

    It covers both versions of control groups, and the group itself with its parents. In a container
    the path may be that of the host, and the group is at the root.
    """
    names = {
        "": ("memory.max", "memory.current", ""),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    }
    with contextlib.suppress(OSError, ValueError):
        for line in _OWN_CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller, of_version in names.items():
                if controller in controllers.split(","):
                    own = pathlib.PurePosixPath(path.lstrip("/"))
                    for group in (own, *own.parents):
                        yield from _free_in_group(_CGROUPS / controller / group, *of_version)


def _free_in_group(group: pathlib.Path, limit: str, used: str, prefix: str) -> Iterator[int]:
    # No such group, or one without a limit ("max"), or a kernel that counts otherwise.
    with contextlib.suppress(OSError, ValueError, KeyError):
        most = int((group / limit).read_text())
        held = int((group / used).read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        counts = dict(line.split() for line in lines)
        of_files = sum(int(counts[f"{prefix}{k}_file"]) for k in ("active", "inactive"))
        yield most - held + of_files
