"""What set-ups take that were not run: data, and hours by the nearest measured workload."""

import dataclasses

import fsspec
import pytest

import reproduce
import tasks
from reproduction import items, needs, sweep
from tasks.formats import remote
from tests.tasks import published_forms

TABLE1 = items.load_item("adaptive_federated_optimization", "table1").setups
TABLE5 = items.load_item("adafedadam", "table5").setups


def test_core_hours_are_those_of_the_grid_and_the_chosen_points():
    # 6 rows of 3 seeds, and FedProx: its grid of 5 on one seed, the best on two more.
    setup = dataclasses.replace(TABLE5["synthetic"], seconds={"*": 3.6, "fedprox": 7.2})
    number, by = needs.hours(setup)
    assert number == pytest.approx(6 * 3 * 1 + (5 + 2) * 2) and by == "item"
    assert needs.told_hours(setup) == "about 32 core-hours"


def test_hours_of_rows_never_run_are_by_the_nearest_measured_workload():
    """Five rows of 1,500 rounds, 10 writers of 671,585 / 3,400 examples, 273 us an example."""
    setup = TABLE1["emnist_cr"]
    number, by = needs.hours(setup)
    assert number == pytest.approx(5 * 1500 * 10 * 671_585 / 3_400 * 273e-6 / 3600)
    assert by == "the EMNIST CNN"
    assert "1.1 hours of two cores of an AMD EPYC, estimated" in needs.told(setup)
    assert needs.told(setup).startswith("needs TFF's Federated EMNIST; ")


def test_stack_exchange_is_measured_by_what_it_predicts():
    assert needs.measured("stackexchange", {"kind": "tag"}).workload == "the tag regression"
    assert "LSTM" in needs.measured("stackexchange", {"kind": "word"}).workload


def test_more_pixels_take_longer():
    small, large = (
        needs.measured("cifar10_image", {"model": "vgg11", "crop": c}) for c in (24, 32)
    )
    assert large.seconds == pytest.approx(small.seconds * (32 / 24) ** 2)


def test_every_set_up_that_was_not_run_says_what_it_takes():
    for item in items.all_items():
        for setup in item.setups.values():
            if setup.rows:
                read = [name for name in needs.tasks_of(setup) if name != "synthetic"]
                assert bool(needs.data(setup)) == bool(read), (setup.paper, setup.item, setup.name)
                assert needs.hours(setup) is not None, (setup.paper, setup.item, setup.name)
                assert needs.tasks_of(setup)


