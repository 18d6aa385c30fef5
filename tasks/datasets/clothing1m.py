"""`clothing1m`: a million pictures of clothes in 14 classes, with labels that are often wrong.

Clothing1M (Xiao et al. 2015) in the setting of FedCorr (Xu et al. 2022), which AdaFed's Table 19
adopts: 500 clients, ResNet-50 with weights trained on ImageNet. The 10,526 test pictures have
checked labels.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import generated, partitions, settings
from tasks.data_files import DataFiles
from tasks.formats import files, prepared
from tasks.models import image_models, losses
from tasks.registry import TaskSpec
from tasks.task import ArrayFederatedData, DataError, Examples, Task
from tff_suite.hparams import By, Hparam

_NUM_CLASSES = 14
_LABELS = frozenset(map(str, range(_NUM_CLASSES)))
_SIDE = 256
_CROP = 224
_LISTS = {
    "train": ("noisy_train_key_list.txt", "noisy_label_kv.txt"),
    "test": ("clean_test_key_list.txt", "clean_label_kv.txt"),
}
_ARRAYS = {"image": prepared.Array(None), "y": prepared.Array("uint8")}
_PUBLISHED = {"train": 1_000_000, "test": 10_526}
_PICTURES_A_PIECE = 1000
_MAX_PICTURE = 64 << 20
_ADVICE = (
    "ask for Clothing1M as https://github.com/Cysu/noisy_label says, unpack it, and set --data_dir "
    "to the folder that holds noisy_train_key_list.txt, the other lists and images/"
)
_WEIGHTS_ADVICE = (
    "set --clothing1m_weights to a Keras file of ResNet-50's ImageNet weights, e.g. https://"
    "storage.googleapis.com/tensorflow/keras-applications/resnet/"
    "resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5"
)


SPEC = TaskSpec(
    name="clothing1m",
    summary=(
        "A million pictures of clothes with noisy labels, in FedCorr's setting: ResNet-50 from "
        "ImageNet's weights (23,563,278 trainable parameters)."
    ),
    preparer="prepare",
    clients=settings.generated,
    hparams=(
        Hparam(
            name="weights",
            default=None,
            type=str,
            help=(
                "Keras's HDF5 file of ResNet-50's ImageNet weights; needed for real "
                "data. Batch normalisation keeps its statistics; its scale and "
                "offset are trained."
            ),
            source="AdaFed Table 19, FedCorr: pretrained ResNet-50",
        ),
        Hparam(
            name="partition",
            default="skewed",
            help=(
                "`skewed`: a client has each kind of clothes with a probability, and gets a "
                "Dirichlet share of it; `iid`: equal sizes at random."
            ),
            source="FedCorr, Clothing1M",
            choices=("skewed", "iid"),
        ),
        Hparam(
            name="num_clients",
            default=500,
            help="Number of clients.",
            source="FedCorr, Clothing1M",
            minimum=1,
            maximum=settings.MAX_CLIENTS,
        ),
        Hparam(
            name="class_probability",
            default=By("partition", {"skewed": 0.7}),
            help="Probability p that a client has a kind.",
            source="FedCorr's released code",
            # Clients draw until they have a kind.
            minimum=1e-4,
            maximum=1,
        ),
        Hparam(
            name="alpha",
            default=By("partition", {"skewed": 10.0}),
            help="Concentration of the clients' shares of a kind.",
            source="FedCorr's released code",
            **settings.CONCENTRATIONS,
        ),
        settings.partition_seed("the partition"),
        Hparam(
            name="init",
            default="torch",
            help=(
                "Initial weights of the last layer: `torch` draws weights and biases uniformly "
                "from ±1/sqrt(fan_in); `keras` draws weights by Glorot's uniform rule and "
                "starts biases at 0."
            ),
            source="FedCorr (PyTorch)",
            choices=("torch", "keras"),
        ),
    ),
    metrics=("accuracy",),
    data=(
        DataFiles(
            "Clothing1M and ResNet-50's ImageNet weights",
            "ask for it as https://github.com/Cysu/noisy_label says",
            ("noisy_train_key_list.txt", "clothing1m*"),
            1_000_000,
        ),
    ),
    known_problems=("It was tested on small files in the publisher's form only.",),
)


def load(
    *,
    data_dir: str | None,
    seed: int,
    use_synthetic_data: bool,
    weights: str | None,
    partition: str,
    num_clients: int,
    class_probability: float | None,
    alpha: float | None,
    partition_seed: int,
    init: str,
) -> Task:
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    x is uint8 `[n, 256, 256, 3]`, decoded on access; the model crops it to 224x224. y is int32. The
    central test is the official test pictures. They are also assigned to the clients, so that each
    client's tests have the labels of its training pictures.

    Raises:
      HparamError: If the partition is impossible.
      DataError: If a file is missing or damaged, or `weights` is not set for real pictures.
    """
    del seed  # It comes as partition_seed.
    if weights is None and not use_synthetic_data:
        raise DataError(f"clothing1m never starts from random weights; {_WEIGHTS_ADVICE}")
    pretrained = None if weights is None else read_weights(weights)
    if use_synthetic_data:
        sizes = {"train": 20 * num_clients, "test": 2 * num_clients}
        pictures = {part: _synthetic(n, i) for i, (part, n) in enumerate(sizes.items())}
    else:
        pictures = _read(data_dir)

    train, test = pictures["train"], pictures["test"]
    if partition == "iid":
        parts = partitions.iid(len(train.y), num_clients, partition_seed)
    else:
        assert class_probability is not None and alpha is not None
        parts = partitions.some_classes_dirichlet(
            train.y, num_clients, class_probability, alpha, partition_seed
        )
    tests = partitions.tests_alike(train.y, parts, test.y, partition_seed)
    client_ids = [str(k) for k in range(num_clients)]
    return Task(
        name="clothing1m",
        train=ArrayFederatedData(*train, parts, client_ids),
        test=ArrayFederatedData(*test, tests, client_ids),
        central_test=test,
        keras_model_fn=functools.partial(
            image_models.of_bytes,
            model_fn=functools.partial(
                image_models.resnet50, weights=pretrained, num_classes=_NUM_CLASSES, init=init
            ),
            shape=(_SIDE, _SIDE, 3),
            crop=_CROP,
            distort=True,
            scaling="imagenet",
        ),
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"accuracy": losses.sparse_accuracy},
        primary_metric="accuracy",
        constants={
            f"layer {name} of the weights, array {i}": array
            for name, arrays in (pretrained or {}).items()
            for i, array in enumerate(arrays)
        },
    )


