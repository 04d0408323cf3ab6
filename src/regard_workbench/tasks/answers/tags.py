"""A tag for each position, the best sequence of tags as a whole: a linear-chain conditional random field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard.formula.formula import widened
from regard_workbench.tasks.answers.answer import Answer, Head
from regard_workbench.tasks.parts.batch import ASKED, Batch

OUTSIDE = "O"  # the tag of a position that belongs to no entity
IMPOSSIBLE = -1e4  # the score of a transition that BIO rules out; finite, so that no gradient becomes NaN


@dataclass(frozen=True)
class Tags(Answer):
    """One of the tags for each position: scores (b,n,tags); the target (b,n) counts where its `keep` says so.

    Positions that do not count may stand between others (further pieces of a word): neighbours are those that count.
    Tags are O, B-TYPE (an entity begins) and I-TYPE (it goes on), so that I-TYPE only follows B-TYPE or I-TYPE.

    `outside` is added to the scores of O in training alone. Above 0, a model finds more entities, with more errors
    among them: right where entities are denser than in training (logit adjustment, Menon et al. 2021).
    """

    tags: tuple[str, ...]
    outside: float = 0.0
    needs: ClassVar[str] = "rows"
    words: ClassVar[str] = "a tag for each position, chosen together"
    terms: ClassVar[str] = "sentences"
    units: ClassVar[str] = "sentences"

    @property
    def outputs(self) -> int:
        """One score for each tag."""
        return len(self.tags)

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> CRF:
        """Scores of tags and of pairs of neighbouring tags."""
        return CRF(self, dim)

    def may_follow(self, before: str | None, after: str) -> bool:
        """Whether a tag may stand after another; `before` None: at the beginning of a sentence."""
        return not after.startswith("I-") or (before is not None and before[2:] == after[2:])


class CRF(Head):
    """A sequence of tags scores the sum of its positions, of its neighbouring pairs, of its first and its last tag.

    Its probability is the exponential of that, divided by the sum over all sequences (Lafferty et al. 2001).
    """

    ruled_out: Tensor
    first_ruled_out: Tensor
    raised: Tensor

    def __init__(self, answer: Tags, dim: int | None) -> None:
        super().__init__(answer.outputs, dim)
        tags = answer.tags
        self.transition = nn.Parameter(torch.zeros(len(tags), len(tags)))  # from, to
        self.first = nn.Parameter(torch.zeros(len(tags)))
        self.last = nn.Parameter(torch.zeros(len(tags)))
        out = [[not answer.may_follow(before, after) for after in tags] for before in tags]
        out_first = [not answer.may_follow(None, after) for after in tags]
        self.register_buffer("ruled_out", torch.tensor(out), persistent=False)
        self.register_buffer("first_ruled_out", torch.tensor(out_first), persistent=False)
        raised = [answer.outside * (tag == OUTSIDE) for tag in tags]
        self.register_buffer("raised", torch.tensor(raised), persistent=False)

    def forward(self, rows: Tensor, batch: Batch) -> Any:
        scores = super().forward(rows, batch)
        return scores + self.raised.to(scores) if self.training else scores

    def _pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The scores of pairs (from, to), of first tags and of last tags."""
        pairs = widened(self.transition).masked_fill(self.ruled_out, IMPOSSIBLE)
        return pairs, widened(self.first).masked_fill(self.first_ruled_out, IMPOSSIBLE), widened(self.last)

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """−log P(tags | sentence), summed over sentences, and the number of sentences."""
        assert batch.targets is not None
        if smoothing:
            raise BadValue(
                f"smoothing: a conditional random field scores whole sequences and has no classes to smooth, got "
                f"{smoothing:g}. Leave it out, or take a model without one: tagger(crf=false)."
            )
        scores, tags, keep = _moved_up(_kept(batch), widened(outputs), batch.targets)
        total = self.log_partition(scores, keep) - self.score(scores, tags, keep)
        real = keep.any(1)
        return total.masked_fill(~real, 0).sum(), real.sum().to(scores)

    def score(self, scores: Tensor, tags: Tensor, keep: Tensor) -> Tensor:
        """The score of given tags (b,n), for each sentence."""
        pairs, first, last = self._pairs()
        if not tags.shape[1]:
            return scores.sum((1, 2))
        emissions = scores.gather(-1, tags[..., None])[..., 0]
        between = pairs[tags[:, :-1], tags[:, 1:]]
        end = tags.gather(1, (keep.sum(1, keepdim=True) - 1).clamp(min=0))[:, 0]
        total = emissions.masked_fill(~keep, 0).sum(1) + between.masked_fill(~keep[:, 1:], 0).sum(1)
        return total + first[tags[:, 0]] + last[end]

    def log_partition(self, scores: Tensor, keep: Tensor) -> Tensor:
        """log Σ exp(score) over all sequences of tags, for each sentence."""
        pairs, first, last = self._pairs()
        if not scores.shape[1]:
            return scores.sum((1, 2))
        so_far = first + scores[:, 0]
        for at in range(1, scores.shape[1]):
            longer = torch.logsumexp(so_far[:, :, None] + pairs, 1) + scores[:, at]
            so_far = torch.where(keep[:, at, None], longer, so_far)
        return torch.logsumexp(so_far + last, 1)

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """The best tags of each sentence, without padding (Viterbi)."""
        scores, keep = _moved_up(_kept(batch), widened(outputs))
        pairs, first, last = self._pairs()
        if not scores.shape[1]:
            return [[] for _ in scores]
        best, came_from = first + scores[:, 0], []
        for at in range(1, scores.shape[1]):
            value, before = (best[:, :, None] + pairs).max(1)
            best = torch.where(keep[:, at, None], value + scores[:, at], best)
            came_from.append(before)
        return _traced((best + last).argmax(1), came_from, keep)


def _traced(ends: Tensor, came_from: list[Tensor], keep: Tensor) -> list[list[int]]:
    """Follow each sentence back from its last tag."""
    back = torch.stack(came_from, 1).tolist() if came_from else [[] for _ in ends]
    paths = []
    for end, steps, length in zip(ends.tolist(), back, keep.sum(1).tolist(), strict=True):
        tags = [end] if length else []
        for before in reversed(steps[: max(0, length - 1)]):
            tags.append(before[tags[-1]])
        paths.append(tags[::-1])
    return paths


def _moved_up(keep: Tensor, *rows: Tensor) -> list[Tensor]:
    """Rows (b,n,…) with those that are kept first, in their order, and `keep` in the same order, last."""
    order = (~keep).long().argsort(dim=1, stable=True)
    wide = [order.view(*order.shape, *[1] * (row.dim() - 2)).expand_as(row) for row in rows]
    moved = [row.gather(1, places) for row, places in zip(rows, wide, strict=True)]
    return [*moved, keep.gather(1, order)]


def _kept(batch: Batch) -> Tensor:
    """Where a tag is asked for, (b,n): where targets count, else what the batch asks for, else the real positions."""
    shape, positions = batch.inputs.shape[:2], batch.notes.get(ASKED)
    if batch.target_keep is not None:
        return batch.target_keep
    if positions is not None:
        keep = torch.zeros(shape, dtype=torch.bool)
        for row, places in enumerate(positions):
            keep[row, list(places)] = True
        return keep.to(batch.device)
    if batch.keep is None:
        return torch.ones(shape, dtype=torch.bool, device=batch.device)
    return batch.keep
