"""A run of other code or data than today's is never taken for today's: commands, Python, sweeps."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import reproduce
import run_experiment
import tasks
import tff_algos
from reproduction import changes, items, places, run_folders
from simulation import experiment_flags, identity
from simulation.errors import ChangedError
from tasks.task import ArrayFederatedData, Examples, Task
from tests import copy_of_suite
from tests.simulation.one_round import one_round

pytestmark = pytest.mark.slow

REPO = pathlib.Path(__file__).resolve().parents[3]
TASK = '''
"""A task of my own."""

import os

import numpy as np
import tasks

import losses_of_mine


def load(*, data_dir, seed, use_synthetic_data):
    """Loads it."""
    import tensorflow as tf

    from tasks.task import ArrayFederatedData, Examples, Task

    folder = os.path.dirname(os.path.abspath(__file__))
    table = np.loadtxt(f"{folder}/rows.csv", delimiter=",", dtype=np.float32)
    rows = [np.flatnonzero(table[:, 0] == u) for u in np.unique(table[:, 0])]
    data = ArrayFederatedData(table[:, 1:3], table[:, 3].astype(np.int32), rows)

    def model(seed):
        tf.keras.utils.set_random_seed(seed)
        return tf.keras.Sequential(
            [tf.keras.layers.Dense(32, "relu", input_shape=(2,)), tf.keras.layers.Dense(2)]
        )

    return Task(
        name="blobs_of_mine",
        train=data,
        test=data,
        central_test=None,
        keras_model_fn=model,
        loss=losses_of_mine.loss,
        metrics={"accuracy": tf.keras.metrics.sparse_categorical_accuracy},
        primary_metric="accuracy",
        files=[f"{folder}/weights.txt"],
    )


tasks.register(tasks.TaskSpec(name="blobs_of_mine", summary="Mine.", loader=load))
'''
LOSSES = '''
SCALE = 1.0


def loss(y, p):
    """A loss."""
    import tensorflow as tf

    return SCALE * tf.keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)
'''
FLAGS = [
    "--import=task_of_mine",
    "--task=blobs_of_mine",
    "--algorithm=fedavg",
    "--total_rounds=2",
    "--clients_per_round=2",
    "--client_batch_size=8",
    "--client_learning_rate=0.1",
    "--runtime=tff",
]


SMALL = [
    "--task=synthetic",
    "--synthetic_num_clients=4",
    "--algorithm=fedavg",
    "--total_rounds=1",
    "--clients_per_round=2",
    "--client_batch_size=50",
    "--client_learning_rate=0.1",
    "--runtime=tff",
]


def table(number=2426):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(number, 2))
    return "\n".join(f"{i % 6},{a:.4f},{b:.4f},{int(a > b)}" for i, (a, b) in enumerate(x))


def forget():
    """Lets the next start import a user's modules anew, as a new process does."""
    for name in ("task_of_mine", "losses_of_mine"):
        sys.modules.pop(name, None)
    tasks.registry._SPECS.pop("blobs_of_mine", None)


class User:
    """A user's folder, and the commands given there."""

    def __init__(self, folder):
        self.folder, self.edits = folder, 10**9
        self.write(task_of_mine=TASK, losses_of_mine=LOSSES)
        (folder / "rows.csv").write_text(table())
        (folder / "weights.txt").write_text("1 2 3\n")

    def write(self, **modules):
        for name, text in modules.items():
            path = self.folder / f"{name}.py"
            path.write_text(text)
            # Python takes compiled code for that of a file of the same size and second.
            self.edits += 1
            os.utime(path, (self.edits, self.edits))

    @property
    def run(self):
        return self.folder / "results" / "blobs_of_mine_fedavg"

    def hparams(self):
        return json.loads((self.run / "hparams.json").read_text())


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """A user with a finished run."""
    made = User(tmp_path_factory.mktemp("user"))
    with at(made):
        assert run_experiment.main(FLAGS) == 0
    yield made
    forget()


