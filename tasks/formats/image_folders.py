"""Reads CINIC-10 and Tiny ImageNet from their publishers' trees of image files.

CINIC-10 (Darlow et al. 2018) has `train/`, `valid/` and `test/`, each with a folder of 9,000 PNG
files for each of CIFAR-10's classes. Tiny ImageNet has `train/<class>/images/*.JPEG`, 500 for each
of 200 classes, `val/images/*.JPEG` with `val/val_annotations.txt`, `wnids.txt` with the classes,
and test images without labels, which are not read. A tree is a folder or the publisher's archive.

Programs that read one folder per class need Tiny ImageNet's validation images sorted. Many scripts
do that, into `val/<class>/`, `val/<class>/images/` or `val/images/<class>/`. These places are read,
too. Folders and files may be links.
"""

import collections
import functools
import os
import re
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tasks.formats import files as files_lib
from tasks.formats import prepared
from tasks.formats.cifar import Images
from tasks.task import DataError

# No picture or list of these sets is larger.
_MAX_FILE = 64 << 20
_ENDINGS = (".png", ".JPEG", ".txt")
_ANNOTATIONS = "val/val_annotations.txt"
_PNG = b"\x89PNG\r\n\x1a\n"


class Kind(NamedTuple):
    """One of the two sets.

    Attributes:
      task: Name of its task, also the subfolder of `data_dir` to look in first.
      folder: Name of the tree's folder.
      archive: Name of the publisher's archive.
      url: Address of the archive.
      md5: MD5 of the archive.
      size: Height and width of an image, in pixels.
      num_classes: Number of classes.
      published: Published numbers of images, in total and by part.
      files: `(tree, advice) -> part -> list of (file, label)`.
    """

    task: str
    folder: str
    archive: str
    url: str
    md5: str
    size: int
    num_classes: int
    published: Mapping[str, int]
    files: Callable[["_Tree", str], Mapping[str, Sequence[tuple[str, int]]]]

    @property
    def advice(self) -> str:
        """Where to get the set and how to point at it."""
        return (
            f"get {self.url} and set --data_dir to its folder, or to the one above it if it is "
            f"called {self.task}"
        )

    @property
    def arrays(self) -> Mapping[str, prepared.Array]:
        """The arrays of its prepared set."""
        shape = (self.size, self.size, 3)
        return {"x": prepared.Array("uint8", shape), "y": prepared.Array("uint8")}


class _Tree:
    """Files by their paths below the tree's root, which is the folder that contains `train`."""

    def __init__(self, path: str, sizes: Mapping[str, int], read: Callable[[str], bytes]):
        """Initialises the tree.

        Args:
          path: Its name in error messages.
          sizes: Size of every file by its path, with `/` between folders.
          read: Reads the file at a path.

        Raises:
          ValueError: If `train` is missing.
        """
        inside = re.compile("(?:^|.*?/)(?=train/)")
        roots = {m.group() for m in map(inside.match, sizes) if m}
        if not roots:
            raise ValueError("it has no folder train")
        root = min(roots, key=len)
        self.path = path
        below = {p[len(root) :]: size for p, size in sizes.items() if p.startswith(root)}
        # Hidden files and folders are not of the set: what macOS puts beside a file on other
        # systems' disks is called `._` and the file's name, and Jupyter keeps copies.
        self.sizes = {
            p: size for p, size in below.items() if not any(n[0] == "." for n in p.split("/") if n)
        }
        self._read = lambda name: read(root + name)

    def read(self, name: str) -> bytes:
        """Returns a file's content."""
        return self._read(name)

    def below(self, folder: str) -> list[str]:
        """Returns the files below a folder, ordered by name."""
        return sorted(name for name in self.sizes if name.startswith(folder + "/"))


