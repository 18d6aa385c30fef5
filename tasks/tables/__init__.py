"""The parts of `tasks.frames`: tables, their columns, and what can be wrong with them."""
