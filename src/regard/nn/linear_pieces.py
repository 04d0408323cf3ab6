"""What `linear` computes: features of queries and keys, and the walks that sum them up and read the sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.nn.scan import (
    BLOCK,
    PIECES,
    Kept,
    Piece,
    Result,
    Tensors,
    spoil_from,
    spoilt_positions,
)  # fmt: skip
from regard.registry import Registry

_LARGEST = 600.0  # e^600 is far from the end of float64, so that sums of it stay finite

Features = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FeatureMap:
    """φ for keys and for queries, and the narrowest dtype to compute it in.

    The features of a query may be multiplied by any number of its own: it cancels.
    """

    keys: Features
    queries: Features
    least: torch.dtype = torch.float32

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of the computation for inputs of `dtype`."""
        return torch.promote_types(dtype, self.least)


def _elu(x: Tensor) -> Tensor:
    """elu(x) + 1, written so that it does not round to zero for very negative x."""
    return torch.relu(x) + x.clamp(max=0).exp()


def _exp(x: Tensor) -> Tensor:
    """exp(x) that stays finite for whatever is; the second term is NaN where x is not."""
    return x.clamp(max=_LARGEST).exp() + 0 * x


def _exp_below_one(x: Tensor) -> Tensor:
    return (x - x.detach().amax(-1, keepdim=True)).exp()


FEATURE_MAPS: Registry[FeatureMap] = Registry("feature_map")
FEATURE_MAPS.add("elu", FeatureMap(_elu, _elu))
FEATURE_MAPS.add("relu", FeatureMap(torch.relu, torch.relu))
FEATURE_MAPS.add("exp", FeatureMap(_exp, _exp_below_one, torch.float64))


# The pieces of the walk. Values get a column of ones, so that numerator and denominator are one product.


def _asked(query: Tensor, features: FeatureMap) -> tuple[Tensor, Kept]:
    """Features of the queries (b,l,h,d), zero where they are not finite, and where they are not."""
    found = features.queries(query.to(features.wide(query.dtype)))
    spoilt = spoilt_positions(found)
    return (found if spoilt is None else found.masked_fill(spoilt[..., None, None], 0)), spoilt


def _written(key: Tensor, value: Tensor, keep: Kept, features: FeatureMap) -> tuple[Tensor, Tensor]:
    """Features of the keys (b,l,h,d) and values with ones behind them (b,l,h,v+1); zeros where nothing is real."""
    wide = features.wide(key.dtype)
    key, value = key.to(wide), value.to(wide)
    if keep is None:
        return features.keys(key), F.pad(value, (0, 1), value=1.0)
    hidden = ~keep[..., None, None]
    seen = features.keys(key.masked_fill(hidden, 0)).masked_fill(hidden, 0)
    return seen, F.pad(value.masked_fill(hidden, 0), (0, 1), value=1.0)


def _quotient(mixed: Tensor, spoilt: Kept, dtype: torch.dtype) -> Tensor:
    """Numerators (b,h,l,v) divided by the denominator in the last column, as (b,l,h,v).

    A denominator of zero means that nothing was seen: zeros. A query that was not finite gets NaN.
    """
    below = mixed[..., -1:]
    found = (mixed[..., :-1] / below.masked_fill(below == 0, 1)).transpose(1, 2).to(dtype)
    return found if spoilt is None else found.masked_fill(spoilt[..., None, None], torch.nan)


def _sums_piece(features: FeatureMap) -> Piece:
    def compute(inputs: Tensors, keep: Kept, carry: Tensors, _: bool) -> Result:
        seen, values = _written(inputs[0], inputs[1], keep, features)
        added = (seen.permute(0, 2, 3, 1) @ values.transpose(1, 2)).double()  # (b,h,d,v+1)
        return [], [carry[0] + added[..., :-1], carry[1] + added[..., -1]]

    return compute


def _read_piece(features: FeatureMap) -> Piece:
    def compute(inputs: Tensors, keep: Kept, carry: Tensors, _: bool) -> Result:
        queries, spoilt = _asked(inputs[0], features)
        sums = torch.cat([carry[0], carry[1][..., None]], -1).to(queries.dtype)
        return [_quotient(queries.transpose(1, 2) @ sums, spoilt, inputs[0].dtype)], carry

    return compute


def _causal_piece(features: FeatureMap) -> Piece:
    def compute(inputs: Tensors, keep: Kept, carry: Tensors, _: bool) -> Result:
        query, key, value = inputs
        length = query.shape[1]
        size = min(BLOCK, length)

        def blocks(rows: Tensor) -> Tensor:  # (b,l,h,d) as (b,h,blocks,size,d), filled up with zeros
            rows = F.pad(rows, (0, 0, 0, 0, 0, -length % size))
            return rows.view(rows.shape[0], -(-length // size), size, *rows.shape[2:]).permute(0, 3, 1, 2, 4)

        asked, blind = _asked(query, features)
        seen, written = _written(key, value, keep, features)
        spoilt = spoilt_positions(seen, written)
        if spoilt is not None:
            seen, written = _written(key, value, ~spoilt if keep is None else keep & ~spoilt, features)
        queries, keys, values = blocks(asked), blocks(seen), blocks(written)
        # The sums over each block and those before it, (b,h,blocks,d,v+1).
        added = (keys.mT @ values).double().cumsum(2)
        first = torch.cat([carry[0], carry[1][..., None]], -1)[:, :, None]
        before = torch.cat([first, first + added[:, :, :-1]], 2).to(asked.dtype)
        mixed = (queries @ keys.mT).tril() @ values + queries @ before
        found = _quotient(mixed.flatten(2, 3)[:, :, :length], blind, query.dtype)
        last = first[:, :, 0] + added[:, :, -1]
        if spoilt is not None:
            found, last = spoil_from(spoilt, found, last)
        return [found], [last[..., :-1], last[..., -1]]

    return compute


for _name in FEATURE_MAPS:
    PIECES.add(f"linear-sums-{_name}", _sums_piece(FEATURE_MAPS[_name]))
    PIECES.add(f"linear-read-{_name}", _read_piece(FEATURE_MAPS[_name]))
    PIECES.add(f"linear-causal-{_name}", _causal_piece(FEATURE_MAPS[_name]))
