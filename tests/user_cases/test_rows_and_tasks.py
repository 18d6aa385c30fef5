"""Data and tasks made in Python that cannot be right are refused when they are made."""

import dataclasses
import functools
import pathlib
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import simulation
from tasks import partitions
from tasks.task import ArrayFederatedData, DataError, Examples, Task

pytestmark = pytest.mark.slow

REPO = pathlib.Path(__file__).resolve().parents[2]
X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6, dtype=np.int32) % 2
ROWS = [[0, 1], [2, 3, 4, 5]]


def model(seed):
    kernel = tf.keras.initializers.GlorotUniform(seed)
    return tf.keras.Sequential(
        [tf.keras.layers.Dense(2, input_shape=(2,), kernel_initializer=kernel)]
    )


def cross_entropy(y, z):
    return tf.keras.losses.sparse_categorical_crossentropy(y, z, from_logits=True)


def task(**changes):
    fields = {
        "name": "mine",
        "train": ArrayFederatedData(X, Y, ROWS, ["a", "b"]),
        "test": None,
        "central_test": Examples(X, Y),
        "keras_model_fn": model,
        "loss": cross_entropy,
        "metrics": {"accuracy": tf.keras.metrics.sparse_categorical_accuracy},
        "primary_metric": "accuracy",
    }
    return Task(**(fields | changes))


@pytest.mark.parametrize(
    ("x", "y", "rows", "says"),
    [
        (X, Y, [[0, 1], [2, -1]], "client '1' must be from 0 to 5, .* found -1"),
        (X, Y, [[0, 6], [2]], "client '0' must be from 0 to 5, .* found 6"),
        (X, Y, [[], [2**63]], "from 0 to 5"),
        (X, Y, [np.array([2**64 - 1], np.uint64)], "from 0 to 5"),
        (X, Y[:4], ROWS, "x has 6 rows but y has 4"),
        (X.tolist(), Y[:4].tolist(), ROWS, "x has 6 rows but y has 4"),
        (tf.constant(X), tf.constant(Y[:4]), ROWS, "x has 6 rows but y has 4"),
        (X, Y, [[True, False]], "found bool; of a mask, give numpy.flatnonzero"),
        (X, Y, [[0.0, 1.0]], "whole numbers, found float64"),
        (X, Y, [["0"]], "whole numbers, found <U1"),
        (X, Y, [[[0, 1], [2, 3]]], r"a flat list, found shape \[2, 2\]"),
        (X, Y, [0, 1], "a flat list, found one number"),
        (X, Y, {"a": [0]}, "found a dictionary; give list"),
        (3.0, Y, ROWS, "must be arrays"),
    ],
)
def test_rows_that_cannot_be_right(x, y, rows, says):
    with pytest.raises(ValueError, match=says) as error:
        ArrayFederatedData(x, y, rows)
    assert "\n" not in str(error.value) and isinstance(error.value, DataError)


def test_rows_are_found_among_many_clients():
    rows = [[0]] * 9000 + [[7]]
    with pytest.raises(ValueError, match=r"client '9000' .* found 7"):
        ArrayFederatedData(X, Y, rows)


@pytest.mark.parametrize(
    "make",
    [np.asarray, tf.constant, list, pd.DataFrame],
    ids=["numpy", "tensor", "list", "frame"],
)
def test_rows_of_all_kinds_of_tables(make):
    data = ArrayFederatedData(make(X), Y, [range(2), (), np.array([5, 5], np.uint8)])
    assert data.sizes.tolist() == [2, 0, 2]
    # A row that a client has twice counts twice.
    assert np.array_equal(data.examples(2).x, X[[5, 5]])


def test_a_memory_map_stays_one(tmp_path):
    np.save(tmp_path / "x.npy", X)
    data = ArrayFederatedData(np.load(tmp_path / "x.npy", mmap_mode="r"), Y, ROWS)
    assert data.files == (str(tmp_path / "x.npy"),)


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT, np.float32("nan"), b"a"])
def test_a_client_without_a_name(missing):
    with pytest.raises(ValueError, match="client_ids must be text or numbers; client 1 has"):
        ArrayFederatedData(X, Y, ROWS, ["a", missing])


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT])
@pytest.mark.parametrize("make", [list, np.array, pd.Series, pd.Categorical])
def test_a_user_that_is_missing(missing, make):
    users = make(np.array(["u", missing, "u"], object))
    with pytest.raises(ValueError, match="1 of 3 rows have no user, the first in row 1"):
        partitions.by_user(users)


