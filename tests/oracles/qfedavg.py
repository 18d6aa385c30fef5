"""q-FedAvg (arXiv 1905.10497) in NumPy float64; the calling form is that of `fedopt.run`.

client k:  L = F_k(x) + 1e-10 ; x_k by local training ; w = (x - x_k) / client_lr
           D_k = L^q w ; h_k = q L^(q-1) |w|^2 + L^q / client_lr
server:    lipschitz   x <- x - lr sum_k D_k / sum_k h_k
           reweight    x <- x + lr sum_k L_k^q Delta_k / sum_k L_k^q
"""

import numpy as np

from tests.oracles import cohort


def run(
    problem,
    batch_orders,
    *,
    cohorts,
    client_lr,
    server_lr=1.0,
    q=1.0,
    form="lipschitz",
    client_optimizer="sgd",
    dropped=frozenset(),
):
    """Returns the weights after every round."""

    def server(x, state, reports, lr):
        losses = np.array([cohort.loss(x, c) + 1e-10 for c in reports])
        deltas = np.stack([c.delta for c in reports])
        powers = losses**q
        if form == "reweight":
            step = powers @ deltas / powers.sum()
        else:
            w = -deltas / lr
            h = q * losses ** (q - 1) * np.sum(w**2, axis=1) + powers / lr
            step = -(powers @ w) / h.sum()
        return cohort.like(x, cohort.flat(x) + server_lr * step), state

    history = cohort.run(
        problem,
        batch_orders,
        cohorts,
        server,
        None,
        client_lr=client_lr,
        client_optimizer=client_optimizer,
        dropped=dropped,
    )
    return [x for x, _ in history]
