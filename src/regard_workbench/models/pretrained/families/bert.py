"""BERT (Devlin et al. 2019) as `encoder`: with rows, a head that fills gaps, or a classifier."""

from __future__ import annotations

from typing import Any, ClassVar

from regard_workbench.models.pretrained.family import BASE, ROWS, Family, ModelPlan, register
from regard_workbench.models.pretrained.names import Line, for_layers, line
from regard_workbench.models.pretrained.settings import Settings
from regard_workbench.tasks.answers import Answer, EachOf, HiddenTokens, OneOf, RowVectors
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens

WORDS = f"{BASE}embeddings.word_embeddings.weight"
EMBEDDING = [
    line(WORDS, "embedding.rows.weight"),
    line(f"{BASE}embeddings.position_embeddings.weight", "embedding.positions.table"),
    line(f"{BASE}embeddings.token_type_embeddings.weight", "embedding.segments"),
    line(f"{BASE}embeddings.LayerNorm", "embedding.norm"),
]
LAYER = [
    line(f"{BASE}encoder.layer.{{i}}.attention.self.query", "stack.layers.{i}.attention.query_map"),
    line(f"{BASE}encoder.layer.{{i}}.attention.self.key", "stack.layers.{i}.attention.key_map"),
    line(f"{BASE}encoder.layer.{{i}}.attention.self.value", "stack.layers.{i}.attention.value_map"),
    line(f"{BASE}encoder.layer.{{i}}.attention.output.dense", "stack.layers.{i}.attention.output_map"),
    line(f"{BASE}encoder.layer.{{i}}.attention.output.LayerNorm", "stack.layers.{i}.around_attention.norm"),
    line(f"{BASE}encoder.layer.{{i}}.intermediate.dense", "stack.layers.{i}.feed_forward.rise"),
    line(f"{BASE}encoder.layer.{{i}}.output.dense", "stack.layers.{i}.feed_forward.fall"),
    line(f"{BASE}encoder.layer.{{i}}.output.LayerNorm", "stack.layers.{i}.around_feed_forward.norm"),
]
HEADS: dict[str, list[Line]] = {
    ROWS: [],
    "gaps": [
        line("cls.predictions.transform.dense", "before_head.map"),
        line("cls.predictions.transform.LayerNorm", "before_head.norm"),
        line("cls.predictions.decoder", "head.logits"),
    ],
    "class": [line(f"{BASE}pooler.dense", "before_head.map"), line("classifier", "head.logits")],
    "tags": [line("classifier", "head.logits")],
}


class Bert(Family):
    """Post-norm encoder, learned positions, segments, normalised embeddings."""

    model_types = ("bert",)
    prefix = "bert."
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    architectures: ClassVar[dict[str, str]] = {
        "BertModel": ROWS,
        "BertForMaskedLM": "gaps",
        "BertForPreTraining": "gaps",
        "BertForSequenceClassification": "class",
        "BertForTokenClassification": "tags",
    }
    ignored: ClassVar[tuple[str, ...]] = (r".*embeddings\.position_ids",)
    unused: ClassVar[tuple[str, ...]] = (
        r".*pooler\.dense\..*",
        r"cls\.seq_relationship\..*",
        r"cls\.predictions\..*",
        r"classifier\..*",
    )
    aliases: ClassVar[dict[str, str]] = {"cls.predictions.bias": "cls.predictions.decoder.bias"}
    heads: ClassVar[dict[str, list[Line]]] = HEADS
    decoder: ClassVar[str] = "cls.predictions.decoder.weight"  # of the head that fills gaps
    before_head: ClassVar[str] = "norm"  # what rows go through before that head

    def plan(self, settings: Settings, answers: str) -> ModelPlan:
        settings.require(position_embedding_type=("absolute",), is_decoder=(False,), add_cross_attention=(False,))
        dim, count = settings.size("hidden_size"), settings.size("vocab_size")
        layers = settings.layers("num_hidden_layers")
        body: dict[str, Any] = {
            "dim": dim,
            "layers": layers,
            "num_heads": settings.size("num_attention_heads"),
            "hidden": settings.size("intermediate_size"),
            "activation": settings.activation("hidden_act"),
            "norm": "post",
            "norm_eps": settings.number("layer_norm_eps"),
            "embedding_norm": "layer",
            "scaled_embedding": False,
            "segments": settings.size("type_vocab_size"),
            "dropout": settings.rate("hidden_dropout_prob"),
            "hidden_dropout": 0.0,
            "attention_dropout": settings.rate("attention_probs_dropout_prob"),
            **self.positions(),
        }
        head: dict[str, Any] = {}
        if answers == "class":
            head = {"pooling": "first", "before_head": "tanh"}
        elif answers == "gaps":
            head = {"before_head": self.before_head, "tied": settings.tied(self.decoder, WORDS)}
        problem = Problem.of(self.stream(settings, count), self.answer(settings, answers, dim, count))
        lines = [*EMBEDDING, *for_layers(layers, LAYER), *self.heads[answers]]
        return ModelPlan("encoder", body, problem, lines, head)

    def positions(self) -> dict[str, Any]:
        """How positions are counted."""
        return {"positions": "learned"}

    def stream(self, settings: Settings, count: int) -> Tokens:
        """The tokens that the model reads."""
        padding = settings.token("pad_token_id", count) or 0
        return Tokens(count, padding, settings.size("max_position_embeddings"))

    @staticmethod
    def answer(settings: Settings, answers: str, dim: int, count: int) -> Answer:
        """What the model answers."""
        choices: dict[str, Answer] = {
            ROWS: RowVectors(dim),
            "gaps": HiddenTokens(count),
            "class": OneOf(settings.labels()),
            "tags": EachOf(settings.labels()),
        }
        return choices[answers]


register(Bert())