def prepare(source: str, data_dir: str) -> prepared.Outcome:
    """Makes a prepared set of pictures of 256x256, for `tasks.prepare`.

    They are recompressed as JPEG, with quality 95.

    Raises:
      DataError: If a file is missing or damaged.
    """
    pieces = []
    for part in _LISTS:
        keys, labels = _read_lists(source, part)
        for start in range(0, len(keys), _PICTURES_A_PIECE):
            chosen = slice(start, start + _PICTURES_A_PIECE)
            read = functools.partial(_smaller, source, part, keys[chosen], labels[chosen])
            pieces.append(prepared.Piece(f"{part} {start}", len(keys[chosen]), read))
    made = prepared.Source(_ARRAYS, pieces, unit="pictures")
    return prepared.write(made, data_dir, "clothing1m", _PUBLISHED)


def read_weights(path: str) -> dict[str, list[np.ndarray]]:
    """Reads a file of weights as Keras saves it.

    Args:
      path: HDF5 file with a group for each layer: a file of weights, or of a whole model.

    Returns:
      The weights of each layer by the layer's name, in Keras's order.

    Raises:
      DataError: If the file cannot be read or does not have that form.
    """
    import h5py  # Slow to import, and needed nowhere else in this module.

    with files.reading(path, _WEIGHTS_ADVICE), h5py.File(path, "r") as file:
        layers = file.get("model_weights", file)
        return {
            _text(name): [_weight(layers[name][w]) for w in layers[name].attrs["weight_names"]]
            for name in layers.attrs["layer_names"]
        }


def _weight(dataset: Any) -> np.ndarray:
    files.check_dataset(dataset, "f")
    weight = dataset[()]
    if not np.all(np.isfinite(weight)):
        raise ValueError(f"weights {dataset.name} that are not finite")
    return weight


class Pictures:
    """Pictures that are decoded on access; they replace a uint8 array `[n, 256, 256, 3]`.

    Slices and arrays of row numbers give NumPy arrays.

    Attributes:
      shape: Shape of the array.
      dtype: Type of its entries.
      files: See `tasks.task.files`.
    """

    def __init__(
        self,
        num_pictures: int,
        picture: Callable[[int], np.ndarray],
        files: Sequence[str] = (),
    ):
        """Initialises the pictures.

        Args:
          num_pictures: Number of pictures.
          picture: Returns the picture in a row, uint8 `[256, 256, 3]`; called by several threads.
          files: The files that `picture` reads.
        """
        self.shape = (num_pictures, _SIDE, _SIDE, 3)
        self.dtype = np.dtype(np.uint8)
        self._picture = picture
        self.files = files

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        chosen = range(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows)
        pictures = np.zeros((len(chosen), *self.shape[1:]), np.uint8)
        with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for i, picture in enumerate(pool.map(self._picture, map(int, chosen))):
                pictures[i] = picture
        return pictures


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _read(data_dir: str | None) -> dict[str, Examples]:
    """Returns pictures and labels of train and test."""
    if data_dir is None:
        raise DataError(f"clothing1m reads files and needs --data_dir: {_ADVICE}")
    folder = prepared.find(data_dir, "clothing1m", _ADVICE)
    if folder is not None:
        advice = f"remove it and run python -m tasks.prepare again, or {_ADVICE}"
        made = prepared.read(folder, advice, _ARRAYS, _LISTS, _NUM_CLASSES)
        lists = (_find_list(data_dir, name) for names in _LISTS.values() for name in names)
        prepared.warn_if_older(folder, filter(None, lists))
        return {part: _of_set(made, folder, part) for part in _LISTS}
    found = {}
    for part in _LISTS:
        keys, labels = _read_lists(data_dir, part)
        read = functools.partial(_read_picture, data_dir, keys)
        paths = [os.path.join(data_dir, key) for key in keys]
        found[part] = Examples(Pictures(len(keys), read, paths), labels)
    return found


