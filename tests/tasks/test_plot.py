import csv
import json

import numpy as np
import pytest
from matplotlib import pyplot

from tasks import partitions, plot
from tasks.task import ArrayFederatedData
from tests import canvas


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


def federated(y, sizes):
    ends = np.cumsum(sizes)
    return ArrayFederatedData(y, y, np.split(np.arange(ends[-1]), ends[:-1]), ["a", "b", "c"])


CLASSES = np.array([3, 3, 7, 3, 9, 9], np.int32)


def test_classes_are_counted_by_client():
    shown = plot.partition(federated(CLASSES, [3, 1, 2]), np.arange(3))
    assert shown.client_ids == ["a", "b", "c"] and shown.sizes.tolist() == [3, 1, 2]
    assert shown.labels.tolist() == [3, 7, 9]
    assert shown.counts.tolist() == [[2, 1, 0], [1, 0, 0], [0, 0, 2]]
    assert shown.num_labels().tolist() == [2, 1, 1]
    some = plot.partition(federated(CLASSES, [3, 1, 2]), np.array([0, 2]))
    assert some.client_ids == ["a", "c"] and some.counts.tolist() == [[2, 1, 0], [0, 0, 2]]


def test_tokens_are_counted_without_padding_and_tags_by_column():
    tokens = np.array([[5, 6, 0], [5, 0, 0], [6, 6, 6]])
    shown = plot.partition(federated(tokens, [1, 1, 1]), np.arange(3))
    assert shown.labels.tolist() == [5, 6] and shown.counts.tolist() == [[1, 1], [1, 0], [0, 3]]
    tags = np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0]], np.float32)
    shown = plot.partition(federated(tags, [1, 1, 1]), np.arange(3))
    assert shown.labels.tolist() == [1, 2] and shown.counts.tolist() == [[1, 1], [0, 1], [0, 0]]
    assert shown.num_labels().tolist() == [2, 1, 0]


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, bool])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)], ids=str)
def test_zeros_and_ones_are_two_classes(dtype, shape):
    y = np.array([0, 0, 0, 1, 1, 0]).astype(dtype).reshape(shape)
    shown = plot.partition(federated(y, [3, 1, 2]), np.arange(3))
    assert shown.labels.tolist() == [0, 1] and shown.counts.tolist() == [[3, 0], [0, 1], [1, 1]]
    assert shown.note == ""


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float64])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)], ids=str)
def test_classes_may_be_a_column_or_floats(dtype, shape):
    y = CLASSES.astype(dtype).reshape(shape)
    shown = plot.partition(federated(y, [3, 1, 2]), np.arange(3))
    assert shown.labels.tolist() == [3, 7, 9]
    assert shown.counts.tolist() == [[2, 1, 0], [1, 0, 0], [0, 0, 2]]


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, bool])
def test_one_hot_rows_are_counted_by_column(dtype):
    y = np.eye(10)[CLASSES].astype(dtype)
    shown = plot.partition(federated(y, [3, 1, 2]), np.arange(3))
    assert shown.labels.tolist() == [3, 7, 9] and "column" in shown.note
    assert shown.counts.tolist() == [[2, 1, 0], [1, 0, 0], [0, 0, 2]]


def _masks():
    return np.array([[[0, 2], [2, 0]], [[1, 1], [1, 1]], [[0, 0], [0, 0]]])


@pytest.mark.parametrize(
    "masks",
    [
        _masks(),
        _masks()[..., None].astype(np.uint8),
        np.eye(3, dtype=np.float32)[_masks()],
        _masks().reshape(3, 4),
    ],
    ids=["places", "last of one", "one-hot", "flat"],
)
def test_the_background_of_masks_is_a_class(masks):
    shown = plot.partition(federated(masks, [1, 1, 1]), np.arange(3))
    assert shown.labels.tolist() == [0, 1, 2] and shown.note
    assert shown.counts.tolist() == [[2, 0, 2], [0, 4, 0], [4, 0, 0]]


def test_all_clients_targets_are_read_alike():
    """The first client's would pass for ones and zeros by column, the last one's for tokens."""
    y = np.array([[1, 0], [0, 0], [1, 1], [0, 1], [5, 0], [2, 3]])
    shown = plot.partition(federated(y, [2, 2, 2]), np.arange(3))
    assert shown.labels.tolist() == [0, 1, 2, 3, 5] and shown.counts.sum() == 12


@pytest.mark.parametrize(
    "y",
    [
        np.linspace(0, 1, 6),
        np.array([0, 1, np.nan, 0, 1, 1]),
        np.array([0, 1, np.inf, 0, 1, 1]),
        np.arange(12.0).reshape(6, 2),
        np.full((6, 2, 2), 0.5, np.float32),
        np.array(list("abcabc")),
    ],
    ids=["shares", "nan", "inf", "two numbers", "pictures", "words"],
)
def test_targets_that_are_no_labels_are_said(y):
    shown = plot.partition(federated(y, [3, 1, 2]), np.arange(3))
    assert shown.counts is None and shown.note.startswith("Targets are not labels")


