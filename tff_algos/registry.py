"""The methods by name: what each one lets its user set, known without importing TensorFlow."""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tff_suite import hparams as hparams_lib
from tff_suite import palette, specs


class RoundPlan(NamedTuple):
    """What the server asks of the clients in one round.

    Attributes:
      cohort: `sampled`: as many clients as the run asks for; `all`: every client; `pooled`: one
        client that holds the examples of all.
      batches: `minibatch`: epochs of minibatches; `full_batch`: one batch of all local examples.
      local_steps: If set, exactly that many minibatch steps: local data is repeated or cut short.
      losses: `cohort`: only the cohort takes part; `all`: all other clients do, too, to report
        their loss (`ClientData.participates` is 0 for them).
      first_step: If set, rounds share one endless series of a client's epochs, each in an order of
        its own, and this round's minibatches start at this place of it, counted from 0; else every
        round starts a new epoch.
    """

    cohort: str = "sampled"
    batches: str = "minibatch"
    local_steps: int | None = None
    losses: str = "cohort"
    first_step: int | None = None


@dataclasses.dataclass(frozen=True)
class Aggregated:
    """Which of a method's means an aggregator takes the place of (`tff_algos.aggregation`).

    Attributes:
      what: That mean, in words.
      in_clear: Vectors of the model's size that clients send beside it, which are averaged as ever,
        or numbers that tell of their updates, such as norms; empty if there are none. Where one of
        the method's own settings decides, a `By` of it. Aggregators that keep clients' vectors
        private are refused then.
      own_weights: What the weights of that mean are if they are more than `client_weighting`, so
        that an aggregator that knows no weights cannot take its place: `relative`, the largest of a
        round is 1; `unbounded`, of any size, so that secure sums cannot, either. Else empty.
    """

    what: str = "the mean of the clients' updates x_k - x"
    in_clear: str | hparams_lib.By = ""
    own_weights: str = ""


class AggregatorTraits(NamedTuple):
    """What a method may refuse an aggregator for.

    Attributes:
      weighted: Whether it knows clients' weights.
      is_private: Whether it keeps what a client sends from the server.
      has_secure_sums: Whether it sums integers, as secure aggregation does.
    """

    weighted: bool
    is_private: bool = False
    has_secure_sums: bool = False


class RoundCost(NamedTuple):
    """What a round costs a client, with the method's default settings.

    Attributes:
      gradients: Gradients that it computes in a local step. Passes over its whole training set, as
        for its loss or for a full gradient, are not among them.
      down: Vectors of the model's size that it receives.
      up: Vectors of the model's size that it sends.
    """

    gradients: int = 1
    down: int = 1
    up: int = 1


