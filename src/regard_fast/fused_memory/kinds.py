"""The memories that one operator for a whole stack can have between its maps of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from regard.nn.dynamic_memory import DynamicMemory
from regard.nn.static_memory import StaticMemory
from regard_fast.fused_memory import op, plain, refusal, static
from regard_fast.fused_memory.factors import NOTHING_BORROWED, Borrowed, Memory, SlotFactors
from regard_fast.fused_memory.layout import MemorySizes
from regard_fast.fused_memory.op import FusedMemoryOptions
from regard_fast.fused_memory.static import StaticOptions


class MemoryKind(Protocol):
    """How a memory is run between maps of rows; `weights` are its slots and weights."""

    @property
    def options(self) -> FusedMemoryOptions | StaticOptions:
        """Of its kernels; `scale` is that of all scores."""
        ...

    maps: ClassVar[int]  # maps of rows that it takes heads from
    held: ClassVar[int]  # tensors that its forward pass keeps besides its result

    @property
    def borrowed(self) -> Borrowed:
        """Weights that are those of maps of rows, too; the operator takes them once, with the rows."""
        ...

    def listed(self) -> tuple[Any, ...]:
        """Its arguments of the operator: how many directions, rows of a segment, eps; `kind` reads them."""
        ...

    def sizes(self, weights: Sequence[Tensor]) -> Memory:
        """The sizes, from its weights without those that are borrowed, and those that follow them."""
        ...

    def forward(self, heads: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, ...]:
        """What the rows read, and what is kept for the backward pass: the memory, then others in half precision."""
        ...

    def shapes(self, heads: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, ...]:
        """The same without values."""
        ...

    def heads_back(
        self, grad: Tensor, heads: list[Tensor], weights: list[Tensor], kept: list[Tensor], factors: SlotFactors,
        number: int,
    ) -> list[Tensor]:
        """The gradients of the heads; `factors` gets what those of the weights of this layer are made from."""
        ...

    def plain(self, heads: list[Tensor], weights: list[Tensor]) -> Tensor:
        """What the rows read, in plain torch."""
        ...


@dataclass(frozen=True)
class DynamicKind:
    """A memory that is written segment by segment, in one direction or in two (`sides`)."""

    options: FusedMemoryOptions
    sides: int
    maps: ClassVar[int] = 5  # queries, keys and values of the reader, keys and values of the writer
    held: ClassVar[int] = 3  # the memory at all times, its keys and values

    @property
    def borrowed(self) -> Borrowed:
        """The reader's maps to keys and values: slots and rows are keys of the same attention."""
        first, weights, biases = (self.sides + 4, 2, 2 + self.maps)  # after the writer's maps; after gain and shift
        return {first: weights + 1, first + 1: biases + 1, first + 2: weights + 2, first + 3: biases + 2}

    def listed(self) -> tuple[Any, ...]:
        return self.sides, self.options.segment, self.options.eps

    def sizes(self, weights: Sequence[Tensor]) -> MemorySizes:
        gated = weights[self.sides + 4].dim() == 2  # after the writer's maps: a weight, or a gain
        slots, dim = weights[0].shape
        return MemorySizes(self.sides, slots, dim, gated)

    def forward(self, heads: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, ...]:
        return op._forward(heads, weights[: self.sides], weights[self.sides :], *self.options.listed())

    def shapes(self, heads: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, ...]:
        return op._forward_shapes(heads, weights[: self.sides], weights[self.sides :], *self.options.listed())

    def heads_back(
        self, grad: Tensor, heads: list[Tensor], weights: list[Tensor], kept: list[Tensor], factors: SlotFactors,
        number: int,
    ) -> list[Tensor]:
        memories, layout = (kept[0], kept[1], kept[2]), op.sizes_of(weights[: self.sides], weights[self.sides :])
        return op.heads_back(grad, heads, weights[self.sides :], memories, self.options, layout, factors, number)

    def plain(self, heads: list[Tensor], weights: list[Tensor]) -> Tensor:
        return plain.mixed(heads, weights[: self.sides], weights[self.sides :], *self.options.listed())


@dataclass(frozen=True)
class StaticKind:
    """A memory that is written once, by all rows, before any of them reads it."""

    options: StaticOptions
    maps: ClassVar[int] = 3  # queries of the reader, keys and values of the writer
    held: ClassVar[int] = 2
    borrowed: ClassVar[Borrowed] = NOTHING_BORROWED

    def listed(self) -> tuple[Any, ...]:
        return 0, 0, self.options.eps

    def sizes(self, weights: Sequence[Tensor]) -> Memory:
        return static.sizes_of(weights)

    def forward(self, heads: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, ...]:
        return static.forward(heads, weights, self.options)

    def shapes(self, heads: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, ...]:
        return static.shapes(heads, weights)

    def heads_back(
        self, grad: Tensor, heads: list[Tensor], weights: list[Tensor], kept: list[Tensor], factors: SlotFactors,
        number: int,
    ) -> list[Tensor]:
        return static.heads_back(grad, heads, weights, (kept[0], kept[1]), self.options, factors, number)

    def plain(self, heads: list[Tensor], weights: list[Tensor]) -> Tensor:
        return static.mixed(heads, weights, self.options)


def kind(scale: float, sides: int, segment: int, eps: float) -> MemoryKind:
    """From the arguments of the operator."""
    if not sides:
        return StaticKind(StaticOptions(scale, eps))
    return DynamicKind(FusedMemoryOptions(sides == 1, segment, scale, eps), sides)


def kind_of(layer: Any, batch: int, length: int, layers: int) -> tuple[MemoryKind, list[Tensor]] | None:
    """How the kernels run this memory, with its slots and those weights that are not borrowed; None if they do not.

    `layers`: how many such layers keep factors at the same time.
    """
    if type(layer) is DynamicMemory and not refusal.refusal(layer, batch, length, layers):
        memory_kind = DynamicKind(refusal.options_of(layer), 2 if layer.bidirectional else 1)
        tensors = enumerate(refusal.all_tensors(layer))
        return memory_kind, [tensor for number, tensor in tensors if number not in memory_kind.borrowed]
    if type(layer) is StaticMemory and not static.refusal(layer, batch, length, layers):
        return StaticKind(static.options_of(layer)), static.tensors_of(layer)
    return None
