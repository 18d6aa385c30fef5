"""The lists of packages and the commands that install them."""

import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tff_suite import compat

_REPO = pathlib.Path(__file__).resolve().parent.parent
_OVERRIDE = "#override "
# Folder of a stack's lists, by its name.
_FOLDERS = {"current": "", "published": "stacks/published/"}
_ALL = [
    f"{folder}requirements{part}.txt"
    for folder in _FOLDERS.values()
    for part in ("", "-gpu", "-tracking")
]
_OURS = _FOLDERS[compat.stack()]
_LOCKS = [
    *_ALL,
    *(f"benchmarks/peers/requirements-{peer}.txt" for peer in ("fedjax", "pfl", "flower")),
]


def _entries(lock: str) -> list[str]:
    """One line a package, its hashes joined to it."""
    text = (_REPO / lock).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def _pins(lock: str) -> dict[str, Version]:
    pins = {}
    for entry in _entries(lock):
        name, version = entry.split()[0].split("==")
        pins[canonicalize_name(name)] = Version(version)
    return pins


def _asked(source: str) -> list[Requirement]:
    lines = (_REPO / source).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("lock", _LOCKS)
def test_every_package_is_pinned_and_hashed(lock):
    entries = _entries(lock)
    assert entries
    for entry in entries:
        assert re.fullmatch(
            r"[A-Za-z0-9._-]+==[^\s*;]+(?: ; \S.*?)?(?:\s+--hash=sha256:[0-9a-f]{64})+", entry
        ), entry
    assert len(_pins(lock)) == len(entries), "a package is listed twice"


@pytest.mark.parametrize("lock", _LOCKS)
def test_lock_holds_what_was_asked_for(lock):
    pins = _pins(lock)
    for requirement in _asked(lock.replace(".txt", ".in")):
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement


@pytest.mark.parametrize("folder", _FOLDERS.values(), ids=_FOLDERS)
def test_overrides_hold_and_say_why(folder):
    lines = (_REPO / f"{folder}requirements.in").read_text().splitlines()
    pins = _pins(f"{folder}requirements.txt")
    overrides = [i for i, line in enumerate(lines) if line.startswith(_OVERRIDE)]
    assert overrides
    for i in overrides:
        requirement = Requirement(lines[i].removeprefix(_OVERRIDE))
        name = canonicalize_name(requirement.name)
        assert name not in pins or pins[name] in requirement.specifier, requirement
        assert lines[i - 1].startswith("#"), f"{requirement}: no reason beside it"


def test_the_tests_run_with_what_is_locked():
    wrong = {}
    # Not all of sys.path: Ray, once imported, puts a psutil of its own there.
    path = [sysconfig.get_path("purelib")]
    for name, version in _pins(f"{_OURS}requirements.txt").items():
        (found,) = importlib.metadata.distributions(name=name, path=path)
        installed = Version(found.version)
        if installed != version:
            wrong[name] = (installed, version)
    assert not wrong


def test_gpu_list_is_tensorflows_own_without_tensorrt():
    wanted = {}
    pins = _pins(f"{_OURS}requirements-gpu.txt")
    for line in importlib.metadata.requires("tensorflow"):
        requirement = Requirement(line)
        if requirement.marker and requirement.marker.evaluate({"extra": "and-cuda"}):
            if not requirement.marker.evaluate({"extra": ""}):
                wanted[canonicalize_name(requirement.name)] = requirement.specifier
    if compat.stack() == compat.PUBLISHED:
        assert wanted.pop("tensorrt")
    assert pins.keys() == wanted.keys() and len(pins) >= 10
    for name, version in pins.items():
        assert version in wanted[name], name


