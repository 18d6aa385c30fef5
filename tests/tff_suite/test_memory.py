"""What is free, of the machine and of control groups of both versions, and what arrays take."""

import gc
import types

import numpy as np
import psutil
import pytest

from tff_suite import memory
from tff_suite.hparams import HparamError

GIB = 2**30


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """A machine with 64 GiB free and no swap, and the files of its control groups."""
    monkeypatch.setattr(psutil, "swap_memory", lambda: types.SimpleNamespace(free=0))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=64 * GIB))
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN_CGROUPS", tmp_path / "own")

    def write(own, files):
        (tmp_path / "own").write_text(own)
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{content}\n")

    return write


STAT = f"anon 5\nactive_file {GIB}\ninactive_file {2 * GIB}"


def of_group(path, most, held, stat=STAT):
    return {f"{path}memory.max": most, f"{path}memory.current": held, f"{path}memory.stat": stat}


def test_without_groups_the_machine_tells(groups):
    assert memory.available() == 64 * GIB
    groups("0::/a\n", of_group("a/", "max", 9 * GIB))
    assert memory.available() == 64 * GIB
    groups("not what it should be\n", {})
    assert memory.available() == 64 * GIB


def test_a_groups_limit_holds_also_of_those_around_it(groups):
    """What the kernel holds of files it would give up."""
    groups("0::/a/b\n", {**of_group("a/b/", 16 * GIB, 5 * GIB), **of_group("a/", "max", 0)})
    assert memory.available() == 14 * GIB
    groups("0::/a/b\n", of_group("a/", 8 * GIB, 5 * GIB))
    assert memory.available() == 6 * GIB


def test_in_a_container_the_group_is_at_the_root(groups):
    groups("0::/docker/x\n", of_group("", 16 * GIB, 15 * GIB))
    assert memory.available() == 4 * GIB
    groups("0::/docker/x\n", of_group("", 16 * GIB, 20 * GIB))
    assert memory.available() == 0


def test_groups_of_the_first_version(groups):
    files = {
        "memory/job/memory.limit_in_bytes": 8 * GIB,
        "memory/job/memory.usage_in_bytes": 3 * GIB,
        "memory/job/memory.stat": f"active_file 1\ntotal_active_file 0\ntotal_inactive_file {GIB}",
    }
    groups("4:cpu:/job\n3:memory,hugetlb:/job/task\n0::/\n", files)
    assert memory.available() == 6 * GIB


def test_free_swap_counts(groups, monkeypatch):
    monkeypatch.setattr(psutil, "swap_memory", lambda: types.SimpleNamespace(free=2 * GIB))
    assert memory.available() == 66 * GIB


def test_bytes_of_arrays_and_of_specs():
    import tensorflow as tf

    from tff_algos.client_data import Gathered

    x = np.zeros((4, 3), np.float32)
    assert memory.nbytes(x) == memory.nbytes(tf.constant(x)) == x.nbytes == 48
    assert memory.nbytes(tf.TensorSpec([4, 3], tf.float32)) == 48
    assert memory.nbytes(tf.TensorSpec([None, 3], tf.bfloat16)) == 6
    assert memory.nbytes(np.zeros((0, 5))) == memory.nbytes(tf.TensorSpec([0, 5])) == 0
    assert memory.nbytes(np.float64(1)) == memory.nbytes(tf.TensorSpec([], tf.int64)) == 8
    rows = np.zeros((2, 7), np.int64)
    assert memory.nbytes(Gathered(x, rows)) == 2 * 7 * 3 * 4
    assert memory.nbytes({"a": [x, (x, None)], "b": {"c": x[0]}, "d": 1.0}) == 2 * 48 + 12
    assert memory.nbytes(()) == 0


def test_bytes_of_an_array_that_need_not_exist():
    assert memory.size_of((2, None, 3), np.dtype(np.uint8)) == 6
    # As a damaged header may announce.
    assert memory.size_of((2**40, 2**40), np.dtype(np.int64)) == 2**83
    assert memory.size_of(np.full(2, 2**40), np.dtype(np.int64)) == 2**83


def test_more_than_is_free_is_refused_in_a_line(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 3 * GIB)
    memory.require(3 * GIB, "It", "less takes less")
    with pytest.raises(HparamError) as error:
        memory.require(3 * GIB + 2**29, "It", "less takes less")
    assert str(error.value) == (
        "It would take 3.5 GiB of memory, but 3.0 GiB are free; less takes less."
    )


def test_collection_pauses_until_the_end_and_only_for_who_began():
    @memory.without_collection()
    def fails():
        assert not gc.isenabled()
        with memory.without_collection():
            pass
        assert not gc.isenabled()
        raise RecursionError

    assert gc.isenabled()
    with pytest.raises(RecursionError):
        fails()
    assert gc.isenabled()
