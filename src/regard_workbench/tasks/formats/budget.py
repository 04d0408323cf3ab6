"""What a file may ask for, by its size: checked before anything of that size is made.

A few bytes can state a shape, a count or a length of any size, and packed zeros unpack to a thousand times their size.
"""

from __future__ import annotations

from collections.abc import Iterator
from gzip import GzipFile
from pathlib import Path
from typing import IO

from regard.errors import BadValue
from regard_workbench import files

# Text shrinks to a tenth or so when it is packed, a matrix of words to a hundredth when it is sparse; what shrinks to
# 1/200 is made to fill a machine.
MOST_UNPACKED, SMALL, RATIO = 4 * 2**30, 64 * 2**20, 200


def unpacked_limit(packed: int) -> int:
    """The most bytes that a file of so many packed bytes may hold: a small one can unpack to more than fits."""
    return min(MOST_UNPACKED, max(SMALL, RATIO * packed))


def check_unpacked(path: str | Path, size: int, packed: int, advice: str) -> None:
    """Refuse a file of so many packed bytes that takes `size` bytes in memory; `advice` ends the message."""
    most = unpacked_limit(packed)
    if size > most:
        raise BadValue(
            f"data: {files.shown(path)} unpacks to more than {most / 2**20:,.0f} MiB, the most that is expected of a "
            f"file of its size. {advice}"
        )


def unpacked_pieces(path: str | Path, unpacking: IO[bytes] | GzipFile, packed: int, advice: str) -> Iterator[bytes]:
    """What a file of so many packed bytes holds, piece by piece; refused as soon as it is too much."""
    size = 0
    while piece := unpacking.read(files.PIECE):
        size += len(piece)
        check_unpacked(path, size, packed, advice)
        yield piece
