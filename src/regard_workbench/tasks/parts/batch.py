"""A batch: the streams that go in, and what is right, as one tree of tensors.

`map` applies a function to every tensor of the tree; moving, pinning, casting and packing a batch are all made of it.

    >>> import torch
    >>> from regard_workbench.tasks.parts.batch import Batch, Stream
    >>> batch = Batch({"words": Stream(torch.zeros(2, 5)), "picture": Stream(torch.zeros(2, 9, 4))})
    >>> batch.size, batch.shapes()
    (2, {'words': [2, 5], 'picture': [2, 9, 4]})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

INPUTS, TARGETS = "inputs", "targets"  # the names of the only stream and the only target
GUIDE = "guide"  # beside a target: how much each of its positions should attend to each input position, (b,t,n)
MADE_FROM = "made_from"  # the note that says which examples a batch holds, where its tensors depend on the model
ASKED = "asked"  # the note of a batch with the positions that are asked for, where an answer is not about all of them


@dataclass(frozen=True)
class Stream:
    """One input or one target of all examples of a batch, padded to one length."""

    data: Tensor  # (b,n) ids, (b,n,width) numbers, or any shape that begins with the batch
    keep: Tensor | None = None  # (b,n): True where `data` is real, or where a target counts; None: everywhere
    edges: Tensor | None = None  # (2,e): pairs (from, to) of positions, for graphs; they are the mask

    def map(self, function: Callable[[Tensor], Tensor]) -> Stream:
        """The same stream with every tensor replaced."""
        return Stream(
            function(self.data),
            None if self.keep is None else function(self.keep),
            None if self.edges is None else function(self.edges),
        )

    def times(self, count: int) -> Stream:
        """The examples, and then the same again, `count` times in all; edges belong to all of them."""
        return replace(self.map(lambda tensor: torch.cat([tensor] * count)), edges=self.edges)

    def count(self) -> int:
        """The number of real positions; without `keep` that of examples × positions."""
        if self.keep is None:
            return self.data.shape[:2].numel()
        return int(self.keep.count_nonzero())


@dataclass(frozen=True)
class Batch:
    """Examples side by side. The first stream is the one that models of a single stream read."""

    streams: Mapping[str, Stream]
    answers: Mapping[str, Stream] = field(default_factory=dict)  # empty where the right answer is unknown
    index: tuple[int, ...] = ()  # which examples of the data set these are, for error messages
    notes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # per example, what is not a tensor
    offset: Tensor | None = None  # (b,classes): scores that the task knows, for heads that add them to logits

    @classmethod
    def of(
        cls,
        inputs: Tensor,
        keep: Tensor | None = None,
        targets: Tensor | None = None,
        target_keep: Tensor | None = None,
        **notes: tuple[Any, ...],
    ) -> Batch:
        """A batch of one stream and at most one target."""
        answers = {} if targets is None else {TARGETS: Stream(targets, target_keep)}
        return cls({INPUTS: Stream(inputs, keep)}, answers, notes=notes)

    @property
    def first(self) -> Stream:
        """The first stream."""
        return next(iter(self.streams.values()))

    @property
    def inputs(self) -> Tensor:
        """The data of the first stream."""
        return self.first.data

    @property
    def keep(self) -> Tensor | None:
        """Where the first stream is real; None: everywhere."""
        return self.first.keep

    @property
    def targets(self) -> Tensor | None:
        """The first target, if the answer is known."""
        return next(iter(self.answers.values())).data if self.answers else None

    @property
    def target_keep(self) -> Tensor | None:
        """Where the first target counts; None: everywhere."""
        return next(iter(self.answers.values())).keep if self.answers else None

    @property
    def size(self) -> int:
        """The number of examples."""
        return self.inputs.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.inputs.device

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name: "inputs", "inputs.keep", "targets" …; a target's name never repeats a stream's."""
        tensors = {}
        for streams in (self.streams, self.answers):
            for name, stream in streams.items():
                key = f"answer {name}" if name in tensors else name
                tensors[key] = stream.data
                if stream.keep is not None:
                    tensors[f"{key}.keep"] = stream.keep
                if stream.edges is not None:
                    tensors[f"{key}.edges"] = stream.edges
        return tensors if self.offset is None else {**tensors, "offset": self.offset}

    def shapes(self) -> dict[str, list[int]]:
        """The shape of each tensor."""
        return {name: list(tensor.shape) for name, tensor in self.tensors().items()}

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with every tensor replaced, in the order of `tensors`."""
        return replace(
            self,
            streams={name: stream.map(function) for name, stream in self.streams.items()},
            answers={name: stream.map(function) for name, stream in self.answers.items()},
            offset=None if self.offset is None else function(self.offset),
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """The same batch in pinned memory, from which copies to a device need not wait."""
        return self.map(Tensor.pin_memory)

    def cast(self, dtype: torch.dtype) -> Batch:
        """The same batch with the numbers of its streams in `dtype`; ids, masks and targets stay."""

        def cast(stream: Stream) -> Stream:
            return replace(stream, data=stream.data.to(dtype)) if stream.data.is_floating_point() else stream

        return replace(
            self,
            streams={name: cast(stream) for name, stream in self.streams.items()},
            offset=None if self.offset is None else self.offset.to(dtype),
        )

    def filled(self, tensors: Mapping[str, Tensor]) -> Batch:
        """The same batch with other tensors of the same names, those of `tensors`."""
        replacements = iter(tensors.values())
        return self.map(lambda _: next(replacements))

    def rows(self, chosen: list[int]) -> Batch:
        """Some of the examples, without their answers."""
        index = torch.tensor(chosen, device=self.device, dtype=torch.long)
        return replace(
            self.map(lambda tensor: tensor[index]),
            answers={},
            index=tuple(self.index[row] for row in chosen) if self.index else (),
            notes={name: tuple(values[row] for row in chosen) for name, values in self.notes.items()},
        )

    def times(self, count: int) -> Batch:
        """The examples, and then the same again, `count` times in all."""
        return replace(
            self,
            streams={name: stream.times(count) for name, stream in self.streams.items()},
            answers={name: stream.times(count) for name, stream in self.answers.items()},
            index=self.index * count,
            notes={name: values * count for name, values in self.notes.items()},
            offset=None if self.offset is None else torch.cat([self.offset] * count),
        )

    def answered(self, targets: Tensor, keep: Tensor | None = None) -> Batch:
        """The same questions with this answer."""
        return replace(self, answers={TARGETS: Stream(targets, keep)})
