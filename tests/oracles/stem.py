"""STEM (arXiv 2106.10435) in NumPy float64.

    first round: d = mean_k grad F_k(x) over its cohort
    client:  every minibatch b: x+ = x_k - eta_s d_k
             d_k <- grad f(x+; b) + (1 - a_s) (d_k - grad f(x_k; b)) ; x_k <- x+
    server:  x <- x + server_lr sum_k p_k (x_k - x) ; d <- mean of d_k

Schedule constant: eta_s = lr, a_s = a. Schedule decay: eta_s = lr / (w + s)^(1/3) and
a_s = min(1, c eta_s^2), s the steps of all rounds so far, each round's largest tau_k, plus those of
this round so far (0 at the very first step).
"""

from tests.oracles import rounds
from tests.oracles.rounds import each


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, a=0.1, schedule="constant", w=1.0,
    c=1.0, weighting="uniform", dropped=frozenset(),
):  # fmt: skip
    """Runs STEM; see `rounds.run`. The state is (d, steps so far), d None before the first."""

    def client(x, d, steps, k):
        x_k = x
        for s, b in enumerate(k.batches, steps):
            eta = k.lr if schedule == "constant" else k.lr / (w + s) ** (1 / 3)
            forget = a if schedule == "constant" else min(1, c * eta**2)
            ahead = each(lambda x, d: x - eta * d, x_k, d)  # noqa: B023
            new, old = k.gradient(ahead, b), k.gradient(x_k, b)
            d = each(lambda n, d, o: n + (1 - forget) * (d - o), new, d, old)  # noqa: B023
            x_k = ahead
        return each(lambda w, x: w - x, x_k, x), d

    def one_round(x, state, clients, p):
        d, steps = state
        if d is None:
            d = rounds.mean(p, [k.gradient(x) for k in clients])
        delta, d = (
            rounds.mean(p, values)
            for values in zip(*(client(x, d, steps, k) for k in clients), strict=True)
        )
        steps += max(len(k.batches) for k in clients)
        return each(lambda x, d: x + server_lr * d, x, delta), (d, steps)

    return rounds.run(
        problem, batch_orders, cohorts, one_round, (None, 0),
        client_lr=client_lr, weighting=weighting, dropped=dropped,
    )  # fmt: skip
