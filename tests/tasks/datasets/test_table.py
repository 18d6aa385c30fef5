"""A CSV file of one's own by the command line."""

import bz2
import gzip
import json
import lzma
import os
import pathlib
import pickle
import re
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import run_experiment
import simulation
import tasks
from tasks.task import DataError
from tff_suite.hparams import HparamError

MODEL = """
import tensorflow as tf

UNITS = 4


def model(seed):
    def layer(units, **more):
        kernel = tf.keras.initializers.GlorotUniform(seed)
        return tf.keras.layers.Dense(units, kernel_initializer=kernel, **more)

    return tf.keras.Sequential([layer(UNITS, input_shape=(2,)), layer(3)])


def no_model():
    pass
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a table, a test table and a module of models."""
    at = np.arange(48)
    frame = pd.DataFrame(
        {
            "who": [f"{k % 4:03}" for k in at],
            "a": at / 10,
            "b": (at * 7) % 5,
            "kind": np.array(["cat", "dog", "emu"])[(at // 4) % 3],
        }
    )
    frame.to_csv(tmp_path / "table.csv", index=False)
    frame[:8].to_csv(tmp_path / "test.csv", index=False)
    (tmp_path / "models_of_mine.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("models_of_mine", None)


OWN = {"table_path": "table.csv", "table_user": "who", "table_target": "kind"}


def run(**changes):
    settings = {
        "task": "table",
        "algorithm": "fedavg",
        "total_rounds": 1,
        "clients_per_round": 2,
        "client_batch_size": 4,
        "client_learning_rate": 0.1,
        "experiment_name": "run",
        **OWN,
        **changes,
    }
    return run_experiment.main([f"--{k}={v}" for k, v in settings.items() if v is not None])


def test_a_model_of_ones_own(here, capsys):
    assert run(table_model="models_of_mine:model") == 0
    recorded = json.loads((here / "results/run/hparams.json").read_text())
    assert recorded["num_clients"] == 4 and recorded["task_settings"]["target_type"] == "category"
    kept = json.loads((here / "results/run/encoding.json").read_text())
    assert kept == {"target": "kind", "features": ["a", "b"], "classes": ["cat", "dog", "emu"]}
    assert run(table_model="models_of_mine:model") == 0, "nothing has changed"
    (here / "models_of_mine.py").write_text(MODEL.replace("UNITS = 4", "UNITS = 5"))
    del sys.modules["models_of_mine"]
    capsys.readouterr()
    assert run(table_model="models_of_mine:model") == 2
    assert "units 4 → 5" in capsys.readouterr().err


def test_a_table_and_its_file_have_the_same_clients(here):
    # As text, "10" comes before "2". The cohorts of a seed would be others.
    frame = pd.read_csv("table.csv").assign(who=np.arange(48) % 12 + 1)
    frame.to_csv("table.csv", index=False)
    of_file = tasks.load("table", path="table.csv", user="who", target="kind")
    model = of_file.keras_model_fn
    of_frame = tasks.from_frame(frame, user="who", target="kind", model=model)
    of_arrays = tasks.from_arrays(frame[["a", "b"]], frame.kind, frame.who, model=model)
    ids = [str(k + 1) for k in range(12)]
    assert of_file.train.client_ids == of_frame.train.client_ids == of_arrays.train.client_ids
    assert of_file.train.client_ids == of_file.test.client_ids == ids


@pytest.mark.parametrize("target", ["kind", "a"])
def test_one_layer_by_default(here, target):
    task = tasks.load("table", path="table.csv", user="who", target=target, features="b")
    model = task.keras_model_fn(0)
    assert model.output_shape == (None, 3 if target == "kind" else 1)
    assert list(task.train.client_ids) == ["000", "001", "002", "003"], "names stay as written"
    assert task.primary_metric == tasks.get("table").metrics_with(task.settings)[0]


def test_what_a_run_of_numbers_ends_with_works_as_printed(here, capfd):
    assert run(table_target="a", table_features="b") == 0
    _, lines = capfd.readouterr().out.split("Next:\n")
    commands = re.findall(r"(?:plot|compare): +((?:.*\\\n)*.*)", lines)
    assert len(commands) == 2
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    # The folder is as printed, and the programs are those of the repository.
    repository = pathlib.Path(__file__).parents[3]
    (here / "reproduce.py").symlink_to(repository / "reproduce.py")
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command.replace("OTHER_RUN", "results/run")],
            env={**os.environ, "PYTHONPATH": str(repository), "PATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert (here / "curves.png").exists() and "## eval/mse, last value of each run" in done.stdout


def test_the_table_is_looked_for_in_the_data_folder(here, monkeypatch):
    monkeypatch.chdir("/")
    own = {"path": "table.csv", "user": "who", "target": "kind"}
    assert tasks.load("table", data_dir=str(here), **own).train.sizes.sum() > 0
    with pytest.raises(DataError, match=r"--table_path=table.csv cannot be read: No such file"):
        tasks.load("table", **own)


def test_tests_of_another_file_and_drawn_clients(here):
    own = {"path": "table.csv", "target": "kind", "features": "a,b"}
    task = tasks.load("table", user="who", test_path="test.csv", **own)
    assert task.train.sizes.sum() == 48 and len(task.central_test.y) == 8
    drawn = tasks.load("table", partition="dirichlet", num_clients=3, alpha=1.0, **own, seed=1)
    assert len(drawn.train.client_ids) == 3 and drawn.settings["partition_seed"] == 1


def test_images_are_those_beside_their_own_table(here):
    for folder, grey in (("old", 10), ("new", 200)):
        (here / folder).mkdir()
        Image.new("L", (2, 1), grey).save(here / folder / "0.png")
        table = pd.DataFrame({"who": ["a", "b"], "kind": ["cat", "dog"], "file": "0.png"})
        table.to_csv(here / folder / "table.csv", index=False)
    task = tasks.load(
        "table",
        path="old/table.csv",
        test_path="new/table.csv",
        user="who",
        target="kind",
        image="file",
        model="models_of_mine:model",
    )
    assert set((task.train.examples(0).x * 255).ravel()) == {10}
    assert set((task.central_test.x * 255).ravel()) == {200}


def test_a_column_of_two_types_has_one_in_a_long_file(here, capsys):
    rows = 200_000
    size = np.where(np.arange(rows) < rows - 5, "7", "large")
    who = np.arange(rows) % 3
    frame = pd.DataFrame({"who": who, "a": who, "size": size, "kind": who % 2})
    frame.to_csv("long.csv", index=False)
    own = {"path": "long.csv", "user": "who", "target": "kind", "target_type": "category"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = tasks.load("table", features="size", **own)
    assert task.encoding["categories"] == {"size": ["7", "large"]}
    assert "DtypeWarning" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["NA", "nan", "None", "007"])
def test_users_whose_names_look_like_something_else(here, name):
    frame = pd.read_csv("table.csv", dtype=str).replace({"who": {"000": name}})
    frame.to_csv("table.csv", index=False)
    ids = tasks.load("table", path="table.csv", user="who", target="kind").train.client_ids
    assert name in ids and len(ids) == 4


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"table_path": None}, 2, "--task=table needs --table_path."),
        (
            dict.fromkeys(OWN),
            2,
            "--task=table needs --table_path, --table_target, --table_user (or --table_partition).",
        ),
        ({"table_partition": "iid"}, 2, "table: partition is not used with user"),
        ({"table_text": "kind", "table_image": "a"}, 2, "table: give one of text and image."),
        ({"table_text": "kind"}, 2, "model=linear takes features; name a model of text."),
        ({"table_alpha": 1}, 2, "alpha is not used with partition=user"),
        ({"table_path": "tabel.csv"}, 1, "--table_path=tabel.csv cannot be read: No such file"),
        (
            {"table_path": "models_of_mine.py"},
            1,
            "--table_path=models_of_mine.py is not a CSV file",
        ),
        ({"table_path": "."}, 1, "--table_path=. cannot be read: Is a directory"),
        ({"table_user": "whom"}, 1, "user: table.csv has no column 'whom'; it has who, a, b, kind"),
        ({"table_model": "model"}, 2, "--table_model=model must be linear or my_module:function."),
        ({"table_model": "nowhere:model"}, 2, "--table_model=nowhere failed: ModuleNotFoundError"),
        ({"table_model": "models_of_mine:no"}, 2, "models_of_mine has no no."),
        ({"table_features": "a,c"}, 1, "features: table.csv has no column 'c'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_line(here, capfd, changes, code, says):
    assert run(**changes) == code
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and says in lines[0]


def test_what_may_be_meant_otherwise_is_said(here, capsys):
    tasks.load("table", path="table.csv", user="who", target="b", features="a")
    assert capsys.readouterr().err.startswith("warning: target 'b' has 5 different whole numbers")


def test_codes_of_a_test_table_are_text_where_the_training_table_has_text(here):
    train = pd.DataFrame(
        {"who": list("abc") * 8, "code": ["01", "A1", "7"] * 8, "kind": ["x", "02", "3"] * 8}
    )
    train.to_csv("codes.csv", index=False)
    # Alone, these columns read as numbers.
    train[train["code"] != "A1"].replace({"kind": {"x": "02"}}).to_csv("tests.csv", index=False)
    own = {"path": "codes.csv", "user": "who", "target": "kind", "features": "code"}
    task = tasks.load("table", test_path="tests.csv", **own)
    assert task.encoding["classes"] == ["02", "3", "x"]
    assert task.central_test.y.tolist() == [0, 1] * 8
    at = task.encoding["categories"]["code"].index
    assert task.central_test.x.argmax(1).tolist() == [at("01"), at("7")] * 8


@pytest.mark.parametrize("test_path", [None, "table.csv"])
def test_codes_of_classes_are_kept_as_written(here, capsys, test_path):
    own = {"path": "table.csv", "user": "who", "target": "code", "features": "a,b"}
    codes = ["01", "1", "2", "10"] * 12
    pd.read_csv("table.csv", dtype=str).assign(code=codes).to_csv("table.csv", index=False)
    task = tasks.load("table", target_type="category", test_path=test_path, **own)
    assert task.encoding["classes"] == ["01", "1", "2", "10"]
    told = capsys.readouterr().err.splitlines()
    assert told[0].endswith("are the same number count as different classes: '01' and '1'.")
    assert told[1].startswith("warning: 4 clients"), "each has one class only"
    task = tasks.load("table", **own)
    told = capsys.readouterr().err.splitlines()
    assert "classes" not in task.encoding
    assert told[0] == (
        "warning: target 'code' has '01', and is read as a number; if it has codes of classes, "
        "pass --table_target_type=category."
    )
    tasks.load("table", target_type="number", **own)
    assert capsys.readouterr().err == ""


def test_features_that_look_like_codes_are_said(here, capsys):
    towns = [f"{1000 + 37 * k:05}" for k in range(48)]
    frame = pd.read_csv("table.csv", dtype=str)
    frame.assign(town=towns, month=["01", "12"] * 24).to_csv("table.csv", index=False)
    own = {"path": "table.csv", "user": "who", "target": "kind"}
    tasks.load("table", **own)
    assert capsys.readouterr().err == (
        "warning: feature 'town' has '01000', and is read as a number; if it has codes, leave it "
        "out by --table_features.\n"
    )
    tasks.load("table", features="a,month", **own)
    tasks.load("table", **{**own, "user": "town"}, features="a,b", test_fraction=0)
    assert "is read as a number" not in capsys.readouterr().err


def test_a_missing_class_is_not_a_class(here):
    frame = pd.read_csv("table.csv", dtype=str).assign(code=["1", "2", "NA"] * 16)
    frame.to_csv("table.csv", index=False)
    own = {"path": "table.csv", "user": "who", "target": "code", "target_type": "category"}
    says = "table.csv: column 'code' has 16 missing values, the first in row 2; drop these rows or"
    with pytest.raises(DataError, match=says):
        tasks.load("table", **own)


def test_a_comma_at_the_end_of_rows_shifts_no_column(here):
    plain = pathlib.Path("table.csv").read_text().splitlines()
    header, rows = plain[0], plain[1:]
    text = "\n".join([f"{header},note", *(f"{row},n{k}," for k, row in enumerate(rows))])
    pathlib.Path("comma.csv").write_text(text)
    own = {"user": "who", "target": "kind", "features": "a"}
    wanted, task = (tasks.load("table", path=path, **own) for path in ("table.csv", "comma.csv"))
    assert task.encoding == wanted.encoding
    assert list(task.train.client_ids) == list(wanted.train.client_ids)
    for k in range(4):
        for mine, others in zip(task.train.examples(k), wanted.train.examples(k), strict=True):
            np.testing.assert_array_equal(mine, others)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("who;a;kind\nx;1;p\ny;2;q\n", r"not separated by commas; .* sep=';'\)\.to_csv\("),
        ("who;a;kind\nx;1,5;p\ny;2;q\n", r"not separated by .* sep=';', decimal=','\)\.to_csv"),
        ("who;a;kind\nx;1;p\ny;2,5,3;q\n", r"is not separated by commas; .* sep=';'\)"),
        ("who\ta\tkind\nx\t1\tp\n", r"is not separated by commas; .* sep='\\t'\)\.to_csv"),
        ("who\ta\tkind\nx\t1,5\tp\n", r"is not separated by .* sep='\\t', decimal=','\)"),
        ("sep=,\nwho,a,kind\nx,1,p\n", "begins with a line for Excel, 'sep=,?'; delete that l"),
        ("sep=;\nwho;a;kind\nx;1;p\n", "begins with a line for Excel, 'sep=;'; delete that l"),
        ("# of 2024, mine\nwho,a,kind\nx,1,p\n", "begins with '# of 2024', not with its colu"),
        ("who,a,kind\nx,1,p\nx,1,p,2,3\n", "have as many values in each row."),
        ("", "is empty; name a CSV file with a header"),
        ("who,a,kind\n1,x,1,p\n2,y,2,q\n", r"has names \(who, a, kind\); name each column"),
        ("# mine\nwho,a,kind\nx,1,p\n", "begins with '# mine', not with its columns' names; del"),
        ("who,a,a,kind\nx,1,2,p\ny,2,3,q\n", "has two columns named 'a'; rename one"),
        ("who,a,kind\nJosé,1,p\n", "is not in UTF-8; convert it, for example by iconv -f CP1252"),
    ],
)
def test_files_of_another_form_name_a_way_on(here, content, says):
    (here / "table.csv").write_bytes(content.encode("cp1252"))
    with pytest.raises(DataError, match=f"^--table_path=table.csv .*{says}"):
        tasks.load("table", path="table.csv", user="who", target="kind")


