"""The former name of `python -m reproduction.cka`."""

import runpy

runpy.run_module("reproduction.cka", run_name="__main__")
