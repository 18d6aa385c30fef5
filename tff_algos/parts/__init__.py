"""Parts that two or three methods share."""
