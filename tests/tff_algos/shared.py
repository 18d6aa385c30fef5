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
from simulation.runtimes import native_worker, tff_context, vectorized
from tests.oracles import problem as problem_lib
from tests.tff_algos import cases, toy

_open_until_the_end = contextlib.ExitStack()
atexit.register(_open_until_the_end.close)


# One method of each kind: plain, with the clients' state, with their vectors at the server.
KINDS = ("fedavg", "scaffold", "adafed")


def methods(names, *values, long=()):
    """Returns parameters of a test: each method's name, and its tests' group for pytest-xdist.

    Args:
      names: The methods.
      *values: What the test takes before the name.
      long: The methods whose test is for the long tier.
    """
    return [
        pytest.param(
            *values,
            name,
            id="-".join(map(str, (*values, name))),
            marks=[pytest.mark.xdist_group(name)] + [pytest.mark.long] * (name in long),
        )
        for name in names
    ]


def one_of_each_kind(names, *values, kinds=KINDS):
    """Returns `methods` of which the quick tier has one of each kind, and the long tier all."""
    return methods(names, *values, long=set(names) - set(kinds))


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
    of_runtime = {"tff": tff_context.InProcessContext, "vectorized": vectorized.VectorizedContext}
    return _open_until_the_end.enter_context(contextlib.closing(of_runtime[runtime]()))


@contextlib.contextmanager
def installed(runtime: str):
    """As `runtimes.installed`, but what was compiled for it before stays compiled."""
    context = _context(runtime)
    with tff.framework.get_context_stack().install(context):
        yield context
