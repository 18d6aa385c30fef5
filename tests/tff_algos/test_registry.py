"""A file in the folder of methods is a method, whole, and known without TensorFlow."""

import importlib
import pathlib
import subprocess
import sys

import pytest

import tff_algos
from tests import copy_of_suite
from tff_algos import registry

_REPO = pathlib.Path(__file__).resolve().parents[2]
_METHOD = '''"""Federated averaging with another name."""

from __future__ import annotations

import tensorflow as tf

from tff_suite.hparams import Hparam
from tff_algos import averaging, client
from tff_algos.registry import MethodSpec

SPEC = MethodSpec(
    name="dropped_in",
    summary="Federated averaging of updates times a factor.",
    paper="none",
    hparams=(Hparam("factor", 0.5, "What updates are multiplied by.", source="choice"),),
    server_learning_rate=1.0,
)


def build(model, local, *, factor):
    def client_update(broadcast, data):
        x, eta_l = broadcast
        trained = client.train(model, local.optimizer(), eta_l, x, data)
        return averaging.ClientResult(trained, tf.constant(factor) * (trained.weights - x))

    return averaging.build(model, local, client_update)
'''


@pytest.fixture
def folder(tmp_path):
    return copy_of_suite.make(tmp_path)


def test_a_file_in_the_folder_is_a_method(folder):
    (folder / "tff_algos" / "methods" / "dropped_in.py").write_text(_METHOD)
    told = copy_of_suite.run(folder, "--algorithm=dropped_in", "--help")
    assert told.returncode == 0 and "--dropped_in_factor=<float>" in told.stdout, told.stderr
    done = copy_of_suite.run(
        folder,
        "--task=synthetic",
        "--algorithm=dropped_in",
        "--dropped_in_factor=0.25",
        "--total_rounds=1",
        "--clients_per_round=2",
        "--client_batch_size=10",
        "--client_learning_rate=0.1",
    )
    assert done.returncode == 0, done.stderr


def test_a_method_that_uses_tensorflow_while_it_is_imported_is_refused(folder):
    careless = _METHOD.replace("SPEC =", "RATE = tf.constant(1.0)\n\nSPEC =")
    (folder / "tff_algos" / "methods" / "dropped_in.py").write_text(careless)
    told = copy_of_suite.run(folder, "--help")
    assert told.returncode == 1 and "tensorflow.constant is used while" in told.stderr


def test_every_method_has_a_display_name_and_its_docstring_uses_it():
    shown = {}
    for name in tff_algos.names():
        spec = tff_algos.get(name)
        if not str(spec.builder).startswith("tff_algos.methods."):
            continue
        module = importlib.import_module(spec.builder.split(":")[0])
        assert spec.display_name in module.__doc__, name
        assert spec.display_name != name and spec.look, f"{name} declares neither of its own"
        shown[name] = spec.display_name
    assert len(set(shown.values())) == len(shown) > 40


def test_a_method_without_a_display_name_is_shown_by_its_name():
    assert registry.MethodSpec(name="of_mine", summary="", paper="").display_name == "of_mine"


def test_a_look_of_unknown_names_is_refused():
    with pytest.raises(ValueError, match=r"of_mine: look=.* must name one of black"):
        registry.MethodSpec(name="of_mine", summary="", paper="", look=("teal", "solid"))


_PARSE = """
import sys
from simulation import experiment_flags
experiment_flags.parse(['--task=synthetic', '--algorithm=fedprox', '--total_rounds=1',
    '--clients_per_round=2', '--client_batch_size=4', '--client_learning_rate=0.1'])
from tff_algos.methods import scaffold
loaded = {'tensorflow', 'tensorflow_federated'} & set(sys.modules)
assert not loaded, loaded
"""
_USE = """
import pickle, tensorflow as tf, tensorflow_federated as tff
assert scaffold.tf.Tensor is tf.Tensor
assert pickle.loads(pickle.dumps(scaffold.tf)) is tf
"""


@pytest.mark.quick_cases("parsed")
@pytest.mark.parametrize("code", [_PARSE, _PARSE + _USE], ids=["parsed", "used"])
def test_a_command_line_is_parsed_without_tensorflow(code):
    done = subprocess.run([sys.executable, "-c", code], cwd=_REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