@pytest.mark.parametrize(
    ("users", "found"),
    [
        (["b", "a", "b"], {"a": [1], "b": [0, 2]}),
        (np.array([10, 9, 10]), {"9": [1], "10": [0, 2]}),
        (["10", "9", "-1.5"], {"-1.5": [2], "9": [1], "10": [0]}),
        (["10", "9", "1e1"], {"10": [0], "1e1": [2], "9": [1]}),
        (pd.Series(["NA", "nan", "NA"], index=[5, 5, 7]), {"NA": [0, 2], "nan": [1]}),
        (np.array(["é", "", "é"]), {"": [1], "é": [0, 2]}),
    ],
)
def test_rows_by_user(users, found):
    rows = partitions.by_user(users)
    assert list(rows) == list(found)
    assert {name: of_user.tolist() for name, of_user in rows.items()} == found
    data = ArrayFederatedData(X[:3], Y[:3], list(rows.values()), list(rows))
    assert list(data.client_ids) == list(found)


@pytest.mark.parametrize("users", [[1, "1"], [[1], [2]], np.array([[1], [2]])], ids=str)
def test_users_that_cannot_be_told_apart(users):
    with pytest.raises(ValueError, match="users must be"):
        partitions.by_user(users)


def test_examples_are_a_pair_that_is_checked():
    x, y = examples = Examples(X, Y)
    assert x is X and y is Y and examples._replace(y=Y).y is Y
    assert type(pickle.loads(pickle.dumps(examples))) is Examples
    for make in (lambda: Examples(X, Y[:2]), lambda: examples._replace(y=Y[:2])):
        with pytest.raises(ValueError, match="x has 6 rows but y has 2"):
            make()
    tensors = tf.nest.map_structure(tf.constant, examples)
    assert isinstance(tensors, Examples)
    # Shapes and the like are no arrays.
    assert tf.nest.map_structure(lambda a: a.dtype, tensors) == (tf.float32, tf.int32)
    assert Examples(x=X.shape, y=Y.shape).y == (6,)


class Federated:
    """Data of a user's own class."""

    def __init__(self, ids, sizes, x=X, y=Y):
        self.client_ids, self.sizes, self._x, self._y = ids, sizes, x, y

    def examples(self, index):
        return Examples(self._x[: self.sizes[index]], self._y[: self.sizes[index]])


class OneNumber(tf.keras.losses.Loss):
    """A loss of a user's own class."""

    def call(self, y, z):
        return tf.reduce_mean(cross_entropy(y, z))


