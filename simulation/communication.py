"""The former name of `python -m simulation.measures.communication`."""

import runpy

runpy.run_module("simulation.measures.communication", run_name="__main__")
