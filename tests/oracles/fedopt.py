"""FedAvg, FedAvgM, FedAdagrad, FedAdam and FedYogi (arXiv 2003.00295) in NumPy float64.

One round, with g the pseudo-gradient:

    client k:  x_k <- x ; for every minibatch b in order: client optimiser step on the mean gradient
               over b at the round's client rate ; Delta_k = x_k - x
    server:    w_k = n_k ("examples") or 1 ("uniform") ; Delta = sum_k w_k Delta_k / sum_k w_k ;
               g = -Delta ; (slots, x) <- server_step(slots, x, g)

Server step, with u_0 = m_0 = 0 and t = 1, 2, ... the number of server steps taken:

    fedavg                 x <- x - lr g
    fedavgm                u <- momentum u + g
                           x <- x - lr u
    fedadagrad released    v <- v + g^2
                           x <- x - lr g / (sqrt(v) + tau)
    fedadam    released    m <- beta1 m + (1 - beta1) g
                           v <- beta2 v + (1 - beta2) g^2
                           x <- x - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + tau)
    fedyogi    released    as fedadam with v <- v + (1 - beta2) sign(g^2 - v) g^2
    algorithm2             m <- beta1 m + (1 - beta1) g (fedadagrad: m = g, beta1 plays no part)
                           v as above with m^2 in place of g^2
                           x <- x - lr m / (sqrt(v) + tau), no bias correction

`released` is the code that produced the published tables and starts v at 0; `algorithm2` is the
algorithm as printed and starts v at tau^2 in every coordinate for all three adaptive methods. v is
updated before use, tau is outside the root, sign(0) = 0. fedavg and fedavgm do not depend on the
variant.

Choices where the paper is silent:
    * n_k is the number of examples that the client holds, however many epochs it runs.
    * A client without examples has no part: its weight is 0, under both weightings.
    * A client with any non-finite number in Delta_k gets the weight 0, under both weightings.
    * If no weight is positive (empty cohort, all clients dropped, "examples" and none held) there
      is no pseudo-gradient: the whole server state is left as it is, x and slots and the count t.
      The round still counts for the schedules.
    * The client optimiser starts from zero in every round.
"""

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

import numpy as np

from tests.oracles import client_optimizers
from tests.oracles import problem as problem_lib

Weights = tuple[np.ndarray, ...]
Schedule = Callable[[int], float]

ALGORITHMS = ("fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi")
VARIANTS = ("released", "algorithm2")


class ServerSlots(NamedTuple):
    """The server optimiser's state.

    Attributes:
        t: Number of server steps taken; rounds that left the model unchanged do not count.
        m: First moment (fedavgm: u), shaped like the weights; for fedavg, and for fedadagrad in
            both variants, it stays zero.
        v: Second moment or accumulator, shaped like the weights; zeros for fedavg and fedavgm.
    """

    t: int
    m: Weights
    v: Weights


class Result(NamedTuple):
    """A run's history.

    Attributes:
        weights: The server model after every round, a list of `rounds` weight tuples.
        slots: The server slots after every round, a list of `rounds` `ServerSlots`.
    """

    weights: list[Weights]
    slots: list[ServerSlots]


def constant(lr: float) -> Schedule:
    """round -> lr."""
    return lambda round_num: lr


