"""Graphs from files: one npz, Planetoid's eight files, or an edge list beside a table of nodes."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.core import files
from regard.errors import BadValue
from regard.tasks.formats import pickles
from regard.tasks.formats.reading import MOST_UNPACKED, excerpt, read_lines, unpacked_limit, wrong
from regard.tasks.formats.splits import plain_name
from regard.tasks.generated.draws import shares

Ints = NDArray[np.int64]
PARTS = ("edges", "x_indptr", "x_indices", "x_data", "x_shape", "y", "train", "val", "test")
PLANETOID = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
VALIDATION = 500  # nodes after the training nodes, in Planetoid's split
EDGES, NODES = (".cites", ".edges", ".edgelist"), (".content", ".nodes")


@dataclass(frozen=True)
class GraphData:
    """A graph: numbers and a class for each node, edges from and to, and which nodes are for what."""

    features: NDArray[np.float32]  # (n,width)
    labels: Ints  # (n,): −1 where unknown
    edges: Ints  # (2,e)
    splits: Mapping[str, Ints]
    classes: Sequence[str]
    names: Sequence[str]  # of the nodes


def read_graph(paths: Sequence[Path], seed: int, dangling: str) -> GraphData:
    """The graph in some files; `dangling`: "refuse" or "drop" edges of nodes that are not there."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.iterdir()) if path.is_dir() else [path]
    archives = [path for path in found if path.suffix == ".npz"]
    if archives:
        return read_npz(archives[0])
    planetoid = [path for path in found if path.name.startswith("ind.")]
    if planetoid:
        return read_planetoid(planetoid)
    tables = [path for path in found if plain_name(path).endswith(NODES) or path.name.startswith("nodes")]
    lists = [path for path in found if plain_name(path).endswith(EDGES) or path.name.startswith("edges")]
    if tables and lists:
        return read_edge_list(lists[0], tables[0], seed, dangling)
    wanted = f"a table of nodes ({', '.join(NODES)})" if lists else f"an edge list ({', '.join(EDGES)})"
    if lists or tables:
        raise BadValue(
            f"data: {files.shown((lists + tables)[0])} needs {wanted} beside it, and there is none."
        )
    raise BadValue(
        f"data: {files.shown(paths[0])} holds no graph. Expected an .npz, Planetoid's ind.NAME.* files, or an edge "
        f"list ({', '.join(EDGES)}) and a table of nodes ({', '.join(NODES)})."
    )


def read_npz(path: Path) -> GraphData:
    """An npz with edges (2,e), features as CSR, classes y (−1: unknown) and the nodes of each split."""
    try:
        with files.opened(path) as file, zipfile.ZipFile(file) as archive:
            most = unpacked_limit(path.stat().st_size)
            if sum(part.file_size for part in archive.infolist()) > most:
                raise wrong(path, None, f"unpacks to more than {most / 2**20:,.0f} MiB. Make it smaller.")
            file.seek(0)
            with np.load(file, allow_pickle=False) as loaded:
                missing = [name for name in PARTS if name not in loaded]
                if missing:
                    raise wrong(path, None, f"has no array {missing[0]!r}. Expected {', '.join(PARTS)}.")
                parts = {name: loaded[name] for name in PARTS}
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise wrong(path, None, f"cannot be read as an npz: {error}. Is it complete?") from None
    except ValueError as error:
        if isinstance(error, BadValue):
            raise
        raise wrong(
            path, None, f"holds an array that is refused: {error}. Save numbers, not objects."
        ) from None
    for name, part in parts.items():
        if part.dtype.kind not in "iuf" or (name != "x_data" and part.dtype.kind == "f"):
            raise wrong(path, None, f"{name}: expected whole numbers, got {part.dtype}.")
    shape = parts["x_shape"].tolist()
    if len(shape) != 2:
        raise wrong(path, None, f"x_shape: expected two numbers (nodes, width), got {shape}.")
    features = _from_csr(path, "x_", {name[2:]: parts[name] for name in PARTS if name.startswith("x_")})
    splits = {"train": parts["train"], "validation": parts["val"], "test": parts["test"]}
    return _checked(path, features, parts["y"], parts["edges"], splits)


