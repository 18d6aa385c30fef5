"""`cinic10`: images of CIFAR-10 and ImageNet in CIFAR-10's classes, among generated clients.

CINIC-10 (Darlow et al. 2018), which AdaFed divides among 50 clients. See `tasks.images`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tasks import images, settings
from tasks.data_files import DataFiles
from tasks.formats import image_folders, prepared
from tasks.formats.cifar import Images
from tasks.registry import TaskSpec
from tasks.task import Task
from tff_suite.hparams import Hparam

SPEC = TaskSpec(
    name="cinic10",
    summary="CINIC-10, images of CIFAR-10 and ImageNet in CIFAR-10's classes, among generated "
    "clients: AdaFed's ResNet-18 (11,181,642 parameters).",
    preparer="prepare",
    check=functools.partial(images.check, "cinic10", 32),
    clients=settings.generated,
    hparams=images.hparams(
        partitions=("multinomial", "dirichlet", "iid", "shards", "classes"),
        partition=("dirichlet", "AdaFed, CINIC-10"),
        num_clients=(50, "AdaFed, CINIC-10"),
        alpha=(0.5, "AdaFed, CINIC-10"),
        size=32,
        distorted=False,
        validation="Images of `valid` are among them only if `with_valid` is set.",
        init=settings.init("torch", "AdaFed (PyTorch)"),
        own=(
            Hparam(
                name="with_valid",
                default=False,
                help="Whether the 90,000 images of `valid` are training images as well.",
                source="choice; AdaFed does not say which of 270,000 it trains on",
            ),
        ),
    ),
    metrics=("accuracy",),
    data=(
        DataFiles(
            "CINIC-10",
            "get https://datashare.ed.ac.uk/handle/10283/3192, 650 MB",
            ("CINIC-10*", "cinic10*", "train/airplane"),
            90_000,
        ),
    ),
    known_problems=("It was tested on small files in the publisher's form only.",),
)


def load(*, data_dir: str | None, seed: int, use_synthetic_data: bool, **chosen: Any) -> Task:
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    Raises:
      HparamError: If settings contradict each other, or the partition is impossible.
      DataError: If files are missing or damaged, or cannot be downloaded.
    """
    del seed  # It comes as partition_seed.
    if use_synthetic_data:
        train, test = images.synthetic(10, 32, chosen["num_clients"])
    else:
        parts = image_folders.read(image_folders.CINIC10, data_dir)
        train, test = parts["train"], parts["test"]
        if chosen["with_valid"]:
            joined = zip(train[:2], parts["valid"][:2], strict=True)
            train = Images(*(np.concatenate(arrays) for arrays in joined))
    return images.task("cinic10", images.assign(train, test, chosen), 10, 32, chosen)


def prepare(source: str, data_dir: str) -> prepared.Outcome:
    """Makes a prepared set of CINIC-10, for `tasks.prepare`.

    Raises:
      DataError: If files are missing or damaged.
    """
    return image_folders.prepare(image_folders.CINIC10, source, data_dir)
