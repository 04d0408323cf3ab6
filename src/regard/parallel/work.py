"""What one rank computes of an attention over a sharded sequence, block by block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import regard.core.attention as core
from regard.biases import Bias
from regard.core.grid import Sizes
from regard.masks import Mask
from regard.normalizers import Normalizer, Softmax
from regard.parallel.exchange import note_pairs
from regard.parallel.schedule import Block, Schedule
from regard.parallel.sections import Section, depends_on_positions, of_bias, of_mask, of_score
from regard.scores import Score

Held = dict[int, tuple[Tensor, Tensor]]  # keys and values (b,g,n,·) of chunks, or their gradients


class Rows(NamedTuple):
    """Some chunks of the queries of a rank, as ranges of its positions."""

    spans: list[slice]

    def take(self, local: Tensor) -> Tensor:
        """These rows of a tensor (b,h,n,…)."""
        parts = [local[:, :, span] for span in self.spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    def split(self, joined: Tensor) -> list[Tensor]:
        """What `take` joined, as one tensor for each chunk."""
        return list(joined.split([span.stop - span.start for span in self.spans], 2))


@dataclass(frozen=True)
class RingWork:
    """One attention over a sharded sequence, as seen by one rank."""

    group: dist.ProcessGroup | None
    rank: int
    schedule: Schedule
    sizes: Sizes  # of the whole: b, h, q, k
    score: Score
    mask: Mask | None
    bias: Bias | None
    normalizer: Normalizer
    scale: float
    dropout: float
    impl: str
    sections: dict[Block, Mask] = field(default_factory=dict)  # made in the forward pass, used again in the backward

    @property
    def ranks(self) -> int:
        """How many ranks share the sequence."""
        return self.schedule.columns.ranks

    @property
    def weighted(self) -> bool:
        """Whether parts are weighted by their log-sum-exp; otherwise they add up."""
        return isinstance(self.normalizer, Softmax)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the score and of the bias, which may need gradients."""
        return (*self.score.tensors, *(() if self.bias is None else self.bias.tensors))

    def blocks(self, columns: tuple[int, ...]) -> list[Block]:
        """What this rank computes with these chunks of keys."""
        together = self.bias is None and not depends_on_positions(self.score)
        return self.schedule.blocks(self.rank, columns, together)

    def own_chunks(self) -> list[tuple[int, slice]]:
        """The chunks of keys of this rank and where they are among its positions."""
        columns = self.schedule.columns
        return list(zip(columns.chunks[self.rank], columns.local_spans(self.rank), strict=True))

    def inputs(self, block: Block, held: Held) -> tuple[Rows, Tensor, Tensor]:
        """The queries, keys and values of a block."""
        layout = self.schedule.rows
        where = dict(zip(layout.chunks[self.rank], layout.local_spans(self.rank), strict=True))
        rows = Rows([where[chunk] for chunk in block.rows])
        if len(block.columns) == 1:
            return rows, *held[block.columns[0]]
        keys, values = ([held[chunk][side] for chunk in block.columns] for side in (0, 1))
        return rows, torch.cat(keys, 2), torch.cat(values, 2)

    def compute(
        self, block: Block, query: Tensor, key: Tensor, value: Tensor, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """The output and log-sum-exp of a block. `tensors` stand for those of the score and the bias."""
        note_pairs(query.shape[2] * key.shape[2])
        count = len(self.score.tensors)
        options: dict[str, Any] = {"score": self.score.with_tensors(tensors[:count])}
        if len(block.rows) == len(block.columns) == 1:
            section = Section.of(
                self.sizes, self.schedule.rows.span(block.rows[0]), self.schedule.columns.span(block.columns[0])
            )
            options["score"] = of_score(options["score"], section)
            if self.bias is not None:
                options["bias"] = of_bias(self.bias.with_tensors(tensors[count:]), section)
            if not block.full:
                options["mask"] = self._mask(block, section, query.device)
        return core.attend(
            query, key, value, normalize=self.normalizer, scale=self.scale, dropout=self.dropout, impl=self.impl,
            return_logsumexp=True, **options,
        )  # fmt: skip

    def _mask(self, block: Block, section: Section, device: torch.device) -> Mask:
        assert self.mask is not None
        if block not in self.sections:
            where = self.mask.tensors[0].device if self.mask.tensors else device
            self.sections[block] = of_mask(self.mask, section, where).to(device)
        return self.sections[block]
