"""FedCorr: finds clients whose labels are noisy, corrects the labels, then trains on all.

Xu, Chen, Quek, Chong: "FedCorr: Multi-Stage Federated Learning for Label Noise Correction", CVPR
2022, arXiv 2204.04677, Algorithm 1, with the authors' code. It also runs with AdaFed in stages 2
and 3 (Mohajer Hamidi, Yang, arXiv 2401.04993, Table 19).

  symbol  argument              default    from (Clothing1M, AdaFed, App., if not said otherwise)
  -       client_learning_rate  -          tuned
  T_1     iterations            2
  -       stage1_clients        1          0.002 of 500 clients
  T_2     stage2_rounds         50
  T_3     total_rounds          -          the rounds that stages 1 and 2 leave
  β       beta                  5          the code
  k       neighbors             20         the code
  π       relabel_ratio         0.8
  θ       confidence            0.9
  κ       clean_level           0.1        the code
  α       mixup                 true       α = 1, the code; false is no mixup
  -       aggregation           fedavg     stages 2 and 3: fedavg or adafed
  γ       adafed_gamma          5          AdaFed, App. on label noise
                                (adafed)
  -       adafed_step_rule      min        as adafed's step_rule
                                (adafed)
  η       server_learning_rate  1
  p_k     client_weighting      examples   the code (FedAvg)

    Stage 1, T_1 iterations of N / stage1_clients rounds; in each every client is visited once:
      client:  x_k by local SGD on f(x_k; b) + β μ_k ‖x_k - x‖ ; l_i, the loss of its example i at
               x_k, and LID_k are added to those of earlier iterations
      server:  x ← x + η Σ p_k (x_k - x)
      after each iteration: a two-component Gaussian mixture over the clients' LID_k; the larger is
      that of the noisy clients. For each of these a mixture over its l_i; μ_k is the share of the
      larger component, and of the ⌊π μ_k n_k⌋ examples of largest l_i those take the label that x
      gives them for which its probability is above θ. μ_k = 0 elsewhere.
    Stage 2: T_2 rounds of FedAvg on the clients with μ_k ≤ κ; then all examples of noisy clients
      whose probability is above θ take the label that x gives them.
    Stage 3: FedAvg on all clients.

LID_k is the local intrinsic dimensionality of the client's predictions: the mean over its examples
of -k / (Σ_j ln(r_j / (r_k + ε)) + ε), with ε = 1e-6. Here r_1 ≤ … ≤ r_k are the distances from the
example's softmax outputs to the nearest ones among the client's other examples.

FedCorr is a driver (`tff_algos.driver`) of three processes: one for stage 1, one for stages 2 and
3, and one that labels examples with the global model. Between rounds the driver fits the mixtures.

Deviations from the paper:
  * Losses are summed over all iterations, as in the paper; the code starts from zero in each.
  * Points whose neighbours are all equally far, so that the estimate is negative or above 1000, are
    left out of LID_k; the code keeps them. A client with one example, or one whose update is not
    finite, has no LID in that iteration; the sum of a client's LIDs is therefore replaced by their
    mean. If an l_i is not finite, the client's LID_k and losses of that iteration are ignored.
  * A client with n_k ≤ k examples uses its n_k - 1 neighbours.
  * The mixtures start from the best split of the sorted values instead of a random k-means. If all
    values are equal, nothing is noisy.
  * The proximal term has no gradient at x_k = x, the first batch of the round; the code leaves it
    out in the first batch of every epoch.
  * If no client has μ_k ≤ κ, stage 2 uses all clients.
  * AdaFed runs in stages 2 and 3 only: with the single client of a round in stage 1 its step would
    be g / f^γ.
  * The code's weight decay of 5e-4 is left to the model's regularisers.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import averaging, client, registry
from tff_algos.averaging import ClientResult
from tff_algos.client_data import Batch, ClientData
from tff_algos.driver import Assignment, CarryOut, Clients, Findings, Round
from tff_algos.method import Method, TffFederation
from tff_algos.model import Model, ModelError
from tff_algos.parts import dimensionality, mixtures
from tff_algos.parts.mixup import mixed
from tff_algos.registry import MethodSpec
from tff_algos.vector import Vector, constants
from tff_suite import hparams as hparams_lib
from tff_suite.hparams import By, Hparam

SPEC = MethodSpec(
    name="fedcorr",
    display_name="FedCorr",
    look=("wine", "dash_dot"),
    summary="FedCorr: finds clients with noisy labels, corrects the labels, then trains on all.",
    paper=(
        "Xu, Chen, Quek, Chong, FedCorr: Multi-Stage Federated Learning for Label Noise "
        "Correction, arXiv 2204.04677"
    ),
    hparams=(
        Hparam(
            "iterations",
            2,
            "Iterations T_1 of stage 1; in each, every client is visited once.",
            source="AdaFed, App. on label noise",
            minimum=0,
        ),
        Hparam(
            "stage1_clients",
            1,
            "Clients per round of stage 1. The stage has T_1 N / stage1_clients rounds.",
            source="FedCorr's code, Clothing1M (0.002 of 500)",
            minimum=1,
        ),
        Hparam(
            "stage2_rounds",
            50,
            "Rounds T_2 of stage 2, on the clean clients. Stage 3 has the remaining rounds.",
            source="FedCorr's code, Clothing1M",
            minimum=0,
        ),
        Hparam(
            "beta",
            5.0,
            "Strength beta of the proximal term of stage 1; it multiplies a client's noise level.",
            source="FedCorr's code",
            minimum=0.0,
        ),
        Hparam(
            "neighbors",
            20,
            "Neighbours k of the local intrinsic dimensionality.",
            source="FedCorr's code",
            minimum=2,
        ),
        Hparam(
            "relabel_ratio",
            0.8,
            "Share of the examples held to be noisy that stage 1 may relabel (pi).",
            source="FedCorr's code, Clothing1M",
            minimum=0.0,
            maximum=1.0,
        ),
        Hparam(
            "confidence",
            0.9,
            "Probability theta above which the global model may relabel an example.",
            source="FedCorr's code, Clothing1M",
            minimum=0.0,
            maximum=1.0,
        ),
        Hparam(
            "clean_level",
            0.1,
            "Noise level kappa up to which a client takes part in stage 2.",
            source="FedCorr's code",
            minimum=0.0,
            maximum=1.0,
        ),
        Hparam(
            "mixup",
            True,
            "Whether clients train on mixtures of examples (mixup with alpha = 1).",
            source="FedCorr's code",
        ),
        Hparam(
            "aggregation",
            "fedavg",
            "What the server does in stages 2 and 3: fedavg, or adafed.",
            source="FedCorr (fedavg); AdaFed, Table 19 (adafed)",
            choices=("fedavg", "adafed"),
        ),
        Hparam(
            "adafed_gamma",
            By("aggregation", {"adafed": 5.0}),
            "AdaFed's power gamma of the loss.",
            source="AdaFed, App. on label noise",
            minimum=0.0,
        ),
        Hparam(
            "adafed_step_rule",
            By("aggregation", {"adafed": "min"}),
            "AdaFed's step rule, see --adafed_step_rule.",
            source="AdaFed, Theorem 5.1",
            choices=("min", "mean", "constant", "unit"),
        ),
    ),
    server_learning_rate=1.0,
    staged=True,
    aggregated="consists of several processes, which need each client's losses",
    measures=("stage", "noisy_clients", "mean_noise_level", "labels_corrected"),
)

_LABELLED_AT_ONCE = 10  # Clients.

# The processes.
_FIRST, _LATER, _LABELLING = "first_stage", "later_stages", "labelling"


class State(NamedTuple):
    """The method's whole state, as NumPy arrays.

    Attributes:
      weights: The model x, one array per model weight.
      round_num: Rounds done in all stages, int32 scalar.
      labels: Labels of all clients' examples, client after client, as corrected so far `[n]`.
      losses: Σ l_i over iterations, in the same order, float64 `[n]`.
      dimensionality: Σ LID_k over iterations, float64 `[N]`.
      visits: Iterations in which the client had a LID_k, int32 `[N]`.
      noise_level: μ_k, float64 `[N]`.
      noisy: Whether the client is believed to be noisy, bool `[N]`.
    """

    weights: tuple[np.ndarray, ...]
    round_num: np.integer
    labels: np.ndarray
    losses: np.ndarray
    dimensionality: np.ndarray
    visits: np.ndarray
    noise_level: np.ndarray
    noisy: np.ndarray


class VisitedClient(NamedTuple):
    """The data of a client of stage 1.

    Attributes:
      training: Its minibatches.
      whole: Its examples once, in stored order.
      noise_level: μ_k, float32 scalar.
    """

    training: ClientData
    whole: ClientData
    noise_level: Any


class Measured(NamedTuple):
    """What a client of stage 1 measures at x_k; all zero if that or its update is not finite.

    Attributes:
      dimensionality: LID_k, float32 scalar.
      points: Number of examples in its mean, int32 scalar; 0 if the client has no LID_k.
      losses: l_i in the stored order of examples, float32 `[n_k]`.
    """

    dimensionality: Any
    points: Any
    losses: Any


class Place(NamedTuple):
    """The position of a round: stage 1 to 3, and whether detection or correction follows it.

    Attributes:
      stage: 1, 2 or 3.
      iteration: Iteration of stage 1, from 0.
      step: Round within the iteration or stage, from 0.
      last: Whether it is the last round of an iteration or of stage 2.
    """

    stage: int
    iteration: int
    step: int
    last: bool


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    iterations: int,
    stage1_clients: int,
    stage2_rounds: int,
    beta: float,
    neighbors: int,
    relabel_ratio: float,
    confidence: float,
    clean_level: float,
    mixup: bool,
    aggregation: str,
    adafed_gamma: float | None,
    adafed_step_rule: str | None,
) -> FedCorr:
    """Builds FedCorr; see the module's docstring for the symbols.

    Raises:
      ModelError: If the model is not a classifier with class numbers as targets.
    """
    # Its classes have TFF's as bases, which are not loaded while methods are registered.
    from tff_algos import process

    if model.outputs is None or model.y_spec.shape.rank != 1:
        raise ModelError(
            "FedCorr needs a model that gives one score per class, and targets that are class "
            "numbers."
        )
    trained = mixed(model) if mixup else model
    given = {"gamma": adafed_gamma, "step_rule": adafed_step_rule}
    spec = registry.get(aggregation)
    own: dict[str, Any] = hparams_lib.resolve(
        spec.name, spec.hparams, given if aggregation == "adafed" else {}
    )
    later = spec.build_fn()(trained, local, **own)
    data_type = process.client_data_type(model)
    visited = VisitedClient(data_type, data_type, tff.TensorType(np.float32))
    first, labelling = _first_stage(model, trained, local, beta, neighbors), _labelling(model)
    return FedCorr(
        model,
        {
            _FIRST: Round(first, _visited_spec),
            _LATER: Round(later, lambda data: data),
            _LABELLING: Round(labelling, lambda data: data),
        },
        _computation(first, _server_type(model), visited),
        process.to_process(later, model),
        _computation(labelling, _server_type(model).weights, data_type),
        iterations=iterations,
        stage1_clients=stage1_clients,
        stage2_rounds=stage2_rounds,
        relabel_ratio=relabel_ratio,
        confidence=confidence,
        clean_level=clean_level,
    )


@dataclasses.dataclass
class FedCorr:
    """The driver: which process runs in which round, and what happens in between.

    Attributes:
      model: The model that is trained.
      rounds: As in `Driver`.
      first_stage: `(state, clients) -> (state, metrics, measured at clients)`, see `_first_stage`.
      later_stages: The process of stages 2 and 3.
      labelling: `(weights, clients) -> (weights, nothing, probabilities)`, see `_labelling`.
      iterations: T_1; this and the following are settings of the method.
      stage1_clients: Clients per round of stage 1.
      stage2_rounds: T_2.
      relabel_ratio: π.
      confidence: θ.
      clean_level: κ.
    """

    model: Model
    rounds: Mapping[str, Round]
    first_stage: tff.Computation
    later_stages: tff.learning.templates.LearningProcess
    labelling: tff.Computation
    iterations: int
    stage1_clients: int
    stage2_rounds: int
    relabel_ratio: float
    confidence: float
    clean_level: float

    @functools.cached_property
    def _later_initial(self):
        return self.later_stages.initialize()

    def initialize(self, clients: Clients) -> State:
        """As `Driver.initialize`."""
        number = len(clients.num_examples)
        labels = np.concatenate([clients.labels(k) for k in range(number)])
        return State(
            weights=tuple(np.array(w) for w in self.model.initial_weights),
            round_num=np.int32(0),
            labels=labels,
            losses=np.zeros(len(labels)),
            dimensionality=np.zeros(number),
            visits=np.zeros(number, np.int32),
            noise_level=np.zeros(number),
            noisy=np.zeros(number, bool),
        )

    def findings(self, state: State) -> Findings:
        """As `Driver.findings`."""
        return Findings(np.asarray(state.noisy), np.asarray(state.labels))

    def place(self, round_index: int, num_clients: int) -> Place:
        """Returns the `Place` of a round, counted from 0."""
        per_iteration = -(-num_clients // self.stage1_clients)
        iteration, step = divmod(round_index, per_iteration)
        if iteration < self.iterations:
            return Place(1, iteration, step, step == per_iteration - 1)
        step = round_index - self.iterations * per_iteration
        if step < self.stage2_rounds:
            return Place(2, 0, step, step == self.stage2_rounds - 1)
        return Place(3, 0, step - self.stage2_rounds, False)

    def cohort(self, state: State, clients: Clients) -> list[Assignment]:
        """As `Driver.cohort`."""
        number, round_index = len(clients.num_examples), int(state.round_num)
        place = self.place(round_index, number)
        labels = _by_client(state.labels, clients)
        if place.stage == 1:
            first = place.step * self.stage1_clients
            order = clients.permutation(place.iteration)
            return [
                Assignment(k, labels[k], np.float32(state.noise_level[k]))
                for k in map(int, order[first : first + self.stage1_clients])
            ]
        among = np.arange(number)
        clean = np.flatnonzero(np.asarray(state.noise_level) <= self.clean_level)
        if place.stage == 2 and len(clean):
            among = clean
        return [Assignment(k, labels[k]) for k in map(int, clients.sample(round_index, among))]

    def data(self, name: str, round_index: int, assignment: Assignment, clients: Clients) -> Any:
        """As `Driver.data`."""
        k, labels, facts = assignment
        if name == _LABELLING:
            return clients.in_order(k, labels)
        training = clients.batches(round_index, k, labels)
        if name == _LATER:
            return training
        return VisitedClient(training, clients.in_order(k, labels), facts)

    def _by_tff(
        self,
        round_index: int,
        clients: Clients,
        name: str,
        state: Any,
        cohort: Sequence[Assignment],
    ) -> tuple[Any, Any, Iterable[Any]]:
        """As `CarryOut`, through TFF."""
        given = (self.data(name, round_index, assignment, clients) for assignment in cohort)
        if name == _LABELLING:
            return state, {}, self._labelled(state, given)
        if name == _FIRST:
            return self.first_stage(state, list(given))
        return *self.later_stages.next(state, list(given)), ()

    def _labelled(self, weights: Any, given: Iterator[ClientData]) -> Iterator[np.ndarray]:
        while part := list(itertools.islice(given, _LABELLED_AT_ONCE)):
            yield from self.labelling(weights, part)[2]

    def next(
        self,
        state: State,
        cohort: Sequence[Assignment],
        clients: Clients,
        carry_out: CarryOut | None = None,
    ) -> Any:
        """As `Driver.next`."""
        round_index = int(state.round_num)
        place = self.place(round_index, len(clients.num_examples))
        carry_out = carry_out or functools.partial(self._by_tff, round_index, clients)
        before = state
        if place.stage == 1:
            weights: Any = tuple(state.weights)
            given = averaging.ServerState(weights, np.int32(state.round_num))
            server, metrics, measured = carry_out(_FIRST, given, cohort)
            state = _recorded(state, cohort, measured, clients)
        else:
            given = self._later_initial._replace(
                weights=tuple(state.weights), round_num=np.int32(state.round_num)
            )
            server, metrics, _ = carry_out(_LATER, given, cohort)
        state = state._replace(
            weights=tuple(np.asarray(w) for w in server.weights),
            round_num=np.int32(server.round_num),
        )
        if place.last:
            state = self._found(state, clients) if place.stage == 1 else state
            state = self._corrected(state, clients, carry_out, everything=place.stage == 2)
        metrics["stage"] = place.stage
        metrics["noisy_clients"] = np.sum(state.noisy)
        metrics["mean_noise_level"] = np.mean(state.noise_level)
        metrics["labels_corrected"] = np.sum(state.labels != before.labels)
        return tff.learning.templates.LearningProcessOutput(state, metrics)

    def _found(self, state, clients):
        """Determines noisy clients and their noise levels from the measurements of stage 1."""
        known = np.flatnonzero(state.visits)
        mean = state.dimensionality[known] / state.visits[known]
        noisy = np.zeros(len(state.noisy), bool)
        noisy[known] = mixtures.larger_component(mean)
        levels = np.zeros(len(noisy))
        losses = _by_client(state.losses, clients)
        for k in np.flatnonzero(noisy):
            levels[k] = np.mean(mixtures.larger_component(losses[k]))
        return state._replace(noisy=noisy, noise_level=levels)

    def _corrected(self, state, clients, carry_out, everything):
        """Replaces noisy clients' labels by those of the global model, where it is confident."""
        labels, losses = state.labels.copy(), _by_client(state.losses, clients)
        own = _by_client(labels, clients)
        noisy = [k for k in np.flatnonzero(state.noisy) if len(own[k])]
        if not noisy:
            return state
        asked = [Assignment(int(k), own[k].copy()) for k in noisy]
        found = carry_out(_LABELLING, state.weights, asked)[2]
        for k, scores in zip(noisy, found, strict=True):
            candidates = np.arange(len(own[k]))
            if not everything:
                most = int(len(own[k]) * state.noise_level[k] * self.relabel_ratio)
                candidates = np.argsort(-losses[k], kind="stable")[:most]
            sure = candidates[scores.max(axis=1)[candidates] > self.confidence]
            own[k][sure] = scores.argmax(axis=1)[sure]
        return state._replace(labels=labels)


