"""Refuses what would not fit into memory before any of it is allocated."""

import pathlib

from hparams import HparamError

# Less than this is not worth the question.
_UNASKED = 1 << 28
_CGROUP = pathlib.Path("/sys/fs/cgroup")


def require(num_bytes: float, what: str, advice: str) -> None:
    """Checks that so much memory is free.

    Args:
      num_bytes: Bytes that are about to be allocated.
      what: What for.
      advice: What the user may do about it.

    Raises:
      HparamError: If less is free on this machine, or in this process's control group.
    """
    if num_bytes <= _UNASKED:
        return
    free = available()
    if num_bytes > free:
        raise HparamError(
            f"{what} would take {num_bytes / 2**30:,.1f} GiB of memory, but {free / 2**30:,.1f} "
            f"GiB are free; {advice}."
        )


def available() -> int:
    """Returns how many bytes this process may still allocate."""
    import psutil

    free = psutil.virtual_memory().available
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # No such group, or one without a limit ("max").
        return free
    return min(free, max(0, limit - used))