@dataclasses.dataclass(frozen=True)
class MethodSpec:
    """What is known of a method before anything is built.

    Attributes:
      name: Name of the method, the value of `--algorithm`.
      summary: One line for `--help` and the README's table.
      paper: Authors, title, arXiv number.
      display_name: The name as the paper writes it, for tables and figures; `name` if empty.
      look: Colour and line style in every figure, names of `tff_suite.palette`; without one a
        figure takes what its other lines leave.
      builder: `module:function`, imported on first use, or the function itself; of a `SPEC` of a
        module (see `add_folder`) the function's name alone. It is called with a
        `tff_algos.model.Model`, a `tff_algos.client.LocalTraining` and every declared setting by
        name, and returns a `tff_algos.method.Method`.
      hparams: The method's own settings; flags are `--<method>_<name>`.
      client_learning_rate: The method's default for `client_learning_rate`; `None` if the user must
        give one.
      server_learning_rate: The method's default for `server_learning_rate`; `None` if there is none
        that could be right without tuning, so that the user must give one.
      has_server_step: Whether the server takes a step of its own, so that it has a learning rate;
        if not, that is 1.
      client_weighting: The method's default for `client_weighting`, as its paper has it. `None` if
        the method's formulas fix the weights, so that the user must not set it.
      client_optimizers: The values of `client_optimizer` that the method can work with, its default
        first; `None` is any, `sgd` by default. Methods that define the local step themselves take
        `sgd` only.
      plan: Settings (the resolved `hparams`), round number from 0, total rounds → `RoundPlan`.
        `None` is the common plan in every round.
      draws_clients: Whether the plan of any round has the cohort `sampled`; if not, the user must
        not set how many clients to draw.
      keeps_client_optimizer: Whether clients may keep their optimizer's state between rounds
        (`client_optimizer_state=keep`).
      staged: Whether the builder returns a `tff_algos.driver.Driver` instead: a method of several
        processes, whose rounds depend on what it has found out. It has no `plan`, and no form over
        a whole cohort at once.
      aggregated: Which of its means an aggregator takes the place of; if that is none, why not, as
        the end of a sentence about the method.
      takes_server_optimizer: Whether the builder also takes `server_optimizer`, one of TFF's
        optimizers in place of its server step, or `None`.
      needs_num_clients: Whether the builder also takes `num_clients`, the number of all training
        clients (N in the mathematics).
      needs_index: Whether `ClientData.index` enters the mathematics; only with `needs_num_clients`.
        A round then refuses a cohort of equal indices, and one that is not below N.
      measures: Names of what its rounds report besides the training metrics, `num_examples`,
        `num_clients` and `clients_dropped`; `None` if only a run tells.
      version: Raised with every change that changes the method's numbers. Runs of another version
        count as other runs.
      history: A line on what changed for each version after the first.
      cost: What a round costs a client; that of federated averaging unless it says otherwise.
    """

    name: str
    summary: str
    paper: str
    display_name: str = ""
    look: tuple[str, str] | None = None
    builder: str | Callable = "build"
    hparams: Sequence[hparams_lib.Hparam] = ()
    client_learning_rate: float | None = None
    server_learning_rate: float | None = None
    has_server_step: bool = True
    client_weighting: str | None = "examples"
    client_optimizers: Sequence[str] | None = None
    plan: Callable[[dict, int, int], RoundPlan] | None = None
    draws_clients: bool = True
    keeps_client_optimizer: bool = False
    needs_num_clients: bool = False
    needs_index: bool = False
    staged: bool = False
    takes_server_optimizer: bool = False
    aggregated: Aggregated | str = "does not declare a mean that one could take the place of"
    measures: Sequence[str] | None = None
    cost: RoundCost = RoundCost()
    version: int = 1
    history: Sequence[str] = ()

    def __post_init__(self) -> None:
        specs.check_history(self)
        if not self.display_name:
            object.__setattr__(self, "display_name", self.name)
        if self.look is not None:
            palette.check(self.name, self.look)

    def round_plan(self, settings: dict, round_index: int, total_rounds: int) -> RoundPlan:
        """Returns what the method asks of the clients in a round.

        Args:
          settings: The method's own settings, resolved.
          round_index: Round, from 0.
          total_rounds: Rounds of the whole run.
        """
        if self.plan is None:
            return RoundPlan()
        return self.plan(settings, round_index, total_rounds)

    def build_fn(self) -> Callable:
        """Imports and returns the builder."""
        return specs.function(self.builder)


_H = hparams_lib.Hparam

AGGREGATORS = {
    "mean": None,
    "robust": AggregatorTraits(weighted=True),
    "dp": AggregatorTraits(weighted=False, is_private=True),
    "compressed": AggregatorTraits(weighted=True),
    "secure": AggregatorTraits(weighted=True, is_private=True, has_secure_sums=True),
}

# Settings of `aggregator=dp` that only a clipping norm which adapts reads.
ADAPTIVE_CLIPPING = (
    "aggregator_initial_clip",
    "aggregator_target_quantile",
    "aggregator_clip_learning_rate",
    "aggregator_clipped_count_stddev",
)

# What secure sums are here, as callers, the command line and the folder of a run are told.
SIMULATED = "secure aggregation: sums are taken in clear, of the integers that it would sum"