def read(kind: Kind, data_dir: str | None) -> dict[str, Images]:
    """Reads the images of all parts.

    Args:
      kind: `CINIC10` or `TINY_IMAGENET`.
      data_dir: Folder with the prepared set, the tree or the archive; `None` means Keras's cache,
        downloading the archive if needed.

    Returns:
      Images by part, ordered by class, then by file name. Those of a prepared set are read-only
      memory maps; others are in memory.

    Raises:
      DataError: If files are missing or damaged, or cannot be downloaded.
    """
    if data_dir is None:
        made = prepared.in_memory(_source(kind, _download(kind)))
    else:
        folder = prepared.find(data_dir, kind.task, kind.advice)
        if folder:
            advice = f"remove it and run python -m tasks.prepare again, or {kind.advice}"
            parts = [name for name in kind.published if name != "examples"]
            made = prepared.read(folder, advice, kind.arrays, parts, kind.num_classes)
            raw = _there(kind, data_dir)
            if raw is not None:
                with files_lib.decoding(raw, kind.advice):
                    prepared.warn_if_older(folder, _changing(raw))
        else:
            made = prepared.in_memory(_source(kind, _find(kind, data_dir)))
    images, counts = {}, {}
    for part, clients in made.parts.items():
        (rows,) = clients.values()
        counts[f"images of {part}"] = (rows.stop - rows.start, kind.published[part])
        own = slice(rows.start, rows.stop)
        images[part] = Images(made.arrays["x"][own], made.arrays["y"][own].astype(np.int32))
    files_lib.warn_if_not_published(data_dir or kind.folder, counts)
    return images


def prepare(kind: Kind, source: str, data_dir: str) -> prepared.Outcome:
    """Makes a prepared set, for `tasks.prepare`.

    Raises:
      DataError: If files are missing or damaged.
    """
    made = _source(kind, _find(kind, source))
    return prepared.write(made, data_dir, kind.task, kind.published)


def _find(kind: Kind, data_dir: str) -> str:
    path = _there(kind, data_dir)
    if path is None:
        parents = (os.path.join(data_dir, kind.task), data_dir)
        paths = [os.path.join(p, name) for p in parents for name in (kind.archive, kind.folder)]
        raise files_lib.missing(os.path.join(data_dir, kind.archive), kind.advice, paths)
    return path


def _there(kind: Kind, data_dir: str) -> str | None:
    for parent in (os.path.join(data_dir, kind.task), data_dir):
        for name in (kind.folder, kind.archive):
            path = os.path.join(parent, name)
            if files_lib.exists(path, kind.advice):
                return path
        if os.path.isdir(os.path.join(parent, "train")):
            return parent
    return None


def _changing(path: str) -> list[str]:
    """Returns paths whose times reveal added or removed images: an archive, or a tree's folders."""
    if not os.path.isdir(path):
        return [path]
    folders = [os.path.join(path, part) for part in ("train", "valid", "val", "test")]
    folders = [folder for folder in folders if os.path.isdir(folder)]
    classes = [os.path.join(f, name) for f in folders for name in os.listdir(f)]
    # Only here, since to list all images takes as long as to open the tree.
    images = [os.path.join(folder, "images") for folder in classes]
    return [*folders, *classes, *filter(os.path.isdir, images)]


def _download(kind: Kind) -> str:
    try:
        return tf.keras.utils.get_file(kind.archive, kind.url, file_hash=kind.md5)
    except Exception as error:  # Keras raises plain Exception for a failed download.
        raise DataError(
            f"{kind.archive} cannot be downloaded ({files_lib.reason_of(error)}); {kind.advice}"
        ) from error


def _source(kind: Kind, path: str) -> prepared.Source:
    """Returns a tree as the source of a set; a piece is one class in one part."""
    with files_lib.decoding(path, kind.advice):
        tree = _open(path)
        parts = kind.files(tree, kind.advice)
    pieces = []
    for part, files in parts.items():
        by_label = collections.defaultdict(list)
        for name, label in files:
            by_label[label].append(name)
        counts = {label: len(names) for label, names in by_label.items()}
        # The published sets are balanced, so a file that is missing shows.
        usual = max(counts.values())
        for label, count in counts.items():
            if count != usual:
                folder = os.path.dirname(by_label[label][0])
                raise DataError(
                    f"{path} has {count} images of class {label} in {folder} and {usual} of "
                    f"others; {kind.advice}"
                )
        for label, names in sorted(by_label.items()):
            pieces.append(
                prepared.Piece(
                    f"{part}/{label}",
                    sum(tree.sizes[name] for name in names),
                    functools.partial(_read_class, kind, tree, part, label, names),
                )
            )
    return prepared.Source(kind.arrays, pieces)


