"""An attention to be timed: its size, its options for regard, and the same for each peer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard_workbench.bench.timing import TimedCall

Modifier = Callable[..., Tensor]


@dataclass(frozen=True)
class Size:
    """Batch, heads, length, width; `label` is its part of a case's name."""

    batch: int
    heads: int
    length: int
    width: int
    label: str = ""

    def __str__(self) -> str:
        return f"b{self.batch} h{self.heads} n{self.length} d{self.width}"


SHORT_64, SHORT_128 = Size(4, 16, 4096, 64, "4k-d64"), Size(4, 16, 4096, 128, "4k-d128")
LONG_64, LONG_128 = Size(1, 16, 16384, 64, "16k-d64"), Size(1, 16, 16384, 128, "16k-d128")
SIZES = (SHORT_64, SHORT_128, LONG_64, LONG_128)


def _nothing(size: Size, device: str) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Work:
    """What is computed.

    `options` are the keywords of `regard.attend`; `one_head` those of a single head, where they differ by head;
    `causal` whether SDPA can be told by `is_causal`, None where it cannot be told at all; `score` and `mask` make
    FlexAttention's two functions; `varlen` the keywords of `varlen_attn` and the ends of its sequences.
    """

    name: str
    words: str
    options: Callable[[Size, str], Mapping[str, Any]] = _nothing
    one_head: Callable[[Size, str, int], Mapping[str, Any]] | None = None
    causal: bool | None = None
    score: Callable[[Size, str], Modifier] | None = None
    mask: Callable[[Size, str], Modifier] | None = None
    varlen: Callable[[Size], tuple[dict[str, Any], list[int]]] | None = None
    against: tuple[str, ...] = field(default=())  # the peers that the bar is set against

    def for_head(self, size: Size, device: str) -> Callable[[int], Mapping[str, Any]]:
        """The options of one head alone."""
        if self.one_head is None:
            return lambda head: self.options(size, device)
        made = self.one_head
        return lambda head: made(size, device, head)


def inputs(size: Size, device: str, dtype: torch.dtype, *, grad: bool = False, seed: int = 0) -> list[Tensor]:
    """Query, key and value."""
    generator = torch.Generator(device).manual_seed(seed)
    shape = (size.batch, size.heads, size.length, size.width)
    made = [torch.randn(shape, generator=generator, device=device, dtype=torch.float32) for _ in range(3)]
    return [tensor.to(dtype).requires_grad_(grad) for tensor in made]


def gradient(size: Size, device: str, dtype: torch.dtype) -> Tensor:
    """The gradient of the output."""
    return inputs(size, device, dtype, seed=1)[0]


def timed_call(attend: Callable[..., Tensor], tensors: list[Tensor], upstream: Tensor | None) -> TimedCall:
    """The call to time: without gradient, or with those of all tensors."""
    if upstream is None:

        def forward() -> object:
            with torch.no_grad():
                return attend(*tensors)

        return forward
    return lambda: torch.autograd.grad(attend(*tensors), tensors, upstream)
