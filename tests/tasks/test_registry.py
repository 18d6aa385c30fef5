"""What every registered task must fulfil; tasks registered later are held to it too."""

import functools
import json
import re
import subprocess
import sys

import numpy as np
import pytest

import tasks
from tests import copy_of_suite
from tff_suite import hparams

# The tasks of the suite: tests of other files register tasks of their own.
OWN = [n for n in tasks.names() if str(tasks.get(n).loader).startswith("tasks.datasets.")]
_each_task = pytest.mark.parametrize("name", OWN)
# Of the tasks whose model is a ResNet, `cifar100_image` stands for all where that is what matters,
# and none where a small model is as good.
LIKE_CIFAR100 = ("cifar10_image", "cinic10", "clothing1m", "tiny_imagenet")
RESNETS = ("cifar100_image", *LIKE_CIFAR100)
_small = pytest.mark.quick_cases(*(name for name in OWN if name not in RESNETS))


@pytest.fixture(scope="module")
def load():
    loaded = {}

    def cached(name):
        if name not in loaded:
            loaded[name] = tasks.load(name, seed=3, use_synthetic_data=True)
        return loaded[name]

    return cached


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fashion_mnist", {"partition": "class", "classes": "shirt,coat"}),
        ("stackexchange", {"kind": "word"}),
    ],
)
def test_settings_tell_the_metrics(name, settings):
    """Those of the defaults are checked where every task is run."""
    task = tasks.load(name, use_synthetic_data=True, seed=0, **settings)
    primary, *others = tasks.get(name).metrics_with(task.settings)
    assert primary == task.primary_metric and {primary, *others} == task.metrics.keys()
    assert len(others) == 2


@_each_task
def test_a_task_declares_the_files_that_it_reads(name):
    """One entry fits whatever is set; the others name settings of the task, and values of these."""
    spec = tasks.get(name)
    assert bool(spec.data) == (spec.needs_data and name != "table")  # Whose file a setting names.
    if spec.data:
        assert spec.data_with({}) is spec.data[-1]
        assert not spec.data[-1].when and not spec.data[-1].stand_in
    declared = {h.name: h for h in spec.hparams}
    for files in spec.data:
        assert files.files and files.examples > 0
        for setting, values in files.when.items():
            for value in values:
                assert declared[setting].check(value, setting) == value
                chosen = spec.data_with({setting: value})
                assert chosen is files or chosen.when.keys() != files.when.keys()


# What takes time to import, and what it takes with it.
_SLOW = (
    "tensorflow",
    "tensorflow_federated",
    "keras",
    "h5py",
    "jax",
    "pandas",
    "scipy",
    "PIL",
    "tqdm",
)

_TASK = '''"""Numbers, and their products with a factor."""

from __future__ import annotations

import numpy as np

from tff_suite.hparams import Hparam
from tasks.models import losses, models
from tasks.registry import TaskSpec
from tasks.task import ArrayFederatedData, Task

SPEC = TaskSpec(
    name="dropped_in",
    summary="Numbers and their products with a factor.",
    needs_data=False,
    hparams=(Hparam("factor", 2.0, "What numbers are multiplied by.", source="choice"),),
)


def load(*, data_dir, seed, use_synthetic_data, factor):
    x = np.linspace(0, 1, 20, dtype=np.float32)[:, None]
    return Task(
        name="dropped_in",
        train=ArrayFederatedData(x, factor * x, np.split(np.arange(20), 4)),
        test=None,
        central_test=None,
        keras_model_fn=lambda seed: models.mlp(seed, input_shape=(1,), num_classes=1),
        loss=losses.squared_error,
        metrics={"mse": losses.squared_error},
        primary_metric="mse",
    )
'''


@pytest.fixture
def folder(tmp_path):
    return copy_of_suite.make(tmp_path)


@pytest.mark.slow
def test_a_file_in_the_folder_is_a_task(folder):
    (folder / "tasks" / "datasets" / "dropped_in.py").write_text(_TASK)
    told = copy_of_suite.run(folder, "--task=dropped_in", "--help")
    assert told.returncode == 0 and "--dropped_in_factor=<float>" in told.stdout, told.stderr
    done = copy_of_suite.run(
        folder,
        "--task=dropped_in",
        "--dropped_in_factor=3",
        "--algorithm=fedavg",
        "--total_rounds=1",
        "--clients_per_round=2",
        "--client_batch_size=10",
        "--client_learning_rate=0.1",
    )
    assert done.returncode == 0, done.stderr
    (recorded,) = folder.rglob("hparams.json")
    assert json.loads(recorded.read_text())["task_settings"] == {"factor": 3.0}


