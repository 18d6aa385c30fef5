"""Evaluations of a model during a run and at its end."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simulation import task_models
from simulation.engine.pool import Spread
from simulation.measures import evaluation, fairness, training_losses
from simulation.records import metrics_csv
from simulation.records.client_states import ClientStates
from simulation.rounds import cohorts, randomness, staged
from simulation.rounds.one_program import RunMethod
from tasks import missing
from tasks import task as task_lib
from tasks.models import losses
from tasks.task import FederatedData, Task
from tff_suite.hparams import HparamError


class Evaluated(NamedTuple):
    """The results of an evaluation.

    Attributes:
      columns: Metrics by column of metrics.csv.
      clients: The metrics of each client on its own test examples; `None` if clients have none.
    """

    columns: collections.OrderedDict[str, float]
    clients: evaluation.ClientMetrics | None


# `drawn` is the part of the central test that `num_validation_examples` selects during the run.
TEST_SETS = ("clients", "central", "drawn", "validation")
# Name of clients' training examples for other workers.
_TRAIN = "train"


def test_sets(
    evaluator: evaluation.Evaluator, task: Task, settings: Mapping[str, Any], named: bool
) -> dict[str, evaluation.TestSet]:
    """Returns name in `TEST_SETS` → test set of a run.

    Args:
      evaluator: Evaluates the model.
      task: The task.
      settings: The run's settings.
      named: Whether workers share the work; examples are then read when needed.
    """
    found = {}

    def prepare(name, data):
        found[name] = evaluator.prepare(data, name=name if named else None)

    if task.test is not None and np.sum(task.test.sizes):
        prepare("clients", task.test)
    if task.central_test is not None and len(task.central_test.y):
        # Often both are the same examples, which then need not go through the model twice.
        known = task.test if "clients" in found else None
        if known is None or not evaluation.same_examples(task.central_test, known):
            prepare("central", evaluation.OneClient(task.central_test))
            found["drawn"] = found["central"]
        size = settings["num_validation_examples"]
        if size != -1:
            number = len(task.central_test.y)
            rows = randomness.validation_rows(settings["seed"], number, size)
            prepare("drawn", evaluation.OneClient(task.central_test, rows))
    if task.validation is not None and np.sum(task.validation.sizes):
        prepare("validation", task.validation)
    return found


class Evaluations:
    """The evaluations of a run, according to its settings.

    Attributes:
      note: One line on metrics that are left out, and why; or blank.
    """

    def __init__(
        self,
        task: Task,
        train: FederatedData,
        settings: Mapping[str, Any],
        built: task_models.TaskModel,
        method: RunMethod,
        spread: Spread | None = None,
        warn: Callable[[str], None] | None = None,
    ):
        """Initialises and reads the test examples.

        Args:
          task: The task.
          train: The examples that clients train on.
          settings: The run's settings.
          built: The task's model.
          method: The method, which provides clients' own models and findings.
          spread: Distributes the work to workers; `None` without workers.
          warn: Called once for every metric that is not finite.

        Raises:
          HparamError: If clients, classes or examples for a requested metric do not exist.
        """
        self._task, self._train, self._settings = task, train, settings
        self._method = method
        self._warn, self._warned = warn, set()
        evaluate = None if spread is None else spread.evaluate
        evaluate_each = None if spread is None else spread.evaluate_each
        with_all = with_classes(task, settings, built)
        self._evaluator = evaluation.Evaluator(
            with_all.model, with_all.num_outputs, spread=evaluate
        )
        self._each = evaluation.PersonalEvaluator(with_all.model, evaluate_each)
        # One trace serves both, where both take the same metrics.
        plain = self._evaluator
        if with_all is not built:
            plain = evaluation.Evaluator(built.model, built.num_outputs, spread=evaluate)
        self._losses = training_losses.TrainingLosses(plain, train)
        self._tracked = None
        if settings["track_clients"] is not None:
            initial = built.model.initial_weights
            self._tracked = self._losses.chosen(settings["track_clients"], initial)
        self.note, self._train_sizes, places = "", None, None
        if task.test is not None:
            places, only_test = _matched(task.test, train)
            if len(only_test):
                self.note = _note(task.test, only_test)
            else:
                self._train_sizes = np.where(places < 0, 0, np.asarray(train.sizes)[places])
        tests = test_sets(self._evaluator, task, settings, named=spread is not None)
        given = task.test is not None or task.central_test is not None
        if given and not {"clients", "central"} & tests.keys():
            self.note = "The test data have no example, so no column eval/... is written."
        self._clients, self._central, self._drawn, self._validation = map(tests.get, TEST_SETS)
        # Clients' training examples, and the place of each that tests among them.
        self._trained: tuple[evaluation.TestSet, np.ndarray] | None = None
        if settings["evaluate_all_local_data"]:
            # Each client that trains has a place among those that test, and the other way round.
            if places is None or sorted(places) != list(range(len(train.client_ids))):
                raise HparamError(
                    f"--evaluate_all_local_data needs clients that both train and test, but "
                    f"--task={task.name} has others with these settings."
                )
            examples = self._evaluator.prepare(train, name=_TRAIN if spread else None)
            self._trained = examples, places

    def __call__(
        self,
        weights: Sequence[np.ndarray],
        state: Any,
        client_states: ClientStates | None,
        final: bool = False,
    ) -> Evaluated:
        """Evaluates on central test data and on each client's own.

        Without central data, the clients' test data are pooled. Fairness is measured with the
        clients' personal models if they have any.

        Args:
          weights: The model's trainable weights.
          state: The server's state.
          client_states: The clients' states; `None` if the method's clients keep none.
          final: Whether to use all central test examples, regardless of the run's settings.
        """
        columns = collections.OrderedDict()
        central = self._central if final else self._drawn
        tests = self._task.test
        ids = None if tests is None else tests.client_ids
        personal = None
        if self._clients:
            personal = self._personal("clients", tests, weights, client_states)
        clients = None
        if self._clients and not (personal and central):
            clients = self._evaluator(weights, self._clients)
        evaluated = self._evaluator(weights, central) if central else clients
        if evaluated:
            columns.update((f"eval/{name}", value) for name, value in evaluated.pooled().items())
            names = [f"eval/{name}" for name in evaluated.values]
            self._tell(names, evaluated, ids if evaluated is clients else None)
        clients = personal or clients
        if clients:
            columns.update(self._fairness("fairness", clients))
            if clients is not evaluated:
                names = [f"the clients' {name}" for name in clients.values]
                self._tell(names, clients, ids)
            if self._trained:
                examples, places = self._trained
                trained = self._personal(_TRAIN, self._train, weights, client_states)
                trained = trained or self._evaluator(weights, examples)
                together = trained.of(places).joined(clients)
                columns.update(self._fairness("fairness_all", together))
                names = [f"the clients' {name} on training examples" for name in trained.values]
                self._tell(names, trained, self._train.client_ids)
        held_out = self._task.validation
        if self._validation and held_out is not None:
            validated = self._personal("validation", held_out, weights, client_states)
            validated = validated or self._evaluator(weights, self._validation)
            pooled = validated.pooled()
            columns.update((f"validation/{name}", value) for name, value in pooled.items())
            names = [f"validation/{name}" for name in validated.values]
            self._tell(names, validated, held_out.client_ids)
        columns.update(self._tracked_losses(weights))
        columns.update(self._label_noise(state))
        return Evaluated(columns, clients)

    def improvement(
        self, before: Sequence[np.ndarray], after: Sequence[np.ndarray], clients: np.ndarray
    ) -> collections.OrderedDict[str, float]:
        """Evaluates a round's clients on their training examples.

        Args:
          before: The model's weights before the round.
          after: The model's weights after the round.
          clients: Indices of the round's clients.

        Returns:
          Metrics by column.
        """
        fraction = self._losses.improved_fraction(before, after, clients)
        return collections.OrderedDict({"fairness/improved_fraction": fraction})

    def _personal(self, name, data, weights, client_states):
        """Evaluates each client with its personal model; `None` if the method has none."""
        personal_weights, ids = self._method.personal_weights, data.client_ids
        if personal_weights is None:
            return None

        def own_of(client):
            state = client_states.read([ids[client]])[0]
            return personal_weights(state.kept) if state.visits else None

        return self._each(weights, own_of, data, name)

    def _tell(self, names, metrics, ids):
        """Warns of metrics that are not finite, and names the clients responsible.

        Args:
          names: Names of the metrics, in their order.
          metrics: A `ClientMetrics`.
          ids: Clients' names; `None` for the central test.
        """
        if self._warn is None:
            return
        bad, new = np.zeros(len(metrics.sizes), bool), []
        for name, metric in zip(names, metrics.values, strict=True):
            # A value with weight 0 was not measured.
            found = ~np.isfinite(metrics.values[metric]) & (metrics.weights[metric] != 0)
            if found.any() and name not in self._warned:
                new.append(name)
                bad |= found
        if not new:
            return
        self._warned.update(new)
        whose = "the central test"
        if ids is not None:
            whose = missing.clients([ids[k] for k in np.flatnonzero(bad)])
        verb = "are" if len(new) > 1 else "is"
        self._warn(
            f"{', '.join(new)} {verb} not finite: the model gives no finite loss or value for some "
            f"examples of {whose}."
        )

    def _fairness(self, prefix, clients):
        task = self._task
        # Clients whose words or tags are all outside the vocabulary have no value.
        measured = clients.weights[task.primary_metric] > 0
        statistics = fairness.summarize(
            clients.by_client()[task.primary_metric],
            np.where(measured, clients.sizes, 0),
            train_sizes=self._train_sizes,
            higher_is_better=bool(task.higher_is_better),
        )
        return {f"{prefix}/{task.primary_metric}_{name}": v for name, v in statistics.items()}

    def _tracked_losses(self, weights):
        if self._tracked is None:
            return {}
        ids = [self._train.client_ids[k] for k in self._tracked]
        values = self._losses([weights], self._tracked)[0]
        return {metrics_csv.TRACKED + name: v for name, v in zip(ids, values, strict=True)}

    def _label_noise(self, state):
        """Compares the method's findings on wrong labels with the truth."""
        findings = self._method.findings(state)
        if findings is None or self._task.clean_train is None:
            return {}
        most = self._settings["max_elements_per_client"]
        given, true = (
            staged.TrainingClients(cohorts.first_examples(data, most), self._settings)
            for data in (self._task.train, self._task.clean_train)
        )
        return staged.label_noise(findings, given, true)


