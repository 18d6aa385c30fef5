"""Errors that a user gets as one line."""

from tff_suite.errors import FedError


class RunError(FedError):
    """A run that cannot start or cannot resume; its text is one line for the user."""


class ChangedError(RunError):
    """A folder holds a run of other code, data, method or task than there is now."""

    exit_code = 2


class NoWorkersError(RunError):
    """A run whose workers are all lost; it ends with a checkpoint and can go on with others."""


class DivergedError(RunError):
    """A run whose model is not finite, or that lost all clients; once more, it ends the same."""

    exit_code = 3
