"""One experiment, from checked settings to its folder of results."""

import collections
import contextlib
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tasks
import tff_algos
from common import command_line, imports
from hparams import HparamError
from simulation import experiment_flags, runtimes
from simulation.errors import RunError
from simulation.records import checkpoints, files, outputs, trackers
from simulation.records.progress import Progress
from simulation.rounds import cohorts, randomness
from tasks import fingerprint


def run(request: experiment_flags.Request, command: Sequence[str]) -> int:
    """Runs an experiment, or goes on with it where an earlier process left it.

    Args:
      request: The checked settings.
      command: The command line, for the record.

    Returns:
      The exit code: 0, or 128 plus the number of the signal that stopped the run.

    Raises:
      HparamError: If settings don't go with the task's data or with each other.
      RunError: If the run cannot start or go on.
      tasks.task.DataError: If data is missing or damaged.
    """
    started = time.monotonic()
    settings = request.run
    name = settings["experiment_name"]
    trackers.require_installed(settings)
    with outputs.ExperimentFolder(settings["root_output_dir"], name) as folder:
        request = _settled(request, folder)
        checkpoint, damaged = folder.resume_point(
            request.in_force, experiment_flags.MAY_CHANGE, request.defaults
        )
        finished = folder.finished_rounds()
        total_rounds = settings["total_rounds"]
        done = max(finished, checkpoint.round_num if checkpoint else 0)
        if total_rounds < done:
            raise HparamError(
                f"--total_rounds={total_rounds} is less than the {done} rounds already in "
                f"{folder.path}."
            )
        if finished == total_rounds:
            warning = folder.check_results()
            if warning:
                print(f"warning: {warning}", file=sys.stderr)
            print(f"{folder.path} is finished: all {finished} rounds are done, nothing to do.")
            return 0
        if finished and checkpoint is None:
            raise RunError(
                f"{folder.path} has no checkpoint to go on from after {finished} rounds."
            )
        if checkpoint is not None:
            folder.check_seal(checkpoint)
            _check_same_plans(request, checkpoint)
        return _Run(request, command, folder, checkpoint, damaged, started).run()


def _settled(request, folder):
    """Replaces `--runtime=auto` by what it was settled to be when the run began."""
    if request.run["runtime"] != "auto":
        return request
    with files.explained(folder.path):
        recorded = folder.read_hparams()
    return _with_runtime(request, recorded["flags"].get("runtime", "auto")) if recorded else request


def _with_runtime(request, name):
    return dataclasses.replace(
        request,
        run={**request.run, "runtime": name},
        in_force={**request.in_force, "runtime": name},
    )


def _check_same_plans(request, checkpoint):
    """Refuses to change the number of rounds where it would have changed the rounds done."""
    before, now = checkpoint.settings["total_rounds"], request.run["total_rounds"]
    other = request.first_other_plan(checkpoint.round_num, before, now)
    if other is not None:
        raise HparamError(
            f"--total_rounds={now} cannot replace {before}: round {other + 1}, already done, "
            f"depends on it with --algorithm={request.run['algorithm']}."
        )


