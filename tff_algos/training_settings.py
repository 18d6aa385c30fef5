"""The settings that all methods share: the clients' training, and the aggregator."""

from collections.abc import Mapping
from typing import Any

from tff_algos.aggregator_settings import ADAPTIVE_CLIPPING, AGGREGATOR_HPARAMS
from tff_algos.method_spec import MethodSpec, common_setting
from tff_suite import hparams as hparams_lib

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


def _by_optimizer(name: str, default: float, **others: float | None) -> hparams_lib.By:
    """Returns a default of the client optimizers that use a setting; `others` name their own."""
    return hparams_lib.By(
        "client_optimizer",
        {
            optimizer: others.get(optimizer, default) if name in read else hparams_lib.NOT_USED
            for optimizer, read in CLIENT_OPTIMIZERS.items()
        },
    )


# What every method's clients share; passed to `tff_algos.build` and set by flags of the same name.
TRAINING_HPARAMS = (
    common_setting(
        "client_optimizer",
        None,
        "TFF optimizer of the clients. Default: the method's own, which is sgd for most.",
        source="all five papers: plain SGD",
        type=str,
        choices=tuple(CLIENT_OPTIMIZERS),
    ),
    common_setting(
        "client_optimizer_state",
        "reset",
        "Whether the clients' optimizer starts from zero every round (reset) or each client "
        "continues from the state in which it left it (keep: momentum buffers, moments, counts).",
        source="choice; AdaFedAdam's Tables 3 and 7 fit keep only",
        choices=("reset", "keep"),
    ),
    common_setting(
        "client_learning_rate",
        None,
        "Learning rate of the clients (eta_l). Must be set unless the method has a default.",
        source="the method",
        type=float,
        minimum=0.0,
    ),
    common_setting(
        "server_learning_rate",
        None,
        "Learning rate of the server (eta). Must be set unless the method has a default.",
        source="the method",
        type=float,
        minimum=0.0,
    ),
    common_setting(
        "client_weighting",
        None,
        "Weight of a client in averages: its number of training examples, or the same for all. "
        "Default: as in the method's paper.",
        source="the method; Adaptive Federated Optimization, Algorithm 5 (examples)",
        type=str,
        choices=("examples", "uniform"),
    ),
    common_setting(
        "client_lr_schedule",
        "constant",
        "Client learning rate in rounds r = 0, 1, ...: eta_l times rate^(r / steps) (exp_decay), "
        "1 / sqrt(1 + r / steps) or 1 / (1 + r / steps). In Python also a function of r.",
        source="Adaptive Federated Optimization, section 5; Keras (inverse_time)",
        choices=("constant", "exp_decay", "inv_sqrt_decay", "inverse_time"),
    ),
    common_setting(
        "client_lr_decay_rate",
        hparams_lib.By("client_lr_schedule", {"exp_decay": 0.1}),
        "Factor by which exp_decay lowers the client learning rate every client_lr_decay_steps.",
        source="Adaptive Federated Optimization, App. E.6",
        minimum=0.0,
        maximum=1.0,
        exclusive_minimum=True,
    ),
    common_setting(
        "client_lr_decay_steps",
        hparams_lib.By(
            "client_lr_schedule",
            {"constant": hparams_lib.NOT_USED, "inverse_time": 1},
            otherwise=500,
        ),
        "Rounds per decay step of the schedule.",
        source="Adaptive Federated Optimization, App. E.6; 1 of inverse_time: choice",
        minimum=1,
    ),
    common_setting(
        "client_lr_staircase",
        hparams_lib.By("client_lr_schedule", {"exp_decay": True}),
        "Whether exp_decay moves in steps: floor(r / steps) in the exponent.",
        source="Adaptive Federated Optimization, App. E.6",
    ),
    common_setting(
        "client_lr_warmup_steps",
        0,
        "Rounds of linear warm-up, on top of any schedule: the rate is multiplied by "
        "min(1, (r + 1) / client_lr_warmup_steps).",
        source="choice: without warm-up",
        minimum=0,
    ),
    common_setting(
        "client_momentum",
        _by_optimizer("client_momentum", 0.9),
        "Momentum (buffer <- momentum * buffer + gradient).",
        source="AdaFedAdam, App. C.1",
        minimum=0.0,
        maximum=1.0,
        exclusive_maximum=True,
    ),
    common_setting(
        "client_beta1",
        _by_optimizer("client_beta1", 0.9),
        "First-moment decay.",
        source="TFF",
        minimum=0.0,
        maximum=1.0,
        exclusive_maximum=True,
    ),
    common_setting(
        "client_beta2",
        _by_optimizer("client_beta2", 0.999),
        "Second-moment decay.",
        source="TFF",
        minimum=0.0,
        maximum=1.0,
        exclusive_maximum=True,
    ),
    common_setting(
        "client_epsilon",
        _by_optimizer("client_epsilon", 1e-7, yogi=1e-3),
        "Epsilon of the adaptive client optimizers.",
        source="TFF",
        minimum=0.0,
    ),
    common_setting(
        "client_decay",
        _by_optimizer("client_decay", 0.9),
        "Second-moment decay.",
        source="TFF",
        minimum=0.0,
        maximum=1.0,
    ),
    common_setting(
        "client_weight_decay",
        _by_optimizer("client_weight_decay", 0.004),
        "Decoupled weight decay.",
        source="TFF",
        minimum=0.0,
    ),
    common_setting(
        "client_initial_accumulator",
        _by_optimizer("client_initial_accumulator", 1e-6, adagrad=None),
        "Initial accumulator. Adagrad's, unset: TFF's 0.1; in fedlocal 0.",
        source="TFF; Local Adaptivity, the released code",
        minimum=0.0,
    ),
    *AGGREGATOR_HPARAMS,
)


def resolve_training(spec: MethodSpec, given: dict) -> dict:  # noqa: C901
    """Returns all training settings for a method, checked together.

    Args:
      spec: The method.
      given: The settings of `TRAINING_HPARAMS` that the user gave.

    Raises:
      HparamError: If a setting is refused, missing, or is not used with the others.
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
            f"server_learning_rate is not supported by {spec.name}, whose server takes no step."
        )
    if settings["server_learning_rate"] is None:
        if spec.server_learning_rate is None:
            raise hparams_lib.HparamError(
                f"server_learning_rate must be set: {spec.name} has no default for it."
            )
        settings["server_learning_rate"] = spec.server_learning_rate
    if spec.client_weighting is None and settings["client_weighting"] is not None:
        raise hparams_lib.HparamError(
            f"client_weighting is not supported by {spec.name}, which defines its own weights."
        )
    if settings["client_weighting"] is None:
        settings["client_weighting"] = spec.client_weighting
    if settings["client_optimizer"] not in allowed:
        raise hparams_lib.HparamError(
            f"client_optimizer={settings['client_optimizer']} is not supported by {spec.name}, "
            f"which defines its local step; it takes {', '.join(allowed)}."
        )
    if settings["client_optimizer_state"] == "keep":
        if not spec.keeps_client_optimizer:
            raise hparams_lib.HparamError(
                f"client_optimizer_state=keep is not supported by {spec.name}, whose clients "
                "cannot keep their optimizer's state."
            )
        if not _has_state(settings):
            raise hparams_lib.HparamError(
                f"client_optimizer_state=keep is not used with "
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


def _has_state(settings: Mapping[str, Any]) -> bool:
    optimizer = settings["client_optimizer"]
    return optimizer != "sgd" and not (optimizer == "sgdm" and settings["client_momentum"] == 0)
