"""Signals that ask a process to stop."""

import contextlib
import os
import signal
import threading

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heeded() -> list[signal.Signals]:
    """Returns which of `SIGNALS` stop this process: `nohup` starts one that ignores `SIGHUP`."""
    return [
        number
        for number in SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    ]


class Stopped(KeyboardInterrupt):
    """A signal came.

    Attributes:
      signal: Which.
    """

    def __init__(self, number: int):
        super().__init__()
        self.signal = signal.Signals(number)


@contextlib.contextmanager
def raised():
    """Raises `Stopped` in the main thread when a signal comes; a second one ends the process.

    Does nothing in another thread, which may not handle signals.
    """
    came = []

    def handle(number, _):
        if came:
            os._exit(128 + number)
        came.append(number)
        raise Stopped(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, handle) for number in heeded()}
    try:
        yield
    finally:
        restore(before)


def restore(handlers: dict) -> None:
    """Handles signals as before; `None` stands for a handler that is not Python's, and stays."""
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)
