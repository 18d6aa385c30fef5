"""`synthetic`: clients of generated examples, by LEAF's generator or FedProx's.

Both draw a softmax regression and an input distribution for each client, and label the client's
inputs by that regression. There are 60 inputs and 10 classes, as in AdaFedAdam (Ju et al. 2024),
whose published rows fit LEAF's generator and not FedProx's.
"""

from __future__ import annotations

import functools

import numpy as np

from tasks import partitions, settings
from tasks.models import losses, models
from tasks.registry import TaskSpec
from tasks.task import ArrayFederatedData, Examples, Task
from tff_suite import memory
from tff_suite.hparams import MAX_SEED, By, Hparam

_NUM_INPUTS = 60
_NUM_CLASSES = 10

# Variances of the inputs around their client's centre, the same in both generators.
_INPUT_VARIANCES = np.arange(1, _NUM_INPUTS + 1) ** -1.2


SPEC = TaskSpec(
    name="synthetic",
    summary="Softmax regression on generated clients (60 inputs, 10 classes, 610 parameters).",
    class_labels=True,
    needs_data=False,
    clients=settings.generated,
    hparams=(
        Hparam(
            name="generator",
            default="leaf",
            help=(
                "`leaf` is LEAF's own generator (one cluster of client models); `alpha_beta` "
                "is Synthetic(alpha, beta) of the FedProx paper. The two give different data."
            ),
            source="AdaFedAdam, Synthetic: its published rows fit LEAF's generator",
            choices=("leaf", "alpha_beta"),
        ),
        Hparam(
            name="num_clients",
            default=100,
            help="Number of clients.",
            source="AdaFedAdam, Synthetic (FedProx's own sets have 30)",
            minimum=1,
            maximum=settings.MAX_CLIENTS,
        ),
        Hparam(
            name="data_seed",
            default=931231,
            help=(
                "Seed of the generated examples; another one moves average accuracies by "
                "several points. Apart from --seed, so that runs differ in seed on equal data."
            ),
            source="LEAF, data/synthetic",
            minimum=0,
            maximum=MAX_SEED,
        ),
        Hparam(
            name="max_examples",
            default=By("generator", {"leaf": 1000}, otherwise=None),
            help="Largest number of examples per client; by default unlimited.",
            source="LEAF, data/synthetic; FedProx's code has no limit",
            minimum=5,
        ),
        Hparam(
            name="alpha",
            default=By("generator", {"alpha_beta": 1.0}),
            help=(
                "Standard deviation of the centres of clients' true models. It changes no label: a "
                "centre shifts an example's scores for all classes alike."
            ),
            source="FedProx, Synthetic(1, 1)",
            minimum=0,
        ),
        Hparam(
            name="beta",
            default=By("generator", {"alpha_beta": 1.0}),
            help="Standard deviation of the centres of clients' inputs.",
            source="FedProx, Synthetic(1, 1)",
            minimum=0,
        ),
        Hparam(
            name="test_fraction",
            default=0.2,
            help="Share of each client's examples that is its test split.",
            source="AdaFedAdam: local 80/20 split, drawn before training",
            minimum=0,
            maximum=1,
            exclusive_minimum=True,
            exclusive_maximum=True,
        ),
        settings.partition_seed("the clients' train/test splits"),
        settings.init("torch", "AdaFedAdam (PyTorch)"),
    ),
    metrics=("accuracy",),
    used_for=("LEAF publishes its generator (arXiv 1812.01097).",),
)


def load(
    *,
    data_dir: str | None,
    seed: int,
    use_synthetic_data: bool,
    generator: str,
    num_clients: int,
    data_seed: int,
    max_examples: int | None,
    alpha: float | None,
    beta: float | None,
    test_fraction: float,
    partition_seed: int,
    init: str,
) -> Task:
    """Makes the task; see `SPEC` for the settings and `tasks.load` for the rest.

    The central test is all clients' test examples together.
    """
    del data_dir, use_synthetic_data, seed  # The data are always generated, from a seed apart.
    if generator == "leaf":
        assert max_examples is not None
        clients = leaf_clients(num_clients, data_seed, max_examples)
    else:
        assert alpha is not None and beta is not None
        clients = alpha_beta_clients(num_clients, data_seed, max_examples, alpha, beta)
    x = np.concatenate([c.x for c in clients])
    y = np.concatenate([c.y for c in clients])
    ends = np.cumsum([len(c.y) for c in clients])
    rows = np.split(np.arange(len(y)), ends[:-1])
    train_rows, test_rows = partitions.split_train_test(rows, test_fraction, partition_seed)
    client_ids = [str(i) for i in range(num_clients)]
    all_test_rows = np.concatenate(test_rows)
    return Task(
        name="synthetic",
        train=ArrayFederatedData(x, y, train_rows, client_ids),
        test=ArrayFederatedData(x, y, test_rows, client_ids),
        central_test=Examples(x[all_test_rows], y[all_test_rows]),
        keras_model_fn=functools.partial(
            models.softmax_regression,
            num_inputs=_NUM_INPUTS,
            num_classes=_NUM_CLASSES,
            init=init,
        ),
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"accuracy": losses.sparse_accuracy},
        primary_metric="accuracy",
    )


