"""RoBERTa (Liu et al. 2019) as `encoder`: BERT whose positions count real tokens, with other names in its heads."""

from __future__ import annotations

from typing import Any, ClassVar

from regard_workbench.models.pretrained.families.bert import Bert
from regard_workbench.models.pretrained.family import ROWS, register
from regard_workbench.models.pretrained.names import Line, line
from regard_workbench.models.pretrained.settings import Settings
from regard_workbench.tasks.parts.streams import Tokens


class Roberta(Bert):
    """Positions begin behind the id of the padding token and count no padding."""

    model_types = ("roberta",)
    prefix = "roberta."
    defaults: ClassVar[dict[str, Any]] = {**Bert.defaults, "vocab_size": 50265, "pad_token_id": 1}
    architectures: ClassVar[dict[str, str]] = {
        "RobertaModel": ROWS,
        "RobertaForMaskedLM": "gaps",
        "RobertaForSequenceClassification": "class",
        "RobertaForTokenClassification": "tags",
    }
    unused: ClassVar[tuple[str, ...]] = (r".*pooler\.dense\..*", r"lm_head\..*", r"classifier\..*")
    aliases: ClassVar[dict[str, str]] = {"lm_head.bias": "lm_head.decoder.bias"}
    decoder = "lm_head.decoder.weight"
    before_head = "gelu-norm"
    heads: ClassVar[dict[str, list[Line]]] = {
        ROWS: [],
        "gaps": [
            line("lm_head.dense", "before_head.map"),
            line("lm_head.layer_norm", "before_head.norm"),
            line("lm_head.decoder", "head.logits"),
        ],
        "class": [line("classifier.dense", "before_head.map"), line("classifier.out_proj", "head.logits")],
        "tags": [line("classifier", "head.logits")],
    }

    def positions(self) -> dict[str, Any]:
        return {"positions": "counted"}

    def stream(self, settings: Settings, count: int) -> Tokens:
        padding = settings.token("pad_token_id", count)
        rows = settings.size("max_position_embeddings")
        if padding is None or rows <= padding + 1:
            raise settings.wrong("pad_token_id", f"the id of a token below max_position_embeddings={rows:,} − 1")
        return Tokens(count, padding, rows - padding - 1)


register(Roberta())
