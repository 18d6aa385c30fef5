"""What differs between the two stacks, on the one that the tests run on."""

import io
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import sysconfig

import h5py
import pytest

from tff_suite import compat

pytestmark = pytest.mark.slow

_REPO = pathlib.Path(__file__).resolve().parents[2]
_CURRENT = compat.stack() == compat.CURRENT
only_current = pytest.mark.skipif(not _CURRENT, reason="of the current stack")


def _python(*lines, **environment):
    """Runs lines of Python in a process that has imported nothing, from the repository."""
    inherited = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=_REPO,
        env={**inherited, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        capture_output=True,
        text=True,
    )


def _answer(*lines, **environment):
    done = _python(*lines, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_version_of_tensorflow_names_its_stack():
    assert compat.stack_of("2.14.1") == compat.stack_of("2.15.0.post1") == "published"
    assert compat.stack_of("2.16.0") == compat.stack_of("2.21.0") == "current"
    assert compat.stack_of("3.0.0rc1") == "current"


@pytest.mark.quick_cases("tff_algos")
@pytest.mark.parametrize("first", ["tff_algos", "tasks", "simulation", "reproduction"])
def test_tff_and_its_privacy_are_imported_after_the_suite(first):
    said = _answer(
        f"import {first}",
        "import tensorflow_federated as tff",
        "mean = tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(0.5, 100)",
        "import tensorflow_privacy",
        "query = tensorflow_privacy.GaussianSumQuery(1.0, 1.0)",
        "factory = tff.aggregators.DifferentiallyPrivateFactory(query)",
        "print(tff.__version__, type(factory).__name__)",
    )
    assert said == ["0.87.0", "DifferentiallyPrivateFactory"]


def test_the_suites_own_import_is_the_same():
    said = _answer(
        "from tff_suite import imports",
        "imports.import_tensorflow()",
        "import sys, tensorflow_federated as tff",
        "print(tff.__version__, 'jax' in sys.modules, 'keras.models' in sys.modules)",
    )
    assert said[:2] == ["0.87.0", "False"]
    assert not _CURRENT or said[2] == "False", "Keras 3, which takes seconds"


@only_current
def test_tffs_own_import_says_what_has_to_come_first(tmp_path, monkeypatch):
    """As `make venv` leaves it."""
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["bare_import.py"])
    runpy.run_path(str(_REPO / "tools" / "bare_import.py"), run_name="__main__")
    done = _python("import tensorflow_federated", PYTHONPATH=str(tmp_path))
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ImportError: ")
    assert "`import tff_algos` before `import tensorflow_federated`" in last
    # A notebook goes on after it.
    said = _answer(
        "try:",
        "    import tensorflow_federated",
        "except ImportError:",
        "    import tff_algos, tensorflow_federated",
        "print(tff_algos.Model.__name__, tensorflow_federated.__version__)",
        PYTHONPATH=str(tmp_path),
    )
    assert said == ["Model", "0.87.0"]


_BEFORE = {
    "nothing": "",
    "imported": "import tensorflow as tf",
    "used": "import tensorflow as tf; tf.keras.layers.Dense, tf.losses.mse, tf.optimizers.SGD",
    "parts imported": "from tensorflow.keras import layers; from tensorflow import keras",
}


@pytest.mark.quick_cases("used")
@pytest.mark.parametrize("before", [*_BEFORE, "Keras 3 asked for"])
def test_tf_keras_is_keras_2_whatever_was_imported_before(before):
    said = _answer(
        _BEFORE.get(before, ""),
        "import tff_algos",
        "import tensorflow as tf, tensorflow_federated",
        "from tensorflow.keras import layers",
        "import tensorflow.keras.optimizers as optimizers",
        "things = tf.keras.Model, tf.keras.layers.Dense, layers.Dense, optimizers.SGD",
        "things += tf.optimizers.SGD, tf.losses.MeanSquaredError, tf.metrics.Mean",
        "from tff_suite import compat",
        "print(*(compat.is_of_keras(thing) for thing in things))",
        "print(isinstance(tf.keras.Sequential([layers.Dense(1)]), tf.keras.Model))",
        **({} if before in _BEFORE else {"TF_USE_LEGACY_KERAS": "0"}),
    )
    assert said == ["True"] * 8


@only_current
def test_a_model_of_keras_3_is_refused_in_one_line():
    said = _answer(
        "import tensorflow as tf",
        "model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])",
        "import tff_algos",
        "try:",
        "    tff_algos.from_keras(model, loss='mse')",
        "except tff_algos.ModelError as e:",
        "    print(e)",
    )
    assert " ".join(said) == compat.KERAS_3


