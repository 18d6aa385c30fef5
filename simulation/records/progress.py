"""Progress of a run: a bar on a terminal; elsewhere a line every few seconds."""

import collections
import sys
import time
from collections.abc import Mapping

import tqdm

from tff_suite import command_line, user_warnings

_SECONDS_BETWEEN_LINES = 5.0
# The remaining time is estimated from this many recent rounds.
_RECENT_ROUNDS = 50
# As tqdm's default, but always in seconds per round and never in rounds per second.
_BAR = (
    "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_inv_fmt}{postfix}]"
)


class Recent:
    """Mean seconds per round over recent rounds, including evaluations and checkpoints.

    The first round, which traces and compiles, is left out once a second one has ended.
    """

    def __init__(self):
        """Starts the first round."""
        self._ends = collections.deque([time.monotonic()], _RECENT_ROUNDS + 1)
        self._has_first = True

    def ended(self) -> None:
        """To be called when a round has ended."""
        if self._has_first and len(self._ends) == 2:
            self._ends.popleft()
            self._has_first = False
        self._ends.append(time.monotonic())

    def seconds(self) -> float | None:
        """Returns the mean; `None` before the end of the first round."""
        rounds = len(self._ends) - 1
        return (self._ends[-1] - self._ends[0]) / rounds if rounds else None


class _Bar(tqdm.tqdm):
    """A bar whose rate and remaining time are based on recent rounds."""

    def __init__(self, done, total):
        self._recent = Recent()
        super().__init__(
            initial=done, total=total, unit="round", dynamic_ncols=True, bar_format=_BAR
        )

    def update(self, n=1):
        self._recent.ended()
        return super().update(n)

    @property
    def format_dict(self):
        seconds = self._recent.seconds()
        return {**super().format_dict, "rate": 1 / seconds if seconds else None}


class Progress:
    """Progress of a command, on standard error."""

    def __init__(self, done: int, total: int):
        """Starts at round `done` of `total`."""
        self._total = total
        self._last_line = time.monotonic()
        self._recent = Recent()
        self._bar = None
        if sys.stderr.isatty() and not command_line.is_quiet():
            self._bar = _Bar(done, total)

    def update(self, round_num: int, shown: Mapping[str, float]) -> None:
        """To be called when a round has ended.

        Args:
          round_num: Number of rounds done.
          shown: Name → number to show, such as `train_loss` or `test_accuracy`.
        """
        if self._bar is not None:
            self._bar.set_postfix({k: f"{v:.4g}" for k, v in shown.items()}, refresh=False)
            self._bar.update()
            return
        self._recent.ended()
        now = time.monotonic()
        if now - self._last_line < _SECONDS_BETWEEN_LINES and round_num < self._total:
            return
        self._last_line = now
        seconds = self._recent.seconds()
        assert seconds is not None  # A round has ended.
        left = tqdm.tqdm.format_interval(seconds * (self._total - round_num))
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
        command_line.say(
            f"round {round_num}/{self._total}  {numbers}  {seconds:.3g} s/round  {left} left"
        )

    def warn(self, text: str) -> None:
        """Prints a warning without breaking the bar."""
        if self._bar is not None:
            self._bar.clear()
        command_line.warn(text)

    def close(self) -> None:
        """Leaves the bar as it is and ends its line."""
        if self._bar is not None:
            self._bar.close()


class ProgressInPython:
    """Progress of a run in a program or notebook: a bar, and Python's warnings."""

    def __init__(self, done: int, total: int, *, shown: bool = True):
        """Starts at round `done` of `total`; `shown=False` hides the bar."""
        self._bar = _Bar(done, total) if shown else None

    def update(self, round_num: int, shown: Mapping[str, float]) -> None:
        """As `Progress.update`."""
        del round_num
        if self._bar is not None:
            self._bar.set_postfix({k: f"{v:.4g}" for k, v in shown.items()}, refresh=False)
            self._bar.update()

    def warn(self, text: str) -> None:
        """Issues a Python `RuntimeWarning`."""
        user_warnings.warn(text)

    def close(self) -> None:
        """As `Progress.close`."""
        if self._bar is not None:
            self._bar.close()
