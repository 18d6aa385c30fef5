"""The engine: executes a round as a program, client by client or on stacked clients."""
