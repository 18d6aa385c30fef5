"""`cifar10_image`: CIFAR-10 (Krizhevsky 2009) among generated clients.

FedOpt (Reddi et al. 2021) draws 500 clients of 100 images each, every client with its own label
proportions. AdaFedAdam, AdaFed and FedCAda have fewer and larger clients, made in other ways.
Settings select between them; see `tasks.images`.
"""

from __future__ import annotations

import functools
from typing import Any

from tasks import images, settings
from tasks.data_files import DataFiles
from tasks.formats import cifar
from tasks.registry import TaskSpec
from tasks.task import Task

_DATA = DataFiles(
    "the whole CIFAR-10",
    f"get {cifar.CIFAR10.address}, 170 MB",
    ("cifar-10-*", "data_batch_1*", "cifar10/cifar-10-*", "cifar10/data_batch_1*"),
    50_000,
    cached=(".keras/datasets/cifar-10-batches-py.tar.gz",),
    tfds_set=cifar.CIFAR10.tfds,
    tfds_cache="alone",
)

SPEC = TaskSpec(
    name="cifar10_image",
    summary="CIFAR-10 among generated clients: FedOpt's ResNet-18 (11,181,642 parameters), "
    "VGG11, CNNs, MLP.",
    check=functools.partial(images.check, "cifar10_image", 32),
    clients=settings.generated,
    hparams=images.hparams(
        partitions=("multinomial", "dirichlet", "iid", "shards", "classes"),
        partition=(
            "multinomial",
            "FedOpt; AdaFedAdam, FedCAda, AdaFed setup 2: dirichlet; AdaFed setup 1: shards",
        ),
        num_clients=(500, "FedOpt; AdaFedAdam: 16; AdaFed: 100 and 10; FedCAda: 20 and 100"),
        alpha=(0.1, "FedOpt, AdaFedAdam, FedCAda; AdaFed setup 2: 0.5"),
        size=32,
        distorted=True,
        validation="With 10000, clients share 40,000 images, as in AdaFed.",
        init=settings.init("keras", "FedOpt (TFF); AdaFedAdam, AdaFed and FedCAda: torch"),
    ),
    metrics=("accuracy",),
    data=(_DATA.replace(name="CIFAR-10 or a part of it", stand_in=True), _DATA),
    known_problems=(
        "It was run on subsets only: 8,000 training and 2,000 test images. The whole set "
        "needs hundreds of hours on two cores.",
    ),
)


def load(*, data_dir: str | None, seed: int, use_synthetic_data: bool, **chosen: Any) -> Task:
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    Raises:
      HparamError: If settings contradict each other, or the partition is impossible.
      DataError: If files are missing or damaged, or cannot be downloaded.
    """
    del seed  # It comes as partition_seed.
    origin = {}
    if use_synthetic_data:
        train, test = images.synthetic(10, 32, chosen["num_clients"])
    else:
        train, test, origin = cifar.read(cifar.CIFAR10, data_dir)
    assigned = images.assign(train, test, chosen)
    return images.task("cifar10_image", assigned, 10, 32, {**chosen, **origin})
