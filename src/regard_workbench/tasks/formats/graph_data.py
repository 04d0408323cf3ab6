"""A graph as readers return it: features, classes and edges, after checks of every number that refers to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.formats.budget import unpacked_limit
from regard_workbench.tasks.formats.reading import wrong

Ints = NDArray[np.int64]
Features = NDArray[np.float32]


@dataclass(frozen=True)
class GraphData:
    """A graph: numbers and a class for each node, edges from and to, and which nodes are for what."""

    features: Features  # (n,width)
    labels: Ints  # (n,): −1 where unknown
    edges: Ints  # (2,e)
    splits: Mapping[str, Ints]
    classes: Sequence[str]
    names: Sequence[str]  # of the nodes


def checked_graph(
    path: Path,
    features: Features,
    labels: NDArray[Any],
    edges: NDArray[Any],
    splits: Mapping[str, NDArray[Any]],
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> GraphData:
    """The graph; refused where a number refers to a node or a class that cannot be. `path`: the file to name."""
    count = len(features)
    if not np.isfinite(features).all():
        node = int(np.flatnonzero(~np.isfinite(features).all(1))[0])
        raise wrong(path, None, f"the features of node {node} are not finite. Replace NaN and infinity.")
    if labels.ndim != 1 or len(labels) != count:
        raise wrong(path, None, f"there are classes for {labels.size:,} nodes, but features for {count:,}.")
    if edges.ndim != 2 or len(edges) != 2:
        raise wrong(path, None, f"edges: expected two rows, from and to, got shape {edges.shape}.")
    outside = np.flatnonzero(((edges < 0) | (edges >= count)).any(0))
    if len(outside):
        number = int(outside[0])
        pair = " to ".join(str(int(end)) for end in edges[:, number])
        raise wrong(
            path,
            None,
            f"edge {number} (counted from 0) goes from {pair}, but nodes are 0 to {count - 1}. "
            "Remove it, or add the node.",
        )
    _check_splits(path, labels, splits)
    largest = int(labels.max())
    if largest >= count:  # a list of that many names is made
        raise wrong(
            path,
            None,
            f"node {int(labels.argmax())} has the class {largest:,}. Number the classes from 0, below the {count:,} "
            "nodes.",
        )
    return GraphData(
        features,
        labels.astype(np.int64),
        edges.astype(np.int64),
        {split: chosen.astype(np.int64) for split, chosen in splits.items()},
        [str(number) for number in range(largest + 1)] if classes is None else list(classes),
        [str(number) for number in range(count)] if names is None else list(names),
    )


def _check_splits(path: Path, labels: NDArray[Any], splits: Mapping[str, NDArray[Any]]) -> None:
    split_of: dict[int, str] = {}
    count = len(labels)
    for split, chosen in splits.items():
        if chosen.ndim != 1 or not len(chosen):
            raise wrong(path, None, f"{split}: expected the numbers of some nodes, got shape {chosen.shape}.")
        for node in chosen.tolist():
            if not 0 <= node < count:
                raise wrong(path, None, f"{split}: there is no node {node}; nodes are 0 to {count - 1}.")
            if labels[node] < 0:
                raise wrong(path, None, f"{split}: node {node} has no class. Remove it from the split.")
            if split_of.setdefault(node, split) != split:
                raise wrong(path, None, f"node {node} is in {split_of[node]} and in {split}. Keep it in one.")


def zero_features(path: Path, place: str, count: int, width: int, packed: int) -> Features:
    """Zeros (count,width), unless these are more than a file of `packed` bytes may ask for."""
    size, most = count * width * 4, unpacked_limit(packed)
    if size > most:
        raise wrong(
            path,
            None,
            f"{place}: {count:,} × {width:,} features take {size / 2**30:,.2f} GiB, expected at most "
            f"{most / 2**30:,.2f} GiB for a file of its size. Correct it; a large .npz may be saved without packing "
            "(numpy.savez).",
        )
    return np.zeros((count, width), np.float32)


def dense_features(path: Path, prefix: str, parts: Mapping[str, Any], packed: int) -> Features:
    """A dense matrix from the parts of a CSR matrix that a file of `packed` bytes holds."""
    shape = parts.get("shape", parts.get("_shape"))
    begins, columns, numbers = (np.asarray(parts.get(name)) for name in ("indptr", "indices", "data"))
    sizes = [int(size) for size in (() if shape is None else shape)]
    numeric = begins.dtype.kind in "iu" and columns.dtype.kind in "iu" and numbers.dtype.kind in "iufb"
    if len(sizes) != 2 or min(sizes) < 1 or not numeric:
        raise wrong(path, None, f"{prefix}shape: expected nodes and features in CSR form, got shape {sizes}.")
    count, width = sizes
    if not begins.ndim == columns.ndim == numbers.ndim == 1:
        raise wrong(path, None, f"{prefix}indptr, {prefix}indices, {prefix}data: expected one axis each.")
    features = zero_features(path, f"{prefix}shape", count, width, packed)
    fits = len(begins) == count + 1 and begins[0] == 0 and bool((begins[1:] >= begins[:-1]).all())
    if not fits or not begins[-1] == len(columns) == len(numbers):
        raise wrong(path, None, f"{prefix}indptr: it does not fit {count:,} nodes and {len(columns):,} entries.")
    if len(columns) and not 0 <= columns.min() <= columns.max() < width:
        raise wrong(path, None, f"{prefix}indices: feature {columns.max()} is not among the {width:,} features.")
    with np.errstate(over="ignore"):  # what becomes infinite is refused by `checked_graph`
        ends = begins.astype(np.int64)
        features[np.repeat(np.arange(count), ends[1:] - ends[:-1]), columns] = numbers
    return features
