"""`cifar10_image`, `cifar100_image`, `cinic10` and `tiny_imagenet`: colour images among clients.

FedOpt (Reddi et al. 2021) deals CIFAR-10 by a Dirichlet distribution over each client's labels and
CIFAR-100 by Pachinko allocation, to 500 clients of 100 images; AdaFedAdam, AdaFed and FedCAda deal
CIFAR-10 and CIFAR-100 in ways of their own, to fewer and larger clients; AdaFed also deals CINIC-10
to 50 and Tiny ImageNet to 20 clients. All of it is settings.

Clients hold images as bytes, uint8 `[n, height, width, 3]`; labels are int32 `[n]`. Cropping,
flipping and scaling belong to the model, see `tasks.models.image_models`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hparams import Hparam, HparamError
from tasks import generated, partitions, settings
from tasks.formats.cifar import Images
from tasks.models import image_models, losses, models
from tasks.task import ArrayFederatedData, Examples, FederatedData, Task


def hparams(
    *,
    partitions: Sequence[str],
    partition: str,
    partition_source: str,
    num_clients: int,
    num_clients_source: str,
    alpha: float,
    alpha_source: str,
    whole_image: int,
    distorted: bool,
    validation: str,
    init: Hparam,
    own: Sequence[Hparam] = (),
) -> tuple[Hparam, ...]:
    """Returns the settings of a task of colour images.

    Args:
      partitions: Partitions on offer.
      partition: The default.
      partition_source: Where it is from.
      num_clients: Default number of clients.
      num_clients_source: Where it is from.
      alpha: Default concentration.
      alpha_source: Where it is from.
      whole_image: Height and width of an image.
      distorted: Whether resnet18 crops and flips at random by default.
      validation: What is said of the papers' validation images.
      init: The setting of initial weights.
      own: Settings that only this task has.
    """
    resnet_crop = f"24 with model=resnet18, else {whole_image}" if distorted else f"{whole_image}"
    resnet_distort = "true with model=resnet18, else false" if distorted else "false"
    ways = {
        "auto": "`auto` is `tff` if --data_dir has TFF's file, or without --data_dir, else "
        "`pachinko`",
        "tff": "`tff` takes TFF's own 500 clients and tests its 100 test clients",
        "pachinko": "`pachinko` draws clients' examples by coarse, then fine labels",
        "multinomial": "`multinomial` draws each client's examples from label proportions of its "
        "own, Dir(alpha), in equal sizes",
        "dirichlet": "`dirichlet` deals each class in proportions drawn from a Dirichlet "
        "distribution over clients, so that sizes are unequal",
        "iid": "`iid` deals at random in equal sizes",
        "shards": "`shards` sorts by label, cuts into equal shards and deals these",
        "classes": "`classes` gives each client some classes at random",
    }

    def beside(*ways_that_use_it):
        return "partition", tuple(p for p in partitions if p in ways_that_use_it)

    return (
        Hparam(
            name="partition",
            default=partition,
            help=f"How training images are dealt: {'; '.join(ways[p] for p in partitions)}.",
            source=partition_source,
            choices=tuple(partitions),
        ),
        Hparam(
            name="num_clients",
            only_with=beside(
                "auto", "pachinko", "multinomial", "dirichlet", "iid", "shards", "classes"
            ),
            default=None,
            type=int,
            help="Number of clients; "
            + ("not with partition=tff, elsewhere " if "tff" in partitions else "")
            + f"not set means {num_clients}.",
            source=num_clients_source,
            minimum=1,
            maximum=settings.MAX_CLIENTS,
        ),
        Hparam(
            name="alpha",
            only_with=beside("auto", "pachinko", "multinomial", "dirichlet"),
            default=None,
            type=float,
            help=(
                "Concentration of the Dirichlet distribution, smaller is less even; only with a "
                f"partition that draws from one, where not set means {alpha:g}."
            ),
            source=alpha_source,
            minimum=0,
            exclusive_minimum=True,
        ),
        *own,
        Hparam(
            name="size_sigma",
            only_with=beside("auto", "pachinko", "multinomial"),
            default=None,
            type=float,
            help=(
                "Standard deviation of the logarithms of clients' sizes; only with "
                "partition=multinomial or pachinko, where not set means 0, equal sizes."
            ),
            source="choice; FedOpt: equal sizes",
            minimum=0,
        ),
        settings.MIN_SHARE,
        Hparam(
            name="shards_per_client",
            only_with=beside("shards"),
            default=None,
            type=int,
            help="Shards of a client; only with partition=shards, where not set means 2.",
            source="AdaFed, CIFAR-10 setup 1 (100 clients)",
            minimum=1,
        ),
        Hparam(
            name="classes_per_client",
            only_with=beside("classes"),
            default=None,
            type=int,
            help="Classes of a client; only with partition=classes, where not set means 2.",
            source="choice; AdaFed's skewed FEMNIST: 5 of 10",
            minimum=1,
        ),
        Hparam(
            name="client_tests",
            default="none",
            help=(
                "Clients' own tests: `none`; `split` takes a share of each client's images; "
                "`official` deals the official test images so that each client's have the label "
                "distribution of its training images. The official test images are the central "
                "test in any case."
            ),
            source="FedOpt: none; AdaFedAdam and FedCAda: split; AdaFed does not say",
            choices=("none", "split", "official"),
        ),
        Hparam(
            name="test_fraction",
            only_with=("client_tests", ("split",)),
            default=None,
            type=float,
            help=(
                "Share of each client's images that is its own test split; only with "
                "client_tests=split, where not set means 0.2."
            ),
            source="AdaFedAdam: 80/20; FedCAda: 75/25",
            minimum=0,
            maximum=1,
            exclusive_minimum=True,
            exclusive_maximum=True,
        ),
        Hparam(
            name="num_validation",
            default=0,
            help=f"Training images held out at random, of which no client has any. {validation}",
            source="FedOpt, AdaFedAdam, FedCAda: none",
            minimum=0,
        ),
        Hparam(
            name="central_test",
            default="official",
            help=(
                "`official`: the official test images; `validation`: the images held out, to "
                "choose settings by."
            ),
            source="FedOpt",
            choices=("official", "validation"),
        ),
        Hparam(
            name="model",
            default="resnet18",
            help=(
                "`resnet18` with group normalisation; `vgg11`, and `vgg11_dense` with FedNova's "
                "two further dense layers and dropout; `three_convolutions`, as large as the "
                "network in AdaFedAdam's released code; `simple_cnn`, FedCAda's three convolutions "
                "and two dense layers; `mlp`, AdaFed's two hidden layers of 200."
            ),
            source="FedOpt, AdaFed; AdaFedAdam: vgg11; FedCAda: simple_cnn and resnet18",
            choices=("resnet18", "vgg11", "vgg11_dense", "three_convolutions", "simple_cnn", "mlp"),
        ),
        Hparam(
            name="groups",
            only_with=("model", ("resnet18",)),
            default=None,
            type=int,
            help=(
                "Groups of ResNet-18's normalisations, a divisor of 64; not set means 2, as FedOpt "
                "says. TFF's model today has 32."
            ),
            source="FedOpt, App. C.1",
            minimum=1,
            maximum=64,
        ),
        Hparam(
            name="strides",
            only_with=("model", ("resnet18",)),
            default=None,
            type=str,
            help=(
                "`usual`: ResNet-18's stages two to four halve height and width; `tff`: they do "
                "not, as in TFF's code, which FedOpt's numbers come from and which costs 14 times "
                "as much. Only with model=resnet18, where not set means usual."
            ),
            source="FedOpt names ResNet-18; TFF, resnet_models.py: tff",
            choices=("usual", "tff"),
        ),
        Hparam(
            name="l2",
            only_with=("model", ("resnet18",)),
            default=None,
            type=float,
            help=(
                "Factor of the squared weights of ResNet-18's convolutions and dense layer, which "
                "is part of the loss in training and in tests; not set means 0, as FedOpt names "
                "none. TFF's model has 1e-4."
            ),
            source="FedOpt; TFF, resnet_models.py: 1e-4",
            minimum=0,
        ),
        Hparam(
            name="crop",
            default=None,
            type=int,
            help=(
                "Height and width of the square that is cut out of an image: in tests in the "
                f"centre, in training at random with distort; not set means {resnet_crop}."
            ),
            source="FedOpt, App. C.1: 24; AdaFedAdam, AdaFed and FedCAda do not say",
            minimum=1,
        ),
        Hparam(
            name="distort",
            default=None,
            type=bool,
            help=(
                "Whether training cuts the square out at random and flips it left to right half "
                "of the time, anew in every step. FedOpt does; TFF's task leaves it off by "
                f"default; not set means {resnet_distort}."
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
        settings.partition_seed("the partition, the validation images and the clients' tests"),
        init,
    )


# Below, pooling leaves no pixel.
_SMALLEST_CROP = {"vgg11": 32, "vgg11_dense": 32, "three_convolutions": 8, "simple_cnn": 18}


def check(task, size, settings):
    """Refuses settings of colour images that do not go together.

    Args:
      task: Name of the task.
      size: Height and width of an image.
      settings: The settings by name; `partition=auto` allows all that one of its meanings does.

    Raises:
      HparamError: If they do not go together.
    """
    if settings["partition"] == "tff" and (
        settings["client_tests"] != "none" or settings["num_validation"]
    ):
        raise HparamError(
            f"{task}: client_tests and num_validation are not used with partition=tff."
        )
    if settings["central_test"] == "validation" and not settings["num_validation"]:
        raise HparamError(f"{task}: central_test=validation needs num_validation.")
    crop, model = settings["crop"], settings["model"]
    if crop is not None and crop > size:
        raise HparamError(f"{task}: crop={crop} is more than {size} pixels.")
    if crop is not None and crop < _SMALLEST_CROP.get(model, 1):
        raise HparamError(
            f"{task}: model={model} needs a crop of at least {_SMALLEST_CROP[model]} pixels."
        )
    if 64 % (settings["groups"] or 1):
        raise HparamError(f"{task}: groups={settings['groups']} must divide 64.")


class Dealt(NamedTuple):
    """Images among clients; see `Task` for the fields."""

    train: FederatedData
    test: FederatedData | None
    central_test: Examples


class Settings:
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
        check(task, size, chosen)
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

    def deal(self, train: Images, test: Images) -> Dealt:
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
        return Dealt(clients, clients_test, central_test)

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

    def task(self, dealt: Dealt) -> Task:
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
