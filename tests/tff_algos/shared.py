"""Processes and runtimes that the tests of a test process share.

To trace and to compile a method takes a hundred times as long as a round of the tests' problem.
Tests of one method run in one test process (`methods`), so that it is done once for all of them.
"""

import atexit
import contextlib
import functools
import gc

import pytest
import tensorflow_federated as tff

import tff_algos
from simulation import runtimes
from simulation.engine import process as engine
from simulation.tff import context as tff_context
from simulation.tff import native_worker
from tests.oracles import problem as problem_lib
from tests.tff_algos import cases, toy

_open_until_the_end = contextlib.ExitStack()
atexit.register(_open_until_the_end.close)


# One method of each kind: plain, with the clients' state, with their vectors at the server.
KINDS = ("fedavg", "scaffold", "adafed")


def methods(names, *values):
    """Returns parameters of a test: each method's name, and its tests' group for pytest-xdist.

    Args:
      names: The methods.
      *values: What the test takes before the name.
    """
    return [
        pytest.param(
            *values,
            name,
            id="-".join(map(str, (*values, name))),
            marks=[pytest.mark.xdist_group(name)],
        )
        for name in names
    ]


@functools.cache
def problem() -> problem_lib.Problem:
    return problem_lib.make_problem()


def settings(name: str) -> dict:
    """Returns those of a method's first case; of a method that brings its own tests, rates only."""
    if name in cases.CASES:
        return cases.CASES[name][0].settings
    return {"client_learning_rate": 0.3, "server_learning_rate": 0.1}


@functools.cache
def process(name: str):
    """Returns the process of a method by its `settings`.

    Its model drops the features out of examples that `toy.with_dropout` marks, and of no others.
    """
    # What the methods before have left is kept, and every run of a test collects garbage first.
    gc.collect()
    gc.freeze()
    model = toy.plain_model(problem(), dropout=0.5)
    return tff_algos.build(name, model, num_clients=toy.NUM_CLIENTS, **settings(name))


@functools.cache
def _context(runtime: str):
    if runtime == "native":
        return _open_until_the_end.enter_context(native_worker.native_context())
    context = tff_context.InProcessContext()
    if runtime in runtimes.ENGINE:
        context = engine.EngineContext(runtime == "vectorized")
    return _open_until_the_end.enter_context(contextlib.closing(context))


@contextlib.contextmanager
def installed(runtime: str):
    """As `runtimes.installed`, but what was compiled for it before stays compiled."""
    context = _context(runtime)
    with tff.framework.get_context_stack().install(context):
        yield context
