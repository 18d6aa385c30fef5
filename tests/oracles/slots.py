"""MFL, Lookahead and MimeLite in NumPy float64: what becomes of the client optimizer's slots.

mfl (arXiv 1910.03197), lookahead with state "average" (arXiv 1907.08610)
    client:  starts from the server's slots ; one optimizer step for every minibatch
    server:  x <- x + server_lr sum_k p_k (x_k - x) ; slots <- sum_k p_k slots_k, Adam's count too
lookahead with state "reset"
    the same, with fresh slots on every client in every round
lookahead with state "keep" (`run_kept`)
    the same, with the slots that the client had after its last round, fresh ones in its first
mimelite (arXiv 2008.03606)
    client:  every step is the optimizer's from the server's slots, which do not change
    server:  x as above ; slots <- those after one optimizer step on sum_k p_k grad F_k(old x)
"""

import numpy as np

from tests.oracles import client_optimizers, rounds
from tests.oracles import problem as problem_lib
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


def run_kept(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, optimizer="sgd",
    optimizer_options=None, weighting="examples", dropped=frozenset(),
):  # fmt: skip
    """Runs FedAvg or Lookahead with clients that keep their slots; states are {client: slots}.

    A dropped client keeps the slots that it had.
    """
    optimizer = client_optimizers.build(optimizer, **(optimizer_options or {}))
    x, kept, result = problem.initial_weights, {}, rounds.Result([], [])
    for r, cohort in enumerate(cohorts):
        lr = client_lr(r) if callable(client_lr) else client_lr
        deltas, sizes = [], []
        for k in cohort:
            if not problem_lib.takes_part(problem, r, k, dropped):
                continue
            features, labels = problem.clients[k]
            x_k, slots = x, kept.get(k, optimizer.init(x))
            for b in batch_orders[r][k]:
                g = problem_lib.gradient(x_k, features[b], labels[b])
                slots, x_k = optimizer.step(slots, x_k, g, lr)
            kept[k] = slots
            deltas.append(each(np.subtract, x_k, x))
            sizes.append(len(labels) if weighting == "examples" else 1)
        if deltas:
            delta = rounds.mean(np.array(sizes) / np.sum(sizes), deltas)
            x = each(lambda x, d: x + server_lr * d, x, delta)
        result.weights.append(x)
        result.states.append(dict(kept))
    return result