def test_one_list_serves_every_cpython_of_the_current_stack():
    """No line is for some of them only; `make lock` checks that all resolve to it."""
    for lock in _ALL:
        assert not any(";" in entry for entry in _entries(lock)), lock
    makefile = (_REPO / "Makefile").read_text()
    (versions,) = re.findall(
        r"^ifeq .*current\)\n(?:.*\n)*?PYTHONS := (.*)$", makefile, re.MULTILINE
    )
    project = tomllib.loads((_REPO / "pyproject.toml").read_text())["project"]
    accepted = SpecifierSet(project["requires-python"])
    assert [v for v in map("3.{}".format, range(8, 20)) if v in accepted] == versions.split()
    for version in versions.split():
        assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    assert (
        f"CPython {versions.split()[0]} to {versions.split()[-1]}"
        in (_REPO / "README.md").read_text()
    )


def test_what_both_stacks_must_agree_on():
    """TFF; and Ray, of which later releases listen beyond the loopback interface."""
    current, published = (_pins(f"{folder}requirements.txt") for folder in _FOLDERS.values())
    assert current["tensorflow-federated"] == published["tensorflow-federated"]
    assert current["ray"] == published["ray"] == Version("2.52.1")


@pytest.mark.parametrize("folder", _FOLDERS.values(), ids=_FOLDERS)
def test_tracking_list_agrees_with_what_all_installations_have(folder):
    base = _pins(f"{folder}requirements.txt")
    tracking = _pins(f"{folder}requirements-tracking.txt")
    shared = base.keys() & tracking.keys()
    assert shared and {n: base[n] for n in shared} == {n: tracking[n] for n in shared}


