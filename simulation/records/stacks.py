"""Checks that a run resumes on the stack (published or current) on which it began."""

from collections.abc import Mapping
from typing import Any

from simulation.errors import RunError
from tff_suite import compat


def check_same(folder: str, recorded: Mapping[str, Any]) -> None:
    """Checks that a run resumes on the stack on which it began.

    The stacks round convolutions, LSTMs and the means of evaluations differently. So a run that
    changed stacks would not be bit-identical to an uninterrupted one.

    Args:
      folder: The run's folder, for the error.
      recorded: Content of its hparams.json.

    Raises:
      RunError: If it began on the other stack.
    """
    before = recorded["start"]["stack"]
    if before != compat.stack():
        version = recorded["start"]["versions"]["tensorflow"]
        raise RunError(
            f"{folder} was begun on the {before} stack (TensorFlow {version}), but this is the "
            f"{compat.stack()} one. Resume it after `make venv STACK={before}`, or start another "
            "--experiment_name, with --initial_weights if you like."
        )
