"""The words that may be put in the place of others, with their vectors in the attacked model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard_workbench.tasks.parts.task import Task
from regard_workbench.tasks.text.vocabulary import SPECIAL

AT_ONCE = 256  # examples read at once, and words compared with all others at once


@dataclass(frozen=True)
class Lexicon:
    """Words that occur in the training texts. A position of the input holds the id of a word, and more ids of its parts
    where the stream has them."""

    words: list[str]
    rows: Tensor  # (w,) ids, or (w,columns): what a position holds
    vectors: Tensor  # (w,dim), as the model's embedding gives them

    @property
    def ids(self) -> Tensor:
        """The id of each word, (w,), rising."""
        return self.rows if self.rows.dim() == 1 else self.rows[:, 0].contiguous()

    def find(self, inputs: Tensor) -> Tensor:
        """The number of the word at each position of inputs (b,n) or (b,n,columns); −1 where it is not listed."""
        ids = inputs if inputs.dim() == 2 else inputs[..., 0]
        place = torch.searchsorted(self.ids, ids.contiguous()).clamp(max=len(self.ids) - 1)
        return torch.where(self.ids[place] == ids, place, -1)

    def nearest(self, numbers: Tensor, count: int, cosine: float) -> tuple[Tensor, Tensor]:
        """The words whose vectors have the largest cosine with those of `numbers` (m,), themselves left out.

        Their numbers (m,count), nearest first, and whether the cosine is at least `cosine`.
        """
        unit = nn.functional.normalize(self.vectors.float(), dim=1)
        count = min(count, len(unit) - 1)
        neighbours, near = [], []
        for chunk in numbers.split(AT_ONCE):
            cosines = unit[chunk] @ unit.T
            cosines[torch.arange(len(chunk)), chunk] = -torch.inf
            best = cosines.topk(count, 1)
            neighbours.append(best.indices)
            near.append(best.values >= cosine)
        return torch.cat(neighbours), torch.cat(near)


@torch.no_grad()
def lexicon(task: Task, embedding: nn.Module, split: str, device: torch.device) -> Lexicon:
    """The words of a task's training texts; where a run reads files without any, those of the attacked split."""
    try:
        examples = task.examples("train")
    except BadValue:
        examples = task.examples(split)
    known_words: dict[int, tuple[str, Tensor]] = {}
    for start in range(0, len(examples), AT_ONCE):
        chunk = [examples[number] for number in range(start, min(start + AT_ONCE, len(examples)))]
        _read(task, chunk, known_words)
    if len(known_words) < 2:
        raise BadValue(f"run: expected at least two known words in the texts of {task.name}, got {len(known_words)}.")
    order = sorted(known_words)
    rows = torch.stack([known_words[number][1] for number in order]).to(device)
    vectors: Tensor = embedding(rows[None])[0]
    return Lexicon([known_words[number][0] for number in order], rows, vectors)


def _read(task: Task, examples: Sequence[Any], found: dict[int, tuple[str, Tensor]]) -> None:
    """Add the words of some examples: text and ids of each position that holds a known word."""
    batch = task.collate(examples, torch.Generator())
    ids = batch.inputs if batch.inputs.dim() == 2 else batch.inputs[..., 0]
    for row, example in enumerate(examples):
        numbers = ids[row].tolist()
        if all(number < len(SPECIAL) or number in found for number in numbers):
            continue  # nothing new
        pieces = task.show(example, batch).pieces
        for place, (number, piece) in enumerate(zip(numbers, pieces, strict=False)):  # padding has no piece
            if number >= len(SPECIAL):
                found.setdefault(number, (piece, batch.inputs[row, place].clone()))
