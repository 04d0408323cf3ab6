"""How well a language model continues a sentence from its opening.

The first half of a sentence is given, the second is judged token by token, each given all that stands before it: how
often the likeliest token is the right one, and the negative log-likelihood of the right one. A model of hidden words
has the whole second half hidden at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

from regard.tasks.problem import Batch, Kind
from regard.tasks.task import Answers, Sums
from regard.tasks.vocabulary import BLANK, Vocabulary

# A sentence ends at . ! or ? (with what closes a quotation) before white space, or with its line.
_SENTENCE = re.compile(r"\S[^\n]*?(?:[.!?]+[\"'”’)]*(?=\s)|(?=\n)|\Z)")
SHORTEST = 4  # tokens: half of less is no opening


def sentences_of(text: str) -> list[str]:
    """The sentences of a text, in order."""
    return [found.group().strip() for found in _SENTENCE.finditer(text)]


def evenly(things: Sequence[str], most: int) -> list[str]:
    """So many of them at most, from the whole length."""
    if len(things) <= most:
        return list(things)
    return [things[place * len(things) // most] for place in range(most)]


def batches(
    sentences: Sequence[str], known: Vocabulary, kind: Kind, context: int, batch_size: int
) -> Iterator[Batch]:
    """Batches in which only the second halves count. Sentences longer than the context are cut.

    Those of one length go together: nothing is padded, so that models which take no padding are judged too.
    """
    sequences = [ids[: context + (kind == "language")] for ids in known.encode_all(sentences)]
    by_length: dict[int, list[list[int]]] = {}
    for ids in sequences:
        by_length.setdefault(len(ids), []).append(ids)
    for length in sorted(length for length in by_length if length >= SHORTEST):
        group = torch.tensor(by_length[length])
        judged = (torch.arange(length) >= length // 2).expand(group.shape)
        for ids, counts in zip(group.split(batch_size), judged.split(batch_size), strict=True):
            if kind == "language":
                yield Batch(ids[:, :-1], None, ids[:, 1:], counts[:, 1:])
            else:
                yield Batch(ids.masked_fill(counts, BLANK), None, ids, counts)


def measure(model: Answers, batch: Batch) -> Sums:
    """The sums of a batch."""
    assert batch.targets is not None and batch.target_keep is not None
    outputs = model(batch).float()
    right = (outputs.argmax(-1) == batch.targets)[batch.target_keep]
    cost = F.cross_entropy(outputs[batch.target_keep], batch.targets[batch.target_keep], reduction="sum")
    count = float(right.numel())
    return {
        "continuation_accuracy": (float(right.sum()), count),
        "continuation_nll": (float(cost), count),
    }
