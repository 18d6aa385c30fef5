"""Builds task, clients, model and method from a run's settings."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import tasks
import tff_algos
from simulation import run_checks, runtimes, task_models
from simulation.errors import RunError
from simulation.experiment_flags import Request
from simulation.rounds import cohorts, validation
from tasks.task import FederatedData, Task
from tff_suite.hparams import HparamError, Settings

if TYPE_CHECKING:
    from simulation.rounds.one_program import RunMethod

_T = TypeVar("_T")


class Parts(NamedTuple):
    """The parts of a run, built from its settings.

    Attributes:
      task: The task.
      train: The examples that clients train on; results also count examples that are not used.
      cohorts: The clients of its rounds.
      model: The task's model.
      method: The method, with the clients that it trains on.
    """

    task: Task
    train: FederatedData
    cohorts: cohorts.Cohorts
    model: task_models.TaskModel
    method: "RunMethod"


def assemble(request: Request, look_at: Callable[[Task, Any], None] | None = None) -> Parts:
    """Loads and builds the parts of a run from its settings.

    Args:
      request: The settings.
      look_at: Called with the task and its Keras model (`None` if it cannot be built), before the
        method's process is built.

    Raises:
      HparamError: If settings contradict the task's data or each other.
      RunError: If `initial_weights` cannot be read, or methods do not support the model.
      tasks.task.DataError: If data is missing or damaged.
    """
    settings, whole = request.run, load(request)
    task = validation.split(whole, settings)
    number = len(task.train.client_ids)
    run_checks.check_cohort(settings["clients_per_round"], number, task.name)
    train = cohorts.first_examples(task.train, settings["max_elements_per_client"])
    runtimes.configure_threads()
    try:
        model = task_models.build(task, settings)
    except RunError:
        if look_at is not None:
            # Reports changed data or code first, since these explain more than this error.
            look_at(whole, None)
        raise
    if look_at is not None:
        look_at(whole, model.keras_model)
    cohorts.check_bytes(task)
    train = cohorts.as_model_takes(train, model.model)
    if not settings["evaluate_test"]:
        task = dataclasses.replace(task, test=None, central_test=None)
    # With the tests, since a task's parts must stay alike.
    taken: dict[str, Any] = {"train": cohorts.as_model_takes(task.train, model.model)}
    for part in ("test", "validation"):
        data = getattr(task, part)
        if data is not None and len(data.client_ids):
            taken[part] = cohorts.as_model_takes(data, model.model)
    if task.central_test is not None:
        taken["central_test"] = cohorts.central_as_model_takes(task.central_test, model.model)
    task = dataclasses.replace(task, **taken)
    built = _build_process(request, model.model, train)
    drawn = cohorts.Cohorts(train, settings, request.plan)
    return Parts(task, train, drawn, model, _method(built, train, drawn, settings))


def _method(
    built: Any, train: FederatedData, drawn: cohorts.Cohorts, settings: Settings
) -> "RunMethod":
    # Imported late, so that wrong settings are reported before TensorFlow is imported.
    from simulation.rounds import one_program, staged

    if not tff_algos.get(settings["algorithm"]).staged:
        return one_program.OneProgram(built, drawn, settings)
    return staged.Stages(built, staged.TrainingClients(train, settings), settings)


def load(request: Request) -> Task:
    """Loads the task, with the user's own model and initial weights, if given.

    Args:
      request: The settings.

    Raises:
      HparamError: As `assemble`.
      RunError: As `assemble`.
      tasks.task.DataError: As `assemble`.
    """
    settings, objects = request.run, request.objects
    task = objects.get("task") or _task(request)
    if "model" in objects:
        task = dataclasses.replace(task, keras_model_fn=_model_fn(objects["model"]))
    if task.keras_model_fn is None:
        raise HparamError(f"Task {task.name!r} has no keras_model_fn, so it cannot be trained.")
    if settings["initial_weights"] is not None:
        from simulation.records import models

        task = models.beginning_with(task, settings["seed"], settings["initial_weights"])
    return task


# Settings of a task → the task, at most one; `None` if runs do not share it.
_shared: dict[str, Task] | None = None
# What has been found out about the shared task, by name.
_found: dict[str, Any] = {}


def share_task() -> None:
    """Lets runs of this process, from now on, share a task if its settings are equal.

    A sweep's processes call this, since loading can take longer than a short run's rounds. Nothing
    else should: a run would not see that data have changed since another run loaded them.
    """
    global _shared
    _shared = _shared or {}


def once(name: str, task: Task, find: Callable[[Task], _T]) -> _T:
    """Returns `find(task)`; for the task that runs share, what it returned the first time.

    Args:
      name: A name for what is found.
      task: The task, as loaded.
      find: A function of what the task holds in memory alone.
    """
    if not any(task is shared for shared in (_shared or {}).values()):
        return find(task)
    if name not in _found:
        _found[name] = find(task)
    return _found[name]


def _task(request: Request) -> Task:
    settings = request.run
    named = ("data_dir", "seed", "use_synthetic_data")
    arguments = {name: settings[name] for name in named}
    arguments.update(request.task)
    if _shared is None:
        return tasks.load(settings["task"], **arguments)
    key = repr((settings["import"], settings["task"], sorted(arguments.items())))
    if key not in _shared:
        # First, so that memory never holds two.
        _shared.clear()
        _found.clear()
        _shared[key] = tasks.load(settings["task"], **arguments)
    return _shared[key]


def _model_fn(model: Any) -> Callable[[int], Any]:
    """Returns a user's own model as a function from a seed to a Keras model."""
    import tensorflow as tf

    if isinstance(model, tf.keras.Model):
        return lambda seed: model
    if not callable(model):
        kind = type(model).__name__
        raise HparamError(f"model must be a Keras model or a function of a seed, found a {kind}.")
    return model


def _build_process(request: Request, model: "tff_algos.Model", train: FederatedData) -> Any:
    """Builds the method's process, or its driver if it is a method in stages."""
    name, training = request.run["algorithm"], dict(request.training)
    if "client_lr_schedule" in request.objects:
        training |= {
            "client_learning_rate": None,
            "client_lr_schedule": request.objects["client_lr_schedule"],
        }
    number = len(train.client_ids)
    try:
        return tff_algos.build(
            name,
            model,
            num_clients=number,
            clients_per_round=request.run["clients_per_round"] or number,
            seed=request.run["seed"],
            **training,
            **request.method,
        )
    except tff_algos.ModelError as e:  # Some methods need a certain kind of model.
        raise RunError(f"The model of the task cannot be used: {e}") from e
