"""The differences between the two stacks that the suite runs on, and their private modules.

  * published: TensorFlow 2.14 with its built-in Keras 2, the stack with which TFF 0.87 was
    published.
  * current: TensorFlow 2.21 with tf-keras, its package of Keras 2.

Importing this module selects Keras 2 as `tf.keras` and prepares the later import of TFF and of
TensorFlow Privacy, but imports neither. `tff_suite.imports` imports it. So `import tff_algos` (or
`tasks`, `simulation`) must come before a program's own `import tensorflow_federated`.
"""

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import io
import json
import os
import pkgutil
import re
import sys
import types
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

from tff_suite import command_line

PUBLISHED, CURRENT = "published", "current"


# Modules that TensorFlow and TFF keep to themselves, by the package that holds them. Only here are
# they named, so that a new release is met in one place.
_PRIVATE = {
    "tensorflow.python.eager": (
        "cancellation",
        "context",
        "execute",
    ),
    "tensorflow.python.eager.polymorphic_function": ("atomic_function",),
    "tensorflow.python.framework": (
        "func_graph",
        "function_def_to_graph",
        "kernels",
        "op_def_registry",
        "ops",
    ),
    "tensorflow.python.ops.parallel_for": ("pfor",),
    "tensorflow.python.util": (
        "lazy_loader",
        "pywrap_util_port",
    ),
    "tensorflow_federated.python.aggregators": ("differential_privacy",),
    "tensorflow_federated.python.common_libs": ("py_typecheck",),
    "tensorflow_federated.python.core.backends.mapreduce": ("form_utils",),
    "tensorflow_federated.python.core.backends.native": ("compiler",),
    "tensorflow_federated.python.core.backends.test": ("test_compiler",),
    "tensorflow_federated.python.core.environments.tensorflow_backend": (
        "compiled_computation_transformations",
        "tensorflow_tree_transformations",
    ),
    "tensorflow_federated.python.core.environments.tensorflow_frontend": (
        "tensorflow_computation",
    ),
    "tensorflow_federated.python.core.impl.compiler": (
        "array",
        "transformation_utils",
        "transformations",
    ),
    "tensorflow_federated.python.core.impl.computation": ("computation_impl",),
    "tensorflow_federated.python.core.impl.context_stack": (
        "context_stack_impl",
        "runtime_error_context",
    ),
    "tensorflow_federated.python.core.impl.execution_contexts": ("sync_execution_context",),
    "tensorflow_federated.python.core.impl.executor_stacks": ("python_executor_stacks",),
    "tensorflow_federated.python.core.impl.executors": (
        "remote_executor",
        "remote_executor_grpc_stub",
        "value_serialization",
    ),
    "tensorflow_federated.python.core.impl.types": (
        "computation_types",
        "placements",
        "type_analysis",
        "type_conversions",
    ),
    "tensorflow_federated.python.core.impl.utils": ("tensorflow_utils",),
}
# Those that the table names otherwise.
_OWN_NAMES = {"pywrap_util_port": "_pywrap_util_port", "test_compiler": "compiler"}
_PLACES = {
    name: f"{package}.{_OWN_NAMES.get(name, name)}"
    for package, names in _PRIVATE.items()
    for name in names
}
TFFS_JAX = "tensorflow_federated.python.core.environments.jax"


def __getattr__(name: str) -> Any:
    """Returns a private module of `_PRIVATE`, imported on first use."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = importlib.import_module(_PLACES[name])
    return globals()[name]


def stack_of(tensorflow_version: str) -> str:
    """Returns the name of the stack that a version of TensorFlow belongs to."""
    major, minor = tensorflow_version.split(".")[:2]
    # 2.16 is the first without Keras 2.
    return PUBLISHED if (int(major), int(minor)) < (2, 16) else CURRENT


@functools.cache
def stack() -> str:
    """Returns the name of the stack that this process runs on."""
    return stack_of(importlib.metadata.version("tensorflow"))


def packages() -> tuple[str, ...]:
    """Returns the names of the packages whose versions affect a run's numbers."""
    keras = "keras" if stack() == PUBLISHED else "tf-keras"
    return "tensorflow", "tensorflow-federated", "numpy", keras


# Keras.

