"""The training batches of a run and their order: a function of the seed and the batch index alone.

Each epoch is shuffled as a whole. Pools of `bucket` batches are then sorted by length and cut into batches of similar
length, which are visited in random order. Lengths are computed for the current pool only, and not at all if the
examples are `even` (all of one length). So one number, the batch index, is enough to resume at the same position.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.errors import BadValue
from regard_workbench.models import Model
from regard_workbench.tasks.parts.batch import GUIDE, Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.task import Task
from regard_workbench.training.config import Config
from regard_workbench.training.signals import Interrupted, heartbeat

if TYPE_CHECKING:
    from regard_workbench.training.loaders import Loaders

TOGETHER = 16  # batches that are gathered at once, of tasks that can
GATHERED_BYTES = 2**22  # of them at most


def seed_for(*purpose: object) -> int:
    """A seed that depends on nothing but `purpose`, for instance (seed, "order", epoch)."""
    digest = hashlib.blake2b("/".join(map(str, purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(*purpose: object) -> torch.Generator:
    """A random generator that depends on nothing but `purpose`."""
    return torch.Generator().manual_seed(seed_for(*purpose))


class Order:
    """The order in which training visits the examples; `order[index]` lists the examples of one batch."""

    def __init__(
        self,
        examples: Sequence[Any],
        batch_size: int,
        seed: int,
        length: Callable[[Any], int] | None = None,
        bucket: int = 0,
    ) -> None:
        if not len(examples):
            raise BadValue("data: the training split holds no examples.")
        self.examples, self.batch_size, self.seed = examples, batch_size, seed
        self.length = length if bucket > 1 else None
        self.bucket = max(1, bucket)
        self.per_epoch = -(-len(examples) // batch_size)  # the last batch of an epoch may be smaller
        self._epoch: tuple[int, Tensor] = (-1, torch.empty(0))
        self._pool: tuple[int, int, list[list[int]]] = (-1, -1, [])

    def __getitem__(self, index: int) -> list[int]:
        epoch, in_epoch = divmod(index, self.per_epoch)
        pool, in_pool = divmod(in_epoch, self.bucket)
        if self._pool[:2] != (epoch, pool):
            self._pool = (epoch, pool, self._cut(epoch, pool))
        return self._pool[2][in_pool]

    def epoch(self, index: int) -> int:
        """The number of complete passes over the data before this batch."""
        return index // self.per_epoch

    def _shuffled(self, epoch: int) -> Tensor:
        if self._epoch[0] != epoch:
            random = generator(self.seed, "order", epoch)
            self._epoch = (epoch, torch.randperm(len(self.examples), generator=random))
        return self._epoch[1]

    def _cut(self, epoch: int, number: int) -> list[list[int]]:
        """Cut one pool into batches."""
        width = self.bucket * self.batch_size
        pool = self._shuffled(epoch)[number * width : (number + 1) * width].tolist()
        if self.length is not None and not getattr(self.examples, "even", False):
            sizes = {index: self.length(self.examples[index]) for index in pool}
            pool = sorted(pool, key=sizes.__getitem__)
        batches = [pool[i : i + self.batch_size] for i in range(0, len(pool), self.batch_size)]
        if self.length is None:
            return batches
        random = generator(self.seed, "pool", epoch, number)
        return [batches[i] for i in torch.randperm(len(batches), generator=random).tolist()]


def token_count(batch: Batch, problem: Problem) -> int:
    """The number of tokens of a batch: the real positions of its streams, and of the text a decoder writes."""
    count = sum(stream.count() for stream in batch.streams.values())
    if problem.answer.needs == "decoder":
        count += sum(stream.count() for name, stream in batch.answers.items() if name != GUIDE)
    return count


class TrainingData:
    """The training split of a task in the order of a run, as batches on the CPU.

    `stride`: how far apart the indices are that this process asks for. A batch that a loader made is valid until the
    next one is asked for.
    """

    def __init__(self, task: Task, model: Model, config: Config, stride: int = 1) -> None:
        assert config.batch_size is not None
        self.task, self.model, self.seed, self.stride = task, model, config.seed, stride
        self.examples = task.examples("train")
        self.order = Order(self.examples, config.batch_size, config.seed, task.length, config.bucket)
        self.loaders: Loaders | None = None
        if config.loaders and not task.acts:
            from regard_workbench.training.loaders import Loaders

            self.loaders = Loaders(self._collated, config.loaders, stride)
        self._gathered: dict[int, Batch] = {}  # by index: gathered and not asked for yet
        self._following = -1  # the index that comes next if batches are asked for in order
        self._together = TOGETHER  # batches to gather at once; 1 where the task cannot
        self._random = torch.Generator()

    def batch(self, index: int) -> Batch:
        """Batch `index`. Unless the task lets the model act, seed and index determine it."""
        heartbeat()
        if self.loaders is not None:
            return self.loaders[index]
        batch = self._gathered.pop(index, None)
        if batch is None:
            batch = self._gather(index) if index == self._following else self._collated(index)
        self._following = index + self.stride
        return batch

    def separate_batch(self, index: int) -> Batch:
        """Batch `index`, not in the order of the run, and made without the model where the task lets it act."""
        return self.task.batch(self.examples, self.order[index], generator(self.seed, "batch", index))

    def close(self) -> None:
        """End the processes that collate batches, if there are any."""
        if self.loaders is not None:
            self.loaders.close()

    def _collated(self, index: int) -> Batch:
        chosen = self.order[index]
        batch = self.task.batch(self.examples, chosen, generator(self.seed, "batch", index), self.model)
        return dataclasses.replace(batch, index=tuple(chosen))

    def _gather(self, index: int) -> Batch:
        """Batch `index`, gathered together with the next ones where the task can do that."""
        if self._together > 1:
            indices = range(index, index + self._together * self.stride, self.stride)
            chosen = [self.order[position] for position in indices]
            batches = self.task.batches(self.examples, chosen, self._generators(indices))
            if batches is not None:
                size = sum(tensor.nbytes for tensor in batches[0].tensors().values())
                self._together = max(1, min(TOGETHER, GATHERED_BYTES // max(1, size)))
                self._gathered = dict(zip(indices, batches, strict=True))
                return self._gathered.pop(index)
            self._together = 1
        return self._collated(index)

    def _generators(self, indices: range) -> Iterator[torch.Generator]:
        """The generators of several batches: one object, seeded anew for each."""
        for index in indices:
            yield self._random.manual_seed(seed_for(self.seed, "batch", index))

    def epoch(self, index: int) -> int:
        """The number of complete passes over the data before this batch."""
        return self.order.epoch(index)


class StepBatches:
    """The batches of one optimiser step, collated one at a time as the step asks for them.

    After the iteration, `tokens` is their number of tokens. If `interrupted` returns True between two batches, the
    iteration raises `Interrupted`, and the step is abandoned.
    """

    def __init__(self, data: TrainingData, indices: range, interrupted: Callable[[], bool]) -> None:
        self.data, self.indices, self.interrupted = data, indices, interrupted
        self.tokens = 0

    def __iter__(self) -> Iterator[Batch]:
        for number, index in enumerate(self.indices):
            if number and self.interrupted():
                raise Interrupted
            batch = self.data.batch(index)
            # Count here, on the CPU: counting on a GPU would wait for it.
            self.tokens += token_count(batch, self.data.task.problem)
            yield batch
