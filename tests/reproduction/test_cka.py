import json
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reproduction import cka
from simulation.errors import RunError
from simulation.records import client_states

SHAPES = st.tuples(st.integers(2, 12), st.integers(1, 12), st.integers(1, 12), st.integers(0, 999))


def matrices(shape):
    n, d1, d2, seed = shape
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d1)), rng.normal(size=(n, d2)), rng


def by_hsic(a, b):
    """The definition by HSIC with linear kernels: an oracle that shares no formula with ours."""
    n = len(a)
    # Moved to the first row, for rows that lie close together lose digits when they are centered.
    a, b = a - a[0], b - b[0]
    center = np.eye(n) - np.ones((n, n)) / n

    def hsic(k, m):
        return np.trace(k @ center @ m @ center)

    k, m = a @ a.T, b @ b.T
    return hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))


@example((2, 4, 1, 178))
@given(SHAPES)
def test_is_the_definition_in_unit_interval(shape):
    a, b, _ = matrices(shape)
    got = cka.linear_cka(a, b)
    assert got == pytest.approx(by_hsic(a, b), abs=1e-9)
    assert -1e-12 <= got <= 1 + 1e-12
    assert cka.linear_cka(b, a) == pytest.approx(got)


@given(SHAPES)
def test_equal_scaled_moved_and_turned_matrices_are_alike(shape):
    a, b, rng = matrices(shape)
    assert cka.linear_cka(a, a) == pytest.approx(1)
    turn = np.linalg.qr(rng.normal(size=(a.shape[1],) * 2))[0]
    assert cka.linear_cka(a, -3 * a @ turn + rng.normal(size=a.shape[1])) == pytest.approx(1)
    assert cka.linear_cka(a @ turn, b) == pytest.approx(cka.linear_cka(a, b), abs=1e-9)


def test_another_linear_map_is_not_alike():
    a, _, rng = matrices((50, 4, 4, 0))
    assert cka.linear_cka(a, a * [1, 10, 100, 1000]) < 0.7
    far = rng.normal(size=(2000, 3)), rng.normal(size=(2000, 3))
    assert cka.linear_cka(*far) < 0.02


def test_what_cannot_be_compared():
    assert np.isnan(cka.linear_cka(np.ones((3, 2)), np.eye(3)))
    with pytest.raises(ValueError, match="equal numbers of rows"):
        cka.linear_cka(np.eye(3), np.eye(4))


def test_clients_are_compared_array_by_array():
    rng = np.random.default_rng(0)
    kernels = rng.normal(size=(3, 2, 2, 4, 5)), rng.normal(size=(3, 5, 6))
    clients = [(kernels[0][k], rng.normal(size=5), kernels[1][k]) for k in range(3)]
    got = cka.similarity_of_clients(clients)
    np.testing.assert_array_equal(got, got.T)
    np.testing.assert_allclose(np.diag(got), 1)
    flat = [k[0].reshape(16, 5) for k in clients]
    want = [cka.linear_cka(flat[0], flat[2]), cka.linear_cka(clients[0][2], clients[2][2])]
    assert got[0, 2] == pytest.approx(np.mean(want))
    # A layer that has not learnt says nothing; nor does a client without any.
    clients[1] = (np.zeros((2, 2, 4, 5)), clients[1][1], clients[1][2])
    assert cka.similarity_of_clients(clients)[0, 1] == pytest.approx(
        cka.linear_cka(clients[0][2], clients[1][2])
    )
    nothing = [tuple(np.zeros_like(w) for w in clients[0])] * 2
    assert np.isnan(cka.similarity_of_clients(nothing)).all()


class Kept(NamedTuple):
    m: Any
    slots: dict


class State(NamedTuple):
    visits: Any
    kept: Kept


def state(visits, seed):
    rng = np.random.default_rng(seed)
    m = (rng.normal(size=(6, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32))
    return State(np.int32(visits), Kept(m, {"b": np.float32(seed), "a": np.int32(seed)}))


@pytest.fixture
def run_folder(tmp_path):
    """A run whose clients c, a, b keep something; d was in no round. Versions as of two rounds."""
    flags = {"algorithm": "client_adam", "seed": 3}
    (tmp_path / "hparams.json").write_text(json.dumps({"flags": flags}))
    (tmp_path / "metrics.csv").write_text("round_num\n0\n")
    path = str(tmp_path / "client_states.sqlite")
    states = client_states.ClientStates(path, state(0, 0), 1 << 20)
    states.write({"c": state(1, 7), "a": state(1, 8)}, 1)
    states.commit(1)
    states.write({"c": state(2, 1), "b": state(1, 3), "d": state(0, 4)}, 2)
    states.commit(2)
    states.close()
    return tmp_path


def test_states_can_be_read_without_knowing_the_method(run_folder):
    found = client_states.read_all(str(run_folder / "client_states.sqlite"))
    assert list(found) == ["a", "b", "c", "d"]
    assert list(found["a"]) == ["visits", "kept/m/0", "kept/m/1", "kept/slots/a", "kept/slots/b"]
    for client, (visits, seed) in {"a": (1, 8), "b": (1, 3), "c": (2, 1)}.items():
        want = state(visits, seed)
        assert found[client]["visits"] == visits
        np.testing.assert_array_equal(found[client]["kept/m/0"], want.kept.m[0])
        assert found[client]["kept/slots/a"].dtype == np.int32
        assert found[client]["kept/slots/b"] == seed


def test_clients_of_a_run_are_compared(run_folder, capsys):
    got = cka.of_run(str(run_folder), "kept/m", 10)
    order = [8, 3, 1]  # a, b, c; d was in no round.
    want = cka.similarity_of_clients([state(1, k).kept.m for k in order])
    np.testing.assert_allclose(got, want)
    assert cka.of_run(str(run_folder), "kept/m", 2).shape == (2, 2)
    output = run_folder / "cka.png"
    assert cka.main([str(run_folder), f"--output={output}"]) == 0
    mean = np.mean(want[~np.eye(3, dtype=bool)])
    assert f"| client_adam, seed 3 | {mean:.3f} |" in capsys.readouterr().out
    assert output.exists()


def test_what_a_run_does_not_keep_is_one_line(run_folder, capsys):
    with pytest.raises(RunError, match="no part kept/v; it has kept/m, kept/slots, visits"):
        cka.of_run(str(run_folder), "kept/v", 10)
    (run_folder / "client_states.sqlite").unlink()
    assert cka.main([str(run_folder), f"--output={run_folder / 'x'}"]) == 1
    assert "clients keep no state" in capsys.readouterr().err
