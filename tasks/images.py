"""`cifar10_image`, `cifar100_image`, `cinic10` and `tiny_imagenet`: colour images among clients.

FedOpt (Reddi et al. 2021) deals CIFAR-10 by a Dirichlet distribution over each client's labels and
CIFAR-100 by Pachinko allocation, to 500 clients of 100 images; AdaFedAdam, AdaFed and FedCAda deal
CIFAR-10 and CIFAR-100 in ways of their own, to fewer and larger clients; AdaFed also deals CINIC-10
to 50 and Tiny ImageNet to 20 clients. All of it is settings.

Clients hold images as bytes, uint8 `[n, height, width, 3]`; labels are int32 `[n]`. Cropping,
flipping and scaling belong to the model, see `tasks.models.image_models`.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hparams import HparamError
from tasks import builtin, generated, partitions, settings
from tasks.formats import cifar, image_folders, prepared
from tasks.formats.cifar import Images
from tasks.models import image_models, losses, models
from tasks.task import ArrayFederatedData, Examples, FederatedData, Task

_FEDOPT = {"num_clients": 500, "alpha": 0.1, "resnet_crop": 24}


def load_cifar10(
    *, data_dir: str | None, seed: int, use_synthetic_data: bool, **chosen: Any
) -> Task:
    """Loads `cifar10_image`; see `tasks.builtin` for the settings and `tasks.load` for the rest.

    Raises:
      HparamError: If settings do not go together, or the partition is impossible.
      DataError: If files are missing or damaged, or cannot be downloaded.
    """
    of_images = _Settings("cifar10_image", 10, 32, seed, chosen, **_FEDOPT)
    if use_synthetic_data:
        train, test = of_images.synthetic()
    else:
        train, test = cifar.read(cifar.CIFAR10, data_dir)
    return of_images.task(of_images.deal(train, test))


def load_cifar100(
    *, data_dir: str | None, seed: int, use_synthetic_data: bool, **chosen: Any
) -> Task:
    """Loads `cifar100_image`; see `tasks.builtin` for the settings and `tasks.load` for the rest.

    Raises:
      HparamError: If settings do not go together, or the partition is impossible.
      DataError: If files are missing or damaged, or cannot be downloaded.
    """
    if chosen["partition"] == "auto":
        tffs = not use_synthetic_data and cifar.has_tffs(data_dir)
        chosen = {**chosen, "partition": "tff" if tffs else "pachinko"}
    of_images = _Settings("cifar100_image", 100, 32, seed, chosen, **_FEDOPT)
    if chosen["partition"] == "tff":
        if use_synthetic_data:
            raise HparamError("cifar100_image: partition=tff needs TFF's file.")
        return of_images.task(_Dealt(*cifar.read_tffs(data_dir)))
    if use_synthetic_data:
        train, test = of_images.synthetic()
        train, test = (part._replace(coarse=part.labels // 5) for part in (train, test))
    else:
        train, test = cifar.read(cifar.CIFAR100, data_dir)
    return of_images.task(of_images.deal(train, test))


def load_cinic10(
    *, data_dir: str | None, seed: int, use_synthetic_data: bool, **chosen: Any
) -> Task:
    """Loads `cinic10`; see `tasks.builtin` for the settings and `tasks.load` for the rest.

    Raises:
      HparamError: If settings do not go together, or the partition is impossible.
      DataError: If files are missing or damaged, or cannot be downloaded.
    """
    of_images = _Settings("cinic10", 10, 32, seed, chosen, num_clients=50, alpha=0.5)
    if use_synthetic_data:
        return of_images.task(of_images.deal(*of_images.synthetic()))
    parts = image_folders.read(image_folders.CINIC10, data_dir)
    train = parts["train"]
    if chosen["with_valid"]:
        joined = zip(train[:2], parts["valid"][:2], strict=True)
        train = Images(*(np.concatenate(arrays) for arrays in joined))
    return of_images.task(of_images.deal(train, parts["test"]))


def load_tiny_imagenet(
    *, data_dir: str | None, seed: int, use_synthetic_data: bool, **chosen: Any
) -> Task:
    """Loads `tiny_imagenet`; see `tasks.builtin` for the settings and `tasks.load` for the rest.

    The official test images have no labels; the 10,000 validation images take their place.

    Raises:
      HparamError: If settings do not go together, or the partition is impossible.
      DataError: If files are missing or damaged, or cannot be downloaded.
    """
    of_images = _Settings("tiny_imagenet", 200, 64, seed, chosen, num_clients=20, alpha=0.05)
    if use_synthetic_data:
        return of_images.task(of_images.deal(*of_images.synthetic()))
    parts = image_folders.read(image_folders.TINY_IMAGENET, data_dir)
    return of_images.task(of_images.deal(parts["train"], parts["val"]))


def prepare_cinic10(source: str, data_dir: str) -> prepared.Outcome:
    """Makes a prepared set of CINIC-10, for `tasks.prepare`.

    Raises:
      DataError: If files are missing or damaged.
    """
    return image_folders.prepare(image_folders.CINIC10, source, data_dir)


def prepare_tiny_imagenet(source: str, data_dir: str) -> prepared.Outcome:
    """Makes a prepared set of Tiny ImageNet, for `tasks.prepare`.

    Raises:
      DataError: If files are missing or damaged.
    """
    return image_folders.prepare(image_folders.TINY_IMAGENET, source, data_dir)


class _Dealt(NamedTuple):
    """Images among clients; see `Task` for the fields."""

    train: FederatedData
    test: FederatedData | None
    central_test: Examples


class _Settings:
    """The settings that all tasks of images share, checked against each other."""

    def __init__(
        self,
        task: str,
        num_classes: int,
        size: int,
        seed: int,
        chosen: Mapping[str, Any],
        *,
        num_clients: int,
        alpha: float,
        resnet_crop: int | None = None,
    ):
        """Fills in what is not set.

        Args:
          task: Name of the task.
          num_classes: Number of classes.
          size: Height and width of an image, in pixels.
          seed: The run's seed.
          chosen: Settings by name, as in `tasks.builtin`.
          num_clients: Default number of clients.
          alpha: Default concentration.
          resnet_crop: If set, ResNet-18 crops to so many pixels and distorts by default.

        Raises:
          HparamError: If settings do not go together.
        """
        self._task = task
        self._num_classes = num_classes
        self._size = size
        partition, model = chosen["partition"], chosen["model"]

        def only_with(condition: str, applies: bool, **defaults: Any) -> dict[str, Any]:
            given = {name: (chosen[name], default) for name, default in defaults.items()}
            return settings.only_with(task, condition, applies, **given)

        by_client = partition in ("multinomial", "pachinko")
        dealt = partition != "tff"
        self._chosen = dict(chosen)
        for filled in (
            only_with("a partition of the suite's own", dealt, num_clients=num_clients),
            only_with(
                "a partition by Dirichlet distributions",
                by_client or partition == "dirichlet",
                alpha=alpha,
            ),
            only_with("a partition by client", by_client, size_sigma=0.0),
            only_with("partition=dirichlet", partition == "dirichlet", min_share=0.01),
            only_with("partition=shards", partition == "shards", shards_per_client=2),
            only_with("partition=classes", partition == "classes", classes_per_client=2),
            only_with("client_tests=split", chosen["client_tests"] == "split", test_fraction=0.2),
            only_with("model=resnet18", model == "resnet18", groups=2, strides="usual", l2=0.0),
        ):
            self._chosen |= filled
        if "beta" in chosen:
            self._chosen |= only_with("partition=pachinko", partition == "pachinko", beta=10.0)
        # Once more: `partition=auto` is known by now.
        builtin.check_images(task, size, chosen)
        as_fedopt = model == "resnet18" and resnet_crop is not None
        defaults = {
            "crop": resnet_crop if as_fedopt else size,
            "distort": as_fedopt,
            "partition_seed": seed,
        }
        for name, default in defaults.items():
            if chosen[name] is None:
                self._chosen[name] = default

    def synthetic(self) -> tuple[Images, Images]:
        """Makes training and test images of the true shape and types."""
        num_train = max(20 * self._chosen["num_clients"], 20 * self._num_classes)
        return tuple(
            Images(*generated.colour_images(n, self._num_classes, self._size, seed))
            for seed, n in enumerate((num_train, 10 * self._num_classes))
        )

    def deal(self, train: Images, test: Images) -> _Dealt:
        """Deals images to clients.

        Raises:
          HparamError: If the partition is impossible.
        """
        chosen, seed = self._chosen, self._chosen["partition_seed"]
        stay, held_out = partitions.hold_out(len(train.labels), chosen["num_validation"], seed)
        coarse = None if train.coarse is None else train.coarse[stay]
        parts = [stay[rows] for rows in self._parts(train.labels[stay], coarse)]
        ids = [str(i) for i in range(len(parts))]
        clients_test = None
        if chosen["client_tests"] == "official":
            rows = partitions.tests_alike(train.labels, parts, test.labels, seed)
            clients_test = ArrayFederatedData(test.images, test.labels, rows, ids)
        elif chosen["client_tests"] == "split":
            parts, rows = partitions.split_train_test(parts, chosen["test_fraction"], seed)
            clients_test = ArrayFederatedData(train.images, train.labels, rows, ids)
        central_test = Examples(test.images, test.labels)
        if chosen["central_test"] == "validation":
            central_test = Examples(train.images[held_out], train.labels[held_out])
        clients = ArrayFederatedData(train.images, train.labels, parts, ids)
        return _Dealt(clients, clients_test, central_test)

    def _parts(self, labels: np.ndarray, coarse: np.ndarray | None) -> list[np.ndarray]:
        """Returns the rows of each client."""
        chosen, seed = self._chosen, self._chosen["partition_seed"]
        partition, num_clients = chosen["partition"], chosen["num_clients"]
        if partition == "iid":
            return partitions.iid(len(labels), num_clients, seed)
        if partition == "shards":
            return partitions.shards(labels, num_clients, chosen["shards_per_client"], seed)
        if partition == "classes":
            return partitions.classes_each(labels, num_clients, chosen["classes_per_client"], seed)
        if partition == "dirichlet":
            share = len(labels) / num_clients * chosen["min_share"]
            # Two: one to train on and one to test.
            least = max(2, math.ceil(share))
            return partitions.dirichlet_by_class(
                labels, num_clients, chosen["alpha"], seed, min_size=least
            )
        if chosen["size_sigma"]:
            sizes = partitions.lognormal_sizes(len(labels), num_clients, chosen["size_sigma"], seed)
        else:
            sizes = partitions.equal_sizes(len(labels), num_clients)
        if partition == "pachinko":
            return partitions.pachinko(coarse, labels, sizes, chosen["alpha"], chosen["beta"], seed)
        return partitions.dirichlet_by_client(labels, sizes, chosen["alpha"], seed)

    def task(self, dealt: _Dealt) -> Task:
        """Returns the task."""
        chosen = self._chosen
        return Task(
            name=self._task,
            train=dealt.train,
            test=dealt.test,
            central_test=dealt.central_test,
            keras_model_fn=functools.partial(
                image_models.of_bytes,
                model_fn=self._model_fn(),
                shape=(self._size, self._size, 3),
                crop=chosen["crop"],
                distort=chosen["distort"],
                scaling=chosen["scaling"],
            ),
            loss=losses.sparse_softmax_cross_entropy,
            metrics={"accuracy": losses.sparse_accuracy},
            primary_metric="accuracy",
            settings=chosen,
        )

    def _model_fn(self) -> Callable:
        chosen = self._chosen
        common = {"num_classes": self._num_classes, "init": chosen["init"]}
        if chosen["model"] == "resnet18":
            return functools.partial(
                image_models.resnet18,
                groups=chosen["groups"],
                strides=chosen["strides"],
                l2=chosen["l2"],
                **common,
            )
        if chosen["model"] == "mlp":
            return functools.partial(models.mlp, **common)
        return functools.partial(image_models.conv_net, **_CONV_NETS[chosen["model"]], **common)


_CONV_NETS = {
    "vgg11": {"convolutions": image_models.VGG11, "padding": "same"},
    "vgg11_dense": {
        "convolutions": image_models.VGG11,
        "padding": "same",
        "hidden": (512, 512),
        "dropout": 0.5,
    },
    "three_convolutions": {
        "convolutions": image_models.THREE_CONVOLUTIONS,
        "padding": "same",
        "hidden": (512,),
    },
    "simple_cnn": {
        "convolutions": image_models.SIMPLE_CNN,
        "padding": "valid",
        "hidden": (64,),
    },
}