def leaf_clients(num_clients: int, seed: int, max_examples: int = 1000) -> list[Examples]:
    """Generates clients as LEAF does (Caldas et al. 2018, `data/synthetic`), draw for draw.

    The result equals that of `main.py -num-tasks <num_clients> -num-classes 10 -num-dim 60 -seed
    <seed>`, with LEAF's one cluster of models. Client k has `min(floor(s) + 5, max_examples)`
    examples with s ~ lognormal(3, 2). The centre of its inputs is v_k ~ N(B_k, I) with B_k ~ N(0,
    1). Its model is W_k = Q u_k, where all clients share Q (normal entries) and u_k ~ N(mu, 0.1^2)
    is one number. The label is the largest entry of x W_k (with a bias) plus N(0, 0.1^2) noise.
    LEAF's current version applies its softmax to each example; the first release applied it across
    the examples of a client, which gave different labels.

    Args:
      num_clients: Number of clients.
      seed: LEAF's seed; its own default is 931231.
      max_examples: Maximum number of examples per client; 1000 in LEAF.

    Returns:
      Each client's examples: x float32 `[n, 60]`, y int32 `[n]`.
    """
    # LEAF draws sizes and data from two generators of the same seed, and its legacy generator is
    # the one whose stream NumPy keeps for ever.
    sizes = np.random.RandomState(seed).lognormal(3, 2, num_clients)
    sizes = np.minimum(sizes.astype(np.int64) + 5, max_examples)
    _require_room(sizes)
    rng = np.random.RandomState(seed)
    shared = rng.normal(size=(_NUM_INPUTS + 1, _NUM_CLASSES, 1))
    centre_of_models = rng.normal(rng.normal(), 1.0, size=1)
    clients = []
    for size in sizes:
        rng.random_sample()  # Which cluster the client is in: there is one, but the draw is made.
        centre = rng.normal(rng.normal(), 1.0, size=_NUM_INPUTS)
        x = centre + rng.standard_normal((size, _NUM_INPUTS)) * np.sqrt(_INPUT_VARIANCES)
        model = shared @ rng.normal(centre_of_models, 0.1)
        scores = model[0] + x @ model[1:] + rng.normal(0.0, 0.1, (size, _NUM_CLASSES))
        clients.append(_examples(x, scores))
    return clients


def alpha_beta_clients(
    num_clients: int, seed: int, max_examples: int | None, alpha: float, beta: float
) -> list[Examples]:
    """Generates clients of Synthetic(alpha, beta) (Li et al. 2020, FedProx).

    Client k has floor(s) + 50 examples with s ~ lognormal(4, 2), a model with entries N(u_k, 1),
    u_k ~ N(0, alpha^2), and inputs around v_k with entries N(B_k, 1), B_k ~ N(0, beta^2). alpha and
    beta are standard deviations, as in the authors' code; the paper writes N(0, alpha). As
    published, alpha does not change any label: u_k adds the same number to an example's score of
    every class. The draws differ from those in the authors' files.

    Args:
      num_clients: Number of clients.
      seed: Seed of the examples, 0 or more.
      max_examples: Maximum number of examples per client, or `None`.
      alpha: Standard deviation of u_k.
      beta: Standard deviation of B_k.

    Returns:
      Each client's examples: x float32 `[n, 60]`, y int32 `[n]`.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(4, 2, num_clients).astype(np.int64) + 50
    sizes = np.minimum(sizes, max_examples or sizes.max())
    _require_room(sizes)
    clients = []
    for size in sizes:
        model_centre, input_centre = rng.normal(0.0, alpha), rng.normal(0.0, beta)
        model = rng.normal(model_centre, 1.0, (_NUM_INPUTS, _NUM_CLASSES))
        bias = rng.normal(model_centre, 1.0, _NUM_CLASSES)
        centre = rng.normal(input_centre, 1.0, _NUM_INPUTS)
        x = centre + rng.standard_normal((size, _NUM_INPUTS)) * np.sqrt(_INPUT_VARIANCES)
        clients.append(_examples(x, x @ model + bias))
    return clients


def _require_room(sizes: np.ndarray) -> None:
    """Refuses data that would not fit into memory: float32 inputs, by client and again together."""
    memory.require(
        8 * _NUM_INPUTS * float(sizes.sum()),
        f"Making {sizes.sum():,} examples of {len(sizes):,} clients",
        "lower synthetic_num_clients or synthetic_max_examples",
    )


def _examples(x: np.ndarray, scores: np.ndarray) -> Examples:
    return Examples(x.astype(np.float32), np.argmax(scores, axis=1).astype(np.int32))
