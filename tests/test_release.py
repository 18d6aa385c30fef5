"""`make release`: what it refuses and writes, and that its wheel runs in an empty environment."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile

import pytest

from tools import release

REPO = pathlib.Path(__file__).resolve().parent.parent
PASSES = ((sys.executable, "-c", ""),)
FAILS = ((sys.executable, "-c", "raise SystemExit(1)"),)


def git(folder, *arguments):
    named = ["-c", "user.name=tests", "-c", "user.email=tests@example.org"]
    command = ["git", *named, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A small repository with what a release changes."""
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "LICENSE"):
        shutil.copy(REPO / name, tmp_path)
    for key in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{key}_NAME", "tests")
        monkeypatch.setenv(f"GIT_{key}_EMAIL", "tests@example.org")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- A change.\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "First")
    return tmp_path


def refused(folder, version="0.2.0", checks=PASSES):
    before = git(folder, "rev-parse", "HEAD")
    with pytest.raises(release.ReleaseError) as caught:
        release.release(version, folder, checks)
    assert git(folder, "rev-parse", "HEAD") == before and "\n" not in str(caught.value)
    return str(caught.value)


def test_a_release_needs_a_version_of_three_numbers(small):
    assert "write one like 0.2.0" in refused(small, "2")


def test_a_release_needs_a_new_version(small):
    git(small, "tag", "v0.2.0")
    assert "v0.2.0 exists" in refused(small)


def test_a_release_needs_a_clean_tree(small):
    (small / "LICENSE").write_text("other")
    assert "not clean (LICENSE)" in refused(small)


def test_a_release_needs_entries_in_the_changelog(small):
    (small / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 0.1.0\n\n- Old.\n")
    git(small, "commit", "--all", "--message", "Changelog")
    assert "nothing under Unreleased" in refused(small)


def test_a_release_needs_its_checks(small):
    assert "failed; nothing was changed" in refused(small, checks=FAILS)
    assert not git(small, "tag")


def test_the_checks_are_commands_that_there_are():
    targets = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.M))
    assert {"lint", "test", "site", "release"} <= targets
    assert {command[1] for command in release.CHECKS} == {"lint", "test", "site"}


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The files that a release of this tree builds."""
    folder = tmp_path_factory.mktemp("released")
    named = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, text=True)
    if named.returncode:
        pytest.skip("this copy of the suite is not a git repository")
    for name in filter(None, named.stdout.split("\0")):
        # Results and pictures make the copy slow and are no code.
        if name.startswith("tests/") or re.fullmatch(r"papers/.*\.(csv|png|xz)", name):
            continue
        if (REPO / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / name, folder / name)
    environment = {f"GIT_{k}_NAME": "tests" for k in ("AUTHOR", "COMMITTER")}
    environment |= {f"GIT_{k}_EMAIL": "tests@example.org" for k in ("AUTHOR", "COMMITTER")}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        git(folder, "init", "--quiet")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", "First")
        return folder, release.release("9.8.7", folder, PASSES, date="2026-01-02")
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def test_a_release_writes_the_version_tags_and_builds(released):
    folder, files = released
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["version"] == "9.8.7"
    assert "\nversion: 9.8.7\n" in (folder / "CITATION.cff").read_text()
    assert "## Unreleased\n\n## 9.8.7 - 2026-01-02\n" in (folder / "CHANGELOG.md").read_text()
    assert git(folder, "describe", "--exact-match").strip() == "v9.8.7"
    assert not git(folder, "status", "--porcelain", "--untracked-files=no")
    archive, wheel = sorted(files, key=lambda path: path.suffix)
    assert wheel.suffix == ".whl" and archive.name == "tff_algos-9.8.7.tar.gz"
    assert "tff_algos/methods/fedadam.py" not in zipfile.ZipFile(wheel).namelist()
    assert "tff_algos/methods/fedopt.py" in zipfile.ZipFile(wheel).namelist()
    with tarfile.open(archive) as contents:
        assert "tff_algos-9.8.7/pyproject.toml" in contents.getnames()


@pytest.mark.long
def test_the_wheel_runs_the_first_experiment_in_an_empty_environment(released, tmp_path):
    """Its requirements, gigabytes from the network, are this environment's."""
    _, files = released
    (wheel,) = [path for path in files if path.suffix == ".whl"]
    venv.create(tmp_path / "empty", with_pip=False)
    python = tmp_path / "empty" / "bin" / "python"
    (packages,) = (tmp_path / "empty" / "lib").glob("python*/site-packages")
    pip = "install --quiet --no-input --disable-pip-version-check --no-index --no-deps".split()
    subprocess.run(
        [sys.executable, "-m", "pip", f"--python={python}", *pip, str(wheel)], check=True
    )
    (requirements,) = {p for p in sys.path if p.endswith("site-packages")}
    (packages / "requirements.pth").write_text(requirements)
    text = (REPO / "README.md").read_text()
    command = re.search(r"run_experiment\.py(.*?)\n\n", text, re.S).group(1)
    done = subprocess.run(
        [tmp_path / "empty" / "bin" / "tff-algos-run", *command.replace("\\\n", " ").split()],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "synthetic_fedadam" / "summary.json").exists()
    said = subprocess.run(
        [tmp_path / "empty" / "bin" / "tff-algos-run", "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert said.stdout.strip() == "tff-algos 9.8.7"
