"""What all commands share: signals, output that cannot be written, errors, exit codes.

A command begins with `begin`, before slow imports, and ends with `run`:

    from tff_suite import command_line, parser

    PARSER = parser.Parser(__doc__)

    if __name__ == "__main__":
        command_line.begin(PARSER)

    import numpy  # and so on

    @command_line.reported
    def main(arguments):
        options = PARSER.parse(arguments)
        ...

    if __name__ == "__main__":
        command_line.run(main)

docs/exit_codes.md lists the exit codes.
"""

import contextlib
import errno
import functools
import os
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from tff_suite.errors import FedError

_LONGEST_LINE = 2000
# Of what a user is told to try.
_WIDTH = 100
# What asks a process to stop: Ctrl-C, `kill` and the end of a terminal.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_came: list[signal.Signals] = []
_errors = 2  # Where standard error goes, whatever its lines pass through.
_verbosity = 0  # 1 with --verbose, -1 with --quiet.


class Answered(Exception):  # noqa: N818  (not an error)
    """Raised for `--help`, `--helpfull` and `--version`; its text is the answer to print."""


def begin(parser: Any = None) -> None:
    """Makes signals and standard output and error safe to use for the rest of the process.

    Until `stops_raise` is called, any of `SIGNALS` ends the process at once, with one line and exit
    code 128 plus its number. An exception would not do: one raised inside an import is often lost
    or replaced.

    A failure to write output is reported once and otherwise ignored, because a command's results
    are in files. A full disk or a closed pipe behind standard output does not end a run. Characters
    that the terminal's encoding lacks are written as backslash and number.

    Args:
      parser: The command's `tff_suite.parser.Parser`, if its imports are slow. Wrong flags and
        `--help` are then answered before them, and the process ends.
    """
    _use_utf8()
    _open_what_is_closed()
    sys.stdout, sys.stderr = _Output(sys.stdout, 1), _Output(sys.stderr, 2)
    handle_stops(_end_at_once)
    if parser is not None:
        answered = _answered_early(parser)
        if answered is not None:
            run(lambda _: answered)


def _answered_early(parser: Any) -> int | None:
    """Returns the exit code of a command line that requests help or is wrong; else `None`."""
    going_on = -1

    @reported
    def parse(arguments: list[str]) -> int:
        parser.parse(arguments)
        return going_on

    code = parse(sys.argv[1:])
    return None if code == going_on else code


def reported(main: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
    """Decorates a command: help is printed, and errors become one line and an exit code.

    Exceptions other than `FedError` and the system's are defects of the suite and pass through.

    Args:
      main: Command line without the program's name → exit code.
    """

    @functools.wraps(main)
    def reporting(arguments: list[str]) -> int:
        try:
            return main(arguments)
        except Answered as e:
            print(e)
            return 0
        except KeyboardInterrupt:
            number = received()
            return fail(
                f"stopped by {number.name}; run the same command again to resume.", 128 + number
            )
        except OSError as e:
            where = f"Cannot use {e.filename}: " if e.filename else ""
            return fail(f"{where}{e.strerror or e}.", 1)
        except MemoryError as e:
            told = f"Out of memory ({str(e) or 'no more is free'}); smaller settings may help."
            return fail(told, 1)
        except FedError as e:
            return fail(e, e.exit_code)

    return reporting


def fail(reason: object, code: int) -> int:
    """Prints an error as one line, after its traceback with `--verbose`; returns the exit code."""
    if _verbosity > 0 and sys.exc_info()[0] is not None:
        traceback.print_exc()
    print(f"error: {one_line(reason)}", file=sys.stderr)
    return code


def set_verbosity(verbosity: int) -> None:
    """Sets how much is printed: 1 for `--verbose`, -1 for `--quiet`, else 0."""
    global _verbosity
    _verbosity = verbosity


def is_quiet() -> bool:
    """Returns whether only results, warnings and errors are to be printed."""
    return _verbosity < 0


def say(text: str) -> None:
    """Prints a progress line of a command, unless `--quiet` is set."""
    if not is_quiet():
        print(text, flush=True)


def warn(text: str) -> None:
    """Prints a warning of one line, with `--quiet` too."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def python() -> str:
    """Returns how to call this interpreter in a command that a message suggests."""
    path = os.path.relpath(sys.executable) if sys.executable else ".."
    return "python" if path.startswith("..") else path


def calling(program: str) -> list[str]:
    """Returns how to call a program of the suite in a command that a message suggests.

    Args:
      program: Its file, such as `reproduce.py`. An installed suite is called by the module's name,
        since the working folder does not have the file.
    """
    module = program.removesuffix(".py")
    return [python(), *([program] if os.path.exists(program) else ["-m", module])]


def to_try(title: str, arguments: Sequence[str], column: int = 12) -> str:
    r"""Returns a command that a user is told to try, as lines that can be pasted into a shell.

    A command too long for a line is broken between arguments, with a backslash.

    Args:
      title: What it is for, in front of the command.
      arguments: Its words, unquoted. The paths among them are shortened where another name is.
      column: Where the command begins.
    """
    words, lines = [shlex.quote(_short(argument)) for argument in arguments], [""]
    for i, word in enumerate(words):
        room = _WIDTH - column - (2 if i + 1 < len(words) else 0)
        if lines[-1].strip() and len(f"{lines[-1]} {word}") > room:
            lines[-1] += " \\"
            lines.append("  ")
        lines[-1] += word if not lines[-1].strip() else f" {word}"
    head, *more = lines
    return "\n".join([f"  {title}".ljust(column) + head, *(" " * column + line for line in more)])


def _short(argument: str) -> str:
    """Returns an argument, and if it has a path, that as seen from the working directory."""
    flag, equals, path = "", "", argument
    if argument.startswith("--"):
        flag, equals, path = argument.partition("=")
    if not os.path.isabs(path):
        return argument
    near = os.path.relpath(path)
    return f"{flag}{equals}{near}" if len(near) < len(path) and near[:2] != ".." else argument


def handle_stops(handler: Callable[[int, Any], None]) -> dict[int, Any]:
    """Installs a handler for those `SIGNALS` that are not ignored, as `nohup` ignores SIGHUP.

    Returns:
      The previous handlers, for `restore`.
    """
    heeded = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heeded}


def restore(handlers: dict[int, Any]) -> None:
    """Restores signal handlers; `None` means a handler that is not Python's, which stays."""
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)


