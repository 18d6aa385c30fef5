"""Runs: how the process of a method is executed on the data of a task, and what is kept of it."""
