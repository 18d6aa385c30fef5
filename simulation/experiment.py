"""One experiment, from checked settings to its folder of results."""

import contextlib
import dataclasses
import functools
import importlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from simulation import assembly, identity, run_checks, run_hparams, runtimes, task_models
from simulation.device import layer_gradients
from simulation.errors import ChangedError, DivergedError, RunError
from simulation.experiment_flags import Request
from simulation.records import checkpoints, files, metrics_csv, models, outputs, stacks, trackers
from simulation.records.progress import Progress, ProgressInPython
from simulation.rounds import callbacks
from tasks import fingerprint, missing, scales
from tff_suite import command_line, imports
from tff_suite.hparams import HparamError


@dataclasses.dataclass(frozen=True)
class Caller:
    """How a run communicates with the command or program that started it.

    Attributes:
      command: The command line or call that started it, for the record.
      say: Prints or logs a line on what the run does.
      warn: Prints or logs a warning of one line.
      progress: (rounds done, rounds in total) → the `Progress` that is shown.
      stop_request: Makes a context manager whose value has an attribute `signal`. The run stops
        after the current round once this is not `None`.
      takes_weights: Whether the caller needs the final weights, even of a run that is already
        finished.
      callbacks: See `simulation.rounds.callbacks`.
      evaluators: Name → function of the weights that returns a number, the column `eval/<name>`.
    """

    command: Sequence[str]
    say: Callable[[str], None]
    warn: Callable[[str], None]
    progress: Callable[[int, int], Progress | ProgressInPython]
    stop_request: Callable[[], contextlib.AbstractContextManager]
    takes_weights: bool
    callbacks: Sequence[Any] = ()
    evaluators: Mapping[str, Callable[[list[np.ndarray]], float]] = dataclasses.field(
        default_factory=dict
    )

    @functools.cached_property
    def own_functions(self) -> dict[str, str]:
        """Digests of evaluators and own callbacks, see `identity.of_own_functions`."""
        return identity.of_own_functions(self.evaluators, self.callbacks)


class Outcome(NamedTuple):
    """How a run ended.

    Attributes:
      folder: Path of its folder.
      weights: The model's weights as `tf.keras.Model.set_weights` takes them; `None` if the run had
        nothing to do and the caller does not need them.
      stopped_by: The signal that stopped it, if any.
    """

    folder: str
    weights: list[np.ndarray] | None
    stopped_by: signal.Signals | None = None


def run(request: Request, command: Sequence[str]) -> int:
    """Runs an experiment for a command, or resumes it where an earlier process stopped.

    Args:
      request: The checked settings.
      command: The command line, for the record.

    Returns:
      The exit code: 0, or 128 plus the number of the signal that stopped the run.

    Raises:
      HparamError: If settings contradict the task's data or each other.
      RunError: If the run cannot start or resume.
      tasks.task.DataError: If data is missing or damaged.
    """

    def stop_request():
        from simulation.rounds import loop

        return loop.StopRequest()

    caller = Caller(
        command,
        say=command_line.say,
        warn=command_line.warn,
        progress=Progress,
        stop_request=stop_request,
        takes_weights=False,
    )
    stopped_by = carry_out(request, caller).stopped_by
    return 0 if stopped_by is None else 128 + stopped_by