WIDE = np.zeros((6, 3), np.float32)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train": [1]}, "train must be federated data, found a list"),
        ({"train": ArrayFederatedData(X, Y, [[], []])}, "no client of train has an example"),
        ({"train": Federated(["a"], np.array([], int))}, "1 client_ids of 0 clients"),
        ({"train": Federated(["a", 1], np.array([1, 1]))}, "must be text, found a int"),
        ({"test": Federated(["a", "a"], np.array([1, 1]))}, "two clients of test have the id 'a'"),
        ({"train": Federated(["a"], np.array([-1]))}, "sizes of train must be whole numbers"),
        ({"train": Federated(["a"], np.array([0.5]))}, "sizes of train must be whole numbers"),
        ({"train": Federated(["a"], np.array([7]))}, "client 'a' of train has 6 inputs, but .* 7"),
        ({"train": Federated(["a\0"], np.array([1]))}, "zero byte"),
        ({"train": Federated(["\ud800"], np.array([1]))}, "an unpaired surrogate"),
        ({"test": Federated(["a"], np.array([2]), WIDE)}, r"inputs of test .* \[None, 3\]"),
        (
            {"test": Federated(["a"], np.array([2]), X, np.stack([Y, Y], 1))},
            r"targets of test .* \[None, 2",
        ),
        ({"test": Federated(["a"], np.array([2]), X, Y + 0.5)}, "targets of test are float64"),
        ({"central_test": Examples(WIDE, Y)}, "inputs of central_test have shape"),
        ({"central_test": Examples(X, np.stack([Y, Y], 1))}, "targets of central_test have shape"),
        ({"central_test": Examples(X, Y + 0.5)}, "targets of central_test are float64"),
        ({"central_test": (X, Y)}, "central_test must be .* found a tuple"),
        (
            {"keras_model_fn": model(0)},
            "the model must be a function .* found a Sequential; write lambda seed",
        ),
        ({"keras_model_fn": 3}, "the model must be a function .* found a int"),
        ({"keras_model_fn": lambda: model(0)}, "the model function must take a seed"),
        ({"loss": OneNumber()}, "The loss gives one number for the whole batch"),
        ({"loss": None}, "loss must be one function .* found a NoneType"),
        ({"loss": ["mse"]}, "loss must be one function .* found a list"),
        ({"loss": {"out": "mse"}}, "loss must be one function .* found a dict"),
        ({"loss_reduction": "none"}, "loss_reduction must be mean or sum"),
        ({"metrics": ["accuracy"]}, "metrics must be a dictionary by name, found a list"),
        ({"metrics": {"accuracy": 3}}, "metrics: accuracy must be a function .* found a int"),
        ({"metrics": {3: "mse"}, "primary_metric": 3}, "metrics: 3 cannot be the name"),
        ({"metrics": {"client_id": "mse"}}, "'client_id' cannot be the name"),
        ({"primary_metric": "acc"}, "'acc' is not one of its metrics: accuracy"),
        ({"metrics": {}}, "'accuracy' is not one of its metrics: it has none"),
        ({"primary_metric": "loss", "higher_is_better": True}, "set higher_is_better=False"),
        ({"higher_is_better": "yes"}, "higher_is_better must be True or False"),
        ({"name": ""}, "name must be text"),
        ({"settings": [1]}, "settings must be a dictionary, found a list"),
        ({"clean_train": ArrayFederatedData(X, Y, ROWS, ["b", "a"])}, "clean_train must have"),
    ],
)
def test_a_task_that_cannot_be_right(changes, says):
    for make in (lambda: task(**changes), lambda: dataclasses.replace(task(), **changes)):
        with pytest.raises(ValueError, match=says) as error:
            make()
        assert "\n" not in str(error.value) and isinstance(error.value, DataError)


@pytest.mark.parametrize(
    "changes",
    [
        {"primary_metric": "loss", "higher_is_better": False, "metrics": {}},
        {"metrics": {}, "central_test": None},
        {"keras_model_fn": None, "loss": "mse"},
        {"test": ArrayFederatedData(X, Y, [[], []])},
        {"central_test": Examples(X[:0, :1], Y[:0])},
        {"central_test": Examples(X.astype(np.float64), Y.astype(np.uint8))},
        {"central_test": Examples(tf.constant(X), tf.constant(Y))},
        {"central_test": Examples(X.tolist(), Y.tolist())},
    ],
)
def test_a_task_that_may_be_right(changes):
    task(**changes)


SETTINGS = {
    "algorithm": "fedavg",
    "total_rounds": 1,
    "clients_per_round": 2,
    "client_batch_size": 2,
    "client_learning_rate": 0.1,
    "progress": False,
}
NAMES = ["a", "b", "c"]
PARTS = [[0], [1, 2], [3, 4, 5]]


def run(folder, order, **settings):
    """Runs a task whose tests are the training examples, with the clients in another order."""
    own = task(
        train=ArrayFederatedData(X, Y, PARTS, NAMES),
        test=ArrayFederatedData(X, Y, [PARTS[k] for k in order], [NAMES[k] for k in order]),
        central_test=None,
    )
    return simulation.run(
        task=own, root_output_dir=folder, experiment_name="run", **SETTINGS, **settings
    )


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_test_clients_in_another_order_are_matched_by_id(tmp_path, algorithm):
    settings = {"evaluate_all_local_data": True, "algorithm": algorithm, "clients_per_round": 3}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setitem(SETTINGS, name, value)
        one, other = (
            run(tmp_path / str(k), order) for k, order in enumerate([(0, 1, 2), (2, 0, 1)])
        )
    assert list(one.rounds) == list(other.rounds)
    left = [c for c in one.rounds if not c.startswith("time/")]
    assert any(c.endswith("_t") for c in left) and any("fairness_all" in c for c in left)
    np.testing.assert_allclose(other.rounds[left], one.rounds[left], rtol=1e-6)
    tables = [pd.read_csv(f"{r.folder}/client_metrics.csv", index_col=0) for r in (one, other)]
    pd.testing.assert_frame_equal(tables[1].loc[NAMES], tables[0], rtol=1e-6)
    assert tables[0].train_examples.tolist() == [1, 2, 3]


