"""What a run's settings stand for: task, clients, model and the method's process."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tasks
import tff_algos
from hparams import HparamError
from simulation import experiment_flags, runtimes, task_models
from simulation.errors import RunError
from simulation.experiment_flags import Request
from simulation.rounds import cohorts
from tasks.task import FederatedData, Task


class Parts(NamedTuple):
    """What a run's settings stand for.

    Attributes:
      task: The task.
      train: What the clients train on; results tell of all examples.
      cohorts: The clients of its rounds.
      model: The task's model.
      process: The method's process, or what stands for one where the method has several.
    """

    task: Task
    train: FederatedData
    cohorts: cohorts.Cohorts
    model: task_models.TaskModel
    process: Any


def assemble(request: Request, look_at: Callable[[Task, Any], None] | None = None) -> Parts:
    """Loads and builds what a run's settings stand for.

    Args:
      request: The settings.
      look_at: Looks at the task and its Keras model, which is `None` if it cannot be built; before
        the method's process is.

    Raises:
      HparamError: If settings do not go with the task's data or with each other.
      RunError: If `initial_weights` cannot be read.
      tasks.task.DataError: If data is missing or damaged.
    """
    settings, task = request.run, load(request)
    train = cohorts.first_examples(task.train, settings["max_elements_per_client"])
    runtimes.configure_threads()
    try:
        model = task_models.build(task, settings)
    except RunError:
        if look_at is not None:
            # That the data or the code are others explains more.
            look_at(task, None)
        raise
    if look_at is not None:
        look_at(task, model.keras_model)
    train = cohorts.as_model_takes(train, model.model)
    process = _build_process(request, model.model, train)
    return Parts(task, train, cohorts.Cohorts(train, settings, request.plan), model, process)


def load(request: Request) -> Task:
    """Loads the task, and refuses a cohort that it does not have.

    Args:
      request: The settings.

    Raises:
      HparamError: As `assemble`.
      RunError: As `assemble`.
      tasks.task.DataError: As `assemble`.
    """
    settings, objects = request.run, request.objects
    task = objects.get("task") or tasks.load(
        settings["task"],
        data_dir=settings["data_dir"],
        seed=settings["seed"],
        use_synthetic_data=settings["use_synthetic_data"],
        **request.task,
    )
    if "model" in objects:
        task = dataclasses.replace(task, keras_model_fn=_model_fn(objects["model"]))
    if settings["initial_weights"] is not None:
        from simulation.records import models

        task = models.beginning_with(task, settings["seed"], settings["initial_weights"])
    number = len(task.train.client_ids)
    experiment_flags.check_cohort(settings["clients_per_round"], number, task.name)
    return task


def _model_fn(model: Any) -> Callable[[int], Any]:
    """Returns the function from a seed to a Keras model that a user's own model stands for."""
    import tensorflow as tf

    if isinstance(model, tf.keras.Model):
        return lambda seed: model
    if not callable(model):
        kind = type(model).__name__
        raise HparamError(f"model must be a Keras model or a function of a seed, found a {kind}.")
    return model


def _build_process(request: Request, model: "tff_algos.Model", train: FederatedData) -> Any:
    """Builds the method's process, or what stands for one where the method has several."""
    name = request.run["algorithm"]
    number = len(train.client_ids)
    built = tff_algos.build(
        name,
        model,
        num_clients=number,
        clients_per_round=request.run["clients_per_round"] or number,
        seed=request.run["seed"],
        **request.training,
        **request.method,
    )
    if not tff_algos.get(name).staged:
        return built
    from simulation.rounds import staged

    return staged.StagedProcess(built, staged.TrainingClients(train, request.run))
