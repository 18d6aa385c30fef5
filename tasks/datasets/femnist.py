"""`femnist`: handwritten characters by their writers, as prepared by LEAF or TFF.

AdaFedAdam (Ju et al. 2024) uses all writers and an MLP. AdaFed (Mohajer Hamidi and Yang 2024) uses
500 writers, or a skewed partition of ten letters, and the CNN of Ditto (Li et al. 2021). LEAF has
3,550 writers and 805,263 examples, TFF 3,400 and 749,068, both from NIST Special Database 19.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks import generated, partitions, settings
from tasks import task as task_lib
from tasks.data_files import DataFiles
from tasks.datasets import emnist_character
from tasks.formats import leaf, prepared
from tasks.models import losses, models
from tasks.registry import Clients, TaskSpec
from tasks.task import ArrayFederatedData, DataError, Examples, FederatedData, Task
from tff_suite.hparams import By, Hparam, HparamError, Settings

_NUM_CLASSES = 62
_LETTERS = range(36, 46)  # a to j.
_SIDE = 28
_ARRAYS = {"x": prepared.Array("uint8", (_SIDE, _SIDE, 1)), "y": prepared.Array("uint8")}
_PUBLISHED = {"clients": 3550, "examples": 805_263}
_ADVICE = (
    "make LEAF's files with https://github.com/TalwalkarLab/leaf (data/femnist/preprocess.sh), or "
    "get https://storage.googleapis.com/tff-datasets-public/emnist_all.sqlite.lzma, and set "
    "--data_dir to their folder"
)


def _check(chosen: Settings) -> None:
    if chosen["partition"] == "skewed" and chosen["split"] == "source":
        raise HparamError("femnist: partition=skewed makes new clients and needs split=local.")


def _clients(chosen: Settings, synthetic: bool) -> Clients | None:
    if chosen["partition"] == "skewed":
        return settings.generated(chosen, synthetic)
    # LEAF's own script makes more or fewer writers by its arguments.
    if chosen["source"] == "tff" or synthetic:
        return settings.at_most(3400, 12)(chosen, synthetic)
    return None if chosen["num_clients"] is None else Clients(chosen["num_clients"])


_DATA = DataFiles(
    "LEAF's FEMNIST",
    "make it with https://github.com/TalwalkarLab/leaf (data/femnist/preprocess.sh)",
    leaf.patterns("femnist"),
    _PUBLISHED["examples"] * 8 // 10,
    _PUBLISHED["clients"],
)

SPEC = TaskSpec(
    name="femnist",
    summary=(
        "Characters by their 3,550 writers (LEAF): AdaFedAdam's MLP 784-128-62 (108,478 "
        "parameters), Ditto's CNN (222,078) or FedOpt's (1,206,590)."
    ),
    class_labels=True,
    preparer="prepare",
    check=_check,
    clients=_clients,
    hparams=(
        Hparam(
            name="source",
            default="auto",
            help=(
                "`leaf` reads LEAF's JSON files or what tasks.prepare made of them, `tff` "
                "TFF's sqlite file of 3,400 writers; `auto` reads LEAF's if --data_dir has "
                "them, else TFF's."
            ),
            source="AdaFedAdam, Femnist; AdaFed: LEAF",
            choices=("auto", "leaf", "tff"),
        ),
        Hparam(
            name="partition",
            default="writers",
            help=(
                "`writers`: a client is a writer. `skewed`: each client has equal shares of some "
                "of the letters a to j, drawn at random from all writers."
            ),
            source="AdaFedAdam, Femnist; AdaFed Table 3: both",
            choices=("writers", "skewed"),
        ),
        Hparam(
            name="num_clients",
            default=By("partition", {"skewed": 100}, otherwise=None),
            help="Number of clients, writers drawn at random; by default all.",
            source="AdaFedAdam; AdaFed: 500 writers, 100 skewed",
            minimum=1,
            maximum=settings.MAX_CLIENTS,
        ),
        Hparam(
            name="classes_per_client",
            default=By("partition", {"skewed": 5}),
            help="Letters of a client.",
            source="AdaFed Table 3",
            minimum=1,
            maximum=10,
        ),
        Hparam(
            name="split",
            default="local",
            help=(
                "`local` splits each client's examples at random, training and test files "
                "together. `source` keeps the files' split, by examples or by clients (LEAF's -t "
                "user)."
            ),
            source="AdaFedAdam: local 80/20 split, drawn before training",
            choices=("local", "source"),
        ),
        Hparam(
            name="test_fraction",
            default=By("split", {"local": 0.2}),
            help=(
                "Share of each client's examples that is its test split; 0: clients have no tests."
            ),
            source="AdaFedAdam: local 80/20 split",
            minimum=0,
            maximum=1,
            exclusive_maximum=True,
        ),
        Hparam(
            name="model",
            default="mlp",
            help=(
                "`mlp` has 128 hidden units, `cnn` two convolutions and 128 units, `fedopt_cnn` is "
                "that of emnist_character."
            ),
            source="AdaFedAdam: mlp; AdaFed: cnn; FedOpt and FedDA: fedopt_cnn",
            choices=("mlp", "cnn", "fedopt_cnn"),
        ),
        settings.partition_seed("the draw of clients and of their train/test splits"),
        settings.init("torch", "AdaFedAdam and AdaFed (PyTorch)"),
    ),
    metrics=("accuracy",),
    data=(
        _DATA.replace(name="LEAF's FEMNIST or a part of it", stand_in=True),
        *(files.replace(when={"source": ("tff",)}) for files in emnist_character.SPEC.data),
        _DATA,
    ),
    known_problems=(
        "Only 396 of the 3,550 writers were available here. Accuracies on them are 13 to 21 "
        "points below AdaFedAdam's.",
    ),
    used_for=("LEAF publishes it (arXiv 1812.01097).",),
)


def load(
    *,
    data_dir: str | None,
    seed: int,
    use_synthetic_data: bool,
    source: str,
    partition: str,
    num_clients: int | None,
    classes_per_client: int | None,
    split: str,
    test_fraction: float | None,
    model: str,
    partition_seed: int,
    init: str,
) -> Task:
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    Pixels are float32 in [0, 1], 1.0 for the background; labels 0-9 are digits, 10-35 capitals and
    36-61 small letters, or 0-9 the letters a-j of `partition=skewed`. The central test is all
    clients' test examples together. A prepared set (`tasks.prepare`) is read from disk client by
    client; LEAF's own files are held in memory.

    Raises:
      HparamError: If settings contradict each other, or there are fewer clients than `num_clients`.
      DataError: If a file is missing or damaged.
    """
    del seed  # It comes as partition_seed.
    if use_synthetic_data:
        writers, origin = _synthetic(), {"source": source}
    else:
        writers, origin = _read(data_dir, source)
    skewed = partition == "skewed"
    train: FederatedData
    test: FederatedData
    if skewed:
        assert num_clients is not None and classes_per_client is not None
        assert test_fraction is not None  # See _check.
        letters = writers.letters()
        parts = partitions.classes_each(letters.y, num_clients, classes_per_client, partition_seed)
        rows = partitions.split_train_test(parts, test_fraction, partition_seed)
        ids = [str(k) for k in range(num_clients)]
        train, test = (ArrayFederatedData(*letters, part, ids) for part in rows)
    else:
        every = writers.client_ids if split == "local" else writers.of_part("train")
        client_ids = _drawn(every, num_clients, partition_seed)
        train, test = _split(writers, client_ids, split, test_fraction, partition_seed)
    has_test = bool(np.any(test.sizes))
    num_classes = len(_LETTERS) if skewed else _NUM_CLASSES
    models_by_name: dict[str, Callable[..., Any]] = {
        "mlp": functools.partial(models.mlp, hidden=(128,)),
        "cnn": models.femnist_cnn,
        "fedopt_cnn": models.emnist_cnn,
    }
    return Task(
        name="femnist",
        train=train,
        test=test if has_test else None,
        central_test=_pooled(test) if has_test else None,
        keras_model_fn=functools.partial(models_by_name[model], num_classes=num_classes, init=init),
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"accuracy": losses.sparse_accuracy},
        primary_metric="accuracy",
        settings=origin,
    )


