"""Checks, tags and builds a release.

    python tools/release.py 0.2.0

The tree must be clean, and `make lint`, `make test-ci` and `make site` must pass. It then writes
the version into `pyproject.toml`, which everything else reads, and into `CITATION.cff`; it gives
the changelog's section Unreleased the version and the date. It commits, tags the commit, and builds
the source distribution and the wheel into `dist/`.
"""

import datetime
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence

REPO = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from tff_suite import command_line, errors, parser

PARSER = parser.Parser(__doc__)
PARSER.positional("version", "the version, such as 0.2.0")

CHECKS = (("make", "lint"), ("make", "test-ci"), ("make", "site"))
# The Makefile has it, too, so that a wrong version installs nothing.
VERSION = r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}"
_UNRELEASED = "## Unreleased\n"
_BUILD = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"


class ReleaseError(errors.FedError):
    """A reason why a release cannot be made; the message is one line."""


class VersionError(ReleaseError):
    """A version that is none, or exists already."""

    exit_code = 2


def release(
    version: str,
    folder: pathlib.Path = REPO,
    checks: Sequence[Sequence[str]] = CHECKS,
    date: str | None = None,
) -> list[pathlib.Path]:
    """Makes a release.

    Args:
      version: The version, `major.minor.patch`.
      folder: The repository.
      checks: Commands that must succeed in the repository.
      date: Date of the release, `YYYY-MM-DD`; today if not given.

    Returns:
      The files built.

    Raises:
      VersionError: If the version is malformed or not a new one.
      ReleaseError: If the tree is not clean, or a check fails.
    """
    if not re.fullmatch(VERSION, version):
        raise VersionError(f"{version!r} is not a version; write one like 0.2.0.")
    tag = f"v{version}"
    if _git(folder, "tag", "--list", tag):
        raise VersionError(f"The tag {tag} exists; choose another version.")
    _refuse_changes(folder)
    changelog = folder / "CHANGELOG.md"
    if not _entries(changelog.read_text()):
        raise ReleaseError("CHANGELOG.md has nothing under Unreleased; write what changed.")
    for check in checks:
        if subprocess.run(check, cwd=folder).returncode:
            raise ReleaseError(f"{' '.join(check)} failed; nothing was changed.")
    _refuse_changes(folder)
    _write_version(folder, version)
    date = date or datetime.date.today().isoformat()
    text = changelog.read_text().replace(_UNRELEASED, f"{_UNRELEASED}\n## {version} - {date}\n", 1)
    changelog.write_text(text)
    _git(folder, "commit", "--quiet", "--all", "--message", f"Release {version}")
    _git(folder, "tag", "--annotate", tag, "--message", f"Release {version}")
    built = subprocess.run(
        [sys.executable, "-c", _BUILD], cwd=folder, capture_output=True, text=True
    )
    if built.returncode:
        raise ReleaseError(f"{tag} is tagged but could not be built: {built.stderr[-500:]}")
    return sorted((folder / "dist").glob(f"*{version}*"))


def _git(folder: pathlib.Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def _refuse_changes(folder):
    changed = _git(folder, "status", "--porcelain")
    if changed:
        first = changed.splitlines()[0][3:]
        raise ReleaseError(f"The tree is not clean ({first}); commit or remove what is there.")


def _entries(changelog: str) -> list[str]:
    unreleased = changelog.partition(_UNRELEASED)[2].partition("\n## ")[0]
    return [line for line in unreleased.splitlines() if line.startswith("- ")]


def _write_version(folder, version):
    for name, pattern in (
        ("pyproject.toml", r'^version = ".*"$'),
        ("CITATION.cff", r"^version: .*$"),
    ):
        path = folder / name
        new = re.search(pattern, path.read_text(), re.M)[0]
        new = re.sub(r"[\d.]+", version, new)
        path.write_text(re.sub(pattern, new, path.read_text(), count=1, flags=re.M))


@command_line.reported
def main(arguments: list[str]) -> int:
    """Makes the release; returns the exit code."""
    for path in release(PARSER.parse(arguments).version):
        print(path)
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