# For each client optimizer: our setting → the argument of `tff.learning.optimizers.build_…`, or of
# `tff_algos.nesterov.build_nesterov`.
# TFF's Adafactor is not among them: its `next` returns a step count of another dtype than it takes,
# so that no loop can carry its state.
CLIENT_OPTIMIZERS = {
    "sgd": {},
    "sgdm": {"client_momentum": "momentum"},
    "nesterov": {"client_momentum": "momentum"},
    "adagrad": {
        "client_initial_accumulator": "initial_preconditioner_value",
        "client_epsilon": "epsilon",
    },
    "adam": {"client_beta1": "beta_1", "client_beta2": "beta_2", "client_epsilon": "epsilon"},
    "adamw": {
        "client_beta1": "beta_1",
        "client_beta2": "beta_2",
        "client_epsilon": "epsilon",
        "client_weight_decay": "weight_decay",
    },
    "rmsprop": {"client_decay": "decay", "client_epsilon": "epsilon"},
    "yogi": {
        "client_beta1": "beta_1",
        "client_beta2": "beta_2",
        "client_epsilon": "epsilon",
        "client_initial_accumulator": "initial_preconditioner_value",
    },
}


def decay(name: str, default: float, help_text: str, source: str) -> hparams_lib.Hparam:
    """Returns the setting of a moving average's decay, or of a momentum: a number in [0, 1)."""
    return _H(name, default, help_text, source, minimum=0.0, maximum=1.0, exclusive_maximum=True)


def _by_optimizer(name: str, default: float, **others: float | None) -> hparams_lib.By:
    """Returns a default of the client optimizers that read a setting; `others` name their own."""
    return hparams_lib.By(
        "client_optimizer",
        {
            optimizer: others.get(optimizer, default) if name in read else hparams_lib.NOT_USED
            for optimizer, read in CLIENT_OPTIMIZERS.items()
        },
    )