def test_data_are_found_where_caches_have_them(tmp_path, monkeypatch):
    setup = TABLE1["cifar100"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    assert "missing here: let TFF download it, or get https://" in needs.told_data(setup)
    # Whose partition is not TFF's, which without a folder is that of TFF's file.
    others = items.load_item("adafed", "fig2").setups["cifar100_setup1"]
    for place, reader in (
        (".tff/cifar100.sqlite", setup),
        (".keras/datasets/cifar-100-python.tar.gz", others),
        ("tfds/cifar100/3.0.2", others),
    ):
        path = tmp_path / place
        path.mkdir(parents=True)
        for one in (setup, others):
            assert (f"(found: {path})" in needs.told_data(one)) == (one is reader), place
        path.rmdir()
    mine = tmp_path / "mine"
    mine.mkdir()
    # A run that is given a folder looks nowhere else.
    assert f"missing in {mine}: let TFF" in needs.told_data(setup, str(mine))
    (mine / "cifar-100-python.tar.gz").write_text("")
    assert f"found: {mine}/cifar-100-python.tar.gz" in needs.told_data(setup, str(mine))


def test_a_stand_in_needs_its_own_data(tmp_path):
    """And what it stands in for is still missing."""
    fedopt = items.load_item("adaptive_federated_optimization", "table1").setups
    pairs = {
        "mnist/train-images-idx3-ubyte.gz": (fedopt["mnist_ae"], fedopt["emnist_ae"]),
        "sent140/sent140_k30_test_part.jsonl.gz": (TABLE5["sent140_tenth"], TABLE5["sent140"]),
    }
    for held, (stand_in, papers) in pairs.items():
        folder = tmp_path / held.partition("/")[0]
        told = needs.told_data(stand_in, str(folder))
        assert "missing in" in told and needs.data(papers)[0].name not in told
        path = folder / held
        path.parent.mkdir(parents=True)
        path.write_text("")
        if folder.name == "mnist":
            assert "missing in" in needs.told_data(stand_in, str(folder)), (
                "the writers are not there"
            )
            (folder / "writers.npz").write_text("")
        assert f"(found: {path})" in needs.told_data(stand_in, str(folder))
        assert "(missing in" in needs.told_data(papers, str(folder))
    assert "MNIST and QMNIST's writers (" in needs.told_data(fedopt["mnist_ae"])


def test_what_an_interrupted_download_leaves_is_not_found(tmp_path):
    setup = items.load_item("adaptive_federated_optimization", "table1").setups["emnist_cr"]
    part = tmp_path / "emnist_all.sqlite.lzma.part"
    part.write_text("")
    assert "missing in" in needs.told_data(setup, str(tmp_path))
    part.rename(part.with_suffix(""))
    assert "(found: " in needs.told_data(setup, str(tmp_path))


def test_tweets_are_found_with_their_words_vectors_alone(tmp_path):
    (tmp_path / "sent140" / "train").mkdir(parents=True)
    (tmp_path / "sent140" / "train" / "all_data_9.json").touch()
    assert "missing in" in needs.told_data(TABLE5["sent140"], str(tmp_path))
    (tmp_path / "glove.6B.300d.txt").write_text("")
    assert "(found: " in needs.told_data(TABLE5["sent140"], str(tmp_path))


IMAGES = (
    ("fedcada", "table1", "fashion_mnist_device_iid", "fashion_mnist", "3.0.1"),
    ("adaptive_federated_optimization", "table1", "cifar10", "cifar10", "3.0.2"),
    ("adafed", "fig2", "cifar100_setup1", "cifar100", "3.0.2"),
)


@pytest.mark.parametrize(("paper", "item", "setup", "name", "version"), IMAGES)
def test_only_the_version_of_tfds_that_a_run_reads_is_found(
    tmp_path, monkeypatch, paper, item, setup, name, version
):
    """As its task: passed over in TFDS's cache, which `~` may be in the name of, else refused."""
    setup = items.load_item(paper, item).setups[setup]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TFDS_DATA_DIR", "~/mine")
    older = tmp_path / "mine" / name / "1.0.0" / "dataset_info.json"
    older.parent.mkdir(parents=True)
    older.write_text("{}")
    assert "(missing here: " in needs.told_data(setup)
    told = needs.told_data(setup, str(tmp_path / "mine"))
    assert f"(refused: {tmp_path}/mine/{name} has version 1.0.0" in told
    read = older.parent.with_name(version)
    read.mkdir()
    for data_dir in (None, str(tmp_path / "mine")):
        assert f"(found: {read})" in needs.told_data(setup, data_dir)
    # A folder that is named is the only one.
    assert "(missing in" in needs.told_data(setup, str(tmp_path))


def test_mnist_of_tfds_is_found_beside_the_writers(tmp_path, monkeypatch):
    setup = TABLE1["mnist_ae"]
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    cached = tmp_path / "tfds" / "mnist" / "3.0.1"
    cached.mkdir(parents=True)
    mine = tmp_path / "mine"
    mine.mkdir()
    assert "(missing here: " in needs.told_data(setup), "TFDS has no writers"
    assert "(missing in" in needs.told_data(setup, str(mine))
    (mine / "writers.npz").write_text("")
    assert f"(found: {cached})" in needs.told_data(setup, str(mine))
    own = mine / "mnist" / "3.0.1"
    own.mkdir(parents=True)
    assert f"(found: {own})" in needs.told_data(setup, str(mine))


def test_the_whole_will_do_for_a_part(tmp_path):
    setups = items.load_item("adafed", "table1").setups
    path = tmp_path / "cifar10" / "cifar-10-batches-py"
    path.mkdir(parents=True)
    for name, what in (
        ("cifar10_setup1", "the whole CIFAR-10"),
        ("cifar10_setup1_subset", "CIFAR-10 or a part of it"),
    ):
        assert needs.told_data(setups[name], str(tmp_path)) == f"{what} (found: {path})"


def test_examples_are_those_that_a_setting_has_a_task_read():
    """MNIST's 60,000 digits of 539 writers, not the 671,585 characters of 3,400."""
    setup = dataclasses.replace(TABLE1["mnist_ae"], seconds={})
    number, by = needs.hours(setup)
    assert number == pytest.approx(5 * 3000 * 10 * 60_000 / 539 * 233e-6 / 3600)
    assert by == "the autoencoder"


@pytest.fixture
def bucket():
    """An fsspec file system, of which nothing is remembered."""
    memory = fsspec.filesystem("memory")
    needs.paths_at.cache_clear()
    yield memory
    needs.paths_at.cache_clear()
    memory.store.clear()


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ("cifar100.sqlite.lzma", "cifar100.sqlite.lzma"),
        ("cifar-100-python/train", "cifar-100-python"),
        ("cifar100/3.0.2/dataset_info.json", "cifar100/3.0.2"),
        ("deeper/cifar100.sqlite", None),
        ("cifar-10-python.tar.gz", None),
    ],
)
def test_data_are_found_at_an_address_as_in_a_folder(bucket, tmp_path, held, found):
    bucket.pipe(f"/bucket/data/{held}", b"")
    (tmp_path / held).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / held).write_text("")
    setup = TABLE1["cifar100"]
    for folder in ("memory://bucket/data", str(tmp_path)):
        told = needs.told_data(setup, folder)
        assert (f"(found: {folder}/{found})" if found else f"(missing in {folder}: ") in told


