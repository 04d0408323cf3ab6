"""Context parallelism in training: the processes of a row of the mesh read the same batch and share its positions.

The mesh has two axes: `data`, whose rows read different batches, and `context`, whose processes share each sequence.
The loss of a process is the sum over its own positions, so a step adds up gradients, sums and counts of all processes
as it always does, and DDP or FSDP need not know of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from regard.errors import BadValue
from regard.masks.from_tensors import PaddingMask
from regard.nn.sharing import sharing
from regard.parallel.sequence import ShardedSequence
from regard_workbench.models import Model
from regard_workbench.tasks.answers import NextToken
from regard_workbench.tasks.parts.batch import Batch, Stream

LAYOUT = "zigzag"  # models that share sequences are causal


class SharedContext:
    """The processes that share the sequences of this one."""

    def __init__(self, ranks: int, processes: int, device: torch.device, model: Model) -> None:
        if not model.shares_sequences or not isinstance(model.problem.answer, NextToken):
            raise BadValue(
                f"context_parallel: {model.name} for {model.problem.answer.words} cannot share a sequence between "
                f"processes. Use --model decoder for a task that asks for the next token, such as language."
            )
        mesh = init_device_mesh(device.type, (processes // ranks, ranks), mesh_dim_names=("data", "context"))
        self.group = mesh["context"].get_group()

    @contextmanager
    def share(self, batch: Batch) -> Iterator[Batch]:
        """This process's positions of a batch; within the block, layers attend to those of all."""
        (name, stream), (answer_name, answer) = *batch.streams.items(), *batch.answers.items()
        sequence = ShardedSequence(stream.data.shape[1], self.group, LAYOUT)
        mask = None if stream.keep is None else PaddingMask(stream.keep)

        def part(tensor: Tensor) -> Tensor:
            return sequence.shard(tensor, 1)

        local = replace(batch, streams={name: Stream(part(stream.data))}, answers={answer_name: answer.map(part)})
        with sharing(sequence, mask):
            yield local
