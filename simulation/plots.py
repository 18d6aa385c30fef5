"""The former name of `python -m reproduction.plots`."""

import runpy

runpy.run_module("reproduction.plots", run_name="__main__")