def carry_out(request: Request, caller: Caller) -> Outcome:
    """Runs an experiment, or resumes it where an earlier process stopped.

    Args:
      request: The checked settings.
      caller: How to communicate with the command or program that started it.

    Raises:
      HparamError: As `run`.
      RunError: As `run`.
      tasks.task.DataError: As `run`.
    """
    started = time.monotonic()
    if request.tune:
        # A search consists of many runs, so its code belongs to a package above this one.
        tuning = importlib.import_module("reproduction.tuning")
        try:
            request = tuning.settle(request, caller)
        except tuning.StoppedError as e:
            why = f"Stopped by {e.signal.name}" if e.signal else "Out of time"
            told = f"{why} while tuning learning rates; run the same command again to resume."
            if caller.takes_weights:
                # There are none, nor a folder with a result.
                raise RunError(told) from e
            # The same command resumes it, so this is not a failure.
            caller.say(told)
            return Outcome("", None, e.signal)
    settings = request.run
    trackers.require_installed(settings)
    with outputs.ExperimentFolder(
        settings["root_output_dir"], settings["experiment_name"]
    ) as folder:
        if settings["fresh"]:
            kept = folder.set_aside()
            if kept:
                caller.say(f"Moved the previous run from {folder.path} to {kept}.")
        request = _settled(request, folder)
        point = _resume_point(request, folder)
        stopped = _stopped(request, folder, caller)
        if point.finished == settings["total_rounds"] or stopped:
            folder.check_results()
            if not caller.takes_weights:  # Else `_work` loads everything and checks it then.
                _check_finished(request, folder, point, caller)
            how = f"stopped early, {stopped}"
            if not stopped:
                how = f"all {settings['total_rounds']} rounds are done"
            caller.say(f"{folder.path} is finished ({how}): nothing to do.")
            unmeasured = _unmeasured(request, folder, caller)
            if unmeasured:
                caller.warn(
                    f"{folder.path} was finished without {unmeasured}, which only counts in "
                    "new rounds; raise --total_rounds or choose another --experiment_name."
                )
            _warn_of_other_functions(folder, point.finished, caller, goes_on=False)
            if not caller.takes_weights:
                return Outcome(folder.path, None)
        if point.finished and point.checkpoint is None:
            raise RunError(
                f"{folder.path} has no checkpoint to resume from after {point.finished} rounds."
            )
        if point.checkpoint is not None:
            recorded = folder.read_hparams()
            assert recorded is not None  # A folder with checkpoints and without it was refused.
            stacks.check_same(folder.path, recorded)
            folder.check_checkpoint(point.checkpoint)
            _check_same_plans(request, point.checkpoint)
        if settings["initial_weights"] is not None:
            models.find(settings["initial_weights"])
        is_over = bool(point.finished == settings["total_rounds"] or stopped)
        return _work(request, folder, point, caller, started, is_over)


def _work(
    request: Request,
    folder: outputs.ExperimentFolder,
    point: "_Point",
    caller: Caller,
    started: float,
    is_over: bool,
) -> Outcome:
    """Does the part of a run that needs TensorFlow."""
    imports.import_tensorflow()
    settings = request.run
    runtimes.configure_gpus(settings["gpu_memory_mb"], settings["deterministic_ops"])
    with contextlib.ExitStack() as stack:
        stack.enter_context(layer_gradients.forgotten())
        experiment = Experiment(request, folder, point, caller)
        command_line.stops_raise()
        stack.enter_context(runtimes.installed(experiment.request.run["runtime"]))
        saved = point.checkpoint
        if is_over and saved is not None and point.finished == saved.round_num:
            return Outcome(folder.path, experiment.restored_weights())
        with _unfit_examples_explained(settings["task"]):
            return experiment.train(caller, started)


@contextlib.contextmanager
def _unfit_examples_explained(task: str) -> Iterator[None]:
    """Turns TensorFlow's errors for labels or tokens out of the model's range into one line."""
    try:
        yield
    except Exception as e:
        from tff_algos.model import BEYOND_THE_MODEL

        found = BEYOND_THE_MODEL.search(str(e))
        if found is None:
            raise
        raise RunError(f"Examples of task {task} do not fit its model: {found[0]}.") from e


class _Point(NamedTuple):
    """Where a run begins or resumes.

    Attributes:
      checkpoint: The newest intact checkpoint, if any.
      damaged: Paths of newer ones that are damaged.
      finished: Number of rounds of the finished run in the folder; 0 if it is not finished.
    """

    checkpoint: checkpoints.Checkpoint | None
    damaged: list[str]
    finished: int


def _settled(request: Request, folder: outputs.ExperimentFolder) -> Request:
    """Replaces `--runtime=auto` by the runtime that was chosen when the run began."""
    if request.run["runtime"] != "auto":
        return request
    with files.explained(folder.path):
        recorded = folder.read_hparams()
    name = recorded["flags"].get("runtime", "auto") if recorded else "auto"
    if name not in ("auto", *runtimes.RUNTIMES):
        raise RunError(
            f"{folder.file('hparams.json')} is damaged: unknown runtime {name!r}; restore it, "
            "or choose another --experiment_name."
        )
    return _with_runtime(request, name)