def _matched(test: FederatedData, train: FederatedData) -> tuple[np.ndarray, list[str]]:
    """Matches clients by their ids.

    Returns:
      For each test client its position among the training clients, int64 `[N]`, -1 if it does not
      train; and the ids of the latter that have test examples.
    """
    known = {client: place for place, client in enumerate(train.client_ids)}
    places = np.array([known.get(client, -1) for client in test.client_ids], np.int64)
    only_test = np.flatnonzero((places < 0) & (np.asarray(test.sizes) > 0)).tolist()
    return places, [test.client_ids[k] for k in only_test]


def _note(test: FederatedData, only_test: Sequence[str]) -> str:
    number = int(np.count_nonzero(np.asarray(test.sizes)))
    named = missing.some(list(map(repr, only_test)))
    cure = ""
    if len(only_test) == number:
        cure = " If they are the training clients, give them the same client_ids."
    return (
        f"{len(only_test)} of {number} test clients do not train ({named}), so the columns "
        f"fairness/..._t, which weight clients by training examples, are left out.{cure}"
    )


class Share:
    """The part of one worker in evaluations; names are those of `Evaluations`."""

    def __init__(
        self,
        task: Task,
        train: FederatedData,
        settings: Mapping[str, Any],
        built: task_models.TaskModel,
    ):
        """Initialises; the arguments are as of `Evaluations`."""
        self._task, self._train, self._settings, self._plain = task, train, settings, built
        self._with_all = with_classes(task, settings, built)
        self._each = evaluation.PersonalEvaluator(self._with_all.model)
        # Whether all metrics are evaluated → evaluator.
        self._evaluators: dict[bool, evaluation.Evaluator] = {}
        self._tests: dict[Any, evaluation.TestSet] = {}
        # A cache of training examples: of the clients of recent rounds and of tracked clients.
        self._losses: collections.OrderedDict[Any, evaluation.TestSet] = collections.OrderedDict()

    def sums(
        self, name: Any, weights: Sequence[Any], chunks: range, size: int
    ) -> list[tuple[int, np.ndarray]]:
        """Evaluates chunks of a test set, see `evaluation.Evaluator.sums`.

        Args:
          name: The test set.
          weights: The model's trainable weights.
          chunks: Which of its chunks.
          size: Examples per chunk.
        """
        built = self._plain if isinstance(name, tuple) else self._with_all
        has_all = built is self._with_all
        if has_all not in self._evaluators:
            self._evaluators[has_all] = evaluation.Evaluator(
                built.model, built.num_outputs, chunk=size
            )
        evaluator = self._evaluators[has_all]
        return list(evaluator.sums(weights, self._test_set(evaluator, name), chunks))

    def _test_set(self, evaluator, name):
        if isinstance(name, tuple):
            if name not in self._losses:
                part = training_losses.Part(self._train, name[1])
                self._losses[name] = evaluator.prepare(part, name=name)
            self._losses.move_to_end(name)
            while len(self._losses) > 2:
                self._losses.popitem(last=False)
            return self._losses[name]
        if not self._tests:
            self._tests = test_sets(evaluator, self._task, self._settings, named=True)
            self._tests[_TRAIN] = evaluator.prepare(self._train, name=_TRAIN)
        return self._tests[name]

    def of_each(
        self, name: str, weights: Sequence[Any], own: Sequence[tuple[int, Any]]
    ) -> list[tuple[int, evaluation.ClientMetrics]]:
        """Evaluates clients with their own weights, see `evaluation.PersonalEvaluator.each`."""
        task = self._task
        data = {_TRAIN: self._train, "validation": task.validation}.get(name, task.test)
        assert data is not None  # A part without examples is never evaluated.
        return list(self._each.each(weights, own, data))


def with_classes(
    task: Task, settings: Mapping[str, Any], built: task_models.TaskModel
) -> task_models.TaskModel:
    """Returns a task's model, with the accuracy on each class if `evaluate_classes` is set.

    Raises:
      HparamError: If it is set and examples do not have a class.
    """
    if not settings["evaluate_classes"]:
        return built
    metrics = _class_metrics(task, built.num_outputs)
    return task_models.build(task, settings, metrics)


def _class_metrics(task: Task, number: int) -> dict[str, Callable]:
    """Returns the accuracy on each of the classes, by name."""
    y = task.train.examples(task_lib.first_with_examples(task.train)).y
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise HparamError(
            f"--evaluate_classes is not used with --task={task.name}, whose examples have no class."
        )
    return {f"accuracy_class_{c}": losses.accuracy_of_class(c) for c in range(number)}
