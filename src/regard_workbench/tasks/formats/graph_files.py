"""Graphs from files: one npz, Planetoid's eight files, or an edge list beside a table of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.errors import BadValue
from regard_workbench import files
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.graph_data import GraphData, checked_graph, zero_features
from regard_workbench.tasks.formats.graph_npz import read_npz
from regard_workbench.tasks.formats.planetoid import read_planetoid
from regard_workbench.tasks.formats.reading import excerpt, read_lines, wrong
from regard_workbench.tasks.formats.splits import plain_name
from regard_workbench.tasks.generated.draws import shares
from regard_workbench.tasks.text.split_words import split_words, trimmed

EDGES, NODES = (".cites", ".edges", ".edgelist"), (".content", ".nodes")


@reads_file
def read_graph(paths: Sequence[Path], seed: int, dangling: str) -> GraphData:
    """The graph in some files; `dangling`: "refuse" or "drop" edges of nodes that are not there."""
    file_paths: list[Path] = []
    for path in paths:
        file_paths += sorted(path.iterdir()) if path.is_dir() else [path]
    archives = [path for path in file_paths if path.suffix == ".npz"]
    if archives:
        return read_npz(archives[0])
    planetoid = [path for path in file_paths if path.name.startswith("ind.")]
    if planetoid:
        return read_planetoid(planetoid)
    tables = [path for path in file_paths if plain_name(path).endswith(NODES) or path.name.startswith("nodes")]
    lists = [path for path in file_paths if plain_name(path).endswith(EDGES) or path.name.startswith("edges")]
    if tables and lists:
        return read_edge_list(lists[0], tables[0], seed, dangling)
    wanted = f"a table of nodes ({', '.join(NODES)})" if lists else f"an edge list ({', '.join(EDGES)})"
    if lists or tables:
        raise BadValue(f"data: {files.shown((lists + tables)[0])} needs {wanted} beside it, and there is none.")
    raise BadValue(
        f"data: {files.shown(paths[0])} holds no graph. Expected an .npz, Planetoid's ind.NAME.* files, or an edge "
        f"list ({', '.join(EDGES)}) and a table of nodes ({', '.join(NODES)})."
    )


@reads_file
def read_edge_list(edges: Path, nodes: Path, seed: int, dangling: str) -> GraphData:
    """Lines `from to`, and lines `name number … number class`, words apart; `#` begins a comment."""
    rows = [(number, split_words(line.replace(",", " "))) for number, line in _lines(nodes)]
    if not rows:
        raise wrong(nodes, None, "holds no nodes. Expected lines `name number … number class`.")
    width = len(rows[0][1]) - 2
    place: dict[str, int] = {}
    features = zero_features(nodes, "nodes", len(rows), max(0, width), nodes.stat().st_size)
    for index, (number, words) in enumerate(rows):
        if width < 1 or len(words) != width + 2:
            raise wrong(
                nodes,
                number,
                f"has {max(0, len(words) - 2)} numbers between name and class, expected {max(1, width)} as in the "
                "first line. Give every node equally many.",
            )
        if words[0] in place:
            raise wrong(nodes, number, f"the node {excerpt(words[0])} is there twice. Remove one of its lines.")
        place[words[0]] = index
        try:
            features[index] = [float(word) for word in words[1:-1]]
        except ValueError as error:
            raise wrong(nodes, number, f"expected numbers between name and class: {error}.") from None
        if not np.isfinite(features[index]).all():
            raise wrong(nodes, number, "a number is not finite. Replace NaN and infinity.")
    classes = sorted({words[-1] for _, words in rows})
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers[words[-1]] for _, words in rows], np.int64)
    pairs = []
    for number, line in _lines(edges):
        words = split_words(line.replace(",", " "))
        if len(words) != 2:
            hint = " Leave out what follows them: weights of edges are not read." if len(words) > 2 else ""
            raise wrong(edges, number, f"expected two nodes, from and to, got {excerpt(line)}.{hint}")
        unknown = [word for word in words if word not in place]
        if not unknown:
            pairs.append((place[words[0]], place[words[1]]))
        elif dangling == "refuse":
            raise wrong(
                edges,
                number,
                f"the node {excerpt(unknown[0])} is not in {nodes.name}. Add it there, remove the edge, or let "
                'such edges be left out: "graph(dangling=drop)".',
            )
    names = list(place)
    where = shares(names, seed, [0.1, 0.1])
    order = ("validation", "test", "train")
    splits = {
        split: np.array([place[name] for name in names if order[where[name]] == split], np.int64) for split in order
    }
    ends = np.array(pairs, np.int64).reshape(-1, 2).T
    return checked_graph(nodes, features, labels, ends, splits, classes, names)


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a file with their numbers, without comments and empty ones."""
    cut = ((number, trimmed(line.split("#")[0])) for number, line in enumerate(read_lines(path), 1))
    return [(number, line) for number, line in cut if line]
