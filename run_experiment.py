"""Runs one experiment: a method on a task, round after round, into a folder of results.

    python run_experiment.py --task=synthetic --algorithm=fedavg --total_rounds=100 \
        --clients_per_round=10 --client_batch_size=10 --client_learning_rate=0.01

`--help` lists flags, methods and tasks; the README explains one experiment.
"""

import os
import warnings
from typing import NoReturn

from tff_suite import command_line

if __name__ == "__main__":
    command_line.begin()

# Read when TensorFlow is imported; its C++ code would put lines of its own between ours.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from simulation import experiment, experiment_flags


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the experiment that the arguments describe.

    Args:
      arguments: Command line without the program's name.

    Returns:
      The exit code: 0; 2 for wrong flags, and where code or data are not those of the folder's run;
      1 for a run that cannot start or resume; 3 for one that
      diverged; 128 plus the signal's number for one that a signal stopped.
    """
    # Of packages that TFF imports; nothing that a user could fix.
    warnings.filterwarnings("ignore", message=".*pkg_resources")
    # A run says it in a line of its own.
    warnings.filterwarnings("ignore", message=".* simulates secure aggregation")
    request = experiment_flags.parse(arguments)
    return experiment.run(request, ["run_experiment.py", *arguments])


def command() -> NoReturn:
    """The console command `tff-algos-run`."""
    command_line.begin()
    command_line.run(main)


if __name__ == "__main__":
    command_line.run(main)
