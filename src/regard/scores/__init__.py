"""Scores: how well a query and a key match.

    >>> from regard import scores
    >>> scores.softcap(50.0)
    scores.softcap(50.0)

Weights with one more leading axis hold one weight for each query head. Scores that depend on the distance take `align`
and `offset` as masks do: query 0 stands at k − q (bottom-right), at 0 (top-left) or at the offset.
"""

from __future__ import annotations

from torch import Tensor

from regard.errors import BadType, unknown_name
from regard.registry import Registry, call_meant, calls_of
from regard.scores.additive import AdditiveScore, ConcatScore
from regard.scores.base import Score
from regard.scores.dot import CosineScore, DotScore, GeneralScore, ScaledDotScore, SoftcapScore
from regard.scores.relative import ShawScore, TransformerXLScore
from regard.support.arguments import anchor, described, finite_number, float_tensor

__all__ = [
    "Score",
    "additive",
    "concat",
    "cosine",
    "dot",
    "general",
    "named",
    "scaled_dot",
    "shaw",
    "softcap",
    "transformer_xl",
]


def scaled_dot() -> Score:
    """q·k / √d. Vaswani et al. 2017."""
    return ScaledDotScore()


def dot() -> Score:
    """q·k. Luong et al. 2015."""
    return DotScore()


def softcap(cap: float) -> Score:
    """cap·tanh(scaled dot / cap)."""
    return SoftcapScore(finite_number("cap", cap, above=0.0))


def general(weight: Tensor) -> Score:
    """qᵀ W k, with W (d,d) or (h,d,d). Luong et al. 2015."""
    return GeneralScore(float_tensor("weight", weight))


def additive(weight: Tensor) -> Score:
    """weight·tanh(q + k) on projected queries and keys, with weight (d,) or (h,d). Bahdanau et al. 2014."""
    return AdditiveScore(float_tensor("weight", weight))


def concat(weight_query: Tensor, weight_key: Tensor, weight: Tensor) -> Score:
    """weight·tanh(W_q q + W_k k), with (a,d), (a,d), (a,), each optionally with a leading h. Luong et al. 2015."""
    return ConcatScore(
        float_tensor("weight_query", weight_query),
        float_tensor("weight_key", weight_key),
        float_tensor("weight", weight),
    )


def cosine(strength: float | Tensor) -> Score:
    """strength·cos(q, k); strength is a number, (h,), or broadcasts to (b,h,q,1). Graves et al. 2014."""
    if isinstance(strength, Tensor):
        return CosineScore(float_tensor("strength", strength))
    return CosineScore(finite_number("strength", strength))


def shaw(table: Tensor, align: str = "bottom-right", offset: int | None = None) -> Score:
    """q·k + q·table[clip(pos_k − pos_q)], with a table (2r+1,d). Shaw et al. 2018."""
    return ShawScore(float_tensor("table", table), *anchor(align, offset))


def transformer_xl(
    content_bias: Tensor, position_bias: Tensor, table: Tensor, align: str = "bottom-right", offset: int | None = None
) -> Score:
    """(q + content_bias)·k + (q + position_bias)·table[clip(pos_k − pos_q)]. Dai et al. 2019."""
    return TransformerXLScore(
        float_tensor("content_bias", content_bias),
        float_tensor("position_bias", position_bias),
        float_tensor("table", table),
        *anchor(align, offset),
    )


_NAMES: Registry[Score] = Registry("score")
_NAMES.add("scaled-dot", ScaledDotScore())
_NAMES.add("dot", DotScore())


def named(given: str | Score) -> Score:
    """The score of that name; a `Score` is returned as it is."""
    if isinstance(given, Score):
        return given
    if isinstance(given, str):
        name_with_hyphens = given.replace("_", "-")
        if name_with_hyphens not in _NAMES:
            built = {name: call for name, call in calls_of(__name__).items() if name.replace("_", "-") not in _NAMES}
            raise unknown_name("score", given, _NAMES, built)
        return _NAMES[name_with_hyphens]
    raise BadType(
        f"score: expected a name ({', '.join(_NAMES)}) or a Score, got {described(given)}. "
        f"{call_meant(given, __name__)}"
    )
