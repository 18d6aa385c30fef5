"""Kinds of figures; `reproduction.plots` is their command, and names all of them."""
