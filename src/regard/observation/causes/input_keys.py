"""Whether the keys of a site are the inputs, and which of its keys is the first input.

The number of keys does not tell: a memory may have as many slots as there are inputs, or more, and a prefix stands
before them. So inputs are replaced one after the other, and the logarithms of the weights are compared. A changed key
moves its column in every row, a changed query only its own row, and the normaliser moves whole rows:

    effect of input i on key k = log w'(q,k) − log w(q,k), minus the median of row q; the second largest over rows q

The keys are the inputs if, for more than half of the replaced inputs i, key `first` + i moves more than every other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.observation.analysis.sites import spread
from regard.observation.capture.storage import Storage
from regard.observation.causes.copies import ModelCall
from regard.observation.causes.erasure import Erasure
from regard.observation.causes.input_rows import InputRows
from regard.observation.observer import Observer
from regard.observation.seen import Seen, Site

MOST_INPUTS, MOST_ROWS = 16, 32  # that are replaced, that are compared
MOST_NAMED = 3  # sites in a message
LEAST = 1e-6  # an effect on the logarithm of a weight; below it is rounding


@torch.no_grad()
def first_input_keys(entering: InputRows, length: int, grid: tuple[int, int] | None) -> dict[str, int]:
    """By site the number of the key that is the first of `length` inputs; sites with other keys are left out.

    `grid`: rows and columns of patches, where the inputs are patches of a picture.
    """
    replaced = spread(length, MOST_INPUTS)
    drawn = torch.randn(entering.rows.shape, generator=torch.Generator().manual_seed(0)).to(entering.rows)
    size = entering.rows.square().mean().sqrt()
    noisy = entering.rows + drawn * (size if size > 0 else 1.0)
    masks = torch.zeros(1 + len(replaced), length, dtype=torch.bool)  # the first copy stays as it is
    masks[torch.arange(len(replaced)) + 1, replaced] = True
    copies = Erasure(entering, noisy, grid).rows(masks)
    with Observer(entering.model, Storage(), None, False) as observed:
        entering.run(copies)
    firsts = {}
    for name in observed.names():
        first = _first_key(observed[name], replaced, length)
        if first is not None:
            firsts[name] = first
    return firsts


def observed_run(model: torch.nn.Module, call: ModelCall) -> Seen:
    """What is seen of one forward pass without gradients."""
    with torch.no_grad(), Observer(model, Storage(), None, False) as observed:
        model(*call.args, **call.kwargs)
    return observed


def described_keys(seen: Seen) -> str:
    """Sites and the number of their keys, for a message."""
    counts = [f"{name} has {seen[name].shape()[3]} keys" for name in seen.names()]
    return ", ".join([*counts[:MOST_NAMED], *(["…"] if len(counts) > MOST_NAMED else [])]) or "no site was seen"


def _first_key(site: Site, replaced: Tensor, length: int) -> int | None:
    batch, _, queries, keys = site.shape()
    if keys < length or batch != 1 + len(replaced):
        return None
    try:
        weights = site.weights(spread(queries, MOST_ROWS).tolist())
    except RegardError:
        return None
    effects = _effects(weights.double().cpu())
    moved = effects.amax(1) > LEAST
    offsets = (effects.argmax(1) - replaced)[moved]
    offsets = offsets[(offsets >= 0) & (offsets <= keys - length)]
    if not len(offsets):
        return None
    first = int(offsets.mode().values)
    return first if 2 * int((offsets == first).sum()) > len(replaced) else None


def _effects(weights: Tensor) -> Tensor:
    """The effect (replaced, keys) of each replaced input on each key, from weights (1 + replaced, h, q, k)."""
    logs = weights.log().masked_fill(~(weights > 0), torch.nan)
    changes = logs[1:] - logs[:1]
    changes = (changes - changes.nanmedian(-1, keepdim=True).values).abs().nan_to_num(0.0).mean(1)
    return changes.topk(min(2, changes.shape[1]), dim=1).values[:, -1]
