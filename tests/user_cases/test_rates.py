"""Learning rates as users write them: schedules, functions of the round, TFF's own arguments."""

import functools
import gc
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import simulation
import tff_algos
from simulation import runtimes
from simulation.errors import RunError
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tests.tff_algos import shared, toy
from tff_algos import tff_names
from tff_suite.hparams import HparamError

pytestmark = pytest.mark.slow

OPTIMIZERS = tff.learning.optimizers
SCHEDULES = tf.keras.optimizers.schedules


@pytest.fixture(scope="module")
def problem():
    return shared.problem()


def trained(problem, **settings):
    """The weights after each of three rounds."""
    process = tff_algos.build("fedavg", toy.plain_model(problem), **settings)
    with shared.installed("tff"):
        states, _ = toy.run(process, problem)
    return [np.concatenate([np.ravel(w) for w in s.weights]) for s in states]


@pytest.mark.parametrize(
    "schedule",
    [
        lambda r: 0.4 / (1 + r),
        lambda r: tf.constant(0.4) / (1.0 + tf.cast(r, tf.float32)),
        SCHEDULES.InverseTimeDecay(0.4, decay_steps=1, decay_rate=1.0),
        functools.partial(lambda rate, r: rate / (r + 1), 0.4),
    ],
    ids=["python", "tensorflow", "keras", "partial"],
)
def test_a_function_of_the_round_is_the_rate_of_that_round(problem, schedule):
    named = trained(problem, client_learning_rate=0.4, client_lr_schedule="inverse_time")
    given = trained(problem, client_lr_schedule=schedule)
    np.testing.assert_allclose(given, named, rtol=1e-6)
    constant = trained(problem, client_learning_rate=0.4)
    np.testing.assert_array_equal(constant[0], named[0])
    assert not np.allclose(constant[1], named[1])


def test_a_function_of_the_round_goes_with_an_optimizer_of_tffs(problem):
    """It replaces the optimizer's rate, too."""
    optimizer = OPTIMIZERS.build_sgdm(0.9)
    given = trained(problem, client_optimizer=optimizer, client_lr_schedule=lambda r: 0.4 / (1 + r))
    named = trained(problem, client_learning_rate=0.4, client_lr_schedule="inverse_time")
    np.testing.assert_allclose(given, named, rtol=1e-6)


def test_keras_steps_are_rounds(problem):
    steps = SCHEDULES.PiecewiseConstantDecay([0, 1], [0.4, 0.1, 0.0])
    states = trained(problem, client_lr_schedule=steps)
    np.testing.assert_array_equal(states[0], trained(problem, client_learning_rate=0.4)[0])
    np.testing.assert_array_equal(states[2], states[1])
    assert not np.array_equal(states[1], states[0])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"client_lr_schedule": lambda r: 0.1, "client_learning_rate": 0.1},
            "returns the learning rate itself; leave out client_learning_rate",
        ),
        ({"client_lr_schedule": lambda r: 0.1 if r < 5 else 0.01}, "tf.where in place of if"),
        ({"client_lr_schedule": lambda r: [0.1, 0.2]}, r"returns \[2\] numbers"),
        ({"client_lr_schedule": lambda r: -0.1}, "returns -0.1.* in round 0"),
        ({"client_lr_schedule": lambda r: 0.1 / r}, "returns inf in round 0"),
        (
            {
                "client_optimizer": OPTIMIZERS.schedule_learning_rate(
                    OPTIMIZERS.build_sgdm(0.1), lambda i: 0.1
                )
            },
            "restarts in every round. Pass the inner optimizer, and its schedule as client_lr",
        ),
        (
            {"client_optimizer": tf.keras.optimizers.Adam(0.001)},
            "client_optimizer='adam' with client_learning_rate",
        ),
        *(({name: None}, f"setting '{name}'. It is TFF's name; here ") for name in tff_names._HERE),
    ],
)
def test_refusals_name_the_cure(settings, says):
    with pytest.raises(HparamError, match=says):
        tff_algos.build("fedavg", lambda: pytest.fail("the model must not be built"), **settings)


def test_every_argument_of_tffs_builders_is_known():
    """What `tff.learning.algorithms` calls its arguments, or we have one of that name."""
    import inspect

    ours = {h.name for h in tff_algos.TRAINING_HPARAMS}
    ours |= set(inspect.signature(tff_algos.build).parameters)
    for builder in (
        "build_weighted_fed_avg",
        "build_weighted_fed_avg_with_optimizer_schedule",
        "build_weighted_fed_prox",
        "build_weighted_mime_lite",
        "build_fed_sgd",
    ):
        for name in inspect.signature(getattr(tff.learning.algorithms, builder)).parameters:
            assert name in ours or tff_names.of_argument(name), (builder, name)


RUN = {
    "task": "toy",
    "algorithm": "fedavg",
    "clients_per_round": 3,
    "client_batch_size": 3,
    "runtime": "tff",
    "progress": False,
}


def test_a_run_takes_a_function_records_it_and_resumes(tmp_path):
    given = {**RUN, "client_lr_schedule": lambda r: 0.4 / (1 + r)}
    whole = simulation.run(**given, total_rounds=3, root_output_dir=tmp_path / "whole")
    simulation.run(**given, total_rounds=1, root_output_dir=tmp_path / "parts")
    parts = simulation.run(**given, total_rounds=3, root_output_dir=tmp_path / "parts")
    assert all(map(np.array_equal, whole.weights, parts.weights))
    named = {"client_lr_schedule": "inverse_time", "client_learning_rate": 0.4}
    same = simulation.run(**RUN, **named, total_rounds=3, root_output_dir=tmp_path / "named")
    for a, b in zip(whole.weights, same.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    recorded = json.loads((pathlib.Path(whole.folder) / "hparams.json").read_text())
    assert recorded["flags"]["client_lr_schedule"] == "function"
    assert recorded["flags"]["client_learning_rate"] == 0.4
    assert "client_lr_schedule" in recorded["objects"]


def test_another_function_is_another_run(tmp_path):
    def given(rate):
        schedule = {"client_lr_schedule": lambda r: rate / (1 + r)}
        where = {"root_output_dir": tmp_path, "experiment_name": "run"}
        return {**RUN, **schedule, **where, "total_rounds": 1}

    simulation.run(**given(0.4))
    simulation.run(**given(0.4))
    with pytest.raises(RunError, match="client learning rate"):
        simulation.run(**given(0.4 + 1e-9))


def test_a_run_answers_tffs_names(tmp_path):
    with pytest.raises(HparamError, match=r"client_optimizer_fn. It is TFF's name; here give cl"):
        simulation.run(**RUN, client_optimizer_fn=None, total_rounds=1, root_output_dir=tmp_path)


def test_a_process_a_round_keeps_no_computation(problem):
    model = toy.plain_model(problem)
    data = [toy.client_data(problem, 0, 4)]
    with runtimes.installed("tff") as context:
        state = tff_algos.build("fedavg", model, client_learning_rate=0.1).initialize()
        for t in range(4):
            process = tff_algos.build("fedavg", model, client_learning_rate=0.1 / (1 + t))
            state = process.next(state, data).state
            del process
            gc.collect()
            assert not context._compiled
