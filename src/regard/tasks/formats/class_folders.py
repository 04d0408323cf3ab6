"""Pictures with their classes: folders of class folders, or the four IDX files of the MNIST family.

A folder, zip or tar archive. Pictures are decoded once, by several threads, in the order of their names, and held as
bytes of one size; so the order of the data does not depend on which thread is done first.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue, unknown_name
from regard.tasks.formats import stores
from regard.tasks.formats.idx_pairs import idx_names, read_pairs
from regard.tasks.formats.image_files import ENDINGS, MOST_BYTES, decoded, quiet
from regard.tasks.formats.reading import Data, paths_of
from regard.tasks.formats.splits import NAMES, complete
from regard.tasks.pictures.examples import LabelledPicture
from regard.tasks.pictures.pixels import fitted

SPLIT_OF = {name: split for split, known in NAMES.items() for name in known}
LARGEST_SIDE = 64  # of pictures from files whose size nobody chose
MOST_HELD = 4 * 2**30  # bytes of all pictures
CHUNK = 32  # files that are held in memory for the threads
BAD_FILES = ("stop", "skip")


@dataclass
class PicturesOfFiles:
    """The pictures of each split, and what is to be said about how they were read."""

    splits: dict[str, list[LabelledPicture]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # why, of each file that was left out
    notes: list[str] = field(default_factory=list)


def load_pictures(
    data: Data, size: int | None, *, patch: int = 1, bad_files: str = "stop", seed: int = 0
) -> PicturesOfFiles:
    """The pictures of each split; without files for validation or testing, a tenth of the training set each.

    Args:
        size: pixels of a side; None: IDX files as they are, others as the first of them, at most 64
        patch: what a side that nobody chose must be a multiple of
        bad_files: what to do about a file that cannot be read: stop, or skip it and say so
        seed: which pictures are taken for validation and testing
    """
    if bad_files not in BAD_FILES:
        raise unknown_name("bad_files", bad_files, BAD_FILES)
    found = PicturesOfFiles()
    for path in paths_of(data):
        with stores.opened(path) as store:
            if idx_names(store):
                _read_idx_files(store, size, found)
            else:
                _read_folders(store, size, patch, bad_files, found)
    if "train" in found.splits:
        keys = [hashlib.sha256(one.pixels.tobytes()).hexdigest() for one in found.splits["train"]]
        found.splits = complete(found.splits, keys, seed)
    return found


def _read_idx_files(store: stores.FolderFiles, size: int | None, found: PicturesOfFiles) -> None:
    for split, (pixels, labels, shown) in read_pairs(store).items():
        for number, (picture, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
            here = picture[None] if size is None else _resized(picture, size)
            found.splits.setdefault(split, []).append(LabelledPicture(here, str(label), f"{shown}, {number}"))


def _resized(picture: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    from PIL import Image

    return fitted(Image.fromarray(picture), size, size)


def _read_folders(
    store: stores.FolderFiles, size: int | None, patch: int, bad_files: str, found: PicturesOfFiles
) -> None:
    names = store.names(ENDINGS)
    placed = _placed(store, names)
    size = size or _side(store, names, patch)
    held = 0
    for name, result in _decoded(store, names, size):
        if isinstance(result, BadValue):
            if bad_files == "stop":
                raise BadValue(f"{result} To go on without such files: bad_files=skip.")
            found.skipped.append(str(result))
            continue
        pixels, notes = result
        found.notes += [f"{store.shown(name)}: {note}" for note in notes]
        held += pixels.nbytes
        if held > MOST_HELD:
            raise BadValue(
                f"data: the pictures of {store.path} take more than {MOST_HELD / 2**30:.0f} GiB at {size} × {size} "
                "pixels. Give a smaller size, or take a part of them."
            )
        split, label = placed[name]
        found.splits.setdefault(split, []).append(LabelledPicture(pixels, label, store.shown(name)))
    if not found.splits:
        raise BadValue(f"data: none of the {len(names):,} pictures of {store.path} can be read.")


def _placed(store: stores.FolderFiles, names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The split and the class of each file, from the folders it lies in."""
    if not names:
        raise BadValue(
            f"data: {store.path} holds no pictures. Expected a folder for each class, with files that end in "
            f"{', '.join(ENDINGS)}, or the four IDX files of the MNIST family."
        )
    folders = {name: PurePosixPath(name).parts[:-1] for name in names}
    while len({parts[:1] for parts in folders.values()}) == 1 and all(len(p) > 1 for p in folders.values()):
        if next(iter(folders.values()))[0].lower() in SPLIT_OF:
            break
        folders = {name: parts[1:] for name, parts in folders.items()}  # a folder around everything
    splits = all(parts and parts[0].lower() in SPLIT_OF for parts in folders.values())
    found = {}
    for name, parts in folders.items():
        inside = parts[1:] if splits else parts
        if not inside:
            raise BadValue(f"data: {store.shown(name)} lies in no class folder. Expected class/picture.png.")
        found[name] = (SPLIT_OF[parts[0].lower()] if splits else "train", inside[0])
    return found


def _side(store: stores.FolderFiles, names: Sequence[str], patch: int) -> int:
    """The side of the first picture that can be read, at most 64, as a multiple of `patch`."""
    for name in names:
        try:
            with quiet():
                image = decoded(store.read(name, MOST_BYTES), store.shown(name)).image
        except BadValue:
            continue
        shorter: int = min(LARGEST_SIDE, *image.size)
        return max(patch, shorter - shorter % patch)
    return patch  # none can be read, which is said where they are


def _decoded(store: stores.FolderFiles, names: Sequence[str], size: int) -> Iterator[tuple[str, Any]]:
    """Each file with its pixels and notes, or with the error that it cannot be read; by threads, in order."""

    def attempt(name: str, content: bytes | BadValue) -> Any:
        if isinstance(content, BadValue):
            return content
        try:
            picture = decoded(content, store.shown(name))
            return fitted(picture.image, size, size), picture.notes
        except BadValue as error:
            return error

    def content(name: str) -> bytes | BadValue:
        try:
            return store.read(name, MOST_BYTES)
        except BadValue as error:
            return error

    with quiet(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(names), CHUNK):
            some = names[start : start + CHUNK]
            yield from zip(some, pool.map(attempt, some, [content(name) for name in some]), strict=True)
