"""Methods: federated optimisation algorithms as TFF processes.

`build(name, model, **settings)` returns the iterative process of a published method for your model.
Names and settings are known without importing TensorFlow; everything else is imported on first use.
"""

import importlib as _importlib
import warnings as _warnings
from typing import TYPE_CHECKING, Any

from tff_algos import methods as _methods
from tff_algos import registry as _registry
from tff_algos.registry import TRAINING_HPARAMS, MethodSpec, RoundPlan, get, names, register
from tff_suite import imports as _imports  # noqa: F401  (has to come before TFF)

if TYPE_CHECKING:
    from tff_algos import averaging, client
    from tff_algos.client_data import Batch, ClientData, batch_client, batch_cohort, from_dataset
    from tff_algos.dataset_process import from_datasets
    from tff_algos.keras_bridge import from_keras
    from tff_algos.method import Method
    from tff_algos.model import Model, ModelError
    from tff_algos.process import build, initial_client_state
    from tff_algos.purity import MethodError
    from tff_algos.vector import Vector

_registry.add_folder(_methods)

# Name → the module that has it, imported on first use; a module's own name stands for itself.
_LAZY = {
    "averaging": "averaging",
    "client": "client",
    "Batch": "client_data",
    "ClientData": "client_data",
    "batch_client": "client_data",
    "batch_cohort": "client_data",
    "from_dataset": "client_data",
    "from_datasets": "dataset_process",
    "from_keras": "keras_bridge",
    "Method": "method",
    "MethodError": "purity",
    "Model": "model",
    "ModelError": "model",
    "build": "process",
    "initial_client_state": "process",
    "Vector": "vector",
}
_FORMER_NAMES = {"taking_datasets": "from_datasets"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _FORMER_NAMES:
            now = _FORMER_NAMES[name]
            _warnings.warn(
                f"tff_algos.{name} is now tff_algos.{now}.", DeprecationWarning, stacklevel=2
            )
            return __getattr__(now)
        if name not in _LAZY:
            raise AttributeError(f"module 'tff_algos' has no attribute {name!r}")
        module = _importlib.import_module(f"tff_algos.{_LAZY[name]}")
        value = module if name == _LAZY[name] else getattr(module, name)
        # Found there from now on: a round asks for some of them once for every client.
        globals()[name] = value
        return value


__all__ = [
    "TRAINING_HPARAMS",
    "Batch",
    "ClientData",
    "Method",
    "MethodError",
    "MethodSpec",
    "Model",
    "ModelError",
    "RoundPlan",
    "Vector",
    "averaging",
    "batch_client",
    "batch_cohort",
    "build",
    "client",
    "from_dataset",
    "from_datasets",
    "from_keras",
    "get",
    "initial_client_state",
    "names",
    "register",
]


def __dir__() -> list[str]:
    return __all__
