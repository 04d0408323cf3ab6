"""Attacks on texts: words are replaced by others with a near vector, up to a number of words.

Greedy: the gradient with respect to the vectors says, to first order, how much each replacement would raise the loss;
the most promising are tried, and the best of them is kept if it does raise it (HotFlip, Ebrahimi et al. 2018, with the
nearest words in place of all). A text is left as soon as it is classified wrongly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard_workbench.attacks.lexicon import Lexicon
from regard_workbench.attacks.target import Target

TRIED = 32  # replacements of a text whose loss is computed in each round


def replaceable(lexicon: Lexicon, inputs: Tensor, keep: Tensor | None) -> Tensor:
    """Whether a position holds a word of the lexicon, (b,n): no padding, no unknown word."""
    in_lexicon = lexicon.find(inputs) >= 0
    return in_lexicon if keep is None else in_lexicon & keep


@torch.no_grad()
def substitute(
    target: Target, lexicon: Lexicon, allowed: Tensor, limit: Tensor, *, nearest: int, cosine: float
) -> Tensor:
    """The inputs with at most `limit` (b,) words of each text replaced, only where `allowed` (b,n) is True.

    A word is replaced at most once, by one of its `nearest` words whose cosine with it is at least `cosine`.
    """
    inputs, place = target.inputs.clone(), lexicon.find(target.inputs)
    open_, limit = allowed & (place >= 0), limit.to(place.device)
    neighbours, near = _replacements(lexicon, place, nearest, cosine)
    change = lexicon.vectors[neighbours] - lexicon.vectors[place.clamp(min=0)][:, :, None]  # (b,n,count,dim)
    replaced = torch.zeros_like(limit)
    active = target.right(inputs) & (replaced < limit)
    loss = target.losses(inputs)
    while bool(active.any()):
        gain = torch.einsum("bncd,bnd->bnc", change, target.vector_slope(inputs))
        possible = near & open_[:, :, None] & active[:, None, None]
        gain = gain.masked_fill(~possible, -torch.inf).flatten(1)
        best = gain.topk(min(TRIED, gain.shape[1]), 1)
        position = best.indices // neighbours.shape[2]
        word = neighbours.flatten(1).gather(1, best.indices)
        trials, losses = _tried(target, lexicon, inputs, position, word)
        losses = losses.masked_fill(best.values == -torch.inf, -torch.inf)
        chosen = losses.argmax(1, keepdim=True)
        raised = losses.gather(1, chosen)[:, 0]
        better = active & (raised > loss)
        rows = better.nonzero().flatten()
        at = chosen[rows, 0]
        inputs[rows] = trials[rows, at]
        open_[rows, position[rows, at]] = False
        loss, replaced = torch.where(better, raised, loss), replaced + better
        active = better & target.right(inputs) & (replaced < limit)
    return inputs


def _replacements(lexicon: Lexicon, place: Tensor, count: int, cosine: float) -> tuple[Tensor, Tensor]:
    """The nearest words of the word at each position, (b,n,count), and whether each is near enough."""
    numbers, back = place.clamp(min=0).unique(return_inverse=True)
    neighbours, near = lexicon.nearest(numbers, count, cosine)
    return neighbours[back], near[back]


def _tried(target: Target, lexicon: Lexicon, inputs: Tensor, position: Tensor, word: Tensor) -> tuple[Tensor, Tensor]:
    """Each text with one more word replaced, for each of (b,t) replacements: (b,t,n, …); and their losses, (b,t)."""
    batch, times = position.shape
    trials = inputs[:, None].repeat(1, times, *[1] * (inputs.dim() - 1))
    trials[torch.arange(batch)[:, None], torch.arange(times), position] = lexicon.rows[word]
    losses = target.repeated(times).losses(trials.flatten(0, 1))
    return trials, losses.view(batch, times)


def changed_words(before: Tensor, after: Tensor) -> Tensor:
    """Where two inputs differ, (b,n)."""
    differs = before != after
    return differs if differs.dim() == 2 else differs.any(-1)
