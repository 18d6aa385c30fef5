"""Errors that are shown to the user as one line."""

from tff_suite.errors import FedError


class RunError(FedError):
    """A run that cannot start or cannot resume; its text is one line for the user."""


class ChangedError(RunError):
    """A folder holds a run whose code, data, method or task differ from the current ones."""

    exit_code = 2


class NoWorkersError(RunError):
    """All workers of a run are lost; it ends with a checkpoint and can resume with new ones."""


class DivergedError(RunError):
    """A run whose model is not finite or that dropped all clients; repeating it gives the same."""

    exit_code = 3
