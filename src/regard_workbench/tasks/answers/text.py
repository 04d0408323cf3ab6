"""Tokens that follow: the next one at every position, or a text of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard_workbench.tasks.answers.answer import Answer, Decoded
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.streams import Tokens


@dataclass(frozen=True)
class NextToken(Answer):
    """The next token at every position: logits (b,n,count); the target (b,n) is the input, one position on."""

    count: int
    end: int | None = None  # the token that finishes a text, where there is one
    needs: ClassVar[str] = "past"
    writes: ClassVar[bool] = True
    classed: ClassVar[bool] = True
    words: ClassVar[str] = "the next token at every position"
    kind: ClassVar[str] = "completion"
    terms: ClassVar[str] = "tokens"

    @property
    def outputs(self) -> int:
        """One logit for each token."""
        return self.count


@dataclass(frozen=True)
class Writes(Decoded):
    """A text of its own: logits (b,t,count), at t those of target[t] given the tokens before it."""

    count: int
    length: int  # the longest target, its end included
    start: int  # the token that a decoder is given first
    end: int  # the token that finishes a text
    length_penalty: float = 1.0  # beam search divides log-probabilities by lengths to this power
    guide: float = 0.0  # weight of a loss that draws attention to the links in a batch's `GUIDE`
    needs: ClassVar[str] = "decoder"
    writes: ClassVar[bool] = True
    classed: ClassVar[bool] = True
    words: ClassVar[str] = "another sequence, given the whole one"
    kind: ClassVar[str] = "translation"
    terms: ClassVar[str] = "tokens"
    units: ClassVar[str] = "sentences"

    @property
    def outputs(self) -> int:
        """One logit for each token."""
        return self.count

    def decoder_stream(self) -> Tokens:
        """The tokens of a target, behind the start token."""
        return Tokens(self.count, length=self.length + 1)

    def decoder_inputs(self, batch: Batch) -> Tensor:
        """The targets, one position behind."""
        assert batch.targets is not None
        return shifted(batch.targets, self.start)

    def decoding(self, beam: int | None = None) -> dict[str, Any]:
        """Greedy, or beam search of a width, up to the longest target."""
        if beam is None:
            return {"method": "greedy", "max_length": self.length}
        return {"method": "beam", "beam": beam, "length_penalty": self.length_penalty, "max_length": self.length}


def shifted(targets: Tensor, start: int) -> Tensor:
    """Decoder inputs for targets (b,t): the start token, then all targets but the last."""
    return torch.cat([torch.full_like(targets[:, :1], start), targets[:, :-1]], 1)