def _with_runtime(request: Request, name: str) -> Request:
    return dataclasses.replace(
        request,
        run={**request.run, "runtime": name},
        in_force={**request.in_force, "runtime": name},
    )


def _resume_point(request: Request, folder: outputs.ExperimentFolder) -> _Point:
    checkpoint, damaged = folder.resume_point(request.in_force, run_hparams.MAY_CHANGE)
    finished, total_rounds = folder.finished_rounds(), request.run["total_rounds"]
    done = max(finished, checkpoint.round_num if checkpoint else 0)
    if total_rounds < done:
        raise HparamError(
            f"--total_rounds={total_rounds} is less than the {done} rounds already in "
            f"{folder.path}."
        )
    _check_objects(request, folder)
    return _Point(checkpoint, damaged, finished)


def _stopped(request: Request, folder: outputs.ExperimentFolder, caller: Caller) -> str:
    """Says why a finished run would stop where it is; empty if it goes on, or is not finished.

    Only what stopped it before, or could, is asked: `--stop_at` and the caller's callbacks.

    Raises:
      RunError: If `--stop_at` would have stopped it before its last round.
    """
    condition = request.run["stop_at"]
    summary = outputs.read_json(folder.file("summary.json")) or {}
    if not summary.get("finished") or summary.get("rounds") > request.run["total_rounds"]:
        return ""
    given: list[callbacks.Callback] = []
    if condition is not None:
        given = [callbacks.StopAt(condition)]
    if "stopped" in summary:
        given = [*(c for c in caller.callbacks if isinstance(c, callbacks.Callback)), *given]
    if not given:
        return ""
    rows = [callbacks.numbers(row) for row in metrics_csv.read_csv(folder.file("metrics.csv"))[1]]
    for callback in given:
        if isinstance(callback, callbacks.EarlyStopping):
            callback.settle(assembly.load(request))
        reason = callback.begin(rows)
        # The run went on after that round, so its final numbers are of later ones.
        earlier = isinstance(callback, callbacks.StopAt) and callback.begin(rows[:-1])
        if earlier:
            raise RunError(
                f"{folder.path} has {summary['rounds']} rounds, but stop_at would end it earlier: "
                f"{earlier}. Choose another experiment_name, or leave stop_at out."
            )
        if reason:
            return reason
    return ""


def _unmeasured(request: Request, folder: outputs.ExperimentFolder, caller: Caller) -> str:
    """Lists the measuring flags, evaluators and callbacks that a finished run did not have."""
    with files.explained(folder.path):
        recorded = folder.read_hparams()
    assert recorded is not None  # A folder of results without it was refused.
    flags = recorded["flags"]
    asked = {name: request.in_force.get(name) for name in sorted(run_hparams.MEASURES)}
    lacking = [f"--{k}={v}" for k, v in asked.items() if v and v != flags.get(k)]
    columns = metrics_csv.read_csv(folder.file("metrics.csv"))[0] if caller.evaluators else []
    lacking += [f"the evaluator {k}" for k in caller.evaluators if f"eval/{k}" not in columns]
    known = recorded["identity"].get("own_functions", caller.own_functions)
    given = [name for name in caller.own_functions if _is_callback(name)]
    return ", ".join([*lacking, *(name for name in given if name not in known)])


def _warn_of_other_functions(
    folder: outputs.ExperimentFolder, rounds: int, caller: Caller, goes_on: bool
) -> list[str]:
    """Warns of evaluators and callbacks whose code differs from that of the rounds done.

    Callbacks count only if one has replaced weights; others change no number. If the run goes on,
    it also warns of callbacks that are missing now.

    Returns:
      Their names.
    """
    known, now = _known_functions(folder), caller.own_functions
    other = sorted(name for name in known.keys() & now.keys() if known[name] != now[name])
    gone = [name for name in sorted(known.keys() - now.keys()) if goes_on and _is_callback(name)]
    if not rounds or not (other or gone):
        return []
    if callbacks.REPLACED not in metrics_csv.read_csv(folder.file("metrics.csv"))[0]:
        other, gone = [name for name in other if not _is_callback(name)], []
    told = [f"other code of {', '.join(other)}"] if other else []
    told += [f"{', '.join(gone)}, missing now"] if gone else []
    if told:
        caller.warn(
            f"Rounds up to {rounds} of {folder.path} were done with {' and with '.join(told)}; "
            "choose another experiment_name, or start anew with fresh=True."
        )
    return [*other, *gone]


