"""The least time of a round, and what it is made of."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import floor, report, speed, workloads
from benchmarks.peers import protocol


def round_of(name, sizes, x=None):
    """Returns a workload whose clients have these numbers of examples, all of them `x` if given."""
    workload = workloads.WORKLOADS[name](None)
    (some, labels), *_ = workload.clients
    x = some[:1] if x is None else x
    clients = [(np.repeat(x, n, 0), np.repeat(labels[:1], n, 0)) for n in sizes]
    return workload._replace(clients=clients)


# Of an example, by hand: what comes first twice, the rest three times.
_CNN = 2 * 26 * 26 * 9 * 32 + 3 * (24 * 24 * 9 * 32 * 64 + 12 * 12 * 64 * 128 + 128 * 62)
# How many places of a kernel meet an image, summed over its output, along one direction: of 7 at
# every second of 24 pixels, with 2 of padding before them; of 3 at every one of 6, 3, 2 or 1 pixels
# and at every second one, with padding before them only if they are odd.
_STEM = 5 + 9 * 7 + 6 + 4
_EVERY = {6: 2 + 4 * 3 + 2, 3: 2 + 3 + 2, 2: 2 + 2, 1: 1}
_SECOND = {6: 3 + 3 + 2, 3: 2 + 2, 2: 2}
_RESNET = 2 * _STEM**2 * 3 * 64 + 3 * (
    _EVERY[6] ** 2 * 4 * 64 * 64
    + (_SECOND[6] ** 2 + 9) * 64 * 128
    + _EVERY[3] ** 2 * 3 * 128 * 128
    + (_SECOND[3] ** 2 + 4) * 128 * 256
    + _EVERY[2] ** 2 * 3 * 256 * 256
    + (_SECOND[2] ** 2 + 1) * 256 * 512
    + _EVERY[1] ** 2 * 3 * 512 * 512
    + 512 * 100
)
_WORD = 3 * ((96 + 670) * 4 * 670 + 670 * 96 + 96 * 10_004)
_MLP = 2 * 784 * 200 + 3 * (200 * 200 + 200 * 10)


@pytest.mark.parametrize(
    ("name", "of_an_example"),
    [("w4", 2 * 60 * 10), ("w7", _RESNET), ("w8", None), ("w9", _CNN), ("w10", _MLP)],
)
def test_multiply_adds_are_those_of_every_layer(name, of_an_example):
    workload = round_of(name, [3, 4])
    x = workload.clients[0][0]
    words = np.count_nonzero(x[0])
    if name == "w8":
        assert 5 <= words < 20
        of_an_example = _WORD * words
    else:
        assert words == x[0].size
    assert floor.multiply_adds(workload) == pytest.approx(7 * of_an_example)


def test_zeros_of_the_data_take_no_product():
    x = np.zeros([1, 60], np.float32)
    x[0, :15] = 1
    assert floor.multiply_adds(round_of("w4", [8], x)) == 8 * 2 * 15 * 10


def test_a_last_minibatch_is_a_step():
    assert floor.steps(round_of("w9", [20, 21, 7])) == 1 + 2 + 1


def test_the_floor_does_the_arithmetic_it_stands_for(monkeypatch):
    monkeypatch.setattr(floor.os, "sched_getaffinity", lambda _: {0, 1})
    done = []

    def matmul(a, b):
        done.append(a.shape[0] * b.shape[0] * b.shape[1])
        return a

    workload = round_of("w9", [20, 3])
    wanted = floor.multiply_adds(workload)
    run = floor.rounds(workload)
    monkeypatch.setattr(tf, "matmul", matmul)
    run(range(0))
    # A product has 512 rows and as many columns; of the last one there are fewer.
    assert abs(sum(done) - wanted) <= 512**2
    assert len(done) >= wanted // 512**3


def test_the_floor_takes_the_steps_it_stands_for(monkeypatch):
    monkeypatch.setattr(floor.os, "sched_getaffinity", lambda _: {0})
    take = floor._seconds

    def products():
        pass

    # A measured time could be that of something else on the machine.
    def seconds(pool, works):
        take(pool, works)
        return 0.0 if works == [products] else 1.0

    monkeypatch.setattr(floor, "_products", lambda _: products)
    monkeypatch.setattr(floor, "_seconds", seconds)
    vectors = []
    run = floor.rounds(round_of("w2", [250, 100]))
    run(range(0))  # Finds out what takes longer.
    monkeypatch.setattr(np, "subtract", lambda w, g, out: vectors.append(out.size))
    run(range(2))
    assert vectors == [5_000_500] * 2 * (3 + 1)


def test_every_side_has_its_multiple_of_the_floor(monkeypatch):
    seconds = {"tff": 3.0, "floor": 2.0, "tff_worker": 12.0}

    def start(workload, sides, *_):
        return {side: speed._Measured(seconds[side], 1.0, 1.0, 2**20) for side in sides}

    monkeypatch.setattr(speed, "_start", start)
    records = {r["side"]: r for r in speed.measure("w8", list(seconds), 1, 1, None)}
    assert [records[side]["of_floor"] for side in seconds] == [1.5, 1.0, 6.0]
    without = speed.measure("w8", ["tff"], 1, 1, None)
    assert without[0]["of_floor"] == ""
    given = [{**r, "machine": "a machine", "date": "2026-01-01"} for r in records.values()]
    text = report._speed([{k: str(v) for k, v in r.items()} for r in given])
    assert "of the floor" in text
    assert "**W8: next word" in text


@pytest.mark.parametrize("name", list(workloads.WORKLOADS))
def test_the_report_calls_every_workload_what_it_is_called(name):
    if name == "w6":
        pytest.skip("Its data are downloaded.")
    assert report._TITLES[name] == workloads.WORKLOADS[name](None).title
    assert name in speed._WORKLOADS


def test_sentences_are_padded_at_their_end_and_lead_to_their_next_word():
    workload = workloads.WORKLOADS["w8"](None)
    lengths = set()
    for x, y in workload.clients:
        assert x.shape == y.shape == (48, 20) and x.dtype == y.dtype == np.int32
        assert x.max() < 10_004
        np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
        real = x > 0
        assert not np.any(~real[:, :-1] & real[:, 1:])
        lengths.update(real.sum(1))
    assert lengths == set(range(5, 21))


def test_a_peer_gets_every_workload(tmp_path):
    for name in ("w7", "w8", "w9", "w10"):
        w = workloads.WORKLOADS[name](None)
        path = str(tmp_path / f"{name}.npz")
        work = protocol.Work(name, w.clients, w.batch_size, w.learning_rate, w.rounds_a_turn)
        protocol.write(path, work)
        assert len(protocol.read(path).clients) == len(w.clients)
