"""A run's rounds: who takes part, on what, in which order."""
