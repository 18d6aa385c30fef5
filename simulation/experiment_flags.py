"""The settings of a run: from a command line or from Python, without importing TensorFlow.

Every flag is a `tff_suite.hparams.Hparam`: the run's own here, those of training and of each
method in `tff_algos`, those of each task in `tasks`. A flag that several owners declare (with equal
declarations) is defined once and belongs to all of them.
"""

import csv
import dataclasses
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tasks
import tff_algos
from simulation import other_names, runtimes
from tasks.task import Task
from tff_algos import registry, tff_names
from tff_suite import hparams as hparams_lib
from tff_suite import imports, parser
from tff_suite.hparams import Hparam, HparamError, Value

# The head of the command's help.
_HELP = """Runs one experiment: a method on a task, round after round, into a folder of results.

    python run_experiment.py --task=synthetic --algorithm=fedavg --total_rounds=100 \\
        --clients_per_round=10 --client_batch_size=10 --client_learning_rate=0.01
    python run_experiment.py --algorithm=fedadam --help

The same command again resumes the run, or says that it is finished. docs/run_folder.md describes
the folder, docs/exit_codes.md the exit codes.
"""

# The value of --track_clients that names no clients.
EXTREMES = "extremes"

_GOOGLE = "google-research/federated, optimization"


def _flag(name, default, help_text, source="choice", **limits):
    return Hparam(name, default, help_text, source=source, flag=name, **limits)


