"""Masks and biases as tables that a compiled kernel looks up.

A kernel that contains the numbers of a mask (the width of a window, a length, an offset) must be compiled again for
each of them. So all of them become data, prepared here at linear cost, and the kernel contains only the form of the
expression:

- a *span*: a query sees the keys from its low to its high − 1. Causal masks, windows, lengths, prefixes, blocks and
  packed documents are spans, and so is every `&` of them;
- a *band*: a span that begins and ends at fixed distances from the query (causal masks, windows). Two numbers say it,
  so that a kernel need not read a table;
- *ends*: the same for a mask that defines `Mask.ends`; its spans may differ from head to head;
- the *same* id: a query sees the keys that carry its id. Documents, padding and dilated masks are of this kind, and
  so is the complement of global tokens;
- a *dense* tensor;
- for biases: a *slope* for each head, a number for each *distance*, a *gaussian* around the centre of each query, or
  a dense tensor.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from regard.biases import AlibiBias, Bias, DenseBias, GaussianBias, RelativeBias, SumBias, T5Bias, alibi_slopes
from regard.masks import Mask
from regard.masks.algebra import And, Not, Or
from regard.masks.from_tensors import DenseMask, DocumentsMask, LengthsMask, PackedMask, PaddingMask
from regard.masks.positional import (
    BlocksMask,
    CausalMask,
    DilatedMask,
    FullMask,
    GlobalTokensMask,
    PrefixMask,
    WindowMask,
)
from regard.values.grid import Grid, Sizes, position_shift

_LOWEST = -1e38
_FAR = 1 << 28  # farther than any two positions; four times as much fits into 32 bits

# What the kernel computes: a kind, then nodes, or indices into the lists of tables, strides and numbers.
Node = tuple[Any, ...]

_KNOWN = (
    And,
    Or,
    Not,
    FullMask,
    CausalMask,
    WindowMask,
    PrefixMask,
    BlocksMask,
    LengthsMask,
    PackedMask,
    DilatedMask,
    PaddingMask,
    DocumentsMask,
    GlobalTokensMask,
    DenseMask,
    SumBias,
    AlibiBias,
    RelativeBias,
    T5Bias,
    GaussianBias,
    DenseBias,
)


def unknown_part(value: Mask | Bias) -> str | None:
    """The name of a part that cannot be lowered, if there is one: a class of the user's, derived from ours or not."""
    if type(value) not in _KNOWN:
        return None if isinstance(value, Mask) and type(value).ends is not Mask.ends else value.name
    if isinstance(value, (And, Or, SumBias)):
        return unknown_part(value.left) or unknown_part(value.right)
    return unknown_part(value.inner) if isinstance(value, Not) else None


