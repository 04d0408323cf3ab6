"""Messages between ranks: started at once, waited for when needed, counted, and with a clear end if a rank is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regard.errors import RegardError

# Gloo has no error class of its own; NCCL's errors are of torch's classes.
_CONNECTION_LOST = re.compile(r"gloo|connection (?:reset|closed|refused)|broken pipe", re.IGNORECASE)


class ProcessLost(RegardError, ConnectionError):
    """Another process of the run ended, or cannot be reached, during a collective operation."""


def is_loss(error: Exception) -> bool:
    """Whether an error means that another process is gone."""
    return isinstance(error, (ProcessLost, dist.DistError)) or bool(_CONNECTION_LOST.search(str(error)))


@contextmanager
def reporting_loss(what: str, group: dist.ProcessGroup) -> Iterator[None]:
    """Raise `ProcessLost`, which says what this rank was doing, if another process is gone."""
    try:
        yield
    except RuntimeError as error:
        if not is_loss(error):
            raise
        raise ProcessLost(
            f"Rank {dist.get_rank()} cannot go on: while it was {what}, another of the {dist.get_world_size(group)} "
            f"processes that share the sequence ended or could not be reached. Start all of them again; a training "
            f"run continues from its last checkpoint with --resume."
        ) from error


@dataclass
class Traffic:
    """What this rank sent, received and computed while it was counted."""

    sent: int = 0  # bytes
    received: int = 0
    messages: int = 0  # sent
    pairs: int = 0  # of queries and keys in the blocks that were computed, for each batch entry and head
    peers: set[int] = field(default_factory=set)  # ranks in the group that something was sent to


_COUNTERS: list[Traffic] = []  # not a context variable: backward passes run in a thread of their own on a GPU


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Count what this rank exchanges and computes in the block."""
    counter = Traffic()
    _COUNTERS.append(counter)
    try:
        yield counter
    finally:
        _COUNTERS.remove(counter)


def note_pairs(pairs: int) -> None:
    """Count pairs of queries and keys that are computed."""
    for counter in _COUNTERS:
        counter.pairs += pairs


def note_bytes(sent: int, received: int, peers: Sequence[int]) -> None:
    """Count bytes, and one message for each peer something is sent to."""
    for counter in _COUNTERS:
        counter.sent += sent
        counter.received += received
        counter.messages += len(peers)
        counter.peers.update(peers)


def through_host(tensor: Tensor, group: dist.ProcessGroup) -> bool:
    """Whether messages have to be copied to the host: gloo sends host memory, NCCL that of a GPU."""
    return tensor.is_cuda and group._get_backend(tensor.device).name() == "gloo"


class Transfer:
    """Sends and receives that are on their way. It keeps their buffers until `wait`."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        what: str,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[tuple[int, Tensor]],
        tag: int,
    ) -> None:
        self.group, self.what = group, what
        self.arrivals: list[tuple[Tensor, Tensor]] = []  # what arrives on the host, and where it belongs
        if any(through_host(tensor, group) for _, tensor in [*sends, *receives]):
            sends = [(peer, tensor.cpu()) for peer, tensor in sends]
            self.arrivals = [(torch.empty_like(tensor, device="cpu"), tensor) for _, tensor in receives]
            receives = [(peer, host) for (peer, _), (host, _) in zip(receives, self.arrivals, strict=True)]
        self.buffers = [*sends, *receives]
        operations = [_operation(dist.isend, tensor, peer, group, tag) for peer, tensor in sends]
        operations += [_operation(dist.irecv, tensor, peer, group, tag) for peer, tensor in receives]
        note_bytes(_bytes(sends), _bytes(receives), [peer for peer, _ in sends])
        self.works: list[Any] = []
        if operations:
            with reporting_loss(what, group):
                self.works = dist.batch_isend_irecv(operations)

    def wait(self) -> None:
        """Wait until everything has arrived. On a GPU the stream waits, not the CPU."""
        with reporting_loss(self.what, self.group):
            for work in self.works:
                work.wait()
        for host, buffer in self.arrivals:
            buffer.copy_(host)
        self.works, self.buffers, self.arrivals = [], [], []


def _operation(kind: Any, tensor: Tensor, peer: int, group: dist.ProcessGroup, tag: int) -> dist.P2POp:
    return dist.P2POp(kind, tensor, group=group, group_peer=peer, tag=tag)


def _bytes(messages: Sequence[tuple[int, Tensor]]) -> int:
    return sum(tensor.numel() * tensor.element_size() for _, tensor in messages)


def pack(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Tensors as one flat message."""
    return torch.cat([tensor.to(dtype).reshape(-1) for tensor in parts])


def unpack(message: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """The tensors of these shapes that a message holds, as views."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [flat.view(shape) for flat, shape in zip(message.split(sizes), shapes, strict=True)]
