"""Makes TFF's own import fail with a helpful message; `make venv` runs this in the current stack.

TFF 0.87 imports TensorFlow Privacy, and with it estimators, which TensorFlow 2.21 no longer has.
The suite's import leaves them out. A program that imports TFF before the suite would otherwise only
learn that `tensorflow_estimator` is missing.
"""

import contextlib
import os
import pathlib
import sys
import sysconfig

_MODULE = '''"""Stands for the estimators that TensorFlow no longer has."""

raise ImportError(
    "TFF 0.87 imports estimators, which TensorFlow no longer has. Write `import tff_algos` before "
    "`import tensorflow_federated`: the suite leaves them out."
)
'''


def main() -> None:
    """Writes the module beside this interpreter's packages."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        # Not `command_line`'s: in a container the file is there before the suite.
        # Past Python's buffer, which fails once more at exit if no one reads.
        with contextlib.suppress(BrokenPipeError):
            os.write(1, f"{__doc__.rstrip()}\n".encode())
        return
    folder = pathlib.Path(sysconfig.get_path("purelib"))
    (folder / "tensorflow_estimator.py").write_text(_MODULE)


if __name__ == "__main__":
    main()
