"""TFF's side: its computations in this process, and in TFF's own worker."""
