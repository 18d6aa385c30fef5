"""Execution of TFF computations, in this process and in TFF's own worker."""
