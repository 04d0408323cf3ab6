"""`decoder`: a causal language model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from regard.decoding import Hypothesis
from regard.errors import BadValue
from regard.formula.formula import widened
from regard_workbench.models.parts.model import model
from regard_workbench.models.parts.plain_steps import PlainState, plain_steps
from regard_workbench.models.parts.reader import Reader
from regard_workbench.models.parts.stack import CachedStep, StackState, write
from regard_workbench.tasks.answers import NextToken
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem

Advance = Callable[[Tensor, Any], tuple[Tensor, Any]]  # tokens and a state: logits and the next state


@model("decoder", gives=("past",))
class Decoder(Reader):
    """A Transformer decoder without an encoder: causal layers and next-token logits at every position.

    Paper: Radford et al. 2018; the layers of Vaswani et al. 2017.
    """

    takes_attention: ClassVar[str] = "each layer's causal attention among the positions"
    attention_default: ClassVar[str] = "causal"
    shares_sequences: ClassVar[bool] = True
    causal: bool = True

    def __init__(self, problem: Problem, *, layers: int = 4, tied: bool = True, **options: Any) -> None:
        super().__init__(problem, layers=layers, tied=tied, **options)

    def forward(self, batch: Batch) -> Any:
        return self.answer(batch)

    def step(self, tokens: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        """Logits (b,n,outputs) for the next tokens, and the new state."""
        rows, state = self.stack.step(self.embedding(tokens, offset=state.passed), state)
        return self.head(rows, Batch.of(tokens)), state

    def initial_state(self, batch: int) -> StackState:
        """The initial state."""
        weight = next(self.head.parameters())
        return self.stack.initial_state(batch, weight.device, weight.dtype)

    @torch.no_grad()
    def generate(self, batch: Batch, *, cached: bool = True, **options: Any) -> list[list[Hypothesis]]:
        """Continuations of the inputs, prompts not included. Options: see `write`.

        `cached=False` reads everything again for each token: the same answer, slowly.
        """
        return prompted(self, batch, cached, self._advance(), **options)

    def _advance(self) -> Advance:
        """`step` for one generation, without calling modules where that computes the same."""
        plain = None if self.further else plain_steps(self.embedding, self.stack, self.head)
        if plain is None:
            return self.step

        def advance(tokens: Tensor, state: StackState | PlainState) -> tuple[Tensor, StackState | PlainState]:
            if isinstance(state, StackState):
                if tokens.shape[1] > 1:  # a prompt
                    return self.step(tokens, state)
                state = plain.begin(state)
            return plain.step(tokens, state)

        return advance


class Continues(Protocol):
    """A model that decodes token by token."""

    problem: Problem

    def __call__(self, batch: Batch) -> Any: ...
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...
    def initial_state(self, batch: int) -> Any: ...


def prompted(
    owner: Continues, batch: Batch, cached: bool, advance: Advance | None = None, **options: Any
) -> list[list[Hypothesis]]:
    """Continuations of the inputs of a batch; padding is removed wherever it is.

    Prompts of different lengths are continued one by one. `advance`: a substitute for the owner's `step`.
    """
    advance = owner.step if advance is None else advance
    lengths = [batch.inputs.shape[1]] * batch.size if batch.keep is None else batch.keep.sum(1).tolist()
    if 0 in lengths:
        raise BadValue(
            f"batch: row {lengths.index(0)} of the inputs holds no token to go on from. A prompt needs at least one; "
            f"where nothing is given, begin with a token that starts a text in the training data."
        )
    if len(set(lengths)) > 1:
        assert batch.keep is not None
        singles = [Batch.of(row[real][None]) for row, real in zip(batch.inputs, batch.keep, strict=True)]
        return [prompted(owner, single, cached, advance, **options)[0] for single in singles]
    prompts = batch.inputs
    if batch.keep is not None and batch.size:
        prompts = torch.stack([row[real] for row, real in zip(batch.inputs, batch.keep, strict=True)])
    answer = owner.problem.answer
    assert isinstance(answer, NextToken)
    end = answer.end

    def endless(logits: Tensor) -> Tensor:
        """Without an end token, add one of probability zero: only the length ends a text."""
        return logits if end is not None else torch.nn.functional.pad(logits, (0, 1), value=-torch.inf)

    def next_logits(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = advance(tokens, state)
        return endless(logits), state

    def whole(prefixes: Tensor) -> Tensor:
        return widened(endless(owner(Batch.of(prefixes))[:, -1])).log_softmax(-1)

    step: Any = CachedStep(next_logits, owner.initial_state(len(prompts))) if cached else whole
    return write(step, prompts, end=answer.count if end is None else end, **options)
