"""Influence: how far the output of a head moves at one position when the token at another is replaced.

A map that no weights are in: it is measured on the model's own inputs and outputs. The patterns of
`analysis.patterns` are scored on it as on a map of attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.observation.analysis.patterns import recognise
from regard.observation.causes.batched import Batched
from regard.observation.causes.copies import ModelCall, mapped, tensors_in
from regard.observation.causes.rerun import Rerun, RunRecording
from regard.observation.seen import Seen

ROUNDING = 1e-5  # of the largest movement: below it nothing has moved

Scores = dict[tuple[str, int], dict[str, float]]  # by site and head, then by pattern


class InfluenceSite:
    """The influence of tokens on the heads of one site, in the place of its weights."""

    def __init__(self, name: str, moved: Tensor) -> None:
        self.name, self.moved = name, moved  # (heads, positions, tokens)

    def shape(self, call: int = -1) -> tuple[int, int, int, int]:
        """One example; heads, positions, tokens."""
        heads, positions, tokens = self.moved.shape
        return 1, heads, positions, tokens

    def weights(self, rows: Any = None, heads: Any = None, call: int = -1) -> Tensor:
        """The influence on chosen rows and heads, each row as shares."""
        moved = self.moved if heads is None else self.moved[heads]
        moved = moved if rows is None else moved[:, rows]
        shares: Tensor = moved / moved.sum(-1, keepdim=True).clamp(min=1e-30)
        return shares[None]


def influence_scores(rerun: Rerun, seen: Seen, ids: Tensor, others: Tensor, span: tuple[int, int]) -> Scores:
    """The patterns of influence of every head, mean over the examples.

    Args:
        rerun: the model.
        seen: how it was called.
        ids: tokens (b,n).
        others: for each example a token (b,) that it does not hold.
        span: first and last position (excluded) whose tokens are replaced, one after the other.
    """
    scores: dict[tuple[str, int], list[dict[str, float]]] = {}
    for text, unrelated in zip(ids, others, strict=True):
        changed = text.repeat(span[1] - span[0] + 1, 1)
        for row, position in enumerate(range(*span), 1):
            changed[row, position] = unrelated
        kept = RunRecording()
        rerun.run(call_with(seen, changed), kept)
        for name, values in kept.values.items():
            if values.shape[2] != len(text) or len(values) != len(changed):
                continue
            moved = torch.zeros(values.shape[1], len(text), len(text))
            moved[:, :, span[0] : span[1]] = (values[1:] - values[:1]).norm(dim=-1).permute(1, 2, 0).float().cpu()
            moved[moved < ROUNDING * moved.max()] = 0
            for head in recognise(InfluenceSite(name, moved), text):
                scores.setdefault((name, head.head), []).append(head.scores)
    return mean_scores(scores)


def mean_scores(found: dict[tuple[str, int], list[dict[str, float]]]) -> Scores:
    """The mean of each pattern's score; one that is missing in an example counts as 0."""
    return {
        place: {name: sum(scores.get(name, 0.0) for scores in many) / len(many) for name in set().union(*many)}
        for place, many in found.items()
    }


def call_with(seen: Seen, ids: Tensor) -> ModelCall:
    """The observed call with other ids; every other tensor of one number for each id (a mask of padding) is ones."""
    args, kwargs = seen.inputs or ((), {})
    if args and isinstance(args[0], Batched):
        return ModelCall((args[0].of(ids.to(args[0].device)), *args[1:]), dict(kwargs))
    first = kwargs.get("input_ids", next(tensors_in((args, kwargs)), None))
    if first is None:
        return ModelCall((ids,), {})
    ids = ids.to(first.device)

    def change(tensor: Tensor) -> Tensor:
        if tensor is first:
            return ids
        if tensor.shape != first.shape:
            return tensor
        # token_type_ids are zeros and stay zeros; a mask of padding is ones
        return torch.full_like(ids, int(bool(tensor.any())), dtype=tensor.dtype)

    args, kwargs = mapped((args, dict(kwargs)), change)
    return ModelCall(args, kwargs)