def prepare(source: str, data_dir: str) -> prepared.Outcome:
    """Makes a prepared set from LEAF's files, for `tasks.prepare`.

    Raises:
      DataError: If a file is missing or damaged.
    """
    return leaf.prepare("femnist", source, data_dir, _ARRAYS, _convert, _ADVICE, _PUBLISHED)


def _convert(x: Sequence[Any], y: Sequence[Any]) -> Mapping[str, np.ndarray]:
    """Returns LEAF's pixels as bytes; LEAF stores bytes divided by 255."""
    if any(type(label) is not int for label in y):
        raise ValueError("labels that are not whole numbers")
    if y and not (0 <= min(y) and max(y) < _NUM_CLASSES):
        raise ValueError(f"labels outside 0..{_NUM_CLASSES - 1}")
    pixels = np.asarray(x) if x else np.zeros((0, _SIDE * _SIDE))
    if pixels.dtype.kind not in "fi" or pixels.shape != (len(y), _SIDE * _SIDE):
        raise ValueError(f"images of shape {pixels.shape} and type {pixels.dtype}, not 28x28")
    # Written so that NaN does not pass.
    if not np.all((pixels >= 0) & (pixels <= 1)):
        raise ValueError("pixels outside [0, 1]")
    pixels = pixels.astype(np.float64, copy=False) * 255
    images = np.rint(pixels)
    if np.abs(pixels - images).max(initial=0) > 1e-3:
        raise ValueError("pixels that are not in steps of 1/255")
    images = images.astype(np.uint8).reshape(-1, _SIDE, _SIDE, 1)
    return {"x": images, "y": np.array(y, np.uint8)}


