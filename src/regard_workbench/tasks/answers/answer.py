"""What comes out of a model: an answer, and the head that makes it from the model's rows.

An `Answer` is a small value: how many classes, which token ends a text. `answer.head(dim)` makes the module that turns
rows into the answer: it owns the parameters that this takes, computes the loss and reads predictions off its outputs.

A model must offer what the answer `needs`:

    pooled    one row for each example, (b,dim)
    rows      one row for each position of the first stream, (b,n,dim), which may see all positions
    past      the same, but row i may see only positions 0 … i
    decoder   rows (b,t,dim) for a target of its own, each given what comes before it in the target
    future    the values themselves, (b,horizon,columns), that follow each column of the first stream
    steps     one row for each step that follows the first stream, (b,horizon,dim)
    slots     a score for each value of each slot, (b,scores)
    candidates   a row for each candidate, (b,c,dim)
    boxes     scores of the classes and a box for each of several queries, (b,queries,·), layer by layer
    pixels    a score of each class for each pixel, (b,height,width,classes)
    glances   a row for each example after each glimpse at it, (b,glimpses,dim)
    picture   a picture that it makes, (b,channels,height,width)
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.formula.formula import widened
from regard_workbench.tasks.parts.batch import ASKED, Batch
from regard_workbench.tasks.parts.streams import StreamSpec

NEEDS = {
    "pooled": "one row for each example",
    "rows": "one row for each position",
    "past": "one row for each position, which sees only earlier ones",
    "decoder": "rows for a target of its own",
    "future": "the next values of each column",
    "steps": "one row for each coming step",
    "slots": "a score for each value of each slot",
    "candidates": "a row for each candidate",
    "boxes": "classes and boxes of several queries",
    "pixels": "a score of each class for each pixel",
    "glances": "a row for each example after each glimpse",
    "picture": "a picture that it makes",
}


class Answer:
    """The base of every answer. A subclass is a frozen dataclass with a head."""

    needs: ClassVar[str] = "rows"
    words: ClassVar[str] = ""  # what the model answers, for `regard list`
    kind: ClassVar[str] = "answer"  # how it is shown: class, translation, completion, filled (blanks), answer
    terms: ClassVar[str] = "examples"  # what the loss is a mean over
    units: ClassVar[str] = "examples"  # what one example is called
    writes: ClassVar[bool] = False  # whether `model.generate` writes it token by token
    classed: ClassVar[bool] = False  # whether the outputs are logits (b,…,classes) of one class for each target

    scored: ClassVar[bool] = True  # whether the largest of the last axis is the answer; not so of bits and numbers

    @property
    def outputs(self) -> int:
        """The width of what the head gives."""
        raise NotImplementedError(f"{type(self).__name__} does not define outputs")

    def decoding(self, beam: int | None = None) -> dict[str, Any]:
        """The options of `model.generate` in an evaluation; empty: an evaluation generates nothing."""
        return {}

    def probabilities(self, outputs: Any) -> Tensor | None:
        """The probability of each class for each example, (b,classes), where the answer is one of several classes."""
        return None

    def log_probabilities(self, outputs: Any) -> Tensor | None:
        """Log-probabilities (b,…,classes) of the classes of each target; None where targets are not of classes."""
        return widened(outputs).log_softmax(-1) if self.classed and isinstance(outputs, Tensor) else None

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> Head:
        """The module that answers from rows of width `dim`. None: the rows are `outputs` wide and are the answer.

        `tied`: an embedding whose weights the head shares, where answer and input have the same vocabulary.
        """
        return Head(self.outputs, dim, tied)


class Decoded(Answer):
    """The base of answers that a decoder gives, one row after the other: it also says what the decoder reads there."""

    def decoder_stream(self) -> StreamSpec:
        """What each position of a decoder's input holds."""
        raise NotImplementedError(f"{type(self).__name__} does not define decoder_stream")

    def decoder_inputs(self, batch: Batch) -> Tensor:
        """What a decoder reads to give its rows: (b,t) ids or (b,t,width) numbers."""
        raise NotImplementedError(f"{type(self).__name__} does not define decoder_inputs")


class Head(nn.Module):
    """Logits from rows by one linear map, or the rows themselves; the loss is the cross-entropy of the first target."""

    def __init__(self, outputs: int, dim: int | None = None, tied: nn.Embedding | None = None) -> None:
        super().__init__()
        self.row_scale = 1.0  # T5 makes rows smaller where the head shares the embedding
        self.logits: nn.Module = nn.Identity()
        if dim is None:
            return
        linear = nn.Linear(dim, outputs)
        nn.init.normal_(linear.weight, std=dim**-0.5)
        nn.init.zeros_(linear.bias)
        if tied is not None:
            assert tied.num_embeddings == outputs
            linear.weight = tied.weight
        self.logits = linear

    def drop_bias(self) -> None:
        """Take the vector away that is added to the logits."""
        if isinstance(self.logits, nn.Linear):
            self.logits.register_parameter("bias", None)

    def forward(self, rows: Tensor, batch: Batch) -> Any:
        """The outputs for rows: here logits."""
        return self.logits(rows if self.row_scale == 1.0 else rows * self.row_scale)

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The sum of the losses of all that counts in a batch, in nats, and how much counts.

        A sum and a count, so that a batch may be split in any way.
        """
        return counted(self.each_loss(outputs, batch, smoothing), batch.target_keep)

    def each_loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """The loss of each target, (b, …), in nats: here the cross-entropy."""
        assert batch.targets is not None
        return F.cross_entropy(
            widened(outputs).flatten(0, -2), batch.targets.flatten(), reduction="none", label_smoothing=smoothing
        ).view(batch.targets.shape)

    @torch.no_grad()
    def example_losses(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The loss of each example, a sum over its targets, and how much counts in it, both (b,).

        A head that defines a `loss` of its own gives both for the whole batch, (1,), unless it overrides this, too.
        """
        if type(self).loss is not Head.loss:
            total, count = self.loss(outputs, batch, smoothing)
            return total.reshape(1), count.reshape(1)
        losses = self.each_loss(outputs, batch, smoothing)
        counts = torch.ones_like(losses) if batch.target_keep is None else batch.target_keep.to(losses)
        kept = losses.masked_fill(counts == 0, 0)
        return kept[..., None].flatten(1).sum(1), counts[..., None].flatten(1).sum(1)

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """What the outputs say, for each example: here the likeliest class, or those of the positions asked for."""
        classes: list[Any] = outputs.argmax(-1).tolist()
        positions = batch.notes.get(ASKED)
        if positions is None:
            return classes
        return [[row[at] for at in some] for row, some in zip(classes, positions, strict=True)]


def counted(each: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sum of the losses where they count, and how many do."""
    counts = torch.ones_like(each) if keep is None else keep.to(each)
    return each.masked_fill(counts == 0, 0).sum(), counts.sum()
