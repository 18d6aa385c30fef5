"""Reads the folders of TensorFlow Datasets (TFDS), and puts examples back in the publisher's order.

TFDS shuffles a set when it writes it: an example has a key, and a split is sorted by the MD5 sums
of the split's name and the key. If the key is the example's position in the publisher's files, that
order can be undone. TFDS itself is imported only when a set is read.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tasks.formats import files
from tasks.task import DataError

_VERSION = re.compile(r"\d+\.\d+\.\d+")
# Examples that are decoded together.
_CHUNK = 1024


class Set(NamedTuple):
    """A set in TFDS.

    Attributes:
      name: Its name there.
      version: The version that is read; others may differ in content or order.
      sizes: Split → number of examples.
      features: Name of each feature that is read → type and shape of an example's, e.g. `("uint8",
        (28, 28, 1))`; texts are `("object", ())`.
      classes: Name of each feature that is a class number → number of classes.
      labels: Split → SHA-256 of the publisher's labels in their order, one byte each. If it is
        unknown, every class must occur equally often.
      first: Split → the publisher's first labels, if only these are known.
    """

    name: str
    version: str
    sizes: Mapping[str, int]
    features: Mapping[str, tuple[str, tuple[int, ...]]]
    classes: Mapping[str, int] = {}
    labels: Mapping[str, str] = {}
    first: Mapping[str, Sequence[int]] = {}

    def published(self, split: str) -> tuple[int, str]:
        """Returns the number of a split's labels and their SHA-256, which must be known."""
        return self.sizes[split], self.labels[split]

    @property
    def folder(self) -> str:
        """The set's folder below the one that TFDS calls `data_dir`."""
        return os.path.join(self.name, self.version)

    @property
    def advice(self) -> str:
        """How to get the set."""
        return (
            f'remove it and make it again with tensorflow_datasets.load("{self.name}:'
            f'{self.version}"), whose folder --data_dir may name'
        )


def find(of: Set, data_dir: str) -> str | None:
    """Returns the folder of a set below `data_dir`, or `None` if TFDS has no version of it there.

    Raises:
      DataError: If only other versions exist, or a folder may not be read.
    """
    path = os.path.join(data_dir, of.folder)
    if files.exists(path, of.advice):
        return path
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        return None
    with files.decoding(parent, of.advice):
        others = [
            name
            for name in sorted(os.listdir(parent))
            if _VERSION.fullmatch(name)
            and os.path.lexists(os.path.join(parent, name, "dataset_info.json"))
        ]
    if others:
        raise DataError(
            f"{parent} has version {', '.join(others)} of TFDS's {of.name} and not "
            f"{of.version}, the only one that is read; get that with "
            f'tensorflow_datasets.load("{of.name}:{of.version}")'
        )
    return None


def cache() -> str:
    """Returns the folder in which TFDS keeps sets by default."""
    named = os.environ.get("TFDS_DATA_DIR") or os.path.join("~", "tensorflow_datasets")
    return os.path.expanduser(named)


def find_in_cache(of: Set) -> str | None:
    """Returns the folder of a set in TFDS's cache; `None` if this version is not cached."""
    path = os.path.join(cache(), of.folder)
    return path if files.exists(path, of.advice) else None


def download(of: Set) -> str:
    """Lets TFDS download and write a set into its cache, as TFRecords; returns the folder.

    Raises:
      DataError: If that fails.
    """
    advice = f"make it elsewhere and set --data_dir, or TFDS_DATA_DIR, to the folder of {of.name}"
    with files.decoding(f"TFDS's {of.name}", advice, "cannot be downloaded"):
        import tensorflow_datasets

        builder = tensorflow_datasets.builder(f"{of.name}:{of.version}", data_dir=cache())
        builder.download_and_prepare(file_format="tfrecord")
        return os.fspath(builder.data_path)


def record(of: Set, folder: str) -> dict[str, Any]:
    """Returns the entries on a set in a run's `hparams.json`: settings of a task."""
    return {"tfds": f"{of.name}:{of.version}", "tfds_path": os.path.abspath(folder)}


def read_images(of: Set, folder: str, split: str) -> dict[str, np.ndarray]:
    """Reads a split of a set whose examples are numbered, in the publisher's order.

    Args:
      of: The set. A feature `id` has the form `train_00000`, split and number. Without one, TFDS's
        order is undone.
      folder: Its folder, see `find`.
      split: Name of the split.

    Returns:
      Arrays `[n, ...]` by name of feature, without `id`; class numbers are int32.

    Raises:
      DataError: If it is damaged, or differs from the publisher's set.
    """
    arrays = read(of, folder, split)
    with files.decoding(folder, of.advice, f"is not TFDS's {of.name} in its split {split!r}"):
        size = of.sizes[split]
        if "id" in arrays:
            number_of = {f"{split}_{i:05}".encode(): i for i in range(size)}
            numbers = [number_of.get(name, -1) for name in arrays.pop("id")]
            if sorted(numbers) != list(range(size)):
                raise ValueError(f"its ids are not {split}_00000, {split}_00001, ...")
        else:
            numbers = order_of_writing(split, size)
        places = np.empty(size, np.int64)
        places[numbers] = np.arange(size)
        arrays = {name: array[places] for name, array in arrays.items()}
        for name, num_classes in of.classes.items():
            files.check_labels(arrays[name], num_classes, f"{name}s")
            arrays[name] = arrays[name].astype(np.int32)
        _check_labels(of, split, arrays["label"])
    return arrays


def order_of_writing(split: str, size: int) -> list[int]:
    """Returns the numbers of a split's examples in the order in which TFDS writes them."""
    return sorted(range(size), key=lambda i: hashlib.md5(f"{split}{i}".encode()).digest())


def _check_labels(of: Set, split: str, labels: np.ndarray) -> None:
    if split in of.labels:
        if hashlib.sha256(labels.astype(np.uint8).tobytes()).hexdigest() != of.labels[split]:
            raise ValueError("labels are not the publisher's in the publisher's order")
    elif len(set(np.bincount(labels, minlength=of.classes["label"]))) > 1:
        raise ValueError("some classes have more examples than others")
    first = list(of.first.get(split, ()))
    if labels[: len(first)].tolist() != first:
        raise ValueError(f"its first labels in the publisher's order are not {first[:5]}, ...")


def read(of: Set, folder: str, split: str) -> dict[str, np.ndarray]:
    """Reads a split in TFDS's order, from TFRecord or ArrayRecord files.

    Args:
      of: The set.
      folder: Its folder, see `find`.
      split: Name of the split.

    Returns:
      Arrays `[n, ...]` by name of feature; texts are bytes.

    Raises:
      DataError: If a file is missing or damaged, or the folder holds another set.
    """
    _check_description(of, folder)
    with files.decoding(folder, of.advice, f"is damaged in its split {split!r}"):
        chunks, count, size = [], 0, of.sizes[split]
        for chunk in _chunks(of, folder, split):
            count += len(next(iter(chunk.values())))
            chunks.append({name: chunk[name] for name in of.features})
            if count > size:
                break
        if count != size:
            more = "more" if count > size else "fewer"
            raise ValueError(f"{more} than the {size:,} examples of {of.name} were found")
        return {name: np.concatenate([c[name] for c in chunks]) for name in of.features}


def _check_description(of: Set, folder: str) -> None:
    """Checks that a set's files are readable, and its description, before TFDS acts on it."""
    with files.decoding(folder, of.advice):
        names = sorted(os.listdir(folder))
        folder.encode()  # TensorFlow takes no other path.
    for name in names:
        path = os.path.join(folder, name)
        with files.reading(path, of.advice), open(path, "rb"):
            pass
    path = os.path.join(folder, "dataset_info.json")
    with files.reading(path, of.advice, "is not a description of TFDS's"):
        info = _json(path)
        for key, wanted in (("name", of.name), ("version", of.version)):
            found = files.entry(info, key, str)
            if found != wanted:
                raise ValueError(f"its {key} is {found!r:.80} and not {wanted!r}")
    path = os.path.join(folder, "features.json")
    with files.reading(path, of.advice, "is not a description of TFDS's"):
        _check_classes(_json(path))


def _json(path: str) -> Any:
    with open(path, "rb") as file:
        return files.json_of(files.read_at_most(file))


def _check_classes(described: Any) -> None:
    """Checks that features have TFDS's own types, since TFDS imports any module that they name."""
    if isinstance(described, dict):
        name = described.get("pythonClassName", "tensorflow_datasets.")
        if not isinstance(name, str) or not name.startswith("tensorflow_datasets."):
            raise ValueError(f"it refers to {name!s:.80}, which is not allowed")
        described = list(described.values())
    if isinstance(described, list):
        for part in described:
            _check_classes(part)


def _chunks(of: Set, folder: str, split: str) -> Iterator[Mapping[str, np.ndarray]]:
    """Yields decoded examples in batches.

    Raises:
      Exception: If they cannot be read or have other types.
    """
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(folder)
    features = builder.info.features
    for name, (dtype, shape) in of.features.items():
        if name not in features:
            raise ValueError(f"its examples lack the feature {name!r}")
        found = np.dtype(features[name].np_dtype).name, tuple(features[name].shape)
        if found != (dtype, shape):
            raise ValueError(f"{name!r} is {found[0]} of shape {found[1]}")
    if builder.info.file_format.value == "array_record":
        examples = _of_array_records(builder, split)
    else:
        # One file after the other, which is the order of writing.
        config = tensorflow_datasets.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        examples = builder.as_dataset(split=split, shuffle_files=False, read_config=config)
    yield from tensorflow_datasets.as_numpy(examples.batch(_CHUNK))


def _of_array_records(builder: Any, split: str) -> "tf.data.Dataset":
    """Returns the decoded examples of a split, as `as_dataset` does for other files.

    TFDS has no such function for ArrayRecord files. Its own one decodes example by example in
    Python, which takes five times as long.
    """
    import tensorflow_datasets

    raw = tensorflow_datasets.decode.DeserializeMethod.RAW_BYTES
    source = builder.as_data_source(split=split, deserialize_method=raw)

    def read() -> Iterator[Any]:
        for start in range(0, len(source), _CHUNK):
            yield source.__getitems__(range(start, min(start + _CHUNK, len(source))))

    records = tf.data.Dataset.from_generator(
        read, output_signature=tf.TensorSpec([None], tf.string)
    )
    return records.unbatch().map(
        builder.info.features.deserialize_example, num_parallel_calls=tf.data.AUTOTUNE
    )
