"""What a user can cause."""


class FedError(Exception):
    """Something that a user can cause and put right; its text is one line that says how.

    Every other exception that leaves the suite is a defect of it. A command prints the line and
    ends; a program that catches this class catches them all.

    Attributes:
      exit_code: Exit code of a command that it ends; docs/exit_codes.md lists them.
    """

    exit_code = 1
