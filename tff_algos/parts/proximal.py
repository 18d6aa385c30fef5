"""The proximal term that holds a client near a model, as FedProx has it."""

from __future__ import annotations

from collections.abc import Callable

from tff_algos.vector import Vector


def proximal_term(mu: float, x: Vector) -> Callable[[Vector, Vector], Vector]:
    """Returns the `correct_gradient` of `client.train` that adds μ (x_k - x) to each gradient."""
    return lambda gradient, x_k: gradient + mu * (x_k - x)