class _Writers:
    """Writers' examples from all parts of the source together, read writer by writer."""

    def __init__(self, parts: Mapping[str, FederatedData]):
        self.client_ids = sorted(set().union(*(data.client_ids for data in parts.values())))
        self._parts = [
            (name, data, {client: i for i, client in enumerate(data.client_ids)})
            for name, data in parts.items()
        ]

    def of_part(self, part: str) -> list[str]:
        """Returns the writers of a part in ascending order.

        Raises:
          HparamError: If the source is not split.
        """
        own = [data.client_ids for name, data, _ in self._parts if name == part]
        if not own:
            raise HparamError(
                f"femnist: split=source, but the source has no {part} examples; use split=local."
            )
        return sorted(own[0])

    def sizes(self, client: str) -> dict[str, int]:
        """Returns a writer's number of examples in each part."""
        return {
            name: int(data.sizes[index[client]])
            for name, data, index in self._parts
            if client in index
        }

    def examples(self, client: str) -> Examples:
        """Returns all examples of a writer, part after part."""
        own = [data.examples(i[client]) for _, data, i in self._parts if client in i]
        return Examples(*(np.concatenate(arrays) for arrays in zip(*own, strict=True)))

    @property
    def files(self) -> tuple[str, ...]:
        return sum((task_lib.files(data) for _, data, _ in self._parts), ())

    def held_in_memory(self, client: str) -> list[np.ndarray]:
        """Returns the arrays in memory of a writer's examples, part after part."""
        own = [task_lib.held_in_memory(d, i[client]) for _, d, i in self._parts if client in i]
        return [array for arrays in own for array in arrays]

    def letters(self) -> Examples:
        """Returns the examples of the letters a to j, labelled 0 to 9."""
        found = []
        for client in self.client_ids:
            x, y = self.examples(client)
            chosen = (y >= _LETTERS.start) & (y < _LETTERS.stop)
            found.append((x[chosen], y[chosen] - _LETTERS.start))
        return Examples(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))


class _SomeExamples:
    """Federated data with some examples of some writers."""

    def __init__(self, writers: _Writers, client_ids: Sequence[str], rows: Sequence[np.ndarray]):
        self.client_ids = client_ids
        self.sizes = np.array([len(r) for r in rows], np.int64)
        self._writers = writers
        self._rows = rows

    def examples(self, index: int) -> Examples:
        x, y = self._writers.examples(self.client_ids[index])
        return Examples(x[self._rows[index]], y[self._rows[index]])

    @property
    def files(self) -> tuple[str, ...]:
        return self._writers.files

    def held_in_memory(self, index: int) -> Sequence[np.ndarray]:
        return [self._rows[index], *self._writers.held_in_memory(self.client_ids[index])]


