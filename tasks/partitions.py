"""Assignment of examples to clients: pure functions of labels, parameters and a seed.

A partition is a list with one int64 array of row numbers for each client, in ascending order;
`by_user` also names the clients. Rows are assigned without repetition, so an example never belongs
to two clients.
"""

import decimal
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks import task
from tff_suite import user_warnings
from tff_suite.hparams import HparamError

_MAX_REDRAWS = 10_000

# First words of the generators' seeds: no two purposes share draws under one seed.
_IID, _DIRICHLET, _SHARDS, _SPLIT, _PACHINKO, _CLASSES, _TESTS, _HELD_OUT, _SIZES, _BERNOULLI = (
    range(10)
)
_BY_ID = 10


def by_user(users: Sequence[Any]) -> dict[str, np.ndarray]:
    """Gives each user's rows to one client.

    Args:
      users: The user of each row, text or numbers, `[n]`: a list, an array or a pandas column.

    Returns:
      Name of each user, as text → rows; users in ascending order. Numbers are in the order of
      numbers also if they are text, as a CSV file has them: `2` before `10`.

    Raises:
      ValueError: If a user is missing or is bytes, users have several types, or are not a column.

    Warns:
      RuntimeWarning: If users are floats that may be several users, see `rounded`.
    """
    if isinstance(users, str) or hasattr(users, "columns"):
        raise ValueError(
            f"users must be a column, found a {type(users).__name__}; give one user for each row."
        )
    rows: dict[Any, list[int]] = {}
    values = users.tolist() if hasattr(users, "tolist") else list(users)
    try:
        for row, user in enumerate(values):
            rows.setdefault(user, []).append(row)
        missing = [row for user in rows if task.is_missing(user) for row in rows[user]]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(values)} rows have no user, the first in row "
                f"{min(missing)}; drop these rows or name their user."
            )
        if task.mixes_booleans(values):
            raise TypeError
        if any(isinstance(user, bytes) for user in rows):
            # As text, b"ann" would be "b'ann'", another client than "ann".
            raise ValueError(
                "users are bytes; convert them to text: [user.decode() for user in users]."
            )
        found = {str(user): np.array(rows[user], np.int64) for user in _in_order(list(rows))}
    except TypeError as error:
        raise ValueError("users must be all text or all numbers, one for each row.") from error
    fault = rounded(users)
    if fault:
        user_warnings.warn(f"users are {fault}")
    return found


def rounded(names: Any) -> str:
    """Returns what is wrong with names that are floats; blank if they are exact or not floats.

    From 2^53 on, float64 holds every other whole number only, so two users become one.

    Args:
      names: An array or a pandas column without missing values, `[n]`; other values pass.
    """
    dtype = getattr(names, "dtype", None)
    # Of pandas's own types.
    dtype = getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", dtype))
    if getattr(dtype, "kind", "") != "f":
        return ""
    bits = np.finfo(np.dtype(dtype)).nmant + 1
    values = np.asarray(names, np.dtype(dtype))
    beyond = values[np.abs(values) >= 2.0**bits]
    return (
        f"{np.dtype(dtype).name}, which rounds whole numbers from 2^{bits} on, so "
        f"{float(beyond[0])!r} may be several; read them as text."
        if len(beyond)
        else ""
    )


def _in_order(users: Sequence[Any]) -> list[Any]:
    """Returns users in ascending order, those that are all numbers in the order of numbers.

    The order decides which clients a cohort has, so it must not depend on how users were read.
    """
    numbers = [as_number(user) if isinstance(user, str) else None for user in users]
    if None in numbers:
        return sorted(users)
    return [user for _, user in sorted(zip(numbers, users, strict=True))]


def as_number(name: str) -> decimal.Decimal | None:
    """Returns the exact number that a name is; `None` for others, also `1e3`, as an id may be."""
    plain = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)", name)
    return decimal.Decimal(name) if plain else None


