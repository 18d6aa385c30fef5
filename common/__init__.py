"""What every room may use: the terminal, memory, figures, imports, signals."""

from common import imports  # noqa: F401  (has to come before TensorFlow and TFF)
