"""File formats of data sets, and their readers."""

import warnings as _warnings

# `python -m tasks.formats.shakespeare_text` runs a module that the tasks import, which is harmless.
_warnings.filterwarnings("ignore", ".*'tasks.formats.shakespeare_text' found", RuntimeWarning)
