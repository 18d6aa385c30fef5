"""Runs one experiment: a method on a task, round after round, into a folder of results.

    python run_experiment.py --task=synthetic --algorithm=fedavg --total_rounds=100 \
        --clients_per_round=10 --client_batch_size=10 --client_learning_rate=0.01

`--help` lists flags, methods and tasks; the README explains one experiment.
"""

import os
import sys
import warnings
from typing import NoReturn

from tff_suite import command_line

if __name__ == "__main__":
    command_line.begin()

# Read when TensorFlow is imported; its C++ code would put lines of its own between ours.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from simulation import experiment, experiment_flags  # noqa: E402
from simulation.errors import ChangedError, DivergedError, RunError  # noqa: E402
from tasks.task import DataError  # noqa: E402
from tff_suite.hparams import HparamError  # noqa: E402


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
    try:
        request = experiment_flags.parse(arguments)
        return experiment.run(request, ["run_experiment.py", *arguments])
    except experiment_flags.HelpRequested as e:
        print(e)
        return 0
    except (ChangedError, HparamError) as e:
        return _fail(e, 2)
    except DivergedError as e:
        return _fail(e, 3)
    except (RunError, DataError) as e:
        return _fail(e, 1)
    except OSError as e:
        where = f"Cannot use {e.filename}: " if e.filename else ""
        return _fail(f"{where}{e.strerror or e}.", 1)
    except MemoryError as e:
        return _fail(
            f"Out of memory ({str(e) or 'no more is free'}); smaller settings may help.", 1
        )
    except KeyboardInterrupt:
        number = command_line.received()
        return _fail(
            f"stopped by {number.name}; what is done since the last checkpoint will be done again.",
            128 + number,
        )


def _fail(reason, code: int) -> int:
    print(f"error: {command_line.one_line(reason)}", file=sys.stderr)
    return code


def command() -> NoReturn:
    """The console command `tff-algos-run`."""
    command_line.begin()
    command_line.run(main)


if __name__ == "__main__":
    command_line.run(main)
