"""All-to-all over heads: each rank gets complete rows of some heads, attends, and sends its results back.

Every rank ends up with the whole sequence in h/ranks heads (DeepSpeed-Ulysses, Jacobs et al. 2023). Rows are complete,
so that every normaliser works, but no more ranks than heads can share the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import regard.dispatch.attention as dispatch
from regard.errors import BadValue
from regard.parallel.exchange import note_bytes, reporting_loss, through_host
from regard.parallel.layout import Layout
from regard.parallel.sections import Section, of_bias, of_mask, of_score
from regard.parallel.work import ShardedCall


@dataclass(frozen=True)
class HeadsWork(ShardedCall):
    """What one rank computes of it: some of the heads, over the whole sequence."""

    rows: Layout
    columns: Layout


def attend(
    work: HeadsWork, query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, want_logsumexp: bool
) -> tuple[Tensor, Tensor | None]:
    """The output (b,h,n,v) and, if wanted, log-sum-exp (b,h,n) of this rank's queries over the keys of all ranks."""
    ranks, heads = work.rows.ranks, query.shape[1]
    if heads % ranks:
        raise BadValue(
            f"exchange: 'heads' needs a number of query heads that the number of ranks divides, got {heads} heads and "
            f"{ranks} ranks. Use exchange='ring', which takes any number."
        )
    # With fewer key heads than ranks, each rank gets a copy of the one that its query heads share.
    copies = lcm(key.shape[1], ranks) // key.shape[1]
    if copies > 1:
        key, value = (tensor.repeat_interleave(copies, 1) for tensor in (key, value))
    all_queries = _to_heads(work.group, work.rank, work.rows, query)
    all_keys, all_values = (_to_heads(work.group, work.rank, work.columns, tensor) for tensor in (key, value))
    count = heads // ranks
    section = Section.of(work.sizes, heads=slice(work.rank * count, (work.rank + 1) * count))
    options: dict[str, Any] = {
        "score": of_score(work.score, section),
        "normalize": work.normalizer,
        "scale": work.scale,
        "dropout": work.dropout,
        "impl": work.impl,
    }
    if work.mask is not None:
        where = work.mask.tensors[0].device if work.mask.tensors else query.device
        options["mask"] = of_mask(work.mask, section, where).to(query.device)
    if work.bias is not None:
        options["bias"] = of_bias(work.bias, section)
    if sink is not None:
        options["sink"] = sink[section.heads]
    rows = (all_queries, all_keys, all_values)
    if not want_logsumexp:
        return _to_positions(work.group, work.rank, work.rows, dispatch.attend(*rows, **options)), None
    mixed = dispatch.attend(*rows, return_logsumexp=True, **options)
    output, logsumexp = (
        _to_positions(work.group, work.rank, work.rows, tensor) for tensor in (mixed[0], mixed[1][..., None])
    )
    return output, logsumexp[..., 0]


def _to_heads(group: dist.ProcessGroup | None, rank: int, layout: Layout, local: Tensor) -> Tensor:
    """(b,h,n,d) of this rank's positions → (b, h/ranks, length, d) of its heads, in the order of positions."""
    if group is None:
        return layout.join([local], 2)
    widths = [layout.local_length(peer) for peer in range(layout.ranks)]
    messages = list(local.chunk(layout.ranks, 1))
    shapes = [(local.shape[0], local.shape[1] // layout.ranks, width, local.shape[3]) for width in widths]
    return layout.join(_all_to_all(group, messages, shapes), 2)


def _to_positions(group: dist.ProcessGroup | None, rank: int, layout: Layout, mine: Tensor) -> Tensor:
    """The reverse of `_to_heads`."""
    if group is None:
        return layout.take(mine, 2, rank)
    messages = [layout.take(mine, 2, peer) for peer in range(layout.ranks)]
    shape = (mine.shape[0], mine.shape[1], layout.local_length(rank), mine.shape[3])
    return torch.cat(_all_to_all(group, messages, [shape] * layout.ranks), 1)


def _all_to_all(group: dist.ProcessGroup, parts: list[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    message = torch.cat([tensor.reshape(-1) for tensor in parts])
    sizes = [torch.Size(shape).numel() for shape in shapes]
    received: Tensor = _AllToAll.apply(group, [tensor.numel() for tensor in parts], sizes, message)
    return [flat.view(shape) for flat, shape in zip(received.split(sizes), shapes, strict=True)]


class _AllToAll(torch.autograd.Function):
    """Sends `out[i]` numbers to rank i and receives `into[i]` from it; the gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, out: list[int], into: list[int], message: Tensor) -> Tensor:
        ctx.group, ctx.sizes = group, (out, into)
        return _exchange(group, message, out, into)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        out, into = ctx.sizes
        return None, None, None, _AllToAll.apply(ctx.group, into, out, grad)


def _exchange(group: dist.ProcessGroup, message: Tensor, out: list[int], into: list[int]) -> Tensor:
    rank, size, device = dist.get_rank(group), message.element_size(), message.device
    if through_host(message, group):
        message = message.cpu()
    received = message.new_empty(sum(into))
    peers = [peer for peer, count in enumerate(out) if peer != rank and count]
    note_bytes((sum(out) - out[rank]) * size, (sum(into) - into[rank]) * size, peers)
    with reporting_loss("exchanging heads for positions", group):
        dist.all_to_all_single(received, message.contiguous(), into, out, group=group)
    return received.to(device)
