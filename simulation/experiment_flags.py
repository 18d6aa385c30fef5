"""The settings of a run: from a command line or from Python, without importing TensorFlow.

Every flag is a `tff_suite.hparams.Hparam`: the run's own in `run_hparams`, those of training and of
each method in `tff_algos`, those of each task in `tasks`. `run_parser` reads them and gives help,
`run_checks` checks the run's own together; a `Request` is the result.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tasks
import tff_algos
from simulation import run_checks, run_parser
from simulation.run_hparams import ACTIONS, MAY_CHANGE, RUN_HPARAMS
from tasks.task import Task
from tff_algos import registry
from tff_suite import hparams as hparams_lib
from tff_suite import imports, parser
from tff_suite.hparams import HparamError, Settings, Value


@dataclasses.dataclass(frozen=True)
class Request:
    """The checked settings of one run.

    Attributes:
      run: The run's own settings, by name; all of `RUN_HPARAMS`.
      training: The settings of `tff_algos.TRAINING_HPARAMS` that were given, for `tff_algos.build`.
      method: All of the method's own settings, by name.
      task: All of the task's settings, by name.
      in_force: Every setting that has an effect, by name of its flag.
      objects: Python objects given in place of a flag's value (`task`, `client_lr_schedule`) or
        without a flag (`model`), by these names.
      tune: Flags of the learning rates that a search will choose. Until then the settings hold a
        placeholder number.
    """

    run: Settings
    training: Settings
    method: Settings
    task: Settings
    in_force: Settings
    objects: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tune: Sequence[str] = ()

    def plan(self, round_index: int, total_rounds: int | None = None) -> registry.RoundPlan:
        """Returns what the method requires of the clients in a round.

        Args:
          round_index: Round, from 0.
          total_rounds: Rounds of the whole run, by default those of the request.
        """
        spec = tff_algos.get(self.run["algorithm"])
        if total_rounds is None:
            total_rounds = self.run["total_rounds"]
        return spec.round_plan(dict(self.method), round_index, total_rounds)

    def first_other_plan(self, rounds: int, before: int, now: int) -> int | None:
        """Returns the first round whose plan changes with the total number of rounds.

        Args:
          rounds: How many rounds to compare, starting with the first.
          before: One total number of rounds.
          now: The other.

        Returns:
          The round, from 0; `None` if all their plans are equal.
        """
        if before == now:
            return None
        return next((r for r in range(rounds) if self.plan(r, before) != self.plan(r, now)), None)


def with_settings(request: Request, **settings: Value) -> Request:
    """Returns a request with other values of flags of the run and of training.

    Args:
      request: The request.
      **settings: Flag → value.
    """
    of_training = {flag: value for flag, value in settings.items() if flag not in request.run}
    return dataclasses.replace(
        request,
        run={flag: settings.get(flag, value) for flag, value in request.run.items()},
        training={**request.training, **of_training},
        in_force={**request.in_force, **{k: v for k, v in settings.items() if k not in ACTIONS}},
    )


def parse(arguments: Sequence[str]) -> Request:
    """Parses and checks the command line.

    Args:
      arguments: The arguments, without the program's name. `--flagfile=` is expanded.

    Returns:
      The checked request.

    Raises:
      HparamError: If anything is wrong; the text is one line.
      command_line.Answered: If the arguments request help or the version.
    """
    arguments = parser.expand_flagfiles(arguments)
    reader = _parser_for(arguments)
    given, rest = reader.read(arguments)
    if rest:
        raise HparamError(f"Unexpected argument {rest[0]!r}: flags have the form --name=value.")
    modules = given.pop("import", [])
    return _checked(given, modules, reader.owners)


def from_python(settings: Mapping[str, Any], task: Any = None, model: Any = None) -> Request:
    """Checks settings that are given as Python values.

    Args:
      settings: Flag → value; `None` means that the flag is not set. `flagfile` is the path of a
        flag file, which the other settings override. `client_lr_schedule` may be a function of the
        round, as for `tff_algos.build`.
      task: A `tasks.task.Task` in place of the flag `task`.
      model: A Keras model that replaces the task's, or a function from a seed to such a model.

    Returns:
      The checked request.

    Raises:
      HparamError: If anything is wrong; the text is one line.
    """
    settings = dict(settings)
    flagfile = settings.pop("flagfile", None)
    arguments = [] if flagfile is None else parser.expand_flagfiles([f"--flagfile={flagfile}"])
    reader = _parser_for(arguments)
    owners = reader.owners
    given, _ = reader.read(arguments)
    modules = given.pop("import", [])
    schedule = settings.get("client_lr_schedule")
    if callable(schedule):
        _take_schedule(settings, given)
    for flag, value in settings.items():
        if flag not in owners:
            named = [f"--{k}={settings[k]}" for k in ("algorithm", "task") if settings.get(k)]
            raise HparamError(reader.unknown(flag, [*arguments, *named]))
        if flag == "import":
            raise HparamError("--import is a flag of commands. In Python, import the module first.")
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, np.generic):
            value = value.item()
        if value is not None:
            given[flag] = owners[flag][0].check(value, f"--{flag}")
    if task is not None:
        given["task"] = _check_own_task(task, given)
    request = _checked(given, modules, owners, task)
    if "experiment_name" not in given:
        name = _name_by_settings(request, given, owners)
        request = with_settings(request, experiment_name=name)
    if model is not None and request.run["initial_weights"] is not None:
        raise HparamError("--initial_weights cannot be set with model, which has weights already.")
    objects = {"task": task, "model": model}
    if callable(schedule):
        _check_rates(schedule, request.run["total_rounds"])
        objects["client_lr_schedule"] = schedule
        in_force = {**request.in_force, "client_lr_schedule": "function"}
        request = dataclasses.replace(request, in_force=in_force)
    return dataclasses.replace(request, objects={k: v for k, v in objects.items() if v is not None})


def _name_by_settings(request: Request, given: Settings, owners: Any) -> str:
    """Returns a folder name that is unique to the settings, so a loop over settings needs no names.

    Settings at their default are left out, so a flag that a later version adds changes no name.
    """
    named = MAY_CHANGE | {"task", "algorithm", "seed"}
    differing = {
        flag: value
        for flag, value in given.items()
        if flag not in named and value != owners[flag][0].default
    }
    digest = hashlib.sha256(json.dumps(differing, sort_keys=True).encode()).hexdigest()[:8]
    return f"{request.run['experiment_name']}_seed{request.run['seed']}_{digest}"


def _take_schedule(settings: dict[str, Any], given: dict[str, Any]) -> None:
    """Replaces a schedule that is a function of the round by its rate in the first round."""
    if given.pop("client_learning_rate", settings.get("client_learning_rate")) is not None:
        raise HparamError(
            "client_lr_schedule is a function that returns the learning rate itself; leave out "
            "client_learning_rate."
        )
    imports.import_tensorflow()
    from tff_algos import schedules

    settings["client_learning_rate"] = schedules.first_rate(settings.pop("client_lr_schedule"))


def _check_rates(schedule: Callable[[Any], Any], rounds: int) -> None:
    """Refuses a schedule whose rate is negative or not finite in a later round.

    A negative rate climbs, and training seems to work for some rounds.
    """
    import tensorflow as tf

    def rate(round_num: Any) -> Any:
        return tf.cast(schedule(round_num), tf.float32)

    # One call for all rounds: calls for each would take a second for some thousand rounds.
    given = tf.range(rounds, dtype=tf.float32)
    rates = tf.function(lambda of: tf.map_fn(rate, of), autograph=False)(given).numpy()
    (wrong,) = np.nonzero(~(np.isfinite(rates) & (rates >= 0)))
    if len(wrong):
        raise HparamError(
            f"client_lr_schedule: the function returns {rates[wrong[0]]:g} in round {wrong[0]}; "
            "a learning rate is finite and at least 0."
        )


def _check_own_task(task: Any, given: Settings) -> str:
    """Checks a user's own task and returns its name, which is recorded."""
    if not isinstance(task, Task):
        kind = type(task).__name__
        raise HparamError(f"task must be a task's name or a tasks.task.Task, not a {kind}.")
    if task.name in tasks.names():
        raise HparamError(f"task: {task.name} is the name of a registered task; choose another.")
    if os.path.isabs(task.name) or ".." in task.name.split("/"):
        # Folders of runs are named by it.
        raise HparamError(f"task: its name {task.name!r} must not lead out of the results' folder.")
    if given.get("use_synthetic_data"):
        raise HparamError("--use_synthetic_data is not used by a user's own task.")
    for field in ("settings", "encoding"):
        try:
            json.dumps(dict(getattr(task, field)))
        except (TypeError, ValueError) as e:
            raise HparamError(f"task: its {field} cannot be kept as JSON: {_one_line(e)}") from e
    next(h for h in RUN_HPARAMS if h.name == "task").check(task.name, "task: its name")
    return task.name