@pytest.mark.parametrize(
    ("content", "function"),
    [
        (b"PAR1\x15\x04\x15\xf0PAR1", "read_parquet"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "read_excel"),
        (pickle.dumps([1.5]), "read_pickle"),
        (None, "read_excel"),
        (b"ARROW1\0\0\x90\xff", "read_feather"),
        (b"ORC\x08\x03\xff", "read_orc"),
        (b"\x89HDF\r\n\x1a\n\0", "read_hdf"),
    ],
)
def test_a_file_of_another_format_names_what_reads_it(here, content, function):
    path = here / "table.of.mine"
    if content is None:
        with zipfile.ZipFile(path, "w") as parts:
            for name in "[Content_Types].xml", "xl/workbook.xml":
                parts.writestr(name, "<x/>")
    else:
        path.write_bytes(content)
    says = rf"by pandas\.{function}\('table\.of\.mine'\)\.to_csv\('NEW\.csv', index=False\)\.$"
    with pytest.raises(DataError, match=says):
        tasks.load("table", path=str(path), user="who", target="kind")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x93NUMPY\x01\0", r"\(NumPy file\); .* pandas\.DataFrame\(numpy\.load\('table\.of\.m"),
        (b"SQLite format 3\0\xff", r"database of SQLite\); .* sqlite3\.connect\('table\.of\.mine"),
        (gzip.compress(b"who,a,kind\n"), r"is packed; give its name the ending \.gz\.$"),
        (bz2.compress(b"who,a,kind\n"), r"is packed; give its name the ending \.bz2\.$"),
        (lzma.compress(b"who,a,kind\n"), r"is packed; give its name the ending \.xz\.$"),
    ],
    ids=["npy", "sqlite", "gz", "bz2", "xz"],
)
def test_what_is_not_text_is_not_sent_to_iconv(here, content, says):
    path = here / "table.of.mine"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        tasks.load("table", path=str(path), user="who", target="kind")