def _by_client(values: np.ndarray, clients: Clients) -> list[np.ndarray]:
    """Returns views of each client's part of an array over all examples."""
    return np.split(np.asarray(values), np.cumsum(clients.num_examples)[:-1])


def _recorded(state, cohort, measured, clients):
    """Adds the measurements of a round of stage 1 to the clients' records."""
    after = state._replace(
        losses=np.array(state.losses),
        dimensionality=np.array(state.dimensionality),
        visits=np.array(state.visits),
    )
    losses = _by_client(after.losses, clients)
    for given, found in zip(cohort, measured, strict=True):
        k = given.client
        losses[k] += found.losses
        after.dimensionality[k] += found.dimensionality
        after.visits[k] += found.points > 0
    return after


def _first_stage(
    model: Model, trained: Model, local: client.LocalTraining, beta: float, neighbors: int
) -> Method:
    """Returns the process of stage 1, in which each `VisitedClient` returns its `Measured`."""

    def client_update(
        broadcast: averaging.Broadcast, data: ClientData, record: tuple[ClientData, tf.Tensor]
    ) -> ClientResult:
        (x, eta), (whole, noise_level) = broadcast, record

        def add_proximal_term(gradient, x_k):
            away = x_k - x
            return gradient + tf.math.divide_no_nan(beta * noise_level, away.norm()) * away

        result = client.train(trained, local.optimizer(), eta, x, data, add_proximal_term)
        scores, losses = by_example(model, result.weights, whole)
        measured = Measured(*dimensionality.estimate(scores, neighbors), losses)
        delta = result.weights - x
        finite = client.is_finite(delta)
        measured = client.zero_unless(finite & client.is_finite(measured), measured)
        return ClientResult(result, delta, finite=finite, kept=measured)

    method = averaging.build(model, local, client_update)

    def next_round(federation, state, clients):
        record = clients.whole, clients.noise_level
        return method.next_round(federation, state, clients.training, record)

    return Method(method.initialize, next_round)


