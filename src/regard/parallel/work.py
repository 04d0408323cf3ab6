"""What one rank computes of an attention over a sharded sequence, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import regard.dispatch.attention as dispatch
from regard.biases import Bias
from regard.dispatch import plan
from regard.formula import request
from regard.formula.call import Call
from regard.masks import Mask
from regard.normalizers import Normalizer, Softmax
from regard.parallel.exchange import note_pairs
from regard.parallel.merging import Upstream, part_gradients
from regard.parallel.schedule import Piece, RingBlock, Schedule
from regard.parallel.sections import Section, depends_on_positions, of_bias, of_mask, of_score
from regard.scores import Score
from regard.values.grid import Sizes

Held = dict[Piece, tuple[Tensor, Tensor]]  # keys and values (b,g,n,·) of pieces, or their gradients


class Rows(NamedTuple):
    """Some chunks of the queries of a rank, as ranges of its positions."""

    spans: list[slice]

    def take(self, local: Tensor) -> Tensor:
        """These rows of a tensor (b,h,n,…)."""
        strips = [local[:, :, span] for span in self.spans]
        return strips[0] if len(strips) == 1 else torch.cat(strips, 2)

    def split(self, joined: Tensor) -> list[Tensor]:
        """What `take` joined, as one tensor for each chunk."""
        return list(joined.split([span.stop - span.start for span in self.spans], 2))


@dataclass(frozen=True)
class ShardedCall:
    """One attention over a sharded sequence, as seen by one rank."""

    group: dist.ProcessGroup | None
    rank: int
    sizes: Sizes  # of the whole: b, h, q, k
    score: Score
    mask: Mask | None
    bias: Bias | None
    normalizer: Normalizer
    scale: float
    dropout: float
    impl: str


@dataclass(frozen=True)
class RingWork(ShardedCall):
    """What one rank computes of it, block by block, while keys and values go around."""

    schedule: Schedule
    sections: dict[RingBlock, Mask] = field(
        default_factory=dict
    )  # made in the forward pass, used again in the backward

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

    def blocks(self, columns: tuple[Piece, ...]) -> list[RingBlock]:
        """What this rank computes with these pieces of keys."""
        together = self.bias is None and not depends_on_positions(self.score)
        return self.schedule.blocks(self.rank, columns, together)

    def where(self, piece: Piece) -> slice:
        """Where the keys of a piece of this rank's own chunks are among its positions."""
        columns = self.schedule.columns
        local_spans = dict(zip(columns.chunks[self.rank], columns.local_spans(self.rank), strict=True))
        start = local_spans[piece.chunk].start - columns.span(piece.chunk).start
        return slice(start + piece.first, start + piece.last)

    def inputs(self, block: RingBlock, held: Held) -> tuple[Rows, Tensor, Tensor]:
        """The queries, keys and values of a block."""
        layout = self.schedule.rows
        where = dict(zip(layout.chunks[self.rank], layout.local_spans(self.rank), strict=True))
        rows = Rows([where[chunk] for chunk in block.rows])
        if len(block.columns) == 1:
            return rows, *held[block.columns[0]]
        keys, values = ([held[piece][side] for piece in block.columns] for side in (0, 1))
        return rows, torch.cat(keys, 2), torch.cat(values, 2)

    def compute(
        self, block: RingBlock, query: Tensor, key: Tensor, value: Tensor, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The output and log-sum-exp of a block. `tensors` stand for those of the score and the bias."""
        note_pairs(query.shape[2] * key.shape[2])
        return dispatch.attend(query, key, value, return_logsumexp=True, **self._options(block, query.device, tensors))

    def gradients(
        self, block: RingBlock, inputs: Sequence[Tensor], needed: Sequence[bool], upstream: Upstream
    ) -> list[Tensor | None]:
        """The share of a block in the gradient of each input (query, key, value, tensors); None where not needed."""
        note_pairs(inputs[0].shape[2] * inputs[1].shape[2])
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_(need) for tensor, need in zip(inputs, needed, strict=True)]
            query, key, value, *tensors = leaves
            options = self._options(block, query.device, tensors)
            block_request = request.build(Call(query, key, value, return_logsumexp=True, **options), check=False)
            chosen = plan.implementation(plan.make(block_request, self.impl).impl)
        share_backward = getattr(chosen, "share_backward", None)
        if self.weighted and share_backward is not None:
            return _direct(share_backward, block_request, leaves, upstream)
        with torch.enable_grad():
            output, logsumexp = dispatch.attend(query, key, value, return_logsumexp=True, **options)
        grads = part_gradients(*upstream, output.detach(), logsumexp.detach(), self.weighted)
        return _through([output, logsumexp], leaves, grads)

    def _options(self, block: RingBlock, device: torch.device, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """The options of `attend` for a block."""
        count = len(self.score.tensors)
        options: dict[str, Any] = {
            "score": self.score.with_tensors(tuple(tensors[:count])),
            "normalize": self.normalizer,
            "scale": self.scale,
            "dropout": self.dropout,
            "impl": self.impl,
        }
        if len(block.rows) == len(block.columns) == 1:
            section = Section.of(self.sizes, self.schedule.rows.span(block.rows[0]), block.columns[0].span)
            options["score"] = of_score(options["score"], section)
            if self.bias is not None:
                options["bias"] = of_bias(self.bias.with_tensors(tuple(tensors[count:])), section)
            if not block.full:
                options["mask"] = self._mask(block, section, device)
        return options

    def _mask(self, block: RingBlock, section: Section, device: torch.device) -> Mask:
        assert self.mask is not None
        if block not in self.sections:
            where = self.mask.tensors[0].device if self.mask.tensors else device
            self.sections[block] = of_mask(self.mask, section, where).to(device)
        return self.sections[block]


def _direct(
    share_backward: Callable[..., list[Tensor]], asked: request.Request, leaves: list[Tensor], upstream: Upstream
) -> list[Tensor | None]:
    """The gradients of `leaves`, from the operator that differentiates weights among those of other blocks."""
    reduced = asked.widened().reduced()
    values = [
        component
        for component in (reduced.score, reduced.mask, reduced.bias, reduced.normalizer)
        if component is not None
    ]
    tensors = [tensor for component in values for tensor in component.tensors]
    rows = leaves[:3]
    needed = [leaf.requires_grad for leaf in (*rows, *tensors)]
    with torch.no_grad():
        gradients = share_backward(
            reduced,
            upstream.grad,
            upstream.grad_logsumexp,
            upstream.output,
            upstream.logsumexp,
            [*needed[:3], False, *needed[3:]],
        )
    row_gradients: list[Tensor | None] = [
        gradient if need else None for gradient, need in zip(gradients, needed[:3], strict=False)
    ]
    # Tensors of a section may be slices of the whole ones.
    sliced = [
        (tensor, gradient) for tensor, gradient in zip(tensors, gradients[4:], strict=True) if tensor.requires_grad
    ]
    return row_gradients + _through([tensor for tensor, _ in sliced], leaves[3:], [gradient for _, gradient in sliced])


def _through(outputs: list[Tensor], leaves: list[Tensor], grads: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients of `leaves` through the recorded operations that made `outputs`; None where there are none."""
    pairs = [
        (output, grad.to(output.dtype)) for output, grad in zip(outputs, grads, strict=True) if output.requires_grad
    ]
    sources = [leaf for leaf in leaves if leaf.requires_grad]
    if not pairs or not sources:
        return [None] * len(leaves)
    remaining = iter(
        torch.autograd.grad([output for output, _ in pairs], sources, [grad for _, grad in pairs], allow_unused=True)
    )
    return [next(remaining) if leaf.requires_grad else None for leaf in leaves]
