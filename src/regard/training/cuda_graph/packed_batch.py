"""The tensors of a batch in one block of device memory, filled by one copy from pinned memory on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.tasks.batch import Batch

ALIGNMENT = 64  # bytes, of the start of each tensor
RATE = "learning rate"  # its name beside the tensors of a batch
MAX_PINNED = (
    2**27
)  # bytes of pinned memory for the batches of one shape; large batches get fewer host buffers


class PackedBatch:
    """A batch in one block of device memory, and pinned host buffers of the same layout to copy from.

    One copy then moves all tensors. Pinned memory matters: a copy from pageable memory would wait until the device has
    finished all its work. Several host buffers let the next batch be prepared while an earlier one is still being read.
    """

    def __init__(self, batch: Batch, buffers: int) -> None:
        tensors = {**batch.tensors(), RATE: torch.zeros((), device=batch.device)}
        spans, total = {}, 0
        for name, tensor in tensors.items():
            begin = -(-total // ALIGNMENT) * ALIGNMENT
            total = begin + tensor.numel() * tensor.element_size()
            spans[name] = (begin, total)
        device = batch.device
        buffers = max(1, min(buffers, MAX_PINNED // max(1, total)))

        def views(memory: Tensor) -> dict[str, Tensor]:
            return {
                name: memory[slice(*spans[name])].view(t.dtype).view(t.shape) for name, t in tensors.items()
            }

        self.memory = torch.empty(total, dtype=torch.uint8, device=device)
        self.parts = views(self.memory)
        self.rate = self.parts.pop(RATE)  # the learning rate of the step
        self.size, self.views = total, views
        pinned = device.type == "cuda"
        self.host = [torch.empty(total, dtype=torch.uint8, pin_memory=pinned) for _ in range(buffers)]
        self.host_parts = [views(buffer) for buffer in self.host]
        self.copied: list[Any] = [None] * buffers  # events: the device has read the buffer
        for name, tensor in batch.tensors().items():
            self.parts[name].copy_(tensor)

    def put(self, batch: Batch, number: int, rate: float = 0.0) -> None:
        """Replace the contents with another batch of the same shape, from the host or the device, without waiting."""
        tensors = batch.tensors()
        if batch.device == self.memory.device and self.memory.is_cuda:
            for name, tensor in tensors.items():
                self.parts[name].copy_(tensor, non_blocking=True)
            self.rate.fill_(rate)
            return
        buffer = number % len(self.host)
        if self.copied[buffer] is not None:
            self.copied[buffer].synchronize()
        for name, tensor in tensors.items():
            self.host_parts[buffer][name].copy_(tensor)
        self.host_parts[buffer][RATE].fill_(rate)
        self.memory.copy_(self.host[buffer], non_blocking=True)
        if self.memory.is_cuda:
            self.copied[buffer] = self.copied[buffer] or torch.cuda.Event()
            self.copied[buffer].record()
