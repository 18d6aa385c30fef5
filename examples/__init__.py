"""Example programs to start from."""
