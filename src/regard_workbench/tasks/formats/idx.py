"""IDX, the format of the MNIST family: a few bytes that say how many numbers follow, and the numbers.

    byte 0, 1   zero
    byte 2      the sort of the numbers: 8 is unsigned bytes, the only one that pictures and labels have
    byte 3      the number of axes
    then        the length of each axis, four bytes each, the highest first
    then        the numbers, the last axis running fastest

>>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 9]), "labels").tolist()
[5, 0, 9]
"""

from __future__ import annotations

import gzip
import io
import math
import zlib

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue
from regard_workbench.tasks.formats.budget import unpacked_pieces

BYTES = 8  # unsigned bytes
MOST_AXES = 4


def read_idx(content: bytes, name: str) -> NDArray[np.uint8]:
    """The numbers of an IDX file, plain or packed by gzip. `name`: what the file is called in a message."""
    plain = _unpacked(content, name) if content.startswith(b"\x1f\x8b") else content
    axes = plain[3] if len(plain) > 3 else 0
    if plain[:2] != b"\0\0" or not 1 <= axes <= MOST_AXES or len(plain) < 4 + 4 * axes:
        raise BadValue(f"data: {name} is no IDX file: it begins with {plain[:4].hex(' ') or 'nothing'}.")
    if plain[2] != BYTES:
        raise BadValue(f"data: {name}: expected unsigned bytes (sort 8), got sort {plain[2]}.")
    shape = tuple(int.from_bytes(plain[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes))
    expected, actual = math.prod(shape), len(plain) - 4 - 4 * axes
    if expected != actual:
        sizes = " × ".join(str(size) for size in shape)
        raise BadValue(f"data: {name} says that it holds {sizes} numbers, and holds {actual:,}. Is it complete?")
    return np.frombuffer(plain, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _unpacked(content: bytes, name: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return b"".join(unpacked_pieces(name, file, len(content), "Unpack it yourself."))
    except (OSError, EOFError, zlib.error) as error:
        raise BadValue(f"data: {name} cannot be unpacked: {error}. Is it complete?") from None
