"""Keras models of the tasks, with their losses."""
