"""`recognizer`: speech to text by a Transformer whose encoder spells (CTC) and whose decoder writes (attention)."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.decoding import Hypothesis
from regard.errors import BadValue
from regard.formula.formula import widened
from regard.support.arguments import finite_number
from regard_workbench.models.parts.ctc import CtcPrefixes
from regard_workbench.models.parts.embedding import padding_mask
from regard_workbench.models.parts.model import model
from regard_workbench.models.parts.stack import CachedStep, write
from regard_workbench.models.transformer import Transformer, WritingState
from regard_workbench.tasks.answers import Writes
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Frames


class Heard(NamedTuple):
    """What the two outputs say."""

    written: Tensor  # (b,t,count): the decoder's logits for each token of the target
    spelled: Tensor  # (b,n,count): the encoder's logits for each frame; the start token is the blank


@model("recognizer", gives=("decoder",), reads=(Frames,))
class Recognizer(Transformer):
    """A convolutional front end, a Transformer encoder, and two ways to a text that are trained and searched together.

        loss  = ctc · CTC(frames) + (1 − ctc) · cross-entropy(decoder)
        score = joint · log P_CTC(prefix) + (1 − joint) · log P_decoder(prefix)

    CTC cannot skip or repeat a part of a long sound, and the decoder knows which tokens follow each other; the joint
    search needs both to agree. Target tokens never hold the start token, so CTC takes it as its blank.

    Paper: Watanabe et al. 2017 (hybrid CTC/attention); Dong et al. 2018 (Speech-Transformer).

    Args:
        ctc: share of CTC in the loss; 0: the decoder alone, 1: CTC alone
        joint: share of CTC in the search; by default as in the loss
    """

    takes_attention: ClassVar[str] = "the attention of encoder and decoder among their own positions"
    shows: ClassVar[dict[str, str]] = {
        "decoder.layers.-1.cross": "the last decoder layer's attention to the sound",
        "encoder.layers.-1.attention": "{name} of the last encoder layer",
    }

    answer: Writes

    def __init__(
        self,
        problem: Problem,
        *,
        ctc: float = 0.3,
        joint: float | None = None,
        dim: int = 128,
        layers: int = 4,
        decoder_layers: int | None = 1,
        **options: Any,
    ) -> None:
        super().__init__(problem, dim=dim, layers=layers, decoder_layers=decoder_layers, **options)
        self.ctc = _weight("ctc", ctc)
        self.joint = self.ctc if joint is None else _weight("joint", joint)
        self.spell = nn.Linear(dim, self.answer.count)

    def forward(self, batch: Batch) -> Heard:
        source = self.read(batch)
        rows = self.target_embedding(self.answer.decoder_inputs(batch))
        rows = self.decoder(rows, source=source, source_mask=padding_mask(batch.keep))
        return Heard(self.head(rows, batch), self.spell(source))

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """Both losses, summed over the batch, and the number of target tokens."""
        assert batch.targets is not None
        total, count = self.head.loss(outputs.written, batch, smoothing)
        tokens, frames = _lengths(batch.targets, batch.target_keep), _lengths(batch.inputs, batch.keep)
        ctc_loss = F.ctc_loss(
            widened(outputs.spelled).log_softmax(-1).transpose(0, 1),
            batch.targets,
            frames,
            tokens - 1,  # without the end
            blank=self.answer.start,
            reduction="sum",
            zero_infinity=True,
        )
        return self.ctc * ctc_loss + (1 - self.ctc) * total, count

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """The decoder's likeliest tokens."""
        return self.head.predict(outputs.written, batch)

    @torch.no_grad()
    def generate(self, batch: Batch, *, cached: bool = True, **options: Any) -> list[list[Hypothesis]]:
        """Transcripts for each sound, best first, by both outputs. Options: see `write`; sampling uses the decoder."""
        if options.get("method") == "sample" or self.joint == 0 or not cached:
            return super().generate(batch, cached=cached, **options)
        options.setdefault("max_length", self.answer.length)
        start = torch.full((batch.size, 1), self.answer.start, device=batch.device)
        if not batch.inputs.numel():
            return super().generate(batch, **options)
        return write(JointStep(self, self.initial_state(batch)), start, end=self.answer.end, **options)


class JointStep(CachedStep):
    """A decoding step in which CTC and the decoder vote, each with its share."""

    def __init__(self, owner: Recognizer, state: WritingState) -> None:
        super().__init__(owner.step, state)
        self.weight = owner.joint
        frames = _lengths(state.source, state.keep)
        spelled = widened(owner.spell(state.source)).log_softmax(-1)
        self.prefixes = CtcPrefixes(spelled, frames, blank=owner.answer.start, end=owner.answer.end)

    def __call__(self, prefixes: Tensor) -> Tensor:
        if self.seen:  # the first call holds the start alone
            self.prefixes.extend(prefixes[:, -1])
        written = super().__call__(prefixes)
        return self.weight * self.prefixes.gains() + (1 - self.weight) * written

    def reorder(self, index: Tensor) -> None:
        """Row i continues from the state of row index[i]."""
        super().reorder(index)
        self.prefixes.reorder(index)


def _weight(argument: str, given: float) -> float:
    weight = finite_number(argument, given)
    if not 0 <= weight <= 1:
        raise BadValue(f"{argument}: expected a share from 0 to 1, got {given!r}.")
    return weight


def _lengths(data: Tensor, keep: Tensor | None) -> Tensor:
    if keep is None:
        return torch.full((len(data),), data.shape[1], device=data.device)
    return keep.sum(1)