@pytest.mark.parametrize("part", ["test", "validation"])
@pytest.mark.parametrize(
    ("train", "others", "number", "is_told"),
    [
        (None, None, 2, True),
        (["0", "1", "2"], None, 2, True),
        (None, ["1", "2"], 2, True),
        # Clients of the same places, clients named alike, and clients that do not train.
        (None, None, 3, False),
        (["0", "1", "2"], ["1", "2"], 2, False),
        (NAMES, None, 2, False),
    ],
)
def test_clients_without_names_that_may_be_other_clients(part, train, others, number, is_told):
    data = ArrayFederatedData(X.copy(), Y, PARTS[:number], others)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        task(train=ArrayFederatedData(X, Y, PARTS, train), **{part: data})
    assert len(told) == is_told
    for warning in told:
        assert warning.filename == __file__
        assert f"though {part} has 2 clients and train 3; give both client_ids" in str(warning)


@pytest.mark.parametrize("part", ["test", "validation"])
@pytest.mark.parametrize(
    ("inputs", "parts", "number"),
    [
        (X, [[0, 1], [4, 4, 5]], 3),
        (X, [[5], []], 0),
        (pd.DataFrame(X), [[3], [5]], 1),
        (X[::-1], [[0, 1], [4]], 0),
        (X.copy(), [[0, 1], [4]], 0),
    ],
)
def test_examples_that_train_and_test(part, inputs, parts, number):
    train = X if isinstance(inputs, np.ndarray) else inputs
    own = ArrayFederatedData(train, Y, [[0], [2, 3, 4]], NAMES[:2])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        task(train=own, **{part: ArrayFederatedData(inputs, Y, parts, NAMES[:2])})
    assert [w.filename for w in told] == [__file__] * bool(number)
    for warning in told:
        total = sum(map(len, parts))
        assert f"{number} of {total} examples of {part} are examples of train" in str(warning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task(train=own, **{part: own})  # To measure training is meant.


@pytest.mark.parametrize(
    "tests",
    [
        {"test": ArrayFederatedData(X, Y, [[], []], NAMES[:2]), "central_test": None},
        {"central_test": Examples(X[:0], Y[:0])},
    ],
)
def test_tests_without_an_example_are_told(tmp_path, tests):
    own = task(train=ArrayFederatedData(X, Y, PARTS[:2], NAMES[:2]), **tests)
    with pytest.warns(RuntimeWarning, match="The test data have no example, so no column eval/"):
        result = simulation.run(task=own, root_output_dir=tmp_path, **SETTINGS)
    assert not any(c.startswith("eval/") for c in result.rounds)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (NAMES[1:], "1 of 2 test clients do not train ('c'), so the columns"),
        (["x", "y"], "2 of 2 test clients do not train ('x', 'y')"),
        (
            [f"new {k}" for k in range(7)],
            "('new 0', 'new 1', 'new 2', 'new 3', 'new 4' and 2 more)",
        ),
    ],
)
def test_test_clients_that_do_not_train_are_named_before_the_first_round(tmp_path, names, says):
    rows = [PARTS[k % 3] for k in range(len(names))]
    own = task(
        train=ArrayFederatedData(X, Y, PARTS[:2], NAMES[:2]),
        test=ArrayFederatedData(X, Y, rows, names),
    )
    rounds = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = simulation.run(
            task=own,
            root_output_dir=tmp_path,
            experiment_name="run",
            callbacks=[lambda done: rounds.append(len(told))],
            **SETTINGS,
        )
    (line,) = [str(w.message) for w in told if "do not train" in str(w.message)]
    assert says in line and "are left out" in line and rounds == [len(told)]
    assert ("give them the same client_ids" in line) == (not set(names) & set(NAMES))
    assert not any(c.endswith("_t") for c in result.rounds)
    table = pd.read_csv(f"{result.folder}/client_metrics.csv", index_col=0)
    assert table.train_examples.isna().tolist() == [name not in NAMES[:2] for name in names]