RUN_HPARAMS = (
    _flag("task", None, "What is learnt, and on whose data. Required.", "none", type=str),
    _flag("algorithm", None, "The method. Required.", "none", type=str),
    _flag(
        "experiment_name",
        None,
        "Folder of the results under --root_output_dir. Unset: <task>_<algorithm>; in Python "
        "also the seed and a digest of the settings.",
        type=str,
    ),
    _flag("root_output_dir", "results", "Folder that holds the folders of experiments."),
    _flag(
        "data_dir",
        None,
        "Folder, or fsspec address (s3://, gs://, ...), of the task's data or of TensorFlow "
        "Datasets. Unset: caches, then a download (docs/tasks.md).",
        type=str,
    ),
    _flag(
        "use_synthetic_data",
        False,
        "Make data of the true shapes and types instead of reading any.",
    ),
    _flag(
        "total_rounds",
        None,
        "Rounds to train. Required. A run that diverges stops early, with exit code 3 "
        "(docs/exit_codes.md).",
        "none",
        type=int,
        minimum=1,
    ),
    _flag(
        "clients_per_round",
        None,
        "Clients drawn for each round, uniformly and without replacement. Required, unless "
        "the method takes all clients.",
        "none",
        type=int,
        minimum=1,
    ),
    _flag(
        "client_epochs_per_round", 1, "Epochs of a client in each round (E).", _GOOGLE, minimum=1
    ),
    _flag(
        "client_epochs_distribution",
        "fixed",
        "fixed: every client does --client_epochs_per_round. uniform_1_3: each draws 1, 2 or "
        "3 epochs anew in every round.",
        "AdaFedAdam, Table 1 (uniform_1_3: resource heterogeneity)",
        choices=("fixed", "uniform_1_3"),
    ),
    _flag(
        "client_batch_size",
        None,
        "Examples in a client's minibatch (B). Required. A client with fewer examples takes "
        "all of them.",
        "none",
        type=int,
        minimum=1,
    ),
    _flag(
        "max_elements_per_client",
        None,
        "Use only this many of a client's training examples, the first ones. Unset: all.",
        type=int,
        minimum=1,
    ),
    _flag("rounds_per_eval", 1, "Rounds between evaluations.", _GOOGLE, minimum=1),
    _flag("rounds_per_checkpoint", 50, "Rounds between checkpoints.", _GOOGLE, minimum=1),
    _flag(
        "num_validation_examples",
        -1,
        "Central test examples evaluated during the run, a fixed draw; -1 is all. The final "
        "evaluation takes all.",
        _GOOGLE,
        minimum=-1,
    ),
    _flag(
        "validation_fraction",
        0.0,
        "Share of each client's training examples to hold out, drawn by --seed. The columns "
        "validation/... measure them.",
        minimum=0.0,
        maximum=1.0,
        exclusive_maximum=True,
    ),
    _flag(
        "validation_clients",
        0.0,
        "Share of the training clients to hold out, drawn by --seed. The columns "
        "validation/... include their examples.",
        minimum=0.0,
        maximum=1.0,
        exclusive_maximum=True,
    ),
    _flag(
        "evaluate_improvement",
        False,
        "Record the share of each round's clients whose training loss did not rise. This "
        "costs two passes over their examples.",
        "AdaFed, equation 31",
    ),
    _flag(
        "evaluate_all_local_data",
        False,
        "Also evaluate clients on all their examples, training and test together "
        "(fairness_all/...).",
    ),
    _flag(
        "track_clients",
        None,
        "Record these clients' training loss at every evaluation: ids separated by commas, or "
        "`extremes` for the lowest and highest first loss.",
        "AdaFed, Fig. 3",
        type=str,
    ),
    _flag(
        "evaluate_classes",
        False,
        "Also evaluate the accuracy on each class of the test examples (eval/accuracy_class_<c>).",
        "AdaFed, Table 7",
    ),
    _flag(
        "client_datasets_random_seed",
        1,
        "Seed of the draw of clients.",
        _GOOGLE,
        minimum=0,
        maximum=hparams_lib.MAX_SEED,
    ),
    _flag(
        "seed",
        0,
        "Seed of everything else: initial weights, partitions, order of examples, dropout.",
        minimum=0,
        maximum=hparams_lib.MAX_SEED,
    ),
    _flag(
        "initial_weights",
        None,
        "Begin with these weights: a .keras or .h5 file of the same model, a SavedModel's "
        "folder or a finished run's. Unset: drawn by --seed.",
        type=str,
    ),
    _flag(
        "runtime",
        "auto",
        "How rounds run: client by client (per_client), on stacked clients (vectorized), or "
        "through TFF, here (tff) or in its CPU worker (native). auto chooses one of the first two.",
        choices=runtimes.CHOICES,
    ),
    _flag(
        "gpu_memory_mb",
        None,
        "Most MiB of a GPU's memory that TensorFlow may take; refused without a GPU. Unset: "
        "as much as it needs.",
        type=int,
        minimum=1,
    ),
    _flag(
        "deterministic_ops",
        False,
        "Make a GPU give the same bits every time, so that a resumed run equals an "
        "uninterrupted one. Slower; refused without a GPU.",
    ),
    _flag(
        "precision",
        "float32",
        "What layers compute in, as Keras names it. The mixed ones suit GPUs with tensor "
        "cores; weights, losses and methods stay in float32.",
        "Micikevicius et al. 2018, arXiv 1710.03740; tf.keras.mixed_precision",
        choices=("float32", "mixed_float16", "mixed_bfloat16"),
    ),
    _flag(
        "loss_scale",
        hparams_lib.By("precision", {"mixed_float16": 1024.0}),
        "Factor on gradients inside the model, so that float16 can hold them. Lower it if "
        "clients are dropped because gradients overflow.",
        "Micikevicius et al. 2018, section 3.2",
        minimum=0.0,
        exclusive_minimum=True,
    ),
    _flag(
        "client_state_memory_mb",
        1024,
        "MiB of memory for what clients keep between rounds. The rest goes to "
        "client_states.sqlite in the run's folder.",
        minimum=1,
    ),
    _flag(
        "clients_per_chunk",
        None,
        "Do a round in chunks of this many clients, in bounded memory. --workers share the "
        "chunks. Changes the last bits of results. Unset: one chunk.",
        type=int,
        minimum=1,
    ),
    _flag(
        "workers",
        0,
        "Ray processes that share the chunks of a round; 0 is this process alone. Neither "
        "this nor the next four flags change results.",
        minimum=0,
    ),
    _flag(
        "ray_address",
        None,
        "Ray cluster of the workers (auto, host:port). Unset: Ray starts on this machine.",
        type=str,
    ),
    _flag(
        "cpus_per_worker",
        1.0,
        "Cores of a worker; a fraction shares one.",
        minimum=0,
        exclusive_minimum=True,
    ),
    _flag("gpus_per_worker", 0.0, "GPUs of a worker; a fraction shares one.", minimum=0),
    _flag(
        "worker_timeout",
        600.0,
        "Seconds without any worker after which the run stops with a checkpoint.",
        minimum=0,
        exclusive_minimum=True,
    ),
    _flag(
        "max_minutes",
        None,
        "Stop with a checkpoint after the first round that ends later than this. The same "
        "command resumes. Unset: no limit.",
        type=float,
        minimum=0,
        exclusive_minimum=True,
    ),
    _flag(
        "stop_at",
        None,
        "The run stops after the first round whose row of metrics.csv meets this, as in "
        "eval/accuracy>=0.9 (>=, <=, > or <). Unset: it does all rounds.",
        type=str,
    ),
    _flag(
        "profile",
        None,
        "3 or 3-5: record these rounds with TensorFlow's profiler, for TensorBoard, into "
        "plugins/profile of the run's folder.",
        type=str,
    ),
    _flag(
        "wandb_project",
        None,
        "Also show the run in this project of Weights & Biases (make venv-tracking). "
        "WANDB_MODE=offline keeps it on disk.",
        type=str,
    ),
    _flag(
        "mlflow_uri",
        None,
        "Also show the run at this tracking address of MLflow, a folder or http://... (make "
        "venv-tracking).",
        type=str,
    ),
    _flag(
        "fresh",
        False,
        "Start anew where the folder holds a run. That run is kept beside it, in "
        "<experiment_name>.replaced-1 or the next free number.",
    ),
    _flag(
        "accept_code_changes",
        False,
        "Go on with the run in the folder although code, model, or the version of its method "
        "or task changed. hparams.json records this.",
    ),
    _flag(
        "import",
        None,
        "Import this module first, which registers methods or tasks. May be given several times.",
        type=str,
    ),
)