def iid(num_examples: int, num_clients: int, seed: int) -> list[np.ndarray]:
    """Assigns all rows at random in sizes that differ by at most one.

    Args:
      num_examples: Number of rows.
      num_clients: Number of clients.
      seed: Seed of the partition, 0 or more.

    Returns:
      Rows of each client.

    Raises:
      HparamError: If there are more clients than rows.
    """
    if num_clients > num_examples:
        raise HparamError(f"num_clients={num_clients} is more than the {num_examples} examples.")
    shuffled = _rng(_IID, seed).permutation(num_examples)
    return [np.sort(rows) for rows in np.array_split(shuffled, num_clients)]


def dirichlet_by_class(
    labels: np.ndarray, num_clients: int, alpha: float, seed: int, min_size: int = 1
) -> list[np.ndarray]:
    """Divides each class in proportions drawn from Dir(alpha, ..., alpha) over the clients.

    All draws are repeated together until every client has `min_size` rows, as in the partitioner
    released with AdaFedAdam (Ju et al. 2024). Every row is assigned; sizes are unequal.

    Args:
      labels: Classes, whole numbers `[n]`.
      num_clients: Number of clients.
      alpha: Concentration, above 0; 0.1 leaves most clients with one to three main classes.
      seed: Seed of the partition, 0 or more.
      min_size: Minimum number of rows per client. With 0 the first draw is used, and clients may be
        empty.

    Returns:
      Rows of each client.

    Raises:
      HparamError: If no draw reaches `min_size`.
    """
    labels = _classes(labels)
    rng = _rng(_DIRICHLET, seed)
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    possible = num_clients * min_size <= len(labels)
    for _ in range(_MAX_REDRAWS if possible else 0):
        shares = _dirichlet(rng, {"alpha": alpha}, num_clients, len(by_class))
        counts = np.stack([_apportion(p, len(c)) for p, c in zip(shares, by_class, strict=True)])
        if counts.sum(axis=0).min() >= min_size:
            break
    else:
        raise HparamError(
            f"No Dirichlet partition with alpha={alpha:g} gives each of num_clients={num_clients} "
            f"at least {min_size} of {len(labels)} examples; raise alpha, or lower num_clients or "
            "min_size (min_share of a task)."
        )
    parts = [[] for _ in range(num_clients)]
    for rows, count in zip(by_class, counts, strict=True):
        pieces = np.split(rng.permutation(rows), np.cumsum(count)[:-1])
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def least_size(num_examples: int, num_clients: int, min_share: float) -> int:
    """Returns the minimum number of rows per client for a task's `min_share`.

    Args:
      num_examples: Number of rows.
      num_clients: Number of clients.
      min_share: Share of the average number of rows, in [0, 1).

    Returns:
      That share, but at least two: one to train on and one to test. 0 for a share of 0.
    """
    return max(2, math.ceil(num_examples / num_clients * min_share)) if min_share else 0


def dirichlet_by_client(
    labels: np.ndarray, sizes: Sequence[int], alpha: float, seed: int
) -> list[np.ndarray]:
    """Draws each client's examples from its own label proportions, Dir(alpha, ..., alpha).

    FedOpt's federated CIFAR-10 (Reddi et al. 2021, App. C.1, after Hsu et al. 2019): 500 clients of
    100 examples, alpha = 0.1. Examples are drawn one by one without replacement; a class without
    remaining examples is left out, and the other proportions are scaled to sum to 1. Rows beyond
    the sum of the sizes are not assigned.

    Args:
      labels: Classes, whole numbers `[n]`.
      sizes: Number of rows of each client.
      alpha: Concentration, above 0.
      seed: Seed of the partition, 0 or more.

    Returns:
      Rows of each client.

    Raises:
      HparamError: If the sizes sum to more than there are rows.
    """
    # Pachinko allocation where every coarse label has one fine label.
    return pachinko(labels, labels, sizes, alpha, 1.0, seed)


