"""Checks of a run's settings together, and the forms of those that are more than a number.

None of them imports TensorFlow.
"""

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulation import run_hparams
from tasks.registry import TaskSpec
from tff_algos.method_spec import MethodSpec
from tff_suite.hparams import HparamError


def check_run(run: Mapping[str, Any], method_spec: MethodSpec) -> None:
    """Checks the run's own settings together, and whether the method supports them.

    Args:
      run: The run's own settings.
      method_spec: The method.

    Raises:
      HparamError: If one is wrong.
    """
    if run["num_validation_examples"] == 0:
        raise HparamError("--num_validation_examples=0 must be -1 (all) or >= 1.")
    for flag in ("evaluate_all_local_data", "evaluate_classes"):
        if run[flag] and not run["evaluate_test"]:
            raise HparamError(f"--{flag} evaluates test examples, so it needs --evaluate_test.")
    if run["stop_at"] is not None:
        stop_condition(run["stop_at"])
    if run["profile"] is not None:
        profiled_rounds(run["profile"])
    check_place(run["root_output_dir"])
    if method_spec.staged and run["runtime"] == "vectorized":
        raise HparamError(
            f"--runtime=vectorized cannot run {method_spec.name}, a method of several processes; "
            "use auto, per_client, tff or native."
        )
    if method_spec.staged and run["evaluate_improvement"]:
        raise HparamError(
            f"--evaluate_improvement does not support {method_spec.name}, which chooses its own "
            "clients."
        )


def check_place(root: str) -> None:
    """Checks that results go to a local folder and not to an address such as `s3://bucket/folder`.

    Args:
      root: `--root_output_dir`.

    Raises:
      HparamError: If it is an address.
    """
    if "://" in root:
        raise HparamError(
            f"--root_output_dir={root} is an address, but must be a local folder. To copy results "
            "there, use reproduce.py --storage."
        )


def profiled_rounds(text: str) -> tuple[int, int]:
    """Reads `--profile`: `N`, or `FIRST-LAST`.

    Returns:
      The first and the last round, from 1.

    Raises:
      HparamError: If the text has another form.
    """
    found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise HparamError(
            f"--profile={text} must be a round or a range of rounds from 1 on, as in 3 or 3-5."
        )
    return first, last


_CONDITION = re.compile(r"\s*([\w./-]+)\s*(>=|<=|>|<)\s*([-+\w.]+)\s*")


def stop_condition(text: str) -> tuple[str, str, float]:
    """Reads `--stop_at`.

    Returns:
      Column of metrics.csv, comparison (`>=`, `<=`, `>` or `<`) and number.

    Raises:
      HparamError: If the text has another form.
    """
    found = _CONDITION.fullmatch(text)
    try:
        bound = float(found[3]) if found else math.nan
    except ValueError:
        bound = math.nan
    if found is None or not math.isfinite(bound):
        raise HparamError(
            f"--stop_at={text} must be a column of metrics.csv, a comparison and a number, as in "
            "eval/accuracy>=0.9."
        )
    return found[1], found[2], bound


def check_chunking(run: Mapping[str, Any]) -> None:
    """Refuses `--clients_per_chunk` for rounds that cannot be split into chunks."""
    if run["clients_per_chunk"] is None:
        return
    if run["runtime"] == "native":
        raise HparamError(
            "--clients_per_chunk does not support --runtime=native; use auto, per_client or "
            "vectorized."
        )


def check_workers(
    given: Iterable[str],
    run: Mapping[str, Any],
    method_spec: MethodSpec,
    method: Mapping[str, Any],
) -> None:
    """Refuses workers that would be idle, and flags of workers without `--workers`."""
    if not run["workers"]:
        for flag in ("ray_address", "cpus_per_worker", "gpus_per_worker", "worker_timeout"):
            if flag in given:
                raise HparamError(f"--{flag} is not used without --workers.")
        return
    plan = method_spec.round_plan(dict(method), 0, run["total_rounds"])
    if run["clients_per_round"] is not None and plan.losses != "all":
        check_chunks(run, run["clients_per_round"])
    elif run["clients_per_chunk"] is None:
        check_chunks(run, None)