# Learning rates that a search may choose, the value that requests the search, and the number that
# stands in for the rate until the search has chosen one.
RATES = ("client_learning_rate", "server_learning_rate")
TUNE = "tune"
_UNTUNED = 0.1

_ALWAYS_REQUIRED = (
    "task",
    "algorithm",
    "total_rounds",
    "client_batch_size",
)

# Additional measurements. They can be switched on during a run and cover the rounds from then on.
MEASURES = frozenset(
    ["evaluate_all_local_data", "evaluate_classes", "evaluate_improvement", "track_clients"]
)
# What a start does with the folder. These are not settings of the run, so they are not recorded.
ACTIONS = frozenset(["accept_code_changes", "fresh"])
# Flags that may change on resumption: none of them affects completed rounds.
MAY_CHANGE = MEASURES.union(
    ACTIONS,
    [
        "client_state_memory_mb",
        "cpus_per_worker",
        "data_dir",
        "experiment_name",
        "gpus_per_worker",
        "import",
        "max_minutes",
        "mlflow_uri",
        "profile",
        "ray_address",
        "root_output_dir",
        "rounds_per_checkpoint",
        "stop_at",
        "total_rounds",
        "wandb_project",
        "worker_timeout",
        "workers",
    ],
)


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

    run: Mapping[str, Value]
    training: Mapping[str, Value]
    method: Mapping[str, Value]
    task: Mapping[str, Value]
    in_force: Mapping[str, Value]
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
        objects["client_lr_schedule"] = schedule
        in_force = {**request.in_force, "client_lr_schedule": "function"}
        request = dataclasses.replace(request, in_force=in_force)
    return dataclasses.replace(request, objects={k: v for k, v in objects.items() if v is not None})


def _name_by_settings(request, given, owners) -> str:
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


def _take_schedule(settings, given) -> None:
    """Replaces a schedule that is a function of the round by its rate in the first round."""
    if given.pop("client_learning_rate", settings.get("client_learning_rate")) is not None:
        raise HparamError(
            "client_lr_schedule is a function that returns the learning rate itself; leave out "
            "client_learning_rate."
        )
    imports.import_tensorflow()
    from tff_algos import schedules

    settings["client_learning_rate"] = schedules.first_rate(settings.pop("client_lr_schedule"))


def _check_own_task(task, given) -> str:
    """Checks a user's own task and returns its name, which is recorded."""
    if not isinstance(task, Task):
        kind = type(task).__name__
        raise HparamError(f"task must be a task's name or a tasks.task.Task, not a {kind}.")
    if task.name in tasks.names():
        raise HparamError(f"task: {task.name} is the name of a registered task; choose another.")
    if given.get("use_synthetic_data"):
        raise HparamError("--use_synthetic_data is not used by a user's own task.")
    for field in ("settings", "encoding"):
        try:
            json.dumps(dict(getattr(task, field)))
        except (TypeError, ValueError) as e:
            raise HparamError(f"task: its {field} cannot be kept as JSON: {_one_line(e)}") from e
    return next(h for h in RUN_HPARAMS if h.name == "task").check(task.name, "task: its name")


