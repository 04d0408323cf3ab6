"""The files of a model in the Hub's form: `config.json` and safetensors, in one file or in several with an index.

Nothing in them is executed: pickles are refused, and a name in an index must be a file of the same folder. Sizes come
from the headers, so that they can be compared before memory is taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import BadValue
from regard_workbench.files import opened, read_bytes, shown

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_CONFIG = 16 * 2**20  # bytes
MOST_INDEX = 256 * 2**20
MOST_HEADER = 100 * 2**20  # the format's own limit
FLOATS = ("F64", "F32", "F16", "BF16")


def read_object(path: Path, most: int = MOST_CONFIG) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        config = json.loads(read_bytes(path, "folder", most))
    except (ValueError, RecursionError) as trouble:
        if isinstance(trouble, BadValue):
            raise
        raise BadValue(f"folder: {shown(path)} is not JSON.") from None
    if not isinstance(config, dict):
        raise BadValue(f"folder: expected a JSON object in {shown(path)}, got {type(config).__name__}.")
    return config


@dataclass(frozen=True)
class TensorInFile:
    """Where a tensor is stored, and its size."""

    path: Path
    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorInFile]:
    """The tensors of a safetensors file by name, from its header."""
    try:
        with opened(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MOST_HEADER:
                raise BadValue(f"folder: {shown(path)} is no safetensors file: its header would be {length:,} bytes.")
            header = json.loads(file.read(length))
    except OSError as trouble:
        raise BadValue(f"folder: cannot read {shown(path)}: {trouble.strerror or trouble}.") from None
    except (ValueError, RecursionError) as trouble:
        if isinstance(trouble, BadValue):
            raise
        raise BadValue(f"folder: {shown(path)} is no safetensors file: its header is not JSON.") from None
    tensors = {}
    for name, entry in header.items() if isinstance(header, dict) else ():
        if name == "__metadata__":
            continue
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise BadValue(f"folder: {shown(path)} is damaged: {name[:100]!r} has no shape.")
        tensors[name] = TensorInFile(path, str(entry.get("dtype")), tuple(shape))
    return tensors


class StoredWeights:
    """All tensors of a folder; read one by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors = _tensors(folder)
        self._open: dict[Path, Any] = {}

    def __len__(self) -> int:
        return len(self.tensors)

    def read(self, name: str) -> Tensor:
        """One tensor of floating-point numbers."""
        from safetensors import SafetensorError, safe_open

        stored = self.tensors[name]
        if stored.dtype not in FLOATS:
            raise BadValue(
                f"folder: {name[:100]} in {shown(stored.path)} holds {stored.dtype[:20]}, expected one of "
                f"{', '.join(FLOATS)}. Quantised weights are not read; take the original ones."
            )
        try:
            if stored.path not in self._open:
                self._open[stored.path] = safe_open(stored.path, framework="pt")
            tensor: Tensor = self._open[stored.path].get_tensor(name)
        except (SafetensorError, OSError, ValueError) as trouble:
            text = " ".join(str(trouble).split())[:100]
            raise BadValue(f"folder: {shown(stored.path)} is damaged: {text}.") from None
        return tensor


def _tensors(folder: Path) -> dict[str, TensorInFile]:
    if (folder / INDEX).exists():
        return _indexed(folder)
    if (folder / WEIGHTS).exists():
        return read_header(folder / WEIGHTS)
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if pickles:
        raise BadValue(
            f"folder: {shown(folder)} holds its weights as {pickles[0][:100]}, a pickle, which can run code when it is "
            f"read. Expected {WEIGHTS}. Convert it where you trust it: model.save_pretrained(folder) of transformers."
        )
    raise BadValue(f"folder: {shown(folder)} holds no weights: expected {WEIGHTS} or {INDEX}.")


def _indexed(folder: Path) -> dict[str, TensorInFile]:
    """The tensors of several files, as the index says."""
    places = read_object(folder / INDEX, MOST_INDEX).get("weight_map")
    if not isinstance(places, Mapping) or not all(isinstance(place, str) for place in places.values()):
        raise BadValue(f"folder: {INDEX} has no weight_map from names of tensors to names of files.")
    headers = {}
    for place in dict.fromkeys(places.values()):
        if Path(place).name != place or not place.endswith(".safetensors") or "\0" in place:
            raise BadValue(
                f"folder: {INDEX} names the file {place[:100]!r}, expected a .safetensors file of this folder."
            )
        headers[place] = read_header(folder / place)
    missing = [name for name, place in places.items() if name not in headers[place]]
    if missing:
        raise BadValue(
            f"folder: {INDEX} says that {missing[0][:100]!r} is in {places[missing[0]]}, where it is not. Is a file "
            "from another model in this folder?"
        )
    return {name: headers[place][name] for name, place in places.items()}