def _of_set(made: prepared.Prepared, folder: str, part: str) -> Examples:
    rows = made.parts[part][""]

    def picture(row: int) -> np.ndarray:
        what = f"picture {row} of {part} in {folder}"
        image = _decode(made.strings["image"][rows[row]], what)
        with files.decoding(what, _ADVICE, "is damaged"):
            if image.shape != (_SIDE, _SIDE, 3):
                raise ValueError(f"its shape is {tuple(image.shape)}")
        return image.numpy()

    labels = np.asarray(made.arrays["y"][rows.start : rows.stop], np.int32)
    return Examples(Pictures(len(rows), picture, made.strings["image"].files), labels)


def _read_lists(data_dir: str, part: str) -> tuple[list[str], np.ndarray]:
    """Returns the pictures' paths below `data_dir` and their labels, in the list's order."""
    keys_path, labels_path = (_list_path(data_dir, name) for name in _LISTS[part])
    labels = {}
    for number, line in enumerate(_lines(labels_path), start=1):
        key, *label = line.split()
        if len(label) != 1 or label[0] not in _LABELS:
            raise DataError(
                f"{labels_path} is damaged: line {number} is not a path and a label below "
                f"{_NUM_CLASSES}; {_ADVICE}"
            )
        if labels.setdefault(key, int(label[0])) != int(label[0]):
            raise DataError(f"{labels_path} is damaged: it lists {key} with two labels; {_ADVICE}")
    # A picture that is listed twice counts once, or it could be in train and test of two clients.
    keys = list(dict.fromkeys(_lines(keys_path)))
    unknown = next((key for key in keys if key not in labels), None)
    if unknown is not None or not keys:
        reason = f"{labels_path} has no label of {unknown}" if keys else f"{keys_path} is empty"
        raise DataError(f"{reason}; {_ADVICE}")
    return keys, np.array([labels[key] for key in keys], np.int32)


def _list_path(data_dir: str, name: str) -> str:
    path = _find_list(data_dir, name)
    if path is None:
        where, known = _list_paths(data_dir, name), sum(_LISTS.values(), ())
        raise files.missing(where[0], _ADVICE, where, known=known)
    return path


def _find_list(data_dir: str, name: str) -> str | None:
    return files.find(_list_paths(data_dir, name), _ADVICE)


def _list_paths(data_dir: str, name: str) -> list[str]:
    return [os.path.join(f, name) for f in (data_dir, os.path.join(data_dir, "annotations"))]


def _lines(path: str) -> list[str]:
    with files.reading(path, _ADVICE), open(path, "rb") as file:
        text = files.read_at_most(file).decode()
    if "\0" in text:
        raise DataError(f"{path} is damaged: it holds null bytes; {_ADVICE}")
    return [line for line in text.splitlines() if line.strip()]


def _read_picture(data_dir: str, keys: Sequence[str], row: int) -> np.ndarray:
    path = os.path.join(data_dir, keys[row])
    with files.reading(path, _ADVICE), open(path, "rb") as file:
        content = files.read_at_most(file, _MAX_PICTURE)
    # As FedCorr does, whatever the sides' proportion.
    image = tf.image.resize(_decode(content, path), (_SIDE, _SIDE), antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8).numpy()


def _decode(content: bytes, what: str) -> tf.Tensor:
    try:
        return tf.io.decode_image(content, channels=3, expand_animations=False)
    # TensorFlow fails to decode its own message when it quotes bytes that are not text.
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        raise DataError(f"{what} is damaged or not an image; {_ADVICE}") from error


def _smaller(
    data_dir: str, part: str, keys: Sequence[str], labels: np.ndarray
) -> Iterator[prepared.Rows]:
    def encoded(row: int) -> bytes:
        image = _read_picture(data_dir, keys, row)
        return tf.io.encode_jpeg(image, quality=95).numpy()

    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        images = list(pool.map(encoded, range(len(keys))))
    yield prepared.Rows(part, "", {"image": images, "y": labels.astype(np.uint8)})


def _synthetic(num_pictures: int, seed: int) -> Examples:
    """Generates pictures that are grey patterns, enlarged."""
    images, labels = generated.grey_images(num_pictures, _NUM_CLASSES, seed)

    def picture(row: int) -> np.ndarray:
        image = np.pad(images[row].repeat(9, axis=0).repeat(9, axis=1), [(2, 2), (2, 2), (0, 0)])
        return image.repeat(3, axis=2)

    return Examples(Pictures(num_pictures, picture), labels)
