"""A long sequence that several ranks share: who they are, and which positions each of them holds."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from regard.errors import BadType, BadValue
from regard.masks import Mask
from regard.parallel.exchange import note_bytes, reporting_loss
from regard.parallel.layout import Layout
from regard.parallel.schedule import choose
from regard.support.arguments import described, whole_number


class ShardedSequence:
    """`length` positions, shared by the ranks of a process group or of a device mesh with one axis.

    `group`: by default all processes of torch.distributed. Where torchrun started several that nothing has connected
    yet, they are connected as `init_device_mesh` of torch does it.
    `layout`: zigzag, contiguous, balanced (chosen by `mask`, which covers the whole sequence), or a `Layout`. Every
    rank must give the same arguments.

    >>> from regard.parallel import ShardedSequence
    >>> whole = torch.arange(10)
    >>> sequence = ShardedSequence(10)      # without torch.distributed: one rank holds everything
    >>> sequence.shard(whole, 0).equal(whole)
    True
    """

    def __init__(
        self,
        length: int,
        group: dist.ProcessGroup | DeviceMesh | None = None,
        layout: str | Layout = "zigzag",
        *,
        mask: Mask | None = None,
    ) -> None:
        self.length = whole_number("length", length, 1)
        self.group = _process_group(group)
        _connect(self.group)
        self.rank = 0 if self.group is None else dist.get_rank(self.group)
        self.ranks = 1 if self.group is None else dist.get_world_size(self.group)
        self.layout = layout if isinstance(layout, Layout) else choose(layout, self.length, self.ranks, mask)
        if (self.layout.length, self.layout.ranks) != (self.length, self.ranks):
            raise BadValue(
                f"layout: expected one for {self.length} positions and {self.ranks} ranks, got one for "
                f"{self.layout.length} positions and {self.layout.ranks} ranks."
            )

    @property
    def local_length(self) -> int:
        """The number of positions that this rank holds."""
        return self.layout.local_length(self.rank)

    def positions(self, device: torch.device | str = "cpu") -> Tensor:
        """The positions that this rank holds, (n,)."""
        return self.layout.positions(self.rank, device)

    def shard(self, whole: Tensor, axis: int) -> Tensor:
        """This rank's part of a tensor that is the same in all ranks. Differentiable: gradients stay in this rank."""
        if not isinstance(whole, Tensor):
            raise BadType(f"whole: expected a tensor, got {described(whole)}.")
        self._check(whole, axis, self.length, "whole", "the whole sequence")
        return self.layout.take(whole, axis, self.rank)

    def unshard(self, part: Tensor, axis: int) -> Tensor:
        """The whole tensor from the parts of all ranks, in the order of positions. A collective; differentiable."""
        self._check(part, axis, self.local_length, "part", "this rank's part of the sequence")
        if self.group is None:
            return self.layout.join([part], axis)
        joined: Tensor = _Unshard.apply(self, axis % part.dim(), part)
        return joined

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """`parallel.attend` over this sequence."""
        from regard.parallel.attention import attend  # it takes sequences as arguments

        return attend(query, key, value, self, **options)

    def _check(self, given: Tensor, axis: int, length: int, argument: str, what: str) -> None:
        if not -given.dim() <= axis < given.dim() or given.shape[axis] != length:
            raise BadValue(
                f"{argument}: expected {what}, {length} positions along axis {axis}, got shape {tuple(given.shape)}."
            )

    def __repr__(self) -> str:
        chunks = self.layout.chunks[self.rank]
        return f"ShardedSequence({self.length}, rank {self.rank} of {self.ranks} holds chunks {chunks})"


class _Unshard(torch.autograd.Function):
    """Gathers all parts. Each rank may use the whole differently, so the gradient is the sum of all ranks' ones."""

    @staticmethod
    def forward(ctx: Any, sequence: ShardedSequence, axis: int, part: Tensor) -> Tensor:
        ctx.sequence, ctx.axis = sequence, axis
        lengths = [sequence.layout.local_length(rank) for rank in range(sequence.ranks)]
        longest = max(lengths)
        room = list(part.shape)
        room[axis] = longest - part.shape[axis]
        padded = torch.cat([part, part.new_zeros(room)], axis).contiguous()  # gathered parts have one size
        gathered = [torch.empty_like(padded) for _ in lengths]
        assert sequence.group is not None
        with reporting_loss("gathering a sequence", sequence.group):
            dist.all_gather(gathered, padded, group=sequence.group)
        remote_bytes = padded.numel() * padded.element_size() * (sequence.ranks - 1)
        note_bytes(remote_bytes, remote_bytes, ())
        cut = [padded_part.narrow(axis, 0, length) for padded_part, length in zip(gathered, lengths, strict=True)]
        return sequence.layout.join(cut, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        sequence = ctx.sequence
        total = grad.clone(memory_format=torch.contiguous_format)
        with reporting_loss("adding up the gradients of a sequence", sequence.group):
            dist.all_reduce(total, group=sequence.group)
        return None, None, sequence.layout.take(total, ctx.axis, sequence.rank)


_CONNECTED: set[str] = set()  # names of groups


def _connect(group: dist.ProcessGroup | None) -> None:
    """Have NCCL connect all ranks. It does so at the first operation of a group, and in a ring some may have none."""
    # The backends of all devices: that of a group which was begun without naming one is "undefined".
    if group is None or group.group_name in _CONNECTED or "nccl" not in dist.get_backend_config(group):
        return
    with reporting_loss("connecting to the other ranks", group):
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
    _CONNECTED.add(group.group_name)


def _process_group(group: object) -> dist.ProcessGroup | None:
    """The process group that was given; None where there is only this process."""
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise BadValue(
                f"group: a device mesh with one axis is needed, got {group.ndim} axes {group.mesh_dim_names}. Take one "
                f"of them: mesh['context']."
            )
        return group.get_group()
    if group is None:
        return _all_processes()
    if not isinstance(group, dist.ProcessGroup):
        raise BadType(
            f"group: expected a process group or a device mesh of torch.distributed, got {described(group)}. Only "
            f"ranks that belong to the group may build the sequence."
        )
    return group


def _all_processes() -> dist.ProcessGroup | None:
    """The group of all processes; connects those of torchrun, each of which would else hold the whole sequence."""
    if not dist.is_available():
        return None
    if not dist.is_initialized():
        launched = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
        if not launched or int(os.environ["WORLD_SIZE"]) == 1:
            return None
        device = "cuda" if torch.cuda.is_available() else "cpu"
        init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))  # it also gives each process its GPU
    return dist.group.WORLD