def _visited_spec(data):
    return VisitedClient(data, data, tf.TensorSpec([], tf.float32))


def _labelling(model: Model) -> Method:
    """Returns the process in which clients compute class probabilities `[n_k, classes]`."""

    def next_round(federation, weights, clients):
        def scores(weights, data):
            return by_example(model, weights, data)[0]

        found = federation.map_clients(scores, federation.broadcast(weights), clients)
        return weights, collections.OrderedDict(), found

    return Method(lambda: tuple(constants(model.initial_weights)), next_round)


def _computation(method: Method, state_type: tff.Type, client_type: Any) -> tff.Computation:
    """Returns a round as a TFF computation, including what clients return."""

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(tff.to_type(client_type), tff.CLIENTS),
    )
    def a_round(state, clients):
        return method.next_round(TffFederation(), state, clients)

    return a_round


def _server_type(model):
    weights: Any = tuple(tff.TensorType(w.dtype.type, w.shape) for w in model.initial_weights)
    return tff.to_type(averaging.ServerState(weights, tff.TensorType(np.int32)))


def by_example(model: Model, weights: Vector, data: ClientData) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns softmax outputs `[n, classes]` and losses `[n]` of the real examples, in order."""
    at = tuple(map(tf.convert_to_tensor, weights))

    def of_batch(batch):
        batch = Batch(*batch)
        forward = model.forward(at, batch, False, tf.zeros([2], tf.int32))
        scores = model.outputs(at, batch.x)  # type: ignore[misc]
        return tf.nn.softmax(scores), forward.metrics["loss"][0]

    scores, losses = tf.map_fn(
        of_batch,
        (data.x, data.y, data.mask),
        fn_output_signature=(tf.float32, tf.float32),
        parallel_iterations=1,
    )
    real = tf.reshape(data.mask, [-1]) > 0
    shape = tf.stack([tf.size(data.mask), tf.shape(scores)[-1]])
    scores = tf.boolean_mask(tf.reshape(scores, shape), real)
    return scores, tf.boolean_mask(tf.reshape(losses, [-1]), real)
