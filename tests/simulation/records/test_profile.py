"""Profiles of rounds, for TensorBoard."""

import csv
import importlib.util
import pathlib
import re

import pytest

import run_experiment
from simulation import run_checks
from simulation.records import profile
from tff_suite import compat
from tff_suite.hparams import HparamError

_REPO = pathlib.Path(__file__).resolve().parents[3]
_RUN = (
    *("--task=synthetic", "--algorithm=fedadam", "--total_rounds=4", "--clients_per_round=2"),
    *("--client_batch_size=5", "--client_learning_rate=0.1", "--server_learning_rate=0.1"),
    *("--synthetic_num_clients=6", "--synthetic_max_examples=20"),
)


@pytest.mark.parametrize(("text", "rounds"), [("3", (3, 3)), ("2-5", (2, 5)), ("7-7", (7, 7))])
def test_rounds(text, rounds):
    assert run_checks.profiled_rounds(text) == rounds


@pytest.mark.parametrize("text", ["", "0", "0-3", "5-2", "-1", "2-", "one", "1,2", "1.5"])
def test_what_names_no_rounds_is_refused(text):
    with pytest.raises(HparamError, match=f"--profile={text} must be a round"):
        run_checks.profiled_rounds(text)


def test_a_profile_of_no_round_is_a_warning(tmp_path):
    said, warned = [], []
    with profile.Profile("3", str(tmp_path), say=said.append, warn=warned.append) as profiled:
        profiled.before_round(1)
    assert not said
    assert warned == ["--profile=3: these rounds were not done, so no profile was written."]


@pytest.mark.parametrize(
    ("stack", "lock"),
    [("current", "requirements.txt"), ("published", "stacks/published/requirements.txt")],
)
def test_what_shows_profiles_is_named_with_the_version_of_the_pinned_tensorboard(stack, lock):
    """And the page on run folders has the current stack's."""
    pins = (_REPO / lock).read_text()
    (tensorboard,) = re.findall(r"^tensorboard==(\d+\.\d+)\.", pins, re.MULTILINE)
    assert f"tensorboard-plugin-profile=={tensorboard}." in profile.VIEWERS[stack]
    install = f"pip install {profile.VIEWERS['current']}"
    assert install in " ".join((_REPO / "docs" / "run_folder.md").read_text().split())


def _rows(folder: pathlib.Path):
    with open(folder / "metrics.csv", newline="") as f:
        rows = csv.DictReader(f)
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.mark.slow
def test_a_profile_is_written_and_changes_no_bit(tmp_path, capfd):
    given = [*_RUN, f"--root_output_dir={tmp_path}"]
    assert run_experiment.main([*given, "--experiment_name=plain"]) == 0
    assert run_experiment.main([*given, "--experiment_name=seen", "--profile=2-3"]) == 0
    told = capfd.readouterr().out
    assert f"Wrote the profile of round 2-3 to {tmp_path}/seen/plugins/profile." in told
    if importlib.util.find_spec("tensorboard_plugin_profile") is None:
        assert f"pip install {profile.VIEWERS[compat.stack()]}" in told
    assert _rows(tmp_path / "seen") == _rows(tmp_path / "plain")
    (found,) = (tmp_path / "seen" / "plugins" / "profile").rglob("*.xplane.pb")
    assert found.stat().st_size > 1000
    # A range that ends before the run, of one that is resumed: nothing to record.
    assert (
        run_experiment.main([*given, "--experiment_name=plain", "--total_rounds=5", "--profile=2"])
        == 0
    )
    assert "--profile=2: these rounds were not done" in capfd.readouterr().err
    assert not (tmp_path / "plain" / "plugins").exists()