# What every method's clients share; passed to `tff_algos.build` and set by flags of the same name.
TRAINING_HPARAMS = (
    _H(
        "client_optimizer",
        None,
        "Optimizer of the clients, TFF's. Unset: the method's own, which is sgd for most.",
        source="all five papers: plain SGD",
        type=str,
        choices=tuple(CLIENT_OPTIMIZERS),
        flag="client_optimizer",
    ),
    _H(
        "client_optimizer_state",
        "reset",
        "Whether the clients' optimizer starts from zero every round (reset) or each client "
        "continues from the state in which it left it (keep: momentum buffers, moments, counts).",
        source="choice; AdaFedAdam's Tables 3 and 7 fit keep only",
        choices=("reset", "keep"),
        flag="client_optimizer_state",
    ),
    _H(
        "client_learning_rate",
        None,
        "Learning rate of the clients (eta_l). Must be set unless the method has a default.",
        source="the method",
        type=float,
        minimum=0.0,
        flag="client_learning_rate",
    ),
    _H(
        "server_learning_rate",
        None,
        "Learning rate of the server (eta). Where the method has a default, that is used if unset.",
        source="the method",
        type=float,
        minimum=0.0,
        flag="server_learning_rate",
    ),
    _H(
        "client_weighting",
        None,
        "Weight of a client in averages: its number of training examples, or the same for all. "
        "Unset: as in the method's paper.",
        source="the method; Adaptive Federated Optimization, Algorithm 5 (examples)",
        type=str,
        choices=("examples", "uniform"),
        flag="client_weighting",
    ),
    _H(
        "client_lr_schedule",
        "constant",
        "How the client learning rate changes over rounds r = 0, 1, ...: constant; exp_decay, "
        "eta_l * rate^(r / steps); inv_sqrt_decay, eta_l / sqrt(1 + r / steps); inverse_time, "
        "eta_l / (1 + r / steps). In Python also a function of r that returns the rate itself.",
        source="Adaptive Federated Optimization, section 5; Keras (inverse_time)",
        choices=("constant", "exp_decay", "inv_sqrt_decay", "inverse_time"),
        flag="client_lr_schedule",
    ),
    _H(
        "client_lr_decay_rate",
        hparams_lib.By("client_lr_schedule", {"exp_decay": 0.1}),
        "Factor by which exp_decay lowers the client learning rate every client_lr_decay_steps.",
        source="Adaptive Federated Optimization, App. E.6",
        minimum=0.0,
        maximum=1.0,
        exclusive_minimum=True,
        flag="client_lr_decay_rate",
    ),
    _H(
        "client_lr_decay_steps",
        hparams_lib.By(
            "client_lr_schedule",
            {"constant": hparams_lib.NOT_USED, "inverse_time": 1},
            otherwise=500,
        ),
        "Rounds of one decay of the schedule.",
        source="Adaptive Federated Optimization, App. E.6; 1 of inverse_time: choice",
        minimum=1,
        flag="client_lr_decay_steps",
    ),
    _H(
        "client_lr_staircase",
        hparams_lib.By("client_lr_schedule", {"exp_decay": True}),
        "Whether exp_decay moves in steps: floor(r / steps) in the exponent.",
        source="Adaptive Federated Optimization, App. E.6",
        flag="client_lr_staircase",
    ),
    _H(
        "client_lr_warmup_steps",
        0,
        "Rounds of linear warm-up, on top of any schedule: the rate is multiplied by "
        "min(1, (r + 1) / client_lr_warmup_steps).",
        source="none: 0 is no warm-up",
        minimum=0,
        flag="client_lr_warmup_steps",
    ),
    _H(
        "client_momentum",
        _by_optimizer("client_momentum", 0.9),
        "Momentum (buffer <- momentum * buffer + gradient).",
        source="AdaFedAdam, App. C.1",
        minimum=0.0,
        maximum=1.0,
        exclusive_maximum=True,
        flag="client_momentum",
    ),
    _H(
        "client_beta1",
        _by_optimizer("client_beta1", 0.9),
        "First-moment decay.",
        source="TFF",
        minimum=0.0,
        maximum=1.0,
        exclusive_maximum=True,
        flag="client_beta1",
    ),
    _H(
        "client_beta2",
        _by_optimizer("client_beta2", 0.999),
        "Second-moment decay.",
        source="TFF",
        minimum=0.0,
        maximum=1.0,
        exclusive_maximum=True,
        flag="client_beta2",
    ),
    _H(
        "client_epsilon",
        _by_optimizer("client_epsilon", 1e-7, yogi=1e-3),
        "Epsilon of the adaptive client optimizers.",
        source="TFF",
        minimum=0.0,
        flag="client_epsilon",
    ),
    _H(
        "client_decay",
        _by_optimizer("client_decay", 0.9),
        "Second-moment decay.",
        source="TFF",
        minimum=0.0,
        maximum=1.0,
        flag="client_decay",
    ),
    _H(
        "client_weight_decay",
        _by_optimizer("client_weight_decay", 0.004),
        "Decoupled weight decay.",
        source="TFF",
        minimum=0.0,
        flag="client_weight_decay",
    ),
    _H(
        "client_initial_accumulator",
        _by_optimizer("client_initial_accumulator", 1e-6, adagrad=None),
        "Initial accumulator. Adagrad's, unset: TFF's 0.1; in fedlocal 0.",
        source="TFF; Local Adaptivity, the released code",
        minimum=0.0,
        flag="client_initial_accumulator",
    ),
    _H(
        "aggregator",
        "mean",
        "What brings the clients' updates together: their mean, or one of TFF's aggregators. "
        "robust zeroes very large updates and clips large ones; dp clips and adds Gaussian noise; "
        "compressed quantises large tensors; secure sums integers, as secure aggregation does, but "
        "in clear: a simulation of it.",
        source="the papers: the mean",
        choices=tuple(AGGREGATORS),
        flag="aggregator",
    ),
    _H(
        "aggregator_zeroing",
        hparams_lib.By("aggregator", {"mean": hparams_lib.NOT_USED}, otherwise=True),
        "Whether updates far larger than those before are zeroed.",
        source="TFF",
        flag="aggregator_zeroing",
    ),
    _H(
        "aggregator_clipping",
        hparams_lib.By("aggregator", {"robust": True, "compressed": True, "secure": True}),
        "Whether updates are clipped to a norm that adapts to their 80 % quantile.",
        source="TFF",
        flag="aggregator_clipping",
    ),
    _H(
        "aggregator_noise_multiplier",
        hparams_lib.By("aggregator", {"dp": None}),
        "Standard deviation of the noise over the clipping norm. Must be set with dp; 0 is none.",
        source="none",
        type=float,
        minimum=0.0,
        flag="aggregator_noise_multiplier",
    ),
    _H(
        "aggregator_clients_per_round",
        hparams_lib.By("aggregator", {"dp": None}),
        "What dp divides the sum of clipped updates by, whoever is dropped. Unset: the clients "
        "that a round draws.",
        source="TFF",
        type=float,
        minimum=0.0,
        exclusive_minimum=True,
        flag="aggregator_clients_per_round",
    ),
    _H(
        "aggregator_clip",
        hparams_lib.By("aggregator", {"dp": None}),
        "Fixed norm to which dp clips updates. Unset: the norm adapts to a quantile of them.",
        source="TFF, gaussian_fixed",
        type=float,
        minimum=0.0,
        exclusive_minimum=True,
        flag="aggregator_clip",
    ),
    _H(
        "aggregator_initial_clip",
        hparams_lib.By("aggregator", {"dp": 0.1}),
        "Norm at which dp's adaptive clipping starts.",
        source="TFF",
        minimum=0.0,
        exclusive_minimum=True,
        flag="aggregator_initial_clip",
    ),
    _H(
        "aggregator_target_quantile",
        hparams_lib.By("aggregator", {"dp": 0.5}),
        "Share of updates that dp's adaptive clipping leaves unclipped.",
        source="TFF",
        minimum=0.0,
        maximum=1.0,
        flag="aggregator_target_quantile",
    ),
    _H(
        "aggregator_clip_learning_rate",
        hparams_lib.By("aggregator", {"dp": 0.2}),
        "Learning rate of dp's adaptive clipping norm.",
        source="TFF",
        minimum=0.0,
        flag="aggregator_clip_learning_rate",
    ),
    _H(
        "aggregator_clipped_count_stddev",
        hparams_lib.By("aggregator", {"dp": None}),
        "Standard deviation of the noise on dp's count of unclipped updates. It must exceed half "
        "of the noise multiplier. Unset: 0.05 times the clients of a round.",
        source="TFF",
        type=float,
        minimum=0.0,
        exclusive_minimum=True,
        flag="aggregator_clipped_count_stddev",
    ),
    _H(
        "aggregator_bits",
        hparams_lib.By("aggregator", {"compressed": 8}),
        "Bits of a quantised number.",
        source="TFF",
        minimum=1,
        maximum=16,
        flag="aggregator_bits",
    ),
    _H(
        "aggregator_threshold",
        hparams_lib.By("aggregator", {"compressed": 20000}),
        "Tensors of more numbers than this are quantised.",
        source="TFF",
        minimum=0,
        flag="aggregator_threshold",
    ),
)


