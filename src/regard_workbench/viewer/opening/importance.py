"""The importance of each head: the model runs again without it, and its output is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue, Unsupported
from regard.observation.ablation import ablate, logits_of
from regard_workbench.viewer.opening.options import OpenedModel

MOST_RUNS = 2000
WORDS = "importance: how much the logit of the answer falls when the head is silenced"
WORDS_ROWS = "importance: how far the output moves, relative to its norm, when the head is silenced"


def importance(one: OpenedModel, seen: Any, tell: Callable[[str], None]) -> tuple[dict[tuple[str, int], float], str]:
    """The importance of each (site, head), and what it measures. Heads that cannot be silenced are left out."""
    heads = [(name, head) for name in seen.names() for head in range(seen[name].shape()[1])]
    if len(heads) > MOST_RUNS:
        raise BadValue(f"--importance: the model would run {len(heads):,} times. Leave it out.")
    tell(f"running the model {len(heads):,} times, each time without one head")
    with torch.no_grad():
        before = one.run()
    measure, words = _measure(before)
    importances: dict[tuple[str, int], float] = {}
    try:
        every: Any = ablate(seen, loss=measure, run=one.run)
    except Unsupported:  # some heads cannot be silenced: try each one
        every = [result for pair in heads if (result := _alone(seen, pair, measure, one.run)) is not None]
    for result in every:
        importances[result.heads[0]] = -result.change
    if not importances:
        raise BadValue("--importance: no head of this model can be silenced alone. Leave it out.")
    return importances, words


def _alone(seen: Any, pair: tuple[str, int], measure: Callable[[Any], Any], run: Callable[[], Any]) -> Any:
    try:
        return ablate(seen, [pair], loss=measure, run=run)
    except Unsupported:
        return None


def _measure(before: Any) -> tuple[Callable[[Any], Any], str]:
    """The logit of the answer at the last position; without logits, the distance to the original output."""
    if isinstance(before, Tensor) or isinstance(getattr(before, "logits", None), Tensor):
        logits = logits_of(before)
        index = (0, *(-1,) * (logits.dim() - 2))
        best = int(logits[index].argmax())
        return lambda output: float(logits_of(output)[index][best]), WORDS
    rows = _rows(before)
    length = float(rows.norm()) or 1.0
    return lambda output: -float((_rows(output) - rows).norm()) / length, WORDS_ROWS


def _rows(output: Any) -> Tensor:
    hidden = getattr(output, "last_hidden_state", None)
    hidden = hidden if isinstance(hidden, Tensor) else output[0]
    return hidden.detach().float()
