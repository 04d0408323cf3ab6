"""The tensors of a batch in one block of device memory, filled by one copy from pinned memory on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard_workbench.tasks.parts.batch import Batch

ALIGNMENT = 64  # bytes, of the start of each tensor
RATE, SEED = "learning rate", "seed of dropout"  # their names beside the tensors of a batch
MAX_PINNED = 2**27  # bytes of pinned memory for the batches of one shape; large batches get fewer host buffers


class HostBuffer:
    """Memory of the host in the layout of a packed batch: the next batch, its rate and its seed are written here."""

    def __init__(self, memory: Tensor, parts: dict[str, Tensor]) -> None:
        self.memory = memory
        # Writing one number by way of NumPy is quicker than an operation.
        self.rate, self.seed = parts[RATE].numpy(), parts[SEED].numpy()
        self.tensors = [tensor for name, tensor in parts.items() if name not in (RATE, SEED)]

    def fill(self, batch: Batch, rate: float, seed: int) -> None:
        """Write a batch of the same layout."""
        for buffer, tensor in zip(self.tensors, batch.tensors().values(), strict=True):
            buffer.copy_(tensor)
        self.rate[...] = rate
        self.seed[...] = seed


class PackedBatch:
    """A batch in one block of device memory, and pinned host buffers of the same layout to copy from.

    One copy then moves all tensors. Pinned memory matters: a copy from pageable memory would wait until the device has
    finished all its work. Several host buffers let the next batch be prepared while an earlier one is still being read.
    With fewer of them than asked for, a buffer waits until the device has read it; else the caller does: before batch
    n, the step with batch n − `buffers` must have ended.
    """

    def __init__(self, batch: Batch, buffers: int) -> None:
        device = batch.device
        tensors = {
            **batch.tensors(),
            RATE: torch.zeros((), device=device),
            SEED: torch.zeros(1, dtype=torch.int64, device=device),
        }
        spans, total = {}, 0
        for name, tensor in tensors.items():
            begin = -(-total // ALIGNMENT) * ALIGNMENT
            total = begin + tensor.numel() * tensor.element_size()
            spans[name] = (begin, total)
        count = max(1, min(buffers, MAX_PINNED // max(1, total)))

        def views(memory: Tensor) -> dict[str, Tensor]:
            return {name: memory[slice(*spans[name])].view(t.dtype).view(t.shape) for name, t in tensors.items()}

        self.memory = torch.empty(total, dtype=torch.uint8, device=device)
        self.parts = views(self.memory)
        self.rate, self.seed = self.parts.pop(RATE), self.parts.pop(SEED)  # of the step
        self.size, self.views = total, views
        self.on_gpu = device.type == "cuda"
        memories = (torch.empty(total, dtype=torch.uint8, pin_memory=self.on_gpu) for _ in range(count))
        self.host = [self.host_buffer(memory) for memory in memories]
        self.waits = count < buffers
        self.copied: list[Any] = [None] * count  # events: the device has read the buffer
        for name, tensor in batch.tensors().items():
            self.parts[name].copy_(tensor)

    def host_buffer(self, memory: Tensor) -> HostBuffer:
        """Memory of the host as a buffer of this layout."""
        return HostBuffer(memory, self.views(memory))

    def put(self, batch: Batch, number: int, rate: float = 0.0, seed: int = 0) -> None:
        """Replace the contents with another batch of the same shape, from the host or the device, without waiting."""
        if self.on_gpu and batch.device == self.memory.device:
            for name, tensor in batch.tensors().items():
                self.parts[name].copy_(tensor, non_blocking=True)
            self.rate.fill_(rate)
            self.seed.fill_(seed)
            return
        index = number % len(self.host)
        buffer, copied = self.host[index], self.copied[index]
        if copied is not None:
            copied.synchronize()
        buffer.fill(batch, rate, seed)
        self.memory.copy_(buffer.memory, non_blocking=True)
        if self.waits and self.on_gpu:
            self.copied[index] = copied or torch.cuda.Event()
            self.copied[index].record()
