"""What a user is told in one line."""


class RunError(Exception):
    """A run that cannot start or cannot go on; its text is one line for the user."""


class DivergedError(RunError):
    """A run whose model is not finite, or that lost all clients; once more, it ends the same."""
