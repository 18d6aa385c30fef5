"""`tiny_imagenet`: 200 classes of ImageNet in 64x64 pixels, among generated clients.

Stanford's Tiny ImageNet, which AdaFed divides among 20 clients. See `tasks.images`.
"""

from __future__ import annotations

import functools
from typing import Any

from tasks import images, settings
from tasks.data_files import DataFiles
from tasks.formats import image_folders, prepared
from tasks.registry import TaskSpec
from tasks.task import Task

SPEC = TaskSpec(
    name="tiny_imagenet",
    summary="Tiny ImageNet, 200 classes of 64x64 images, among generated clients: AdaFed's "
    "ResNet-18 (11,279,112 parameters).",
    preparer="prepare",
    check=functools.partial(images.check, "tiny_imagenet", 64),
    clients=settings.generated,
    hparams=images.hparams(
        partitions=("multinomial", "dirichlet", "iid", "shards", "classes"),
        partition=("dirichlet", "AdaFed, TinyImageNet"),
        num_clients=(20, "AdaFed, TinyImageNet"),
        alpha=(0.05, "AdaFed, TinyImageNet"),
        size=64,
        distorted=False,
        validation="The official test images have no labels. In these settings, the name stands "
        "for the 10,000 of `val`.",
        init=settings.init("torch", "AdaFed (PyTorch)"),
    ),
    metrics=("accuracy",),
    data=(
        DataFiles(
            "Tiny ImageNet",
            f"get {image_folders.TINY_IMAGENET.url}, 240 MB",
            ("tiny-imagenet-200*", "tiny_imagenet*", "train/n[0-9]*"),
            100_000,
        ),
    ),
    known_problems=("It was tested on small files in the publisher's form only.",),
)


def load(*, data_dir: str | None, seed: int, use_synthetic_data: bool, **chosen: Any) -> Task:
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    The official test images have no labels, so the 10,000 validation images replace them.

    Raises:
      HparamError: If settings contradict each other, or the partition is impossible.
      DataError: If files are missing or damaged, or cannot be downloaded.
    """
    del seed  # It comes as partition_seed.
    if use_synthetic_data:
        train, test = images.synthetic(200, 64, chosen["num_clients"])
    else:
        parts = image_folders.read(image_folders.TINY_IMAGENET, data_dir)
        train, test = parts["train"], parts["val"]
    return images.task("tiny_imagenet", images.assign(train, test, chosen), 200, 64, chosen)


def prepare(source: str, data_dir: str) -> prepared.Outcome:
    """Makes a prepared set of Tiny ImageNet, for `tasks.prepare`.

    Raises:
      DataError: If files are missing or damaged.
    """
    return image_folders.prepare(image_folders.TINY_IMAGENET, source, data_dir)
