"""Methods: federated optimisation algorithms as TFF processes.

`build(name, model, **settings)` gives the iterative process of a published method for a model that
the caller brings. Names and settings are known without importing TensorFlow; everything else is
imported on first use.
"""

import importlib

from tff_algos import methods as _methods
from tff_algos import registry as _registry
from tff_algos.registry import TRAINING_HPARAMS, MethodSpec, RoundPlan, get, names, register
from tff_suite import imports as _imports  # noqa: F401  (has to come before TFF)

_registry.add_folder(_methods)

_LAZY = {
    "Batch": "client_data",
    "ClientData": "client_data",
    "batch_client": "client_data",
    "batch_cohort": "client_data",
    "from_dataset": "client_data",
    "Model": "model",
    "ModelError": "model",
    "from_keras": "keras_bridge",
    "build": "process",
    "taking_datasets": "dataset_process",
    "initial_client_state": "process",
}


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module 'tff_algos' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tff_algos.{_LAZY[name]}"), name)
    # Found there from now on: a round asks for some of them once for every client.
    globals()[name] = value
    return value


__all__ = ["MethodSpec", "RoundPlan", "TRAINING_HPARAMS", "get", "names", "register", *_LAZY]
