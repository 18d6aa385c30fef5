"""What set-ups take that were not run: data, and hours by the nearest measured workload."""

import dataclasses

import pytest

from reproduction import items, needs, sweep

TABLE1 = items.load_item("adaptive_federated_optimization", "table1").setups
TABLE5 = items.load_item("adafedadam", "table5").setups


def test_core_hours_are_those_of_the_grid_and_the_chosen_points():
    # 6 rows of 3 seeds, and FedProx: its grid of 5 on one seed, the best on two more.
    setup = dataclasses.replace(TABLE5["synthetic"], seconds={"*": 3.6, "fedprox": 7.2})
    number, by = needs.hours(setup)
    assert number == pytest.approx(6 * 3 * 1 + (5 + 2) * 2) and by == "measured"
    assert needs.told_hours(setup) == "about 32 core-hours"


def test_hours_of_rows_never_run_are_by_the_nearest_measured_workload():
    """Five rows of 1,500 rounds, 10 writers of 671,585 / 3,400 examples, 273 us an example."""
    setup = TABLE1["emnist_cr"]
    number, by = needs.hours(setup)
    assert number == pytest.approx(5 * 1500 * 10 * 671_585 / 3_400 * 273e-6 / 3600)
    assert by == "the EMNIST CNN"
    assert "1.1 hours of two cores of an AMD EPYC, by the nearest measured" in needs.told(setup)
    assert needs.told(setup).startswith("needs TFF's Federated EMNIST; ")


def test_more_pixels_take_longer():
    small, large = (
        needs.measured("cifar10_image", {"model": "vgg11", "crop": c}) for c in (24, 32)
    )
    assert large.seconds == pytest.approx(small.seconds * (32 / 24) ** 2)


def test_every_set_up_that_was_not_run_says_what_it_takes():
    for item in items.all_items():
        for setup in item.setups.values():
            if setup.rows:
                assert needs.hours(setup) is not None, (setup.paper, setup.item, setup.name)
                assert needs.tasks_of(setup)


def test_data_are_found_where_caches_have_them(tmp_path, monkeypatch):
    setup = TABLE1["cifar100"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    assert "missing here: let TFF download it, or get https://" in needs.told_data(setup)
    for place in (".tff/cifar100.sqlite", ".keras/datasets/cifar-100-python"):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        assert f"found: {path}" in needs.told_data(setup)
        path.unlink()
    path = tmp_path / "tfds" / "cifar100" / "3.0.2" / "dataset_info.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert f"found: {path}" in needs.told_data(setup)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "cifar-100-python.tar.gz").write_text("")
    assert str(tmp_path / "mine") in needs.told_data(setup, str(tmp_path / "mine"))


def test_an_estimate_falls_back_on_the_nearest_workload_and_says_so(tmp_path):
    setup = TABLE1["emnist_cr"]
    points = {row: setup.points(row) for row in setup.rows}
    runs = items.planned_runs(setup, ["fedavg"], points, [1], root=str(tmp_path))
    (row,) = sweep.estimate(runs, {}, {"fedavg": (0.5, "the EMNIST CNN")})
    assert (row.seconds, row.source) == (0.5, "nearest measured: the EMNIST CNN")
    (row,) = sweep.estimate(runs, {"*": 2.0}, {"fedavg": (0.5, "the EMNIST CNN")})
    assert (row.seconds, row.source) == (2.0, "item")
    (row,) = sweep.estimate(runs, {})
    assert (row.seconds, row.source) == (None, "unknown")
