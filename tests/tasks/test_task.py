"""Federated data as arrays, and where data are looked for."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import tensorflow as tf

import tasks
from tasks import prepare
from tasks.task import ArrayFederatedData, DataError, Examples, Task
from tff_suite import figures

X, Y = np.zeros((3, 2), np.float32), np.zeros(3, np.int32)


@pytest.mark.parametrize(
    ("rows", "client_ids", "says"),
    [
        ([[True, False, True], [False, True, False]], None, "flatnonzero"),
        ([[0.0, 1.0], [2.0]], None, "found float64"),
        ([[0, 1], [2]], ["a"], "1 client_ids of 2 clients"),
    ],
)
def test_what_is_no_division_of_rows(rows, client_ids, says):
    with pytest.raises(ValueError, match=says):
        ArrayFederatedData(X, Y, rows, client_ids)


def test_tables_of_pandas_are_taken_by_place():
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "label": [4, 5, 6]}, index=[2, 0, 1])
    x, y = ArrayFederatedData(table[["a"]], table.label, [[1], [0, 2]]).examples(1)
    assert x.tolist() == [[1.0], [3.0]] and y.tolist() == [4, 6]


@pytest.mark.parametrize(
    ("client_ids", "told"),
    [(None, ["0", "1"]), (np.array([7, 5]), ["7", "5"]), (["a", "b"], ["a", "b"])],
)
def test_clients_are_named_by_text(client_ids, told):
    data = ArrayFederatedData(X, Y, [[0], [1, 2]], client_ids)
    assert data.client_ids == told and all(type(name) is str for name in data.client_ids)


def test_a_task_without_a_model_function_says_so_when_a_model_is_asked_for():
    data = ArrayFederatedData(X, Y, [[0], [1, 2]])
    task = Task("mine", data, None, None, lambda seed: ("model", seed), "mse", {}, "accuracy")
    assert task.keras_model(3) == ("model", 3)
    task = Task("mine", data, None, None, None, "mse", {}, "accuracy")
    with pytest.raises(ValueError, match="Task 'mine' has no keras_model_fn"):
        task.keras_model(3)


def test_a_client_may_have_no_rows():
    assert ArrayFederatedData(X, Y, [[], [0, 2]]).sizes.tolist() == [0, 2]


def test_a_tilde_is_the_home_that_the_shell_left_it_to_be(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"--data_dir={tmp_path}/data does not exist"):
        tasks.load("fashion_mnist", data_dir="~/data")
    assert prepare.main(["--task=femnist", "--source=~/raw"]) == 1
    assert f"--source={tmp_path}/raw does not exist" in capsys.readouterr().err
    figures.save(figures.panels()[0], "~/figure", [".png"])
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


@pytest.mark.parametrize("make", [Examples, lambda x, y: ArrayFederatedData(x, y, [[0, 1]])])
def test_arrays_that_are_not_what_they_hold_are_refused(make):
    x, y = np.eye(3), np.arange(3)
    with pytest.raises(ValueError, match="Examples: x has masked values; drop or fill them"):
        make(np.ma.masked_less(x, 1), y)
    with pytest.raises(ValueError, match="Examples: y has masked values"):
        make(x, np.ma.masked_equal(y, 2))
    with pytest.raises(ValueError, match=r"Examples: x is sparse; give x.toarray\(\)"):
        make(scipy.sparse.csr_matrix(x), y)
    with pytest.raises(ValueError, match=r"Examples: x is sparse; give tf.sparse.to_dense\(x\)"):
        make(tf.sparse.from_dense(x), y)
    make(np.ma.masked_less(x, 0), y)  # Nothing is masked.


def _own_data(client_ids=("a", "b"), given=Examples):
    class Own:
        sizes = np.array([2, 1])

        def examples(self, index):
            size = int(self.sizes[index])
            return given(np.ones((size, 3), np.float32), np.zeros(size, np.int32))

    own = Own()
    own.client_ids = client_ids
    return own


def _task_of(train, **parts):
    return Task("mine", train, None, None, None, "mse", {}, "loss", higher_is_better=False, **parts)


def test_examples_of_lists_and_tensors_are_arrays():
    for x, y in (
        ([[1.0, 2.0], [3.0, 4.0]], [0, 1]),
        (tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([0, 1])),
        (pd.DataFrame({"a": [1.0, 3.0], "b": [2.0, 4.0]}, [7, 5]), pd.Series([0, 1], [7, 5])),
    ):
        examples = Examples(x, y)
        assert isinstance(examples.x, np.ndarray) and isinstance(examples.y, np.ndarray)
        np.testing.assert_array_equal(examples.x, [[1, 2], [3, 4]])
        np.testing.assert_array_equal(examples.y, [0, 1])
    with pytest.raises(ValueError, match="x is not an array"):
        Examples([[1.0], [2.0, 3.0]], [0, 1])


def test_data_of_ones_own_that_break_the_protocol_are_refused():
    _task_of(_own_data())
    with pytest.raises(ValueError, match=r"found a tuple; write Examples\(x, y\)"):
        _task_of(_own_data(given=lambda x, y: (x, y)))
    for ids in ({"a": 0, "b": 1}.keys(), pd.Series(["a", "b"], [1, 0])):
        with pytest.raises(ValueError, match=r"client_ids of train must be a list, found a"):
            _task_of(_own_data(ids))
