"""Figures to place into scenes, from the four IDX files of the MNIST family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.core import files
from regard.errors import BadValue
from regard.tasks.formats.class_folders import IDX, SPLIT_OF
from regard.tasks.formats.idx import read_idx
from regard.tasks.formats.reading import MOST_UNPACKED
from regard.tasks.formats.splits import complete, listed

Figures = tuple[NDArray[np.uint8], list[int]]  # grey figures (n,height,width), and their classes


def load_figures(paths: Sequence[Path], seed: int) -> dict[str, Figures] | None:
    """The figures of each split, a tenth of the training set for validation; None where the paths name no IDX file."""
    inside = [file for path in paths for file in (listed(path) if path.is_dir() else [path])]
    found = {said.groups()[:2]: file for file in inside if (said := IDX.fullmatch(file.name))}
    if not found:
        return None
    parts: dict[str, Figures] = {}
    for begin in dict.fromkeys(begin for begin, _ in found):
        split = SPLIT_OF[begin]
        pair = [found.get((begin, kind)) for kind in ("images", "labels")]
        missing = [kind for kind, file in zip(("images", "labels"), pair, strict=True) if file is None]
        if missing:
            raise BadValue(
                f"data: there are no {missing[0]} for {split}. Expected the four IDX files of a set."
            )
        pixels, labels = (
            read_idx(files.read_bytes(file, "data", MOST_UNPACKED), file.name)
            for file in pair
            if file is not None
        )
        if pixels.ndim != 3 or not pixels.size or labels.shape != pixels.shape[:1]:
            raise BadValue(
                f"data: {pair[0]}: expected pictures (count, height, width) and as many labels, got "
                f"{' × '.join(map(str, pixels.shape))} and {' × '.join(map(str, labels.shape))} numbers."
            )
        parts[split] = (pixels, labels.tolist())
    if "train" not in parts:
        return parts
    # A picture's number is its key: which tenth it belongs to does not depend on the other files.
    count = len(parts["train"][0])
    given = {split: list(range(len(parts[split][0]))) for split in parts}
    places = complete(given, [str(number) for number in range(count)], seed)
    return {
        split: parts[split] if split in parts and split != "train" else _some(parts["train"], chosen)
        for split, chosen in places.items()
    }


def _some(figures: Figures, chosen: Sequence[int]) -> Figures:
    pixels, labels = figures
    return pixels[list(chosen)], [labels[number] for number in chosen]
