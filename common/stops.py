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


_came: list[signal.Signals] = []


def received() -> signal.Signals:
    """Returns what a `KeyboardInterrupt` within `raised` came from; by default Ctrl-C."""
    return _came[0] if _came else signal.SIGINT


@contextlib.contextmanager
def raised():
    """Raises `KeyboardInterrupt` in the main thread at any of `SIGNALS`; a second ends the process.

    The exception can't say which signal it was: Ray replaces it by one of its own.

    Does nothing in another thread, which may not handle signals.
    """
    _came.clear()

    def handle(number, _):
        if _came:
            os._exit(128 + number)
        _came.append(signal.Signals(number))
        raise KeyboardInterrupt

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
