import os

import numpy as np
import pytest

from simulation.errors import RunError
from simulation.records import checkpoints

LEAVES = [
    np.arange(6, dtype=np.float32).reshape(2, 3) / 3,
    np.float32(np.nan),
    np.int32(7),
    np.zeros([0, 4], np.float64),
    np.array([True, False]),
    np.array(-0.0),
]
SETTINGS = {"task": "toy", "client_learning_rate": 0.1, "data_dir": None, "seed": 3}


def path_of(folder, round_num):
    return os.path.join(folder, f"round_{round_num:08d}.checkpoint")


def test_arrays_come_back_bit_for_bit(tmp_path):
    checkpoints.save(str(tmp_path), 12, LEAVES, SETTINGS)
    checkpoint, damaged = checkpoints.load_newest(str(tmp_path))
    assert damaged == []
    assert checkpoint.round_num == 12 and checkpoint.settings == SETTINGS
    for got, want in zip(checkpoint.leaves, LEAVES, strict=True):
        want = np.asarray(want)
        assert got.dtype == want.dtype and got.shape == want.shape
        assert got.tobytes() == want.tobytes()


def test_newest_two_are_kept(tmp_path):
    for r in (0, 3, 6, 9):
        checkpoints.save(str(tmp_path), r, LEAVES, SETTINGS)
    assert checkpoints.rounds(str(tmp_path)) == [6, 9]
    assert len(os.listdir(tmp_path)) == 2


def test_none_where_there_is_none(tmp_path):
    assert checkpoints.load_newest(str(tmp_path / "missing")) == (None, [])
    assert checkpoints.load_newest(str(tmp_path)) == (None, [])


@pytest.fixture
def small(tmp_path):
    for r in (1, 2):
        checkpoints.save(str(tmp_path), r, [np.arange(3.0) * r], SETTINGS)
    return str(tmp_path)


def test_every_damaged_byte_is_noticed(small):
    with open(path_of(small, 2), "rb") as f:
        content = f.read()
    for at in range(0, len(content), 7):
        broken = bytearray(content)
        broken[at] ^= 1
        with open(path_of(small, 2), "wb") as f:
            f.write(broken)
        checkpoint, damaged = checkpoints.load_newest(small)
        assert checkpoint.round_num == 1 and damaged == [path_of(small, 2)]


@pytest.mark.parametrize("keep", [0, 1, 31, 32, 33, 200])
def test_short_files_are_noticed(small, keep):
    os.truncate(path_of(small, 2), keep)
    assert checkpoints.load_newest(small)[0].round_num == 1


def test_all_damaged_is_an_error(small):
    for r in (1, 2):
        os.truncate(path_of(small, r), 10)
    with pytest.raises(RunError, match=r"round_00000002.checkpoint is damaged"):
        checkpoints.load_newest(small)


def test_unfinished_write_is_no_checkpoint(small, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(small, 3, LEAVES, SETTINGS)
    assert checkpoints.rounds(small) == [1, 2]
    checkpoints.save(small, 3, LEAVES, SETTINGS)
    assert sorted(os.listdir(small)) == [os.path.basename(path_of(small, r)) for r in (2, 3)]


def test_what_is_too_old_goes_and_what_a_run_resumes_from_stays(tmp_path):
    """A process killed between a checkpoint and the removal leaves three; two may be damaged."""
    folder = str(tmp_path)
    for r in (3, 6):
        checkpoints.save(folder, r, LEAVES, SETTINGS)
    for r in (9, 12):
        (tmp_path / f"round_{r:08d}.checkpoint").write_bytes(b"damaged")
    checkpoints.remove_old(folder, checkpoints.load_newest(folder)[0].round_num)
    assert checkpoints.rounds(folder) == [3, 6, 9, 12]
    checkpoints.save(folder, 9, LEAVES, SETTINGS)
    assert checkpoints.rounds(folder) == [6, 9, 12]
    assert checkpoints.load_newest(folder)[0].round_num == 9
    checkpoints.remove_old(folder, 12)
    assert checkpoints.rounds(folder) == [9, 12]
