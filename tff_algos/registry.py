"""The methods by name, known without importing TensorFlow.

Method specifications and common settings live in separate modules; this one re-exports them.
"""

import types

from tff_algos.aggregator_settings import (
    ADAPTIVE_CLIPPING,
    AGGREGATORS,
    SIMULATED,
    AggregatorTraits,
    check_aggregator,
)
from tff_algos.method_spec import Aggregated, MethodSpec, RoundCost, RoundPlan, decay
from tff_algos.training_settings import CLIENT_OPTIMIZERS, TRAINING_HPARAMS, resolve_training
from tff_suite import hparams as hparams_lib
from tff_suite import specs

__all__ = [
    "ADAPTIVE_CLIPPING",
    "AGGREGATORS",
    "CLIENT_OPTIMIZERS",
    "SIMULATED",
    "TRAINING_HPARAMS",
    "Aggregated",
    "AggregatorTraits",
    "MethodSpec",
    "RoundCost",
    "RoundPlan",
    "add_folder",
    "check_aggregator",
    "decay",
    "get",
    "names",
    "register",
    "resolve_training",
]

_SPECS: dict[str, MethodSpec] = {}


def register(spec: MethodSpec) -> None:
    """Adds a method; a package outside the suite calls this when `--import` brings it in.

    Raises:
      ValueError: If the name is taken by another method.
    """
    if _SPECS.get(spec.name, spec) != spec:
        raise ValueError(
            f"A method named {spec.name!r} is already registered; choose another name, or restart "
            "Python to replace your own."
        )
    _SPECS[spec.name] = spec


def add_folder(package: types.ModuleType) -> None:
    """Registers `SPEC` or `SPECS` of each module of a package, without importing TensorFlow.

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