def _drawn(client_ids: Sequence[str], num_clients: int | None, seed: int) -> Sequence[str]:
    """Returns `num_clients` clients drawn at random, or all, in their original order."""
    if num_clients is None:
        return client_ids
    if num_clients > len(client_ids):
        raise HparamError(
            f"femnist: num_clients={num_clients}, but there are {len(client_ids)} writers."
        )
    # The first word sets this draw apart from other uses of the seed.
    drawn = np.random.default_rng((3550, seed)).permutation(len(client_ids))
    return [client_ids[i] for i in np.sort(drawn[:num_clients])]


def _split(
    writers: _Writers, client_ids: Sequence[str], split: str, test_fraction: float | None, seed: int
) -> tuple[_SomeExamples, _SomeExamples]:
    """Returns writers' training and test examples, split here or as in the source."""
    if split == "local":
        assert test_fraction is not None
        every = [np.arange(sum(writers.sizes(client).values())) for client in client_ids]
        train, test = partitions.split_train_test(every, test_fraction, seed)
        return _SomeExamples(writers, client_ids, train), _SomeExamples(writers, client_ids, test)
    test_ids = leaf.tested(client_ids, writers.of_part("train"), writers.of_part("test"))
    # A writer's examples are those for training, then those for tests.
    train = [np.arange(writers.sizes(client)["train"]) for client in client_ids]
    test = []
    for sizes in map(writers.sizes, test_ids):
        test.append(sizes.get("train", 0) + np.arange(sizes.get("test", 0)))
    return _SomeExamples(writers, client_ids, train), _SomeExamples(writers, test_ids, test)


def _pooled(data: FederatedData) -> Examples:
    own = [data.examples(k) for k in range(len(data.client_ids))]
    return Examples(*(np.concatenate(arrays) for arrays in zip(*own, strict=True)))


def _read(data_dir: str | None, source: str) -> tuple[_Writers, dict[str, str]]:
    """Returns the writers, and the name of their source for the record."""
    if source in ("auto", "leaf") and data_dir is not None:
        read = leaf.read("femnist", data_dir, _ARRAYS, _convert, _ADVICE, _NUM_CLASSES)
        if read is not None:
            return _of_set(*read), {"source": "leaf", "leaf_path": read[1]}
    if source == "leaf" and data_dir is not None:
        raise leaf.missing(data_dir, "femnist", "", _ADVICE)
    if source == "leaf":
        raise DataError(f"femnist with source=leaf needs --data_dir: {_ADVICE}")
    train, test = emnist_character.open_file(data_dir, _ADVICE)
    return _Writers({"train": train, "test": test}), {"source": "tff"}


def _of_set(made: prepared.Prepared, folder: str) -> _Writers:
    if not len(made.arrays["y"]):
        raise DataError(f"{folder} has no examples; {_ADVICE}")
    labels = np.asarray(made.arrays["y"], np.int32)
    parts = {}
    for part, clients in made.parts.items():
        # A writer without examples is no client.
        rows = {name: np.arange(own.start, own.stop) for name, own in clients.items() if own}
        parts[part] = ArrayFederatedData(
            made.arrays["x"], labels, list(rows.values()), list(rows), transform=_scaled
        )
    return _Writers(parts)


def _scaled(images: np.ndarray) -> np.ndarray:
    """Returns float32 pixels in [0, 1] from bytes."""
    return images / np.float32(255)


def _synthetic() -> _Writers:
    """Generates twelve writers of the true shapes and types, with 150 to 425 examples."""
    sizes = np.arange(150, 450, 25)
    images, labels = generated.grey_images(sizes.sum(), _NUM_CLASSES, seed=0)
    rows = np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])
    client_ids = [f"synthetic{k:02}" for k in range(len(sizes))]
    data = ArrayFederatedData(255 - images, labels, rows, client_ids, transform=_scaled)
    return _Writers({"all": data})
