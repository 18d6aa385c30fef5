"""A profile of some rounds of a run, for TensorBoard."""

import importlib.util
from collections.abc import Callable

from simulation import experiment_flags
from tff_suite import compat

_VIEWER = "tensorboard_plugin_profile"
# What pip installs to show profiles beside each stack's TensorBoard; few people need it. On the
# published stack a resolver gives up; on the current one it leaves all that is pinned as it is.
VIEWERS = {
    compat.PUBLISHED: "--no-deps tensorboard-plugin-profile==2.14.0 gviz-api==1.10.0",
    compat.CURRENT: "tensorboard-plugin-profile==2.21.6",
}


class Profile:
    """Has TensorFlow record what it does in some rounds, evaluations between them included.

    Used as a context manager, at whose end a recording that is under way is written.
    """

    def __init__(self, rounds: str | None, folder: str, say: Callable[[str], None]):
        """Initialises for rounds of a run.

        Args:
          rounds: `--profile`; `None` records nothing.
          folder: Folder of the run; the profile lies in `plugins/profile` there.
          say: Takes a line on what was done.
        """
        self._rounds = experiment_flags.profiled_rounds(rounds) if rounds is not None else None
        self._text, self._folder, self._say = rounds, folder, say
        self._recording = self._done = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop()
        if self._rounds and not self._done:
            # A warning, which `simulation.run` passes on, too.
            told = "no such round was done, so there is no profile."
            self._say(f"warning: --profile={self._text}: {told}")

    def before_round(self, round_num: int) -> None:
        """Is called before each round, with its number from 1."""
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
            self._say(f"warning: --profile={self._text}: no profile can be taken: {e.message}")
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
            self._say(f"warning: --profile={self._text}: it cannot be written: {e.message}")
            return
        told = f"Profile of round {self._text} in {self._folder}/plugins/profile."
        if importlib.util.find_spec(_VIEWER) is None:
            told += (
                " TensorBoard's Profile tab needs what is not installed: "
                f"pip install {VIEWERS[compat.stack()]}, or look at it elsewhere."
            )
        self._say(told)