_KERAS_2 = "tf_keras.api._v2"


def keras_source(name: str) -> types.ModuleType:
    """Returns a module of Keras 2's own source, such as `utils.losses_utils`."""
    package = "keras" if stack() == PUBLISHED else "tf_keras"
    return importlib.import_module(f"{package}.src.{name}")


def is_of_keras(thing: Any) -> bool:
    """Returns whether a function or class is from Keras 2's own source."""
    return (getattr(thing, "__module__", None) or "").startswith(("keras.", "tf_keras."))


KERAS_3 = (
    "The model is one of Keras 3, which is not supported. Build it with `tf.keras` after `import "
    "tff_algos`, or with `tf_keras`: both are Keras 2."
)


def is_keras_3(model: Any) -> bool:
    """Returns whether a model is a Keras 3 model, which the suite cannot use."""
    keras = sys.modules.get("keras")
    if keras is None or stack() == PUBLISHED:
        return False
    return isinstance(model, keras.Model)


# Under which name a model's file holds its layers: published, current.
_LAYERS = ("_layer_checkpoint_dependencies", "layers")


# Settings that layers have on the current stack only, with the value that changes nothing.
_NEW_SETTINGS: dict[str, tuple[str, Any]] = {
    "InputLayer": ("optional", False),
    "MultiHeadAttention": ("softmax_robust_masking", False),
}


def _without_new_settings(config: Any) -> Any:
    if isinstance(config, list):
        return [_without_new_settings(part) for part in config]
    if not isinstance(config, dict):
        return config
    made = {name: _without_new_settings(part) for name, part in config.items()}
    kind: Any = config.get("class_name")
    name, default = _NEW_SETTINGS.get(kind, ("", None))
    settings = made.get("config")
    if isinstance(settings, dict) and settings.get(name) is default:
        settings.pop(name, None)
    return made


def for_both_stacks(content: bytes) -> bytes:
    """Returns a version of a Keras file, `.keras` or `.weights.h5`, that both stacks load.

    The stacks store a model's layers under different names, and name the package of some classes
    differently. The returned file has the weights under both names, as links. Its classes have the
    names of the published stack, which the current one understands. Other files are returned
    unchanged.
    """
    if zipfile.is_zipfile(io.BytesIO(content)):
        made = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
            for entry in old.infolist():
                part = old.read(entry)
                if entry.filename == "config.json":
                    config = json.loads(part.replace(b'"tf_keras.', b'"keras.'))
                    part = json.dumps(_without_new_settings(config)).encode()
                elif entry.filename.endswith(".h5"):
                    part = for_both_stacks(part)
                new.writestr(entry, part)
        return made.getvalue()
    if not content.startswith(b"\x89HDF\r\n\x1a\n"):
        return content
    import h5py  # Not for checks of flags.

    file = io.BytesIO(content)
    with h5py.File(file, "r+") as weights:
        groups = [weights]
        weights.visititems(lambda _, found: groups.append(found))
        for group in groups:
            held = [name for name in _LAYERS if isinstance(group, h5py.Group) and name in group]
            if len(held) == 1:
                (other,) = set(_LAYERS) - set(held)
                group[other] = group[held[0]]
    return file.getvalue()


def _select_keras_2() -> None:
    """Makes `tf.keras` Keras 2, even after TensorFlow was imported or its Keras 3 used."""
    # Read when a name of `tf.keras` is used for the first time. Nothing here works with Keras 3.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    tf: Any = sys.modules.get("tensorflow")
    if not hasattr(tf, "__path__") or stack() == PUBLISHED:
        return
    lazy_loader = importlib.import_module(_PLACES["lazy_loader"])

    spec = importlib.util.find_spec(_KERAS_2)
    assert spec is not None and spec.submodule_search_locations  # requirements.txt has it.
    folder = os.path.join(*spec.submodule_search_locations)
    if folder in tf.__path__:
        return
    tf.__path__.insert(0, folder)  # For `import tensorflow.keras`.
    for name in [n for n in sys.modules if n.partition(".keras")[0] == "tensorflow"]:
        if name.startswith("tensorflow.keras"):
            del sys.modules[name]
    tf.keras = lazy_loader.KerasLazyLoader(vars(tf))
    for name in ("losses", "metrics", "optimizers", "initializers"):
        setattr(tf, name, lazy_loader.KerasLazyLoader(vars(tf), submodule=name, name=name))


