"""The tasks, a file each."""
