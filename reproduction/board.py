"""The display of a sweep: one line per run and the remaining time, live on a terminal."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import rich.live
import rich.table

from reproduction.items import PlannedRun
from simulation.errors import RunError
from tff_suite import command_line

_SECONDS_BETWEEN_LINES = 30.0


class Board:
    """Progress of a sweep's runs, read from their folders if this machine can see them."""

    def __init__(self, missing: Sequence[PlannedRun], runs: Sequence[PlannedRun]):
        """Initialises for the `missing` runs among all `runs`."""
        self._total = len(runs)
        self._done = len(runs) - len(missing)
        self._going: dict[PlannedRun, float] = {}
        self._failures = 0
        self._began = self._last_line = time.monotonic()
        self._seen = {run: _seen(run)[0] for run in missing}
        self._left = sum(max(0, run.rounds - self._seen[run]) for run in missing)
        self._live: Any = None

    def __enter__(self) -> "Board":
        if sys.stdout.isatty() and not command_line.is_quiet():
            # At the end, and on Ctrl-C, the table vanishes; the lines of ended runs stay.
            self._live = rich.live.Live(refresh_per_second=2, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.__exit__(*error)
            self._live = None

    def started(self, run: PlannedRun) -> None:
        """To be called when a run has been given to a worker."""
        self._going[run] = time.monotonic()
        if not self._live:
            command_line.say(f"[{self._done}/{self._total} done] {run.name} starts")

    def ended(self, run: PlannedRun, said: str) -> None:
        """To be called when a run has ended, with the last line that it printed."""
        del self._going[run]
        self._done += 1
        if not command_line.is_quiet():
            self._print(f"[{self._done}/{self._total} done] {run.name}: {said}")

    def failed(self, run: PlannedRun, said: str) -> None:
        """To be called when a run has failed or was lost and will be restarted."""
        del self._going[run]
        self._failures += 1
        self._print(f"{run.name} failed and will be restarted: {said}")

    def refresh(self) -> None:
        """Updates the display."""
        if self._live:
            self._live.update(self._table())
        elif self._going and time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            where = ", ".join(f"{r.name} {_seen(r)[0]}/{r.rounds}" for r in self._going)
            command_line.say(f"[{self._done}/{self._total} done] {where}; {self.time_left()}")

    def time_left(self) -> str:
        """Returns the remaining time at the pace so far, as text."""
        done = sum(min(r.rounds, _seen(r)[0]) - before for r, before in self._seen.items())
        if done <= 0 or not self._left:
            return "time left unknown"
        minutes = (time.monotonic() - self._began) / 60 * (self._left - done) / done
        if minutes < 1:
            return "less than a minute left"
        told = f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"
        return f"about {told} left"

    def _print(self, text):
        (self._live.console.print if self._live else print)(text)
        sys.stdout.flush()

    def _table(self):
        table = rich.table.Table(
            title=f"{self._done} of {self._total} runs done, {self._failures} restarted, "
            f"{self.time_left()}"
        )
        for name in ("run", "round", "of", "loss", "s/round", "minutes"):
            # Each run takes one line, even on a narrow terminal.
            style: dict[str, Any] = {"no_wrap": True, "overflow": "ellipsis"}
            table.add_column(name, justify="left" if name == "run" else "right", **style)
        for run, since in self._going.items():
            rounds, loss, seconds = _seen(run)
            table.add_row(
                run.name,
                str(rounds),
                str(run.rounds),
                f"{loss[0]:.4g}" if len(loss) else "",
                f"{seconds[0]:.3g}" if len(seconds) else "",
                f"{(time.monotonic() - since) / 60:.1f}",
            )
        return table


def _seen(run):
    """Returns the rounds of a run in progress, its last loss and its seconds per round, if any."""
    try:
        found = run.read()
        columns = ("train/loss", "time/round_seconds")
        return found.last_round, *(found.values(column)[1][-1:] for column in columns)
    except RunError:
        return 0, (), ()  # The run itself will report the damage.


def rounds_done(run: PlannedRun) -> int:
    """Returns the number of rounds in a run's folder."""
    return run.read().last_round
