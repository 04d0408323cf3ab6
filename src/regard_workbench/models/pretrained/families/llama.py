"""Llama and what is built like it (Mistral, Qwen 2 and 3) as `decoder`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from regard.registry import written
from regard_workbench.models.pretrained.families.rotary import rotary
from regard_workbench.models.pretrained.family import BASE, ROWS, Family, ModelPlan, register
from regard_workbench.models.pretrained.names import for_layers, line
from regard_workbench.models.pretrained.settings import Settings
from regard_workbench.tasks.answers import Answer, NextToken, PastRowVectors
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens

EMBEDDING = f"{BASE}embed_tokens.weight"
ENDS = [
    line(EMBEDDING, "embedding.rows.weight"),
    line(f"{BASE}norm", "stack.norm"),
    line("lm_head.weight", "head.logits.weight"),
]
LAYER = [
    line(f"{BASE}layers.{{i}}.input_layernorm", "stack.layers.{i}.around_attention.norm"),
    line(f"{BASE}layers.{{i}}.self_attn.q_proj", "stack.layers.{i}.attention.query_map"),
    line(f"{BASE}layers.{{i}}.self_attn.k_proj", "stack.layers.{i}.attention.key_map"),
    line(f"{BASE}layers.{{i}}.self_attn.v_proj", "stack.layers.{i}.attention.value_map"),
    line(f"{BASE}layers.{{i}}.self_attn.q_norm", "stack.layers.{i}.attention.query_norm"),
    line(f"{BASE}layers.{{i}}.self_attn.k_norm", "stack.layers.{i}.attention.key_norm"),
    line(f"{BASE}layers.{{i}}.self_attn.o_proj", "stack.layers.{i}.attention.output_map"),
    line(f"{BASE}layers.{{i}}.post_attention_layernorm", "stack.layers.{i}.around_feed_forward.norm"),
    line(f"{BASE}layers.{{i}}.mlp.gate_proj", "stack.layers.{i}.feed_forward.rise"),
    line(f"{BASE}layers.{{i}}.mlp.up_proj", "stack.layers.{i}.feed_forward.gate"),
    line(f"{BASE}layers.{{i}}.mlp.down_proj", "stack.layers.{i}.feed_forward.fall"),
]
FULL, SLIDING = "full_attention", "sliding_attention"
_SHARED: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
    "attention_bias": False,
    "mlp_bias": False,
}
_QWEN = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 11008, "max_position_embeddings": 2048, "eos_token_id": 2},
    "mistral": {
        "intermediate_size": 14336,
        "max_position_embeddings": 4096 * 32,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "eos_token_id": 2,
    },
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
}


class Llama(Family):
    """Pre-norm decoder with RMS normalisation, rotary positions, grouped heads and gated feed-forward blocks."""

    model_types = tuple(DEFAULTS)
    prefix = "model."
    defaults: ClassVar[dict[str, Any]] = _SHARED
    architectures: ClassVar[dict[str, str]] = {
        f"{name}{kind}": answers
        for kind, answers in (("ForCausalLM", "next"), ("Model", ROWS))
        for name in ("Llama", "Mistral", "Qwen2", "Qwen3")
    }
    ignored: ClassVar[tuple[str, ...]] = (r".*rotary_emb\.inv_freq",)
    unused: ClassVar[tuple[str, ...]] = (r"lm_head\.weight",)

    def defaults_of(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**_SHARED, **DEFAULTS[str(config.get("model_type"))]}

    def plan(self, settings: Settings, answers: str) -> ModelPlan:
        settings.require(pretraining_tp=(1,))
        kind = str(settings.given("model_type"))
        dim, count = settings.size("hidden_size"), settings.size("vocab_size")
        layers, heads = settings.layers("num_hidden_layers"), settings.size("num_attention_heads")
        eps, bias = settings.number("rms_norm_eps"), kind == "qwen2" or settings.flag("attention_bias")
        width = settings.size_or("head_dim", max(1, dim // heads))
        shared = {
            "kv_heads": settings.size_or("num_key_value_heads", heads),
            "key_dim": width,
            "bias": bias,
            "output_bias": bias and kind != "qwen2",
            "positions": rotary(settings, width),
            **({"qk_norm": True, "norm_eps": eps} if kind == "qwen3" else {}),
        }
        mechanisms = [
            written("causal", shared if window is None else {**shared, "window": window})
            for window in _windows(settings, kind, layers)
        ]
        body = {
            "dim": dim,
            "layers": layers,
            "num_heads": heads,
            "attention": mechanisms[0] if len(set(mechanisms)) == 1 else ", ".join(mechanisms),
            "hidden": settings.size("intermediate_size"),
            "gated": True,
            "activation": settings.activation("hidden_act"),
            "norm_type": "rms",
            "norm_eps": eps,
            "feed_forward_bias": settings.flag("mlp_bias"),
            "positions": "none",
            "scaled_embedding": False,
            "dropout": 0.0,
            "attention_dropout": settings.rate("attention_dropout"),
        }
        padding = settings.token("pad_token_id", count) or 0
        answer: Answer = PastRowVectors(dim)
        if answers == "next":
            answer = NextToken(count, settings.token("eos_token_id", count))
        problem = Problem.of(Tokens(count, padding, settings.size("max_position_embeddings")), answer)
        head = {"tied": answers == "next" and settings.tied("lm_head.weight", EMBEDDING), "head_bias": False}
        return ModelPlan("decoder", body, problem, [*ENDS, *for_layers(layers, LAYER)], head)


def _windows(settings: Settings, kind: str, layers: int) -> list[int | None]:
    """How many keys a position of each layer sees; None: all earlier ones."""
    sliding = kind in ("mistral", "qwen2", "qwen3") and settings.given("sliding_window") is not None
    if kind.startswith("qwen"):
        sliding = sliding and settings.flag("use_sliding_window")
    kinds = settings.given("layer_types")
    if kinds is not None and kind.startswith("qwen"):
        if not isinstance(kinds, list) or len(kinds) != layers or not set(map(str, kinds)) <= {FULL, SLIDING}:
            raise settings.wrong("layer_types", f"{layers} times {FULL} or {SLIDING}")
        if SLIDING in kinds and not sliding:
            raise settings.wrong("layer_types", f"no {SLIDING} without use_sliding_window and sliding_window")
    else:
        first = 0
        if kind.startswith("qwen") and sliding:
            full_layers = settings.given("max_window_layers")
            if type(full_layers) is not int or full_layers < 0:
                raise settings.wrong("max_window_layers", "a whole number from 0")
            first = full_layers
        kinds = [SLIDING if sliding and i >= first else FULL for i in range(layers)]
    return [settings.size("sliding_window") if layer_kind == SLIDING else None for layer_kind in kinds]


register(Llama())