@contextlib.contextmanager
def at(user):
    sys.path.insert(0, str(user.folder))
    try:
        with contextlib.chdir(user.folder):
            yield
    finally:
        sys.path.remove(str(user.folder))


@pytest.fixture
def command(user, capfd):
    """What gives a command in the user's folder, which is brought back afterwards."""
    kept = {p: p.read_bytes() for p in user.folder.iterdir() if p.is_file()}

    def give(*flags):
        forget()
        capfd.readouterr()
        with at(user):
            code = run_experiment.main([*FLAGS, *flags])
        out, err = capfd.readouterr()
        return code, out, err

    yield give
    for path, content in kept.items():
        path.write_bytes(content)
        user.edits += 1
        os.utime(path, (user.edits, user.edits))


SAME = {
    "nothing": lambda u: None,
    "docstring": lambda u: u.write(task_of_mine=TASK.replace("Loads it.", "Loads all of it.")),
    "comment": lambda u: u.write(losses_of_mine=f"# Mine.\n{LOSSES}"),
    "file touched": lambda u: (u.folder / "rows.csv").write_text(table()),
    "file nobody reads": lambda u: u.write(other_of_mine="X = 1\n"),
}
OTHER = {
    "model": (
        lambda u: u.write(task_of_mine=TASK.replace('Dense(32, "relu"', 'Dense(64, "tanh"')),
        ["units 32 → 64", "'relu' → 'tanh'", "code: task_of_mine.py, load()"],
        "",
    ),
    "rows": (
        lambda u: (u.folder / "rows.csv").write_text(table(899)),
        ["data: 2,426 → 899 training examples"],
        "restore the data",
    ),
    "helper": (
        lambda u: u.write(losses_of_mine=LOSSES.replace("SCALE * ", "2 * SCALE * ")),
        ["code: losses_of_mine.py, loss()"],
        "",
    ),
    "constant": (
        lambda u: u.write(losses_of_mine=LOSSES.replace("1.0", "2.0")),
        ["losses_of_mine.py: SCALE 1.0 → 2.0"],
        "",
    ),
    "file of the task": (
        lambda u: (u.folder / "weights.txt").write_text("3 2 1\n"),
        ["data: the task's file weights.txt"],
        "restore the data",
    ),
    "initial weights": (
        lambda u: u.write(task_of_mine=TASK.replace("seed(seed)", "seed(seed + 1)")),
        ["model: initial weights", "code: task_of_mine.py, load()"],
        "",
    ),
}


@pytest.mark.parametrize("edit", SAME)
def test_a_finished_run_of_the_same_code_and_data(user, command, edit):
    before = (user.run / "hparams.json").read_bytes()
    SAME[edit](user)
    code, out, err = command()
    assert (code, err) == (0, "") and "is finished" in out
    assert (user.run / "hparams.json").read_bytes() == before


@pytest.mark.parametrize("edit", OTHER)
def test_a_finished_run_of_other_code_or_data(user, command, edit):
    change, said, advice = OTHER[edit]
    change(user)
    code, out, err = command()
    assert code == 2 and "is finished" not in out and err.count("\n") == 1
    assert all(text in err for text in said), err
    assert "--fresh" in err and "--experiment_name" in err
    assert advice in err if advice else "--accept_code_changes" in err
    if advice:
        assert command("--accept_code_changes")[0] == 2, "data are not code"