def _checked(given: Any, modules: Sequence[str], owners: Any, own_task: Any = None) -> Request:
    # A wrong name is the likeliest cause of all later errors, so it is reported first.
    known: dict[str, Any] = {}
    for flag, module in (("algorithm", tff_algos), ("task", tasks)):
        if flag == "task" and own_task is not None:
            known[flag] = _spec_of(own_task)
        elif given.get(flag) is not None:
            known[flag] = run_parser.lookup(flag, given[flag], module)
    run_parser.refuse_unused(given, known, owners)
    required = [h.name for h in RUN_HPARAMS if h.required]
    method = known.get("algorithm")
    if not method or method.client_learning_rate is None:
        required.append("client_learning_rate")
    if method and method.server_learning_rate is None:
        required.append("server_learning_rate")
    if not method or method.draws_clients:
        required.append("clients_per_round")
    elif given.get("clients_per_round") is not None:
        raise HparamError(
            f"--clients_per_round is not used by --algorithm={method.name}, which takes the "
            "examples of all clients in every round."
        )
    tune = [flag for flag in run_parser.RATES if given.get(flag) == run_parser.TUNE]
    if tune and "server_learning_rate" in required and "server_learning_rate" not in given:
        # A server rate without a default depends on the client rate, so both are searched.
        tune = list(run_parser.RATES)
    given = {**given, **dict.fromkeys(tune, run_parser.UNTUNED)}
    missing = [f"--{flag}" for flag in required if flag not in given]
    if missing:
        raise HparamError(f"Must be set: {', '.join(missing)}. See --help for an example.")
    request = _resolve(given, modules, known["algorithm"], known["task"])
    in_force = {**request.in_force, **dict.fromkeys(tune, run_parser.TUNE)}
    return dataclasses.replace(request, in_force=in_force, tune=tuple(tune))


