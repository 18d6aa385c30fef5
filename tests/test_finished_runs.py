"""Finished runs of an item that is not recorded go to another machine."""

import json
import pathlib

import pytest

from reproduction import items, run_folders, sweep
from simulation.records import outputs
from tools import finished_runs

pytestmark = pytest.mark.slow


@pytest.fixture
def setup():
    return items.load_item("adafedadam", "table5").setups["synthetic"]


def _planned(setup, root, max_rounds=2):
    rows = ["fedavg", "fedadam"]
    points = {row: setup.points(row)[:1] for row in rows}
    return items.planned_runs(setup, rows, points, [1], root=str(root), max_rounds=max_rounds)


def test_what_comes_back_is_done_and_the_rest_is_not(setup, tmp_path):
    root, other, papers = tmp_path / "root", tmp_path / "other", tmp_path / "papers"
    first, _second = _planned(setup, root)
    sweep.execute([first], sweep.Resources())
    folder = f"{setup.paper}/{setup.folder}"
    archive = finished_runs.pack(root, folder, papers)
    before = archive.read_bytes()
    assert finished_runs.pack(root, folder, papers).read_bytes() == before

    brought = finished_runs.unpack(other, papers)
    first_there, second_there = _planned(setup, other)
    assert brought == [first_there.folder]
    assert sweep.is_done(first_there) and not sweep.is_done(second_there)
    assert first_there.read().summary == first.read().summary
    assert first_there.read().metrics.equals(first.read().metrics)
    assert first_there.read().clients.equals(first.read().clients)
    recorded = [path.read_text() for path in (other / folder).glob("*/hparams.json")]
    assert not any(str(tmp_path) in text for text in recorded)
    assert all(outputs.is_intact(json.loads(text)) for text in recorded)


@pytest.mark.parametrize("here", [False, True])
def test_a_run_that_came_back_may_get_more_rounds(setup, tmp_path, here):
    """As a search promotes it: its state is not there, so it starts anew, to the same results."""
    root, other, papers = tmp_path / "root", tmp_path / "other", tmp_path / "papers"
    first, _ = _planned(setup, root)
    sweep.execute([first], sweep.Resources())
    finished_runs.pack(root, f"{setup.paper}/{setup.folder}", papers)
    [brought] = finished_runs.unpack(other, papers)
    [longer] = _planned(setup, other, max_rounds=3)[:1]
    assert longer.folder == brought and not sweep.is_done(longer)

    outcomes = sweep.execute([longer], sweep.Resources(here=here))
    assert [outcome.code for outcome in outcomes.values()] == [0], outcomes
    assert sweep.is_done(longer)
    again = run_folders.opened(longer.folder).values("train/loss")[1]
    assert (again[:2] == first.read().values("train/loss")[1]).all()
    assert (longer.folder.parent / f"{longer.folder.name}.replaced-1").is_dir()


def test_a_run_that_was_stopped_goes_on_from_its_state(setup, tmp_path):
    root, other, papers = tmp_path / "root", tmp_path / "other", tmp_path / "papers"
    first, second = _planned(setup, root)
    sweep.execute([first], sweep.Resources())
    (first.folder / "summary.json").unlink()  # As if it had been stopped after its last round.
    folder = f"{setup.paper}/{setup.folder}"
    with pytest.raises(SystemExit, match=r"no run in .* has finished"):
        finished_runs.pack(root, folder, papers)
    sweep.execute([second], sweep.Resources())
    finished_runs.pack(root, folder, papers, states=True)

    brought = finished_runs.unpack(other, papers)
    assert sorted(brought) == sorted(run.folder for run in _planned(setup, other))
    longer, done = _planned(setup, other, max_rounds=3)
    assert not list(done.folder.glob("checkpoints"))
    files = [path for path in other.rglob("*") if path.is_file()]
    assert not any(str(tmp_path).encode() in path.read_bytes() for path in files)
    outcomes = sweep.execute([longer], sweep.Resources())
    assert [outcome.code for outcome in outcomes.values()] == [0], outcomes
    assert "Resuming after round 2" in (longer.folder / "log.txt").read_text()
    [straight] = _planned(setup, tmp_path / "straight", max_rounds=3)[:1]
    sweep.execute([straight], sweep.Resources())
    for column in ("train/loss", "eval/accuracy"):
        here, there = (run.read().values(column)[1] for run in (longer, straight))
        assert list(here) == list(there)


def test_a_diverged_run_comes_back_as_such(setup, tmp_path):
    """A search counts it as tried; without it, the search would be unfinished."""
    root, other, papers = tmp_path / "root", tmp_path / "other", tmp_path / "papers"
    points = {"fedavg": [{"client_learning_rate": 1e20}]}
    [run] = items.planned_runs(setup, ["fedavg"], points, [1], root=str(root), max_rounds=2)
    sweep.execute([run], sweep.Resources())
    assert run.read().diverged
    finished_runs.pack(root, f"{setup.paper}/{setup.folder}", papers)

    [there] = finished_runs.unpack(other, papers)
    assert run_folders.opened(there).diverged


def test_paths_of_another_copy_of_the_suite_stay_out_of_the_archive(tmp_path):
    run = tmp_path / "root" / "league" / "synthetic" / "study1" / "fedavg_seed1"
    run.mkdir(parents=True)
    command = ["run_experiment.py", "--flagfile=/else/where/league/synthetic.flags", "--seed=1"]
    content = {"flags": {"data_dir": None}, "start": {"command": command}}
    (run / "hparams.json").write_text(json.dumps(content))
    (run / "summary.json").write_text("{}")
    papers = tmp_path / "papers"
    finished_runs.pack(tmp_path / "root", "league/synthetic/study1", papers)
    [there] = finished_runs.unpack(tmp_path / "other", papers)
    recorded = json.loads((there / "hparams.json").read_text())
    assert recorded["start"]["command"][1] == "--flagfile=./league/synthetic.flags"
    assert outputs.is_intact(recorded)


def test_a_run_that_is_there_stays_as_it_is(setup, tmp_path):
    root, papers = tmp_path / "root", tmp_path / "papers"
    first, _ = _planned(setup, root)
    sweep.execute([first], sweep.Resources())
    folder = f"{setup.paper}/{setup.folder}"
    finished_runs.pack(root, folder, papers)
    metrics = pathlib.Path(first.folder, "metrics.csv")
    metrics.write_text("gone on")
    assert finished_runs.unpack(root, papers) == []
    assert metrics.read_text() == "gone on"


def test_a_folder_without_a_finished_run_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"no run in .* has finished"):
        finished_runs.pack(tmp_path, "adafedadam/synthetic", tmp_path / "papers")


def test_the_leagues_runs_stand_beside_the_papers(tmp_path):
    root, papers = tmp_path / "root", tmp_path / "papers"
    run = root / "league" / "synthetic" / "study1" / "fedavg_seed1"
    run.mkdir(parents=True)
    (run / "summary.json").write_text("{}")
    archive = finished_runs.pack(root, "league/synthetic/study1", papers)
    assert archive == tmp_path / "league" / "unfinished" / "synthetic-study1.tar.xz"
    other = tmp_path / "other"
    assert finished_runs.unpack(other, papers) == [other / run.relative_to(root)]