def resolve_training(spec: MethodSpec, given: dict) -> dict:  # noqa: C901
    """Returns all training settings for a method, checked together.

    Args:
      spec: The method.
      given: The settings of `TRAINING_HPARAMS` that the user gave.

    Raises:
      HparamError: If a setting is refused, missing, or has no meaning beside the others.
    """
    allowed = tuple(spec.client_optimizers or CLIENT_OPTIMIZERS)
    given = {name: value for name, value in given.items() if value is not None}
    settings = hparams_lib.resolve(
        spec.name, TRAINING_HPARAMS, {"client_optimizer": allowed[0], **given}
    )
    if settings["client_learning_rate"] is None:
        settings["client_learning_rate"] = spec.client_learning_rate
    if settings["client_learning_rate"] is None:
        raise hparams_lib.HparamError("client_learning_rate must be set: it has no default.")
    if not spec.has_server_step and settings["server_learning_rate"] not in (None, 1.0):
        raise hparams_lib.HparamError(
            f"server_learning_rate has no meaning in {spec.name}, whose server takes no step."
        )
    if settings["server_learning_rate"] is None:
        if spec.server_learning_rate is None:
            raise hparams_lib.HparamError(
                f"server_learning_rate must be set: {spec.name} has no default for it."
            )
        settings["server_learning_rate"] = spec.server_learning_rate
    if spec.client_weighting is None and settings["client_weighting"] is not None:
        raise hparams_lib.HparamError(
            f"client_weighting has no meaning in {spec.name}, whose weights are its own."
        )
    if settings["client_weighting"] is None:
        settings["client_weighting"] = spec.client_weighting
    if settings["client_optimizer"] not in allowed:
        raise hparams_lib.HparamError(
            f"client_optimizer={settings['client_optimizer']} has no meaning in {spec.name}, whose "
            f"local step is its own; it takes {', '.join(allowed)}."
        )
    if settings["client_optimizer_state"] == "keep":
        if not spec.keeps_client_optimizer:
            raise hparams_lib.HparamError(
                f"client_optimizer_state=keep has no meaning in {spec.name}: it has no such form."
            )
        if not _has_state(settings):
            raise hparams_lib.HparamError(
                f"client_optimizer_state=keep has no meaning with "
                f"client_optimizer={settings['client_optimizer']}, which has no state."
            )
    if settings["aggregator"] == "dp" and settings["aggregator_noise_multiplier"] is None:
        raise hparams_lib.HparamError(
            "aggregator_noise_multiplier must be set with aggregator=dp: it has no default."
        )
    if settings["aggregator_clip"] is not None:
        for name in ADAPTIVE_CLIPPING:
            if name in given:
                raise hparams_lib.HparamError(
                    f"{name} is not used with aggregator_clip, a norm that does not adapt."
                )
    return settings


