"""Keras models of the tasks, and their losses."""