def test_an_unfinished_run_of_other_code(user, command):
    assert command("--max_minutes=0.0001", "--experiment_name=part")[0] == 0
    assert (user.folder / "results/part/checkpoints/round_00000001.checkpoint").exists()
    user.write(losses_of_mine=LOSSES.replace("1.0", "2.0"))
    code, _, err = command("--experiment_name=part")
    assert code == 2 and "SCALE 1.0 → 2.0" in err
    code, out, err = command("--experiment_name=part", "--accept_code_changes")
    assert code == 0 and "Resuming after round 1" in out and "Accepted" in out
    recorded = json.loads((user.folder / "results/part/hparams.json").read_text())
    (accepted,) = recorded["accepted_changes"]
    assert accepted["round_num"] == 1 and "SCALE" in accepted["changes"][0]
    assert recorded["identity"]["values"]["losses_of_mine.py, SCALE"] == "2.0"
    assert "accept_code_changes" not in recorded["flags"]
    assert command("--experiment_name=part")[0] == 0, "accepted once is enough"


def test_a_mistake_in_the_first_round_is_mended_and_run_again(user, command):
    user.write(losses_of_mine=LOSSES.replace("SCALE * tf", "SCALE * tf.math.log(-1.0) * tf"))
    assert command("--experiment_name=wrong")[0] == 3
    user.write(losses_of_mine=LOSSES)
    code, out, _ = command("--experiment_name=wrong")
    assert code == 0 and "Starting" in out


def test_a_run_that_cannot_start_anew_leaves_the_previous_one(user, command):
    name = "--experiment_name=stays"
    assert command(name)[0] == 0
    folder = user.folder / "results" / "stays"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    rows = user.folder / "rows.csv"
    rows.rename(user.folder / "elsewhere.csv")
    code, out, _ = command(name, "--fresh")
    assert code and "Moved the previous run back" in out
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before
    assert [path.name for path in folder.parent.iterdir()].count("stays.replaced-1") == 0
    (user.folder / "elsewhere.csv").rename(rows)
    code, out, _ = command(name)
    assert code == 0 and "is finished" in out
    # What fails after the new run has begun is the new run's; the previous one stays aside.
    user.write(losses_of_mine=LOSSES.replace("SCALE * tf", "SCALE * tf.math.log(-1.0) * tf"))
    code, out, _ = command(name, "--fresh")
    assert code == 3 and "Moved the previous run back" not in out
    kept = folder.with_name("stays.replaced-1")
    assert {p.name: p.read_bytes() for p in kept.iterdir() if p.is_file()} == before


def test_changes_of_a_finished_run_are_accepted_or_run_anew(user, command):
    name = "--experiment_name=again"
    assert command(name)[0] == 0
    folder = user.folder / "results" / "again"
    old = (folder / "metrics.csv").read_bytes()
    user.write(losses_of_mine=LOSSES.replace("1.0", "2.0"))
    assert command(name)[0] == 2
    code, out, _ = command(name, "--fresh")
    assert code == 0 and "Moved the previous run" in out and "again.replaced-1" in out
    assert (user.folder / "results/again.replaced-1/metrics.csv").read_bytes() == old
    assert (folder / "metrics.csv").read_bytes() != old
    assert [r.folder for r in run_folders.find_runs([str(folder)])] == [str(folder)]
    everything = run_folders.find_runs([str(user.folder / "results")])
    assert str(folder) in {r.folder for r in everything}
    assert not any("replaced" in r.folder for r in everything)
    user.write(losses_of_mine=LOSSES.replace("1.0", "3.0"))
    code, out, _err = command(name, "--accept_code_changes")
    assert code == 0 and "is finished" in out and "SCALE 2.0 → 3.0" in out
    assert json.loads((folder / "hparams.json").read_text())["accepted_changes"]
    assert command(name)[0] == 0
    assert command(name, "--fresh")[0] == 0
    assert (user.folder / "results/again.replaced-2/metrics.csv").exists()
    lines = run_folders.mixtures(
        [
            run_folders.read_run(str(user.folder / "results" / n))
            for n in ("again.replaced-2", "again")
        ]
    )
    assert any("accepted in 1 of 2 runs" in line and "SCALE" in line for line in lines)