def _known_functions(folder: outputs.ExperimentFolder) -> dict[str, str]:
    """Returns the recorded `own_functions` of the rounds done, see `simulation.identity`."""
    return (_recorded_identity(folder) or {}).get("own_functions", {})


def _is_callback(name: str) -> bool:
    return name.startswith(identity.CALLBACK)


def _check_objects(request: Request, folder: outputs.ExperimentFolder) -> None:
    """Refuses a change between a named task or model and one given in Python."""
    with files.explained(folder.path):
        recorded = folder.read_hparams()
    before = (recorded or {}).get("objects", {})
    for kind in ("task", "model") if recorded else ():
        if (kind in before) != (kind in request.objects):
            was, now = "given in Python", "given by name"
            was, now = (was, now) if kind in before else (now, was)
            raise RunError(
                f"{folder.path} holds another experiment (the {kind} was {was}, is {now}); choose "
                "another --experiment_name."
            )


def _check_same_plans(request: Request, checkpoint: checkpoints.Checkpoint) -> None:
    """Refuses a change of `--total_rounds` that would have affected completed rounds."""
    now = request.run["total_rounds"]
    before: Any = checkpoint.settings.get("total_rounds", now)
    other = request.first_other_plan(checkpoint.round_num, before, now)
    if other is not None:
        raise HparamError(
            f"--total_rounds={now} cannot replace {before}: {request.run['algorithm']} planned the "
            f"completed round {other + 1} for {before} rounds."
        )


def _check_finished(
    request: Request, folder: outputs.ExperimentFolder, point: _Point, caller: Caller
) -> None:
    """Checks that a finished run was made with the current code and data.

    Raises:
      ChangedError: If it was not, and `--accept_code_changes` does not cover the difference.
    """
    before = _recorded_identity(folder) or {}
    found = identity.look(request, before)
    if found.unread:
        caller.warn(
            f"{folder.path} was not compared with the current data and model, which cannot be "
            f"loaded: {found.unread}"
        )
    compare = functools.partial(_changes, request, folder)
    changes = compare(found.identity, found.data)
    if found.data is not None and any(change.kind == "data" for change in changes):
        # Data may seem changed because the cache of file digests is out of date.
        data = fingerprint.of_task(assembly.load(request), trust_cache=False)
        now = {**found.identity, "data": {**found.identity["data"]}}
        now["data"]["digest"] = fingerprint.whole(data)
        found = found._replace(identity=now, data=data)
        changes = compare(now, data)
    accepted = _settle(request, folder, changes, caller)
    if accepted:
        from simulation.records import recorder

        recorder.accept(folder, point.finished, found.identity, accepted)


def _recorded_identity(folder: outputs.ExperimentFolder) -> Mapping[str, Any] | None:
    """Returns the recorded identity of a run; `None` if the run has not begun."""
    with files.explained(folder.path):
        recorded = folder.read_hparams()
    return None if recorded is None else recorded["identity"]


def _changes(
    request: Request, folder: outputs.ExperimentFolder, now: Mapping[str, Any], data: Any
) -> list[identity.Change]:
    """Returns what differs from the recorded identity of the run in a folder."""
    before = _recorded_identity(folder)
    if before is None:
        return []
    history = identity.history_of(request)
    return identity.differences(before, now, folder.data_digests(), data, history)


def _settle(
    request: Request,
    folder: outputs.ExperimentFolder,
    changes: Sequence[identity.Change],
    caller: Caller,
) -> list[str]:
    """Refuses changes unless `--accept_code_changes` covers them; returns them as text."""
    if changes:
        data = any(change.kind == "data" for change in changes)
        if data or not request.run["accept_code_changes"]:
            raise ChangedError(
                f"{folder.path} holds a run with other {identity.what(changes)} "
                f"({identity.in_words(changes)}); "
                f"{identity.ways_on(changes, folder.path)}."
            )
        caller.say(f"Accepted, and recorded in {folder.path}: {identity.in_words(changes)}.")
    return [change.text for change in changes]


