"""Masks and biases as tables that a compiled kernel looks up.

A kernel that holds the numbers of a mask (a window's width, a length, an offset) has to be compiled again for each
of them. So everything becomes data, prepared here at linear cost, and the kernel knows only the shape of the expression:

- a *span*: query i sees the keys from low[i] to high[i] − 1. Causal masks, windows, lengths, prefixes, blocks and
  packed documents are spans, and so is any `&` of them;
- the *same* id: query i sees the keys that carry its id. Documents, padding and dilated masks are of this kind, and
  so is what the global tokens leave over;
- a *dense* tensor;
- for biases, a number for each *distance*, for each query a *centre*, or a dense tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.biases import T5, Alibi, Bias, Gaussian, Relative, Sum
from regard.biases import Dense as DenseBias
from regard.grid import Sizes, part_of
from regard.masks import Mask
from regard.masks.algebra import And, Not, Or
from regard.masks.given import Dense, Documents, Lengths, Packed, Padding
from regard.masks.positional import Causal, Dilated, EqualBlocks, Full, GlobalTokens, Prefix, Window

Node = tuple[Any, ...]  # a kind, then nodes, or the places of its tables, strides and numbers

_LEAVES = (
    Full, Causal, Window, Prefix, EqualBlocks, Dilated, GlobalTokens, Lengths, Padding, Documents, Packed, Dense,
)  # fmt: skip
_OF_DISTANCE = (Alibi, Relative, T5)


def knows(value: Mask | Bias) -> bool:
    """Whether every part of this mask or bias is one of ours."""
    if isinstance(value, (And, Or, Sum)):
        return knows(value.left) and knows(value.right)
    if isinstance(value, Not):
        return knows(value.inner)
    return isinstance(value, (*_LEAVES, *_OF_DISTANCE, Gaussian, DenseBias))


class Lowering:
    """Collects the tables, strides and numbers of one request."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self.sizes, self.device = sizes, device
        self.tables: list[Tensor] = []  # one axis each
        self.strides: list[int] = []
        self.numbers: list[float] = []
        self.rows = torch.arange(sizes[2], device=device)
        self.columns = torch.arange(sizes[3], device=device)

    def mask(self, mask: Mask) -> Node:
        """What the kernel asks of a pair."""
        span = self._span(mask)
        if span is not None:
            low, high = torch.broadcast_tensors(*span)
            return ("span", self._table(low[:, None, :, None]), self._table(high[:, None, :, None]))
        if isinstance(mask, (And, Or)):
            return ("and" if isinstance(mask, And) else "or", self.mask(mask.left), self.mask(mask.right))
        if isinstance(mask, Not):
            return ("not", self.mask(mask.inner))
        if isinstance(mask, Dense):
            return ("dense", self._table(mask.tensor))
        if isinstance(mask, GlobalTokens):
            # What is neither a chosen query nor a chosen key carries the same id: the rest of the array.
            chosen = torch.tensor(mask.index, device=self.device, dtype=torch.int64)
            mine, theirs = torch.isin(self.rows + self._shift, chosen), torch.isin(self.columns, chosen)
            return ("not", self._same(mine.long()[None], -2 * theirs.long()[None]))
        return self._same(*self._ids(mask))

    def bias(self, bias: Bias) -> Node:
        """What the kernel adds to the score of a pair."""
        if isinstance(bias, Sum):
            return ("sum", self.bias(bias.left), self.bias(bias.right))
        if isinstance(bias, DenseBias):
            tensor = bias.tensor.detach()
            return ("dense", self._table(tensor[(None,) * (4 - tensor.dim())]))
        if isinstance(bias, Gaussian):
            center = bias.center.detach().float()
            center = center.masked_fill(~center.isfinite(), torch.nan)
            return ("gaussian", self._table(center[..., None]), self.number(-0.5 / bias.sigma**2))
        # The first query meets, from this far on the left to the last key, every distance there is.
        queries, keys = self.sizes[2:]
        grid = part_of(
            self.sizes, self.device, rows=slice(0, 1), columns=torch.arange(1 - queries, keys, device=self.device)
        )
        values = bias.values(grid).detach().float()  # (h|1,1,distances)
        start = len(self.strides)
        self.strides.append(queries - 1)
        return ("distance", self._table(values[None]), start)

    def number(self, number: float) -> int:
        """The place of a number that the kernel reads."""
        self.numbers.append(number)
        return len(self.numbers) - 1

    @property
    def _shift(self) -> int:
        return self.sizes[3] - self.sizes[2]

    def _table(self, tensor: Tensor) -> Node:
        """The places of a tensor (b|1, h|1, q|1, k|1), laid out flat, and of its strides; an axis of one has none."""
        tensor = tensor.contiguous()
        start = len(self.strides)
        for axis, size in enumerate(tensor.shape):
            self.strides.append(0 if size == 1 else tensor.stride(axis))
        self.tables.append(tensor.view(-1))
        return (len(self.tables) - 1, start)

    def _same(self, mine: Tensor, theirs: Tensor) -> Node:
        return ("same", self._table(mine[:, None, :, None]), self._table(theirs[:, None, None, :]))

    def _ids(self, mask: Mask) -> tuple[Tensor, Tensor]:
        """Ids of queries (b|1,q) and keys (b|1,k); a hidden query has −1, a hidden key −2, which never meet."""
        if isinstance(mask, Dilated):
            return ((self.rows + self._shift) % mask.step)[None], (self.columns % mask.step)[None]
        if isinstance(mask, Padding):
            queries = self.rows[None] * 0 if mask.query_keep is None else mask.query_keep.long() - 1
            return queries, 2 * mask.keep_keys.long() - 2
        assert isinstance(mask, Documents)
        keys = mask.query_ids if mask.key_ids is None else mask.key_ids
        return mask.query_ids.long().clamp(min=-1), torch.where(keys < 0, -2, keys.long())

    def _span(self, mask: Mask) -> tuple[Tensor, Tensor] | None:
        """The first key each query sees and the one after the last, (b|1,q) each; None if that is not enough."""
        rows = self.rows[None]
        first = torch.zeros_like(rows)
        if isinstance(mask, And):
            left, right = self._span(mask.left), self._span(mask.right)
            if left is None or right is None:
                return None
            return torch.maximum(left[0], right[0]), torch.minimum(left[1], right[1])
        if isinstance(mask, Full):
            return first, first + self.sizes[3]
        if isinstance(mask, Causal):
            return first, self._positions(mask) + 1
        if isinstance(mask, Window):
            position = self._positions(mask)
            return position - mask.before, position + (mask.reach + 1)
        if isinstance(mask, Prefix):
            return first, first + (mask.n[:, None] if isinstance(mask.n, Tensor) else mask.n)
        if isinstance(mask, Lengths):
            last = first + mask.key_lengths[:, None]
            return first, last if mask.query_lengths is None else last * (rows < mask.query_lengths[:, None])
        if isinstance(mask, EqualBlocks):
            low = torch.div(rows + self._shift, mask.size, rounding_mode="floor") * mask.size
            return low, low + mask.size
        if isinstance(mask, Packed):
            position, ends = rows + self._shift, mask.offsets
            document = torch.bucketize(position, ends, right=True) - 1
            inside = (document >= 0) & (document < len(ends) - 1)
            document = document.clamp(0, max(len(ends) - 2, 0))
            return ends[document] * inside, ends[(document + 1).clamp(max=len(ends) - 1)] * inside
        return None

    def _positions(self, mask: Causal | Window) -> Tensor:
        """Where each query stands, (b|1,q)."""
        if isinstance(mask.offset, Tensor):
            return self.rows + mask.offset[:, None]
        if mask.offset is not None:
            return self.rows[None] + mask.offset
        return self.rows[None] + (self._shift if mask.align == "bottom-right" else 0)