def read_planetoid(paths: Sequence[Path]) -> GraphData:
    """Planetoid's files: x, y the labelled training nodes, tx, ty the test nodes, allx, ally all but the test nodes."""
    stem = paths[0].name.split(".")[1]
    folder = paths[0].parent
    found = {part: folder / f"ind.{stem}.{part}" for part in PLANETOID}
    missing = [path.name for path in found.values() if not path.is_file()]
    if missing:
        raise BadValue(
            f"data: {files.shown(folder)} has no file {missing[0]}. Planetoid's eight files go together."
        )
    read = {part: pickles.load_arrays(found[part]) for part in PLANETOID[:-1]}
    at = _whole_lines(found["test.index"])
    matrices = {
        part: _from_csr(found[part], "", _mapping(found[part], read[part])) for part in ("allx", "tx")
    }
    hot = {part: _array(found[part], read[part]) for part in ("y", "ally", "ty")}
    known, least = len(matrices["allx"]), int(at.min())
    if (
        least < known
        or len(matrices["tx"]) != len(at)
        or len(hot["ally"]) != known
        or len(hot["ty"]) != len(at)
    ):
        raise wrong(
            found["test.index"], None, f"does not fit the other files: {known:,} nodes come before the test."
        )
    graph = _mapping(found["graph"], read["graph"])
    count = max(len(graph), int(at.max()) + 1)  # some test nodes of Citeseer are in the graph alone
    features = np.zeros((count, matrices["allx"].shape[1]), np.float32)
    labels = np.full(count, -1, np.int64)
    features[:known], labels[:known] = matrices["allx"], _classes(hot["ally"])
    features[at], labels[at] = matrices["tx"], _classes(hot["ty"])
    pairs = [(int(start), int(end)) for start, ends in graph.items() for end in ends]
    train = np.arange(len(hot["y"]))
    validation = np.arange(len(train), min(known, len(train) + VALIDATION))
    splits = {"train": train, "validation": validation, "test": np.sort(at)}
    return _checked(found["graph"], features, labels, np.array(pairs, np.int64).reshape(-1, 2).T, splits)


def read_edge_list(edges: Path, nodes: Path, seed: int, dangling: str) -> GraphData:
    """Lines `from to`, and lines `name number … number class`, words apart; `#` begins a comment."""
    rows = [(number, line.replace(",", " ").split()) for number, line in _lines(nodes)]
    if not rows:
        raise wrong(nodes, None, "holds no nodes. Expected lines `name number … number class`.")
    width = len(rows[0][1]) - 2
    place: dict[str, int] = {}
    features = np.zeros((len(rows), max(0, width)), np.float32)
    for index, (number, words) in enumerate(rows):
        if width < 1 or len(words) != width + 2:
            raise wrong(
                nodes, number,
                f"has {max(0, len(words) - 2)} numbers between name and class, expected {max(1, width)} as in the "
                "first line. Give every node equally many.",
            )  # fmt: skip
        if words[0] in place:
            raise wrong(
                nodes, number, f"the node {excerpt(words[0])} is there twice. Remove one of its lines."
            )
        place[words[0]] = index
        try:
            features[index] = [float(word) for word in words[1:-1]]
        except ValueError as error:
            raise wrong(nodes, number, f"expected numbers between name and class: {error}.") from None
        if not np.isfinite(features[index]).all():
            raise wrong(nodes, number, "a number is not finite. Replace NaN and infinity.")
    classes = sorted({words[-1] for _, words in rows})
    labels = np.array([classes.index(words[-1]) for _, words in rows], np.int64)
    pairs = []
    for number, line in _lines(edges):
        words = line.replace(",", " ").split()
        if len(words) != 2:
            hint = " Leave out what follows them: weights of edges are not read." if len(words) > 2 else ""
            raise wrong(edges, number, f"expected two nodes, from and to, got {excerpt(line)}.{hint}")
        unknown = [word for word in words if word not in place]
        if not unknown:
            pairs.append((place[words[0]], place[words[1]]))
        elif dangling == "refuse":
            raise wrong(
                edges, number,
                f"the node {excerpt(unknown[0])} is not in {nodes.name}. Add it there, remove the edge, or let "
                'such edges be left out: "graph(dangling=drop)".',
            )  # fmt: skip
    names = list(place)
    where = shares(names, seed, [0.1, 0.1])
    order = ("validation", "test", "train")
    splits = {
        split: np.array([place[name] for name in names if order[where[name]] == split], np.int64)
        for split in order
    }
    ends = np.array(pairs, np.int64).reshape(-1, 2).T
    return _checked(nodes, features, labels, ends, splits, classes, names)