def exponential_decay(lr: float, decay_rounds: int = 500, rate: float = 0.1) -> Schedule:
    """Staircase: round -> lr * rate ** floor(round / decay_rounds), rounds counted from 0.

    The defaults are the paper's (App. E.6): a tenth every 500 rounds, so rounds 0 to 499 use lr.
    """
    return lambda round_num: lr * rate ** (round_num // decay_rounds)


def inverse_sqrt(lr: float, decay_rounds: float) -> Schedule:
    """round -> lr / sqrt(1 + round / decay_rounds), rounds counted from 0, division exact.

    Round 0 uses lr, round `decay_rounds` lr / sqrt(2).
    """
    return lambda round_num: lr / np.sqrt(1 + round_num / decay_rounds)


def inverse_time(lr: float, decay_rounds: float) -> Schedule:
    """round -> lr / (1 + round / decay_rounds), rounds counted from 0, division exact."""
    return lambda round_num: lr / (1 + round_num / decay_rounds)


def linear_warmup(lr: float | Schedule, warmup_rounds: int) -> Schedule:
    """round -> lr * min(1, (round + 1) / warmup_rounds), rounds counted from 0.

    Round 0 uses lr / warmup_rounds, round warmup_rounds - 1 is the first with the whole of lr.
    `warmup_rounds` = 0 is no warm-up. If `lr` is itself a schedule, its value at the same round is
    scaled: warming up does not postpone the decay.
    """
    rate = _schedule(lr)
    if warmup_rounds == 0:
        return rate
    return lambda round_num: rate(round_num) * min(1.0, (round_num + 1) / warmup_rounds)


def server_init(
    algorithm: str, variant: str, weights: Weights, *, tau: float = 1e-3
) -> ServerSlots:
    """The slots before the first server step, for weights of any shapes."""
    _check(algorithm, variant)
    adaptive = algorithm in ("fedadagrad", "fedadam", "fedyogi")
    v = tau**2 if adaptive and variant == "algorithm2" else 0.0
    return ServerSlots(
        0,
        tuple(np.zeros(w.shape) for w in weights),
        tuple(np.full(w.shape, v) for w in weights),
    )


def server_step(
    algorithm: str,
    variant: str,
    slots: ServerSlots,
    x: Weights,
    g: Weights,
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    momentum: float = 0.9,
) -> tuple[ServerSlots, Weights]:
    """One server step on the pseudo-gradient g = -Delta.

    Args:
        algorithm: One of `ALGORITHMS`.
        variant: One of `VARIANTS`.
        slots: From `server_init` or the step before.
        x: Server model, arrays of any shapes.
        g: Pseudo-gradient, shaped like x.
        lr: Server learning rate of this step.
        beta1: Decay of the first moment; fedadam and fedyogi.
        beta2: Decay of the second moment; fedadam and fedyogi.
        tau: Adaptivity; fedadagrad, fedadam and fedyogi.
        momentum: fedavgm only.

    Returns:
        The new slots and the new model.
    """
    _check(algorithm, variant)
    t = slots.t + 1
    updated = [
        _update(algorithm, variant, t, *arrays, lr, beta1, beta2, tau, momentum)
        for arrays in zip(x, slots.m, slots.v, g, strict=True)
    ]
    x, m, v = (tuple(arrays) for arrays in zip(*updated, strict=True))
    return ServerSlots(t, m, v), x


def _update(algorithm, variant, t, x, m, v, g, lr, beta1, beta2, tau, momentum):
    """The server step of one array: returns (x, m, v)."""
    if algorithm == "fedavg":
        return x - lr * g, m, v
    if algorithm == "fedavgm":
        m = momentum * m + g
        return x - lr * m, m, v
    if algorithm == "fedadagrad":
        v = v + g**2
        return x - lr * g / (np.sqrt(v) + tau), m, v

    m = beta1 * m + (1 - beta1) * g
    square = g**2 if variant == "released" else m**2
    if algorithm == "fedadam":
        v = beta2 * v + (1 - beta2) * square
    else:
        v = v + (1 - beta2) * np.sign(square - v) * square
    if variant == "released":
        lr = lr * np.sqrt(1 - beta2**t) / (1 - beta1**t)
    return x - lr * m / (np.sqrt(v) + tau), m, v


def client_update(
    weights: Weights,
    x: np.ndarray,
    y: np.ndarray,
    batch_indices: Sequence[np.ndarray],
    *,
    lr: float,
    optimizer: client_optimizers.ClientOptimizer,
) -> Weights:
    """Trains one client from `weights`, one optimiser step for every index array.

    Args:
        weights: The broadcast model (kernel [F, C], bias [C]).
        x: The client's features [n, F].
        y: The client's labels [n].
        batch_indices: The examples of every step, all epochs one after the other.
        lr: Client learning rate of this round.
        optimizer: Started from zero here.

    Returns:
        Delta_k = x_k - x, shaped like `weights`.
    """
    local, slots = weights, optimizer.init(weights)
    for indices in batch_indices:
        grads = problem_lib.gradient(local, x[indices], y[indices])
        slots, local = optimizer.step(slots, local, grads, lr)
    return tuple(after - before for after, before in zip(local, weights, strict=True))


def run(
    problem: problem_lib.Problem,
    algorithm: str,
    variant: str,
    batch_orders: problem_lib.BatchOrders,
    *,
    rounds: int,
    cohorts: Sequence[Sequence[int]],
    client_lr: float | Schedule,
    server_lr: float | Schedule,
    client_optimizer: str | client_optimizers.ClientOptimizer = "sgd",
    weighting: str = "examples",
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    momentum: float = 0.9,
    dropped: Set[tuple[int, int]] = frozenset(),
) -> Result:
    """Runs `rounds` rounds from `problem.initial_weights`.

    Args:
        problem: Data and initial weights.
        algorithm: One of `ALGORITHMS`.
        variant: One of `VARIANTS`.
        batch_orders: `batch_orders[r][k]` lists the index arrays of client k's minibatches in round
            r, all epochs one after the other (`problem.in_order` makes unshuffled ones).
        rounds: Number of rounds.
        cohorts: `cohorts[r]` lists the clients of round r; may be empty.
        client_lr: Client learning rate, or a schedule of the round number, which starts at 0.
        server_lr: Server learning rate, or such a schedule.
        client_optimizer: A name known to `client_optimizers.build`, with its default options, or an
            optimiser.
        weighting: "examples" or "uniform".
        beta1: See `server_step`, as for the three that follow.
        beta2: See there.
        tau: See there.
        momentum: See there.
        dropped: (round, client) pairs whose update is taken to be non-finite.

    Returns:
        Weights and server slots after every round.
    """
    if weighting not in ("examples", "uniform"):
        raise ValueError(f"unknown weighting {weighting!r}")
    client_lr, server_lr = _schedule(client_lr), _schedule(server_lr)
    if isinstance(client_optimizer, str):
        client_optimizer = client_optimizers.build(client_optimizer)
    x = problem.initial_weights
    slots = server_init(algorithm, variant, x, tau=tau)
    result = Result([], [])
    for r in range(rounds):
        deltas, weights = [], []
        for k in cohorts[r]:
            features, labels = problem.clients[k]
            delta = client_update(
                x,
                features,
                labels,
                batch_orders[r][k],
                lr=client_lr(r),
                optimizer=client_optimizer,
            )
            if (r, k) in dropped:
                delta = tuple(np.full_like(d, np.nan) for d in delta)
            if all(np.isfinite(d).all() for d in delta):
                deltas.append(delta)
                n = len(labels)
                weights.append(float(n) if weighting == "examples" else float(n > 0))
        if sum(weights) > 0:
            p = np.array(weights) / sum(weights)
            g = tuple(-np.tensordot(p, np.stack(arrays), 1) for arrays in zip(*deltas, strict=True))
            slots, x = server_step(
                algorithm,
                variant,
                slots,
                x,
                g,
                lr=server_lr(r),
                beta1=beta1,
                beta2=beta2,
                tau=tau,
                momentum=momentum,
            )
        result.weights.append(x)
        result.slots.append(slots)
    return result


def _schedule(lr: float | Schedule) -> Schedule:
    return lr if callable(lr) else constant(lr)


def _check(algorithm: str, variant: str) -> None:
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}")
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r}")
