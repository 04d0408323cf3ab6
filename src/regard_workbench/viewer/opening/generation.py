"""Generating a text token by token while the attention of each step is captured.

Beam search reorders hypotheses between steps. So the search runs first, unobserved, and its best hypothesis is then
generated again, alone and observed: the attention shown belongs to the text shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.decoding import beam_search
from regard_workbench.viewer.page_model import finite, shortened

ALTERNATIVES = 5
DIGITS = 4


class Writer(Protocol):
    """A model that generates."""

    prompt: list[int]  # what the decoder reads before its first own token
    end: int | None
    vocabulary: int  # the number of tokens
    two_sides: bool  # whether the generated text is another sequence than the input

    def begin(self) -> Any:
        """The state before the prompt; an encoder-decoder encodes its source here."""

    def advance(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits (1,n,vocabulary) for tokens (1,n) that continue a state, and the next state."""

    def searching(self) -> Callable[[Tensor], Tensor]:
        """A step of beam search: prefixes (n,t) → log-probabilities (n,vocabulary)."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Labels of tokens."""


class _Recorded:
    """A step of a search that records the live prefixes of each length and their log-probabilities."""

    def __init__(self, step: Any, writer: Writer) -> None:
        self.step, self.start, self.endless = step, len(writer.prompt), writer.end is None
        self.totals: dict[tuple[int, ...], float] = {(): 0.0}
        self.alive: list[list[tuple[int, ...]]] = []
        self._before: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, prefixes: Tensor) -> Tensor:
        rows = [tuple(row[self.start :]) for row in prefixes.tolist()]
        for row in rows:
            if row:
                self.totals[row] = self.totals[row[:-1]] + float(self._before[row[:-1]][row[-1]])
        self.alive.append(rows)
        scores: Tensor = self.step(prefixes)
        if self.endless:  # an extra token for an end that never comes
            scores = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf)
        self._before = dict(zip(rows, scores, strict=True))
        return scores

    def reorder(self, index: Tensor) -> None:
        """Row i continues what was row index[i]."""
        if hasattr(self.step, "reorder"):
            self.step.reorder(index)


@torch.no_grad()
def write(writer: Writer, length: int) -> tuple[list[int], list[dict[str, Any]]]:
    """The most likely token at each step, and the page's data of each step. Run it under observation."""
    return _written(writer, length, None)


@torch.no_grad()
def write_again(writer: Writer, tokens: Sequence[int]) -> list[dict[str, Any]]:
    """The page's data of each step for given tokens. Run it under observation."""
    return _written(writer, len(tokens), tokens)[1]


def _written(writer: Writer, length: int, given: Sequence[int] | None) -> tuple[list[int], list[dict[str, Any]]]:
    state = writer.begin()
    tokens: list[int] = []
    steps: list[dict[str, Any]] = []
    shown = torch.tensor([writer.prompt])
    while len(tokens) < length:
        logits, state = writer.advance(shown, state)
        odds = logits[0, -1].float().softmax(-1).cpu()
        token = int(odds.argmax()) if given is None else given[len(tokens)]
        tokens.append(token)
        steps.append(_step(writer, odds, token))
        if token == writer.end:
            break
        shown = torch.tensor([[token]])
    return tokens, steps


def _step(writer: Writer, odds: Tensor, token: int) -> dict[str, Any]:
    values, ids = odds.topk(min(ALTERNATIVES + 1, len(odds)))
    alternatives = [(i, p) for i, p in zip(ids.tolist(), values.tolist(), strict=True) if i != token][:ALTERNATIVES]
    names = [shortened(name) for name in writer.pieces([token, *(i for i, _ in alternatives)])]
    return {
        "token": names[0],
        "probability": _number(odds[token]),
        "others": [[name, _number(p)] for name, (_, p) in zip(names[1:], alternatives, strict=True)],
        "beams": None,
    }


@torch.no_grad()
def search(writer: Writer, length: int, beams: int) -> tuple[list[int], list[list[dict[str, Any]]]]:
    """The tokens of the best hypothesis, and the hypotheses that were alive after each step, best first."""
    step = _Recorded(writer.searching(), writer)
    end = writer.vocabulary if writer.end is None else writer.end
    start = torch.tensor([writer.prompt])
    ended = beam_search(step, start, end=end, beam=beams, max_length=length, n_best=beams)[0]
    for hypothesis in ended:  # no step has read their last token; a score is the log-probability divided by the length
        step.totals[tuple(hypothesis.tokens)] = hypothesis.score * len(hypothesis.tokens)
    tokens = ended[0].tokens
    beams_by_step = []
    for number in range(1, len(tokens) + 1):
        prefixes = {tuple(hypothesis.tokens) for hypothesis in ended if len(hypothesis.tokens) <= number}
        prefixes |= {tuple(tokens[:number]), *(step.alive[number] if number < len(step.alive) else ())}
        ranked = sorted(prefixes, key=lambda row: (-step.totals[row] / len(row), row))[:beams]
        beams_by_step.append([_beam(writer, row, step.totals[row] / len(row)) for row in ranked])
    return tokens, beams_by_step


def _beam(writer: Writer, tokens: Sequence[int], score: float) -> dict[str, Any]:
    return {"tokens": [shortened(name) for name in writer.pieces(tokens)], "score": _number(score)}


def _number(value: Any) -> float | None:
    number = finite(value)
    return None if number is None else float(f"{number:.{DIGITS}g}")