def test_a_run_without_its_data_is_told_and_stays(user, command):
    (user.folder / "rows.csv").rename(user.folder / "elsewhere.csv")
    try:
        code, out, err = command()
    finally:
        (user.folder / "elsewhere.csv").rename(user.folder / "rows.csv")
    assert code == 0 and "is finished" in out
    assert "was not compared with the current data and model" in err and "rows.csv" in err


def forget_identity(folder):
    """Makes of a run one of a version that recorded no code."""
    path = folder / "hparams.json"
    content = json.loads(path.read_text())
    del content["identity"]
    path.write_text(json.dumps(content))


def test_a_run_of_a_version_that_recorded_no_code_starts_anew(user, command):
    name = "--experiment_name=earlier"
    assert command(name)[0] == 0
    forget_identity(user.folder / "results" / "earlier")
    for rounds in ((), ("--total_rounds=9",)):
        code, _, err = command(name, *rounds)
        assert code == 1 and err.count("\n") == 1
        assert "written by an earlier version of the suite" in err and "--fresh" in err
    code, out, _ = command(name, "--fresh")
    assert code == 0 and "earlier.replaced-1" in out


METHOD = '''
"""A method of my own."""

import functools

import tff_algos
from losses_of_mine import SCALE
from tff_algos.methods import fedopt


def build(model, training, factor=1.0):
    """Builds it."""
    return fedopt.build_fedavg(model, training)


def plan(settings, round_index, total_rounds):
    return tff_algos.RoundPlan(local_steps=2)


SPEC = tff_algos.MethodSpec(name="of_mine", summary="", paper="", builder={builder}, plan=plan)
tff_algos.register(SPEC)
SCALE
'''


@pytest.mark.parametrize(
    "builder", ["build", "'method_of_mine:build'", "functools.partial(build, factor=2.0)"]
)
def test_a_method_of_ones_own(user, command, builder):
    flags = [f for f in SMALL if "algorithm" not in f]
    flags += ["--import=method_of_mine", "--algorithm=of_mine", "--server_learning_rate=1"]
    text = METHOD.format(builder=builder)

    def found(method, losses=LOSSES):
        user.write(method_of_mine=method, losses_of_mine=losses)
        for name in ("method_of_mine", "losses_of_mine"):
            sys.modules.pop(name, None)
        tff_algos.registry._SPECS.pop("of_mine", None)
        with at(user):
            return identity.of_method(experiment_flags.parse(flags))

    def changes(*now):
        return identity.in_words(identity.differences(before, found(*now)))

    before = found(text)
    assert changes(text.replace("Builds it.", "Builds.")) == ""
    assert changes(text.replace("(model, training)\n", "(model, 1)\n")) == (
        "code: method_of_mine.py, build()"
    )
    assert changes(text.replace("steps=2", "steps=3")) == "code: method_of_mine.py, plan()"
    assert "losses_of_mine.py, SCALE" in changes(text, LOSSES.replace("1.0", "2.0"))
    if "partial" in builder:
        assert "factor 2.0 → 3.0" in changes(text.replace("factor=2.0", "factor=3.0"))
    tff_algos.registry._SPECS.pop("of_mine")
    (user.folder / "method_of_mine.py").unlink()


# Versions of methods and tasks.


@pytest.mark.parametrize("module", [tff_algos, tasks])
def test_every_version_has_its_line(module):
    for name in module.names():
        spec = module.get(name)
        assert spec.version == 1 + len(spec.history)
        with pytest.raises(ValueError, match=f"^{name}: version=.* lines of history"):
            dataclasses.replace(spec, version=spec.version + 1)


@pytest.fixture(scope="module")
def of_the_suite(tmp_path_factory):
    root = tmp_path_factory.mktemp("suite")
    assert run_experiment.main([*SMALL, f"--root_output_dir={root}"]) == 0
    return root


