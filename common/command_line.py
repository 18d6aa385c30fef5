"""What every command does about its terminal: Ctrl-C at any time, output that cannot be written.

A command begins with `begin`, before what takes long to import, and ends with `run`:

    from common import command_line

    if __name__ == "__main__":
        command_line.begin()

    import numpy  # and so on

    if __name__ == "__main__":
        command_line.run(main)
"""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

_LONGEST_LINE = 2000
INTERRUPTED = 128 + signal.SIGINT


def begin() -> None:
    """Makes Ctrl-C and standard output and error safe to use for the rest of the process.

    Until `interrupt_raises` Ctrl-C ends the process at once: an exception that comes out of an
    import is often turned into another one, or lost.

    What cannot be written is told once and else passed over, since what a command does lies in
    files: a full disk or a closed pipe behind standard output ends no run. Characters that the
    terminal's encoding lacks are written as backslash and number.
    """
    _use_utf8()
    _open_what_is_closed()
    sys.stdout, sys.stderr = _Output(sys.stdout, 1), _Output(sys.stderr, 2)
    interrupt_ends_at_once()


def interrupt_ends_at_once() -> None:
    """Has Ctrl-C end the process with one line, where it is not ignored (`nohup`)."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end_at_once)


def interrupt_raises() -> None:
    """Has Ctrl-C raise `KeyboardInterrupt` again; to be called before there is what to clean up.

    Does nothing where `interrupt_ends_at_once` was not called or another handler has replaced it.
    """
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def one_line(reason: object) -> str:
    """Returns what an error says as one line, cut where it quotes a file at length."""
    text = " ".join(str(reason).split())
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}..."


def run(main: Callable[[list[str]], int]) -> NoReturn:
    """Runs a command with the process's arguments and ends the process with its exit code.

    The code is 1 if the command was right but its output could not be written; a reader that
    closed the pipe (`| head`) is no such failure.

    Args:
      main: Command line without the program's name → exit code.
    """
    try:
        code = main(sys.argv[1:])
    except SystemExit as e:  # argparse's.
        code = e.code
    except KeyboardInterrupt:
        _end_at_once()
    interrupt_ends_at_once()
    for output in (sys.stdout, sys.stderr):
        output.flush()
    sys.exit(code or int(getattr(sys.stdout, "lost", False)))


def _end_at_once(*_) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"error: interrupted.\n")
    os._exit(INTERRUPTED)


def _use_utf8():
    """Starts the process anew where paths in UTF-8 cannot be opened, as in an ASCII locale."""
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode and sys.executable:
        os.environ["PYTHONUTF8"] = "1"  # For processes that this one starts.
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _open_what_is_closed():
    """Keeps the next files that are opened from taking the place of a closed standard stream."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest that is free, which is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))


class _Output:
    """A text stream that tells once that it cannot be written, and then takes whatever comes.

    Attributes:
      lost: Whether something could not be written, for another reason than a closed pipe.
    """

    def __init__(self, stream, descriptor):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")
        self._stream = stream
        self._descriptor = descriptor
        self.lost = False

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as e:
            self._give_up(e)
            return len(text)

    def writelines(self, lines) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as e:
            self._give_up(e)

    def _give_up(self, reason):
        # What is still in buffers, and what is printed without Python, goes nowhere from here on.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._descriptor)
        os.close(nowhere)
        self.flush()
        if reason.errno != errno.EPIPE and self._descriptor == 1:
            self.lost = True
            print(f"error: standard output cannot be written: {reason.strerror}", file=sys.stderr)
