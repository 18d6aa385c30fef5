"""Runs one computation in TFF's worker, then ends as told; run by test_runtimes.py.

Usage: native_worker_child.py REPOSITORY READY_FILE MODE
"""

import os
import pathlib
import signal
import sys
import time

repository, ready_file, mode = sys.argv[1:]
# A shell starts what it runs in the background with Ctrl-C ignored, and Python then keeps to that.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, repository)

from simulation import runtimes
from tff_suite import imports

imports.import_tensorflow()

import numpy as np
import tensorflow_federated as tff


@tff.tensorflow.computation(np.int32)
def add_one(x):
    return x + 1


with runtimes.installed("native"):
    assert add_one(1) == 2
    if mode == "fork" and os.fork() == 0:
        # This copy of the parent holds its end of every pipe for longer than the test looks.
        time.sleep(60)
        os._exit(0)
    pathlib.Path(ready_file).write_text("ready")
    if mode == "raise":
        raise RuntimeError("on purpose")
    if mode not in ("succeed", "no namespace"):
        signal.pause()
