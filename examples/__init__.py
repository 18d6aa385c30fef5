"""Programs to start from."""
