"""What tasks share that ask a memory for bits: sequences of bit vectors, their batches, and the cost of a sequence.

The measures are those of Graves et al. 2014: the cost of a whole sequence in bits, and how many of its bits are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from regard.tasks.problem import Batch, Problem, Vectors
from regard.tasks.task import Answers, Sums, Task

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


class BitsTask(Task):
    """The base of tasks of kind bits. A subclass sets `bits` and `longest`; two channels beside the bits are marks."""

    metric = "bits_per_sequence"
    higher_is_better = False

    bits: int
    longest: int

    def problems(self) -> list[Problem]:
        """One: bits in, bits out."""
        return [Problem("bits", Vectors(self.bits + 2), self.bits, max_length=self.longest)]

    def length(self, example: Tape) -> int:
        """Steps of a sequence, the answer included."""
        return len(example.inputs)

    def collate(self, examples: Sequence[Tape], generator: torch.Generator) -> Batch:
        """Sequences padded at their ends with zeros."""
        longest = max((len(example.inputs) for example in examples), default=0)
        inputs = torch.zeros(len(examples), longest, self.bits + 2)
        targets = torch.zeros(len(examples), longest, self.bits)
        keep = torch.zeros(len(examples), longest, dtype=torch.bool)
        target_keep = torch.zeros(len(examples), longest, dtype=torch.bool)
        for row, example in enumerate(examples):
            steps = len(example.inputs)
            inputs[row, :steps] = torch.from_numpy(example.inputs)
            targets[row, :steps] = torch.from_numpy(example.targets)
            keep[row, :steps] = True
            target_keep[row, example.answer : steps] = True
        return Batch(inputs, None if bool(keep.all()) else keep, targets, target_keep)

    def measure(self, model: Answers, batch: Batch) -> Sums:
        """The loss of a vector in nats, and for each sequence its cost in bits, its wrong bits, whether it is right."""
        assert batch.targets is not None and batch.target_keep is not None
        outputs = model(batch).float()
        counts = batch.target_keep[..., None]
        each = F.binary_cross_entropy_with_logits(outputs, batch.targets.float(), reduction="none")
        total = float(each.masked_fill(~counts, 0.0).double().sum())
        wrong = (((outputs > 0) != (batch.targets > 0.5)) & counts).sum((1, 2))
        sequences = float(batch.size)
        return {
            "loss": (total, float(batch.target_keep.sum())),
            "bits_per_sequence": (total / math.log(2), sequences),
            "wrong_bits": (float(wrong.sum()), sequences),
            "exact_match": (float((wrong == 0).sum()), sequences),
        }
