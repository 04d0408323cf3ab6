"""What tasks share that ask a memory for bits: sequences of bit vectors, their batches, and the cost of a sequence.

The measures are those of Graves et al. 2014: the cost of a whole sequence in bits, and how many of its bits are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from regard.formula.formula import widened
from regard_workbench.tasks.answers import Bits
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated.draws import Generated
from regard_workbench.tasks.measures.metrics import SHARE, Answered, Mean
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.data import Fitted, Kept
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.streams import Vectors
from regard_workbench.tasks.parts.task import Task

ENDLESS = 1_000_000  # training sequences: more than a run sees, and few enough to be shuffled
HELD_OUT = 200  # sequences for validation, and as many for the test


class Tape(NamedTuple):
    """One sequence: what goes in (n, width), what should come out (n, bits), and from which step on it counts."""

    inputs: NDArray[np.uint8]
    targets: NDArray[np.uint8]
    answer: int


def with_answer(shown: NDArray[np.uint8], answer: NDArray[np.uint8]) -> Tape:
    """What is shown, then blank steps in which the answer is due."""
    blank = np.zeros((len(answer), shown.shape[1]), dtype=np.uint8)
    silent = np.zeros((len(shown), answer.shape[1]), dtype=np.uint8)
    return Tape(np.concatenate([shown, blank]), np.concatenate([silent, answer]), len(shown))


def _cost(answered: Answered) -> float:
    """The cost of a batch in nats, in double precision: well-trained runs differ far behind the point."""
    targets, keep = answered.batch.targets, answered.batch.target_keep
    assert targets is not None and keep is not None
    wide = widened(answered.outputs)
    costs = F.binary_cross_entropy_with_logits(wide, targets.to(wide), reduction="none")
    return float(costs.masked_fill(~keep[..., None], 0.0).double().sum())


def _wrong(answered: Answered) -> Tensor:
    """The number of wrong bits of each sequence, (b,)."""
    targets, keep = answered.batch.targets, answered.batch.target_keep
    assert targets is not None and keep is not None
    wrong: Tensor = ((answered.outputs > 0) != (targets > 0.5)) & keep[..., None]
    return wrong.sum((1, 2))


def _vectors(answered: Answered) -> float:
    assert answered.batch.target_keep is not None
    return float(answered.batch.target_keep.sum())


BITS_PER_SEQUENCE = Mean(
    "bits_per_sequence",
    higher_is_better=False,
    over=Bits.units,
    look=lambda answered: (answered.once(_cost) / math.log(2), answered.batch.size),
)
METRICS = (
    Mean("loss", higher_is_better=False, look=lambda answered: (answered.once(_cost), _vectors(answered))),
    BITS_PER_SEQUENCE,
    Mean(
        "wrong_bits",
        higher_is_better=False,
        over=Bits.units,
        look=lambda answered: (float(answered.once(_wrong).sum()), answered.batch.size),
    ),
    Mean(
        "exact_match",
        unit=SHARE,
        over=Bits.units,
        look=lambda answered: (float((answered.once(_wrong) == 0).sum()), answered.batch.size),
    ),
)


@dataclass(frozen=True)
class Width(Fitted):
    """The width of a vector, on which the weights depend."""

    bits: int


class BitsTask(Task):
    """The base of tasks of bits; two channels beside the bits are marks. A subclass defines `longest` and `tape`."""

    judge = Judge(BITS_PER_SEQUENCE, METRICS)
    fitted = Kept(Width)
    pictured = False

    @property
    def longest(self) -> int:
        """Steps of the longest sequence."""
        raise NotImplementedError(f"{type(self).__name__} does not define longest")

    def tape(self, split: str, index: int) -> Tape:
        """The sequence of a split with a number."""
        raise NotImplementedError(f"{type(self).__name__} does not define tape")

    def streams(self) -> dict[str, Vectors]:
        """Bits and marks."""
        return {INPUTS: Vectors(self.fitted.bits + 2, self.longest)}

    def answers(self) -> list[Bits]:
        """Bits."""
        return [Bits(self.fitted.bits)]

    def examples(self, split: str) -> Sequence[Tape]:
        """Sequences, generated on access."""
        return Generated(ENDLESS if checked_split(split) == "train" else HELD_OUT, partial(self.tape, split))

    def length(self, example: Tape) -> int:
        """Steps of a sequence, the answer included."""
        return len(example.inputs)

    def collate(self, examples: Sequence[Tape], generator: torch.Generator) -> Batch:
        """Sequences padded at their ends with zeros."""
        longest = max((len(example.inputs) for example in examples), default=0)
        inputs = torch.zeros(len(examples), longest, self.fitted.bits + 2)
        targets = torch.zeros(len(examples), longest, self.fitted.bits)
        keep = torch.zeros(len(examples), longest, dtype=torch.bool)
        target_keep = torch.zeros(len(examples), longest, dtype=torch.bool)
        for row, example in enumerate(examples):
            steps = len(example.inputs)
            inputs[row, :steps] = torch.from_numpy(example.inputs)
            targets[row, :steps] = torch.from_numpy(example.targets)
            keep[row, :steps] = True
            target_keep[row, example.answer : steps] = True
        return Batch.of(inputs, None if bool(keep.all()) else keep, targets, target_keep)
