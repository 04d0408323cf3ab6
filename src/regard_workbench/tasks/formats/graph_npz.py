"""A graph in one npz: edges, features as a sparse matrix, classes, and the nodes of each split."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from regard_workbench import files
from regard_workbench.tasks.formats.budget import check_unpacked
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.graph_data import GraphData, checked_graph, dense_features
from regard_workbench.tasks.formats.reading import excerpt, wrong

PARTS = ("edges", "x_indptr", "x_indices", "x_data", "x_shape", "y", "train", "val", "test")
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@reads_file
def read_npz(path: Path) -> GraphData:
    """An npz with edges (2,e), features as CSR, classes y (−1: unknown) and the nodes of each split."""
    packed = path.stat().st_size
    try:
        with files.opened(path) as file, zipfile.ZipFile(file) as archive:
            sizes = {member.filename: member.file_size for member in archive.infolist()}
            check_unpacked(path, sum(sizes.values()), packed, "Make it smaller.")
            missing = [name for name in PARTS if f"{name}.npy" not in sizes]
            if missing:
                raise wrong(path, None, f"has no array {missing[0]!r}. Expected {', '.join(PARTS)}.")
            arrays = {name: _array(path, name, archive, sizes[f"{name}.npy"]) for name in PARTS}
    except zipfile.BadZipFile as error:
        raise wrong(path, None, f"cannot be read as an npz: {error}. Is it complete?") from None
    if arrays["x_shape"].shape != (2,):
        shape = arrays["x_shape"].shape
        raise wrong(path, None, f"x_shape: expected two numbers (nodes, width), got shape {shape}.")
    csr = {name[2:]: arrays[name] for name in PARTS if name.startswith("x_")}
    splits = {"train": arrays["train"], "validation": arrays["val"], "test": arrays["test"]}
    features = dense_features(path, "x_", csr, packed)
    return checked_graph(path, features, arrays["y"], arrays["edges"], splits)


def _array(path: Path, name: str, archive: zipfile.ZipFile, size: int) -> NDArray[Any]:
    """An array of numbers, whose header was compared with the size of its member."""
    with archive.open(f"{name}.npy") as member:
        shape, dtype = _header(path, name, member)
    if dtype.kind not in "iuf" or (name != "x_data" and dtype.kind == "f"):
        raise wrong(path, None, f"{name}: expected whole numbers, got {dtype}.")
    if math.prod(shape) * dtype.itemsize > size:
        raise wrong(path, None, f"{name}: states the shape {shape}, and holds {size:,} bytes. Is it complete?")
    with archive.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _header(path: Path, name: str, member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(member)
        if version not in _HEADERS:
            raise ValueError(f"its format has the version {version}")
        shape, _, dtype = _HEADERS[version](member)
        if dtype.hasobject:
            raise ValueError(f"it is of {dtype}")
    except ValueError as error:
        raise wrong(
            path,
            None,
            f"{name}: holds an array that is refused: {excerpt(str(error), 120)}. Save numbers, not objects.",
        ) from None
    return shape, dtype