class Lowering:
    """Collects the tables, strides and numbers of a mask or a bias."""

    def __init__(
        self, sizes: Sizes, device: torch.device, numbers: tuple[float, ...] = (), bands: bool = False
    ) -> None:
        """`bands=False`: they become spans, for kernels that are compiled for the numbers among the strides."""
        self.sizes, self.device, self.bands = sizes, device, bands
        self.shift = sizes[3] - sizes[2]
        self.rows = torch.arange(sizes[2], device=device)[None]  # (1,q)
        self.columns = torch.arange(sizes[3], device=device)[None]  # (1,k)
        self.tables: list[Tensor] = []  # one axis each
        self.strides: list[int] = []
        self.numbers = list(numbers)

    def mask(self, mask: Mask) -> Node:
        """Whether a query sees a key."""
        band = self._band(mask) if self.bands else None
        if band is not None:
            # As 4·x + 3: Triton would compile again for a number in a tuple that is 1 or a multiple of 16.
            self.strides.extend([4 * end + 3 for end in (band if band[0] < band[1] else (_FAR, -_FAR))])
            return ("band", len(self.strides) - 2)
        span = self._span(mask)
        if span is not None:
            low, high = [end.clamp(0, self.sizes[3]).to(torch.int32) for end in torch.broadcast_tensors(*span)]
            return ("span", self._table(low[:, None, :, None]), self._table(high[:, None, :, None]))
        if isinstance(mask, (And, Or)):
            return ("and" if isinstance(mask, And) else "or", self.mask(mask.left), self.mask(mask.right))
        if isinstance(mask, Not):
            return ("not", self.mask(mask.inner))
        if isinstance(mask, DenseMask):
            return ("dense", self._table(mask.tensor))
        ends = mask.ends(self.sizes, self.device)
        if ends is not None:
            low, high = [end.clamp(0, self.sizes[3]).to(torch.int32)[..., None] for end in ends]
            return ("ends", self._table(low), self._table(high))
        mine, theirs = self._ids(mask)
        same = ("same", self._table(mine[:, None, :, None]), self._table(theirs[:, None, None, :]))
        return ("not", same) if isinstance(mask, GlobalTokensMask) else same

    def bias(self, bias: Bias) -> Node:
        """What is added to the score of a pair."""
        if isinstance(bias, SumBias):
            return ("sum", self.bias(bias.left), self.bias(bias.right))
        if isinstance(bias, DenseBias):
            tensor = bias.tensor.detach()
            return ("dense", self._table(tensor[(None,) * (4 - tensor.dim())]))
        if isinstance(bias, GaussianBias):
            center = bias.center.detach().float()
            center = center.masked_fill(~center.isfinite(), torch.nan)
            self.numbers.append(-0.5 / bias.sigma**2)
            return ("gaussian", self._table(center[..., None]), len(self.numbers) - 1)
        if isinstance(bias, AlibiBias):
            slopes = constant(tuple(alibi_slopes(bias.num_heads)), torch.float32, self.device)
            self.strides.append(position_shift(bias.align, bias.offset, self.sizes[2], self.sizes[3]))
            return ("slope", len(self.strides) - 1, self._table(slopes.view(1, -1, 1, 1)))
        self.strides.append(self.sizes[2] - 1)  # the index of distance 0 for query 0 and key 0
        table = by_distance(bias, self.sizes, self.device).detach()
        # The lowest finite number must stay finite in a kernel's base 2, and in a sum.
        table = torch.where(table == -torch.inf, table, table.clamp(min=_LOWEST))
        return ("distance", len(self.strides) - 1, self._table(table))

    def _table(self, tensor: Tensor) -> Node:
        """Add a tensor (b|1, h|1, q|1, k|1), flat, and its strides (0 for an axis of one); the indices of both."""
        tensor = tensor.contiguous()
        start = len(self.strides)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            self.strides.append(0 if size == 1 else stride)
        flat = tensor.view(-1)
        # torch would compile again for a table of one entry.
        self.tables.append(flat if flat.shape[0] > 1 else flat.repeat(2))
        return (len(self.tables) - 1, start)

    def _span(self, mask: Mask) -> tuple[Tensor, Tensor] | None:
        """The first key that each query sees and the one after the last, (b|1,q); None if the mask is no such span."""
        first = torch.zeros_like(self.rows)
        if isinstance(mask, And):
            left, right = self._span(mask.left), self._span(mask.right)
            if left is None or right is None:
                return None
            return torch.maximum(left[0], right[0]), torch.minimum(left[1], right[1])
        if isinstance(mask, Or) and _starts_at_first(mask):
            left, right = self._span(mask.left), self._span(mask.right)
            assert left is not None and right is not None
            return first, torch.maximum(left[1], right[1])
        if isinstance(mask, FullMask):
            return first, first + self.sizes[3]
        if isinstance(mask, CausalMask):
            return first, self._position(mask) + 1
        if isinstance(mask, WindowMask):
            position = self._position(mask)
            return position - mask.before, position + (mask.reach + 1)
        if isinstance(mask, PrefixMask):
            return first, first + (mask.n[:, None] if isinstance(mask.n, Tensor) else mask.n)
        if isinstance(mask, BlocksMask):
            low = (self.rows + self.shift) // mask.size * mask.size
            return low, low + mask.size
        if isinstance(mask, LengthsMask):
            last = first + mask.key_lengths[:, None]
            return first, last if mask.query_lengths is None else last * (self.rows < mask.query_lengths[:, None])
        if isinstance(mask, PackedMask):
            ends = torch.cat([mask.offsets, mask.offsets[-1:]])  # an empty document follows the last one
            document = torch.bucketize(self.rows + self.shift, mask.offsets, right=True) - 1
            inside = document >= 0
            document = document.clamp(min=0)
            return ends[document] * inside, ends[document + 1] * inside
        return None

    def _band(self, mask: Mask) -> tuple[int, int] | None:
        """The distances from a query's index to its first key and to the one after its last; None if they vary."""
        if isinstance(mask, And):
            left, right = self._band(mask.left), self._band(mask.right)
            return None if left is None or right is None else (max(left[0], right[0]), min(left[1], right[1]))
        if not isinstance(mask, (CausalMask, WindowMask)) or isinstance(mask.offset, Tensor):
            return None
        shift = position_shift(mask.align, mask.offset, self.sizes[2], self.sizes[3])
        low, high = (
            (-_FAR, shift + 1) if isinstance(mask, CausalMask) else (shift - mask.before, shift + mask.reach + 1)
        )
        return max(-_FAR, min(low, _FAR)), max(-_FAR, min(high, _FAR))

    def _position(self, mask: CausalMask | WindowMask) -> Tensor:
        """The position of each query, (b|1,q)."""
        shift = position_shift(mask.align, mask.offset, self.sizes[2], self.sizes[3])
        return self.rows + (shift[:, None] if isinstance(shift, Tensor) else shift)

    def _ids(self, mask: Mask) -> tuple[Tensor, Tensor]:
        """Ids of queries (b|1,q) and keys (b|1,k): −1 if a query sees nothing, −2 if no query sees a key."""
        if isinstance(mask, DilatedMask):
            return ((self.rows + self.shift) % mask.step).int(), (self.columns % mask.step).int()
        if isinstance(mask, PaddingMask):
            rows = self.rows.int()
            queries = torch.zeros_like(rows) if mask.query_keep is None else mask.query_keep.int() - 1
            return queries, 2 * mask.keep_keys.int() - 2
        if isinstance(mask, GlobalTokensMask):  # all positions that were not chosen carry the same id
            chosen = constant(mask.index, torch.int64, self.device)
            queries, keys = torch.isin(self.rows + self.shift, chosen), torch.isin(self.columns, chosen)
            return -queries.int(), -2 * keys.int()
        assert isinstance(mask, DocumentsMask)
        keys = mask.query_ids if mask.key_ids is None else mask.key_ids
        return mask.query_ids.long().clamp(min=-1), keys.long().masked_fill(keys < 0, -2)


