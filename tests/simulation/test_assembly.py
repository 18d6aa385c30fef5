"""Loading of a run's task."""

import types

import pytest

import tasks
from simulation import assembly

SETTINGS = {
    "task": "synthetic",
    "data_dir": None,
    "seed": 0,
    "use_synthetic_data": False,
    "import": None,
    "initial_weights": None,
}


@pytest.fixture
def loaded(monkeypatch):
    """The loads so far, with what each returned."""
    found, load = [], tasks.load

    def counted(*arguments, **settings):
        found.append(load(*arguments, **settings))
        return found[-1]

    monkeypatch.setattr(tasks, "load", counted)
    monkeypatch.setattr(assembly, "_shared", None)
    return found


def load(seed=0, clients=3):
    settings = SETTINGS | {"seed": seed}
    request = types.SimpleNamespace(run=settings, task={"num_clients": clients}, objects={})
    return assembly.load(request)


def test_each_run_loads_its_task(loaded):
    assert load() is not load()
    assert len(loaded) == 2


def test_a_sweeps_runs_share_the_last_task_if_its_settings_are_equal(loaded):
    assembly.share_task()
    first = load()
    assembly.share_task()
    assert load() is first and len(loaded) == 1
    assert load(clients=4) is not first
    assert load(seed=1) is not first
    assert load() is not first and len(loaded) == 4
    assert len(assembly._shared) == 1


def test_what_is_found_out_about_a_shared_task_is_found_once(loaded):
    asked = []

    def find(task):
        asked.append(task)
        return len(asked)

    own = load()
    assert [assembly.once("x", own, find), assembly.once("x", own, find)] == [1, 2]
    assembly.share_task()
    first = load()
    # A task that is not the shared one may change from run to run.
    assert [assembly.once("x", task, find) for task in (first, own, first)] == [3, 4, 3]
    assert assembly.once("y", load(), find) == 5
    other = load(clients=4)
    assert [assembly.once("x", task, find) for task in (other, load(clients=4))] == [6, 6]