def pachinko(
    coarse: np.ndarray,
    fine: np.ndarray,
    sizes: Sequence[int],
    alpha: float,
    beta: float,
    seed: int,
) -> list[np.ndarray]:
    """Assigns rows by Pachinko allocation over coarse and fine labels.

    FedOpt's federated CIFAR-100 (Reddi et al. 2021, App. F, Algorithms 7 and 8): 500 clients of 100
    examples, alpha = 0.1, beta = 10. Each client in turn draws proportions of the coarse labels
    from Dir(alpha) and, for each coarse label, of its fine labels from Dir(beta). It then draws its
    examples one by one: a coarse label, one of its fine labels, and a row of that label at random.
    A label without remaining rows is left out from then on, and the client's other proportions are
    scaled to sum to 1. If these are all 0 in floating point, which Dir(0.1) allows, the remaining
    labels are equally likely; the paper does not cover this case.

    Args:
      coarse: Coarse labels, whole numbers `[n]`.
      fine: Fine labels, whole numbers `[n]`; each belongs to one coarse label.
      sizes: Number of rows of each client.
      alpha: Concentration over coarse labels, above 0.
      beta: Concentration over the fine labels of a coarse one, above 0.
      seed: Seed of the partition, 0 or more.

    Returns:
      Rows of each client.

    Raises:
      HparamError: If the sizes sum to more than there are rows.
    """
    if sum(sizes) > len(fine):
        raise HparamError(
            f"num_clients={len(sizes)} with {sum(sizes)} examples in all is more than the "
            f"{len(fine)} examples."
        )
    coarse, fine = _classes(coarse), _classes(fine)
    rng = _rng(_PACHINKO, seed)
    # The rows of a label in the order in which they will be taken, from the end.
    left = {y: rng.permutation(np.flatnonzero(fine == y)).tolist() for y in np.unique(fine)}
    children = {c: sorted(set(fine[coarse == c])) for c in np.unique(coarse)}
    parts = []
    for size in sizes:
        roots = list(children)
        root_shares = _dirichlet(rng, {"alpha": alpha}, len(roots))
        shares = {c: _dirichlet(rng, {"beta": beta}, len(ys)) for c, ys in children.items()}
        rows = []
        for coin in rng.random((size, 2)):
            i = _place(root_shares, coin[0])
            c = roots[i]
            j = _place(shares[c], coin[1])
            y = children[c][j]
            rows.append(left[y].pop())
            if not left[y]:
                del children[c][j]
                shares[c] = np.delete(shares[c], j)
            if not children[c]:
                del children[c], roots[i]
                root_shares = np.delete(root_shares, i)
        parts.append(np.sort(np.array(rows, np.int64)))
    return parts


