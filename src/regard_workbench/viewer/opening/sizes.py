"""Checks that the sizes in a folder's configuration fit its files, before anything of that size is built.

A few bytes of `config.json` can ask for a billion layers. Each layer needs tensors of its own, so the weight files
bound what a valid configuration can ask for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard_workbench.files import read_bytes
from regard_workbench.models.pretrained.files import read_header

MOST_CONFIG = 16 * 2**20  # bytes of config.json
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
FEW = 256  # layers, heads or experts that are always allowed
UNCOUNTED = 10_000  # the limit where the number of tensors in the files is unknown
MOST_LABELS = 1_000_000
LARGEST = 2**26  # any other size: a vocabulary, a width, a number of positions
PACKED = 16  # the most parameters per byte of a file (packed in 2 bits, or shared)
SLACK = 2**24  # parameters that files need not hold: position tables, buffers

_COUNT = re.compile(r"layer|depth|block|stage|head|expert|repeat|hop", re.IGNORECASE)
_SIZE = re.compile(
    r"size|dim|vocab|width|embd|inner|channel|position|length|window|rank|ctx|hidden|state|ffn?\b|d_\w+|label",
    re.IGNORECASE,
)
_NO_COUNT = re.compile(r"size|dim|vocab|width|_id\b|ids\b|eps|freq|index", re.IGNORECASE)


def check_files(folder: str, where: str) -> None:
    """Refuse a configuration that is not a small JSON object with plausible sizes."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(read_bytes(path, "RUN", MOST_CONFIG))
    except (ValueError, RecursionError) as trouble:
        if isinstance(trouble, BadValue):
            raise
        raise BadValue(f"RUN: the configuration in {where!r} cannot be read: it is not JSON.") from None
    if not isinstance(config, dict):
        raise BadValue(f"RUN: expected a JSON object in {str(path)!r}, got {type(config).__name__}.")
    tensors = _tensors(folder)
    most = UNCOUNTED if tensors is None else max(FEW, tensors)
    for name, value in _numbers(config):
        limit = _limit(name, most)
        if limit is not None and abs(value) > limit:
            raise BadValue(
                f"RUN: the configuration in {where!r} asks for {name} = {_written(value)}, expected at most {limit:,} "
                "for the tensors in this folder. Is it the config.json of these weights?"
            )


def _limit(name: str, most: int) -> int | None:
    """The largest plausible value of a setting; None where it is not a size."""
    if _COUNT.search(name) and not _NO_COUNT.search(name):
        return most
    if "label" in name.casefold():
        return MOST_LABELS
    return LARGEST if _SIZE.search(name) else None


def _numbers(found: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Every integer of a JSON value with its key."""
    left = [(name, found)]  # a loop, since a value may be nested as deeply as Python calls functions
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += [(str(key), nested) for key, nested in reversed(value.items())]
        elif isinstance(value, list):
            left += [(name, nested) for nested in reversed(value)]
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name, value


def _written(number: int) -> str:
    """A number for a message."""
    return f"{number:,}" if abs(number) < 10**15 else f"a number of {len(str(abs(number)))} digits"


def check_parameters(cls: Any, config: Any, folder: str, where: str) -> None:
    """Refuse a model with far more parameters than its files could hold. It is built on the meta device."""
    import torch

    if getattr(cls, "from_config", None) is not None and not issubclass(cls, torch.nn.Module):
        build = cls.from_config  # an Auto class
    else:
        build = cls
    try:
        with torch.device("meta"):
            model = build(config)
    except Exception:  # the loader raises the same error and reports it
        return
    count = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    file_bytes = sum(path.stat().st_size for path in _weight_files(folder))
    if count > PACKED * file_bytes + SLACK:
        raise BadValue(
            f"RUN: the configuration in {where!r} describes a model of {count:,} parameters, and its weight files hold "
            f"{file_bytes:,} bytes. Is it the config.json of these weights?"
        )


def _weight_files(folder: str) -> list[Path]:
    return [path for pattern in WEIGHTS for path in Path(folder).glob(pattern) if path.is_file()]


def _tensors(folder: str) -> int | None:
    """The number of tensors in a folder's safetensors files, from their headers; None if unknown."""
    count = 0
    files = _weight_files(folder)
    for path in files:
        if path.suffix != ".safetensors":
            return None
        try:
            count += len(read_header(path))
        except BadValue:
            return None  # damaged; the loader reports it
    return count if files else None
