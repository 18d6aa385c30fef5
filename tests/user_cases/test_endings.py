"""A plain script ends silently, with any part of the suite, imported in any order."""

import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

_REPO = pathlib.Path(__file__).resolve().parents[2]
_TFF = "import tff_algos, tensorflow as tf, tensorflow_federated as tff\n"
_BUILD = """
layers = [tf.keras.layers.Dense(1, input_shape=(2,))]
model = tff_algos.from_keras(tf.keras.Sequential(layers), loss="mse")
tff_algos.build("fedavg", model, client_learning_rate=0.1)
"""
_LOAD = "import tasks\ntask = tasks.load('synthetic')\n"
_PLOT = "from tasks import plot\nassert plot.main(['--task=synthetic', '--output=x.png']) == 0\n"
SCRIPTS = {
    "build": _TFF + _BUILD,
    "load": _TFF + _LOAD,
    "load_first": _LOAD + _TFF.replace("tff_algos, ", ""),
    "plot": _PLOT + "import tensorflow_federated\n",
}


@pytest.mark.quick_cases("build", "load_first")
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_it_ends_in_silence(tmp_path, script):
    path = tmp_path / "script.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(_REPO)!r})\n{script}")
    command = [sys.executable, "-W", "ignore", path]
    with open(tmp_path / "said", "w+") as said:
        code = subprocess.run(command, stdout=said, stderr=said, cwd=tmp_path, timeout=250)
        said.seek(0)
        text = said.read()
    assert code.returncode == 0, text
    assert "Traceback" not in text and "ServiceManager" not in text, text
