"""`gla`: a Transformer in which global-query attention, linear in the length, takes the place of self-attention."""

from __future__ import annotations

from typing import ClassVar

from regard.models.model import model
from regard.models.transformer import Transformer


@model("gla", gives=("decoder",))
class GLA(Transformer):
    """`transformer` with `global-query` in encoder, decoder and between them: no attention has parameters of its own.

    A position is mixed with the mean of all (in the decoder: of those before it) by one weight; the decoder reads the
    encoder by the encoder-decoder form, y_t = Σ_s softmax_s(q_t·z_s) z_s.
    """

    attention_default: ClassVar[str] = "global-query"
    cross_default: ClassVar[str] = "global-query"