def test_a_data_set_that_uses_tensorflow_while_it_is_imported_is_refused(folder):
    careless = _TASK.replace("SPEC =", "import tensorflow as tf\nBASE = tf.keras.Model\n\nSPEC =")
    (folder / "tasks" / "datasets" / "dropped_in.py").write_text(careless)
    told = copy_of_suite.run(folder, "--help")
    assert told.returncode == 1 and "tensorflow.keras is used while" in told.stderr


def test_every_file_of_the_folder_is_imported_without_what_is_slow():
    code = (
        "import pkgutil, sys, tasks\n"
        "from tasks import datasets\n"
        "files = {f'tasks.datasets.{f.name}' for f in pkgutil.iter_modules(datasets.__path__)}\n"
        "assert files <= set(sys.modules) and len(files) > 10\n"
        f"slow = set({_SLOW}) & set(sys.modules)\n"
        "assert not slow, slow\n"
        "import pickle\n"
        "from tasks.models import models\n"
        "assert models.tf.keras.Model.__name__ == 'Model'\n"
        "import tensorflow as tf\n"
        "assert pickle.loads(pickle.dumps(models.tf)) is tf\n"
        "task = tasks.load('fashion_mnist', use_synthetic_data=True)\n"
        "again = pickle.loads(pickle.dumps(task.keras_model_fn))\n"
        "assert again(0).count_params() == 199_210\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _conditional(spec):
    """Yields each setting whose default depends on another, and that one's values."""
    declared = {h.name: h for h in spec.hparams}
    for setting in spec.hparams:
        if isinstance(setting.default, hparams.By):
            yield setting, declared[setting.default.setting].choices or (0.0, 0.5)


def _says_what_is_without(setting):
    return re.search("[dD]efault|[rR]equired|[nN]eeded|[oO]ptional", setting.help)


@_each_task
def test_defaults_are_in_range_and_explained(name):
    spec = tasks.get(name)
    hparams.resolve(name, spec.hparams, {})
    assert spec.summary
    for setting in spec.hparams:
        assert setting.help and setting.source
        # What depends on another setting is data, not words.
        assert not re.search("[oO]nly with |[nN]ot with |not set means", setting.help)
        if setting.default is None:
            assert _says_what_is_without(setting)
    for setting, values in _conditional(spec):
        assert set(setting.default.cases) <= set(values)
        for value in values:
            resolved = spec.resolve({setting.default.setting: value})
            unset = setting.is_used(resolved) and resolved[setting.name] is None
            # What `auto` stands for only the data tell.
            assert not unset or value == "auto" or _says_what_is_without(setting)


@_each_task
def test_none_is_a_setting_that_is_not_given(name):
    spec = tasks.get(name)
    assert spec.resolve({setting.name: None for setting in spec.hparams}) == spec.resolve({})


@_each_task
def test_settings_that_do_not_apply_are_refused_before_anything_is_loaded(name):
    spec = tasks.get(name)
    for setting, values in _conditional(spec):
        given = {int: setting.minimum, float: 0.5, str: "x", bool: True}[setting.type]
        given = setting.choices[0] if setting.choices else given
        other = setting.default.setting
        for value in values:
            if setting.default.of(value) is hparams.NOT_USED:
                with pytest.raises(hparams.HparamError) as error:
                    spec.resolve({other: value, setting.name: given})
                assert f"{setting.name} is not used with {other}={value}" in str(error.value)


def test_what_auto_stands_for_settles_what_depends_on_it():
    spec = tasks.get("cifar100_image")
    settings = spec.resolve({"alpha": 0.5})
    assert settings["num_clients"] is None and settings["beta"] is None
    settled = spec.settled(settings, partition="pachinko")
    wanted = {"num_clients": 500, "alpha": 0.5, "beta": 10.0, "size_sigma": 0.0, "min_share": None}
    assert {name: settled[name] for name in wanted} == wanted
    with pytest.raises(hparams.HparamError, match="alpha is not used with partition=tff"):
        spec.settled(settings, partition="tff")
    tff = spec.settled(spec.resolve({}), partition="tff")
    assert {tff[name] for name in wanted} == {None}


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("fashion_mnist", {"partition": "class", "classes": "coat,hat"}, "not one of t_shirt"),
        ("fashion_mnist", {"partition": "class", "classes": "coat,coat"}, "names a class twice"),
        ("femnist", {"partition": "skewed", "split": "source"}, "needs split=local"),
        ("shakespeare_character", {"source": "tff", "roles": "leaf"}, "use source=text"),
        ("cifar10_image", {"central_test": "validation"}, "needs num_validation"),
        ("cifar10_image", {"crop": 33}, "more than 32 pixels"),
        ("cifar10_image", {"crop": 31, "model": "vgg11"}, "at least 32 pixels"),
        ("cifar10_image", {"groups": 3}, "must divide 64"),
        ("cifar100_image", {"partition": "tff", "client_tests": "split"}, "partition=tff"),
    ],
)
def test_settings_that_do_not_go_together(name, settings, words):
    with pytest.raises(hparams.HparamError, match=words):
        tasks.get(name).resolve(settings)


