"""How well a language model completes a sentence from its opening.

The first half of a sentence is given, the second is judged token by token, each given all that stands before it: how
often the likeliest token is the right one, and the negative log-likelihood of the right one. A model of hidden words
has the whole second half hidden at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

from regard.tasks.batch import Batch
from regard.tasks.metrics import SHARE, Answered, Mean
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
    sentences: Sequence[str], known: Vocabulary, context: int, batch_size: int, *, hidden: bool
) -> Iterator[Batch]:
    """Batches in which only the second halves count, `hidden` all at once or given token by token.

    Sentences longer than the context are cut. Those of one length go together: nothing is padded, so that models which
    take no padding are judged too.
    """
    sequences = [ids[: context + (not hidden)] for ids in known.encode_all(sentences)]
    by_length: dict[int, list[list[int]]] = {}
    for ids in sequences:
        by_length.setdefault(len(ids), []).append(ids)
    for length in sorted(length for length in by_length if length >= SHORTEST):
        group = torch.tensor(by_length[length])
        judged = (torch.arange(length) >= length // 2).expand(group.shape)
        for ids, counts in zip(group.split(batch_size), judged.split(batch_size), strict=True):
            if hidden:
                yield Batch.of(ids.masked_fill(counts, BLANK), None, ids, counts)
            else:
                yield Batch.of(ids[:, :-1], None, ids[:, 1:], counts[:, 1:])


def _negative_log_likelihood(answered: Answered) -> tuple[float, float]:
    targets, keep = answered.batch.targets, answered.batch.target_keep
    assert targets is not None and keep is not None
    cost = F.cross_entropy(answered.outputs.float()[keep], targets[keep], reduction="sum")
    return float(cost), float(keep.sum())


def _right(answered: Answered) -> tuple[float, float]:
    right = answered.right[answered.counts]
    return float(right.sum()), float(right.numel())


OVER = "completed tokens"
METRICS = (
    Mean("completion_accuracy", unit=SHARE, over=OVER, look=_right),
    Mean("completion_nll", higher_is_better=False, over=OVER, look=_negative_log_likelihood),
)