def equal_sizes(num_examples: int, num_clients: int) -> list[int]:
    """Returns clients' sizes, all equal and as large as possible.

    Args:
      num_examples: Number of rows.
      num_clients: Number of clients.

    Raises:
      HparamError: If there are more clients than rows.
    """
    if num_clients > num_examples:
        raise HparamError(f"num_clients={num_clients} is more than the {num_examples} examples.")
    return [num_examples // num_clients] * num_clients


def lognormal_sizes(num_examples: int, num_clients: int, sigma: float, seed: int) -> list[int]:
    """Returns clients' sizes in proportions drawn from exp(N(0, sigma^2)), each at least two.

    Args:
      num_examples: Number of rows, which the sizes sum to.
      num_clients: Number of clients.
      sigma: Standard deviation of the sizes' logarithms.
      seed: Seed of the sizes, 0 or more.

    Raises:
      HparamError: If there are fewer than two rows per client.
    """
    rest = num_examples - 2 * num_clients
    if rest < 0:
        raise HparamError(
            f"num_clients={num_clients} with two or more examples each is more than the "
            f"{num_examples} examples."
        )
    shares = np.exp(sigma * _rng(_SIZES, seed).standard_normal(num_clients))
    return (2 + _apportion(shares / shares.sum(), rest)).tolist()


def classes_each(
    labels: np.ndarray, num_clients: int, classes_per_client: int, seed: int
) -> list[np.ndarray]:
    """Gives each client some classes, and divides a class equally among the clients that have it.

    Classes are chosen at random, but all go to nearly the same number of clients. With enough
    clients every row is assigned. In AdaFed's skewed FEMNIST each of 100 clients has five of ten
    classes.

    Args:
      labels: Classes, whole numbers `[n]`.
      num_clients: Number of clients.
      classes_per_client: Classes of each client.
      seed: Seed of the partition, 0 or more.

    Returns:
      Rows of each client.

    Raises:
      HparamError: If there are fewer classes, or a class has fewer rows than clients.
    """
    labels, rng = _classes(labels), _rng(_CLASSES, seed)
    classes = np.unique(labels)
    if classes_per_client > len(classes):
        raise HparamError(
            f"classes_per_client={classes_per_client} is more than the {len(classes)} classes."
        )
    holders = [[] for _ in classes]
    for client in range(num_clients):
        counts = np.array([len(clients) for clients in holders])
        # The rarest first, at random among the equally rare.
        for i in np.lexsort((rng.random(len(classes)), counts))[:classes_per_client]:
            holders[i].append(client)
    parts = [[] for _ in range(num_clients)]
    for label, clients in zip(classes, holders, strict=True):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if len(rows) < len(clients):
            raise HparamError(
                f"Class {label} has only {len(rows)} examples for the {len(clients)} clients "
                f"that share it; lower num_clients={num_clients}."
            )
        if clients:
            for client, piece in zip(clients, np.array_split(rows, len(clients)), strict=True):
                parts[client].append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def some_classes_dirichlet(
    labels: np.ndarray, num_clients: int, class_probability: float, alpha: float, seed: int
) -> list[np.ndarray]:
    """Gives each client some classes and divides each class in shares drawn from a Dirichlet.

    The partition of FedCorr (Xu et al. 2022). Each client has each class with probability
    `class_probability`, and clients without any class draw again. Each row of a class goes to one
    of the clients that have it, drawn with shares from Dir(alpha, ..., alpha). Rows of a class that
    no client has are not assigned.

    Args:
      labels: Classes, whole numbers `[n]`.
      num_clients: Number of clients.
      class_probability: Probability with which a client has a class, p in the paper, in (0, 1].
      alpha: Concentration of the shares, above 0.
      seed: Seed of the partition, 0 or more.

    Returns:
      Rows of each client.

    Raises:
      HparamError: If a client is left without rows.
    """
    labels, rng = _classes(labels), _rng(_BERNOULLI, seed)
    classes = np.unique(labels)
    has = np.zeros((num_clients, len(classes)), bool)
    while not has.any(axis=1).all():
        without = np.flatnonzero(~has.any(axis=1))
        has[without] = rng.random((len(without), len(classes))) < class_probability
    parts = [[np.zeros(0, np.int64)] for _ in range(num_clients)]
    for place, label in enumerate(classes):
        holders = np.flatnonzero(has[:, place])
        if not len(holders):
            continue
        rows = np.flatnonzero(labels == label)
        shares = _dirichlet(rng, {"alpha": alpha}, len(holders))
        chosen = rng.choice(holders, len(rows), p=shares)
        for k in holders:
            parts[k].append(rows[chosen == k])
    rows_of_each = [np.sort(np.concatenate(part)) for part in parts]
    if not all(map(len, rows_of_each)):
        raise HparamError(
            f"num_clients={num_clients} leaves clients without any of {len(labels)} examples."
        )
    return rows_of_each


def shards(
    labels: np.ndarray, num_clients: int, shards_per_client: int, seed: int
) -> list[np.ndarray]:
    """Sorts rows by label, cuts them into equal shards and assigns these at random.

    The pathological partition of McMahan et al. 2017 (100 clients, 2 of 200 shards each), used by
    AdaFed for CIFAR-10. Every row is assigned; shard sizes differ by at most one.

    Args:
      labels: Classes, whole numbers `[n]`.
      num_clients: Number of clients.
      shards_per_client: Shards assigned to each client.
      seed: Seed of the partition, 0 or more.

    Returns:
      Rows of each client.

    Raises:
      HparamError: If there are more shards than rows.
    """
    labels = _classes(labels)
    num_shards = num_clients * shards_per_client
    if num_shards > len(labels):
        raise HparamError(
            f"num_clients={num_clients} with shards_per_client={shards_per_client} makes more "
            f"shards than the {len(labels)} examples."
        )
    pieces = np.array_split(np.argsort(labels, kind="stable"), num_shards)
    assigned = _rng(_SHARDS, seed).permutation(num_shards).reshape(num_clients, shards_per_client)
    return [np.sort(np.concatenate([pieces[i] for i in row])) for row in assigned]


def one_class_each(labels: np.ndarray, classes: Sequence[int]) -> list[np.ndarray]:
    """Gives each client all rows of one class; rows of other classes are not assigned.

    The protocol of AFL (Mohri et al. 2019) and q-FFL for Fashion-MNIST: three clients.

    Args:
      labels: Classes, whole numbers `[n]`.
      classes: The class of each client.

    Returns:
      Rows of each client.

    Raises:
      HparamError: If a class is named twice or has no rows.
    """
    if len(set(classes)) != len(classes):
        raise HparamError(f"classes={', '.join(map(str, classes))} names a class twice.")
    labels = _classes(labels)
    parts = [np.flatnonzero(labels == label) for label in classes]
    for label, rows in zip(classes, parts, strict=True):
        if not len(rows):
            raise HparamError(f"There are no examples of class {label}.")
    return parts


def split_train_test(
    parts: Sequence[np.ndarray], test_fraction: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Splits each client's rows at random into train and test.

    Of n rows, floor((1 - test_fraction) n) are train, but at least one, as in LEAF's split by
    sample. A client's split depends only on its index, its rows and the seed.

    Args:
      parts: Rows of each client.
      test_fraction: Share of test rows, in [0, 1).
      seed: Seed of the split, 0 or more.

    Returns:
      Train rows and test rows of each client. A client of one row has no test rows.

    Raises:
      HparamError: If the share is not in [0, 1).
    """
    _check_share("test_fraction", test_fraction)
    train, test = [], []
    for index, rows in enumerate(parts):
        # The small term keeps products such as (1 - 0.56) * 25 from falling below the whole number.
        num_train = max(1, int((1 - test_fraction) * len(rows) + 1e-9))
        shuffled = _rng(_SPLIT, seed, index).permutation(rows)
        train.append(np.sort(shuffled[:num_train]))
        test.append(np.sort(shuffled[num_train:]))
    return train, test


def split_by_id(
    parts: Mapping[str, np.ndarray], fraction: float, seed: int, purpose: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Splits each client's rows at random by its id, independently of the other clients.

    Of n rows, floor((1 - fraction) n) stay, but at least one.

    Args:
      parts: Client id → its rows.
      fraction: Share of the rows that are held out, in [0, 1).
      seed: Seed of the split, 0 or more.
      purpose: Why they are held out; each purpose has independent draws.

    Returns:
      Client id → rows that stay, and client id → rows held out.

    Raises:
      HparamError: If the share is not in [0, 1).
    """
    _check_share("fraction", fraction)
    kept, held_out = {}, {}
    for name, rows in parts.items():
        # Half a character has no UTF-8; `Task` refuses a client that is named by one.
        digest = hashlib.sha256(f"{purpose}/{name}".encode(errors="surrogatepass")).digest()
        words = np.frombuffer(digest[:16], "<u4").tolist()
        # The small term is that of `split_train_test`.
        number = max(1, int((1 - fraction) * len(rows) + 1e-9))
        shuffled = _rng(_BY_ID, seed, *words).permutation(rows)
        kept[name], held_out[name] = np.sort(shuffled[:number]), np.sort(shuffled[number:])
    return kept, held_out


def tests_alike(
    labels: np.ndarray, parts: Sequence[np.ndarray], test_labels: np.ndarray, seed: int
) -> list[np.ndarray]:
    """Assigns test rows to clients so that each has the label distribution of its training rows.

    The test rows of a class are assigned in the proportions of the clients' training rows.

    Args:
      labels: Classes of the training rows, whole numbers `[n]`.
      parts: Training rows of each client.
      test_labels: Classes of the test rows, whole numbers `[m]`.
      seed: Seed of the assignment, 0 or more.

    Returns:
      Test rows of each client; clients with few training rows may have none.
    """
    labels, test_labels = _classes(labels), _classes(test_labels)
    rng = _rng(_TESTS, seed)
    tests = [[np.zeros(0, np.int64)] for _ in parts]
    for label in np.unique(test_labels):
        held = np.array([np.sum(labels[part] == label) for part in parts])
        if not held.sum():
            continue
        rows = rng.permutation(np.flatnonzero(test_labels == label))
        pieces = np.split(rows, np.cumsum(_apportion(held / held.sum(), len(rows)))[:-1])
        for test, piece in zip(tests, pieces, strict=True):
            test.append(piece)
    return [np.sort(np.concatenate(test)) for test in tests]


def hold_out(num_examples: int, num_held_out: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits rows at random into those that stay and those held out, for validation.

    Args:
      num_examples: Number of rows.
      num_held_out: Number of rows held out.
      seed: Seed of the split, 0 or more.

    Returns:
      Rows that stay and rows held out.

    Raises:
      HparamError: If no row would stay.
    """
    if num_held_out >= num_examples:
        raise HparamError(f"{num_held_out} of {num_examples} examples cannot be held out.")
    rows = _rng(_HELD_OUT, seed).permutation(num_examples)
    return np.sort(rows[num_held_out:]), np.sort(rows[:num_held_out])


def _classes(labels: np.ndarray) -> np.ndarray:
    """Returns labels as an array `[n]`, after checking that every row has one.

    Raises:
      ValueError: If they have another shape, or one is missing or masked.
    """
    task.require_plain("partition", {"labels": labels})
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(
            f"labels must be one number for each row, found shape {list(labels.shape)}; for "
            "one-hot labels, pass labels.argmax(axis=1)."
        )
    kind = labels.dtype.kind
    missing = task.is_missing if kind == "O" else (lambda v: v != v)
    number = sum(map(missing, labels)) if kind in "OfcmM" else 0
    if number:
        raise ValueError(f"{number} of {len(labels)} labels are missing values; drop these rows.")
    return labels


def _check_share(name: str, share: float) -> None:
    if not 0 <= share < 1:
        raise HparamError(f"{name}={share} must be in [0, 1).")


def _dirichlet(
    rng: np.random.Generator, named: Mapping[str, float], number: int, size: int | None = None
) -> np.ndarray:
    """Returns shares drawn with one concentration, by its name: `[number]` or `[size, number]`."""
    ((name, concentration),) = named.items()
    if not 0 < concentration < math.inf:
        raise HparamError(f"{name}={concentration} must be a finite number above 0.")
    shares = rng.dirichlet([concentration] * number, size=size)
    if not np.allclose(shares.sum(-1), 1.0):
        raise HparamError(f"{name}={concentration:g} is too large for shares to be drawn.")
    return shares


def _place(shares: np.ndarray, coin: float) -> int:
    """Returns a position drawn with probabilities proportional to `shares`, by a coin in [0, 1)."""
    ends = np.cumsum(shares)
    if not ends[-1] > 0:
        ends = np.arange(1, len(shares) + 1)
    # The product may be rounded up to the last end.
    return min(int(np.searchsorted(ends, coin * ends[-1], side="right")), len(ends) - 1)


def _apportion(shares: np.ndarray, total: int) -> np.ndarray:
    """Returns whole numbers that sum to `total`, each within one of its exact share."""
    ends = np.floor(np.cumsum(shares) * total + 1e-9).astype(np.int64)
    ends[-1] = total
    return np.diff(ends, prepend=0)


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)
