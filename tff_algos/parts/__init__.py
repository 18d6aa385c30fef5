"""What two or three methods share."""
