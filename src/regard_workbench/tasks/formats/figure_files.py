"""Figures to place into scenes, from the IDX files of the MNIST family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.formats import stores
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.idx_pairs import idx_names, read_pairs
from regard_workbench.tasks.formats.splits import complete

Figures = tuple[NDArray[np.uint8], Sequence[int]]  # grey figures (n,height,width), and their classes


@reads_file
def load_figures(paths: Sequence[Path], seed: int) -> dict[str, Figures] | None:
    """The figures of each split, a tenth of the training set for validation; None where no path holds IDX files.

    paths: a folder, a zip or a tar archive with the four files.
    """
    for path in paths:
        if not stores.is_store(path):
            continue
        with stores.opened(path) as store:
            if idx_names(store):
                pairs = read_pairs(store).items()
                return _divided({split: (pair.pixels, pair.labels.tolist()) for split, pair in pairs}, seed, path)
    return None


def _divided(parts: dict[str, Figures], seed: int, path: Path) -> dict[str, Figures]:
    """With a validation set from the training set, if there is none.

    A figure's number is its key: which tenth it belongs to does not depend on the other files.
    """
    if "train" not in parts:
        return parts
    numbers = {split: list(range(len(figures))) for split, (figures, _) in parts.items()}
    places = complete(numbers, [str(number) for number in numbers["train"]], seed, path)
    return {
        split: parts[split] if split in parts and split != "train" else _some(parts["train"], chosen)
        for split, chosen in places.items()
    }


def _some(figures: Figures, chosen: Sequence[int]) -> Figures:
    pixels, labels = figures
    return pixels[list(chosen)], [labels[number] for number in chosen]
