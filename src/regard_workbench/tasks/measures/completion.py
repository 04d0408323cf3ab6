"""How well a model completes a sentence from its opening.

The first half of a sentence is given, and the model writes the second half, always the likeliest token next. With y
for the sentence and ŷ for what the model wrote,

    completion_accuracy                  how often ŷ_i = y_i
    completion_nll                       mean of −log P(y_i | opening, ŷ_<i): on the model's own prefix
    teacher_forced_completion_accuracy   how often the likeliest token given y_<i is y_i
    teacher_forced_completion_nll        mean of −log P(y_i | y_<i)

A model of hidden words guesses the whole second half at once. It writes no prefix, so the first two say how well it
guesses, and the others do not exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.formula.formula import widened
from regard_workbench.tasks.measures.metrics import SHARE, Answered, Answering, Mean, Metric, State, merged, observe
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.text.vocabulary import BLANK, Vocabulary

# A sentence ends at . ! or ? (with what closes a quotation) before white space, or with its line.
_SENTENCE = re.compile(r"\S[^\n]*?(?:[.!?]+[\"'”’)]*(?=\s)|(?=\n)|\Z)")
Thing = TypeVar("Thing")
PROTOCOL = (
    "the first half of a sentence is given; the model writes the second half by itself, the likeliest token each time; "
    "teacher-forced: each token of the second half is judged given the right ones before it"
)
MOST = 1000  # texts that are completed where there are more
SHORTEST = 4  # tokens: half of less is no opening


def sentences_of(text: str) -> list[str]:
    """The sentences of a text, in order."""
    return [match.group().strip() for match in _SENTENCE.finditer(text)]


def evenly(things: Sequence[Thing], most: int) -> list[Thing]:
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


def second_halves(batch: Batch) -> Batch | None:
    """The same batch, in which the second half of each target counts; None without targets.

    Targets that are shorter than `SHORTEST` do not count.
    """
    targets, keep = batch.targets, batch.target_keep
    if targets is None:
        return None
    real = torch.ones_like(targets, dtype=torch.bool) if keep is None else keep
    lengths = real.sum(1, keepdim=True)
    place = torch.arange(targets.shape[1], device=targets.device)
    judged = real & (place >= lengths // 2) & (lengths >= SHORTEST)
    return Batch.of(batch.inputs, batch.keep, targets, judged)


@torch.no_grad()
def examine(
    model: Answering, batches: Iterable[Batch], metrics: Sequence[Metric], device: torch.device | str
) -> list[tuple[Metric, State]]:
    """The state of each metric over all batches."""
    batch_states = [observe(metrics, Answered(model, batch.to(device))) for batch in batches]
    states = merged(metrics, batch_states)
    return [(metric, states[metric.name]) for metric in metrics if metric.name in states]


def _cost(logits: Tensor, answered: Answered) -> tuple[float, float]:
    targets, keep = answered.batch.targets, answered.counts
    assert targets is not None
    return float(F.cross_entropy(widened(logits)[keep], targets[keep], reduction="sum")), float(keep.sum())


def _forced_cost(answered: Answered) -> tuple[float, float]:
    return _cost(answered.outputs, answered)


def _forced_right(answered: Answered) -> tuple[float, float]:
    right = answered.right[answered.counts]
    return float(right.sum()), float(right.numel())


def _continued(answered: Answered) -> tuple[Tensor, Tensor]:
    """What a language model writes after the openings, as targets (b,n), and its logits for them on its own prefix."""
    batch, targets = answered.batch, answered.batch.targets
    assert targets is not None
    length = int(answered.counts[0].sum())  # all sentences of a batch have one length
    if not batch.size:
        return targets, answered.outputs
    opening = batch.inputs[:, : targets.shape[1] - length + 1]
    hypotheses = answered.model.generate(Batch.of(opening), method="greedy", max_length=length)
    rows = [list(best[0].tokens) for best in hypotheses]
    written = torch.tensor([row + row[-1:] * (length - len(row)) for row in rows]).to(targets)
    inputs = torch.cat([opening, written[:, :-1]], 1)
    return torch.cat([targets[:, :-length], written], 1), answered.model(Batch.of(inputs))


def _rewritten(answered: Answered) -> tuple[Tensor, Tensor]:
    """The same for a model with a decoder: what it writes after the opening of each target, given the input."""
    targets, counts = answered.batch.targets, answered.counts
    assert targets is not None
    written, rows = targets.clone(), []
    for place, logits in enumerate(_logits_after(answered, written)):
        rows.append(logits)
        written[:, place] = torch.where(counts[:, place], logits.argmax(-1), written[:, place])
    return written, torch.stack(rows, 1)


def _logits_after(answered: Answered, written: Tensor) -> Iterator[Tensor]:
    """The logits (b,v) for each place, given what `written` holds before that place when they are asked for."""
    model: Any = answered.model
    batch = answered.batch
    if callable(getattr(model, "step", None)):
        state = model.initial_state(batch)
        tokens = torch.full_like(written[:, :1], model.problem.answer.start)
        for place in range(written.shape[1]):
            logits, state = model.step(tokens, state)
            yield logits[:, -1]
            tokens = written[:, place : place + 1]
    else:  # row i of its outputs depends on the targets before i, so each pass over the batch yields one more token
        for place in range(written.shape[1]):
            yield model(Batch.of(batch.inputs, batch.keep, written, batch.target_keep))[:, place]


def _own_metrics(write: Callable[[Answered], tuple[Tensor, Tensor]]) -> tuple[Mean, Mean]:
    def right(answered: Answered) -> tuple[float, float]:
        targets = answered.batch.targets
        assert targets is not None
        hits = (answered.once(write)[0] == targets)[answered.counts]
        return float(hits.sum()), float(hits.numel())

    def cost(answered: Answered) -> tuple[float, float]:
        return _cost(answered.once(write)[1], answered)

    return (
        Mean("completion_accuracy", unit=SHARE, over=OVER, look=right),
        Mean("completion_nll", higher_is_better=False, over=OVER, look=cost),
    )


OVER = "completed tokens"
TEACHER_FORCED = (
    Mean("teacher_forced_completion_accuracy", unit=SHARE, over=OVER, look=_forced_right),
    Mean("teacher_forced_completion_nll", higher_is_better=False, over=OVER, look=_forced_cost),
)
CONTINUED = (*_own_metrics(_continued), *TEACHER_FORCED)  # for models that give the next token
REWRITTEN = (*_own_metrics(_rewritten), *TEACHER_FORCED)  # for models with a decoder
GUESSED = (
    Mean("completion_accuracy", unit=SHARE, over=OVER, look=_forced_right),
    Mean("completion_nll", higher_is_better=False, over=OVER, look=_forced_cost),
)  # for models that guess hidden tokens
