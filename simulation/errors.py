"""What a user is told in one line."""


class RunError(Exception):
    """A run that cannot start or cannot go on; its text is one line for the user."""


class DivergedError(RunError):
    """A run whose model is no longer finite; running it again would end the same way."""