def test_numpys_modules_have_one_name():
    assert compat.numpy_1("numpy._core.multiarray") == "numpy.core.multiarray"
    for name in ("numpy.core.multiarray", "numpy", "numpy._core_of_others", "mine.numpy._core"):
        assert compat.numpy_1(name) == name


def test_repeated_fields_of_messages_are_known():
    from tensorflow.core.framework import graph_pb2

    fields = graph_pb2.GraphDef.DESCRIPTOR.fields_by_name
    assert compat.is_repeated(fields["node"]) and not compat.is_repeated(fields["library"])


@pytest.mark.parametrize("name", compat._LAYERS)
def test_a_file_of_weights_gets_the_layers_other_name_at_every_depth(name):
    (other,) = set(compat._LAYERS) - {name}
    file = io.BytesIO()
    with h5py.File(file, "w") as weights:
        weights[f"{name}/block/{name}/dense/vars/0"] = [1.0, 2.0]
        weights["vars/0"] = [3.0]
    made = compat.for_both_stacks(file.getvalue())
    with h5py.File(io.BytesIO(made)) as weights:
        for outer in (name, other):
            for inner in (name, other):
                assert list(weights[f"{outer}/block/{inner}/dense/vars/0"]) == [1.0, 2.0]
        assert list(weights["vars"]) == ["0"]
    assert len(made) < 2 * len(file.getvalue()), "links, not copies"
    assert compat.for_both_stacks(b"no file of Keras's") == b"no file of Keras's"


_SIEVED = """
import os, signal, sys
from tff_suite import command_line, compat
command_line.begin()
with command_line.errors_without(compat._NOISE):
    os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to ")
    os.write(2, b"STDERR\\nI0000 00:00:1795715798.687356    9257 port.cc:153] oneDNN is on.\\n")
    os.write(2, b"E0000 00:00:1795715798.687356    9257 cuda_dnn.cc:1] Something is wrong.\\n")
    os.write(2, b"WARNING: All of it is\\nTo enable the following instructions: read\\n")
    print("from Python", file=sys.stderr)
    {ends}
os.write(2, b"I0000 00:00:1795715798.687356    9257 port.cc:153] after\\n")
"""
_KEPT = [
    "E0000 00:00:1795715798.687356    9257 cuda_dnn.cc:1] Something is wrong.",
    "WARNING: All of it is",
    "To enable the following instructions: read",
    "from Python",
]
_ENDS = {
    "itself": ("pass", 0, ["I0000 00:00:1795715798.687356    9257 port.cc:153] after"]),
    "SIGHUP": ("os.kill(0, signal.SIGHUP)", 129, ["error: stopped by SIGHUP."]),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", 143, ["error: stopped by SIGTERM."]),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -9, []),
    "abort": ("os.abort()", -6, []),
    "an error": ("sys.exit('wrong')", 1, ["wrong"]),
}


@pytest.mark.parametrize("end", _ENDS)
def test_only_noise_is_left_out_however_the_process_ends(end):
    ends, code, last = _ENDS[end]
    done = subprocess.run(
        [sys.executable, "-c", _SIEVED.format(ends=ends)],
        cwd=_REPO,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # For the signal to all of its group.
    )
    assert done.returncode == code
    # What a signal's handler writes does not wait for what is still on its way.
    assert sorted(done.stderr.splitlines()) == sorted([*_KEPT, *last])


@pytest.mark.quick_cases("2")
@pytest.mark.parametrize("level", ["2", "0"])
def test_the_import_is_silent_at_a_level_of_logging_only(level):
    done = _python("import tff_algos, tensorflow_federated", TF_CPP_MIN_LOG_LEVEL=level)
    lines = done.stderr.splitlines()
    noise = [line for line in lines if "absl::InitializeLog" in line or line.startswith("I0000")]
    assert done.returncode == 0
    assert bool(noise) == (_CURRENT and level == "0")


@pytest.mark.quick_cases("SIGHUP")
@pytest.mark.parametrize(
    "number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name
)
def test_a_signal_during_the_import_is_reported(number):
    done = _python(
        "import os, sys",
        "from tff_suite import command_line, imports",
        "command_line.begin()",
        "class Sending:",
        "    def find_spec(self, name, path=None, target=None):",
        "        if name == 'tensorflow.python':",
        f"            os.kill(os.getpid(), {int(number)})",
        "sys.meta_path.insert(0, Sending())",
        "imports.import_tensorflow()",
    )
    assert done.returncode == 128 + number
    assert done.stderr.splitlines() == [f"error: stopped by {number.name}."]