def by_distance(bias: Bias, sizes: Sizes, device: torch.device) -> Tensor:
    """The values of a bias that depends on the distance alone, (1, h|1, 1, q+k−1), with gradient to its table."""
    # With columns to the left of the first key, the first query alone covers every distance.
    columns = torch.arange(1 - sizes[2], sizes[3], device=device)
    heads = torch.arange(sizes[1], device=device).view(-1, 1, 1)
    first = torch.zeros(1, 1, dtype=torch.int64, device=device)
    sections = (slice(0, 1), slice(0, sizes[1]), slice(0, 1), columns)
    grid = Grid(sizes, batch=first, head=heads, row=first, column=columns, parts=sections)
    return bias.values(grid, torch.float32).view(1, -1, 1, columns.shape[0])


def _starts_at_first(mask: Mask) -> bool:
    """Whether each query sees a prefix of the keys: then `|` is the longer of the two prefixes."""
    if isinstance(mask, (And, Or)):
        return _starts_at_first(mask.left) and _starts_at_first(mask.right)
    return isinstance(mask, (FullMask, CausalMask, PrefixMask, LengthsMask))


def constant(numbers: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as a tensor on `device`, without synchronizing with it."""
    if device.type == "cpu" or not may_cache():
        return torch.tensor(numbers, dtype=dtype, device=device)
    return _cached(numbers, dtype, device, torch.is_inference_mode_enabled())


@lru_cache(maxsize=256)
def _cached(numbers: tuple[Any, ...], dtype: torch.dtype, device: torch.device, inference: bool) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def may_cache() -> bool:
    """Whether tensors made now are ordinary ones that later calls can use: not traced, faked or captured."""
    return not torch.compiler.is_compiling() and _get_current_dispatch_mode() is None and not capturing()


def capturing() -> bool:
    """Whether a CUDA graph is being captured: tensors made now get their contents only when it is replayed."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