@pytest.mark.parametrize(
    ("module", "name", "kind"),
    [(tff_algos.registry, "fedavg", "method"), (tasks.registry, "synthetic", "task")],
)
def test_another_version_is_another_run(of_the_suite, monkeypatch, capfd, module, name, kind):
    flags = [*SMALL, f"--root_output_dir={of_the_suite}"]
    assert run_experiment.main(flags) == 0
    assert capfd.readouterr().err == ""
    spec = module.get(name)
    raised = dataclasses.replace(spec, version=2, history=("Rates count from 1.",))
    monkeypatch.setitem(module._SPECS, name, raised)
    assert run_experiment.main(flags) == 2
    assert f"({kind}: version 1 → 2 (Rates count from 1.))" in capfd.readouterr().err


def test_a_users_edit_of_the_suite_counts_and_another_commit_does_not(tmp_path):
    suite = copy_of_suite.make(tmp_path / "suite")
    flags = [*SMALL, f"--root_output_dir={tmp_path / 'results'}"]
    method = suite / "tff_algos" / "methods" / "fedopt.py"
    text = method.read_text()

    def git(*command):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *who, *command], cwd=suite, check=True, capture_output=True)

    def code(changed):
        method.write_text(changed)
        ended = copy_of_suite.run(suite, *flags)
        return ended.returncode, ended.stderr

    git("init")
    git("add", "-A")
    git("commit", "-m", "first")
    assert code(text)[0] == 0
    assert code(text.replace('"""', '"""Another text. ', 1)) == (0, "")
    edited = f"{text}\n\nANOTHER = 1\n"
    ended, told = code(edited)
    assert ended == 2 and "code: tff_algos/methods/fedopt.py" in told
    git("commit", "-am", "second")
    assert code(edited) == (0, ""), "what the suite brings is known by its versions"


# In Python.


def own_task(loss, **changes):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)).astype(np.float32), np.arange(12, dtype=np.int32) % 2
    data = ArrayFederatedData(x, y, np.split(np.arange(12), 3))

    def model(seed):
        tf.keras.utils.set_random_seed(seed)
        return tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])

    return Task(
        **{
            "name": "of_python",
            "train": data,
            "test": None,
            "central_test": None,
            "keras_model_fn": model,
            "loss": loss,
            "metrics": {},
            "primary_metric": "loss",
            "higher_is_better": False,
            **changes,
        }
    )


def cross_entropy(y, p):
    return tf.keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


def scaled(factor):
    return lambda y, p: factor * cross_entropy(y, p)


def in_python(root, task, **changes):
    return one_round(task, root, **({"client_learning_rate": 0.5, "runtime": "tff"} | changes))


def test_a_scaled_loss_in_python(tmp_path):
    first = in_python(tmp_path, own_task(scaled(1.0)))
    again = in_python(tmp_path, own_task(scaled(1.0)))
    assert all(np.array_equal(a, b) for a, b in zip(first.weights, again.weights, strict=True))
    with pytest.raises(ChangedError, match=r"\(loss: factor 1.0 → 100.0\)"):
        in_python(tmp_path, own_task(scaled(100.0)))
    with pytest.raises(ChangedError, match="metric half is new"):
        in_python(tmp_path, own_task(scaled(1.0), metrics={"half": scaled(0.5)}))
    with pytest.raises(ChangedError, match="loss reduction as the loss says → sum"):
        in_python(tmp_path, own_task(scaled(1.0), loss_reduction="sum"))
    fresh = in_python(tmp_path, own_task(scaled(100.0)), fresh=True)
    assert not np.array_equal(fresh.weights[0], first.weights[0])
    (aside,) = tmp_path.glob("of_python_fedavg*.replaced-1")
    assert (aside / "summary.json").exists()
    accepted = in_python(tmp_path, own_task(scaled(7.0)), accept_code_changes=True)
    assert np.array_equal(accepted.weights[0], fresh.weights[0])
    in_python(tmp_path, own_task(scaled(7.0)))


