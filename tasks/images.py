"""`cifar10_image`, `cifar100_image`, `cinic10` and `tiny_imagenet`: colour images among clients.

The four tasks share their settings, the assignment of images to clients, and the models. Each
task's own defaults, and the source of its images, are in its file in `tasks/datasets/`.

Clients hold images as bytes, uint8 `[n, height, width, 3]`; labels are int32 `[n]`. The model
crops, flips and scales them, see `tasks.models.image_models`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks import generated, partitions, settings
from tasks.formats.cifar import Images
from tasks.models import image_models, losses, models
from tasks.task import ArrayFederatedData, Examples, FederatedData, Task
from tff_suite.hparams import NOT_USED, By, Hparam, HparamError, Value

_TESTS = (
    Hparam(
        name="client_tests",
        default="none",
        help=(
            "Clients' own tests: `none`, a share of their images (`split`), or official test "
            "images with the label distribution of their training images (`official`)."
        ),
        source="FedOpt: none; AdaFedAdam and FedCAda: split; AdaFed does not say",
        choices=("none", "split", "official"),
    ),
    Hparam(
        name="test_fraction",
        default=By("client_tests", {"split": 0.2}),
        help="Share of each client's images that is its own test split.",
        source="AdaFedAdam: 80/20; FedCAda: 75/25",
        minimum=0,
        maximum=1,
        exclusive_minimum=True,
        exclusive_maximum=True,
    ),
)

_CENTRAL_TEST = Hparam(
    name="central_test",
    default="official",
    help=(
        "`official`: the official test images; `validation`: the images held out, to "
        "choose settings by."
    ),
    source="FedOpt",
    choices=("official", "validation"),
)

_MODEL = (
    Hparam(
        name="model",
        default="resnet18",
        help=(
            "The model: ResNet-18 with group normalisation, VGG11, VGG11 with FedNova's dense "
            "layers, two small CNNs, or AdaFed's MLP. docs/tasks.md explains each."
        ),
        source="FedOpt, AdaFed; AdaFedAdam: vgg11; FedCAda: simple_cnn and resnet18",
        choices=("resnet18", "vgg11", "vgg11_dense", "three_convolutions", "simple_cnn", "mlp"),
    ),
    Hparam(
        name="groups",
        default=By("model", {"resnet18": 2}),
        help="Groups of ResNet-18's normalisations, a divisor of 64. TFF's model today has 32.",
        source="FedOpt, App. C.1",
        minimum=1,
        maximum=64,
    ),
    Hparam(
        name="strides",
        default=By("model", {"resnet18": "usual"}),
        help=(
            "`usual`: ResNet-18's stages two to four halve height and width; `tff`: they do "
            "not, as in TFF's code, which FedOpt's numbers come from and which costs 14 times "
            "as much."
        ),
        source="FedOpt names ResNet-18; TFF, resnet_models.py: tff",
        choices=("usual", "tff"),
    ),
    Hparam(
        name="l2",
        default=By("model", {"resnet18": 0.0}),
        help=(
            "Factor of the squared weights of ResNet-18's convolutions and dense layer, which is "
            "part of the loss in training and in tests. FedOpt names none, TFF's model has 1e-4."
        ),
        source="FedOpt; TFF, resnet_models.py: 1e-4",
        minimum=0,
    ),
)


def hparams(
    *,
    partitions: Sequence[str],
    partition: tuple[str, str],
    num_clients: tuple[int, str],
    alpha: tuple[float, str],
    size: int,
    distorted: bool,
    validation: str,
    init: Hparam,
    own: Sequence[Hparam] = (),
) -> tuple[Hparam, ...]:
    """Returns the settings of a task of colour images.

    Args:
      partitions: The available partitions.
      partition: The default, and its source.
      num_clients: Default number of clients, and its source.
      alpha: Default concentration, and its source.
      size: Height and width of an image.
      distorted: Whether resnet18 crops and flips at random by default.
      validation: Text on the papers' validation images.
      init: The setting of initial weights.
      own: Settings that only this task has.
    """
    return (
        *_of_partition(partitions, partition, num_clients, alpha),
        *own,
        *_TESTS,
        Hparam(
            name="num_validation",
            default=0,
            help=f"Training images held out at random; no client has them. {validation}",
            source="FedOpt, AdaFedAdam, FedCAda: none",
            minimum=0,
        ),
        _CENTRAL_TEST,
        *_MODEL,
        *_of_preparation(size, distorted),
        settings.partition_seed("the partition, the validation images and the clients' tests"),
        init,
    )


def _of_partition(
    partitions: Sequence[str],
    partition: tuple[str, str],
    num_clients: tuple[int, str],
    alpha: tuple[float, str],
) -> tuple[Hparam, ...]:
    # With `auto` only the data tell.
    auto: dict[Value, Any] = {"auto": None} if "auto" in partitions else {}

    def beside(default: Any, *ways: str) -> By:
        return By("partition", auto | {way: default for way in ways if way in partitions})

    return (
        Hparam(
            name="partition",
            default=partition[0],
            help="How training images are assigned to clients. docs/tasks.md explains each choice.",
            source=partition[1],
            choices=tuple(partitions),
        ),
        Hparam(
            name="num_clients",
            default=By("partition", {**auto, "tff": NOT_USED}, otherwise=num_clients[0])
            if "tff" in partitions
            else num_clients[0],
            help="Number of clients.",
            source=num_clients[1],
            minimum=1,
            maximum=settings.MAX_CLIENTS,
        ),
        Hparam(
            name="alpha",
            default=beside(alpha[0], "pachinko", "multinomial", "dirichlet"),
            help="Concentration of the Dirichlet distribution, smaller is less even.",
            source=alpha[1],
            **settings.CONCENTRATIONS,
        ),
        Hparam(
            name="size_sigma",
            default=beside(0.0, "pachinko", "multinomial"),
            help="Standard deviation of the logarithms of clients' sizes; 0: equal sizes.",
            source="choice; FedOpt: equal sizes",
            minimum=0,
            # The exponential of a few hundred more is infinite.
            maximum=100,
        ),
        settings.MIN_SHARE,
        Hparam(
            name="shards_per_client",
            default=By("partition", {"shards": 2}),
            help="Shards of a client.",
            source="AdaFed, CIFAR-10 setup 1 (100 clients)",
            minimum=1,
        ),
        Hparam(
            name="classes_per_client",
            default=By("partition", {"classes": 2}),
            help="Classes of a client.",
            source="choice; AdaFed's skewed FEMNIST: 5 of 10",
            minimum=1,
        ),
    )


def _of_preparation(size: int, distorted: bool) -> tuple[Hparam, ...]:
    return (
        Hparam(
            name="crop",
            default=By("model", {"resnet18": 24}, otherwise=size) if distorted else size,
            help=(
                "Height and width of the square that is cut out of an image: in tests in the "
                "centre, in training at random with distort."
            ),
            source="FedOpt, App. C.1: 24; AdaFedAdam, AdaFed and FedCAda do not say",
            minimum=1,
        ),
        Hparam(
            name="distort",
            default=By("model", {"resnet18": True}, otherwise=False) if distorted else False,
            help=(
                "Whether training cuts the square out at random and flips it left to right half "
                "of the time, drawn in every step. FedOpt does; TFF's task does not by default."
            ),
            source="FedOpt, App. C.1: true; AdaFedAdam, AdaFed and FedCAda do not say",
        ),
        Hparam(
            name="scaling",
            default="standardize",
            help=(
                "`standardize` subtracts each image's own mean and divides by its own standard "
                "deviation; `unit` divides bytes by 255."
            ),
            source="FedOpt, App. C.1",
            choices=("standardize", "unit"),
        ),
    )


# Below, pooling leaves no pixel.
_SMALLEST_CROP = {"vgg11": 32, "vgg11_dense": 32, "three_convolutions": 8, "simple_cnn": 18}


def check(task: str, size: int, chosen: Mapping[str, Any]) -> None:
    """Refuses contradictory settings of colour images.

    Args:
      task: Name of the task.
      size: Height and width of an image.
      chosen: The settings by name; `partition=auto` allows everything that one of its meanings
        allows.

    Raises:
      HparamError: If they contradict each other.
    """
    if chosen["partition"] == "tff" and (
        chosen["client_tests"] != "none" or chosen["num_validation"]
    ):
        raise HparamError(
            f"{task}: client_tests and num_validation are not used with partition=tff."
        )
    if chosen["central_test"] == "validation" and not chosen["num_validation"]:
        raise HparamError(f"{task}: central_test=validation needs num_validation.")
    crop, model = chosen["crop"], chosen["model"]
    if crop > size:
        raise HparamError(f"{task}: crop={crop} is more than {size} pixels.")
    if crop < _SMALLEST_CROP.get(model, 1):
        raise HparamError(
            f"{task}: model={model} needs a crop of at least {_SMALLEST_CROP[model]} pixels."
        )
    if model == "resnet18" and 64 % chosen["groups"]:
        raise HparamError(f"{task}: groups={chosen['groups']} must divide 64.")


class Assigned(NamedTuple):
    """Images among clients; see `Task` for the fields."""

    train: FederatedData
    test: FederatedData | None
    central_test: Examples


def synthetic(num_classes: int, size: int, num_clients: int) -> tuple[Images, Images]:
    """Generates training and test images of the true shape and types, enough for the clients."""
    num_train = max(20 * num_clients, 20 * num_classes)
    train, test = (
        Images(*generated.colour_images(n, num_classes, size, seed))
        for seed, n in enumerate((num_train, 10 * num_classes))
    )
    return train, test


def assign(train: Images, test: Images, chosen: Mapping[str, Any]) -> Assigned:
    """Assigns images to clients.

    Args:
      train: The training images.
      test: The official test images.
      chosen: The settings by name.

    Raises:
      HparamError: If the partition is impossible.
    """
    seed = chosen["partition_seed"]
    stay, held_out = partitions.hold_out(len(train.labels), chosen["num_validation"], seed)
    coarse = None if train.coarse is None else train.coarse[stay]
    parts = [stay[rows] for rows in _parts(train.labels[stay], coarse, chosen)]
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
    return Assigned(clients, clients_test, central_test)


def _parts(
    labels: np.ndarray, coarse: np.ndarray | None, chosen: Mapping[str, Any]
) -> list[np.ndarray]:
    """Returns the rows of each client."""
    seed = chosen["partition_seed"]
    partition, num_clients = chosen["partition"], chosen["num_clients"]
    if partition == "iid":
        return partitions.iid(len(labels), num_clients, seed)
    if partition == "shards":
        return partitions.shards(labels, num_clients, chosen["shards_per_client"], seed)
    if partition == "classes":
        return partitions.classes_each(labels, num_clients, chosen["classes_per_client"], seed)
    if partition == "dirichlet":
        least = partitions.least_size(len(labels), num_clients, chosen["min_share"])
        return partitions.dirichlet_by_class(
            labels, num_clients, chosen["alpha"], seed, min_size=least
        )
    if chosen["size_sigma"]:
        sizes = partitions.lognormal_sizes(len(labels), num_clients, chosen["size_sigma"], seed)
    else:
        sizes = partitions.equal_sizes(len(labels), num_clients)
    if partition == "pachinko":
        assert coarse is not None  # Only CIFAR-100, which has coarse labels, offers it.
        return partitions.pachinko(coarse, labels, sizes, chosen["alpha"], chosen["beta"], seed)
    return partitions.dirichlet_by_client(labels, sizes, chosen["alpha"], seed)


def task(
    name: str, assigned: Assigned, num_classes: int, size: int, chosen: Mapping[str, Any]
) -> Task:
    """Returns the task.

    Args:
      name: Its name.
      assigned: The images.
      num_classes: Number of classes.
      size: Height and width of an image, in pixels.
      chosen: The settings by name.
    """
    return Task(
        name=name,
        train=assigned.train,
        test=assigned.test,
        central_test=assigned.central_test,
        keras_model_fn=functools.partial(
            image_models.of_bytes,
            model_fn=_model_fn(num_classes, chosen),
            shape=(size, size, 3),
            crop=chosen["crop"],
            distort=chosen["distort"],
            scaling=chosen["scaling"],
        ),
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"accuracy": losses.sparse_accuracy},
        primary_metric="accuracy",
        settings=chosen,
    )


def _model_fn(num_classes: int, chosen: Mapping[str, Any]) -> Callable:
    common = {"num_classes": num_classes, "init": chosen["init"]}
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


_CONV_NETS: dict[str, dict[str, Any]] = {
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
