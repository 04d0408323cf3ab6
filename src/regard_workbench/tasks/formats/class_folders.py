"""Pictures with their classes: folders of class folders, or the four IDX files of the MNIST family.

A folder, zip or tar archive. Pictures are decoded once, by several threads, in the order of their names, and held as
bytes of one size; so the order of the data does not depend on which thread is done first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue
from regard_workbench.tasks.formats import stores
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.idx_pairs import idx_names, read_pairs
from regard_workbench.tasks.formats.image_files import ENDINGS, MOST_BYTES, decoded, quiet
from regard_workbench.tasks.formats.reading import Data, paths_of
from regard_workbench.tasks.formats.splits import NAMES, complete
from regard_workbench.tasks.pictures.examples import LabelledPicture
from regard_workbench.tasks.pictures.pixels import fitted, held_bytes

SPLIT_OF = {name: split for split, synonyms in NAMES.items() for name in synonyms}
LARGEST_SIDE = 64  # of pictures from files, unless the user chose a size

Splits = dict[str, list[LabelledPicture]]


@reads_file
def load_pictures(data: Data, size: int | None, *, patch: int = 1, bad: BadFiles, seed: int = 0) -> Splits:
    """The pictures of each split; without files for validation or testing, a tenth of the training set each.

    Args:
        size: pixels of a side; None: IDX files as they are, others as the first of them, at most 64
        patch: what a side that nobody chose must be a multiple of
        bad: what to do about a file that cannot be read
        seed: which pictures are taken for validation and testing
    """
    splits: Splits = {}
    for path in paths_of(data):
        with stores.opened(path) as store:
            if idx_names(store):
                _read_idx_files(store, size, splits)
            else:
                _read_folders(store, size, patch, bad, splits)
    if "train" in splits:
        keys = [hashlib.sha256(picture.pixels.tobytes()).hexdigest() for picture in splits["train"]]
        splits = complete(splits, keys, seed, data)
    return splits


def _read_idx_files(store: stores.FolderFiles, size: int | None, found: Splits) -> None:
    for split, (pixels, labels, shown) in read_pairs(store).items():
        for number, (picture, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
            resized = picture[None] if size is None else _resized(picture, size)
            found.setdefault(split, []).append(LabelledPicture(resized, str(label), f"{shown}, {number}"))


def _resized(picture: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    from PIL import Image

    return fitted(Image.fromarray(picture), size, size)


def _read_folders(store: stores.FolderFiles, size: int | None, patch: int, bad: BadFiles, found: Splits) -> None:
    names = store.names(ENDINGS)
    placed = _placed(store, names)
    side = size or _side(store, names, patch)

    def decode(name: str, content: bytes) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
        picture = decoded(content, store.shown(name))
        return fitted(picture.image, side, side), picture.notes

    byte_count = 0
    for name, (pixels, notes) in bad.each(names, lambda name: store.read(name, MOST_BYTES), decode):
        bad.notes += [f"{store.shown(name)}: {note}" for note in notes]
        byte_count = held_bytes(byte_count + pixels.nbytes, store.path, side)
        split, label = placed[name]
        found.setdefault(split, []).append(LabelledPicture(pixels, label, store.shown(name)))
    if not found:
        raise BadValue(f"data: none of the {len(names):,} pictures of {store.path} can be read.")


def _placed(store: stores.FolderFiles, names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The split and the class of each file, from the folders it lies in."""
    if not names:
        raise BadValue(
            f"data: {store.path} holds no pictures. Expected a folder for each class, with files that end in "
            f"{', '.join(ENDINGS)}, or the four IDX files of the MNIST family."
        )
    folders = {name: PurePosixPath(name).parts[:-1] for name in names}
    while len({levels[:1] for levels in folders.values()}) == 1 and all(len(p) > 1 for p in folders.values()):
        if next(iter(folders.values()))[0].lower() in SPLIT_OF:
            break
        folders = {name: levels[1:] for name, levels in folders.items()}  # a folder around everything
    splits = all(levels and levels[0].lower() in SPLIT_OF for levels in folders.values())
    placed = {}
    for name, levels in folders.items():
        inside = levels[1:] if splits else levels
        if not inside:
            raise BadValue(f"data: {store.shown(name)} lies in no class folder. Expected class/picture.png.")
        placed[name] = (SPLIT_OF[levels[0].lower()] if splits else "train", inside[0])
    return placed


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
