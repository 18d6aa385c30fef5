"""`make release`: what it refuses and writes, and that its wheel runs in an empty environment."""

import ast
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
from packaging.utils import canonicalize_name

from tff_suite import compat
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


VERSIONS = {
    "0.2.0": True,
    "10.20.30": True,
    "": False,
    "2": False,
    "0.2": False,
    "0.2.0.1": False,
    "v0.2.0": False,
    "0.2.0rc1": False,
    "01.2.3": False,
    "٠.٢.٠": False,
    "0.2.0; false": False,
    "it's": False,
}


@pytest.mark.parametrize("version", [v for v, is_one in VERSIONS.items() if not is_one])
def test_a_release_needs_a_version_of_three_numbers(small, version):
    assert "write one like 0.2.0" in refused(small, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_make_refuses_a_wrong_version_in_one_line_before_it_installs(tmp_path, version):
    environment = {key: os.environ[key] for key in ("HOME", "PATH") if key in os.environ}
    done = subprocess.run(
        ["make", "-n", "release", f"VERSION={version}", f"VENV={tmp_path / 'venv'}"],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert not (tmp_path / "venv").exists()
    if VERSIONS[version]:
        assert done.returncode == 0 and f"tools/release.py '{version}'" in done.stdout
    else:
        assert done.returncode == 2 and done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert "is not a version; write one like make release VERSION=0.2.0" in line


def test_a_wrong_version_is_exit_code_2():
    done = subprocess.run(
        [sys.executable, "tools/release.py", "2"], cwd=REPO, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: '2' is not a version; write one like 0.2.0.\n"


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
    assert {"lint", "test-ci", "site", "release"} <= targets
    assert {command[1] for command in release.CHECKS} == {"lint", "test-ci", "site"}


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


# Files of a package's folder that only a checkout needs.
_OF_A_CHECKOUT = {"BUILD"}


def test_the_wheel_has_every_file_of_its_packages(released):
    folder, files = released
    (wheel,) = [path for path in files if path.suffix == ".whl"]
    held = set(zipfile.ZipFile(wheel).namelist())
    packages = {name.split("/")[0] for name in held if name.endswith("/__init__.py")}
    tracked = git(folder, "ls-files").splitlines()
    wanted = {name for name in tracked if name.split("/")[0] in packages}
    assert packages >= {"reproduction", "simulation", "tasks", "tff_algos", "tff_suite"}
    lacking = {name for name in wanted - held if pathlib.Path(name).name not in _OF_A_CHECKOUT}
    assert not lacking


def test_the_wheel_imports_only_itself_and_what_the_lock_installs(released):
    _, files = released
    (path,) = [path for path in files if path.suffix == ".whl"]
    wheel = zipfile.ZipFile(path)
    sources = [name for name in wheel.namelist() if name.endswith(".py")]
    modules = {s.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for s in sources}
    own = {module.split(".")[0] for module in modules}
    # Folders with data alone, such as papers/, are packages without a file.
    folders = {str(pathlib.PurePosixPath(name).parent) for name in wheel.namelist()}
    modules |= {folder.replace("/", ".") for folder in folders if folder.split("/")[0] in own}
    locked = set()
    for name in ("requirements.txt", "requirements-tracking.txt"):
        lines = (REPO / name).read_text()
        locked |= {canonicalize_name(n) for n in re.findall(r"^([\w.-]+)==", lines, re.M)}
    of_module = importlib.metadata.packages_distributions()
    wrong, outside = set(), set()
    for source in sources:
        for node in ast.walk(ast.parse(wheel.read(source))):
            named = [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            named += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for module in named:
                top = module.split(".")[0]
                if top in own:
                    wrong |= {(source, module)} - {(source, known) for known in modules}
                elif top not in sys.stdlib_module_names:
                    outside.add((source, top))
    assert not wrong, "modules of the suite that the wheel lacks"
    assert {"absl", "numpy", "tensorflow"} <= {top for _, top in outside}
    for source, top in outside:
        # What is not installed here, such as MLflow, is known by how its name begins.
        like = [name for name in locked if name.split("-")[0] == top]
        distributions = {canonicalize_name(d) for d in of_module.get(top, like)}
        assert distributions & locked, f"{source} imports {top}"


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_the_wheel_runs_the_first_experiment_in_an_empty_environment(released, tmp_path):
    """The environment holds what `make venv` installs there, and the wheel."""
    _, files = released
    (wheel,) = [path for path in files if path.suffix == ".whl"]
    empty = tmp_path / "empty"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MAKEFLAGS")}

    def run(*command, where=tmp_path):
        # A file, not a pipe: TFF's worker may hold a pipe open.
        with open(tmp_path / "said", "w") as said:
            done = subprocess.run(
                list(map(str, command)), cwd=where, env=environment, stdout=said, stderr=said
            )
        return done.returncode, (tmp_path / "said").read_text()

    chosen = [f"VENV={empty}", f"STACK={compat.stack()}", f"PYTHON={sys._base_executable}"]
    code, said = run("make", "venv", *chosen, where=REPO)
    if code and re.search("NewConnectionError|Temporary failure|timed out", said):
        pytest.skip("the package index cannot be reached")
    assert code == 0, said[-3000:]
    pip = "-m pip install --quiet --no-input --disable-pip-version-check --no-index --no-deps"
    code, said = run(empty / "bin" / "python", *pip.split(), wheel)
    assert code == 0, said[-3000:]
    code, said = run(empty / "bin" / "python", "-c", "import tasks; print(tasks.__file__)")
    assert said.startswith(str(empty)), said
    text = (REPO / "README.md").read_text()
    command = re.search(r"run_experiment\.py(.*?)\n\n", text, re.S).group(1)
    flags = command.replace("\\\n", " ").split()
    code, said = run(empty / "bin" / "tff-algos-run", *flags)
    assert code == 0, said[-3000:]
    assert (tmp_path / "results" / "synthetic_fedadam" / "summary.json").exists()
    assert run(empty / "bin" / "tff-algos-run", "--version")[1].strip() == "tff-algos 9.8.7"