@pytest.mark.parametrize("name", ["NA", "1e5", ' "a", b', "two\nlines", "é\r"])
def test_any_name_of_a_client_can_be_shown(tmp_path, name):
    y = np.arange(3)
    data = ArrayFederatedData(y, y, [[0], [1, 2]], [name, "b"])
    shown = plot.partition(data, np.arange(2))
    plot.write_csv(shown, str(tmp_path / "p.csv"))
    with open(tmp_path / "p.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert [row[0] for row in rows] == ["client", name, "b"]
    assert len(plot.table(shown).splitlines()) == 2 + 2 + 4


def test_targets_that_are_no_labels_leave_sizes():
    shown = plot.partition(federated(np.full((6, 4), 0.3), [3, 1, 2]), np.arange(3))
    assert shown.counts is None
    assert len(plot.draw(shown).axes) == 1
    assert "labels" not in plot.table(shown) and "|          3 |" in plot.table(shown)


def test_figure_shows_shares_sizes_and_numbers_of_labels():
    labels = np.random.default_rng(0).integers(0, 10, 400)
    data = ArrayFederatedData(labels, labels, partitions.shards(labels, 20, 2, 0))
    shown = plot.partition(data, np.arange(20))
    assert (shown.num_labels() <= 4).all()
    shares, sizes, number = plot.draw(shown).axes[:3]
    image = shares.get_images()[0].get_array()
    np.testing.assert_allclose(image, 100 * shown.counts.T / 20)
    assert sum(p.get_height() for p in sizes.patches) == 20
    heights = {p.get_x() + p.get_width() / 2: p.get_height() for p in number.patches}
    assert heights == {
        v: np.sum(shown.num_labels() == v)
        for v in range(shown.num_labels().min(), shown.num_labels().max() + 1)
    }


def test_colours_can_end_at_the_same_share_in_several_figures():
    shown = plot.partition(federated(CLASSES, [3, 1, 2]), np.arange(3))
    for most, limits in ((None, (0, 100 * shown.counts.max() / 2)), (60, (0, 60))):
        image = plot.draw(shown, most=most).axes[0].get_images()[0]
        assert image.get_clim() == limits


def test_table_has_clients_and_summary():
    shown = plot.partition(federated(CLASSES, [3, 1, 2]), np.arange(3))
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in plot.table(shown).splitlines()]
    assert cells[0] == ["client", "examples", "labels", "3", "7", "9"]
    assert cells[2] == ["a", "3", "2", "2", "1", "0"]
    assert cells[5:] == [
        ["smallest", "1", "1", "0", "0", "0"],
        ["median", "2", "1", "1", "0", "0"],
        ["largest", "3", "2", "2", "1", "2"],
        ["sum", "6", "3 different", "3", "1", "2"],
    ]
    assert "| a " not in plot.table(shown, max_rows=2)


def test_the_command_takes_the_tasks_flags(tmp_path, capsys):
    arguments = ["--task=synthetic", "--synthetic_num_clients=12", f"--output={tmp_path / 'p.png'}"]
    assert plot.main([*arguments, "--max_clients=5"]) == 0
    out = capsys.readouterr().out
    assert "synthetic: 12 clients" in out and "5 of them shown" in out
    assert (tmp_path / "p.png").stat().st_size > 5000 and (tmp_path / "p.pdf").exists()
    rows = (tmp_path / "p.csv").read_text().splitlines()
    assert rows[0].startswith("client,examples,label_0,") and len(rows) == 1 + 5
    for row in rows[1:]:
        _, examples, *counts = row.split(",")
        assert int(examples) == sum(map(int, counts)) > 0


def test_a_task_of_ones_own_is_imported_first(tmp_path, capsys):
    arguments = [f"--output={tmp_path / 'p.png'}", "--import=examples.moving_blobs"]
    assert plot.main(["--task=moving_blobs", *arguments]) == 0
    assert "moving_blobs: " in capsys.readouterr().out
    assert plot.main(["--task=moving_blobs", *arguments, "--import=no.such"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --import=no.such failed: ModuleNotFoundError")
    assert error.count("\n") == 1


@pytest.mark.quick_cases("1-1", "10-3", "300-400")
@pytest.mark.parametrize("clients", [1, 3, 400])
@pytest.mark.parametrize("labels", [1, 10, 300])
def test_all_of_the_figure_can_be_seen(clients, labels):
    y = np.random.default_rng(0).integers(0, labels, 4 * clients)
    data = ArrayFederatedData(y, y, np.split(np.arange(4 * clients), clients))
    shown = plot.partition(data, np.arange(clients))
    figure = plot.draw(shown, "a task whose name and settings are long " * 5)
    assert canvas.hidden(figure) == []
    for panel in figure.axes[1:3]:
        assert all(float(t).is_integer() for t in panel.get_xticks())
        assert sum(bar.get_height() for bar in panel.patches) == clients


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--task=nothing"], 2, "nothing"),
        (["--task=synthetic", "--synthetic_num_clients=x"], 2, "--synthetic_num_clients='x'"),
        (["--task=synthetic", "--synthetic_num_clients=0"], 2, "must be"),
        (["--task=synthetic", "--max_clients=0"], 2, "--max_clients=0"),
        (["--task=synthetic", "--most=0"], 2, "--most=0"),
        (["--task=fashion_mnist", "--data_dir=/no/such"], 1, "/no/such"),
    ],
)
def test_wrong_flags_are_one_line(arguments, code, words, tmp_path, capsys):
    assert plot.main([*arguments, f"--output={tmp_path / 'x'}"]) == code
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_a_flag_of_another_task_is_refused(tmp_path, capsys):
    wrong = ["--task=synthetic", "--fashion_mnist_alpha=1", f"--output={tmp_path / 'x'}"]
    assert plot.main(wrong) == 2
    assert "Unknown flag --fashion_mnist_alpha." in capsys.readouterr().err


def test_json_has_what_each_client_holds(tmp_path, capsys):
    wanted = ["--task=synthetic", "--synthetic_num_clients=5", "--json"]
    assert plot.main([*wanted, f"--output={tmp_path / 'x.png'}"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert len(content["clients"]) == 5 and len(content["files"]) == 3
    for client in content["clients"]:
        assert sum(client["counts"]) == client["examples"]
        assert len(client["counts"]) == len(content["labels"])
