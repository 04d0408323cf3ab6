"""What a task asks of a model: the kind of question, what goes in, what comes out. And a batch of such questions.

A model reads a `Problem` to build itself and a `Batch` to run; it never sees the task. A task never sees a model's
inside. So every model that serves a kind of problem runs on every task that poses it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["classify", "language", "masked", "translate", "bits"]


@dataclass(frozen=True)
class Tokens:
    """Positions that hold one of `count` ids; `padding` is the id that stands where nothing is."""

    count: int
    padding: int = 0


@dataclass(frozen=True)
class Vectors:
    """Positions that hold `width` numbers: rows of an image, bits, frames of sound."""

    width: int


@dataclass(frozen=True)
class Problem:
    """What is asked.

    classify   inputs (b,n) → logits (b,outputs); targets (b,) hold the class
    language   inputs (b,n) → logits (b,n,outputs) of the next token; targets (b,n)
    masked     inputs (b,n), some replaced by `blank` → logits (b,n,outputs); targets (b,n), only where target_keep
    translate  inputs (b,n) and targets (b,t) → logits (b,t,outputs): at t the token targets[t], given those before it
    bits       inputs (b,n,width) → logits (b,n,outputs) of independent bits; targets (b,n,outputs), where target_keep
    """

    kind: Kind
    inputs: Tokens | Vectors
    outputs: int  # classes, size of the output vocabulary, or bits
    max_length: int  # the longest input
    max_target: int = 0  # the longest target, its end included (translate)
    start: int | None = None  # the token a decoder begins with (translate; language, where there is one)
    end: int | None = None  # the token that finishes a sequence (translate; language, where there is one)
    blank: int | None = None  # the token that stands for a hidden one (masked)


@dataclass(frozen=True)
class Batch:
    """Questions with their answers, padded to one length."""

    inputs: Tensor  # (b,n) ids or (b,n,width) numbers
    keep: Tensor | None = None  # (b,n), True = real; None: everything is
    targets: Tensor | None = None  # as the problem's kind says
    target_keep: Tensor | None = None  # (b,t), where a target counts; None: everywhere
    index: tuple[int, ...] = ()  # which examples of the data set these are, for error messages

    @property
    def size(self) -> int:
        """How many examples."""
        return len(self.inputs)

    def tensors(self) -> dict[str, Tensor]:
        """What there is of it, by name."""
        every = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in every.items() if isinstance(value, Tensor)}

    def shapes(self) -> dict[str, list[int]]:
        """The shape of each tensor."""
        return {name: list(tensor.shape) for name, tensor in self.tensors().items()}

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        return replace(
            self,
            inputs=self.inputs.to(device, non_blocking=True),
            keep=moved(self.keep),
            targets=moved(self.targets),
            target_keep=moved(self.target_keep),
        )
