"""Measurements of speed, memory and scale.

A package with a file of its own, since pyarrow installs one of the same name that would hide it.
"""
