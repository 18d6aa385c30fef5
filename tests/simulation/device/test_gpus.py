"""How a run uses a GPU, with TensorFlow's settings of GPUs in place of any."""

import csv
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import run_experiment
import tasks
from simulation import run_hparams, runtimes, task_models
from simulation.errors import RunError

_REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs as TensorFlow's settings show them; yields what is set of each."""
    names = [f"/physical_device:GPU:{i}" for i in range(2)]
    devices = [tf.config.PhysicalDevice(name, "GPU") for name in names]
    settings = {"growth": [], "limits": {}, "deterministic": False}

    def limit(gpu, configurations):
        if settings.get("started"):
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        settings["limits"][gpu] = configurations

    def grow(gpu, enable):
        if settings.get("started"):
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        if gpu in settings["limits"]:
            raise ValueError("Cannot set memory growth on device when virtual devices configured")
        settings["growth"].append((gpu, enable))

    config = tf.config
    monkeypatch.setattr(config, "list_physical_devices", lambda kind=None: devices)
    monkeypatch.setattr(config, "set_logical_device_configuration", limit)
    monkeypatch.setattr(config, "get_logical_device_configuration", settings["limits"].get)
    monkeypatch.setattr(config.experimental, "set_memory_growth", grow)
    monkeypatch.setattr(
        config.experimental,
        "enable_op_determinism",
        lambda: settings.update(deterministic=True),
    )
    return devices, settings


def test_a_gpus_memory_grows_unless_a_limit_is_asked_for(gpus):
    devices, settings = gpus
    runtimes.configure_gpus(None, False)
    assert settings == {
        "growth": [(gpu, True) for gpu in devices],
        "limits": {},
        "deterministic": False,
    }
    settings["growth"].clear()
    runtimes.configure_gpus(2048, True)
    assert settings["growth"] == [] and settings["deterministic"]
    assert {gpu: [c.memory_limit for c in cs] for gpu, cs in settings["limits"].items()} == {
        gpu: [2048] for gpu in devices
    }


def test_a_limit_that_comes_too_late_is_refused_and_one_in_force_is_not(gpus):
    _, settings = gpus
    runtimes.configure_gpus(2048, False)
    settings["started"] = True
    runtimes.configure_gpus(2048, False)
    runtimes.configure_gpus(None, False)
    with pytest.raises(RunError, match=r"^--gpu_memory_mb=1024 cannot take effect: .*[.]$"):
        runtimes.configure_gpus(1024, False)


@pytest.mark.parametrize(
    ("asked", "flag"), [((512, False), "gpu_memory_mb"), ((None, True), "deterministic_ops")]
)
def test_what_is_for_a_gpu_is_refused_without_one(monkeypatch, asked, flag):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
    with pytest.raises(RunError, match=f"^--{flag} is for a GPU, and TensorFlow finds none here.$"):
        runtimes.configure_gpus(*asked)
    runtimes.configure_gpus(None, False)


@pytest.mark.long
def test_a_run_uses_no_operation_that_determinism_refuses_on_a_cpu(tmp_path):
    """Such as draws of a generator without a seed; what only a GPU refuses, a GPU must tell."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import run_experiment\nfrom simulation import runtimes\n"
        "def on_a_cpu(memory_mb, deterministic):\n"
        "    import tensorflow as tf\n"
        "    assert deterministic and not tf.config.list_logical_devices('GPU')\n"
        "    tf.config.experimental.enable_op_determinism()\n"
        "runtimes.configure_gpus = on_a_cpu\n"
        "sys.exit(run_experiment.main(sys.argv[2:]))"
    )
    flags = (
        "--task=emnist_character --use_synthetic_data --algorithm=fedadam --total_rounds=1 "
        "--clients_per_round=2 --client_batch_size=4 --max_elements_per_client=8 "
        "--client_learning_rate=0.01 --server_learning_rate=0.01 --num_validation_examples=8 "
        "--deterministic_ops --experiment_name=run"
    ).split()
    arguments = [str(_REPOSITORY), *flags, f"--root_output_dir={tmp_path}"]
    without_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, env=without_gpu)
    recorded = json.loads((tmp_path / "run" / "hparams.json").read_text())["flags"]
    assert recorded["deterministic_ops"] is True and recorded["gpu_memory_mb"] is None
    with open(tmp_path / "run" / "metrics.csv", newline="") as file:
        before, after = csv.DictReader(file)
    assert before["eval/loss"] != after["eval/loss"] and float(after["train/loss"]) < 10


@pytest.mark.long
def test_a_run_whose_layers_compute_in_16_bits(tmp_path):
    def run(name, rounds, *flags):
        command = "--task=synthetic --algorithm=fedadam --clients_per_round=2 --client_batch_size=4"
        command += " --client_learning_rate=0.1 --server_learning_rate=0.1 --seed=3"
        command += f" --total_rounds={rounds} --root_output_dir={tmp_path} --experiment_name={name}"
        assert run_experiment.main([*command.split(), *flags]) == 0
        with open(tmp_path / name / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        return [(row["train/loss"], row["eval/loss"]) for row in rows]

    flags = "--precision=mixed_float16", "--loss_scale=512"
    whole, plain = run("whole", 3, *flags), run("plain", 3)
    run("parts", 2, *flags)
    assert run("parts", 3, *flags) == whole != plain
    losses = np.array([[row[-1][1] for row in (whole, plain)]], np.float64)
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=1e-2)
    recorded = json.loads((tmp_path / "whole" / "hparams.json").read_text())["flags"]
    assert (recorded["precision"], recorded["loss_scale"]) == ("mixed_float16", 512)


def test_a_model_that_was_made_beforehand_keeps_its_precision():
    task = tasks.load("synthetic")
    made = task.keras_model_fn(0)
    task = dataclasses.replace(task, keras_model_fn=lambda seed: made)
    settings = {"seed": 0, "precision": "mixed_float16", "loss_scale": 1024.0}
    with pytest.raises(RunError, match="layers compute in float32, so --precision=mixed_float16"):
        task_models.build(task, settings)
    task_models.build(task, {**settings, "precision": "float32", "loss_scale": None})


def test_flags_for_a_gpu_end_a_run_without_one_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
    flags = "--task=synthetic --algorithm=fedavg --total_rounds=1 --clients_per_round=1".split()
    flags += ["--client_batch_size=1", "--client_learning_rate=1", f"--root_output_dir={tmp_path}"]
    for flag in ("--gpu_memory_mb=512", "--deterministic_ops"):
        assert run_experiment.main([*flags, flag]) == 1
        name = flag.split("=")[0]
        expected = f"error: {name} is for a GPU, and TensorFlow finds none here.\n"
        assert capsys.readouterr().err == expected
        assert not list(tmp_path.glob("*/hparams.json"))


def test_a_resumed_run_may_not_change_what_bits_may_depend_on():
    """cuDNN chooses among its algorithms by the memory that they may take."""
    assert not {"gpu_memory_mb", "deterministic_ops"} & run_hparams.MAY_CHANGE
