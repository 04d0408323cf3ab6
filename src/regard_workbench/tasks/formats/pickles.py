"""Arrays from pickles of strangers, without running anything that is in them.

A pickle is a program: it names functions and calls them. Here every name that numpy, scipy and plain dictionaries need
stands for an object of this file that only holds what it is given, and every other name is refused.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard_workbench import files
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.reading import wrong

MOST_BYTES = 2**30
_DTYPES = re.compile(r"[<>|=]?([iuf][1248]|b1)")
_KNOWN = {
    ("numpy", "ndarray"): "array class",
    ("numpy", "dtype"): "dtype",
    **{(f"numpy.{core}.multiarray", "_reconstruct"): "reconstruct" for core in ("core", "_core")},
    **{(f"scipy.sparse.{name}", "csr_matrix"): "matrix" for name in ("csr", "_csr")},
    ("collections", "defaultdict"): "dictionary",
    ("_codecs", "encode"): "bytes",  # how Python 3 writes bytes for Python 2
    **{(module, "list"): "list class" for module in ("__builtin__", "builtins")},
}


class HostilePickle(Exception):
    """A pickle asks for more than arrays, matrices and dictionaries; the text says for what."""


@reads_file
def load_arrays(path: Path) -> Any:
    """What a pickle holds: an array, a `scipy.sparse.csr_matrix` as a mapping of its parts, or a plain dictionary."""
    raw = files.read_bytes(path, "data", MOST_BYTES)
    try:
        _check_memo(raw)
        return plain(_Unpickler(io.BytesIO(raw), encoding="latin-1").load())
    except HostilePickle as reason:
        raise wrong(
            path, None, f"is refused: {reason}. Expected a pickle of numpy arrays, scipy matrices or dictionaries."
        ) from None


def _check_memo(raw: bytes) -> None:
    """Refuse places in the table of objects beyond the size of the file: Python makes a table that holds them all."""
    for operation, place, _ in pickletools.genops(raw):
        if operation.name in ("PUT", "LONG_BINPUT") and not 0 <= int(place or 0) <= len(raw):
            raise HostilePickle(f"it numbers an object {place:,}, and holds {len(raw):,} bytes")


def plain(found: Any) -> Any:
    """The loaded object, with arrays in place of what stands for them: itself, or the parts of a matrix."""
    arrays = getattr(found, "parts", None)
    if isinstance(arrays, dict):
        return {name: _array(array) for name, array in arrays.items()}
    return _array(found)


def _array(found: Any) -> Any:
    return found.as_array() if hasattr(found, "as_array") else found


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, **options: Any) -> None:
        super().__init__(file, **options)
        self._stand_ins = _stand_ins()  # made anew for each file: what one does to them reaches no other

    def find_class(self, module: str, name: str) -> Any:
        stand_in = _KNOWN.get((module, name))
        if stand_in is None:
            raise HostilePickle(f"it asks for {f'{module}.{name}'[:80]!r}, which is no part of an array")
        return self._stand_ins[stand_in]

    def persistent_load(self, pid: Any) -> Any:
        raise HostilePickle("it refers to something outside of itself")


def _encoded(text: object, encoding: object) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise HostilePickle("it encodes text in an unknown way")
    return text.encode("latin-1")


def _stand_ins() -> dict[str, Any]:
    class DType:
        def __init__(self, code: object) -> None:
            if not isinstance(code, str) or not _DTYPES.fullmatch(code):
                raise HostilePickle(f"it holds an array of {ascii(code)[:40]}, not of numbers")
            self.code, self.order = code, "<"

        def __setstate__(self, state: Any) -> None:
            if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
                raise HostilePickle("it describes numbers in an unknown way")
            self.order = state[1]

        def dtype(self) -> np.dtype[Any]:
            code = self.code.lstrip("<>|=")
            return np.dtype(code if code[-1] == "1" else f"{self.order.replace('|', '<')}{code}")

    class Array:
        def __init__(self, *unused: object) -> None:
            self.state: tuple[Any, ...] = ()

        def __setstate__(self, state: Any) -> None:
            self.state = state

        def as_array(self) -> NDArray[Any]:
            if len(self.state) != 5:
                raise HostilePickle("it holds an array of an unknown form")
            _, shape, kind, columns_first, raw = self.state
            if not isinstance(kind, DType) or not isinstance(raw, (str, bytes)):
                raise HostilePickle("it holds an array that is not of numbers")
            sizes = tuple(int(size) for size in shape)
            raw = raw.encode("latin-1") if isinstance(raw, str) else raw
            if min(sizes, default=0) < 0 or math.prod(sizes) * kind.dtype().itemsize != len(raw):
                raise HostilePickle(f"it holds {len(raw):,} bytes for an array of shape {sizes}")
            array = np.frombuffer(raw, kind.dtype())
            array = array.reshape(sizes, order="F" if columns_first else "C")
            return array.astype(array.dtype.newbyteorder("="))

    class Matrix:
        def __init__(self) -> None:
            self.parts: dict[str, Any] = {}

        def __setstate__(self, state: Any) -> None:
            if not isinstance(state, dict):
                raise HostilePickle("it holds a matrix of an unknown form")
            self.parts = {str(name): field for name, field in state.items()}

    class Marker:
        """Stands for a class that is only named, never called."""

    return {
        "array class": Marker,
        "list class": Marker,
        "dtype": lambda code, *unused: DType(code),
        "reconstruct": Array,
        "matrix": Matrix,
        "dictionary": lambda *unused: {},
        "bytes": lambda text, encoding: _encoded(text, encoding),
    }