def stops_raise() -> None:
    """Makes `SIGNALS` raise `KeyboardInterrupt`; call it before there is anything to clean up.

    A second signal ends the process at once. This does nothing if `begin` was not called or other
    handlers have replaced its own.
    """
    if any(signal.getsignal(number) is _end_at_once for number in SIGNALS):
        handle_stops(raise_stop)


def raise_stop(number: int, _: Any) -> NoReturn:
    """Handles a signal by raising `KeyboardInterrupt`; the next one ends the process."""
    if _came:
        _end_at_once(number)
    _came.append(signal.Signals(number))
    raise KeyboardInterrupt


def received() -> signal.Signals:
    """Returns the signal behind a `KeyboardInterrupt` on the first call; else Ctrl-C.

    The exception cannot carry it, because Ray replaces the exception.
    """
    return _came.pop() if _came else signal.SIGINT


@contextlib.contextmanager
def errors_without(pattern: str) -> Iterator[None]:
    """Removes lines from standard error within a `with` statement, even those of C++ code.

    The lines pass through a separate process, `sed`. So the last lines arrive regardless of how
    this process ends.

    Args:
      pattern: Pattern of the lines, a POSIX extended regular expression without a slash.
    """
    global _errors
    kept = os.dup(2)
    try:
        sieve = subprocess.Popen(
            ["sed", "--unbuffered", "--regexp-extended", f"/{pattern}/d"],
            stdin=subprocess.PIPE,
            stdout=kept,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,  # Signals to this process's group do not reach it.
        )
    except OSError:  # Without it too many lines are better than too few.
        os.close(kept)
        yield
        return
    assert sieve.stdin is not None  # It is a pipe.
    sys.stderr.flush()
    os.dup2(sieve.stdin.fileno(), 2)
    sieve.stdin.close()
    _errors = kept
    try:
        yield
    finally:
        sys.stderr.flush()
        _errors = 2
        os.dup2(kept, 2)
        os.close(kept)
        # It ends with the pipe, which only a process that was started meanwhile could hold open.
        with contextlib.suppress(subprocess.TimeoutExpired):
            sieve.wait(timeout=1)


def one_line(reason: object) -> str:
    """Returns an error's message as one line; a long quotation of a file is cut."""
    text = " ".join(str(reason).split())
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}..."


def run(main: Callable[[list[str]], int]) -> NoReturn:
    """Runs a command with the process's arguments and ends the process with its exit code.

    The code is 1 if the command succeeded but its output could not be written. A reader that closed
    the pipe (`| head`) is not an error.

    Args:
      main: Command line without the program's name → exit code.
    """
    code: str | int | None
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        _end_at_once(received())
    except SystemExit as e:  # Of argparse, for --help or wrong flags.
        code = e.code
    handle_stops(_end_at_once)
    for output in (sys.stdout, sys.stderr):
        output.flush()
    sys.exit(code or int(getattr(sys.stdout, "lost", False)))


def _end_at_once(number: int, _: Any = None) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(_errors, f"error: stopped by {signal.Signals(number).name}.\n".encode())
    os._exit(128 + number)


def _use_utf8() -> None:
    """Restarts the process in UTF-8 mode if it cannot open UTF-8 paths, as in an ASCII locale."""
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode and sys.executable:
        os.environ["PYTHONUTF8"] = "1"  # For processes that this one starts.
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _open_what_is_closed() -> None:
    """Opens closed standard streams, so that the next opened file does not take their place."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest that is free, which is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


class _Output:
    """A text stream that reports its first write error, and then accepts and drops everything.

    Attributes:
      lost: Whether something could not be written, except because of a closed pipe.
    """

    def __init__(self, stream: Any, descriptor: int):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")
        self._stream = stream
        self._descriptor = descriptor
        self.lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as e:
            self._give_up(e)
            return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as e:
            self._give_up(e)

    def _give_up(self, reason: OSError) -> None:
        # What is still in buffers, and what is printed without Python, goes nowhere from here on.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._descriptor)
        os.close(nowhere)
        self.flush()
        if reason.errno != errno.EPIPE and self._descriptor == 1:
            self.lost = True
            print(f"error: standard output cannot be written: {reason.strerror}", file=sys.stderr)
