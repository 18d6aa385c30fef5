"""Where a run in a folder resumes, and whether it is still the same run."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simulation import assembly, identity, run_hparams, runtimes
from simulation.caller import Caller
from simulation.errors import ChangedError, RunError
from simulation.experiment_flags import Request
from simulation.records import checkpoints, files, metrics_csv, outputs
from simulation.rounds import callbacks
from tasks import fingerprint
from tff_suite.hparams import HparamError


class Point(NamedTuple):
    """Where a run begins or resumes.

    Attributes:
      checkpoint: The newest intact checkpoint, if any.
      damaged: Paths of newer ones that are damaged.
      finished: Number of rounds of the finished run in the folder; 0 if it is not finished.
    """

    checkpoint: checkpoints.Checkpoint | None
    damaged: list[str]
    finished: int


def with_recorded_runtime(request: Request, folder: outputs.ExperimentFolder) -> Request:
    """Replaces `--runtime=auto` by the runtime that was chosen when the run began."""
    if request.run["runtime"] != "auto":
        return request
    with files.explained(folder.path):
        recorded = folder.read_hparams()
    name = recorded["flags"].get("runtime", "auto") if recorded else "auto"
    if name not in ("auto", *runtimes.RUNTIMES):
        raise RunError(
            f"{folder.file('hparams.json')} is damaged: unknown runtime {name!r}; restore it, "
            "or choose another --experiment_name."
        )
    return with_runtime(request, name)


def with_runtime(request: Request, name: str) -> Request:
    """Returns the settings with another runtime."""
    return dataclasses.replace(
        request,
        run={**request.run, "runtime": name},
        in_force={**request.in_force, "runtime": name},
    )


def resume_point(request: Request, folder: outputs.ExperimentFolder) -> Point:
    """Finds where the run in a folder begins or resumes.

    Raises:
      HparamError: If more rounds are done than the run has.
      RunError: If the folder holds another run, or is damaged.
    """
    checkpoint, damaged = folder.resume_point(request.in_force, run_hparams.MAY_CHANGE)
    finished, total_rounds = folder.finished_rounds(), request.run["total_rounds"]
    done = max(finished, checkpoint.round_num if checkpoint else 0)
    if total_rounds < done:
        raise HparamError(
            f"--total_rounds={total_rounds} is less than the {done} rounds already in "
            f"{folder.path}."
        )
    _check_objects(request, folder)
    return Point(checkpoint, damaged, finished)


def stopped(request: Request, folder: outputs.ExperimentFolder, caller: Caller) -> str:
    """Says why a finished run would stop where it is; empty if it goes on, or is not finished.

    Only what stopped it before, or could, is asked: `--stop_at` and the caller's callbacks.

    Raises:
      RunError: If `--stop_at` would have stopped it before its last round.
    """
    condition = request.run["stop_at"]
    summary = outputs.read_json(folder.file("summary.json")) or {}
    if not summary.get("finished") or summary.get("rounds") > request.run["total_rounds"]:
        return ""
    given: list[callbacks.Callback] = []
    if condition is not None:
        given = [callbacks.StopAt(condition)]
    if "stopped" in summary:
        given = [*(c for c in caller.callbacks if isinstance(c, callbacks.Callback)), *given]
    if not given:
        return ""
    rows = [callbacks.numbers(row) for row in metrics_csv.read_csv(folder.file("metrics.csv"))[1]]
    for callback in given:
        if isinstance(callback, callbacks.EarlyStopping):
            callback.settle(assembly.load(request))
        reason = callback.begin(rows)
        # The run went on after that round, so its final numbers are of later ones.
        earlier = isinstance(callback, callbacks.StopAt) and callback.begin(rows[:-1])
        if earlier:
            raise RunError(
                f"{folder.path} has {summary['rounds']} rounds, but stop_at would end it earlier: "
                f"{earlier}. Choose another experiment_name, or leave stop_at out."
            )
        if reason:
            return reason
    return ""


def unmeasured(request: Request, folder: outputs.ExperimentFolder, caller: Caller) -> str:
    """Lists the measuring flags, evaluators and callbacks that a finished run did not have."""
    with files.explained(folder.path):
        recorded = folder.read_hparams()
    assert recorded is not None  # A folder of results without it was refused.
    flags = recorded["flags"]
    asked = {name: request.in_force.get(name) for name in sorted(run_hparams.MEASURES)}
    lacking = [f"--{k}={v}" for k, v in asked.items() if v and v != flags.get(k)]
    columns = metrics_csv.read_csv(folder.file("metrics.csv"))[0] if caller.evaluators else []
    lacking += [f"the evaluator {k}" for k in caller.evaluators if f"eval/{k}" not in columns]
    known = recorded["identity"].get("own_functions", caller.own_functions)
    given = [name for name in caller.own_functions if _is_callback(name)]
    return ", ".join([*lacking, *(name for name in given if name not in known)])


def warn_of_other_functions(
    folder: outputs.ExperimentFolder, rounds: int, caller: Caller, goes_on: bool
) -> list[str]:
    """Warns of evaluators and callbacks whose code differs from that of the rounds done.

    Callbacks count only if one has replaced weights; others change no number. If the run goes on,
    it also warns of callbacks that are missing now.

    Returns:
      Their names.
    """
    known, now = known_functions(folder), caller.own_functions
    other = sorted(name for name in known.keys() & now.keys() if known[name] != now[name])
    gone = [name for name in sorted(known.keys() - now.keys()) if goes_on and _is_callback(name)]
    if not rounds or not (other or gone):
        return []
    if callbacks.REPLACED not in metrics_csv.read_csv(folder.file("metrics.csv"))[0]:
        other, gone = [name for name in other if not _is_callback(name)], []
    told = [f"other code of {', '.join(other)}"] if other else []
    told += [f"{', '.join(gone)}, missing now"] if gone else []
    if told:
        caller.warn(
            f"Rounds up to {rounds} of {folder.path} were done with {' and with '.join(told)}; "
            "choose another experiment_name, or start anew with fresh=True."
        )
    return [*other, *gone]


def known_functions(folder: outputs.ExperimentFolder) -> dict[str, str]:
    """Returns the recorded `own_functions` of the rounds done, see `simulation.identity`."""
    return (recorded_identity(folder) or {}).get("own_functions", {})


def _is_callback(name: str) -> bool:
    return name.startswith(identity.CALLBACK)


def _check_objects(request: Request, folder: outputs.ExperimentFolder) -> None:
    """Refuses a change between a named task or model and one given in Python."""
    with files.explained(folder.path):
        recorded = folder.read_hparams()
    before = (recorded or {}).get("objects", {})
    for kind in ("task", "model") if recorded else ():
        if (kind in before) != (kind in request.objects):
            was, now = "given in Python", "given by name"
            was, now = (was, now) if kind in before else (now, was)
            raise RunError(
                f"{folder.path} holds another experiment (the {kind} was {was}, is {now}); choose "
                "another --experiment_name."
            )


def check_same_plans(request: Request, checkpoint: checkpoints.Checkpoint) -> None:
    """Refuses a change of `--total_rounds` that would have affected completed rounds."""
    now = request.run["total_rounds"]
    before: Any = checkpoint.settings.get("total_rounds", now)
    other = request.first_other_plan(checkpoint.round_num, before, now)
    if other is not None:
        raise HparamError(
            f"--total_rounds={now} cannot replace {before}: {request.run['algorithm']} planned the "
            f"completed round {other + 1} for {before} rounds."
        )


def check_finished(
    request: Request, folder: outputs.ExperimentFolder, point: Point, caller: Caller
) -> None:
    """Checks that a finished run was made with the current code and data.

    Raises:
      ChangedError: If it was not, and `--accept_code_changes` does not cover the difference.
    """
    before = recorded_identity(folder) or {}
    found = identity.look(request, before)
    if found.unread:
        caller.warn(
            f"{folder.path} was not compared with the current data and model, which cannot be "
            f"loaded: {found.unread}"
        )
    compare = functools.partial(changes_since_start, request, folder)
    changes = compare(found.identity, found.data)
    if found.data is not None and any(change.kind == "data" for change in changes):
        # Data may seem changed because the cache of file digests is out of date.
        data = fingerprint.of_task(assembly.load(request), trust_cache=False)
        now = {**found.identity, "data": {**found.identity["data"]}}
        now["data"]["digest"] = fingerprint.whole(data)
        found = found._replace(identity=now, data=data)
        changes = compare(now, data)
    accepted = accept(request, folder, changes, caller)
    if accepted:
        from simulation.records import recorder

        recorder.accept(folder, point.finished, found.identity, accepted)


def recorded_identity(folder: outputs.ExperimentFolder) -> Mapping[str, Any] | None:
    """Returns the recorded identity of a run; `None` if the run has not begun."""
    with files.explained(folder.path):
        recorded = folder.read_hparams()
    return None if recorded is None else recorded["identity"]


def changes_since_start(
    request: Request, folder: outputs.ExperimentFolder, now: Mapping[str, Any], data: Any
) -> list[identity.Change]:
    """Returns what differs from the recorded identity of the run in a folder."""
    before = recorded_identity(folder)
    if before is None:
        return []
    history = identity.history_of(request)
    return identity.differences(before, now, folder.data_digests(), data, history)


def accept(
    request: Request,
    folder: outputs.ExperimentFolder,
    changes: Sequence[identity.Change],
    caller: Caller,
) -> list[str]:
    """Refuses changes unless `--accept_code_changes` covers them; returns them as text."""
    if changes:
        data = any(change.kind == "data" for change in changes)
        if data or not request.run["accept_code_changes"]:
            raise ChangedError(
                f"{folder.path} holds a run with other {identity.what(changes)} "
                f"({identity.in_words(changes)}); "
                f"{identity.ways_on(changes, folder.path)}."
            )
        caller.say(f"Accepted, and recorded in {folder.path}: {identity.in_words(changes)}.")
    return [change.text for change in changes]
