"""Keras layers that run over a whole cohort at once."""
