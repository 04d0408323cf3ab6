"""The feature maps of `linear`, and the pieces of its scans: sum keys and values, read the sums, and both causally."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.nn.parts.scan import (
    BLOCK,
    PIECES,
    Kept,
    Piece,
    Result,
    Tensors,
    lengthened,
    nonfinite_positions,
    set_nan_from,
)
from regard.registry import Registry
from regard.support.tracing import exporting

_LARGEST = 600.0  # sums of e^600 are finite in float64

Features = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FeatureMap:
    """φ for keys and for queries, and the narrowest dtype to compute it in.

    The features of a query may have any common factor, because it cancels.
    """

    keys: Features
    queries: Features
    least: torch.dtype = torch.float32

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of the computation for inputs of `dtype`."""
        return torch.promote_types(dtype, self.least)


def _elu(x: Tensor) -> Tensor:
    """elu(x) + 1 in a form that does not round to zero for very negative x."""
    return torch.relu(x) + x.clamp(max=0).exp()


def _exp(x: Tensor) -> Tensor:
    """exp(x), finite for every finite x; the second term makes it NaN for non-finite x."""
    return x.clamp(max=_LARGEST).exp() + 0 * x


def _exp_below_one(x: Tensor) -> Tensor:
    return (x - x.detach().amax(-1, keepdim=True)).exp()


FEATURE_MAPS: Registry[FeatureMap] = Registry("feature_map")
FEATURE_MAPS.add("elu", FeatureMap(_elu, _elu))
FEATURE_MAPS.add("relu", FeatureMap(torch.relu, torch.relu))
FEATURE_MAPS.add("exp", FeatureMap(_exp, _exp_below_one, torch.float64))


# The pieces. Values get a column of ones, so that one product computes numerator and denominator.


def _query_features(query: Tensor, features: FeatureMap) -> tuple[Tensor, Kept]:
    """Return the features of queries (b,l,h,d), zero for non-finite queries, and which queries those are."""
    mapped = features.queries(query.to(features.wide(query.dtype)))
    nonfinite = nonfinite_positions(mapped)
    return (mapped if nonfinite is None else mapped.masked_fill(nonfinite[..., None, None], 0)), nonfinite


def _key_features(key: Tensor, value: Tensor, keep: Kept, features: FeatureMap) -> tuple[Tensor, Tensor]:
    """Return the features of keys (b,l,h,d) and values with a column of ones (b,l,h,v+1); zeros for padding."""
    wide = features.wide(key.dtype)
    key, value = key.to(wide), value.to(wide)
    if keep is None:
        return features.keys(key), F.pad(value, (0, 1), value=1.0)
    hidden = ~keep[..., None, None]
    mapped = features.keys(key.masked_fill(hidden, 0)).masked_fill(hidden, 0)
    return mapped, F.pad(value.masked_fill(hidden, 0), (0, 1), value=1.0)


def _quotient(mixed: Tensor, nonfinite: Kept, dtype: torch.dtype) -> Tensor:
    """Divide the numerators (b,h,l,v) by the denominator in the last column; return (b,l,h,v).

    A denominator of zero means that no key is visible: the result is zero. A non-finite query gets NaN.
    """
    denominator = mixed[..., -1:]
    output = (mixed[..., :-1] / denominator.masked_fill(denominator == 0, 1)).transpose(1, 2).to(dtype)
    return output if nonfinite is None else output.masked_fill(nonfinite[..., None, None], torch.nan)


def _sums_piece(features: FeatureMap) -> Piece:
    def compute(inputs: Tensors, keep: Kept, carry: Tensors, _: bool) -> Result:
        keys, values = _key_features(inputs[0], inputs[1], keep, features)
        added = (keys.permute(0, 2, 3, 1) @ values.transpose(1, 2)).double()  # (b,h,d,v+1)
        return [], [carry[0] + added[..., :-1], carry[1] + added[..., -1]]

    return compute


def _read_piece(features: FeatureMap) -> Piece:
    def compute(inputs: Tensors, keep: Kept, carry: Tensors, _: bool) -> Result:
        queries, nonfinite = _query_features(inputs[0], features)
        sums = torch.cat([carry[0], carry[1][..., None]], -1).to(queries.dtype)
        return [_quotient(queries.transpose(1, 2) @ sums, nonfinite, inputs[0].dtype)], carry

    return compute


def _causal_piece(features: FeatureMap) -> Piece:
    def compute(inputs: Tensors, keep: Kept, carry: Tensors, _: bool) -> Result:
        query, key, value = inputs
        length = query.shape[1]
        size = BLOCK if exporting() else min(BLOCK, length)

        def blocks(rows: Tensor) -> Tensor:  # (b,l,h,d) as (b,h,blocks,size,d), padded with zeros
            count = (length + size - 1) // size
            rows = lengthened(rows, count * size - length)
            return rows.view(rows.shape[0], count, size, *rows.shape[2:]).permute(0, 3, 1, 2, 4)

        query_rows, bad_queries = _query_features(query, features)
        key_rows, written = _key_features(key, value, keep, features)
        nonfinite = nonfinite_positions(key_rows, written)
        if nonfinite is not None:
            key_rows, written = _key_features(key, value, ~nonfinite if keep is None else keep & ~nonfinite, features)
        queries, keys, values = blocks(query_rows), blocks(key_rows), blocks(written)
        # Sums over each block and all earlier ones, (b,h,blocks,d,v+1).
        added = (keys.mT @ values).double().cumsum(2)
        first = torch.cat([carry[0], carry[1][..., None]], -1)[:, :, None]
        before = torch.cat([first, first + added[:, :, :-1]], 2).to(query_rows.dtype)
        mixed = (queries @ keys.mT).tril() @ values + queries @ before
        output = _quotient(mixed.flatten(2, 3)[:, :, :length], bad_queries, query.dtype)
        last = first[:, :, 0] + added[:, :, -1]
        if nonfinite is not None:
            output, last = set_nan_from(nonfinite, output, last)
        return [output], [last[..., :-1], last[..., -1]]

    return compute


for _name in FEATURE_MAPS:
    PIECES.add(f"linear-sums-{_name}", _sums_piece(FEATURE_MAPS[_name]))
    PIECES.add(f"linear-read-{_name}", _read_piece(FEATURE_MAPS[_name]))
    PIECES.add(f"linear-causal-{_name}", _causal_piece(FEATURE_MAPS[_name]))
