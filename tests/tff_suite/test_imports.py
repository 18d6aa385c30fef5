import importlib.util
import pathlib
import subprocess
import sys

import pytest

from tff_suite import compat

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def run(*lines):
    """Runs lines of Python in a process of its own, after `from tff_suite import imports`."""
    first = "import gc, sys; sys.path.insert(0, sys.argv[1]); from tff_suite import imports"
    code = "\n".join([first, *lines])
    subprocess.run([sys.executable, "-c", code, str(_REPOSITORY)], check=True)


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("collects", [True, False])
def test_imports_stay_out_of_garbage_collection_which_goes_on(collects):
    run(
        "" if collects else "gc.disable()",
        "imports.import_tensorflow()",
        "assert {'tensorflow', 'tensorflow_federated'} <= set(sys.modules)",
        f"assert gc.isenabled() is {collects}",
        "frozen = gc.get_freeze_count()",
        "assert frozen > 100_000, frozen",
        # A second run in the same process must not keep the first one's leavings for good.
        "left = [[] for _ in range(1000)]",
        "imports.import_tensorflow()",
        "assert gc.get_freeze_count() == frozen",
    )


@pytest.mark.slow
def test_what_is_not_used_is_imported_when_it_is():
    run(
        "imports.import_tensorflow()",
        "absent = {'jax', 'pandas', 'tensorflow_privacy', 'dp_accounting', 'vizier'}",
        "assert not absent & set(sys.modules), absent & set(sys.modules)",
        "import numpy as np, tensorflow as tf, tensorflow_federated as tff",
        # Differential privacy.
        "factory = tff.aggregators.DifferentiallyPrivateFactory",
        "mean = factory.gaussian_adaptive(0.5, 100).create(tff.TensorType(np.float32))",
        "import tensorflow_privacy",
        "query = tensorflow_privacy.GaussianSumQuery(1.0, 1.0)",
        "assert isinstance(factory(query), factory)",
        *(_JAX if importlib.util.find_spec("jax") else ()),
        # Data frames.
        "model = tf.keras.Sequential([tf.keras.layers.Dense(1)])",
        "import pandas",
        "assert model.predict(pandas.DataFrame(np.ones((4, 2))), verbose=0).shape == (4, 1)",
    )


# The published stack has JAX; today's does without.
_JAX = (
    "import jax",
    "add = tff.jax.computation(np.int32)(lambda x: jax.numpy.add(x, np.int32(10)))",
    "assert str(add.type_signature) == '(int32 -> int32)'",
)


@pytest.mark.slow
def test_what_was_imported_before_stays():
    keras = "keras" if compat.stack() == compat.PUBLISHED else "tf_keras"
    run(
        "import pandas as before",
        "imports.import_tensorflow()",
        "import pandas",
        f"from {keras}.src.engine import data_adapter",
        "assert data_adapter.pd is pandas is before",
    )