class Experiment:
    """A method on a task, loaded and built, with the folder of its results.

    Attributes:
      request: The settings, with `--runtime=auto` replaced by the chosen runtime.
    """

    def __init__(
        self,
        request: Request,
        folder: outputs.ExperimentFolder,
        point: _Point,
        caller: Caller,
    ):
        """Loads the task and builds the method.

        Args:
          request: The checked settings.
          folder: The folder, locked by this process.
          point: Where the run begins or resumes.
          caller: How to communicate with the command or program that started the run.

        Raises:
          HparamError: As `run`.
          RunError: As `run`.
          tasks.task.DataError: As `run`.
        """
        settings = request.run
        self._folder, self._point = folder, point

        def look_at(task, keras_model):
            self._look_at(request, task, keras_model, caller)
            self._missing = assembly.once("missing in training", task, missing.in_training)
            in_tests = assembly.once("missing in tests", task, missing.in_tests)
            of_scales = assembly.once("scales of tests", task, scales.in_tests)
            for line in filter(None, [self._missing, *in_tests, *of_scales]):
                caller.warn(f"{line}.")

        parts = assembly.assemble(request, look_at)
        self._task, self._train, self._cohorts, self._model, self._method = parts
        if settings["runtime"] == "auto":
            whole = settings["clients_per_chunk"] is None
            first_clients = (lambda: self._cohorts.data(0)[1]) if whole else None
            name, reason = runtimes.choose(self._method.process, first_clients)
            caller.say(f"--runtime=auto is {name}: {reason}.")
            request = _with_runtime(request, name)
        self.request = request

    def _look_at(self, request, task, keras_model, caller):
        """Determines the run's identity and compares it with the recorded one."""
        folder, point, changes = self._folder, self._point, []
        before = _recorded_identity(folder)
        held = assembly.once("digests", task, fingerprint.in_memory)
        for trust_cache in (True, False):
            self._data = fingerprint.of_task(task, trust_cache, held)
            self._identity = identity.of_run(request, task, keras_model, self._data, before)
            changes = _changes(request, folder, self._identity, self._data)
            # Data may seem changed because the cache of file digests is out of date.
            if all(change.kind != "data" for change in changes):
                break
        if changes and not (point.checkpoint and point.checkpoint.round_num):
            # No round is done yet, e.g. as the user's code failed: the run begins anew, unchanged.
            self._point, changes = point._replace(checkpoint=None), []
        self._accepted = _settle(request, folder, changes, caller)
        if self._accepted and point.finished:
            from simulation.records import recorder

            recorder.accept(folder, point.finished, self._identity, self._accepted)

    def restored_weights(self) -> list[np.ndarray]:
        """Returns the model's weights in the checkpoint, in the form of `Outcome.weights`.

        Requires that the runtime is installed.

        Raises:
          RunError: If the checkpoint is from another model or method.
        """
        process = self._method.through_tff()
        return self._all_weights(process.model_weights(self._standing(process).state))

    def train(self, caller: Caller, started: float) -> Outcome:
        """Does the remaining rounds and writes the results.

        Requires that the runtime is installed.

        Args:
          caller: How to communicate with the command or program that started the run.
          started: Time of the start, by `time.monotonic`.

        Raises:
          HparamError: If even a lower bound on a round's memory exceeds what is available.
          RunError: If the run cannot resume or diverges.
        """
        from simulation.rounds import least_memory

        settings, model, method = self.request.run, self._model.model, self._method
        with contextlib.ExitStack() as stack:
            if runtimes.in_engine(settings):
                programs = method.programs()
                least_memory.require(method, model, self._cohorts, settings, programs)
                pool = self._pool(programs, caller, stack)
                process, spread = method.in_engine(programs, pool), pool.spread
            else:
                least_memory.require(method, model, self._cohorts, settings)
                process, spread = method.through_tff(), None
            try:
                return self._train_with(process, spread, caller, started)
            except DivergedError as e:
                self._folder.write_json(outputs.DIVERGED, {"reason": str(e)})
                raise

    def _train_with(self, process, spread, caller, started):
        from simulation.measures import evaluations
        from simulation.records import profile
        from simulation.rounds import loop

        settings, folder, task = self.request.run, self._folder, self._task
        measured = evaluations.Evaluations(
            task,
            self._train,
            settings,
            self._model,
            self._method,
            spread,
            warn=lambda text: opened.warn(text),
        )
        if measured.note:
            # Where ids are the user's own, they may be what is wrong.
            (caller.warn if "task" in self.request.objects else caller.say)(measured.note)
        told = self._callbacks(caller)
        cure = self._missing or loop.CURE
        standing = self._standing(process)
        # Client states are opened first: if they are refused, nothing else has been changed.
        with self._client_states(standing.round_num) as client_states:
            self._write_start(caller, standing.round_num)
            opened = self._recorder(caller, standing.round_num, client_states)
            cohorts = self._method.cohorts(runtimes.in_engine(settings))
            with cohorts as cohort_of_round, caller.stop_request() as stop:
                profiled = profile.Profile(
                    settings["profile"], folder.path, say=caller.say, warn=caller.warn
                )
                told.begin(opened.kept)
                with opened, profiled:
                    state, round_num = loop.run(
                        process,
                        standing._replace(
                            lost=loop.lost_rounds(opened.kept),
                            bounds=loop.loss_bounds(opened.kept),
                        ),
                        loop.Pace(
                            settings["total_rounds"],
                            settings["rounds_per_eval"],
                            settings["rounds_per_checkpoint"],
                        ),
                        opened,
                        cohort_of_round=cohort_of_round,
                        client_states=client_states,
                        evaluate=lambda w, state: self._own(
                            measured(w, state, client_states).columns, w, caller
                        ),
                        compare=self._comparison(measured),
                        should_stop=lambda: stop.signal is not None or self._late(started),
                        before_round=profiled.before_round,
                        callbacks=told,
                        replace=self._with_weights,
                        cure=cure,
                    )
                weights = process.model_weights(state)
                if stop.signal is not None:
                    caller.say(f"Stopped by {stop.signal.name}. {self._how_to_resume(round_num)}")
                    return Outcome(folder.path, self._all_weights(weights), stop.signal)
                final = measured(weights, state, client_states, final=True)
                self._own(final.columns, weights, caller)
                if round_num == settings["total_rounds"]:
                    rows = metrics_csv.read_csv(folder.file("metrics.csv"))[1]
                    loop.check_last(final.columns, loop.loss_bounds(rows), cure)
                self._write_results(final, round_num, weights, caller, told.reason)
                told.at("end", round_num, final.columns, weights)
                if told.failure is not None:
                    raise told.failure
        if told.reason is not None:
            caller.say(f"Stopped early: {told.reason}.")
        elif round_num < settings["total_rounds"]:
            caller.say(f"Out of time. {self._how_to_resume(round_num)}")
        return Outcome(folder.path, self._all_weights(weights))

    @functools.cached_property
    def _variables(self):
        """The model's variables that train, those that do not, and all, before any callback."""
        keras_model = self._model.keras_model
        return tuple(
            list(variables)
            for variables in (
                keras_model.trainable_variables,
                keras_model.non_trainable_variables,
                keras_model.weights,
            )
        )

    def _all_weights(self, trained):
        """Returns all of the model's weights, frozen ones included, in `get_weights` order."""
        trainable, others, every = self._variables
        values = {
            id(variable): value
            for variables, arrays in (
                (trainable, trained),
                (others, self._model.model.frozen_weights),
            )
            for variable, value in zip(variables, arrays, strict=True)
        }
        return [values[id(variable)] for variable in every]

    def _trained(self, arrays):
        """Returns the trainable weights among all weights."""
        trainable, _, every = self._variables
        of_variable = {id(v): w for v, w in zip(every, arrays, strict=True)}
        return [of_variable[id(variable)] for variable in trainable]

    def _callbacks(self, caller):
        """Returns the caller's callbacks, and that of `--stop_at`."""
        known = {"loss", *self._task.metrics}
        for name, function in caller.evaluators.items():
            if not re.fullmatch(r"[\w./-]+", str(name)) or name in known:
                raise HparamError(
                    f"evaluators: the name {name!r} must consist of letters, digits and _ . / - "
                    f"and differ from {', '.join(sorted(known))}."
                )
            if not callable(function):
                raise HparamError(f"evaluators: {name} must be a function of the weights.")
        _ = self._variables  # As they are before any callback.
        condition = self.request.run["stop_at"]
        given = [*caller.callbacks, *([] if condition is None else [callbacks.StopAt(condition)])]
        return callbacks.Callbacks(
            given,
            self._all_weights,
            self._trained if self._method.method else None,
            task=self._task,
            check_model=self._check_model,
        )

    def _check_model(self):
        """Raises if a callback has changed the model in a way that has no effect on the run."""
        trainable, others, _ = self._variables
        if list(map(id, trainable)) != list(map(id, self._model.keras_model.trainable_variables)):
            raise HparamError(
                "callbacks: a callback changed which weights of the model are trainable, which "
                "does not change the run: set `trainable` of layers before it."
            )
        for variable, value in zip(others, self._model.model.frozen_weights, strict=True):
            if not np.array_equal(variable.numpy(), value, equal_nan=True):
                raise HparamError(
                    f"callbacks: a callback changed the model's weight {variable.name!r}, "
                    "which does not train and is the same in all rounds: set it before the run."
                )

    def _own(self, columns, trained, caller):
        """Adds the columns of the caller's evaluators.

        What one raises ends the run before the round is recorded. A resumed run does the round
        again, so that no value is missing.
        """
        for name, function in caller.evaluators.items():
            value = function(self._all_weights(trained))
            is_number = isinstance(value, SupportsFloat) and not isinstance(value, str)
            if not is_number or np.ndim(value) or np.iscomplexobj(value):
                raise RunError(
                    f"The evaluator {name!r} must return a number, found a {type(value).__name__}."
                )
            columns[f"eval/{name}"] = float(value)
        return columns

    def _with_weights(self, state, weights):
        """Returns the server's state with other weights."""
        import tensorflow as tf

        method = self._method.method
        assert method is not None  # Else callbacks cannot replace weights.
        new = state._replace(weights=tuple(map(tf.constant, weights)))
        if method.adopt_weights:
            new = method.adopt_weights(new)
        # The engine's states are arrays.
        return tf.nest.map_structure(
            lambda old, value: np.asarray(value) if isinstance(old, np.ndarray) else value,
            state,
            new,
        )

    def _pool(self, programs, caller, stack):
        """Returns the pool that executes the clients' side of rounds until the stack closes."""
        settings = self.request.run
        if settings["workers"]:
            from simulation.workers import start

            largest = self._cohorts.members(self._cohorts.largest_round())
            run_checks.check_chunks(settings, len(largest.clients))
            return start.pool(
                self.request,
                self._data,
                programs,
                self._cohorts,
                say=caller.say,
                warn=caller.warn,
                stack=stack,
            )
        from simulation.engine import pool

        threads = len(os.sched_getaffinity(0))
        found = pool.InProcess(pool.schedulers(programs, self._method.data, settings, threads))
        stack.callback(found.close)
        return found

    def _standing(self, process):
        """Returns the state and round at which the process begins or resumes."""
        from simulation.rounds import loop

        state, checkpoint = process.initialize(), self._point.checkpoint
        if checkpoint is None:
            return loop.Standing(state, 0)
        state = loop.restore_state(state, checkpoint.leaves)
        return loop.Standing(state, checkpoint.round_num)

    @contextlib.contextmanager
    def _client_states(self, round_num):
        """Opens the client states as of a round; yields `None` if the method has none."""
        if self._method.client_state is None:
            yield None
            return
        from simulation.records import client_states

        folder, checkpoint = self._folder, self._point.checkpoint
        with files.explained(folder.path):
            states = client_states.ClientStates(
                folder.file("client_states.sqlite"),
                self._method.client_state,
                self.request.run["client_state_memory_mb"] << 20,
                folder.run_id,
            )
        with contextlib.closing(states):
            with files.explained(folder.path):
                checksum = None
                if checkpoint is not None and round_num:
                    checksum = checkpoint.checksums["client_states.sqlite"]
                states.go_on_from(round_num, checksum)
            yield states

    def _recorder(self, caller, round_num, client_states):
        from simulation.records import recorder

        metric = self._task.primary_metric
        kind = self._shown_kind()
        name = "test" if kind == "eval" else kind
        return recorder.Recorder(
            self._folder,
            self.request,
            round_num,
            client_states=client_states,
            progress=caller.progress,
            shown={"train_loss": "train/loss", f"{name}_{metric}": f"{kind}/{metric}"},
            first=(
                "train/loss",
                "eval/loss",
                f"eval/{metric}",
                f"fairness/{metric}_std_u",
                f"fairness/{metric}_worst10_u",
                "time/round_seconds",
            ),
        )

    def _comparison(self, measured):
        """Returns the function behind `--evaluate_improvement`; `None` without that flag."""
        if not self.request.run["evaluate_improvement"]:
            return None
        return lambda round_index, before, after: measured.improvement(
            before, after, self._cohorts.clients(round_index)
        )

    def _write_start(self, caller, round_num):
        """Announces and records this start, and removes results of an earlier end."""
        from simulation.records import recorder

        settings, task, folder = self.request.run, self._task, self._folder
        device = runtimes.device_description()
        damaged = self._point.damaged
        for path in damaged:
            caller.warn(f"checkpoint {path} is damaged; an older one is used.")
        start = f"Resuming after round {round_num}" if round_num else "Starting"
        held_out = ""
        if task.validation is not None:
            held_out = f", {int(np.sum(task.validation.sizes))} validation examples"
        caller.say(
            f"{start}: {settings['algorithm']} on {task.name} "
            f"({len(task.train.client_ids)} clients, {int(np.sum(task.train.sizes))} training "
            f"examples{held_out}), runtime {settings['runtime']}, device {device}, "
            f"results in {folder.path}"
        )
        weights = settings["initial_weights"]
        if weights is not None and not round_num:
            others = models.other_meanings(task, weights)
            if others:
                caller.warn(
                    f"--initial_weights={weights}: its run has other {', '.join(others)} in "
                    "encoding.json than this one, so weights may stand for other inputs or classes."
                )
        if settings["precision"] != "float32" and not round_num:
            lost = task_models.lost_in_precision(self._model, task.train)
            if lost:
                caller.warn(f"--precision={settings['precision']}: {lost}; standardize features.")
        for doubt in () if round_num else self._model.doubts:
            caller.warn(f"model of task {task.name}: {doubt}")
        if self.request.in_force["aggregator"] == "secure":
            caller.say(f"--aggregator=secure simulates {recorder.SIMULATED}.")
        described = outputs.describe_start(caller.command, device, round_num)
        other = _warn_of_other_functions(folder, round_num, caller, goes_on=True)
        # Those of earlier rounds count even if this part of the run does not have them.
        known = _known_functions(folder) if round_num else {}
        found = {**self._identity, "own_functions": {**known, **caller.own_functions}}
        accepted = [*self._accepted, *other]
        recorder.write_start(folder, self.request, task, described, found, accepted)
        folder.write_data_digests(self._data)
        # Otherwise they would be two of the newest checkpoints, which are all that is kept.
        folder.remove(*(os.path.join("checkpoints", os.path.basename(p)) for p in damaged))
        folder.remove("summary.json", "client_metrics.csv", outputs.DIVERGED)
        models.remove(folder.path)

    def _write_results(self, final, round_num, weights, caller, stopped):
        from simulation.records import recorder

        settings, folder = self.request.run, self._folder
        keras_model = self._model.keras_model
        if settings["precision"] != "float32":
            # The saved model computes in float32.
            keras_model = self._task.keras_model(settings["seed"])
        try:
            with files.explained(folder.path):
                models.write(folder.path, keras_model, weights)
        except models.IncompleteError as e:
            caller.warn(str(e))
        by_client = final.clients and final.clients.by_client()
        recorder.write_results(
            folder,
            self._task,
            final.columns,
            by_client,
            round_num,
            settings["total_rounds"],
            final.clients and final.clients.weights,
            stopped,
        )
        kind = self._shown_kind()
        numbers = (f"{k} {v:.4g}" for k, v in final.columns.items() if k.startswith(f"{kind}/"))
        path = os.path.join(folder.path, "summary.json")
        caller.say(f"After {round_num} rounds: {'  '.join(numbers)}  ({path})")

    def _shown_kind(self):
        """Returns the beginning of the columns that stand for the model in progress and report."""
        return "eval" if self.request.run["evaluate_test"] else "validation"

    def _late(self, started):
        limit = self.request.run["max_minutes"]
        return limit is not None and time.monotonic() - started >= 60 * limit

    def _how_to_resume(self, round_num):
        return (
            f"{round_num} of {self.request.run['total_rounds']} rounds are done and in a "
            "checkpoint; run the same command again to resume."
        )
