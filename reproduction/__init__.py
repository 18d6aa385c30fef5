"""Many runs: a paper's tables and figures from its flag files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tff_suite import imports as _imports  # noqa: F401  (has to come before TFF)

if TYPE_CHECKING:
    import pandas as pd


def load_runs(folders: Iterable[str]) -> pd.DataFrame:
    """Loads runs as one `pandas.DataFrame`; see `reproduction.compare.load_runs`."""
    from reproduction import compare

    return compare.load_runs(folders)