class _Run:
    """The state of one process that works on an experiment."""

    def __init__(self, request, command, folder, checkpoint, damaged, started):
        self._request = request
        self._settings: Mapping[str, Any] = request.run
        self._command = command
        self._folder = folder
        self._checkpoint = checkpoint
        self._damaged = damaged
        self._started = started

    def run(self) -> int:
        settings = self._settings
        imports.import_tensorflow()
        self._task = tasks.load(
            settings["task"],
            data_dir=settings["data_dir"],
            seed=settings["seed"],
            use_synthetic_data=settings["use_synthetic_data"],
            **self._request.task,
        )
        self._check_cohort()
        self._check_data()
        runtimes.configure_threads()
        model = self._build_model()
        process = self._build_process(model)
        if settings["runtime"] == "auto":
            name, reason = runtimes.choose(process)
            print(f"--runtime=auto is {name}: {reason}.")
            self._request = _with_runtime(self._request, name)
            self._settings = self._request.run
        self._method = getattr(process, "method", None)
        command_line.stops_raise()
        with runtimes.installed(self._settings["runtime"]):
            return self._train(model, process if self._staged else runtimes.bind(process))

    def _build_process(self, model):
        settings = self._settings
        built = tff_algos.build(
            settings["algorithm"],
            model,
            num_clients=len(self._task.train.client_ids),
            **self._request.training,
            **self._request.method,
        )
        self._staged = None
        if tff_algos.get(settings["algorithm"]).staged:
            from simulation.rounds import staged

            built = staged.StagedProcess(built, staged.TrainingClients(self._task.train, settings))
            self._staged = built
        return built

    def _check_cohort(self):
        experiment_flags.check_cohort(
            self._settings["clients_per_round"],
            len(self._task.train.client_ids),
            self._task.name,
        )

    def _check_data(self):
        """Has `self._data`, digests of the data, which are those that the run was begun with."""
        self._data = fingerprint.of_task(self._task)
        if self._checkpoint is None:
            return
        if self._folder.check_data(self._data, self._checkpoint):
            # The cache of files' digests may be what is wrong.
            self._data = fingerprint.of_task(self._task, trust_cache=False)
            problem = self._folder.check_data(self._data, self._checkpoint)
            if problem:
                raise RunError(problem)

    def _train(self, model, process) -> int:
        # Only from here on is TensorFlow needed; errors before this come fast.
        from simulation.rounds import loop

        settings, folder, task = self._settings, self._folder, self._task
        self._build_evaluators(model)
        state, round_num = process.initialize(), 0
        if self._checkpoint is not None:
            state = loop.restore_state(state, self._checkpoint.leaves)
            round_num = self._checkpoint.round_num
            # Read here as well, so that states that are refused leave all else as it was.
            with self._opened_client_states(round_num):
                pass
        device = runtimes.device_description()
        self._announce(device, round_num)
        self._write_hparams(device, round_num)
        folder.write_data_digests(self._data)
        folder.remove("summary.json", "client_metrics.csv")
        with files.explained(folder.path):
            # A start from round 0 writes row 0 again.
            table = outputs.MetricsCsv(folder.file("metrics.csv"), round_num or -1)
            kept = outputs.read_csv(folder.file("metrics.csv"))[1]
            shown = [outputs.TensorBoard(folder.file("tensorboard"), kept)]
        shown += trackers.opened(settings, folder.path, self._request.in_force, kept)

        def record(round_num, values):
            with files.explained(folder.path):
                table.append(round_num, values)
                for tracker in shown:
                    tracker.write(round_num, values)

        data_seal = fingerprint.whole(self._data)

        def save(round_num, state):
            with files.explained(folder.path):
                table.sync()
                states = self._client_states
                seal = {
                    "run_id": folder.run_id,
                    "metrics.csv": table.seal(),
                    "client_states.sqlite": states.commit(round_num) if states else None,
                    "data": data_seal,
                }
                checkpoints.save(
                    folder.file("checkpoints"),
                    round_num,
                    loop.flatten_state(state),
                    self._request.in_force,
                    seal,
                )
                if states:
                    states.forget_before(checkpoints.rounds(folder.file("checkpoints"))[0])

        def clients_of_round(round_index):
            plan = self._request.plan(round_index)
            data = cohorts.cohort_data(task.train, plan, settings, round_index)
            return [task.train.client_ids[d.index] for d in data], process.prepare(data)

        ahead = cohorts.Ahead(clients_of_round, settings["total_rounds"])

        def cohort_of_round(round_index, state):
            return ([], process.cohort(state)) if self._staged else ahead(round_index)

        primary = f"eval/{task.primary_metric}"
        progress = Progress(round_num, settings["total_rounds"])
        with self._opened_client_states(round_num), ahead, loop.StopRequest() as stop:
            try:
                state, round_num = loop.run(
                    process=process,
                    state=state,
                    round_num=round_num,
                    total_rounds=settings["total_rounds"],
                    rounds_per_eval=settings["rounds_per_eval"],
                    rounds_per_checkpoint=settings["rounds_per_checkpoint"],
                    cohort_of_round=cohort_of_round,
                    client_states=self._client_states,
                    evaluate=functools.partial(self._evaluate, final=False),
                    compare=self._compare if settings["evaluate_improvement"] else None,
                    record=record,
                    checkpoint=save,
                    should_stop=lambda: stop.signal is not None or self._out_of_time(),
                    progress=progress,
                    shown={"loss": "train/loss", task.primary_metric: primary},
                    lost=loop.lost_rounds(kept),
                )
            finally:
                progress.close()
                with files.explained(folder.path):
                    table.close()
                    for tracker in shown:
                        tracker.close()
            if stop.signal is not None:
                print(f"Stopped by {stop.signal.name}. {self._how_to_go_on(round_num)}")
                return 128 + stop.signal
            weights = process.get_model_weights(state).trainable
            self._write_results(weights, state, round_num)
        if round_num < settings["total_rounds"]:
            print(f"Out of time. {self._how_to_go_on(round_num)}")
        return 0

    @contextlib.contextmanager
    def _opened_client_states(self, round_num):
        """Has `self._client_states` as of a round, `None` if the method's clients keep nothing."""
        self._client_states = None
        if self._method is None or self._method.client_state is None:
            yield
            return
        from simulation.records import client_states

        with files.explained(self._folder.path):
            states = client_states.ClientStates(
                self._folder.file("client_states.sqlite"),
                tff_algos.initial_client_state(self._method),
                self._settings["client_state_memory_mb"] << 20,
                self._folder.run_id,
            )
        with contextlib.closing(states):
            with files.explained(self._folder.path):
                seal = self._checkpoint.seal["client_states.sqlite"] if round_num else None
                states.go_on_from(round_num, seal)
            self._client_states = states
            yield

    def _out_of_time(self):
        limit = self._settings["max_minutes"]
        return limit is not None and time.monotonic() - self._started >= 60 * limit

    def _how_to_go_on(self, round_num):
        return (
            f"{round_num} of {self._settings['total_rounds']} rounds are done and in a checkpoint; "
            "run the same command again to go on."
        )

    def _build_model(self, further_metrics=None):
        import tensorflow as tf

        task = self._task
        y = task.train.examples(0).y
        try:
            keras_model = task.keras_model_fn(self._settings["seed"])
            model = tff_algos.from_keras(
                keras_model,
                loss=task.loss,
                metrics={**task.metrics, **(further_metrics or {})},
                y_spec=tf.TensorSpec([None, *y.shape[1:]], y.dtype),
                loss_reduction=task.loss_reduction,
            )
        except tff_algos.ModelError as e:
            raise RunError(f"The model of task {task.name} cannot be used: {e}") from e
        self._num_outputs = int(np.prod(keras_model.output_shape[1:]))
        return model

    def _build_evaluators(self, model):
        from simulation.measures import evaluation, training_losses

        task, settings = self._task, self._settings
        self._losses = training_losses.TrainingLosses(
            evaluation.Evaluator(model, self._num_outputs),
            task.train,
            settings["max_elements_per_client"],
        )
        self._tracked = None
        if settings["track_clients"] is not None:
            which = settings["track_clients"]
            self._tracked = self._losses.chosen(which, model.initial_weights)
        self._evaluator = evaluation.Evaluator(
            self._build_model(self._class_metrics()) if settings["evaluate_classes"] else model,
            self._num_outputs,
        )
        prepare = self._evaluator.prepare
        self._clients = self._central = self._validation = None
        if task.test is not None and np.sum(task.test.sizes):
            self._clients = prepare(task.test)
        if task.central_test is not None and len(task.central_test.y):
            # Often both are the same examples, which then need not go through the model twice.
            if not (self._clients and evaluation.same_examples(task.central_test, task.test)):
                self._central = prepare(evaluation.OneClient(task.central_test))
            self._validation = self._central
            if settings["num_validation_examples"] != -1:
                rows = randomness.validation_rows(
                    settings["seed"],
                    len(task.central_test.y),
                    settings["num_validation_examples"],
                )
                self._validation = prepare(evaluation.OneClient(task.central_test, rows))

    def _class_metrics(self):
        """Returns the accuracy on each class, by name."""
        from tasks.models import losses

        y = self._task.train.examples(0).y
        if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
            raise HparamError(
                f"--evaluate_classes has no meaning with --task={self._task.name}, whose examples "
                "have no class."
            )
        return {
            f"accuracy_class_{c}": losses.accuracy_of_class(c) for c in range(self._num_outputs)
        }

    def _compare(self, round_index, before, after) -> collections.OrderedDict[str, float]:
        """Evaluates a round's clients on their training examples before and after it."""
        plan = self._request.plan(round_index)
        number = len(self._task.train.client_ids)
        clients = cohorts.cohort(number, plan, self._settings, round_index)
        fraction = self._losses.improved_fraction(before, after, clients)
        return collections.OrderedDict({"fairness/improved_fraction": fraction})

    def _evaluate(self, weights, state, final: bool) -> collections.OrderedDict[str, float]:
        """Evaluates on central test data (clients' together if there is none) and on clients'.

        Where clients have models of their own, those are what their fairness is measured on.
        """
        from simulation.measures import fairness

        task = self._task
        columns = collections.OrderedDict()
        central = self._central if final else self._validation
        personal = self._evaluate_personal(weights) if self._clients else None
        clients = None
        if self._clients and not (personal and central):
            clients = self._evaluator(weights, self._clients)
        evaluated = self._evaluator(weights, central) if central else clients
        if evaluated:
            columns.update((f"eval/{name}", value) for name, value in evaluated.pooled().items())
        clients = personal or clients
        if clients:
            statistics = fairness.summarize(
                clients.by_client()[task.primary_metric],
                clients.sizes,
                higher_is_better=task.higher_is_better,
            )
            columns.update(
                (f"fairness/{task.primary_metric}_{name}", value)
                for name, value in statistics.items()
            )
            self._last_clients = clients
        if self._tracked is not None:
            ids = [task.train.client_ids[k] for k in self._tracked]
            values = self._losses([weights], self._tracked)[0]
            columns.update(
                (outputs.TRACKED + name, value) for name, value in zip(ids, values, strict=True)
            )
        columns.update(self._label_noise(state))
        return columns

    def _label_noise(self, state):
        """Compares what the method knows of wrong labels with what the task does."""
        findings = self._staged.findings(state) if self._staged else None
        if findings is None or self._task.clean_train is None:
            return {}
        from simulation.rounds import staged

        given, true = (
            staged.TrainingClients(data, self._settings)
            for data in (self._task.train, self._task.clean_train)
        )
        return staged.label_noise(findings, given, true)

    def _evaluate_personal(self, weights):
        """Evaluates each client with its own model; `None` if the method has none."""
        if self._method is None or self._method.personal_weights is None:
            return None
        from simulation.measures import evaluation

        ids = self._task.test.client_ids

        def weights_of(client):
            state = self._client_states.read([ids[client]])[0]
            return self._method.personal_weights(state.kept) if state.visits else weights

        return evaluation.evaluate_each(self._evaluator.model, weights_of, self._task.test)

    def _announce(self, device, round_num):
        settings, task = self._settings, self._task
        for path in self._damaged:
            print(f"warning: checkpoint {path} is damaged; an older one is used.")
        start = f"Going on after round {round_num}" if round_num else "Starting"
        print(
            f"{start}: {settings['algorithm']} on {task.name} "
            f"({len(task.train.client_ids)} clients, {int(np.sum(task.train.sizes))} training "
            f"examples), runtime {settings['runtime']}, device {device}, "
            f"results in {self._folder.path}",
            flush=True,
        )

    def _write_hparams(self, device, round_num):
        start = outputs.describe_start(self._command, device, round_num)
        recorded = self._folder.read_hparams()
        content = {
            "flags": dict(self._request.in_force),
            "task_settings": dict(self._task.settings),
            "num_clients": len(self._task.train.client_ids),
            "num_training_examples": int(np.sum(self._task.train.sizes)),
            "start": recorded["start"] if recorded else start,
            "resumed": [*recorded["resumed"], start] if recorded else [],
        }
        self._folder.write_sealed("hparams.json", content)

    def _write_results(self, weights, state, round_num):
        folder, task = self._folder, self._task
        weights = [np.asarray(w) for w in weights]
        final = self._evaluate(weights, state, final=True)
        with files.explained(folder.path):
            if self._clients:
                self._write_client_metrics()
            rows = outputs.read_csv(folder.file("metrics.csv"))[1]
        primary = f"eval/{task.primary_metric}"
        summary = {
            "finished": round_num == self._settings["total_rounds"],
            "rounds": round_num,
            "final": final,
            **outputs.summarize_rows(rows, primary, task.higher_is_better),
            "seals": {
                "metrics.csv": outputs.rows_digest(rows),
                "client_metrics.csv": outputs.file_digest(folder.file("client_metrics.csv")),
            },
        }
        # Last of all: it says that the rest is there.
        folder.write_sealed("summary.json", summary)
        numbers = "  ".join(f"{k} {v:.4g}" for k, v in final.items() if k.startswith("eval/"))
        print(f"After {round_num} rounds: {numbers}  ({os.path.join(folder.path, 'summary.json')})")

    def _write_client_metrics(self):
        train, test = self._task.train, self._task.test
        train_sizes = dict(zip(train.client_ids, map(int, train.sizes), strict=True))
        outputs.write_client_metrics(
            self._folder.file("client_metrics.csv"),
            test.client_ids,
            [train_sizes.get(client) for client in test.client_ids],
            list(map(int, test.sizes)),
            self._last_clients.by_client(),
        )