# TensorFlow and the formats of its messages.


def flat(function: Any) -> Callable:
    """Returns a concrete function's inner call: flat tensors → list of flat tensors."""
    return getattr(function, "call_flat", function)


def is_about_a_tensors_value(error: Exception) -> bool:
    """Returns whether an error arose from using a symbolic tensor as a number or a variable.

    Keras 2's own layers that do so fail differently on the two stacks.
    """
    # Not the attributes that other code misses.
    return not isinstance(error, AttributeError) or (
        "SymbolicTensor' object has no attribute 'assign" in str(error)
    )


def is_repeated(field: Any) -> bool:
    """Returns whether a field of a protocol message may have several values."""
    if hasattr(field, "is_repeated"):
        return field.is_repeated
    return field.label == field.LABEL_REPEATED  # Until protobuf 6.


# Printed during the import of TensorFlow 2.21, before it reads its level of logging: the heading
# of such lines, lines of information, and the second line of one of them.
_NOISE = (
    "^(WARNING: All log messages before absl::InitializeLog\\(\\) is called are written to STDERR$"
    "|I0000 [0-9:.]+ +[0-9]+ [a-z_]+\\.cc:[0-9]+\\] "
    "|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler)"
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps TensorFlow's information lines off standard error, within a `with` statement.

    It applies only if `TF_CPP_MIN_LOG_LEVEL` requests that; TensorFlow 2.21 prints some lines
    before it reads the variable. All other lines pass.
    """
    wanted = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") in ("", "0")
    if wanted or stack() == PUBLISHED or "tensorflow" in sys.modules:
        yield
        return
    with command_line.errors_without(_NOISE):
        yield


# NumPy.


def numpy_1(module: str) -> str:
    """Returns NumPy 1's name of a module that a pickle names; NumPy 2 writes `numpy._core`."""
    return re.sub(r"^numpy\._core\b", "numpy.core", module)


# TFF and TensorFlow Privacy.


class _Around(importlib.machinery.SourceFileLoader):
    """A loader that loads a package within a context."""

    def __init__(self, name: str, path: str, context: Any):
        super().__init__(name, path)
        self._context = context

    def exec_module(self, module: Any) -> None:
        # Parts that an earlier import left behind, which failed without the context. What stands
        # for a module that is not needed has no spec, and stays.
        for name, part in [*sys.modules.items()]:
            if name.startswith(f"{module.__name__}.") and getattr(part, "__spec__", None):
                del sys.modules[name]
        with self._context(module):
            super().exec_module(module)


class _Finder:
    """Finds the packages that must be loaded within a context."""

    def __init__(self) -> None:
        self.contexts: dict[str, Any] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.contexts:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Around(name, spec.origin, self.contexts[name])
        return spec


_finder = _Finder()


def load_within(name: str, context: Callable[[types.ModuleType], Any]) -> None:
    """Makes every import of a package run within a context, even imports by other packages.

    Args:
      name: The package's name.
      context: Module that is about to be loaded → context manager.
    """
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.contexts[name] = context


@contextlib.contextmanager
def _privacy_without_estimators(package: Any) -> Any:
    """Loads only TensorFlow Privacy's queries if TensorFlow has no estimators.

    Its release 0.9 imports estimators along with everything else, although queries do not need
    them.
    """
    if stack() == PUBLISHED:
        yield
        return
    flags: Any = sys  # Where TensorFlow Privacy looks for it.
    flags.skip_tf_privacy_import = True
    try:
        yield
    finally:
        del flags.skip_tf_privacy_import
    queries = importlib.import_module(f"{package.__name__}.privacy.dp_query")
    for entry in pkgutil.iter_modules(queries.__path__):
        if entry.name.endswith("_test") or entry.name == "test_utils":
            continue
        module = importlib.import_module(f"{queries.__name__}.{entry.name}")
        setattr(package, entry.name, module)
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__:
                setattr(package, name, value)


load_within("tensorflow_privacy", _privacy_without_estimators)
_select_keras_2()
