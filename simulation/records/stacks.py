"""On which stack a run was begun, and on which one it may go on."""

from collections.abc import Mapping
from typing import Any

from simulation.errors import RunError
from tff_suite import compat


def check_same(folder: str, recorded: Mapping[str, Any]) -> None:
    """Checks that a run resumes on the stack that it was begun on.

    The stacks round convolutions, LSTMs and the means of evaluations differently. So a run that
    changed stacks would not be, bit by bit, the one that never stopped.

    Args:
      folder: The run's folder, for the error.
      recorded: Content of its hparams.json.

    Raises:
      RunError: If it was begun on the other stack.
    """
    version = recorded["start"].get("versions", {}).get("tensorflow")
    # Folders of earlier versions name TensorFlow's version only.
    before = recorded["start"].get("stack") or (version and compat.stack_of(version))
    if before not in (None, compat.stack()):
        raise RunError(
            f"{folder} was begun on the {before} stack (TensorFlow {version}), and this is the "
            f"{compat.stack()} one. Resume it after `make venv STACK={before}`, or begin another "
            "--experiment_name, with --initial_weights if you like."
        )