def _checked(given, modules, owners, own_task=None) -> Request:
    # A wrong name is the likeliest cause of all later errors, so it is reported first.
    known = {}
    for flag, module in (("algorithm", tff_algos), ("task", tasks)):
        if flag == "task" and own_task is not None:
            known[flag] = _spec_of(own_task)
        elif given.get(flag) is not None:
            known[flag] = _lookup(flag, given[flag], module)
    _refuse_unused(given, known, owners)
    required = list(_ALWAYS_REQUIRED)
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
    tune = [flag for flag in RATES if given.get(flag) == TUNE]
    if tune and "server_learning_rate" in required and "server_learning_rate" not in given:
        # A server rate without a default depends on the client rate, so both are searched.
        tune = list(RATES)
    given = {**given, **dict.fromkeys(tune, _UNTUNED)}
    missing = [f"--{flag}" for flag in required if flag not in given]
    if missing:
        raise HparamError(f"Must be set: {', '.join(missing)}. See --help for an example.")
    request = _resolve(given, modules, known["algorithm"], known["task"])
    in_force = {**request.in_force, **dict.fromkeys(tune, TUNE)}
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


def _parser_for(arguments: Sequence[str]) -> "_RunParser":
    """Returns the parser of a run's flags, with those of the modules that `--import` names."""
    # The modules' own flags are known only after the import.
    imports.modules_of_ones_own(parser.values_of("import", arguments))
    return _RunParser(_flag_owners())


class _RunParser(parser.Parser):
    """The flags of a run: its own, those of training, and those of every method and task.

    Attributes:
      owners: See `_flag_owners`.
    """

    def __init__(self, owners):
        super().__init__(_HELP)
        self.owners = owners
        for flag, (hparam, _) in owners.items():
            form = "repeated" if flag == "import" else "one"
            self.add(parser.Flag(flag, hparam, form))

    def unknown(self, name: str, arguments: Sequence[str]) -> str:
        """As in `Parser`, but also explains names that other libraries use for our flags."""
        told = other_names.of_flag(name) or tff_names.of_argument(name)
        if told is not None:
            return f"Unknown flag --{name}. {told}"
        owned = _own_setting(name, arguments, self.owners)
        if owned is not None:
            return f"Unknown flag --{name}. Did you mean --{owned}?"
        told = other_names.of_common(name)
        if told is not None:
            return f"Unknown flag --{name}. {told}"
        return super().unknown(name, arguments)

    def help(self, full: bool, given: Mapping[str, Any]) -> str:
        """As in `Parser`, with the flags of the method and the task that are given."""
        told = _help(given.get("algorithm"), given.get("task"), self.owners, full)
        return "\n\n".join([self.head(), *told, *self.tail(full)])


def _own_setting(name, arguments, owners) -> str | None:
    """Returns the flag `<owner>_<name>` if the chosen method or task has it."""
    for kind in ("algorithm", "task"):
        for argument in arguments:
            flag, _, owner = argument.lstrip("-").partition("=")
            if flag == kind and f"{owner}_{name}" in owners:
                return f"{owner}_{name}"
    return None


def _flag_owners() -> dict[str, tuple[Hparam, list[tuple[str, str]]]]:
    """Returns, for each flag, its declaration and its owners as (kind, name) pairs."""
    owners: dict[str, tuple[Hparam, list]] = {}

    def add(kind, name, declared):
        for hparam in declared:
            flag = hparam.flag_name(name)
            known, owned_by = owners.setdefault(flag, (hparam, []))
            if known is not hparam and known != hparam:
                raise HparamError(
                    f"--{flag} is declared differently by {kind} {name} and by "
                    f"{' '.join(owned_by[0])}."
                )
            owned_by.append((kind, name))

    add("run", "run", RUN_HPARAMS)
    add("training", "training", map(_tunable, tff_algos.TRAINING_HPARAMS))
    for name in tff_algos.names():
        add("algorithm", name, tff_algos.get(name).hparams)
    for name in tasks.names():
        add("task", name, tasks.get(name).hparams)
    return owners


