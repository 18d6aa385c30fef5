"""Unpickles plain values and arrays of numbers from untrusted files."""

import pickle
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from tff_suite import compat

_DTYPES = ("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")


class _Dtype:
    """Replaces the pickled type of an array of numbers."""

    def __init__(self, name: str | bytes, *_: Any):
        name = name.decode() if isinstance(name, bytes) else name
        if name not in _DTYPES:
            raise ValueError(f"it has an array of type {name!r:.20}")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: Sequence[Any]) -> None:
        order: Any = state[1]
        if isinstance(order, bytes):
            order = order.decode()
        self.dtype = self.dtype.newbyteorder(order)


class Array:
    """Replaces a pickled array, since NumPy's own unpickling trusts its input.

    Attributes:
      values: The array.
    """

    def __init__(self, *_: Any):
        self.values: Any = None

    def __setstate__(self, state: Sequence[Any]) -> None:
        _, shape, dtype, by_columns, content = state
        if not isinstance(content, bytes):
            raise ValueError("it has an array of objects")
        order: Literal["C", "F"] = "F" if by_columns else "C"
        self.values = np.frombuffer(content, dtype.dtype).reshape(shape, order=order)


def _frombuffer(
    content: bytes | bytearray, dtype: _Dtype, shape: Sequence[int], order: Literal["C", "F"]
) -> Array:
    """Returns an array in the form that NumPy pickles from protocol 5 on."""
    if not isinstance(content, bytes | bytearray) or order not in ("C", "F"):
        raise ValueError("it has an array of objects")
    array = Array()
    array.values = np.frombuffer(bytes(content), dtype.dtype).reshape(shape, order=order)
    return array


def _encode(text: str, encoding: str) -> bytes:
    """Returns bytes in the form that Python 3 pickles for Python 2."""
    if encoding != "latin1":
        raise ValueError(f"it has bytes as {encoding!r:.20}")
    return text.encode("latin1")


def _scalar(dtype: _Dtype, content: bytes) -> int:
    return int(np.frombuffer(content, dtype.dtype, count=1)[0])


# The one written in Python: a flipped bit in a memo's number makes the other take gigabytes.
class PlainUnpickler(pickle._Unpickler):
    """Unpickles Python's built-in values, and arrays as `Array`; calls no other code."""

    _STAND_INS: ClassVar = {
        ("_codecs", "encode"): _encode,
        ("numpy", "dtype"): _Dtype,
        ("numpy", "ndarray"): Array,
        # NumPy 2 has another name for it.
        **{
            (f"numpy.{core}.{module}", name): stand_in
            for core in ("core", "_core")
            for module, name, stand_in in (
                ("multiarray", "_reconstruct", Array),
                ("multiarray", "scalar", _scalar),
                ("numeric", "_frombuffer", _frombuffer),
            )
        },
    }

    def find_class(self, module: str, name: str) -> Any:
        """Returns the replacement of a class or function.

        Raises:
          ValueError: If there is no replacement for it.
        """
        module = compat.numpy_1(module)
        if (module, name) not in self._STAND_INS:
            raise ValueError(f"it refers to {module!s:.80}.{name!s:.80}, which is not allowed")
        return self._STAND_INS[module, name]

    def get_extension(self, code: int) -> Any:
        """Refuses extension codes, which name a class by a number.

        Raises:
          ValueError: Always.
        """
        raise ValueError("it uses a pickle extension, which is not allowed")