def one_number(y, z):
    return tf.reduce_mean(cross_entropy(y, z))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (one_number, "gives one number for the whole batch.* axis=-1"),
        (functools.partial(one_number), "gives one number"),
        (lambda y, z: (one_number(y, z), 1.0), "gives one number"),
        (lambda y, z: 0.0, "gives one number"),
        (tf.function(one_number), "gives one number"),
        (lambda y: y, r"must be a function of \(y, outputs\)"),
    ],
)
@pytest.mark.parametrize("what", ["loss", "metrics"])
def test_functions_of_a_batch_are_refused_when_the_task_is_made(what, function, says):
    given = {"loss": function} if what == "loss" else {"metrics": {"accuracy": function}}
    named = "The loss" if what == "loss" else "Metric 'accuracy'"
    with pytest.raises(DataError, match=f"Task 'mine': {named} {says}") as error:
        task(**given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["AUC", "Precision", "MeanIoU", "F1Score", "R2Score"])
def test_metrics_that_need_the_batch_are_refused_when_the_task_is_made(kind):
    options = {"num_classes": 2} if kind == "MeanIoU" else {}
    metric = getattr(tf.keras.metrics, kind)(**options)
    with pytest.raises(DataError, match=rf"Metric 'accuracy' \({kind}\) is not a mean over"):
        task(metrics={"accuracy": metric})


def needs_outputs_of_three(y, z):
    return tf.reduce_sum(tf.ensure_shape(z, [None, 3]), -1)


@pytest.mark.parametrize(
    "function",
    [
        cross_entropy,
        "mse",
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        tf.keras.losses.sparse_categorical_crossentropy,
        functools.partial(tf.keras.losses.sparse_categorical_crossentropy, from_logits=True),
        needs_outputs_of_three,
        lambda y, z: (cross_entropy(y, z), tf.ones_like(y)),
        lambda y, z: z.numpy().mean(),  # Only a run can tell.
        lambda *both: cross_entropy(*both),
    ],
)
def test_functions_that_may_be_right(function):
    task(loss=function)
    if not isinstance(function, tf.keras.losses.Loss):
        task(metrics={"accuracy": function})


def test_functions_that_are_looked_at_run_nothing(tmp_path):
    """Else TensorFlow's threads and devices could no longer be set when the run starts."""
    code = """
import numpy as np
import tensorflow as tf
from tasks.task import ArrayFederatedData, Task
from tensorflow.python.eager import context

def loss(y, z):
    called.append(z.shape)
    return tf.reduce_sum(tf.square(y - z), -1)

called = []
data = ArrayFederatedData(np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32), [[0], [1]])
Task("mine", data, data, None, lambda seed: None, loss, {"mine": loss}, "mine")
assert called and not context.context()._initialized
"""
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True, timeout=200)


@pytest.mark.parametrize("kind", ["groups", "indexes", "columns"])
def test_labels_of_pandas_are_not_taken_for_positions(kind):
    df = pd.DataFrame({"u": list("aabbab"), "p": X[:, 0], "y": Y}).sample(frac=1, random_state=0)
    groups = df.groupby("u")
    rows = {
        "groups": list(groups.groups.values()),
        "indexes": [own.index for _, own in groups],
        "columns": [own.index.to_series() for _, own in groups],
    }[kind]
    with pytest.raises(DataError, match="rows must hold positions, and pandas"):
        ArrayFederatedData(df[["p"]], df.y, rows)
    data = ArrayFederatedData(df[["p"]], df.y, list(groups.indices.values()), list("ab"))
    assert data.examples(0).x[:, 0].tolist() == df.p[df.u == "a"].tolist()


def test_examples_of_other_indexes_are_said_to_go_by_position():
    df = pd.DataFrame({"p": X[:, 0], "y": Y})
    with pytest.warns(
        RuntimeWarning, match="x and y are matched by position, though their"
    ) as all_:
        Examples(df[["p"]], df.y[::-1])
    assert all_[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Examples(df[["p"]], df.y)
        Examples(df[["p"]], Y.tolist())
