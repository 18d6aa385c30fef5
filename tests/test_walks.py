"""The walks of `docs/design.md`, traced in a run: of a rate to a client's step, of an example.

A profile of the run's Python calls notes the calls under way whenever a walk comes to one of its
milestones. Of the files of these calls, those are on the walk whose function has the rate, or the
examples, in hand by the time that it returns.
"""

import pathlib
import re
import sys
import threading
from collections.abc import Mapping

import pytest
import tensorflow as tf

import run_experiment
from simulation import runtimes
from simulation.engine import batching
from tasks.task import Examples
from tff_algos.client_data import Batch, ClientData

REPO = pathlib.Path(__file__).resolve().parent.parent
# The rate's name as a flag and a setting, in code from then on, and in a method's formulas.
NAMES = {"client_learning_rate", "learning_rate", "eta_l"}
FLAGS = (
    "--task=synthetic",
    "--algorithm=fedavg",
    "--total_rounds=1",
    "--clients_per_round=3",
    "--client_batch_size=4",
    "--client_learning_rate=0.1",
    "--synthetic_num_clients=4",
    "--synthetic_max_examples=12",
)
EXECUTORS = {"per_client": "PerClient.work", "vectorized": "Stacked.work"}
# Function → one that it must be called by, directly or not.
OF_THE_RATE = {
    ("simulation/experiment_flags.py", "_resolve"): None,
    ("tff_algos/client.py", "LocalTraining.__init__"): "build",
    ("tff_algos/client.py", "LocalTraining.learning_rate"): None,
    ("tff_algos/client.py", "Optimizer.start"): "train",
}
OF_AN_EXAMPLE = {
    ("tasks/task.py", "Examples.__new__"): "load",
    ("tff_algos/client_data.py", "batch_cohort"): "OnChunks._make",
    ("tff_algos/keras_bridge.py", "from_keras.<locals>.forward"): "take_steps",
}


def has_rate(frame, returned):
    code = frame.f_code
    if NAMES & {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_consts}:
        return True
    values = frame.f_locals.values()
    return any(isinstance(v, Mapping) and "client_learning_rate" in v for v in values)


def has_examples(frame, returned):
    """Specifications of examples are not these."""
    values = [returned, *frame.f_locals.values()]
    values = [v[0] if type(v) in (list, tuple) and v else v for v in values]
    kinds = Examples | Batch | ClientData | batching.Stack
    return any(isinstance(v, kinds) and not isinstance(v[0], tf.TensorSpec) for v in values)


class Walk:
    """Notes the files on a walk, as a profile function."""

    def __init__(self, milestones, has):
        self.passed, self.files = set(), set()
        self._milestones, self._has, self._under_way = milestones, has, set()

    def __call__(self, place, frame, event, returned):
        function = place, frame.f_code.co_qualname
        if event == "call" and function in self._milestones:
            frames = list(self._callers(frame))
            caller = self._milestones[function]
            if caller in (None, *(f.f_code.co_qualname for f in frames)):
                self.passed.add(function)
                self._under_way.update(frames)
        elif event == "return" and frame in self._under_way:
            self._under_way.discard(frame)
            if self._has(frame, returned):
                self.files.add(place)

    def _callers(self, frame):
        while frame is not None:
            yield frame
            frame = frame.f_back


def traced(walks, folder, runtime):
    places = {}

    def profile(frame, event, returned):
        if event not in ("call", "return"):
            return
        name = frame.f_code.co_filename
        if name not in places:
            is_ours = name.startswith(f"{REPO}/")
            places[name] = pathlib.Path(name).relative_to(REPO).as_posix() if is_ours else None
        if places[name] is not None:
            for walk in walks:
                walk(places[name], frame, event, returned)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        code = run_experiment.main([*FLAGS, f"--runtime={runtime}", f"--root_output_dir={folder}"])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert code == 0


def drawn(title):
    """Returns the files that `docs/design.md` lists for a walk, the first one of each step."""
    text = (REPO / "docs" / "design.md").read_text("utf-8")
    steps = text.partition(f"**{title}**")[2].partition("**")[0]
    return re.findall(r"(?m)^\d+\. `([\w/]+\.py)`", steps)


def test_the_walks_are_short():
    assert len(drawn("A flag to a client's SGD step")) <= 6
    assert len(drawn("An example to its gradient")) <= 8


@pytest.mark.parametrize("runtime", runtimes.ENGINE)
def test_the_walks_are_as_the_design_lists_them(tmp_path, runtime):
    executor = ("simulation/engine/executors.py", EXECUTORS[runtime])
    rate = Walk(OF_THE_RATE, has_rate)
    example = Walk({**OF_AN_EXAMPLE, executor: None}, has_examples)
    traced([rate, example], tmp_path, runtime)
    assert rate.passed == OF_THE_RATE.keys() and example.passed == {*OF_AN_EXAMPLE, executor}
    assert rate.files == set(drawn("A flag to a client's SGD step"))
    assert example.files == set(drawn("An example to its gradient"))
