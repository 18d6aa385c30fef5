"""`cifar100_image`: CIFAR-100 (Krizhevsky 2009) among TFF's clients or generated ones.

FedOpt (Reddi et al. 2021) and FedDA use TFF's file: 500 clients of 100 images, drawn by Pachinko
allocation. `partition=pachinko` repeats the allocation without the file. AdaFed has fewer and
larger clients. See `tasks.images`.
"""

from __future__ import annotations

import functools
from typing import Any

from tasks import images, settings
from tasks.data_files import DataFiles
from tasks.formats import cifar, cifar100_clients
from tasks.registry import Clients, TaskSpec
from tasks.task import Task
from tff_suite.hparams import By, Hparam, HparamError, Settings


def _clients(chosen: Settings, synthetic: bool) -> Clients | None:
    number = chosen["num_clients"] or 500
    if chosen["partition"] == "tff" or (chosen["partition"] == "auto" and not synthetic):
        return Clients(number)
    return Clients.numbered(number)


_TFFS = cifar100_clients.PUBLISHED.data_files("the whole CIFAR-100", 50_000)
_IMAGES = DataFiles(
    "the whole CIFAR-100",
    f"get {cifar.CIFAR100.address}, 169 MB",
    ("cifar-100-*", "cifar100/cifar-100-*"),
    50_000,
    cached=(".keras/datasets/cifar-100-python.tar.gz",),
    tfds_set=cifar.CIFAR100.tfds,
    tfds_cache="alone",
)
_GENERATED = ("pachinko", "multinomial", "dirichlet", "iid", "shards", "classes")

SPEC = TaskSpec(
    name="cifar100_image",
    summary="CIFAR-100 among TFF's clients or generated ones: FedOpt's ResNet-18 "
    "(11,227,812 parameters).",
    check=functools.partial(images.check, "cifar100_image", 32),
    clients=_clients,
    hparams=images.hparams(
        partitions=("auto", "tff", *_GENERATED),
        partition=(
            "auto",
            "FedOpt and FedDA: TFF's file, made by Pachinko allocation; AdaFed: dirichlet",
        ),
        num_clients=(500, "FedOpt; AdaFed: 10 and 50"),
        alpha=(0.1, "FedOpt; AdaFed: 0.5 and 0.05"),
        size=32,
        distorted=True,
        validation="With 10000, clients share 40,000 images, as in AdaFed.",
        init=settings.init("keras", "FedOpt (TFF); AdaFedAdam, AdaFed and FedCAda: torch"),
        own=(
            Hparam(
                name="beta",
                default=By("partition", {"auto": None, "pachinko": 10.0}),
                help="Concentration over the fine labels of a coarse one.",
                source="FedOpt, App. F",
                **settings.CONCENTRATIONS,
            ),
        ),
    ),
    metrics=("accuracy",),
    data=(
        _IMAGES.replace(name="CIFAR-100 or a part of it", stand_in=True),
        _TFFS.replace(when={"partition": ("tff",)}),
        _IMAGES.replace(when={"partition": _GENERATED}),
        # Without a folder TFF's partition is taken, which no other form has.
        _TFFS.replace(files=(*_TFFS.files, *_IMAGES.files), tfds_set=cifar.CIFAR100.tfds),
    ),
    known_problems=("It was run on subsets only: 10,000 training and 2,000 test images.",),
    used_for=("FedJAX ships TFF's clients of it.",),
)


def load(*, data_dir: str | None, seed: int, use_synthetic_data: bool, **chosen: Any) -> Task:
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    Raises:
      HparamError: If settings contradict each other, or the partition is impossible.
      DataError: If files are missing or damaged, or cannot be downloaded.
    """
    del seed  # It comes as partition_seed.
    if chosen["partition"] == "auto":
        tffs = not use_synthetic_data and cifar100_clients.has_tffs(data_dir)
        chosen = SPEC.settled(chosen, partition="tff" if tffs else "pachinko")
    origin = {}
    if chosen["partition"] == "tff":
        if use_synthetic_data:
            raise HparamError("cifar100_image: partition=tff needs TFF's file.")
        assigned = images.Assigned(*cifar100_clients.read_tffs(data_dir))
    else:
        if use_synthetic_data:
            train, test = images.synthetic(100, 32, chosen["num_clients"])
            train, test = (part._replace(coarse=part.labels // 5) for part in (train, test))
        else:
            train, test, origin = cifar.read(cifar.CIFAR100, data_dir)
        assigned = images.assign(train, test, chosen)
    return images.task("cifar100_image", assigned, 100, 32, {**chosen, **origin})
