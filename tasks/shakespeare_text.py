"""The former name of `python -m tasks.formats.shakespeare_text`."""

import runpy

runpy.run_module("tasks.formats.shakespeare_text", run_name="__main__")
