"""A text written token by token while everything that each step attends to is kept.

Writing by a beam moves hypotheses around between steps. So the search runs first, unobserved, and its best hypothesis
is then written again, alone and observed: what is shown belongs to the text that is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.decoding import beam_search
from regard.viewer.page_model import finite, shortened

ALTERNATIVES = 5
DIGITS = 4


class Writer(Protocol):
    """A model that writes."""

    prompt: list[int]  # what the part that writes reads before its first own token
    end: int | None
    vocabulary: int  # how many tokens there are to choose from
    two_sides: bool  # whether what is written is another sequence than the text that was given

    def begin(self) -> Any:
        """The state before the prompt; a model with two sides reads its source here."""

    def advance(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits (1,n,vocabulary) for tokens (1,n) that go on from a state, and the state that follows."""

    def searching(self) -> Callable[[Tensor], Tensor]:
        """A step for a beam: prefixes (n,t) → log-probabilities (n,vocabulary)."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each token is called."""


class _Recorded:
    """A step of a search that remembers which prefixes were alive at each length, and their log-probability."""

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
        found: Tensor = self.step(prefixes)
        if self.endless:  # one more token stands for the end, which never comes
            found = torch.nn.functional.pad(found, (0, 1), value=-torch.inf)
        self._before = dict(zip(rows, found, strict=True))
        return found

    def reorder(self, index: Tensor) -> None:
        """Row i goes on from what row index[i] was."""
        if hasattr(self.step, "reorder"):
            self.step.reorder(index)


@torch.no_grad()
def write(writer: Writer, length: int) -> tuple[list[int], list[dict[str, Any]]]:
    """The likeliest token at each step, and what the page says about each step. To be observed."""
    return _written(writer, length, None)


@torch.no_grad()
def write_again(writer: Writer, tokens: Sequence[int]) -> list[dict[str, Any]]:
    """Given tokens step by step, and what the page says about each step. To be observed."""
    return _written(writer, len(tokens), tokens)[1]


def _written(
    writer: Writer, length: int, given: Sequence[int] | None
) -> tuple[list[int], list[dict[str, Any]]]:
    state = writer.begin()
    made: list[int] = []
    steps: list[dict[str, Any]] = []
    shown = torch.tensor([writer.prompt])
    while len(made) < length:
        logits, state = writer.advance(shown, state)
        odds = logits[0, -1].float().softmax(-1).cpu()
        token = int(odds.argmax()) if given is None else given[len(made)]
        made.append(token)
        steps.append(_step(writer, odds, token))
        if token == writer.end:
            break
        shown = torch.tensor([[token]])
    return made, steps


def _step(writer: Writer, odds: Tensor, token: int) -> dict[str, Any]:
    values, ids = odds.topk(min(ALTERNATIVES + 1, len(odds)))
    others = [(i, p) for i, p in zip(ids.tolist(), values.tolist(), strict=True) if i != token][:ALTERNATIVES]
    names = [shortened(name) for name in writer.pieces([token, *(i for i, _ in others)])]
    return {
        "token": names[0],
        "probability": _number(odds[token]),
        "others": [[name, _number(p)] for name, (_, p) in zip(names[1:], others, strict=True)],
        "beams": None,
    }


@torch.no_grad()
def search(writer: Writer, length: int, beams: int) -> tuple[list[int], list[list[dict[str, Any]]]]:
    """The tokens of the best hypothesis, and for each step the hypotheses that were alive after it, best first."""
    step = _Recorded(writer.searching(), writer)
    end = writer.vocabulary if writer.end is None else writer.end
    start = torch.tensor([writer.prompt])
    ended = beam_search(step, start, end=end, beam=beams, max_length=length, n_best=beams)[0]
    for one in ended:  # no step has read their last token; a score is the log-probability by the length
        step.totals[tuple(one.tokens)] = one.score * len(one.tokens)
    tokens = ended[0].tokens
    found = []
    for number in range(1, len(tokens) + 1):
        here = {tuple(one.tokens) for one in ended if len(one.tokens) <= number}
        here |= {tuple(tokens[:number]), *(step.alive[number] if number < len(step.alive) else ())}
        ranked = sorted(here, key=lambda row: (-step.totals[row] / len(row), row))[:beams]
        found.append([_beam(writer, row, step.totals[row] / len(row)) for row in ranked])
    return tokens, found


def _beam(writer: Writer, tokens: Sequence[int], score: float) -> dict[str, Any]:
    return {"tokens": [shortened(name) for name in writer.pieces(tokens)], "score": _number(score)}


def _number(value: Any) -> float | None:
    number = finite(value)
    return None if number is None else float(f"{number:.{DIGITS}g}")
