"""One engine: a round as a program, carried out client by client or on stacked clients."""
