"""`static-transformer`: an encoder whose layers read a memory that was written once from the whole sequence."""

from __future__ import annotations

from typing import ClassVar

from regard_workbench.models.encoder import Encoder
from regard_workbench.models.parts.model import model


@model("static-transformer", gives=("pooled", "rows"))
class StaticTransformer(Encoder):
    """`encoder` with `static-memory` as its attention: each layer summarises the sequence into slots that all read."""

    attention_default: ClassVar[str] = "static-memory"