def _read_class(
    kind: Kind, tree: _Tree, part: str, label: int, names: Sequence[str]
) -> Iterator[prepared.Rows]:
    x = np.empty((len(names), kind.size, kind.size, 3), np.uint8)
    for i, name in enumerate(names):
        with files_lib.decoding(os.path.join(tree.path, name), kind.advice, "is damaged"):
            x[i] = _decode(tree.read(name), kind.size)
    yield prepared.Rows(part, "", {"x": x, "y": np.full(len(names), label, np.uint8)})


def _decode(data: bytes, size: int) -> np.ndarray:
    """Returns the pixels of a PNG or JPEG file; grey ones get three equal channels."""
    is_jpeg = data.startswith(b"\xff\xd8")
    shape: tuple[int, ...] | None = None
    try:
        # Before it is decoded, which takes the memory that the header announces.
        if is_jpeg:
            shape = tuple(tf.io.extract_jpeg_shape(data).numpy()[:2])
        elif data.startswith(_PNG):
            shape = struct.unpack_from(">II", data, 16)
        if shape == (size, size):
            # The exact transform gives the same pixels on every machine.
            return (
                tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE")
                if is_jpeg
                else tf.io.decode_png(data, channels=3)
            ).numpy()
    # TensorFlow fails to decode its own message when it quotes bytes that are not text.
    except (tf.errors.OpError, UnicodeDecodeError, struct.error) as error:
        raise ValueError("it is not a complete PNG or JPEG image") from error
    if shape is None:
        raise ValueError("it is not a complete PNG or JPEG image")
    raise ValueError(f"its shape is {tuple(map(int, shape))} and not {(size, size)}")


def _open(path: str) -> _Tree:
    if os.path.isdir(path):
        return _open_folder(path)
    files_lib.check_regular(path)
    return _open_zip(path) if path.endswith(".zip") else _open_tar(path)


def _open_folder(path: str) -> _Tree:
    sizes = {}

    def walk(folder: str, below: str, above: Any) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    # A link may lead to a folder that it lies in.
                    real = os.path.realpath(entry.path)
                    if real in above:
                        raise ValueError(f"{entry.path} is a link to one of its parent folders")
                    walk(entry.path, f"{below}{entry.name}/", {*above, real})
                else:
                    sizes[f"{below}{entry.name}"] = os.path.getsize(entry.path)

    walk(path, "", {os.path.realpath(path)})

    def read_file(name: str) -> bytes:
        file = os.path.join(path, *name.split("/"))
        files_lib.check_regular(file)
        with open(file, "rb") as opened:
            return files_lib.read_at_most(opened, _MAX_FILE)

    return _Tree(path, sizes, read_file)


def _open_zip(path: str) -> _Tree:
    archive = zipfile.ZipFile(path)
    sizes = {i.filename: i.file_size for i in archive.infolist() if not i.is_dir()}

    def read_file(name: str) -> bytes:
        with archive.open(name) as opened:
            return files_lib.read_at_most(opened, _MAX_FILE)

    return _Tree(path, sizes, read_file)


def _open_tar(path: str) -> _Tree:
    """Opens a compressed archive; its files stay in memory, since it has no random access."""
    print(f"Reading {path}", file=sys.stderr)
    contents = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(_ENDINGS):
                name = member.name.removeprefix("./")
                contents[name] = files_lib.read_member(archive, member, _MAX_FILE)
    return _Tree(path, {name: len(data) for name, data in contents.items()}, contents.__getitem__)


_CINIC10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def _cinic10_files(tree: _Tree, advice: str) -> Mapping[str, Sequence[tuple[str, int]]]:
    parts = {}
    for part in ("train", "valid", "test"):
        parts[part] = []
        for label, name in enumerate(_CINIC10_CLASSES):
            folder = f"{part}/{name}"
            files = [file for file in tree.below(folder) if file.endswith(".png")]
            if not files:
                raise _no_images(tree, folder, advice)
            parts[part] += [(file, label) for file in files]
    return parts


def _no_images(tree: _Tree, folder: str, advice: str) -> DataError:
    there = files_lib.but_there_is([os.path.join(tree.path, folder)])
    return DataError(f"{tree.path} has no images in {folder}{there}; {advice}")


def _text(tree: _Tree, name: str, advice: str) -> str:
    with files_lib.decoding(os.path.join(tree.path, name), advice):
        return tree.read(name).decode()


