"""MFL, Lookahead and MimeLite in NumPy float64: what becomes of the client optimizer's slots.

mfl (arXiv 1910.03197), lookahead with state "average" (arXiv 1907.08610)
    client:  starts from the server's slots ; one optimizer step for every minibatch
    server:  x <- x + server_lr sum_k p_k (x_k - x) ; slots <- sum_k p_k slots_k, Adam's count too
lookahead with state "reset"
    the same, with fresh slots on every client in every round
mimelite (arXiv 2008.03606)
    client:  every step is the optimizer's from the server's slots, which do not change
    server:  x as above ; slots <- those after one optimizer step on sum_k p_k grad F_k(old x)
"""

from tests.oracles import client_optimizers, rounds
from tests.oracles.rounds import each

MODES = ("average", "reset", "frozen")


def run(
    problem, batch_orders, cohorts, *, mode, client_lr, server_lr=1.0, optimizer="sgd",
    optimizer_options=None, weighting="examples", dropped=frozenset(),
):  # fmt: skip
    """Runs a method by what happens to the slots; see `rounds.run`. The state is the slots."""
    optimizer = client_optimizers.build(optimizer, **(optimizer_options or {}))

    def client(x, slots, c):
        x_k = x
        for b in c.batches:
            after, x_k = optimizer.step(slots, x_k, c.gradient(x_k, b), c.lr)
            slots = slots if mode == "frozen" else after
        return each(lambda w, x: w - x, x_k, x), slots

    def one_round(x, slots, clients, p):
        if mode == "reset":
            slots = optimizer.init(x)
        deltas, after = zip(*(client(x, slots, c) for c in clients), strict=True)
        if mode == "frozen":
            g = rounds.mean(p, [c.gradient(x) for c in clients])
            slots, _ = optimizer.step(slots, x, g, clients[0].lr)
        else:
            slots = client_optimizers.Slots(
                float(sum(q * s.t for q, s in zip(p, after, strict=True))),
                rounds.mean(p, [s.m for s in after]),
                rounds.mean(p, [s.v for s in after]),
            )
        return each(lambda x, d: x + server_lr * d, x, rounds.mean(p, deltas)), slots

    return rounds.run(
        problem, batch_orders, cohorts, one_round, optimizer.init(problem.initial_weights),
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