def test_an_address_is_listed_once_and_nothing_is_copied(bucket, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bucket.pipe("/bucket/data/cifar100.sqlite", b"")
    asked, plain = [], remote.names
    monkeypatch.setattr(remote, "names", lambda *of: asked.append(of) or plain(*of))
    assert reproduce.main(["--list", "--data_dir=memory://bucket/data"]) == 0
    told = capsys.readouterr().out
    assert "found: memory://bucket/data/cifar100.sqlite" in told
    assert "missing in memory://bucket/data: get https://" in told
    assert asked == [("memory://bucket/data", "--data_dir")] and not list(tmp_path.iterdir())
    table = ["--paper=adaptive_federated_optimization", "--item=table1", "--setup=cifar100"]
    assert reproduce.main([*table, "--dry_run", "--data_dir=memory://bucket/data"]) == 0
    assert "found: memory://bucket/data/cifar100.sqlite" in capsys.readouterr().out
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("memory://bucket/nothing", "has no file"),
        ("nosuch://bucket", "cannot be read (Protocol not known: nosuch)"),
        ("memory://far/data", "cannot be read (the store is away)"),
    ],
)
def test_an_address_that_cannot_be_read_is_one_line(bucket, monkeypatch, capsys, address, reason):
    plain = type(bucket).find

    def find(self, path, *rest, **more):
        if "far" in path:
            raise ConnectionError("the store\nis away")
        return plain(self, path, *rest, **more)

    monkeypatch.setattr(type(bucket), "find", find)
    table = ["--paper=adaptive_federated_optimization", "--item=table1", "--setup=cifar100"]
    for request in (["--list"], [*table, "--dry_run"]):
        assert reproduce.main([*request, f"--data_dir={address}"]) == 1
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.startswith(f"error: --data_dir={address} {reason}")
        assert len(told.err.splitlines()) == 1


def test_without_an_address_none_is_asked(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(remote, "names", None)
    for folder in ([], [f"--data_dir={tmp_path}"]):
        assert reproduce.main(["--list", *folder]) == 0
        assert "missing" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("item", "setup", "folder", "file"),
    [
        ("table1", "shakespeare_tff", "shakespeare", "shakespeare_train.h5"),
        ("table1", "emnist_cr", "emnist", "fed_emnist_train.h5"),
        ("table1", "so_nwp", "stackoverflow", "stackoverflow_train.h5"),
        ("table1", "cifar100", "cifar100", "fed_cifar100_train.h5"),
    ],
)
def test_tffs_files_are_found_in_a_folder_of_their_own(tmp_path, item, setup, folder, file):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / file).touch()
    found = items.load_item("adaptive_federated_optimization", item).setups[setup]
    assert str(tmp_path / folder / file) in needs.told_data(found, str(tmp_path))


@pytest.mark.parametrize("form", published_forms.FORMS)
def test_whatever_form_of_its_data_a_task_reads_is_found(tmp_path, form):
    """A tenth of the tweets is read where it is all there is, and is not what a paper needs."""
    lines = {"source": "lines"} if form in ("sent140_lines", "sent140_vectors") else {}
    form = published_forms.FORMS[form]
    form.write(tmp_path)
    read = tasks.get(form.task).data_with({**form.settings, **lines})
    assert str(needs.found(read, str(tmp_path))).startswith(str(tmp_path))
