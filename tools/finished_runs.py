"""Archives the runs of items that are not recorded yet, and restores them.

    python tools/finished_runs.py pack results/reproduce fedda/mnist_ae
    python tools/finished_runs.py unpack results/reproduce

An item may take longer than a machine is available. `pack` takes a FOLDER of runs such as
`fedda/mnist_ae`. It archives the results of the finished and diverged runs, without states and
event files, in `papers/<paper>/unfinished/<folder>.tar.xz`, and the league's in
`league/unfinished/`. On another machine run `unpack`; `reproduce.py` with this
`--root_output_dir` then skips these runs. If a search promotes one of them, it starts anew, since
the archive lacks its state. With `--states` the archive also has the other runs with their states
as of the newest checkpoint, so that they continue from there. Stop the runs first. Once an item is
recorded, you may delete its archive.
"""

import io
import json
import pathlib
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

REPO = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from simulation.records import checkpoints, outputs
from tff_suite import command_line, parser, writing

PARSER = parser.Parser(__doc__)
PARSER.positional("action", "what to do", choices=["pack", "unpack"])
PARSER.positional("root", "--root_output_dir of the runs")
PARSER.positional("folders", "folders of runs below it, to pack", many=True, required=False)
PARSER.flag("states", False, "Pack the runs that have not ended, too: several MB each.")

# The league is no paper: it stands beside papers/.
LEAGUE = "league"
# What results, tables and figures are made of; `reproduction.run_folders` reads no other file but
# data_digests.json, where it is there.
FILES = ("client_metrics.csv", outputs.DIVERGED, "hparams.json", "metrics.csv", "summary.json")
CHECKPOINTS = "checkpoints"
# What else a run needs to continue, beside its newest checkpoint.
STATE_FILES = ("client_states.sqlite", "data_digests.json", "encoding.json")


def _archive(papers: pathlib.Path, folder: str) -> pathlib.Path:
    paper, _, name = folder.partition("/")
    home = papers.parent if paper == LEAGUE else papers
    return home / paper / "unfinished" / f"{name.replace('/', '-')}.tar.xz"


def _without_places(
    text: str, root: pathlib.Path, flags: Mapping[str, Any], command: Sequence[str] = ()
) -> str:
    """Returns a record without the machine's paths, which may differ between resumed runs."""
    places = [(str(root), "results"), (flags.get("data_dir"), "data")]
    for place, name in [*places, *((suite, ".") for suite in (str(REPO), *_suites(command)))]:
        text = text.replace(place, name) if place else text
    return text


def _suites(command: Sequence[str]) -> Iterator[str]:
    """Yields the folders from which a command reads the suite's flag files: maybe other copies."""
    for argument in command:
        path = pathlib.PurePath(argument.removeprefix("--flagfile="))
        for folder in path.parents if path.is_absolute() else ():
            if (REPO / path.relative_to(folder)).is_file():
                yield str(folder)


def _contents(run: pathlib.Path, root: pathlib.Path) -> dict[str, bytes]:
    """Returns what goes into the archive, by name: if the run has not ended, with its state."""
    names = [*FILES] if _has_ended(run) else [*FILES, *STATE_FILES]
    contents = {name: (run / name).read_bytes() for name in names if (run / name).exists()}
    if "hparams.json" in contents:
        contents["hparams.json"] = _hparams(contents["hparams.json"].decode(), root).encode()
    if not _has_ended(run):
        contents |= _newest_checkpoint(run, root)
    return contents


def _hparams(text: str, root: pathlib.Path) -> str:
    content = json.loads(text)
    text = _without_places(text, root, content["flags"], content["start"]["command"])
    return writing.json_text(outputs.with_checksum(json.loads(text))) + "\n"


def _newest_checkpoint(run: pathlib.Path, root: pathlib.Path) -> dict[str, bytes]:
    newest, _ = checkpoints.load_newest(str(run / CHECKPOINTS))
    assert newest is not None
    told = json.dumps(newest.settings, ensure_ascii=False)
    settings = json.loads(_without_places(told, root, newest.settings))
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.save(folder, newest.round_num, newest.leaves, settings, newest.checksums)
        [path] = pathlib.Path(folder).iterdir()
        return {f"{CHECKPOINTS}/{path.name}": path.read_bytes()}


def _has_ended(run: pathlib.Path) -> bool:
    return any((run / name).exists() for name in ("summary.json", outputs.DIVERGED))


def _has_state(run: pathlib.Path) -> bool:
    """Returns whether the run has done rounds that it need not do again."""
    return any(round_num > 0 for round_num in checkpoints.rounds(str(run / CHECKPOINTS)))


def pack(
    root: pathlib.Path, folder: str, papers: pathlib.Path, states: bool = False
) -> pathlib.Path:
    """Writes the archive of a folder's finished and diverged runs; equal runs give equal bytes.

    Args:
      root: The `--root_output_dir` of the runs.
      folder: The folder below it, `<paper>/<folder of the runs>`.
      papers: The folder `papers`.
      states: Whether to pack the runs that have a checkpoint but have not ended, too.

    Returns:
      The archive.

    Raises:
      SystemExit: If the folder has no such run.
    """
    runs = [run for run in sorted((root / folder).glob("*")) if ".replaced-" not in run.name]
    runs = [run for run in runs if _has_ended(run) or (states and _has_state(run))]
    if not runs:
        raise SystemExit(f"error: no run in {root / folder} has finished.")
    target = _archive(papers, folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    with tarfile.open(part, "w:xz") as archive:
        for run in runs:
            for name, content in _contents(run, root).items():
                member = tarfile.TarInfo((run / name).relative_to(root).as_posix())
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    part.replace(target)
    return target


def unpack(root: pathlib.Path, papers: pathlib.Path) -> list[pathlib.Path]:
    """Restores the runs of all archives; returns the folders of those that did not exist."""
    brought = []
    of_league = papers.parent.glob(f"{LEAGUE}/unfinished/*.tar.xz")
    for path in sorted([*papers.glob("*/unfinished/*.tar.xz"), *of_league]):
        with tarfile.open(path) as archive:
            members = archive.getmembers()
            runs = [pathlib.PurePath(member.name).parent for member in members]
            for run in dict.fromkeys(run for run in runs if run.name != CHECKPOINTS):
                try:
                    (root / run).mkdir(parents=True)
                except FileExistsError:
                    continue  # It may have gone on since.
                for member in members:
                    path = pathlib.PurePath(member.name)
                    if path.is_relative_to(run):
                        (root / path).parent.mkdir(exist_ok=True)
                        (root / path).write_bytes(archive.extractfile(member).read())
                brought.append(root / run)
    return brought


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    given = PARSER.parse(arguments)
    root = pathlib.Path(given.root).absolute()
    if given.action == "unpack":
        for run in unpack(root, REPO / "papers"):
            print(run)
    for folder in given.folders:
        print(pack(root, folder, REPO / "papers", given.states))
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
