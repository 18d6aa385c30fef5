"""A file of a run's folder that was damaged, lost or exchanged never changes a number.

Between stop and resumption each file is altered in turn. Either the run is refused in one line that
names the file, or what was altered is made again and the run ends with the bits of one to which
nothing happened.
"""

import random
import shutil

import pytest

from tests.reliability import runs
from tests.test_run_experiment import bytes_of

FLIPS = runs.number("FLIPS", 8)
_STOP, _END = 6, 9


def command(family, rounds, **changed):
    return runs.command(family, "tff", rounds, **changed)


@pytest.fixture(scope="module", params=["stateless", "client_state", "staged", "server_vectors"])
def made(request, tmp_path_factory):
    """A family; its run, stopped; the same to its end; and one of another seed, stopped."""
    family, root = request.param, tmp_path_factory.mktemp("made")
    always = runs.FAMILIES[family].always
    for name, rounds, changed in (
        ("stopped", _STOP, {}),
        ("whole", _END, {}),
        ("other", _STOP, {"seed": 5}),
    ):
        (root / name).mkdir()
        runs.finish(command(family, rounds, **changed), root / name, always)
    return family, root


def files_of(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def flip(content, bit):
    content = bytearray(content)
    content[bit // 8] ^= 1 << bit % 8
    return bytes(content)


def flips(content, draws):
    """Yields the content with single bits flipped: at both ends and at random."""
    ends = (0, 8 * len(content) - 1)
    for bit in [*ends, *(draws.randrange(8 * len(content)) for _ in range(FLIPS))]:
        yield f"bit {bit}", flip(content, bit)


def truncations(content, draws):
    """Yields beginnings of the content."""
    size = len(content)
    for left in sorted({0, 1, size // 2, size - 1, draws.randrange(size)}):
        yield f"cut to {left} of {size} bytes", content[:left]


def check(family, root, folder, name, what):
    """Goes on with a run, one file of which was altered; returns whether it was refused."""
    always = runs.FAMILIES[family].always
    results = runs.results(folder)
    before = bytes_of(results)
    outcome = runs.run(command(family, _END), folder, always)
    told = f"{name}, {what}: {outcome}"
    assert "Traceback" not in outcome.err, told
    if outcome.code:
        assert outcome.code in (1, 2), told
        assert len(outcome.err.splitlines()) == 1 and outcome.err.startswith("error: "), told
        named = name.split("/")[0] in outcome.err
        # A damaged flag is one that differs.
        assert named or "holds another experiment" in outcome.err, told
        # TensorBoard's files are made again from the table at every start.
        lost = {n for n in before if "tfevents" not in n and not (results / n).exists()}
        assert not lost, f"{told}: a refusal took {lost} away"
        return True
    try:
        runs.assert_same(results, runs.results(root / "whole"))
    except AssertionError as e:
        raise AssertionError(told) from e
    return False


def altered(family, root, tmp_path, kind, record_property):
    """Checks every alteration of a kind of every file; collects what went wrong."""
    stopped = runs.results(root / "stopped")
    faults, refused, total = [], 0, 0
    for name in files_of(stopped):
        content = (stopped / name).read_bytes()
        if not content:
            continue
        for what, damaged in kind(content, random.Random(name)):
            folder = runs.copied(root / "stopped", tmp_path / "altered")
            (runs.results(folder) / name).write_bytes(damaged)
            total += 1
            try:
                refused += check(family, root, folder, name, what)
            except AssertionError as e:
                faults.append(str(e))
            shutil.rmtree(folder)
    record_property("alterations", total)
    assert not faults, f"{len(faults)} of {total}:\n" + "\n".join(faults)
    # Else nothing was checked on resumption, or nothing can be repaired.
    assert 0 < refused < total


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_flipped_bits(made, tmp_path, record_property):
    altered(*made, tmp_path, flips, record_property)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_truncated_files(made, tmp_path, record_property):
    altered(*made, tmp_path, truncations, record_property)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("change", ["lost", "of another seed"])
def test_files_lost_or_of_another_run(made, change, tmp_path, record_property):
    family, root = made
    stopped, other = runs.results(root / "stopped"), runs.results(root / "other")
    faults, names = [], files_of(stopped)
    for name in names:
        folder = runs.copied(root / "stopped", tmp_path / "altered")
        path = runs.results(folder) / name
        path.unlink()
        if change != "lost" and "tfevents" not in name:
            shutil.copy(other / name, path)
        try:
            check(family, root, folder, name, change)
        except AssertionError as e:
            faults.append(str(e))
        shutil.rmtree(folder)
    record_property("alterations", len(names))
    assert not faults, f"{len(faults)} of {len(names)}:\n" + "\n".join(faults)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_finished_run_whose_file_was_altered(made, tmp_path, record_property):
    """The same command either refuses, or says that all is done, or makes the same file again."""
    family, root = made
    always = runs.FAMILIES[family].always
    whole = runs.results(root / "whole")
    faults, total = [], 0
    for name in files_of(whole):
        content = (whole / name).read_bytes()
        for what, damaged in flips(content, random.Random(name)) if content else ():
            folder = runs.copied(root / "whole", tmp_path / "altered")
            (runs.results(folder) / name).write_bytes(damaged)
            before = bytes_of(runs.results(folder))
            outcome = runs.run(command(family, _END), folder, always)
            total += 1
            if outcome.code:
                good = outcome.code in (1, 2) and len(outcome.err.splitlines()) == 1
            elif "is finished" in outcome.out:
                good = bytes_of(runs.results(folder)) == before
            else:
                runs.assert_same(runs.results(folder), whole)
                good = True
            if not good:
                faults.append(f"{name}, {what}: {outcome}")
            shutil.rmtree(folder)
    record_property("alterations", total)
    assert not faults, "\n".join(faults)
