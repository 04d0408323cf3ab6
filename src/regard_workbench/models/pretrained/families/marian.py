"""Marian's translation models (Junczys-Dowmunt et al. 2018) as `transformer`."""

from __future__ import annotations

from typing import Any, ClassVar

from regard_workbench.models.pretrained.family import BASE, Family, ModelPlan, register
from regard_workbench.models.pretrained.names import Line, for_layers, line
from regard_workbench.models.pretrained.settings import Settings
from regard_workbench.tasks.answers import Writes
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens


def attention(theirs: str, ours: str) -> list[Line]:
    """The projections of one attention."""
    maps = {"q_proj": "query_map", "k_proj": "key_map", "v_proj": "value_map", "out_proj": "output_map"}
    return [line(f"{theirs}.{short}", f"{ours}.{name}") for short, name in maps.items()]


def side(name: str, layers: int, cross: bool) -> list[Line]:
    """The lines of encoder or decoder."""
    theirs, ours = f"{BASE}{name}.layers.{{i}}", f"{name}.layers.{{i}}"
    lines = [
        *attention(f"{theirs}.self_attn", f"{ours}.attention"),
        line(f"{theirs}.self_attn_layer_norm", f"{ours}.around_attention.norm"),
        line(f"{theirs}.fc1", f"{ours}.feed_forward.rise"),
        line(f"{theirs}.fc2", f"{ours}.feed_forward.fall"),
        line(f"{theirs}.final_layer_norm", f"{ours}.around_feed_forward.norm"),
    ]
    if cross:
        lines += attention(f"{theirs}.encoder_attn", f"{ours}.cross")
        lines += [line(f"{theirs}.encoder_attn_layer_norm", f"{ours}.around_cross.norm")]
    return for_layers(layers, lines)


class Marian(Family):
    """Post-norm encoder and decoder; sinusoids with all sines first; a bias of the logits."""

    model_types = ("marian",)
    prefix = "model."
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 58101,
        "max_position_embeddings": 1024,
        "encoder_layers": 12,
        "encoder_ffn_dim": 4096,
        "encoder_attention_heads": 16,
        "decoder_layers": 12,
        "decoder_ffn_dim": 4096,
        "decoder_attention_heads": 16,
        "activation_function": "gelu",
        "d_model": 1024,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "decoder_start_token_id": 58100,
        "scale_embedding": False,
        "pad_token_id": 58100,
        "eos_token_id": 0,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    }
    architectures: ClassVar[dict[str, str]] = {"MarianMTModel": "text"}
    ignored: ClassVar[tuple[str, ...]] = (r".*embed_positions\.weight",)
    unused: ClassVar[tuple[str, ...]] = (r".*embed_tokens\.weight", r".*shared\.weight", r"lm_head\.weight")

    def plan(self, settings: Settings, answers: str) -> ModelPlan:
        settings.require(normalize_before=(False,), add_final_layer_norm=(False,), normalize_embedding=(False,))
        settings.require(add_bias_logits=(False,), static_position_embeddings=(True,))
        dim, count = settings.size("d_model"), settings.size("vocab_size")
        layers, decoder_layers = settings.layers("encoder_layers"), settings.layers("decoder_layers")
        for name in ("ffn_dim", "attention_heads"):
            if settings.size(f"decoder_{name}") != settings.size(f"encoder_{name}"):
                raise settings.wrong(f"decoder_{name}", f"encoder_{name}, {settings.size(f'encoder_{name}')}")
        body = {
            "dim": dim,
            "layers": layers,
            "decoder_layers": decoder_layers,
            "norm": "post",
            "num_heads": settings.size("encoder_attention_heads"),
            "hidden": settings.size("encoder_ffn_dim"),
            "activation": settings.activation("activation_function"),
            "positions": "sinusoidal-split",
            "scaled_embedding": settings.flag("scale_embedding"),
            "dropout": settings.rate("dropout"),
            "hidden_dropout": settings.rate("activation_dropout"),
            "attention_dropout": settings.rate("attention_dropout"),
        }
        joint = settings.flag("share_encoder_decoder_embeddings")
        written = count if joint else settings.size_or("decoder_vocab_size", count)
        shared = joint and settings.flag("tie_word_embeddings")
        start, end = (settings.token(f"{name}_token_id", written) for name in ("decoder_start", "eos"))
        if start is None or end is None:
            missing = "decoder_start_token_id" if start is None else "eos_token_id"
            raise settings.wrong(missing, "the id of a token of the decoder")
        longest = settings.size("max_position_embeddings")
        tokens = Tokens(count, settings.token("pad_token_id", count) or 0, longest)
        if shared:
            words = [line(f"{BASE}shared.weight", "embedding.rows.weight")]
        else:
            words = [
                line(f"{BASE}encoder.embed_tokens.weight", "embedding.rows.weight"),
                line(f"{BASE}decoder.embed_tokens.weight", "target_embedding.rows.weight"),
            ]
        tied = settings.tied("lm_head.weight", words[-1].theirs)
        lines = [
            *words,
            *side("encoder", layers, False),
            *side("decoder", decoder_layers, True),
            line("final_logits_bias", "head.logits.bias", row=True),
            line("lm_head.weight", "head.logits.weight"),
        ]
        body["tied_source"] = shared
        return ModelPlan(
            "transformer", body, Problem.of(tokens, Writes(written, longest, start, end)), lines, {"tied": tied}
        )


register(Marian())
