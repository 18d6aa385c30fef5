"""Finds runs whose code, data, method or task differ from the current ones.

Comparisons that load data happen in a separate process, which has the same working folder, modules
and memory as a run:

    python -m reproduction.changes asked.json answered.json
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from reproduction.items import REPO, PlannedRun, ReproduceError
from simulation import experiment_flags, identity, supervisor
from simulation.errors import RunError
from simulation.records import outputs
from tff_suite import command_line, parser

PARSER = parser.Parser(__doc__)
PARSER.positional("asked", "JSON file of the runs, as reproduce.py writes it")
PARSER.positional("answered", "JSON file to write")


class Change(NamedTuple):
    """What a run is another one in than the code and data that are there now.

    Attributes:
      text: What differs, in words.
      digest: Digest of what is there now, see `identity.digest`.
    """

    text: str
    digest: str


class Compared(NamedTuple):
    """The result of comparing runs.

    Attributes:
      changed: Run → what differs; only runs of which something does.
      unknown: Runs of an earlier version, which recorded neither code nor versions.
      unread: Run → why its data could not be compared.
    """

    changed: dict[PlannedRun, Change]
    unknown: list[PlannedRun]
    unread: dict[PlannedRun, str]


def compare(
    runs: Sequence[PlannedRun],
    apart: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] | None = None,
) -> Compared:
    """Compares runs with the current code and data.

    Args:
      runs: Runs, begun or not.
      apart: Does `look_at` in another place; by default in a process on this machine. Runs with
        objects are looked at in this process, which alone has these.

    Raises:
      ReproduceError: If the process fails.
    """
    found = Compared({}, [], {})
    jobs = {}
    for run in runs:
        try:
            recorded, rows = run.read().recorded, run.read().last_round
        except RunError:
            continue  # The run itself will report the damage.
        if not recorded or not rows:
            continue
        known = recorded.get("identity")
        if known is None:
            found.unknown.append(run)
        if not isinstance(known, Mapping):
            continue
        jobs[run] = {
            "command": run.command,
            "home": run.home,
            "folder": str(run.folder),
            "identity": known,
            "loads": identity.loads(run.request(), known),
        }
    light = [run for run, job in jobs.items() if run.objects or not job["loads"]]
    heavy = [run for run in jobs if run not in light]
    requests = [run.request() for run in light]
    answers = dict(zip(light, look_at([jobs[run] for run in light], requests), strict=True))
    if heavy:
        told = (apart or _in_a_process)([jobs[run] for run in heavy])
        answers |= dict(zip(heavy, told, strict=True))
    for run, answer in answers.items():
        if answer["changes"]:
            found.changed[run] = Change(answer["changes"], answer["digest"])
        if answer["unread"]:
            found.unread[run] = answer["unread"]
    return found


def look_at(
    jobs: Sequence[Mapping[str, Any]], requests: Sequence[experiment_flags.Request] | None = None
) -> list[dict[str, str]]:
    """Compares runs in this process; loads data and models that runs share only once.

    Args:
      jobs: For each run, `command`, `home`, `folder` and the recorded `identity`.
      requests: For each run, its settings; by default those of `command`.

    Returns:
      Of each run `changes` and `unread`, in words and empty where there is nothing to tell, and
      the `digest` of what is there now.
    """
    known: dict[str, identity.Looked] = {}
    answers = []
    for i, job in enumerate(jobs):
        if job["home"] and job["home"] not in sys.path:
            sys.path.append(job["home"])
        request = requests[i] if requests else experiment_flags.parse(job["command"])
        folder = outputs.ExperimentFolder(*os.path.split(job["folder"]))
        history = identity.history_of(request)
        try:
            looked = identity.look(request, job["identity"], known)
            changes = identity.differences(
                job["identity"], looked.identity, folder.data_digests(), looked.data, history
            )
        except (AttributeError, TypeError, ValueError) as e:
            told = f"{folder.file('hparams.json')} is damaged: {' '.join(str(e).split())}"
            answers.append({"changes": "", "unread": told, "digest": ""})
            continue
        told, digest = identity.in_words(changes), identity.digest(looked.identity)
        answers.append({"changes": told, "unread": looked.unread, "digest": digest})
    return answers


def _in_a_process(jobs):
    """Executes `look_at` in a new process without GPUs, in the working folder of runs."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = pathlib.Path(folder, "jobs"), pathlib.Path(folder, "answers")
        asked.write_text(json.dumps(jobs))
        command = [sys.executable, "-m", "reproduction.changes", str(asked), str(answered)]
        ended = subprocess.run(
            supervisor.dying_with_parent(command),
            cwd=REPO,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if not answered.exists():
            lines = ended.stderr.strip().splitlines()
            raise ReproduceError(
                "Existing runs cannot be compared with the current code and data: "
                f"{command_line.one_line(lines[-1] if lines else f'exit code {ended.returncode}')}"
            )
        return json.loads(answered.read_text())


@command_line.reported
def main(arguments: list[str]) -> int:
    """Compares the runs in one file and writes the result to another; returns the exit code."""
    options = PARSER.parse(arguments)
    answers = look_at(json.loads(pathlib.Path(options.asked).read_text()))
    part = pathlib.Path(f"{options.answered}.part")
    part.write_text(json.dumps(answers))
    os.replace(part, options.answered)
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