def test_a_model_given_in_python(tmp_path):
    def model(bias=0.0, units=4):
        tf.keras.utils.set_random_seed(1)
        made = tf.keras.Sequential(
            [tf.keras.Input([3]), tf.keras.layers.Dense(units), tf.keras.layers.Dense(2)]
        )
        weights = made.get_weights()
        weights[-1] += bias
        made.set_weights(weights)
        return made

    in_python(tmp_path, own_task(cross_entropy), model=model())
    in_python(tmp_path, own_task(cross_entropy), model=model())
    with pytest.raises(ChangedError, match=r"\(model: initial weights of layer 2 \(dense\)\)"):
        in_python(tmp_path, own_task(cross_entropy), model=model(bias=0.25))
    with pytest.raises(ChangedError, match="units 4 → 5"):
        in_python(tmp_path, own_task(cross_entropy), model=model(units=5))


def test_a_model_function_that_draws_anew_at_each_call(tmp_path):
    def draws(seed):
        return tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])

    task = own_task(cross_entropy, keras_model_fn=draws)
    first, again = in_python(tmp_path, task), in_python(tmp_path, task)
    assert all(map(np.array_equal, first.weights, again.weights))


def test_files_of_a_task_in_python(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a b c")
    in_python(tmp_path, own_task(cross_entropy, files=[path]))
    path.write_text("a b d")
    with pytest.raises(ChangedError, match=r"the task's file words.txt"):
        in_python(tmp_path, own_task(cross_entropy, files=[path]))


def test_data_that_make_other_examples_of_the_same_bytes(tmp_path):
    x, y = np.arange(36, dtype=np.uint8).reshape(12, 3), np.arange(12) % 2
    rows = np.split(np.arange(12), 3)

    def pixels(by):
        return ArrayFederatedData(x, y, rows, transform=lambda x: x / np.float32(by))

    class Rescaled(ArrayFederatedData):
        def examples(self, index):
            own = super().examples(index)
            return Examples(own.x / np.float32(255), own.y)

    in_python(tmp_path, own_task(cross_entropy, train=pixels(255)))
    in_python(tmp_path, own_task(cross_entropy, train=pixels(255)))
    with pytest.raises(ChangedError, match="transform of train: by 255 → 127"):
        in_python(tmp_path, own_task(cross_entropy, train=pixels(127)))
    with pytest.raises(ChangedError, match="class of train is new"):
        in_python(tmp_path, own_task(cross_entropy, train=Rescaled(x, y, rows)))


# Sweeps.

ITEM = """
title = "T"
[setups.s]
title = "S"
rounds = 2
seeds = [1]
columns = [{ name = "a", metric = "eval/accuracy" }]
[setups.s.rows]
fedavg = "a.flags"
"""


@pytest.fixture
def planned(user, command, tmp_path):
    """A user's sweep of one run, which is done."""
    flags = [flag for flag in FLAGS if "total_rounds" not in flag]
    (user.folder / "a.flags").write_text("\n".join(flags))
    (user.folder / "of_mine.toml").write_text(ITEM)
    with at(user):
        (item,) = items.own_items(str(user.folder))
        (setup,) = item.setups.values()
        forget()
        (run,) = items.planned_runs(setup, ["fedavg"], {"fedavg": [{}]}, [1], root=str(tmp_path))
        assert run_experiment.main([*run.command]) == 0
    with at(user), contextlib.chdir(REPO):
        yield user, run


def found_by(run, apart=changes.look_at):
    forget()
    return changes.compare([run], apart)


def test_a_sweep_compares_its_runs(planned):
    user, run = planned
    assert found_by(run) == changes.Compared({}, [], {})
    user.write(task_of_mine=TASK.replace("Loads it.", "Loads."))
    assert not found_by(run).changed
    user.write(task_of_mine=TASK.replace('Dense(32, "relu"', 'Dense(64, "tanh"'))
    assert "units 32 → 64" in found_by(run).changed[run].text
    user.write(task_of_mine=TASK)
    (user.folder / "rows.csv").write_text(table(899))
    assert "2,426 → 899" in found_by(run).changed[run].text
    (user.folder / "rows.csv").write_text(table())
    forget_identity(run.folder)
    found = found_by(run)
    assert found.unknown == [run] and not found.changed
    assert "recorded neither code nor versions" in places.told(found)[0]


def test_a_sweeps_run_with_other_code_gets_its_own_folder(planned, tmp_path, capfd):
    user, run = planned
    old = {path: path.read_bytes() for path in run.folder.glob("*.*")}
    user.write(task_of_mine=TASK.replace('Dense(32, "relu"', 'Dense(64, "tanh"'))
    forget()
    flags = [f"--items={user.folder}", "--item=of_mine", f"--root_output_dir={tmp_path}"]
    assert reproduce.main([*flags, "--dry_run"]) == 0
    out = capfd.readouterr().out
    assert "units 32 → 64" in out and "| fedavg | 1            | 2 " in out
    assert reproduce.main(flags) == 0
    out = capfd.readouterr().out
    assert "done already" not in out and "[1/1 done]" in out and "units 32 → 64" in out
    (new,) = run.folder.parent.glob(f"{run.name}.*")
    assert re.fullmatch(r"\.\w{8}", new.suffix) and new.name in out
    assert (new / "summary.json").exists()
    assert {path: path.read_bytes() for path in old} == old


def test_a_table_of_several_versions_says_so(of_the_suite, tmp_path):
    def copy(name, **changed):
        content = json.loads((of_the_suite / "synthetic_fedavg" / "hparams.json").read_text())
        for part, value in changed.items():
            content["identity"][part] = value
        if changed.get("identity", 0) is None:
            del content["identity"]
        content["start"]["stack"] = changed.get("stack", "current")
        folder = tmp_path / name
        folder.mkdir()
        (folder / "hparams.json").write_text(json.dumps(content))
        return run_folders.RunFolder(str(folder))

    same, method = copy("a"), copy("b", method={"version": 2})
    code = [copy(n, code={"mine.py": {"f()": n}}) for n in ("c", "d")]
    data = [copy(n, data={"digest": n}) for n in ("e", "f")]
    assert run_folders.mixtures([same, same]) == []
    (line,) = run_folders.mixtures([same, method])
    assert "method fedavg, version 1 in fedavg (seed 0); 2 in fedavg (seed 0)." in line
    (line,) = run_folders.mixtures([same, method], ["ours", "theirs"])
    assert "version 1 in ours (seed 0); 2 in theirs (seed 0)." in line
    assert "code of mine.py" in run_folders.mixtures(code)[0]
    assert "data of synthetic" in run_folders.mixtures(data)[0]
    old = copy("old", stack="published")
    assert "stack current in fedavg (seed 0); published in" in run_folders.mixtures([same, old])[0]
    units, drawn = "layer 1 (dense), units", "layer 1 (dense), kernel, initial weights"
    models = [
        copy(n, model={"layers": "dense", units: u, drawn: w})
        for n, u, w in (("h", "8", "x"), ("i", "8", "y"), ("j", "9", "x"))
    ]
    assert run_folders.mixtures(models[:2]) == []
    assert "model of synthetic one in fedavg" in run_folders.mixtures(models)[0]
    values = [copy(n, values={"loss, factor": n}) for n in ("k", "l")]
    assert "values of fedavg on synthetic one in" in run_folders.mixtures(values)[0]
    assert run_folders.mixtures([same, copy("g", identity=None)]) == [
        "1 of 2 runs recorded neither code nor versions."
    ]


def test_what_git_knows_as_changed(monkeypatch):
    identity._edited_at.cache_clear()
    assert all(not path.startswith("tests/") for path in identity._edited())
    monkeypatch.setattr(identity.code_places, "SUITE", str(pathlib.Path("/")))
    identity._edited_at.cache_clear()
    assert identity._edited() == frozenset(), "outside git"
    identity._edited_at.cache_clear()
