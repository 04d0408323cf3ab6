"""Planetoid's eight files (Yang et al. 2016): pickles of arrays and of a graph, and the numbers of the test nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue
from regard_workbench import files
from regard_workbench.tasks.formats import pickles
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.graph_data import GraphData, Ints, checked_graph, dense_features, zero_features
from regard_workbench.tasks.formats.reading import excerpt, read_lines, wrong
from regard_workbench.tasks.text.split_words import trimmed

PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
VALIDATION = 500  # nodes after the training nodes
LARGEST = 2**53  # of the numbers of nodes


@reads_file
def read_planetoid(paths: Sequence[Path]) -> GraphData:
    """Planetoid's files: x, y the labelled training nodes, tx, ty the test nodes, allx, ally all but the test nodes."""
    stem = paths[0].name.split(".")[1]
    folder = paths[0].parent
    file_of = {kind: folder / f"ind.{stem}.{kind}" for kind in PARTS}
    missing = [path.name for path in file_of.values() if not path.is_file()]
    if missing:
        raise BadValue(f"data: {files.shown(folder)} has no file {missing[0]}. Planetoid's eight files go together.")
    packed = sum(path.stat().st_size for path in file_of.values())
    read = {kind: pickles.load_arrays(file_of[kind]) for kind in PARTS[:-1]}
    at = _test_nodes(file_of["test.index"])
    matrices = {
        kind: dense_features(file_of[kind], "", _mapping(file_of[kind], read[kind]), packed) for kind in ("allx", "tx")
    }
    hot = {kind: _hot(file_of[kind], read[kind]) for kind in ("y", "ally", "ty")}
    before_test, width = matrices["allx"].shape
    if matrices["tx"].shape[1] != width:
        raise wrong(
            file_of["tx"], None, f"has {matrices['tx'].shape[1]:,} features, and allx has {width:,}. Make them equal."
        )
    edges, nodes = _edges(file_of["graph"], _mapping(file_of["graph"], read["graph"]))
    # Some test nodes of Citeseer are in the graph alone.
    count = max(nodes, before_test + len(at))
    fits = len(matrices["tx"]) == len(at) == len(hot["ty"]) and len(hot["ally"]) == before_test
    if not fits or int(at.min()) < before_test or int(at.max()) >= count:
        raise wrong(
            file_of["test.index"],
            None,
            f"does not fit the other files: {before_test:,} nodes come before the test, and there are {count:,}.",
        )
    count = max(nodes, int(at.max()) + 1)
    features = zero_features(file_of["graph"], "nodes", count, width, packed)
    labels = np.full(count, -1, np.int64)
    features[:before_test], labels[:before_test] = matrices["allx"], _classes(hot["ally"])
    features[at], labels[at] = matrices["tx"], _classes(hot["ty"])
    train = np.arange(len(hot["y"]))
    validation = np.arange(len(train), min(before_test, len(train) + VALIDATION))
    splits = {"train": train, "validation": validation, "test": np.sort(at)}
    return checked_graph(file_of["graph"], features, labels, edges, splits)


def _edges(path: Path, graph: Mapping[Any, Any]) -> tuple[Ints, int]:
    """The edges (2,e) of a dictionary of neighbours, and how many nodes it has."""
    pairs = []
    for start, ends in graph.items():
        if not isinstance(ends, (list, tuple)) or not all(map(_is_node, (start, *ends))):
            raise wrong(path, None, "expected a list of the numbers of its neighbours for the number of each node.")
        pairs += [(start, end) for end in ends]
    return np.array(pairs, np.int64).reshape(-1, 2).T, len(graph)


def _is_node(number: object) -> bool:
    return isinstance(number, int) and abs(number) <= LARGEST


def _test_nodes(path: Path) -> Ints:
    nodes = []
    for number, line in enumerate(map(trimmed, read_lines(path)), 1):
        if line and (not line.isdecimal() or len(line) > 12):
            raise wrong(path, number, f"expected the number of a node, got {excerpt(line)}.")
        nodes += [int(line)] if line else []
    return np.array(nodes, np.int64)


def _mapping(path: Path, found: Any) -> Mapping[Any, Any]:
    if not isinstance(found, Mapping):
        raise wrong(path, None, f"expected a matrix or a dictionary, got {type(found).__name__}.")
    return found


def _hot(path: Path, found: Any) -> NDArray[Any]:
    if not isinstance(found, np.ndarray) or found.ndim != 2 or not found.shape[1]:
        raise wrong(path, None, "expected an array of nodes × classes.")
    return found


def _classes(hot: NDArray[Any]) -> Ints:
    """The class of each row of nodes × classes; −1 where a row has none."""
    return np.where(hot.any(1), hot.argmax(1), -1)
