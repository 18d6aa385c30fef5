"""One experiment, from checked settings to its folder of results."""

import contextlib
import functools
import importlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import SupportsFloat

import numpy as np

from simulation import assembly, identity, resumption, run_checks, runtimes, task_models
from simulation.caller import Caller, Outcome
from simulation.device import layer_gradients
from simulation.errors import DivergedError, RunError
from simulation.experiment_flags import Request
from simulation.records import files, metrics_csv, models, outputs, stacks, trackers
from simulation.records.progress import Progress
from simulation.rounds import callbacks
from tasks import fingerprint, missing, scales
from tff_suite import command_line, imports
from tff_suite.hparams import HparamError


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
    folder = outputs.ExperimentFolder(settings["root_output_dir"], settings["experiment_name"])
    with folder, _started_anew(folder, caller) if settings["fresh"] else contextlib.nullcontext():
        request = resumption.with_recorded_runtime(request, folder)
        point = resumption.resume_point(request, folder)
        stopped = resumption.stopped(request, folder, caller)
        if point.finished == settings["total_rounds"] or stopped:
            folder.check_results()
            if not caller.takes_weights:  # Else `_work` loads everything and checks it then.
                resumption.check_finished(request, folder, point, caller)
            how = f"stopped early, {stopped}"
            if not stopped:
                how = f"all {settings['total_rounds']} rounds are done"
            caller.say(f"{folder.path} is finished ({how}): nothing to do.")
            unmeasured = resumption.unmeasured(request, folder, caller)
            if unmeasured:
                caller.warn(
                    f"{folder.path} was finished without {unmeasured}, which only counts in "
                    "new rounds; raise --total_rounds or choose another --experiment_name."
                )
            resumption.warn_of_other_functions(folder, point.finished, caller, goes_on=False)
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
            resumption.check_same_plans(request, point.checkpoint)
        if settings["initial_weights"] is not None:
            models.find(settings["initial_weights"])
        is_over = bool(point.finished == settings["total_rounds"] or stopped)
        return _work(request, folder, point, caller, started, is_over)


@contextlib.contextmanager
def _started_anew(folder: outputs.ExperimentFolder, caller: Caller) -> Iterator[None]:
    """Moves the previous run aside, and back again if the new one ends before it has begun."""
    kept = folder.set_aside()
    if kept is None:
        yield
        return
    caller.say(f"Moved the previous run from {folder.path} to {kept}.")
    try:
        yield
    except BaseException:
        if folder.put_back(kept):
            caller.say("Moved the previous run back, since the new one did not start.")
        raise


def _work(
    request: Request,
    folder: outputs.ExperimentFolder,
    point: resumption.Point,
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


class Experiment:
    """A method on a task, loaded and built, with the folder of its results.

    Attributes:
      request: The settings, with `--runtime=auto` replaced by the chosen runtime.
    """

    def __init__(
        self,
        request: Request,
        folder: outputs.ExperimentFolder,
        point: resumption.Point,
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
            self._large = assembly.once("large numbers", task, scales.large_numbers)
            of_scales = [scales.in_training(self._large, keras_model)]
            of_scales += assembly.once("scales of tests", task, scales.in_tests)
            for line in filter(None, [self._missing, *in_tests, *of_scales]):
                caller.warn(f"{line}.")

        parts = assembly.assemble(request, look_at)
        self._task, self._train, self._cohorts, self._model, self._method = parts
        if settings["runtime"] == "auto":
            whole = settings["clients_per_chunk"] is None
            first_clients = (lambda: self._cohorts.data(0)[1]) if whole else None
            name, reason = runtimes.choose(self._method.process, first_clients)
            caller.say(f"--runtime=auto is {name}: {reason}.")
            request = resumption.with_runtime(request, name)
        self.request = request

    def _look_at(self, request, task, keras_model, caller):
        """Determines the run's identity and compares it with the recorded one."""
        folder, point, changes = self._folder, self._point, []
        before = resumption.recorded_identity(folder)
        held = assembly.once("digests", task, fingerprint.in_memory)
        for trust_cache in (True, False):
            self._data = fingerprint.of_task(task, trust_cache, held)
            self._identity = identity.of_run(request, task, keras_model, self._data, before)
            changes = resumption.changes_since_start(request, folder, self._identity, self._data)
            # Data may seem changed because the cache of file digests is out of date.
            if all(change.kind != "data" for change in changes):
                break
        if changes and not (point.checkpoint and point.checkpoint.round_num):
            # No round is done yet, e.g. as the user's code failed: the run begins anew, unchanged.
            self._point, changes = point._replace(checkpoint=None), []
        self._accepted = resumption.accept(request, folder, changes, caller)
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
        cure = self._missing or scales.cure(self._large) or loop.CURE
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
        other = resumption.warn_of_other_functions(folder, round_num, caller, goes_on=True)
        # Those of earlier rounds count even if this part of the run does not have them.
        known = resumption.known_functions(folder) if round_num else {}
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
