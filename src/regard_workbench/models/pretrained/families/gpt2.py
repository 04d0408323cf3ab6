"""GPT-2 (Radford et al. 2019) as `decoder`."""

from __future__ import annotations

from typing import Any, ClassVar

from regard_workbench.models.pretrained.family import BASE, ROWS, Family, ModelPlan, register
from regard_workbench.models.pretrained.names import for_layers, line
from regard_workbench.models.pretrained.settings import Settings
from regard_workbench.tasks.answers import Answer, NextToken, PastRowVectors
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens

EMBEDDING = f"{BASE}wte.weight"
ENDS = [
    line(EMBEDDING, "embedding.rows.weight"),
    line(f"{BASE}wpe.weight", "embedding.positions.table"),
    line(f"{BASE}ln_f", "stack.norm"),
    line("lm_head.weight", "head.logits.weight"),
]
_OWN = "stack.layers.{i}.attention"
LAYER = [
    line(f"{BASE}h.{{i}}.ln_1", "stack.layers.{i}.around_attention.norm"),
    line(f"{BASE}h.{{i}}.attn.c_attn", f"{_OWN}.query_map", f"{_OWN}.key_map", f"{_OWN}.value_map", transposed=True),
    line(f"{BASE}h.{{i}}.attn.c_proj", f"{_OWN}.output_map", transposed=True),
    line(f"{BASE}h.{{i}}.ln_2", "stack.layers.{i}.around_feed_forward.norm"),
    line(f"{BASE}h.{{i}}.mlp.c_fc", "stack.layers.{i}.feed_forward.rise", transposed=True),
    line(f"{BASE}h.{{i}}.mlp.c_proj", "stack.layers.{i}.feed_forward.fall", transposed=True),
]


class GPT2(Family):
    """Pre-norm decoder with learned positions."""

    model_types = ("gpt2",)
    prefix = "transformer."
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "eos_token_id": 50256,
        "tie_word_embeddings": True,
    }
    architectures: ClassVar[dict[str, str]] = {"GPT2LMHeadModel": "next", "GPT2Model": ROWS}
    ignored: ClassVar[tuple[str, ...]] = (r".*\.attn\.(masked_)?bias",)
    unused: ClassVar[tuple[str, ...]] = (r"lm_head\.weight",)

    def plan(self, settings: Settings, answers: str) -> ModelPlan:
        settings.require(
            scale_attn_weights=(True,), scale_attn_by_inverse_layer_idx=(False,), add_cross_attention=(False,)
        )
        dim, count, layers = settings.size("n_embd"), settings.size("vocab_size"), settings.layers("n_layer")
        body = {
            "dim": dim,
            "layers": layers,
            "num_heads": settings.size("n_head"),
            "hidden": settings.size_or("n_inner", 4 * dim),
            "positions": "learned",
            "scaled_embedding": False,
            "activation": settings.activation("activation_function"),
            "norm_eps": settings.number("layer_norm_epsilon"),
            "dropout": settings.rate("resid_pdrop"),
            "hidden_dropout": 0.0,
            "attention_dropout": settings.rate("attn_pdrop"),
        }
        end = settings.token("eos_token_id", max(count, self.defaults["eos_token_id"] + 1))
        answer: Answer = PastRowVectors(dim)
        if answers == "next":
            answer = NextToken(count, end if end is not None and end < count else None)
        problem = Problem.of(Tokens(count, length=settings.size("n_positions")), answer)
        head = {"tied": answers == "next" and settings.tied("lm_head.weight", EMBEDDING), "head_bias": False}
        return ModelPlan("decoder", body, problem, [*ENDS, *for_layers(layers, LAYER)], head)


register(GPT2())
