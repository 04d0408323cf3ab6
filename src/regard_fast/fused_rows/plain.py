"""The stages in plain torch: what the kernels compute, for second derivatives and as their readable twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.formula import dropout
from regard.values.grid import Grid
from regard_fast.fused_rows.layout import Stages

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def rows(
    x: Tensor,
    mixed: Tensor | None,
    seed: Tensor | None,
    weights: Sequence[Tensor],
    stages: Stages,
    activation: str,
    rates: Sequence[float],
    eps: Sequence[float],
    salt: int,
    heads: Sequence[int],
) -> list[Tensor]:
    """The rows after the stages "out" and "feed", if there is one, and the results of the maps, (b,h,n,·)."""
    out, feed, norm, maps = stages.split(list(weights))
    shape = x.shape

    def drop(found: Tensor, site: int) -> Tensor:
        return dropped(found, seed, rates[site], site, salt)

    if stages.out:
        assert mixed is not None
        x = x + drop(F.linear(mixed.transpose(1, 2).flatten(2), *out), 0)
    if stages.feed:
        between = F.layer_norm(x, shape[2:], feed[0], feed[1], eps[0])
        risen = drop(ACTIVATIONS[activation](F.linear(between, feed[2], feed[3])), 1)
        x = x + drop(F.linear(risen, feed[4], feed[5]), 2)
    rows_and_maps = [x] if stages.out or stages.feed else []
    if stages.maps:
        x = F.layer_norm(x, shape[2:], norm[0], norm[1], eps[1])
        for weight, bias, count in zip(maps[: stages.maps], maps[stages.maps :], heads, strict=True):
            rows_and_maps.append(F.linear(x, weight, bias).unflatten(2, (count, -1)).transpose(1, 2))
    return rows_and_maps


def dropped(rows: Tensor, seed: Tensor | None, rate: float, site: int, salt: int) -> Tensor:
    """Rows (b,n,·) with dropout of one site of one layer."""
    if not rate or seed is None:
        return rows
    flat = rows.flatten(0, 1)
    return dropout.drop(flat[None, None], _grid(flat, site, salt), seed, rate).view(rows.shape)


def head(
    x: Tensor, targets: Tensor, keep: Tensor | None, weights: Sequence[Tensor], eps: float, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of the cross-entropies of the logits of normalised rows where they count, how many do, and the mean.

    With one target for each example, the logits are those of the mean of its normalised rows.
    """
    gain, shift, *linear = weights
    normed = F.layer_norm(x, x.shape[2:], gain, shift, eps)
    logits = F.linear(normed.mean(1) if targets.dim() == 1 else normed.flatten(0, 1), *linear)
    losses = F.cross_entropy(logits, targets.flatten(), reduction="none", label_smoothing=smoothing)
    counts = torch.ones_like(losses) if keep is None else keep.flatten().to(losses)
    total, count = losses.masked_fill(counts == 0, 0).sum(), counts.sum()
    return total, count, total / count.clamp(min=1.0)


def _grid(flat: Tensor, site: int, salt: int) -> Grid:
    """Site and layer in place of batch entry and head."""
    device, none = flat.device, slice(0, 0)
    return Grid(
        (1, 1, *flat.shape),
        batch=torch.tensor([site], device=device),
        head=torch.tensor([salt], device=device),
        row=torch.arange(flat.shape[0], device=device)[:, None],
        column=torch.arange(flat.shape[1], device=device),
        parts=(none, none, none, none),
    )