def _spec_of(task: Task) -> tasks.TaskSpec:
    """Returns the `TaskSpec` of a task that was made in Python."""
    ids = list(task.train.client_ids)
    return tasks.TaskSpec(
        name=task.name,
        summary="",
        loader=lambda **_: task,
        needs_data=False,
        clients=lambda settings, synthetic: tasks.Clients(len(ids), ids),
    )


# All registered methods and tasks, and the parser of their flags. It is made once, since a sweep
# parses the flags of some thousand runs.
_latest: tuple[list[Any], run_parser.RunParser | None] = ([], None)


def _parser_for(arguments: Sequence[str]) -> run_parser.RunParser:
    """Returns the parser of a run's flags, with those of the modules that `--import` names."""
    global _latest
    # The modules' own flags are known only after the import.
    imports.modules_of_ones_own(parser.values_of("import", arguments))
    specs = [*map(tff_algos.get, tff_algos.names()), *map(tasks.get, tasks.names())]
    known, reader = _latest
    if reader is None or list(map(id, specs)) != list(map(id, known)):
        reader = run_parser.RunParser(run_parser.flag_owners())
        _latest = specs, reader
    return reader


def _resolve(given: Settings, modules: Sequence[str], method_spec: Any, task_spec: Any) -> Request:
    def own(name: str, declared: Any) -> Any:
        return {h.name: given[f] for h in declared if (f := h.flag_name(name)) in given}

    run = hparams_lib.resolve("run", RUN_HPARAMS, own("run", RUN_HPARAMS))
    run["import"] = ",".join(modules) or None
    run_checks.check_run(run, method_spec)
    for flag in ("root_output_dir", "data_dir", "mlflow_uri"):
        # A shell leaves the tilde in `--flag=~/x`; a folder of that name is dangerous to remove.
        run[flag] = run[flag] and os.path.expanduser(run[flag])
    if run["experiment_name"] is None:
        run["experiment_name"] = f"{task_spec.name}_{method_spec.name}"
    given_training = own("training", tff_algos.TRAINING_HPARAMS)
    training = registry.resolve_training(method_spec, given_training)
    run_checks.check_chunking(run)
    method = hparams_lib.resolve(
        method_spec.name, method_spec.hparams, own(method_spec.name, method_spec.hparams)
    )
    registry.check_aggregator(method_spec, training, method)
    run_checks.check_epochs(given, run, method_spec, method)
    run_checks.check_workers(given, run, method_spec, method)
    task = task_spec.resolve(own(task_spec.name, task_spec.hparams), run["use_synthetic_data"])
    run_checks.check_clients(run, task_spec, task)
    in_force = {
        **{name: value for name, value in run.items() if name not in ACTIONS},
        **{h.name: training[h.name] for h in tff_algos.TRAINING_HPARAMS if h.is_used(training)},
        **_by_flag(method_spec, method),
        **_by_flag(task_spec, task),
    }
    return Request(run, given_training, method, task, in_force)


def _by_flag(spec: Any, settings: Settings) -> dict[str, Any]:
    return {h.flag_name(spec.name): settings[h.name] for h in spec.hparams}


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
