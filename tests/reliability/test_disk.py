"""A full disk ends a run with one line and loses nothing: with room again it resumes."""

import contextlib
import functools
import os
import subprocess

import pytest

from tests.reliability import disturb, runs

SIZES = runs.number("DISK_SIZES", 20)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ROUNDS = 12


def command(family):
    return runs.command(family, "tff", _ROUNDS)


@contextlib.contextmanager
def disk(folder, size):
    """Mounts a disk of some bytes; gives a function that changes its size."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        yield lambda size: subprocess.run(
            ["mount", "-o", f"remount,size={size}", folder], check=True
        )
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="module")
def may_mount(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mount")
    try:
        with disk(folder, _PAGE):
            pass
    except (OSError, subprocess.CalledProcessError) as e:
        pytest.skip(f"no small disk can be mounted here: {e}")


@pytest.fixture(scope="module", params=["stateless", "client_state", "staged"])
def whole(request, tmp_path_factory):
    """A family, its run on a large disk, the bytes that this takes, and those that are written."""
    folder, points = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("points") / "list"
    listed = functools.partial(disturb.list_points, str(runs.results(folder)), str(points))
    runs.finish(command(request.param), folder, [*runs.FAMILIES[request.param].always, listed])
    files = [p.stat().st_size for p in runs.results(folder).rglob("*") if p.is_file()]
    on_disk = sum(-(-size // _PAGE) * _PAGE for size in files)
    writes = [p.split() for p in points.read_text().splitlines() if p.startswith("write")]
    return request.param, folder, on_disk, sum(int(size) for _, size, _ in writes)


def sizes_up_to(most, step=1):
    """Returns sizes, multiples of `step`, from nearly nothing to nearly what a run takes."""
    return [max(1, most * (i + 1) // (SIZES + 1) // step) * step for i in range(SIZES)]


def check_failed(outcome, size):
    runs.assert_refused(outcome, "No space left on device", "disk is full")
    assert outcome.code == 1, (size, outcome)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_full_disk(may_mount, whole, tmp_path, record_property):
    family, want, most, _ = whole
    always = runs.FAMILIES[family].always
    full = 0
    for i, size in enumerate(sizes_up_to(most, _PAGE)):
        folder = tmp_path / str(i)
        runs.results(folder).mkdir(parents=True)
        with disk(folder / "results", size) as resize:
            outcome = runs.run(command(family), folder, always)
            if outcome.code:
                full += 1
                check_failed(outcome, size)
            # Still full: the same again, and nothing is lost by it.
            if full == SIZES // 2:
                check_failed(runs.run(command(family), folder, always), size)
            resize(64 << 20)
            runs.finish(command(family), folder, always)
            runs.assert_same(runs.results(folder), runs.results(want))
    # Room is kept free for no more than a file that is replaced.
    assert full >= 0.7 * SIZES
    record_property("full_disks", full)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_disk_that_fills_up_while_something_is_written(whole, tmp_path, record_property):
    """As above, wherever the tests run; a write then leaves its first half."""
    family, want, _, most = whole
    always = runs.FAMILIES[family].always
    full = 0
    for i, size in enumerate(sizes_up_to(most)):
        folder = tmp_path / str(i)
        folder.mkdir()
        fill = functools.partial(disturb.fill_disk, str(runs.results(folder)), size)
        outcome = runs.run(command(family), folder, [*always, fill])
        if outcome.code:
            full += 1
            check_failed(outcome, size)
        runs.finish(command(family), folder, always)
        runs.assert_same(runs.results(folder), runs.results(want))
    assert full == SIZES
    record_property("full_disks", full)
