"""The IDX files of a data set of the MNIST family: pictures and labels for training and for testing."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue
from regard_workbench.tasks.formats.budget import MOST_UNPACKED
from regard_workbench.tasks.formats.idx import read_idx
from regard_workbench.tasks.formats.stores import FolderFiles

IDX = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
ENDINGS = ("", ".gz", ".idx1-ubyte", ".idx3-ubyte")
SPLITS = {"train": "train", "t10k": "test", "test": "test"}
PARTS = ("images", "labels")


class IdxPair(NamedTuple):
    """Pictures (count,height,width), their labels (count,), and what the file of the pictures is called."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    shown: str


def idx_names(store: FolderFiles) -> dict[tuple[str, str], str]:
    """The IDX files of a folder or an archive by their split and part; of a plain and a packed one, the plain one."""
    names: dict[tuple[str, str], str] = {}
    for name in store.names(ENDINGS):
        match = IDX.fullmatch(PurePosixPath(name).name)
        if match is not None:
            names.setdefault((SPLITS[match[1]], match[2]), name)
    return names


def read_pairs(store: FolderFiles) -> dict[str, IdxPair]:
    """The pictures of each split with as many labels."""
    files = idx_names(store)
    pairs = {}
    for split in dict.fromkeys(split for split, _ in files):
        pair = []
        for kind in PARTS:
            if (split, kind) not in files:
                raise BadValue(f"data: {store.path} holds no {kind} for {split}. Expected four IDX files.")
            name = files[split, kind]
            pair.append(read_idx(store.read(name, MOST_UNPACKED), store.shown(name)))
        pixels, labels = pair
        shown = store.shown(files[split, "images"])
        if pixels.ndim != 3 or labels.ndim != 1 or not pixels[0:1].size:
            raise BadValue(f"data: {shown}: expected pictures (count, height, width) and as many labels.")
        if len(pixels) != len(labels):
            raise BadValue(f"data: {shown} holds {len(pixels):,} pictures, its labels are {len(labels):,}.")
        pairs[split] = IdxPair(pixels, labels, shown)
    return pairs
