"""Refuses what would not fit into memory before any of it is allocated; pauses its collector."""

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
    """Checks that so much memory is free.

    Args:
      num_bytes: Bytes that are about to be allocated, or fewer.
      what: What for.
      advice: What the user may do about it.

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
    """Pauses the garbage collector, within a `with` statement or a function decorated with it.

    A graph of TensorFlow's is thousands of objects that stay. While it is made the collector would
    look through all of them again and again, which takes a sixth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def gib(num_bytes: float) -> str:
    """Returns a number of bytes in words."""
    return f"{num_bytes / 2**30:,.1f} GiB"


def size_of(shape: Iterable[int | None], dtype: Any) -> int:
    """Returns the bytes of an array that need not exist.

    Args:
      shape: Its shape; a dimension that is unknown (`None`) counts as 1.
      dtype: Its type, of NumPy or TensorFlow.
    """
    numbers = math.prod(1 if length is None else operator.index(length) for length in shape)
    return numbers * (dtype.itemsize if hasattr(dtype, "itemsize") else dtype.size)


def nbytes(structure: Any) -> int:
    """Returns the bytes of all arrays in a structure of mappings, lists and tuples.

    What has a shape and a dtype is an array: of NumPy, a tensor, a `tf.TensorSpec`, and what is
    only made when it is needed. All else (`None`, a number of Python) counts as nothing.
    """
    if isinstance(structure, Mapping):
        return sum(map(nbytes, structure.values()))
    if isinstance(structure, list | tuple):
        return sum(map(nbytes, structure))
    if not hasattr(structure, "shape"):
        return 0
    return size_of(structure.shape, structure.dtype)


def available() -> int:
    """Returns how many bytes this process may still allocate.

    Swap space counts, and so does what the kernel holds of files and would give up.
    """
    import psutil

    swap = 0
    # Some machines do not tell, which psutil warns of.
    with contextlib.suppress(OSError, RuntimeError):
        swap = psutil.swap_memory().free
    free = psutil.virtual_memory().available
    return max(0, min([free, *_free_in_groups()]) + swap)


def _free_in_groups() -> Iterator[int]:
    """Yields what is free in this process's control groups that have a limit.

    Both versions of control groups, the group itself and those that it is in. In a container the
    path may be that of the machine outside, and the group lies at the root.
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
