"""A mask as the kernel takes it: a node with its tables, lists of empty and full blocks, and the keys it hides."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.implementations.flex.kernel import BLOCK, Data, of_any_size
from regard.implementations.lowering import Lowering, Node, constant, may_cache
from regard.masks import FULL, PARTIAL, Mask
from regard.masks.algebra import cut
from regard.masks.visibility import visible_keys
from regard.values.grid import Sizes
from regard.values.value import rebuild


class FlexMask(NamedTuple):
    """A mask, prepared for requests of some sizes."""

    node: Node
    data: Data
    blocks: tuple[Tensor, ...]
    seen: Tensor | None  # keys that some query sees, (b|1, h|1, k); None: all of them


def prepare(mask: Mask, sizes: Sizes, device: torch.device) -> FlexMask:
    """A mask, prepared for requests of these sizes; one without tensors is cached."""
    if mask.tensors or not may_cache():
        return _prepare(mask, sizes, device)
    return _cached(mask.spec, sizes, device, torch.is_inference_mode_enabled())


@lru_cache(maxsize=16)
def _cached(spec: str, sizes: Sizes, device: torch.device, inference: bool) -> FlexMask:
    return _prepare(rebuild(spec, ()), sizes, device)  # type: ignore[arg-type]


def _prepare(mask: Mask, sizes: Sizes, device: torch.device) -> FlexMask:
    lowering = Lowering(sizes, device)
    node = lowering.mask(mask)
    if torch.compiler.is_compiling():
        visible = torch.ops.regard.flex_seen.default(list(mask.tensors), mask.spec, sizes, device)
    else:
        visible = visible_keys(mask, sizes, device)
    return FlexMask(node, data_of(lowering), _blocks(mask, sizes, device), visible)


def data_of(lowering: Lowering) -> Data:
    """The tables and strides of a mask or a bias."""
    tables = tuple([of_any_size(table, 0) for table in lowering.tables])
    # On a GPU, 64-bit arithmetic is several times slower than 32-bit.
    dtype = torch.int32 if all(table.numel() < 1 << 31 for table in tables) else torch.int64
    return tables, constant(tuple(lowering.strides), dtype, lowering.device)


def _blocks(mask: Mask, sizes: Sizes, device: torch.device) -> tuple[Tensor, ...]:
    """Counts (b,h|1,n) and indices (b,h|1,n,m) of the partial and of the full blocks in each row of blocks; on a GPU,
    for the backward pass, also in each column.
    """
    grades = mask.grades(cut(sizes, BLOCK, BLOCK, device))
    # torch recompiles for an axis of one. A second, empty block and an expanded batch avoid that.
    grades = pad(grades, (0, max(0, 2 - grades.shape[3]), 0, max(0, 2 - grades.shape[2])))
    grades = grades.expand(sizes[0], *grades.shape[1:])
    views = (grades,) if device.type == "cpu" else (grades, grades.mT)
    tables = [table for view in views for table in _ordered(torch.stack([view == PARTIAL, view == FULL]))]
    return tuple([of_any_size(table, 0, *range(2, table.dim())) for table in tables])


def _ordered(chosen: Tensor) -> tuple[Tensor, ...]:
    """For each choice, how many blocks of each row are in it, and their columns, the chosen ones first."""
    counts = chosen.sum(-1, dtype=torch.int32)
    columns = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return counts[0], columns[0], counts[1], columns[1]
