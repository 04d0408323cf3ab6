"""T5 and its version 1.1 (Raffel et al. 2020) as `transformer`, and its encoder alone as `encoder`."""

from __future__ import annotations

from typing import Any, ClassVar

from regard.registry import written
from regard_workbench.models.pretrained.family import ROWS, Family, ModelPlan, register
from regard_workbench.models.pretrained.names import Line, for_layers, line
from regard_workbench.models.pretrained.settings import Settings
from regard_workbench.tasks.answers import RowVectors, Writes
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens

LENGTH = 512  # of texts, where the configuration names no other; nothing in the model depends on it


def attention(theirs: str, ours: str) -> list[Line]:
    """The projections of one attention."""
    maps = {"q": "query_map", "k": "key_map", "v": "value_map", "o": "output_map"}
    return [line(f"{theirs}.{short}", f"{ours}.{name}") for short, name in maps.items()]


def feed_forward(theirs: str, ours: str) -> list[Line]:
    """One feed-forward block, gated or not: the model has only one of `wi` and `wi_0`."""
    return [
        line(f"{theirs}.wi", f"{ours}.rise"),
        line(f"{theirs}.wi_0", f"{ours}.rise"),
        line(f"{theirs}.wi_1", f"{ours}.gate"),
        line(f"{theirs}.wo", f"{ours}.fall"),
    ]


def side(theirs: str, ours: str, layers: int, cross: bool, gated: bool) -> list[Line]:
    """The lines of encoder or decoder."""
    block, layer = f"{theirs}.block.{{i}}.layer", f"{ours}.layers.{{i}}"
    last = 2 if cross else 1
    lines = [
        *attention(f"{block}.0.SelfAttention", f"{layer}.attention"),
        line(f"{block}.0.layer_norm", f"{layer}.around_attention.norm"),
        *(attention(f"{block}.1.EncDecAttention", f"{layer}.cross") if cross else []),
        *([line(f"{block}.1.layer_norm", f"{layer}.around_cross.norm")] if cross else []),
        *feed_forward(f"{block}.{last}.DenseReluDense", f"{layer}.feed_forward"),
        line(f"{block}.{last}.layer_norm", f"{layer}.around_feed_forward.norm"),
    ]
    unread = ".wi" if gated else ".wi_0"
    return [
        *(table_line for table_line in for_layers(layers, lines) if not table_line.theirs.endswith(unread)),
        line(
            f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            f"{ours}.layers.0.attention.bias_table",
        ),
        line(f"{theirs}.final_layer_norm", f"{ours}.norm"),
    ]


class T5(Family):
    """Pre-norm with RMS normalisation, no biases, scores that are not divided by √d, one table of distances for all."""

    model_types = ("t5",)
    prefix = "transformer."  # no file has one
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_heads": 8,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "dropout_rate": 0.1,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    architectures: ClassVar[dict[str, str]] = {"T5ForConditionalGeneration": "text", "T5EncoderModel": ROWS}
    unused: ClassVar[tuple[str, ...]] = (
        r"(en|de)coder\.embed_tokens\.weight",
        r"lm_head\.weight",
        r"decoder\..*EncDecAttention\.relative_.*",
    )

    def plan(self, settings: Settings, answers: str) -> ModelPlan:
        dim, count, layers = (settings.size("d_model"), settings.size("vocab_size"), settings.layers("num_layers"))
        gated, activation = _feed_forward(settings)
        shared = {"key_dim": settings.size("d_kv"), "bias": False, "scale": 1.0}
        buckets = settings.size("relative_attention_num_buckets")
        if buckets < 4 or buckets % 4:
            raise settings.wrong("relative_attention_num_buckets", "a multiple of 4")
        farthest = settings.size("relative_attention_max_distance")
        positions = written("t5", {"buckets": buckets, "max_distance": farthest})
        rate = settings.rate("dropout_rate")
        body: dict[str, Any] = {
            "dim": dim,
            "layers": layers,
            "num_heads": settings.size("num_heads"),
            "hidden": settings.size("d_ff"),
            "attention": written("multihead", {**shared, "positions": positions}),
            "gated": gated,
            "activation": activation,
            "norm_type": "rms",
            "norm_eps": settings.number("layer_norm_epsilon"),
            "feed_forward_bias": False,
            "positions": "none",
            "shared_positions": True,
            "scaled_embedding": False,
            "dropout": rate,
            "attention_dropout": rate,
        }
        padding = settings.token("pad_token_id", count) or 0
        tokens = Tokens(count, padding, settings.size_or("n_positions", LENGTH))
        words = line("shared.weight", "embedding.rows.weight")
        if answers == ROWS:
            lines = [words, *side("encoder", "stack", layers, False, gated)]
            return ModelPlan("encoder", body, Problem.of(tokens, RowVectors(dim)), lines)
        decoder_layers = layers
        if settings.given("num_decoder_layers") is not None:
            decoder_layers = settings.layers("num_decoder_layers")
        body |= {"decoder_layers": decoder_layers, "cross": written("multihead", shared), "tied_source": True}
        start = settings.token("decoder_start_token_id", count)
        end = settings.token("eos_token_id", count)
        if end is None:
            raise settings.wrong("eos_token_id", "the id of the token that ends a text")
        answer = Writes(count, tokens.length or LENGTH, padding if start is None else start, end)
        scaled = settings.given("scale_decoder_outputs")
        if scaled is None:
            scaled = settings.given("tie_word_embeddings") is not False
        # Tied unless the file has a head of its own: the setting that says so only decides about the scale.
        head = {
            "tied": not settings.differ("lm_head.weight", "shared.weight"),
            "head_bias": False,
            "head_scale": dim**-0.5 if scaled else 1.0,
        }
        lines = [
            words,
            *side("encoder", "encoder", layers, False, gated),
            *side("decoder", "decoder", decoder_layers, True, gated),
            line("lm_head.weight", "head.logits.weight"),
        ]
        return ModelPlan("transformer", body, Problem.of(tokens, answer), lines, head)


def _feed_forward(settings: Settings) -> tuple[bool, str]:
    """Whether feed-forward blocks are gated, and their activation."""
    text = settings.given("feed_forward_proj")
    activations = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "silu": "silu"}
    name = text.removeprefix("gated-") if isinstance(text, str) else ""
    if name not in activations:
        raise settings.wrong("feed_forward_proj", f"one of {', '.join(activations)}, or gated- and one of them")
    if text == "gated-gelu":  # by which T5 means the approximation
        return True, "gelu-tanh"
    return str(text).startswith("gated-"), activations[name]


register(T5())
