"""Inputs that are a column of paths of images."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.missing import some
from tasks.tables.table import Table
from tasks.task import TaskError
from tff_suite import memory
from tff_suite.user_warnings import warn

# Pillow's modes of images in grey, and of pixels that do not fit into a byte.
_GREY, _DEEP = ("1", "L", "LA", "La"), ("I", "F")


class Images:
    """A column of paths of images of one size, kept as bytes."""

    def __init__(self, table: Table, name: str, folder: str):
        table.require(name, "image")
        self._name, self._folder = name, os.path.expanduser(folder)
        self._shape: tuple[int, ...] | None = None

    def fit(self, table: Table, rows: np.ndarray) -> None:
        """Learns nothing from training rows."""

    def take(self, table: Table) -> np.ndarray:
        """Returns the images of a table's rows, uint8 `[n, height, width, channels]`."""
        from PIL import ExifTags, Image

        table.require(self._name, "image")
        _require_paths(table, self._name)
        images: np.ndarray | None = None
        transparent, of_several, turned = [], [], []
        for row, path in enumerate(table.values(self._name)):
            place = f"{table.what}: column {self._name!r}, row {row}"
            path = os.path.join(self._folder, path)
            try:
                with Image.open(path) as file:
                    if _is_deep(file):
                        raise TaskError(
                            f"{place}: {path} has pixels of more than 8 bits (mode {file.mode}), "
                            "which would be cut off at 255; scale them to 8 bits, or give arrays "
                            "to from_arrays."
                        )
                    # A palette may have a transparent colour.
                    clear = "transparency" in file.info
                    seen = file.convert("RGBA") if clear else file
                    # The A of LAB is a colour.
                    has_alpha = "A" in seen.getbands() and seen.mode != "LAB"
                    alpha = seen.getchannel("A") if has_alpha else None
                    pixels = np.asarray(file.convert("L" if file.mode in _GREY else "RGB"))
                    # MPO is a camera's JPEG with previews of the same picture.
                    several = getattr(file, "is_animated", False) and file.format != "MPO"
                    is_turned = file.getexif().get(ExifTags.Base.Orientation, 1) != 1
            except TaskError:
                raise
            # Pillow does not say what its decoders raise.
            except Exception as e:
                raise TaskError(f"{place}: {path} cannot be read as an image: {e}") from e
            pixels = pixels.reshape(*pixels.shape[:2], -1)
            self._shape = self._shape or pixels.shape
            if pixels.shape != self._shape:
                raise TaskError(
                    f"{place}: {path} is {_size(pixels.shape)}, others are {_size(self._shape)}; "
                    "make all images alike."
                )
            if images is None:
                number = len(table.frame)
                memory.require(
                    number * float(pixels.size), f"Holding {number:,} images", "use fewer rows"
                )
                images = np.empty((number, *pixels.shape), np.uint8)
            images[row] = pixels
            if alpha is not None and np.asarray(alpha).min() < 255:
                transparent.append(os.path.basename(path))
            if several:
                of_several.append(os.path.basename(path))
            if is_turned:
                turned.append(os.path.basename(path))
        if of_several:
            warn(
                f"{table.what}: {len(of_several)} images have several frames or pages, of which "
                f"only the first is used: {some(of_several)}."
            )
        if transparent:
            warn(
                f"{table.what}: {len(transparent)} images have transparent pixels, whose hidden "
                f"colours are used: {some(transparent)}."
            )
        if turned:
            warn(
                f"{table.what}: {len(turned)} images are shown turned (EXIF orientation) but read "
                f"as they are stored: {some(turned)}; to turn them, save them again after "
                "PIL.ImageOps.exif_transpose."
            )
        assert images is not None  # A table has rows.
        return images

    @staticmethod
    def transform(x: np.ndarray) -> np.ndarray:
        """Returns float32 pixels in [0, 1]."""
        return x / np.float32(255)

    def encoding(self) -> dict[str, Any]:
        """Describes the inputs, for the record."""
        return {"image": self._name, "shape": list(self._shape or ())}


def _require_paths(table: Table, name: str) -> None:
    """Refuses a column of images themselves, of which tables of data hubs consist."""
    column = table.frame[name]
    for row, (value, is_missing) in enumerate(zip(column.tolist(), column.isna(), strict=True)):
        if is_missing or isinstance(value, str | os.PathLike):
            continue
        if isinstance(value, bytes | bytearray | Mapping):
            way = "write the bytes to files and give their paths"
        else:
            way = "from_arrays takes arrays"
        raise TaskError(
            f"{table.what}: column {name!r}, row {row} has a {type(value).__name__}, which is not "
            f"a path; {way}."
        )


def _is_deep(file: Any) -> bool:
    """Returns whether an image has pixels that do not fit into a byte; before they are read."""
    # Of several channels of 16 bits Pillow keeps the upper bytes, in a mode of 8 bits.
    arguments = [tile[3] if isinstance(tile[3], tuple) else (tile[3],) for tile in file.tile]
    raw = [a for some in arguments for a in some if isinstance(a, str)]
    return file.mode.startswith(_DEEP) or any(re.search(r";16", a) for a in raw)


def _size(shape: Sequence[int]) -> str:
    height, width, channels = shape
    return f"{width}x{height} with {channels} channel{'s' * (channels > 1)}"
