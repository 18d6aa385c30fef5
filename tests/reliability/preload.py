"""What a process imports once, before it forks a child for every run of these tests."""

import os

# As users have it; whoever runs the tests has more of TensorFlow's words. And no thread of BLAS,
# which a fork would lose.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import run_experiment  # noqa: F401
from tff_suite import imports

imports.import_tensorflow()

from tensorflow.python.eager import context

import tests.simulation.toy_extension  # noqa: F401
from simulation.engine import batching as vectorized  # noqa: F401
from simulation.measures import evaluations  # noqa: F401
from simulation.records import recorder  # noqa: F401
from simulation.rounds import cohorts, loop, staged  # noqa: F401
from simulation.tff import native_worker  # noqa: F401

# A fork copies the calling thread only. TensorFlow starts its threads with its context, which its
# first operation makes: once that has happened, a child would wait for threads that it lacks.
assert context.context()._context_handle is None, "an import has run a TensorFlow operation"