# Whose number of clients only the data tell, unless a setting says it.
_UNKNOWN_WITHOUT_DATA = ("femnist", "sent140")
_NEVER_KNOWN = ("sent140", "table")


@_each_task
def test_clients_that_are_known_without_data_are_those_of_the_data(name, load):
    spec = tasks.get(name)
    known = spec.clients and spec.clients(spec.resolve({}), True)
    if name in _NEVER_KNOWN:
        assert known is None
        return
    ids = load(name).train.client_ids
    assert known.number == len(ids)
    if known.ids is not None:
        assert all(i in known.ids for i in ids) and known.ids[0] == ids[0]
        assert str(len(ids)) not in known.ids and "00" not in known.ids and "" not in known.ids
    of_real_data = spec.clients(spec.resolve({}), False)
    assert (of_real_data is None) == (name in _UNKNOWN_WITHOUT_DATA)


def test_unknown_names_are_refused():
    with pytest.raises(hparams.HparamError, match="synthetics"):
        tasks.load("synthetics")
    with pytest.raises(hparams.HparamError, match="gamma"):
        tasks.load("synthetic", gamma=1)


@pytest.fixture(scope="module")
def model(load):
    return functools.cache(lambda name: load(name).keras_model_fn(1))


@_each_task
def test_federated_data_keep_their_word(name, load):
    task = load(name)
    assert task.name == name
    for data in (task.train, task.test):
        if data is None:
            continue
        assert data.sizes.dtype == np.int64 and data.sizes.shape == (len(data.client_ids),)
        assert len(set(data.client_ids)) == len(data.client_ids)
        assert all(isinstance(i, str) for i in data.client_ids)
        for k in range(min(5, len(data.client_ids))):
            first, again = data.examples(k), data.examples(k)
            assert len(first.x) == len(first.y) == data.sizes[k]
            np.testing.assert_array_equal(first.x, again.x)
            np.testing.assert_array_equal(first.y, again.y)
    assert task.train.sizes.min() >= 1


@_small
@_each_task
def test_model_loss_and_metrics_fit_the_data(name, load, model):
    task = load(name)
    assert task.primary_metric in task.metrics
    x, y = task.train.examples(0)
    prediction = model(name)(x)
    for function in (task.loss, *task.metrics.values()):
        values = function(y, prediction)
        for part in values if isinstance(values, tuple) else (values,):
            part = np.asarray(part)
            assert part.shape[0] == len(y) and np.isfinite(part).all()
    if task.central_test is not None:
        assert task.central_test.x.dtype == x.dtype and task.central_test.y.dtype == y.dtype
        assert task.central_test.x.shape[1:] == x.shape[1:]


@_each_task
def test_settings_in_force_are_recorded(name, load):
    spec, settings = tasks.get(name), load(name).settings
    assert set(settings) == {h.name for h in spec.hparams}
    if "partition_seed" in settings and name != "emnist_autoencoder":
        assert settings["partition_seed"] == 3, "the run's seed"
    for setting in spec.hparams:
        # What may still be open: all clients, the default file, no limit, no weights.
        assert (
            settings[setting.name] is not None
            or not setting.is_used(settings)
            or _says_what_is_without(setting)
        ), setting.name


@_small
@_each_task
def test_synthetic_data_do_not_change(name, load, model):
    again = tasks.load(name, seed=3, use_synthetic_data=True)
    np.testing.assert_array_equal(load(name).train.examples(1).x, again.train.examples(1).x)
    np.testing.assert_array_equal(load(name).train.sizes, again.train.sizes)
    for a, b in zip(
        model(name).get_weights(),
        again.keras_model_fn(1).get_weights(),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["emnist_character", "fashion_mnist", "mnist_writers"])
def test_synthetic_data_have_the_true_shapes(name, load):
    x, y = load(name).train.examples(0)
    assert x.shape[1:] == (28, 28, 1) and x.dtype == np.float32 and y.dtype == np.int32
    assert x.min() >= 0 and x.max() <= 1
    background_is_one = x.mean() > 0.5
    assert background_is_one == (name != "fashion_mnist")


@pytest.mark.parametrize(("name", "init"), [("synthetic", "torch"), ("fashion_mnist", "torch")])
def test_pytorch_papers_start_with_biases(name, init, load):
    assert load(name).settings["init"] == init
    assert load(name).keras_model_fn(0).get_weights()[1].all()
    keras = tasks.load(name, use_synthetic_data=True, init="keras").keras_model_fn(0)
    assert not keras.get_weights()[1].any()


@pytest.mark.parametrize("name", ["emnist_character", "mnist_writers"])
def test_tff_papers_start_as_keras_does(name, load):
    assert load(name).settings["init"] == "keras"
    assert not load(name).keras_model_fn(0).get_weights()[1].any()
