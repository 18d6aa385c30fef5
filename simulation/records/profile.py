"""Profiles some rounds of a run for TensorBoard."""

import importlib.util
from collections.abc import Callable
from typing import Any

from simulation import run_checks
from tff_suite import compat

_VIEWER = "tensorboard_plugin_profile"
# What to pass to `pip install` for TensorBoard's Profile tab, per stack. It is optional, as few
# people need it. On the published stack pip cannot resolve its dependencies; on the current stack
# it changes no pinned package.
VIEWERS = {
    compat.PUBLISHED: "--no-deps tensorboard-plugin-profile==2.14.0 gviz-api==1.10.0",
    compat.CURRENT: "tensorboard-plugin-profile==2.21.6",
}


class Profile:
    """Runs TensorFlow's profiler during some rounds, including evaluations between them.

    Used as a context manager. On exit, a profile that is still being recorded is written.
    """

    def __init__(
        self,
        rounds: str | None,
        folder: str,
        *,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ):
        """Initialises for rounds of a run.

        Args:
          rounds: `--profile`; `None` disables it.
          folder: Folder of the run; the profile goes to `plugins/profile` there.
          say: Prints or logs a line on what was done.
          warn: Prints or logs a warning of one line.
        """
        self._rounds = run_checks.profiled_rounds(rounds) if rounds is not None else None
        self._text, self._folder, self._say, self._warn = rounds, folder, say, warn
        self._recording = self._done = False

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop()
        if self._rounds and not self._done:
            self._warn(
                f"--profile={self._text}: these rounds were not done, so no profile was written."
            )

    def before_round(self, round_num: int) -> None:
        """To be called before each round, with its number from 1."""
        if self._rounds is None:
            return
        first, last = self._rounds
        if round_num > last:
            self._stop()
        elif round_num >= first and not self._done:
            self._start()

    def _start(self):
        import tensorflow as tf

        self._done = True
        try:
            tf.profiler.experimental.start(self._folder)
        except tf.errors.OpError as e:
            self._warn(f"--profile={self._text}: cannot start the profiler: {e.message}")
            return
        self._recording = True

    def _stop(self):
        if not self._recording:
            return
        import tensorflow as tf

        self._recording = False
        try:
            tf.profiler.experimental.stop()
        except tf.errors.OpError as e:
            self._warn(f"--profile={self._text}: cannot write the profile: {e.message}")
            return
        told = f"Wrote the profile of round {self._text} to {self._folder}/plugins/profile."
        if importlib.util.find_spec(_VIEWER) is None:
            told += (
                " To see it here, install TensorBoard's Profile tab: "
                f"pip install {VIEWERS[compat.stack()]}"
            )
        self._say(told)