def _tunable(hparam: Hparam) -> Hparam:
    """Returns a setting as a flag; the flags of learning rates also accept `TUNE`."""
    if hparam.name not in RATES:
        return hparam
    told = f"{hparam.help} {TUNE}: chosen on validation data (docs/own_data.md)."
    return dataclasses.replace(hparam, help=told, word=TUNE)


def _lookup(flag, name, module):
    if name in module.names():
        return module.get(name)
    told = other_names.of_task(name) if flag == "task" else None
    known = module.names()
    said = f"Unknown {flag} {name}. {told}" if told else parser.said_of_unknown(flag, name, known)
    raise HparamError(f"{said} Known: {', '.join(known)}.")


def _refuse_unused(given, known, owners):
    for flag in given:
        owned_by = owners[flag][1]
        kind = owned_by[0][0]
        if kind not in known or any(known[k].name == name for k, name in owned_by if k in known):
            continue
        names = ", ".join(name for _, name in owned_by)
        told = other_names.of_flag(flag)
        theirs = f" google-research/federated has one of this name, too. {told}" if told else ""
        setting = owners[flag][0].name
        own = next((h for h in known[kind].hparams if h.name == setting), None)
        if own is not None and not told:
            theirs = f" Did you mean --{own.flag_name(known[kind].name)}?"
        raise HparamError(
            f"--{flag} is not used by --{kind}={known[kind].name}: it belongs to {kind} {names}."
            f"{theirs}"
        )
    if "data_dir" in given and "task" in known and not known["task"].needs_data:
        raise HparamError(
            f"--data_dir is not used by --task={known['task'].name}: it belongs to tasks that "
            "read data files."
        )


def _resolve(given, modules, method_spec, task_spec) -> Request:
    def own(name, declared):
        return {h.name: given[f] for h in declared if (f := h.flag_name(name)) in given}

    run = hparams_lib.resolve("run", RUN_HPARAMS, own("run", RUN_HPARAMS))
    run["import"] = ",".join(modules) or None
    if run["num_validation_examples"] == 0:
        raise HparamError("--num_validation_examples=0 must be -1 (all) or >= 1.")
    if run["stop_at"] is not None:
        stop_condition(run["stop_at"])
    if run["profile"] is not None:
        profiled_rounds(run["profile"])
    check_place(run["root_output_dir"])
    for flag in ("root_output_dir", "data_dir", "mlflow_uri"):
        # A shell leaves the tilde in `--flag=~/x`; a folder of that name is dangerous to remove.
        run[flag] = run[flag] and os.path.expanduser(run[flag])
    if method_spec.staged and run["runtime"] == "vectorized":
        raise HparamError(
            f"--runtime=vectorized cannot run {method_spec.name}, a method of several processes; "
            "use auto, tff or native."
        )
    if method_spec.staged and run["evaluate_improvement"]:
        raise HparamError(
            f"--evaluate_improvement does not support {method_spec.name}, which chooses its own "
            "clients."
        )
    if run["experiment_name"] is None:
        run["experiment_name"] = f"{task_spec.name}_{method_spec.name}"
    given_training = own("training", tff_algos.TRAINING_HPARAMS)
    training = registry.resolve_training(method_spec, given_training)
    _check_chunks(run, training)
    method = hparams_lib.resolve(
        method_spec.name, method_spec.hparams, own(method_spec.name, method_spec.hparams)
    )
    registry.check_aggregator(method_spec, training, method)
    _check_epochs(given, run, method_spec, method)
    _check_workers(given, run, method_spec, method)
    task = task_spec.resolve(own(task_spec.name, task_spec.hparams), run["use_synthetic_data"])
    _check_clients(run, task_spec, task)
    in_force = {
        **{name: value for name, value in run.items() if name not in ACTIONS},
        **{h.name: training[h.name] for h in tff_algos.TRAINING_HPARAMS if h.is_used(training)},
        **_by_flag(method_spec, method),
        **_by_flag(task_spec, task),
    }
    return Request(run, given_training, method, task, in_force)


def _by_flag(spec, settings):
    return {h.flag_name(spec.name): settings[h.name] for h in spec.hparams}


def check_place(root: str) -> None:
    """Checks that results go to a local folder and not to an address such as `s3://bucket/folder`.

    Args:
      root: `--root_output_dir`.

    Raises:
      HparamError: If it is an address.
    """
    if "://" in root:
        raise HparamError(
            f"--root_output_dir={root} is an address, but must be a local folder. To copy results "
            "there, use reproduce.py --storage."
        )


