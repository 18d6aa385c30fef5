"""CLIMB (ICLR 2022, and its released code) in NumPy float64.

A block is so many primal rounds. lambda = 0 at first, one for each of the N clients.
  w_k = 1 + lambda_k - mean(lambda), the same in all rounds of a block
  every round: x <- x + (server_lr / K) sum_{k in S} w_k (x_k - x)
  L_k: loss of client k at the model from before the block's first round ("all"), or before the
       first round of the block in which k is drawn ("seen"); C: the clients that have an L_k
  end of a block, for k in C:
       lambda_k <- clip(lambda_k + (lr_lambda / N) (L_k - mean_C(L) - epsilon), 0, lambda_max)

K counts the clients that have examples and are not dropped. A client that is dropped has no L_k
from that round, one without examples never.
"""

import numpy as np

from tests.oracles import client_optimizers, fedopt, rounds
from tests.oracles import problem as problem_lib
from tests.oracles.rounds import each


def run(
    problem, batch_orders, cohorts, *, client_lr, server_lr=1.0, epsilon=1.0, lr_lambda=1.0,
    lambda_max=100.0, primal_rounds=5, losses="all", client_optimizer="sgd", dropped=frozenset(),
):  # fmt: skip
    """Runs CLIMB; see `rounds.run` for the arguments. The states are lambda [N]."""
    number = len(problem.clients)
    optimizer = client_optimizers.build(client_optimizer)
    x, multipliers, found = problem.initial_weights, np.zeros(number), {}
    result = rounds.Result([], [])
    for r, cohort in enumerate(cohorts):
        lr = client_lr(r) if callable(client_lr) else client_lr
        asked = range(number) if losses == "all" and r % primal_rounds == 0 else cohort
        for k in asked:
            if k not in found and problem_lib.takes_part(problem, r, k, dropped):
                found[k] = problem_lib.mean_loss(x, *problem.clients[k])
        step = rounds.zeros(x)
        present = [k for k in cohort if problem_lib.takes_part(problem, r, k, dropped)]
        for k in present:
            delta = fedopt.client_update(
                x, *problem.clients[k], batch_orders[r][k], lr=lr, optimizer=optimizer
            )
            w = 1 + multipliers[k] - multipliers.mean()
            step = each(lambda s, d, w=w: s + w * d, step, delta)
        if present:
            rate = server_lr / len(present)
            x = each(lambda x, s, rate=rate: x + rate * s, x, step)
        if (r + 1) % primal_rounds == 0:
            mean = np.mean(list(found.values())) if found else 0.0
            for k, loss in found.items():
                moved = multipliers[k] + lr_lambda / number * (loss - mean - epsilon)
                multipliers[k] = np.clip(moved, 0, lambda_max)
            found = {}
        result.weights.append(x)
        result.states.append(multipliers.copy())
    return result
