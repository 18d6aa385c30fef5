"""The base class of errors that a user can cause."""


class FedError(Exception):
    """An error that a user can cause and fix; its message is one line that says how.

    Every other exception that leaves the suite is a defect of the suite. A command prints the line
    and ends; a program that catches this class catches all of them.

    Attributes:
      exit_code: Exit code of a command that it ends; docs/exit_codes.md lists them.
    """

    exit_code = 1