def check_aggregator(
    spec: MethodSpec,
    training: Mapping[str, Any],
    own: Mapping[str, Any],
    aggregator: str | None = None,
    traits: AggregatorTraits | None = None,
) -> None:
    """Refuses an aggregator that a method cannot work with.

    Args:
      spec: The method.
      training: The training settings, resolved.
      own: The method's own settings, resolved.
      aggregator: How to call the aggregator in an error; by default the setting `aggregator`.
      traits: What it is, of an object; by default what that setting's word stands for.

    Raises:
      HparamError: If the method has no mean that it could take the place of, needs weights that it
        does not know or has weights that it cannot sum, or undoes its privacy.
    """
    if traits is None:
        aggregator = f"aggregator={training['aggregator']}"
        traits = AGGREGATORS[training["aggregator"]]
    if traits is None:
        return
    if isinstance(spec.aggregated, str):
        raise hparams_lib.HparamError(
            f"{aggregator} has no meaning in {spec.name}, which {spec.aggregated}."
        )
    own_weights, in_clear, where = spec.aggregated.own_weights, spec.aggregated.in_clear, ""
    if own_weights and not traits.weighted:
        raise hparams_lib.HparamError(
            f"{aggregator} has no meaning in {spec.name}: it counts all clients alike, and the "
            "method's weights are its own."
        )
    if not traits.weighted and training["client_weighting"] != "uniform":
        raise hparams_lib.HparamError(
            f"{aggregator} counts all clients alike; set client_weighting=uniform with it."
        )
    if isinstance(in_clear, hparams_lib.By):
        where = f" with {in_clear.setting}={own[in_clear.setting]}"
        in_clear = in_clear.of(own[in_clear.setting])
    if traits.is_private and in_clear:
        raise hparams_lib.HparamError(
            f"{aggregator} has no meaning in {spec.name}{where}, whose clients also send "
            f"{in_clear} in clear."
        )
    if traits.has_secure_sums and own_weights not in ("", "relative"):
        raise hparams_lib.HparamError(
            f"{aggregator} has no meaning in {spec.name}: secure sums take weights in steps of "
            "2^-12 up to 2^20, and the method's may be of any size."
        )


def _has_state(settings: Mapping[str, Any]) -> bool:
    optimizer = settings["client_optimizer"]
    return optimizer != "sgd" and not (optimizer == "sgdm" and settings["client_momentum"] == 0)


_SPECS: dict[str, MethodSpec] = {}


def register(spec: MethodSpec) -> None:
    """Adds a method; a package outside the suite calls this when `--import` brings it in.

    Raises:
      ValueError: If the name is taken by another method.
    """
    if _SPECS.get(spec.name, spec) != spec:
        raise ValueError(f"A method named {spec.name!r} is registered already.")
    _SPECS[spec.name] = spec


def add_folder(package: types.ModuleType) -> None:
    """Adds what the modules of a package hold as `SPEC` or `SPECS`, without importing TensorFlow.

    Raises:
      ImportError: If a module uses TensorFlow while it is imported.
      ValueError: If a name is taken by another method.
    """
    for spec in specs.in_folder(package, "builder"):
        register(spec)


def names() -> list[str]:
    """Returns the registered names in alphabetical order."""
    return sorted(_SPECS)


def get(name: str) -> MethodSpec:
    """Returns the method's specification.

    Raises:
      HparamError: If there is no such method.
    """
    if name not in _SPECS:
        raise hparams_lib.HparamError(f"Unknown algorithm {name!r}; known: {', '.join(names())}.")
    return _SPECS[name]