def check_chunks(run: Mapping[str, Any], cohort: int | None) -> None:
    """Refuses more workers than a round has chunks.

    Args:
      run: The run's own settings.
      cohort: Clients per round; `None` if it depends on the data, which are not loaded yet.

    Raises:
      HparamError: If there are more workers than chunks.
    """
    workers, size = run["workers"], run["clients_per_chunk"]
    if cohort is None:
        raise HparamError(
            "--workers needs --clients_per_chunk: results depend on the chunks, but must not "
            "depend on the number of workers."
        )
    chunks = 1 if size is None else -(-cohort // size)
    if size is None or workers > chunks:
        fair = max(1, cohort // (4 * workers))
        found = "is not set" if size is None else f"={size} makes {chunks}"
        raise HparamError(
            f"--workers={workers} needs at least as many chunks of the {cohort} clients per round, "
            f"but --clients_per_chunk {found}; use --clients_per_chunk={fair}, for example."
        )


def check_epochs(
    given: Iterable[str],
    run: Mapping[str, Any],
    method_spec: MethodSpec,
    method: Mapping[str, Any],
) -> None:
    """Refuses a number of epochs that the run would not use."""
    drawn = run["client_epochs_distribution"] != "fixed"
    if drawn and "client_epochs_per_round" in given:
        raise HparamError(
            "--client_epochs_per_round is not used with "
            f"--client_epochs_distribution={run['client_epochs_distribution']}, which draws it."
        )
    plan = method_spec.round_plan(dict(method), 0, run["total_rounds"])
    if plan.local_steps is not None:
        for flag in ("client_epochs_per_round", "client_epochs_distribution"):
            if flag in given:
                raise HparamError(
                    f"--{flag} is not used by --algorithm={method_spec.name}, which fixes the "
                    f"number of its clients' steps ({plan.local_steps})."
                )


def check_clients(run: Mapping[str, Any], task_spec: TaskSpec, task: Mapping[str, Any]) -> None:
    """Checks numbers and ids of clients against the task, if these are known without its data."""
    known = task_spec.clients and task_spec.clients(task, run["use_synthetic_data"])
    if known:
        check_cohort(run["clients_per_round"], known.number, task_spec.name)
        if known.ids is not None:
            check_tracked(run["track_clients"], known.ids)  # type: ignore[arg-type]


def check_cohort(size: int | None, number: int, task: str) -> None:
    """Refuses a cohort that is larger than the task's number of clients.

    Args:
      size: `--clients_per_round`.
      number: Number of the task's clients.
      task: Name of the task.

    Raises:
      HparamError: If the task has fewer clients.
    """
    if size is not None and size > number:
        raise HparamError(
            f"--clients_per_round={size} is more than the {number} clients of --task={task}."
        )


def tracked(which: str) -> list[str]:
    """Returns the ids that `--track_clients` names, read as a line of CSV."""
    try:
        names = next(csv.reader([which]), None)
    except csv.Error:  # A line break outside of quotes.
        names = which.split(",")
    return list(dict.fromkeys(names or [""]))


def check_tracked(which: str | None, ids: Sequence[str]) -> None:
    """Refuses to track clients that the task does not have.

    Args:
      which: `--track_clients`.
      ids: Ids of the task's clients.

    Raises:
      HparamError: If the task does not have a client of that id.
    """
    for name in tracked(which) if which not in (None, run_hparams.EXTREMES) else ():
        if name not in ids:
            raise HparamError(
                f"--track_clients={which}: there is no client {name!r}; use ids as in "
                f"client_metrics.csv, e.g. {ids[0]!r}."
            )


# The flags of every run that `--help` shows; `--helpfull` shows all.
