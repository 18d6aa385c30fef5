"""JSON of a run's folder that is whole, but of another type than the suite writes, is one line."""

import contextlib
import hashlib
import io
import json
import shutil

import numpy as np
import pytest

import run_experiment
from reproduction import compare, run_folders
from simulation import experiment
from simulation.errors import RunError
from simulation.records import checkpoints, outputs
from tests.simulation import toy_extension  # noqa: F401  (registers the task)

pytestmark = pytest.mark.slow

_HEADER = "checkpoints/round_00000004.checkpoint"
_FILES = ("hparams.json", "summary.json", "data_digests.json", _HEADER)
WRONG = (None, True, -1, 1e300, "x", [[1]], {}, {"x": {"y": []}})


def flags(root, rounds):
    return [
        "--task=toy",
        "--algorithm=ditto",
        f"--total_rounds={rounds}",
        "--clients_per_round=3",
        "--client_batch_size=3",
        "--client_learning_rate=0.3",
        "--rounds_per_checkpoint=2",
        f"--root_output_dir={root}",
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("finished")
    assert run_experiment.main(flags(root, 4)) == 0
    return root


def read(path):
    if path.suffix == ".json":
        return json.loads(path.read_text())
    with np.load(io.BytesIO(path.read_bytes()[:-32])) as arrays:
        return json.loads(arrays["header"].tobytes())


def write(path, content):
    """Writes a file as the suite does, its checksum or digest right."""
    if path.suffix == ".json":
        path.write_text(json.dumps(content))
        return
    with np.load(io.BytesIO(path.read_bytes()[:-32])) as arrays:
        leaves = {name: arrays[name] for name in arrays.files if name != "header"}
    buffer = io.BytesIO()
    header = np.frombuffer(json.dumps(content).encode(), np.uint8)
    np.savez(buffer, header=header, **leaves)
    path.write_bytes(buffer.getvalue() + hashlib.sha256(buffer.getvalue()).digest())


# Of flags, some of each kind: all are read alike.
_SOME_FLAGS = {"algorithm", "runtime", "seed", "task", "total_rounds"}
_SOME = {"flags": _SOME_FLAGS, "settings": _SOME_FLAGS, "final": {"eval/loss"}}


def places(content, depth=3, some=None):
    """Yields the ways to all that can be exchanged: the whole, its entries, theirs."""
    yield ()
    if isinstance(content, dict) and depth:
        for key, value in content.items():
            if some is None or key in some:
                for way in places(value, depth - 1, _SOME.get(key)):
                    yield (key, *way)


def exchanged(content, way, value):
    if not way:
        return value
    return {**content, way[0]: exchanged(content[way[0]], way[1:], value)}


def checked(content, how):
    """Returns content with the checksum that goes with it, or with the one that it has."""
    if not isinstance(content, dict) or "seal" not in content or how == "as it was":
        return content
    return outputs.with_checksum(content)


def use(root):
    """Reads the folder in all ways; whatever is wrong must be a `RunError`."""
    run = run_folders.RunFolder(str(root / "toy_ditto"))
    for part in ("flags", "circumstances", "summary", "data_digest", "metrics", "clients"):
        try:
            getattr(run, part)
        except RunError as e:
            assert "\n" not in str(e) and str(e).endswith(".")
    with contextlib.suppress(RunError):
        compare.cautions(run_folders.find_runs([str(root)]))


@pytest.mark.quick_cases("summary.json-right", "checkpoints/*-right")
@pytest.mark.parametrize("how", ["right", "as it was"])
@pytest.mark.parametrize("name", _FILES)
def test_json_of_another_type(finished, tmp_path, monkeypatch, capsys, name, how):
    monkeypatch.setattr(
        experiment, "_work", lambda request, folder, *_: experiment.Outcome(folder.path, None)
    )
    root = tmp_path / "r"
    shutil.copytree(finished, root)
    path = root / "toy_ditto" / name
    original, content = path.read_bytes(), read(path)
    ways = list(places(content))
    assert len(ways) > 2
    refused = 0
    for way in ways:
        for value in WRONG:
            write(path, checked(exchanged(content, way, value), how))
            use(root)
            for rounds in (4, 6):
                code = run_experiment.main(flags(root, rounds))
                error = capsys.readouterr().err
                told = f"{way} = {value!r}: {error}"
                assert code in (0, 1, 2) and "Traceback" not in error, told
                if code:
                    assert len(error.splitlines()) == 1 and error.startswith("error: "), told
                    refused += 1
            path.write_bytes(original)
    # The digests only help to say what of the data differs; an older checkpoint does as well.
    assert refused > len(ways) or name in ("data_digests.json", _HEADER)


@pytest.mark.parametrize("text", ["", "[", "[]", "null", "3", '"x"', "NaN", "{" * 5, "[" * 100000])
@pytest.mark.parametrize("name", [f for f in _FILES if f.endswith(".json")])
def test_text_that_is_not_an_object(finished, tmp_path, monkeypatch, capsys, name, text):
    monkeypatch.setattr(
        experiment, "_work", lambda request, folder, *_: experiment.Outcome(folder.path, None)
    )
    root = tmp_path / "r"
    shutil.copytree(finished, root)
    (root / "toy_ditto" / name).write_text(text)
    use(root)
    code = run_experiment.main(flags(root, 4))
    error = capsys.readouterr().err
    assert code == (0 if name == "data_digests.json" else 1)
    assert len(error.splitlines()) == (1 if code else 0)


@pytest.mark.parametrize("header", WRONG, ids=str)
def test_a_checkpoint_with_another_header_is_ignored(finished, tmp_path, header):
    root = tmp_path / "r"
    shutil.copytree(finished, root)
    path = root / "toy_ditto" / _HEADER
    whole, original = read(path), path.read_bytes()
    for content in (header, {**whole, "settings": header}, {**whole, "seal": header}):
        if isinstance(header, dict) and content in (
            {**whole, "settings": header},
            {**whole, "seal": {}},
        ):
            continue  # An object, as it should be; what is in it is looked at later.
        write(path, content)
        newest, damaged = checkpoints.load_newest(str(path.parent))
        assert newest.round_num == 2 and damaged == [str(path)]
        path.write_bytes(original)
