"""`emnist_character`: Federated EMNIST as TFF has it, 3,400 writers and 62 characters.

FedOpt's EMNIST CR (Reddi et al. 2021): 671,585 training and 77,483 test examples, every writer with
some of both. The data are read from TFF's own sqlite file.
"""

import functools
import lzma
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tasks import generated, losses, models
from tasks.sqlite_clients import SqliteFederatedData, check_complete
from tasks.task import ArrayFederatedData, DataError, Examples, Task

_NUM_CLASSES = 62
_FILE = "emnist_all.sqlite"
_ADVICE = (
    "get https://storage.googleapis.com/tff-datasets-public/emnist_all.sqlite.lzma and set "
    "--data_dir to its folder"
)


def load(*, data_dir: str | None, seed: int, use_synthetic_data: bool, init: str) -> Task:
    """Loads the task; see `tasks.builtin` for the settings and `tasks.load` for the rest.

    `data_dir` holds TFF's file, unpacked or as TFF ships it; without `data_dir` TFF's cache is read
    and filled by TFF's download. Writers are read one by one; only the central test, all writers'
    test examples together as in FedOpt, is held in memory (243 MB). Pixels are float32 in [0, 1],
    1.0 for the background; labels are 0-9 digits, 10-35 capitals, 36-61 small letters.

    Raises:
      DataError: If the file is missing or damaged and cannot be downloaded.
    """
    del seed  # Nothing but the initial weights is drawn at random.
    if use_synthetic_data:
        train, test, central_test = _synthetic()
    else:
        path = _find(data_dir)
        train = SqliteFederatedData(path, "all_train", parse, _ADVICE)
        test = SqliteFederatedData(path, "all_test", parse, _ADVICE)
        central_test = test.pooled()
    if test.client_ids == train.client_ids:
        test.client_ids = train.client_ids
    return Task(
        name="emnist_character",
        train=train,
        test=test,
        central_test=central_test,
        keras_model_fn=functools.partial(models.emnist_cnn, num_classes=_NUM_CLASSES, init=init),
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"accuracy": losses.sparse_accuracy},
        primary_metric="accuracy",
        settings={"init": init},
    )


def parse(serialized: Sequence[bytes]) -> Examples:
    """Parses examples as they are in TFF's file.

    Args:
      serialized: `tf.train.Example` protos with `pixels` (784 floats) and `label` (one integer).

    Returns:
      x float32 `[n, 28, 28, 1]` and y int32 `[n]`.

    Raises:
      ValueError: If an example is not such a proto, or a pixel or label is out of range.
    """
    try:
        parsed = tf.io.parse_example(
            tf.constant(serialized, tf.string, shape=(len(serialized),)),
            {
                "pixels": tf.io.FixedLenFeature((28, 28, 1), tf.float32),
                "label": tf.io.FixedLenFeature((), tf.int64),
            },
        )
    # TensorFlow fails to decode its own message when it quotes bytes that are not text.
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as error:
        raise ValueError("an example that is not 28x28 pixels and a label") from error
    x, y = parsed["pixels"].numpy(), parsed["label"].numpy().astype(np.int32)
    if len(y) and not (0 <= y.min() and y.max() < _NUM_CLASSES):
        raise ValueError(f"labels from {y.min()} to {y.max()}, outside 0..{_NUM_CLASSES - 1}")
    if len(y) and not (0 <= x.min() and x.max() <= 1):
        raise ValueError(f"pixels from {x.min():g} to {x.max():g}, outside [0, 1]")
    return Examples(x, y)


def _find(data_dir: str | None) -> str:
    """Returns the path of TFF's file, unpacked or downloaded if need be."""
    if data_dir is None:
        path = os.path.join(os.path.expanduser("~"), ".tff", _FILE)
        if not os.path.isfile(path):
            _download(path)
        return path
    for folder in (os.path.join(data_dir, "emnist"), data_dir):
        path = os.path.join(folder, _FILE)
        if os.path.isfile(path):
            return path
        if os.path.isfile(f"{path}.lzma"):
            _unpack(f"{path}.lzma", path)
            return path
    raise DataError(f"{os.path.join(data_dir, _FILE)}[.lzma] is missing; {_ADVICE}")


def _unpack(packed: str, path: str) -> None:
    """Unpacks TFF's compressed file beside it; `path` appears only when it is whole."""
    print(f"Unpacking {packed}", file=sys.stderr)
    try:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as scratch:
            part = os.path.join(scratch, _FILE)
            with lzma.open(packed) as source, open(part, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            check_complete(part, _ADVICE)
            os.replace(part, path)
    except (EOFError, lzma.LZMAError) as error:
        raise DataError(f"{packed} is damaged ({error}); {_ADVICE}") from error
    except OSError as error:
        raise DataError(
            f"{packed} cannot be unpacked to {path} ({error.strerror}); unpack it elsewhere with "
            f"`xz --decompress --stdout` and set --data_dir to that folder"
        ) from error


def _download(path: str) -> None:
    """Lets TFF download its file to where its cache has it; `path` appears only when it is whole.

    TFF writes into its cache directly, where an interrupted download would be taken for the file.
    """
    import tensorflow_federated as tff  # Slow to import, and needed nowhere else in this module.

    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as scratch:
            tff.simulation.datasets.emnist.load_data(only_digits=False, cache_dir=scratch)
            part = os.path.join(scratch, _FILE)
            check_complete(part, _ADVICE)
            os.replace(part, path)
    except Exception as error:  # Network, disk, decompression and database each have their own.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{_FILE} cannot be downloaded ({reason}); {_ADVICE}") from error


def _synthetic() -> tuple[ArrayFederatedData, ArrayFederatedData, Examples]:
    """Makes ten writers of the true shapes and types, with 24 to 96 training examples."""
    train_sizes = np.arange(24, 97, 8)
    test_sizes = train_sizes // 8
    client_ids = [f"synthetic{i}" for i in range(len(train_sizes))]
    made = []
    for seed, sizes in enumerate((train_sizes, test_sizes)):
        images, labels = generated.grey_images(sizes.sum(), _NUM_CLASSES, seed)
        x = (255 - images) / np.float32(255)
        rows = np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])
        made.append(ArrayFederatedData(x, labels, rows, client_ids))
    return made[0], made[1], Examples(x, labels)
