"""Models of images in the runtimes: distortion is the same everywhere, convolutions vectorise."""

import functools

import numpy as np
import pytest

import tff_algos
from simulation import runtimes
from simulation.engine import executors
from simulation.engine import process as engine
from tasks.models import image_models, losses
from tff_algos.client_data import batch_client


def _process(make, size, crop):
    keras_model = image_models.of_bytes(
        1,
        model_fn=make,
        shape=(size, size, 3),
        crop=crop,
        distort=True,
        scaling="standardize",
    )
    model = tff_algos.from_keras(keras_model, loss=losses.sparse_softmax_cross_entropy)
    return tff_algos.build("fedavg", model, num_clients=3, client_learning_rate=0.1)


def _clients(size):
    rng = np.random.default_rng(0)
    return [
        batch_client(
            rng.integers(0, 256, (n, size, size, 3), np.uint8),
            rng.integers(0, 10, n).astype(np.int32),
            batch_size=4,
            order_seed=(1, n),
            dropout_seed=(2, n),
            index=i,
        )
        for i, n in enumerate((9, 5, 8))
    ]


_small = functools.partial(
    image_models.conv_net, convolutions=(4, "pool", 6), padding="same", hidden=(5,), dropout=0.3
)


def _after_two_rounds(process, runtime, *cohorts):
    """Yields the weights for each cohort."""
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        for clients in cohorts:
            state = bound.initialize()
            for _ in range(2):
                state = bound.next(state, clients).state
            yield [np.asarray(w) for w in bound.model_weights(state)]


@pytest.mark.long
@pytest.mark.parametrize("runtime", ["vectorized", "native"])
def test_runtimes_distort_alike(runtime):
    clients, process = _clients(12), _process(_small, 12, 8)
    (expected,) = _after_two_rounds(process, "tff", clients)
    # Other seeds, other cuts.
    others = [c._replace(seed=c.seed + 1) for c in clients]
    same, other = _after_two_rounds(process, runtime, clients, others)
    for got, want in zip(same, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)
    assert max(np.abs(a - b).max() for a, b in zip(other, expected, strict=True)) > 1e-3


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("make", "crop"),
    [
        (functools.partial(image_models.resnet18, strides="usual"), 24),
        (functools.partial(image_models.resnet18, strides="tff", groups=32, l2=1e-4), 24),
        (
            functools.partial(
                image_models.conv_net,
                convolutions=image_models.VGG11,
                padding="same",
                hidden=(512, 512),
                dropout=0.5,
            ),
            32,
        ),
    ],
    ids=["resnet18_usual", "resnet18_tff", "vgg11_dense"],
)
def test_the_papers_models_vectorise(make, crop):
    with runtimes.installed("vectorized"):
        # Refuses an operation that has no form over a cohort.
        executors.Stacked(engine.program_of(_process(make, 32, crop))).check()