def test_a_stray_quotation_mark_joins_no_rows(here):
    rows = ["who,a,said,kind", "x,1,\"it's 5 long,p", "y,2,fine,q", 'x,3,"ok",p', "y,4,no,q"]
    own = {"path": "table.csv", "user": "who", "target": "kind"}
    (here / "table.csv").write_text("\n".join(rows))
    with pytest.raises(DataError, match=r"^--table_path=table.csv, row 1: 'said' has several lin"):
        tasks.load("table", **own)
    # Line breaks and doubled quotation marks within values are as they should be.
    said = ["it's 5\" long\n", "fine", 'no,\n"hm"', "no"]
    frame = pd.DataFrame({"who": [*"xyxy"], "a": range(4), "said": said, "kind": [*"pqpq"]})
    frame.to_csv(here / "table.csv", index=False)
    task = tasks.load("table", **own)
    assert int(task.train.sizes.sum() + task.test.sizes.sum()) == 4


@pytest.mark.parametrize("ending", ["gz", "xz", "zip", "bz2", "tar.gz"])
def test_a_packed_file_that_is_cut_off_is_one_line(here, ending):
    path = here / f"table.csv.{ending}"
    pd.read_csv(here / "table.csv").to_csv(path, index=False)
    whole = path.read_bytes()
    # An archive of `tar` ends in blocks of zeros.
    kept = len(whole) // 2 if ending == "tar.gz" else len(whole) - 20
    for content in (whole[:kept], b"no archive"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"^--table_path={path} ") as error:
            tasks.load("table", path=str(path), user="who", target="kind")
        assert "\n" not in str(error.value)


def test_excels_unicode_text_is_to_be_converted_from_utf_16(here):
    (here / "table.csv").write_text("who,a,kind\nx,1,p\n", encoding="utf-16")
    with pytest.raises(DataError, match=r"not in UTF-8; convert it, .* iconv -f UTF-16 -t UTF-8"):
        tasks.load("table", path="table.csv", user="who", target="kind")


def test_settings_that_say_what_to_read_are_needed_in_python_too():
    with pytest.raises(HparamError, match="needs --table_path"):
        tasks.load("table")


def test_a_comparison_shows_the_metric_that_the_table_decides_on(here):
    found = simulation.compare(
        task="table",
        algorithms=["fedavg"],
        seeds=1,
        total_rounds=1,
        clients_per_round=2,
        client_batch_size=4,
        client_learning_rate=0.1,
        root_output_dir=here / "compared",
        **OWN,
    )
    assert [column["metric"] for column in found.columns] == ["eval/accuracy"]