def _checked(
    path: Path,
    features: NDArray[np.float32],
    labels: NDArray[Any],
    edges: NDArray[Any],
    splits: Mapping[str, NDArray[Any]],
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> GraphData:
    """The graph, after checks of every number that refers to a node or a class."""
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
            path, None, f"edge {number} (counted from 0) goes from {pair}, but nodes are 0 to {count - 1}. "
            "Remove it, or add the node.",
        )  # fmt: skip
    seen: dict[int, str] = {}
    for split, chosen in splits.items():
        if chosen.ndim != 1 or not len(chosen):
            raise wrong(path, None, f"{split}: expected the numbers of some nodes, got shape {chosen.shape}.")
        for node in chosen.tolist():
            if not 0 <= node < count:
                raise wrong(path, None, f"{split}: there is no node {node}; nodes are 0 to {count - 1}.")
            if labels[node] < 0:
                raise wrong(path, None, f"{split}: node {node} has no class. Remove it from the split.")
            if seen.setdefault(node, split) != split:
                raise wrong(path, None, f"node {node} is in {seen[node]} and in {split}. Keep it in one.")
    found = [str(number) for number in range(int(labels.max()) + 1)] if classes is None else list(classes)
    return GraphData(
        features,
        labels.astype(np.int64),
        edges.astype(np.int64),
        {split: chosen.astype(np.int64) for split, chosen in splits.items()},
        found,
        [str(number) for number in range(count)] if names is None else list(names),
    )


def _from_csr(path: Path, prefix: str, parts: Mapping[str, Any]) -> NDArray[np.float32]:
    """A dense matrix from the parts of a CSR matrix."""
    shape = parts.get("shape", parts.get("_shape"))
    begins, columns, data = (np.asarray(parts.get(name)) for name in ("indptr", "indices", "data"))
    count, width = (int(size) for size in (shape if shape is not None else (-1, -1)))
    if count < 1 or width < 1 or begins.dtype.kind not in "iu" or columns.dtype.kind not in "iu":
        raise wrong(path, None, f"{prefix}shape: expected nodes and features in CSR form, got shape {shape}.")
    if count * width * 4 > MOST_UNPACKED:
        raise wrong(
            path, None, f"{count:,} × {width:,} features are more than {MOST_UNPACKED / 2**30:.0f} GiB."
        )
    fits = len(begins) == count + 1 and begins[0] == 0 and bool((np.diff(begins) >= 0).all())
    if not fits or not begins[-1] == len(columns) == len(data):
        raise wrong(
            path, None, f"{prefix}indptr: it does not fit {count:,} nodes and {len(columns):,} entries."
        )
    if len(columns) and not 0 <= columns.min() <= columns.max() < width:
        raise wrong(
            path, None, f"{prefix}indices: feature {columns.max()} is not among the {width:,} features."
        )
    found = np.zeros((count, width), np.float32)
    found[np.repeat(np.arange(count), np.diff(begins)), columns] = data
    return found


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a file with their numbers, without comments and empty ones."""
    cut = ((number, line.split("#")[0].strip()) for number, line in enumerate(read_lines(path), 1))
    return [(number, line) for number, line in cut if line]


def _whole_lines(path: Path) -> Ints:
    found = []
    for number, line in _lines(path):
        if not line.isdecimal() or len(line) > 12:
            raise wrong(path, number, f"expected the number of a node, got {excerpt(line)}.")
        found.append(int(line))
    return np.array(found, np.int64)


def _mapping(path: Path, found: Any) -> Mapping[Any, Any]:
    if not isinstance(found, Mapping):
        raise wrong(path, None, f"expected a matrix or a dictionary, got {type(found).__name__}.")
    return found


def _array(path: Path, found: Any) -> NDArray[Any]:
    if not isinstance(found, np.ndarray) or found.ndim != 2:
        raise wrong(path, None, "expected an array of nodes × classes.")
    return found


def _classes(hot: NDArray[Any]) -> Ints:
    """The class of each row of nodes × classes; −1 where a row has none."""
    return np.where(hot.any(1), hot.argmax(1), -1)
