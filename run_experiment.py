"""Runs one experiment: a method on a task, round after round, into a folder of results.

    python run_experiment.py --task=synthetic --algorithm=fedavg --total_rounds=100 \
        --clients_per_round=10 --client_batch_size=10 --client_learning_rate=0.01

`--help` lists flags, methods and tasks; the README explains one experiment.
"""

import os
import shlex
import warnings
from typing import NoReturn

from tff_suite import command_line

if __name__ == "__main__":
    command_line.begin()

# Read when TensorFlow is imported; its C++ code would put lines of its own between ours.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from simulation import experiment, experiment_flags
from simulation.records import outputs


@command_line.reported
def train(arguments: list[str]) -> int:
    """Runs the experiment that the arguments describe, as a sweep does.

    Args:
      arguments: Command line without the program's name.

    Returns:
      The exit code, see docs/exit_codes.md.
    """
    return _train(arguments)[0]


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the experiment that the arguments describe, and says what to do next.

    Args:
      arguments: Command line without the program's name.

    Returns:
      The exit code, see docs/exit_codes.md.
    """
    code, settings = _train(arguments)
    folder = os.path.join(settings["root_output_dir"], settings["experiment_name"])
    if code == 0 and os.path.exists(os.path.join(folder, "summary.json")):
        command_line.say(_what_next(folder))
    return code


def _what_next(folder: str) -> str:
    """Returns what a run that has results ends with."""
    plot = ["-m", "reproduction.plots", "curves", folder, "--output=curves.png"]
    compare = [*command_line.calling("reproduce.py"), "--compare", folder, "OTHER_RUN"]
    summary = outputs.read_json(os.path.join(folder, "summary.json")) or {}
    more = "with more --total_rounds" if summary.get("finished") else "again"
    if "stopped" in summary:
        more = "with another --stop_at"
    return "\n".join(
        [
            f"Results are in {shlex.quote(folder)}. Next:",
            command_line.to_try("plot:", [command_line.python(), *plot]),
            command_line.to_try("compare:", compare),
            f"  go on:    the same command {more}",
        ]
    )


def _train(arguments):
    """Runs the experiment; returns the exit code and the run's own settings."""
    # Of packages that TFF imports; nothing that a user could fix.
    warnings.filterwarnings("ignore", message=".*pkg_resources")
    # A run says it in a line of its own.
    warnings.filterwarnings("ignore", message=".* simulates secure aggregation")
    request = experiment_flags.parse(arguments)
    return experiment.run(request, ["run_experiment.py", *arguments]), request.run


def command() -> NoReturn:
    """The console command `tff-algos-run`."""
    command_line.begin()
    command_line.run(main)


if __name__ == "__main__":
    command_line.run(main)
