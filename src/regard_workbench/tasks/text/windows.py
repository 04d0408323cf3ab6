"""A long text cut into windows of equal length: shifted at random for training, fixed for evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from regard_workbench.tasks.generated.draws import Generated
from regard_workbench.tasks.parts.gathering import joined


@dataclass(frozen=True)
class Window:
    """A span of tokens; `repeated`: how many of them an earlier window already predicts."""

    tokens: Tensor
    repeated: int = 0
    prompt: bool = False
    around: Tensor | None = None  # a longer stretch; the window is any part of it that is as long as `tokens`

    def __len__(self) -> int:
        return len(self.tokens)

    def drawn(self, generator: torch.Generator) -> Tensor:
        """Its tokens; a training window begins at a random offset."""
        if self.around is None:
            return self.tokens
        places = len(self.around) - len(self.tokens) + 1
        begin = int(torch.randint(places, (), generator=generator))
        return self.around[begin : begin + len(self.tokens)]


def training(ids: Tensor, context: int, loose: bool) -> Sequence[Window]:
    """Consecutive windows; with `loose`, each begins up to half a window earlier or later, at random.

    Fixed ones would show every token at the same place in every epoch, and a small text is then learned by heart.
    """
    count = -(-(len(ids) - 1) // context)
    if loose:
        return Loose(count, ids, context)
    return Generated(count, partial(_fixed, ids, context, context))


class Loose(Generated[Window]):
    """Windows that begin up to half a window earlier or later, drawn anew in each epoch."""

    def __init__(self, count: int, ids: Tensor, context: int) -> None:
        super().__init__(count, partial(_loose, ids, context), even=True)
        size, half = min(context + 1, len(ids)), context // 2
        begin = (torch.arange(count) * context).clamp(max=max(0, len(ids) - 1 - context))
        self.first = (begin - half).clamp(min=0)  # where each may begin, …
        self.places = (begin + context + half + 1).clamp(max=len(ids)) - self.first - size + 1  # … and at how many
        self.most = int(self.places.max())
        self.narrow = set((self.places < self.most).nonzero().flatten().tolist())  # at the ends of the text
        self.spans = ids.unfold(0, size - 1, 1)  # every window there is, less one token, as a view

    def rows(self, chosen: Sequence[Sequence[int]], generators: Iterable[torch.Generator]) -> tuple[Tensor, Tensor]:
        """All tokens but the last, and all but the first, (b,n) each, of the windows of several batches.

        The random draws are the same as for one window after the other; each batch has a generator of its own.
        """
        begin = self.first.index_select(0, joined(chosen))
        drawn = torch.empty_like(begin)
        for batch, offsets, generator in zip(
            chosen, drawn.split([len(indices) for indices in chosen]), generators, strict=False
        ):
            if self.narrow.isdisjoint(batch):
                offsets.random_(0, self.most, generator=generator)
                continue
            start = 0
            for places, alike in groupby(self.places[batch].tolist()):
                end = start + len(list(alike))
                offsets[start:end].random_(0, places, generator=generator)
                start = end
        begin += drawn
        # `index_select` copies whole rows, unlike indexing with a tensor, which copies number by number.
        return self.spans.index_select(0, begin), self.spans.index_select(0, begin + 1)


def asking(ids: Tensor, context: int, overlap: float) -> Sequence[Window]:
    """Windows that predict every token but the first exactly once; `overlap`: the share that is only context."""
    stride = max(1, round(context * (1 - overlap)))
    remaining = max(0, len(ids) - 1 - context)  # what the first window does not reach
    return Generated(1 + -(-remaining // stride), partial(_fixed, ids, context, stride))


def _fixed(ids: Tensor, context: int, stride: int, index: int) -> Window:
    predicted = context + (index - 1) * stride if index else 0  # tokens that earlier windows asked for
    begin = max(0, min(predicted + stride, len(ids) - 1) - context)  # the last window is as long as the others
    return Window(ids[begin : begin + context + 1], repeated=predicted - begin)


def _loose(ids: Tensor, context: int, index: int) -> Window:
    begin = max(0, min(index * context, len(ids) - 1 - context))
    around = ids[max(0, begin - context // 2) : begin + context + context // 2 + 1]
    return Window(ids[begin : begin + context + 1], around=around)