def profiled_rounds(text: str) -> tuple[int, int]:
    """Reads `--profile`: `N`, or `FIRST-LAST`.

    Returns:
      The first and the last round, from 1.

    Raises:
      HparamError: If the text has another form.
    """
    found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise HparamError(
            f"--profile={text} must be a round or a range of rounds from 1 on, as in 3 or 3-5."
        )
    return first, last


_CONDITION = re.compile(r"\s*([\w./-]+)\s*(>=|<=|>|<)\s*([-+\w.]+)\s*")


def stop_condition(text: str) -> tuple[str, str, float]:
    """Reads `--stop_at`.

    Returns:
      Column of metrics.csv, comparison (`>=`, `<=`, `>` or `<`) and number.

    Raises:
      HparamError: If the text has another form.
    """
    found = _CONDITION.fullmatch(text)
    try:
        bound = float(found[3]) if found else math.nan
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise HparamError(
            f"--stop_at={text} must be a column of metrics.csv, a comparison and a number, as in "
            "eval/accuracy>=0.9."
        )
    return found[1], found[2], bound


def _check_chunks(run, training):
    """Refuses `--clients_per_chunk` for rounds that cannot be split into chunks."""
    if run["clients_per_chunk"] is None:
        return
    if run["runtime"] == "native":
        raise HparamError(
            "--clients_per_chunk does not support --runtime=native; use auto, per_client or "
            "vectorized."
        )
    if training["aggregator"] != "mean":
        raise HparamError(
            f"--clients_per_chunk does not support --aggregator={training['aggregator']}, which "
            "needs all clients' updates at once; use --aggregator=mean."
        )


def _check_workers(given, run, method_spec, method):
    """Refuses workers that would be idle, and flags of workers without `--workers`."""
    if not run["workers"]:
        for flag in ("ray_address", "cpus_per_worker", "gpus_per_worker", "worker_timeout"):
            if flag in given:
                raise HparamError(f"--{flag} is not used without --workers.")
        return
    plan = method_spec.round_plan(dict(method), 0, run["total_rounds"])
    if run["clients_per_round"] is not None and plan.losses != "all":
        check_chunks(run, run["clients_per_round"])
    elif run["clients_per_chunk"] is None:
        check_chunks(run, None)


