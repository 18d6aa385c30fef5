"""A run's rounds: cohorts, their data, and the loop over rounds."""