def _make(*arguments: str, cwd: pathlib.Path = _REPO, **environment: str):
    # A make that runs these tests would hand down its own flags and variables.
    inherited = {key: os.environ[key] for key in ("HOME", "PATH") if key in os.environ}
    return subprocess.run(
        [shutil.which("make"), "--no-print-directory", *arguments],
        cwd=cwd,
        env={**inherited, "LC_ALL": "C", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


_WANTED = {"current": "no CPython 3.11 or 3.12 or 3.13", "published": "no CPython 3.11 with"}


@pytest.mark.parametrize("stack", _FOLDERS)
@pytest.mark.parametrize("found", ["no such file", "another version"])
def test_no_fitting_python_is_one_clear_line(tmp_path, found, stack):
    python = tmp_path / "python"
    if found == "another version":
        # What an interpreter of another version, or a shim without one behind it, does when asked.
        python.write_text("#!/bin/sh\necho noise >&2\nexit 1\n")
        python.chmod(0o755)
    result = _make("venv", f"STACK={stack}", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}")
    assert result.returncode != 0
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert _WANTED[stack] in line
    assert str(python) in line
    assert "apt install python3.11" in line
    assert not (tmp_path / "venv").exists()


def test_another_stack_is_one_clear_line():
    result = _make("venv", "STACK=newest")
    assert result.returncode != 0 and result.stdout == ""
    assert "STACK=newest must be current or published" in result.stderr


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("stack", _FOLDERS)
def test_each_stack_takes_its_interpreters_only(tmp_path, stack, version):
    """The question is answered by this interpreter, which says that it is another version."""
    python, log = tmp_path / "python", tmp_path / "log"
    _fake_python(python, log, version=version)
    result = _make("venv", f"STACK={stack}", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}")
    fits = version in {"current": ("3.11", "3.12", "3.13"), "published": ("3.11",)}[stack]
    assert (result.returncode == 0) == fits
    if fits:
        assert f"-r {_FOLDERS[stack]}requirements.txt" in log.read_text()
        # What TFF's own import says is the current stack's affair.
        assert ("tools/bare_import.py" in log.read_text()) == (stack == "current")


@pytest.mark.parametrize(
    ("stack", "folder"), [("current", ".venv"), ("published", ".venv-published")]
)
def test_both_stacks_have_a_folder_of_their_own(stack, folder):
    assert f"{folder}/" in _make("-n", "-B", "venv-gpu", f"STACK={stack}").stdout
    for ignored in (".gitignore", ".dockerignore", ".bazelignore"):
        assert folder in (_REPO / ignored).read_text().split(), ignored


def _fake_python(
    path: pathlib.Path, log: pathlib.Path, pip_fails: bool = False, version: str = "3.11"
):
    """An interpreter that only notes what it was asked; its virtual environment holds itself."""
    said = f"sys.version_info = ({version.replace('.', ', ')}, 0)"
    path.write_text(f"""#!/bin/sh
echo "$@" >> {log}
case "$1" in
  -c) exec {sys.executable} -c "import sys; {said}; exec(sys.argv[1])" "$2";;
esac
case "$*" in
  *"-m venv"*) for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python";;
  *"-m pip"*) exit {int(pip_fails)};;
esac
""")
    path.chmod(0o755)


def test_interrupted_installation_starts_over_and_a_finished_one_does_not(tmp_path):
    venv, python, log = tmp_path / "venv", tmp_path / "python", tmp_path / "log"
    arguments = ("venv", f"VENV={venv}", f"PYTHON={python}")
    _fake_python(python, log, pip_fails=True)
    assert _make(*arguments).returncode != 0
    assert (venv / "bin" / "python").exists()

    _fake_python(python, log)
    log.unlink()
    result = _make(*arguments)
    assert result.returncode == 0, result.stderr
    assert "-m venv --clear" in log.read_text()
    assert "--no-deps --require-hashes" in log.read_text()

    python.unlink()
    log.unlink()
    os.utime(venv / "requirements.installed", (0, 0))
    result = _make(*arguments)
    assert result.returncode == 0, result.stderr
    assert not log.exists()


def test_python3_serves_where_python3_11_is_not_on_path(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "sh", "cmp", "cp", "mkdir", "mv", "touch", "grep", "sed"):
        (folder / tool).symlink_to(shutil.which(tool))
    _fake_python(folder / "python3", log)
    result = _make("venv", f"VENV={tmp_path / 'venv'}", "SHELL=/bin/bash", PATH=str(folder))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "venv" / "requirements.installed").exists()


@pytest.mark.parametrize(
    "place", [".pyenv/versions/3.13.1/bin", ".local/share/uv/python/cpython-3.13.1-linux/bin"]
)
def test_interpreters_of_pyenv_and_uv_are_found_off_path(tmp_path, place):
    """pyenv puts a shim on PATH that starts nothing unless its version is selected."""
    log, folder, home = tmp_path / "log", tmp_path / "bin", tmp_path / "home"
    folder.mkdir()
    (home / place).mkdir(parents=True)
    for tool in ("bash", "sh", "cmp", "cp", "mkdir", "mv", "touch", "grep", "sed"):
        (folder / tool).symlink_to(shutil.which(tool))
    (folder / "python3.13").write_text("#!/bin/sh\necho not selected >&2\nexit 127\n")
    (folder / "python3.13").chmod(0o755)
    _fake_python(home / place / "python", log, version="3.13")
    arguments = "venv", f"VENV={tmp_path / 'venv'}", "SHELL=/bin/bash"
    result = _make(*arguments, PATH=str(folder), HOME=str(home))
    assert result.returncode == 0, result.stderr
    assert "-m venv" in log.read_text()


def test_help_names_every_command():
    makefile = (_REPO / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    shown = re.findall(r"^make (\S+) +\S", _make("help").stdout, re.MULTILINE)
    assert shown == phony.split()


def test_ci_runs_the_commands_that_people_run():
    script = _REPO / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make lint test-ci test-stacks"


def test_the_console_commands_are_functions_that_there_are():
    project = tomllib.loads((_REPO / "pyproject.toml").read_text())
    setup = project["tool"]["setuptools"]
    assert len(project["project"]["scripts"]) == 3
    for target in project["project"]["scripts"].values():
        module, function = target.split(":")
        of_a_package = module.partition(".")[0] + "*" in setup["packages"]["find"]["include"]
        assert of_a_package or module in setup["py-modules"]
        assert callable(getattr(importlib.import_module(module), function))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the package is installed into: without network, with one of the papers."""
    if not all(map(importlib.util.find_spec, ("pip", "setuptools"))):
        pytest.skip("pip or the build back end, setuptools, is not there")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    setuptools = tomllib.loads((_REPO / "pyproject.toml").read_text())["tool"]["setuptools"]
    files = ["pyproject.toml", "README.md", "LICENSE"]
    for name in [*files, *(f"{module}.py" for module in setuptools["py-modules"])]:
        shutil.copy(_REPO / name, source)
    others = [path.name for path in (_REPO / "papers").iterdir() if path.name != "adafedadam"]
    for room in setuptools["packages"]["find"]["include"]:
        room = room.removesuffix("*")
        left_out = shutil.ignore_patterns("__pycache__", *(others if room == "papers" else ()))
        shutil.copytree(_REPO / room, source / room, ignore=left_out)
    pip = "-m pip install --quiet --no-input --disable-pip-version-check"
    how = "--no-index --no-deps --no-build-isolation --no-compile"
    command = [sys.executable, *pip.split(), *how.split(), f"--target={target}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def test_what_is_installed_has_the_commands_modules_and_the_papers(installed):
    code = """
import reproduce, run_experiment
print(reproduce.__file__, run_experiment.__file__)
reproduce.main(["--list", "--paper=adafedadam"])
run_experiment.main(["--flagfile=papers/adafedadam/flags/table5_synthetic_fedadam.flags", "--help"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    commands = {path.name for path in (installed / "bin").iterdir()}
    assert commands == {"tff-algos-reproduce", "tff-algos-run", "tff-algos-runs"}
    assert done.stdout.startswith(f"{installed}/reproduce.py {installed}/run_experiment.py\n")
    for path in (_REPO / "papers" / "adafedadam").glob("*.toml"):
        assert f"--paper=adafedadam --item={path.stem}: " in done.stdout
    assert "--fedadam_tau" in done.stdout


def test_all_of_the_papers_but_pictures_and_archives_is_installed():
    project = tomllib.loads((_REPO / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    suffixes = {path.suffix for path in (_REPO / "papers").rglob("*") if path.is_file()}
    assert {f"*{suffix}" for suffix in suffixes} - {"*.png", "*.xz"} <= set(patterns)


# Of the Citation File Format's schema, 1.2.0: all keys, and those without which it is refused.
_CITATION_KEYS = set(
    "abstract authors cff-version commit contact date-released doi identifiers keywords license "
    "license-url message preferred-citation references repository repository-artifact "
    "repository-code title type url version".split()
)
_CITATION_NEEDS = {"authors", "cff-version", "message", "title"}
_REFERENCE_NEEDS = {"authors", "title", "type"}


def test_the_citation_has_what_its_format_wants_and_names_people():
    citation = yaml.safe_load((_REPO / "CITATION.cff").read_text())
    assert _CITATION_NEEDS <= citation.keys() <= _CITATION_KEYS
    assert all(citation[key] for key in _CITATION_NEEDS)
    assert citation["cff-version"] == "1.2.0" and citation["type"] in ("software", "dataset")
    project = tomllib.loads((_REPO / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"]
    assert len(citation["references"]) == 5
    for reference in citation["references"]:
        assert _REFERENCE_NEEDS <= reference.keys()
        assert reference["type"] in ("article", "conference-paper")
        for author in reference["authors"]:  # A person, not an entity.
            assert author.keys() == {"family-names", "given-names"}, reference["title"]
        for identifier in reference["identifiers"]:
            assert identifier.keys() == {"type", "value"} and identifier["type"] == "other"


def test_what_others_read_of_the_project_names_what_there_is():
    """The container and the workflow call commands that exist; the citation names five papers."""
    targets = set(re.findall(r"^([a-z-]+):", (_REPO / "Makefile").read_text(), re.M))
    container = (_REPO / "Dockerfile").read_text()
    called = re.findall(r"make (venv[a-z-]*)", container)
    assert called and set(called) <= targets
    for name in re.findall(r"^COPY ([\w. -]+) \./$", container, re.M)[0].split():
        assert (_REPO / name).exists(), name
    assert "bash .ci/run" in (_REPO / ".github" / "workflows" / "ci.yml").read_text()
    citation = (_REPO / "CITATION.cff").read_text()
    assert "license: Apache-2.0" in citation and citation.count('value: "arXiv:') == 5
    assert "Version 2.0, January 2004" in (_REPO / "LICENSE").read_text()
