"""Pictures of files with what lies where on them: decoded once, by threads, and held as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.image_files import picture_bytes
from regard_workbench.tasks.pictures.located import Located
from regard_workbench.tasks.pictures.pixels import held_bytes

Entry = TypeVar("Entry")
NOTHING = np.zeros((0, 0, 0), np.float32)  # in the place of pixels that are held as bytes


@dataclass(frozen=True)
class LocatedFiles(Generic[Entry]):
    """The pictures of a split that were not read yet.

    Args:
        entries: what the files of the data set say of each
        path: the file of an entry's picture
        make: the picture on its canvas from an entry and the bytes of its file, with notes on how it was read
    """

    entries: Sequence[Entry]
    path: Callable[[Entry], Path]
    make: Callable[[Entry, bytes], tuple[Located, tuple[str, ...]]]

    def read(self, bad: BadFiles) -> HeldPictures:
        """All pictures that can be read, in the order of the entries."""
        pictures = HeldPictures()
        byte_count = 0

        def fetch(entry: Entry) -> bytes:
            return picture_bytes(self.path(entry), "data")

        for entry, (located, notes) in bad.each(self.entries, fetch, self.make):
            path = self.path(entry)
            bad.notes += [f"{path}: {note}" for note in notes]
            byte_count = held_bytes(byte_count + pictures.add(located), path.parent, located.picture.shape[-1])
        if not len(pictures):
            raise BadValue(f"data: none of the {len(self.entries):,} pictures can be read.")
        bad.tell()
        return pictures


class HeldPictures(Sequence[Located]):
    """Pictures in a fourth of their memory: their numbers were bytes before, and are again."""

    def __init__(self) -> None:
        self._held: list[tuple[Located, NDArray[np.uint8], NDArray[Any] | None]] = []

    def add(self, made: Located) -> int:
        """Hold one more; how many bytes it takes."""
        picture = np.rint(made.picture * 255).astype(np.uint8)
        pixels = made.pixels
        if pixels is not None:
            pixels = pixels.astype(np.min_scalar_type(int(pixels.max(initial=0))))
        self._held.append((replace(made, picture=NOTHING, pixels=None), picture, pixels))
        return picture.nbytes + (0 if pixels is None else pixels.nbytes)

    def __len__(self) -> int:
        return len(self._held)

    @overload
    def __getitem__(self, index: int) -> Located: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Located]: ...

    def __getitem__(self, index: int | slice) -> Located | Sequence[Located]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        located, picture, pixels = self._held[index]
        classes = None if pixels is None else pixels.astype(np.int64)
        return replace(located, picture=picture.astype(np.float32) / np.float32(255), pixels=classes)
