"""The former name of `tff_suite.hparams`; it will be removed after the next release."""

import warnings

from tff_suite.hparams import *  # noqa: F403

warnings.warn("hparams is now tff_suite.hparams.", DeprecationWarning, stacklevel=2)