def _tiny_imagenet_files(tree: _Tree, advice: str) -> Mapping[str, Sequence[tuple[str, int]]]:
    if "wnids.txt" not in tree.sizes:
        there = files_lib.but_there_is([os.path.join(tree.path, "wnids.txt")])
        raise DataError(f"{tree.path} has no wnids.txt{there}; {advice}")
    classes = _text(tree, "wnids.txt", advice).split()
    if len(set(classes)) != len(classes) or len(classes) > TINY_IMAGENET.num_classes:
        raise DataError(
            f"{tree.path} has {len(classes)} classes in wnids.txt, {len(set(classes))} of them "
            f"different, and not {TINY_IMAGENET.num_classes}; {advice}"
        )
    labels = {name: label for label, name in enumerate(classes)}
    train = []
    for name, label in labels.items():
        folder = f"train/{name}/images"
        files = _jpegs(tree, folder) or _jpegs(tree, f"train/{name}")
        if not files:
            raise _no_images(tree, folder, advice)
        train += [(file, label) for file in files]
    return {"train": train, "val": _validation(tree, labels, advice)}


def _jpegs(tree: _Tree, folder: str) -> list[str]:
    return [file for file in tree.below(folder) if file.endswith(".JPEG")]


def _validation(tree: _Tree, labels: Mapping[str, int], advice: str) -> list[tuple[str, int]]:
    """Returns the validation images with their labels, ordered by the images' names."""
    files = {}
    for file in _jpegs(tree, "val"):
        name = file.rsplit("/", 1)[1]
        if files.setdefault(name, file) != file:
            raise DataError(f"{tree.path} has {name} in {files[name]} and {file}; {advice}")
    # Some scripts that sort the images make a test set of a half of them.
    moved = [file for file in _jpegs(tree, "test") if not labels.keys().isdisjoint(file.split("/"))]
    if moved:
        raise DataError(
            f"{tree.path} has validation images below test ({moved[0]}), where the publisher has "
            f"none with a class; put them back into val, or {advice}"
        )
    annotated = _annotations(tree, labels, advice)
    val = []
    for name, file in files.items():
        found = {labels[folder] for folder in file.split("/") if folder in labels}
        found |= {annotated[name]} if name in annotated else set()
        if len(found) != 1:
            which = "several classes" if found else "no class"
            there = "" if found else files_lib.but_there_is([os.path.join(tree.path, _ANNOTATIONS)])
            raise DataError(
                f"{tree.path} has {which} of {file}, by its folder and {_ANNOTATIONS}{there}; "
                f"{advice}"
            )
        val.append((file, *found))
    gone = [name for name in annotated if name not in files]
    if gone:
        raise DataError(
            f"{tree.path} has no val/images/{gone[0]}, which {_ANNOTATIONS} has; {advice}"
        )
    found = {label for _, label in val}
    without = [name for name, label in labels.items() if label not in found]
    if without:
        raise DataError(f"{tree.path} has no images of class {without[0]} in val; {advice}")
    return sorted(val, key=lambda of_image: of_image[0].rsplit("/", 1)[1])


def _annotations(tree: _Tree, labels: Mapping[str, int], advice: str) -> dict[str, int]:
    """Returns the labels of validation images by name; empty if the list is missing."""
    annotated = {}
    if _ANNOTATIONS not in tree.sizes:
        return annotated
    # Name, class and bounding box, with tabs between.
    for line in _text(tree, _ANNOTATIONS, advice).splitlines():
        image, wnid = line.split("\t")[:2]
        if image in annotated:
            raise DataError(f"{tree.path} has {image} twice in {_ANNOTATIONS}; {advice}")
        if wnid not in labels:
            raise DataError(
                f"{tree.path} has {image} of class {wnid} in {_ANNOTATIONS}, which wnids.txt "
                f"lacks; {advice}"
            )
        annotated[image] = labels[wnid]
    return annotated


CINIC10 = Kind(
    task="cinic10",
    folder="CINIC-10",
    archive="CINIC-10.tar.gz",
    url="https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
    md5="6ee4d0c996905fe93221de577967a372",
    size=32,
    num_classes=10,
    published={"examples": 270_000, "train": 90_000, "valid": 90_000, "test": 90_000},
    files=_cinic10_files,
)
TINY_IMAGENET = Kind(
    task="tiny_imagenet",
    folder="tiny-imagenet-200",
    archive="tiny-imagenet-200.zip",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    size=64,
    num_classes=200,
    published={"examples": 110_000, "train": 100_000, "val": 10_000},
    files=_tiny_imagenet_files,
)