def check_chunks(run: Mapping[str, Any], cohort: int | None) -> None:
    """Refuses more workers than a round has chunks.

    Args:
      run: The run's own settings.
      cohort: Clients per round; `None` if it depends on the data, which are not loaded yet.

    Raises:
      HparamError: If there are more workers than chunks.
    """
    workers, size = run["workers"], run["clients_per_chunk"]
    if cohort is None:
        raise HparamError(
            "--workers needs --clients_per_chunk: results depend on the chunks, but must not "
            "depend on the number of workers."
        )
    chunks = 1 if size is None else -(-cohort // size)
    if size is None or workers > chunks:
        fair = max(1, cohort // (4 * workers))
        found = "is not set" if size is None else f"={size} makes {chunks}"
        raise HparamError(
            f"--workers={workers} needs at least as many chunks of the {cohort} clients per round, "
            f"but --clients_per_chunk {found}; use --clients_per_chunk={fair}, for example."
        )


def _check_epochs(given, run, method_spec, method):
    """Refuses a number of epochs that the run would not use."""
    drawn = run["client_epochs_distribution"] != "fixed"
    if drawn and "client_epochs_per_round" in given:
        raise HparamError(
            "--client_epochs_per_round is not used with "
            f"--client_epochs_distribution={run['client_epochs_distribution']}, which draws it."
        )
    plan = method_spec.round_plan(dict(method), 0, run["total_rounds"])
    if plan.local_steps is not None:
        for flag in ("client_epochs_per_round", "client_epochs_distribution"):
            if flag in given:
                raise HparamError(
                    f"--{flag} is not used by --algorithm={method_spec.name}, which fixes the "
                    f"number of its clients' steps ({plan.local_steps})."
                )


def _check_clients(run, task_spec, task):
    """Checks numbers and ids of clients against the task, if these are known without its data."""
    known = task_spec.clients and task_spec.clients(task, run["use_synthetic_data"])
    if known:
        check_cohort(run["clients_per_round"], known.number, task_spec.name)
        if known.ids is not None:
            check_tracked(run["track_clients"], known.ids)


def check_cohort(size: int | None, number: int, task: str) -> None:
    """Refuses a cohort that is larger than the task's number of clients.

    Args:
      size: `--clients_per_round`.
      number: Number of the task's clients.
      task: Name of the task.

    Raises:
      HparamError: If the task has fewer clients.
    """
    if size is not None and size > number:
        raise HparamError(
            f"--clients_per_round={size} is more than the {number} clients of --task={task}."
        )


def tracked(which: str) -> list[str]:
    """Returns the ids that `--track_clients` names, read as a line of CSV."""
    try:
        names = next(csv.reader([which]), None)
    except csv.Error:  # A line break outside of quotes.
        names = which.split(",")
    return list(dict.fromkeys(names or [""]))


def check_tracked(which: str | None, ids: Sequence[str]) -> None:
    """Refuses to track clients that the task does not have.

    Args:
      which: `--track_clients`.
      ids: Ids of the task's clients.

    Raises:
      HparamError: If the task does not have a client of that id.
    """
    for name in tracked(which) if which not in (None, EXTREMES) else ():
        if name not in ids:
            raise HparamError(
                f"--track_clients={which}: there is no client {name!r}; use ids as in "
                f"client_metrics.csv, e.g. {ids[0]!r}."
            )


# The flags of every run that `--help` shows; `--helpfull` shows all.
_MOST_USED = (
    "task",
    "algorithm",
    "experiment_name",
    "root_output_dir",
    "data_dir",
    "use_synthetic_data",
    "total_rounds",
    "clients_per_round",
    "client_epochs_per_round",
    "client_batch_size",
    "rounds_per_eval",
    "rounds_per_checkpoint",
    "seed",
    "runtime",
    "max_minutes",
    "fresh",
    "client_optimizer",
    "client_learning_rate",
    "server_learning_rate",
)


def _help(algorithm, task, owners, full) -> list[str]:
    """Returns the sections of the help: flags that apply, then names of methods and tasks."""
    chosen = {}
    if algorithm is not None:
        chosen["algorithm"] = _lookup("algorithm", algorithm, tff_algos)
    if task is not None:
        chosen["task"] = _lookup("task", task, tasks)
    sections = []
    titles = {"run": "The run:", "training": "Training on clients:"}
    for kind, spec in chosen.items():
        titles[kind] = f"{kind.capitalize()} {spec.name}: {spec.summary}"
        if getattr(spec, "paper", ""):
            titles[kind] += f" ({spec.paper})"
    for kind, title in titles.items():
        lines = [title]
        for flag, (hparam, owned_by) in owners.items():
            applies = any(
                k == kind and (k not in chosen or name == chosen[k].name) for k, name in owned_by
            )
            if flag == "data_dir" and "task" in chosen and not chosen["task"].needs_data:
                applies = False
            if kind not in chosen and not full and flag not in _MOST_USED:
                applies = False
            if applies:
                default = hparam.describe_default()
                rates = ("client_learning_rate", "server_learning_rate")
                if flag in rates and "algorithm" in chosen:
                    rate = getattr(chosen["algorithm"], flag)
                    default = "unset" if rate is None else str(rate)
                lines.append(_help_of_flag(flag, hparam, default))
        if len(lines) == 1:
            lines.append("  (no settings of its own)")
        sections.append("\n".join(lines))
    for kind, module in (("algorithm", tff_algos), ("task", tasks)):
        if kind not in chosen:
            lines = [f"--{kind} is one of (add --{kind}=<name> to --help for its own flags):"]
            width = max(map(len, module.names()), default=0)
            lines += [f"  {name:{width}}  {module.get(name).summary}" for name in module.names()]
            sections.append("\n".join(lines))
    return sections


def _help_of_flag(flag, hparam, default):
    facts = [] if default == "unset" else [f"default: {default}"]
    if hparam.describe_range():
        facts.append(hparam.describe_range())
    if hparam.source not in ("choice", "none"):  # These mean that it has no source.
        facts.append(f"source: {hparam.source}")
    return parser.described(f"--{flag}=<{parser.kind_of(hparam)}>", hparam.help, facts)


def _one_line(error) -> str:
    return " ".join(str(error).split())
