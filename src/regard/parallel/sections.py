"""A part of an attention as an attention of its own: some queries × some keys, counted from their first ones.

Masks, biases and scores speak of positions in the whole sequence. `of_mask`, `of_bias` and `of_score` return values
that say the same of a section when they count from its first query and key. Values of regard become values of regard,
so that every implementation runs them and blocks are still skipped from their structure; a user's own value is
evaluated on the indices of the whole sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.biases import AlibiBias, Bias, DenseBias, GaussianBias, RelativeBias, SumBias, T5Bias
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
from regard.scores import Score
from regard.scores.additive import AdditiveScore
from regard.scores.dot import DotScore, SoftcapScore
from regard.scores.relative import ShawScore, TransformerXLScore
from regard.values.grid import Grid, Part, Sizes, position_shift


@dataclass(frozen=True)
class Section:
    """Queries `rows` × keys `columns` of an array of `sizes`, in all heads or in `heads`."""

    sizes: Sizes  # b, h, q, k of the whole
    rows: slice
    columns: slice
    heads: slice

    @classmethod
    def of(
        cls, sizes: Sizes, rows: slice | None = None, columns: slice | None = None, heads: slice | None = None
    ) -> Section:
        """A section; None takes all of an axis."""
        full = [slice(0, size) for size in sizes]
        return cls(sizes, rows or full[2], columns or full[3], heads or full[1])

    @property
    def has_all_positions(self) -> bool:
        """Whether the section has all queries and keys."""
        return (self.rows, self.columns) == (slice(0, self.sizes[2]), slice(0, self.sizes[3]))

    @property
    def has_all_heads(self) -> bool:
        """Whether the section has all heads."""
        return self.heads == slice(0, self.sizes[1])

    def shift(self, align: str, offset: Any) -> Any:
        """What to add to the index of a query to get its position, both counted from the section's first ones."""
        return position_shift(align, offset, *self.sizes[2:]) + (self.rows.start - self.columns.start)

    def query_positions(self, device: torch.device) -> Tensor:
        """The position of each query in the whole, (q,)."""
        first = self.sizes[3] - self.sizes[2]
        return torch.arange(self.rows.start + first, self.rows.stop + first, device=device)

    def key_positions(self, device: torch.device) -> Tensor:
        """The position of each key in the whole, (k,)."""
        return torch.arange(self.columns.start, self.columns.stop, device=device)

    def cut(self, tensor: Tensor) -> Tensor:
        """This section of a tensor (b|1, h|1, q|1, k|1); the last axes may be missing."""
        for axis, span in enumerate((self.heads, self.rows, self.columns), 1):
            if axis < tensor.dim() and tensor.shape[axis] != 1:
                tensor = tensor.narrow(axis, span.start, span.stop - span.start)
        return tensor

    def grid(self, local: Grid) -> Grid:
        """The same pairs as `local`, which counts from the section's first ones, counted from those of the whole."""
        batch, heads, rows, columns = local.parts
        first_head, first_row, first_column = self.heads.start, self.rows.start, self.columns.start
        return Grid(
            self.sizes,
            batch=local.batch,
            head=local.head + first_head,
            row=local.row + first_row,
            column=local.column + first_column,
            parts=(batch, _moved(heads, first_head), _moved(rows, first_row), _moved(columns, first_column)),
        )

    def numbers(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The section as fields of a value."""
        spans = (self.rows, self.columns, self.heads)
        rows, columns, heads = ((span.start, span.stop) for span in spans)
        return self.sizes, rows, columns, heads


def _moved(part: Part, by: int) -> Part:
    return slice(part.start + by, part.stop + by) if isinstance(part, slice) else part + by


def _section(value: SectionMask | SectionBias | SectionScore) -> Section:
    b, h, q, k = value.sizes
    return Section((b, h, q, k), slice(*value.rows), slice(*value.columns), slice(*value.heads))


class SectionMask(Mask):
    """A section of a user's own mask, evaluated on the indices of the whole."""

    name: ClassVar[str] = "section"
    inner: Mask
    sizes: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    heads: tuple[int, ...]

    def visible(self, grid: Grid) -> Tensor:
        return self.inner.visible(_section(self).grid(grid))


class SectionBias(Bias):
    """A section of a bias, evaluated on the indices of the whole."""

    name: ClassVar[str] = "section"
    inner: Bias
    sizes: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    heads: tuple[int, ...]

    def values(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        return self.inner.values(_section(self).grid(grid), dtype)


class SectionScore(Score):
    """A section of a user's own score, evaluated on the indices of the whole."""

    name: ClassVar[str] = "section"
    transforms: ClassVar[bool] = False
    inner: Score
    sizes: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    heads: tuple[int, ...]

    def pairs(self, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
        return self.inner.pairs(query, key, _section(self).grid(grid), scale)


def of_mask(mask: Mask, section: Section, device: torch.device) -> Mask:
    """The part of a mask that lies in a section."""
    if isinstance(mask, (And, Or)):
        return type(mask)(of_mask(mask.left, section, device), of_mask(mask.right, section, device))
    if isinstance(mask, Not):
        return Not(of_mask(mask.inner, section, device))
    if isinstance(mask, DenseMask):
        return DenseMask(section.cut(mask.tensor))
    if type(mask) not in _OF_POSITIONS:
        return SectionMask(mask, *section.numbers())
    return mask if section.has_all_positions else _OF_POSITIONS[type(mask)](mask, section, device)


def _padding(mask: PaddingMask, section: Section, device: torch.device) -> Mask:
    queries = None if mask.query_keep is None else mask.query_keep[:, section.rows]
    return PaddingMask(mask.keep_keys[:, section.columns], queries)


def _lengths(mask: LengthsMask, section: Section, device: torch.device) -> Mask:
    queries = None if mask.query_lengths is None else _fewer(mask.query_lengths, section.rows.start)
    return LengthsMask(_fewer(mask.key_lengths, section.columns.start), queries)


def _documents(mask: DocumentsMask, section: Section, device: torch.device) -> Mask:
    keys = mask.query_ids if mask.key_ids is None else mask.key_ids
    return DocumentsMask(mask.query_ids[:, section.rows], keys[:, section.columns])


def _global_tokens(mask: GlobalTokensMask, section: Section, device: torch.device) -> Mask:
    queries, keys = section.query_positions(device), section.key_positions(device)
    return Not(PaddingMask(~mask.chosen(keys)[None], ~mask.chosen(queries)[None]))


def _same(name: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Section, torch.device], Mask]:
    """Queries see the keys of the same name, which is a function of the position."""

    def section_of(mask: Mask, section: Section, device: torch.device) -> Mask:
        queries, keys = section.query_positions(device), section.key_positions(device)
        return DocumentsMask(name(mask, queries)[None], name(mask, keys)[None])

    return section_of


def _fewer(count: Any, first: int) -> Any:
    """How many of the first `count` positions come at or after `first`."""
    return (count - first).clamp(min=0) if isinstance(count, Tensor) else max(0, count - first)


_OF_POSITIONS: dict[type[Mask], Callable[[Any, Section, torch.device], Mask]] = {
    FullMask: lambda mask, section, device: mask,
    CausalMask: lambda mask, section, device: CausalMask("bottom-right", section.shift(mask.align, mask.offset)),
    WindowMask: lambda mask, section, device: WindowMask(
        mask.before, mask.after, "bottom-right", section.shift(mask.align, mask.offset)
    ),
    PrefixMask: lambda mask, section, device: PrefixMask(_fewer(mask.n, section.columns.start)),
    LengthsMask: _lengths,
    PaddingMask: _padding,
    DocumentsMask: _documents,
    PackedMask: _same(lambda mask, positions: mask.document(positions)),
    BlocksMask: _same(lambda mask, positions: positions // mask.size),
    # A distance is divisible where both positions leave the same remainder.
    DilatedMask: _same(lambda mask, positions: positions % mask.step),
    GlobalTokensMask: _global_tokens,
}


def of_bias(bias: Bias, section: Section) -> Bias:
    """The part of a bias that lies in a section. Slices of its tensors are recorded by autograd."""
    if isinstance(bias, SumBias):
        return SumBias(of_bias(bias.left, section), of_bias(bias.right, section))
    if isinstance(bias, GaussianBias):
        center = section.cut(bias.center)  # moved in float64: a narrow dtype would round far positions
        return GaussianBias((center.double() - section.columns.start).to(center.dtype), bias.sigma)
    if isinstance(bias, DenseBias):
        return DenseBias(section.cut(bias.tensor[(None,) * (4 - bias.tensor.dim())]))
    if isinstance(bias, (AlibiBias, RelativeBias, T5Bias)) and section.has_all_heads:
        return replace(bias, align="bottom-right", offset=section.shift(bias.align, bias.offset))
    return SectionBias(bias, *section.numbers())


def of_score(score: Score, section: Section) -> Score:
    """The part of a score of pairs that lies in a section."""
    if type(score) in (DotScore, SoftcapScore):  # they depend on neither positions nor heads
        return score
    if type(score) is AdditiveScore and section.has_all_heads:
        return score
    if isinstance(score, (ShawScore, TransformerXLScore)) and section.has_all_heads:
        return replace(score, align="bottom-right", offset=section.shift(score.align, score.offset))
    return SectionScore(score, *section.numbers())


def depends_on_positions(score: Score) -> bool:
    """Whether a score of pairs may depend on where queries and keys stand."""
    return type(score) not in (DotScore, SoftcapScore, AdditiveScore)
