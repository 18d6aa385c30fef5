"""The event file of a run, which TensorBoard shows.

`tff.program.TensorBoardReleaseManager` was measured and rejected. It runs one operation per number:
6 ms for 30 numbers, as long as some rounds.
"""

import contextlib
import glob
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulation.records.metrics_csv import ROUND

# How often to flush the event file, so that TensorBoard can show a running experiment.
_SECONDS_TO_FLUSH = 10.0


class TensorBoard:
    """An event file in the run's folder: the numbers of metrics.csv, and the run's settings.

    It lies in the folder itself, since TensorBoard names a run after the folder of its events. The
    settings fill the HParams tab. The run does not declare that tab's columns, so TensorBoard shows
    the columns of all runs.
    """

    def __init__(
        self,
        folder: str,
        rows: Iterable[Mapping[str, str]],
        *,
        settings: Mapping[str, Any] | None = None,
        first: Sequence[str] = (),
        total_rounds: int | None = None,
    ):
        """Starts anew from the rows of metrics.csv, so that each step appears once.

        Args:
          folder: Folder of the run; event files in it are removed.
          rows: Rows kept in metrics.csv.
          settings: Settings for the HParams tab; those that are `None` are left out.
          first: Columns to show a second time, in a group before all others.
          total_rounds: The round after which TensorBoard shows the run as successful.

        Raises:
          OSError: If they cannot be written.
        """
        # Imported late, so that errors before this come fast.
        import tensorflow as tf
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.hparams import summary

        self._first, self._total_rounds = frozenset(first), total_rounds
        self._last: int | None = None
        for path in glob.glob(os.path.join(glob.escape(folder), "events.out.tfevents.*")):
            os.remove(path)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        with _tensorflows_errors():
            # TensorBoard's own writer uses a thread, which prints a traceback on a full disk.
            self._writer = tf.io.TFRecordWriter(os.path.join(folder, name))
        self._add(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._flush()
        shown = {name: value for name, value in (settings or {}).items() if value is not None}
        if shown:
            self._add_summary(summary.session_start_pb(shown), 0)
        for row in rows:
            values = {k: float(v) for k, v in row.items() if k != ROUND and v}
            self.write(int(row[ROUND]), values)

    def write(self, round_num: int, values: Mapping[str, float]) -> None:
        """Writes the scalars of a round; they may reach the file some seconds later.

        Raises:
          OSError: If these or those of an earlier round cannot be written.
        """
        from tensorboard.compat.proto import summary_pb2

        self._last = round_num
        tags = list(values.items())
        tags += [(first_tag(name), value) for name, value in tags if name in self._first]
        scalars = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in tags]
        self._add_summary(summary_pb2.Summary(value=scalars), round_num)
        if time.monotonic() > self._flushed + _SECONDS_TO_FLUSH:
            self._flush()

    def _add_summary(self, summary, step):
        from tensorboard.compat.proto import event_pb2

        event = event_pb2.Event(wall_time=time.time(), step=step)
        # The summary's class may be TensorFlow's instead of TensorBoard's.
        event.summary.ParseFromString(summary.SerializeToString())
        self._add(event)

    def _add(self, event):
        with _tensorflows_errors():
            self._writer.write(event.SerializeToString())

    def _flush(self):
        with _tensorflows_errors():
            self._writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flushes and closes the event file.

        Raises:
          OSError: If it cannot be written.
        """
        from tensorboard.plugins.hparams import api_pb2, summary

        if self._last is not None and self._last == self._total_rounds:
            success = api_pb2.Status.Value("STATUS_SUCCESS")
            self._add_summary(summary.session_end_pb(success), self._last)
        with _tensorflows_errors():
            self._writer.close()


def first_tag(column: str) -> str:
    """Returns the tag of a column in the group that TensorBoard shows first, alphabetically."""
    return f"at_a_glance/{column.replace('/', '_')}"


@contextlib.contextmanager
def _tensorflows_errors():
    """Turns errors of TensorFlow, which writes the event files, into `OSError`s."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as e:
        raise OSError(e.message) from e
