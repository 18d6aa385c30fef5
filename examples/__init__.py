"""A method, a task and a sweep of one's own."""
