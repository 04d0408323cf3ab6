"""Small Hugging Face models whose attention matters, on eager attention and on regard."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.interop import huggingface
from tests.observation import peers

KINDS = [
    "llama",
    "mistral",
    "gemma2",
    "gemma3",
    "gpt_oss",
    "t5",
    "bert",
    "gpt2",
    "qwen2",
    "phi",
    "vit",
    "whisper",
    "bart",
]
CAUSAL = ["llama", "mistral", "gemma2", "gemma3", "gpt_oss", "gpt2", "qwen2", "phi"]
CLOSE = 1e-5  # relative to the largest number of an output


def built(kind: str) -> Any:
    """A small model with weights so large that its attention is far from uniform."""
    huggingface.register()
    return sharpened(peers.small(kind))


def sharpened(model: Any) -> Any:
    """The same model with larger weights: those of a fresh one make scores that are all about zero."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":  # that of GPT-2
                size = module.weight.shape[1 if isinstance(module, nn.Linear) else 0]
                module.weight.normal_(0.0, 1.5 * size**-0.5, generator=generator)
    return model


CHOSEN = 8  # keys for each query of the sparse models
SPARSE = ["deepseek_v32", "glm_moe_dsa", "axk2", "hy_v4", "mistral_large4_text", "minimax_m3_vl_text"]


def sparse(kind: str) -> Any:
    """A small model whose queries see a choice of keys: single ones, or two blocks of four for each pair of heads."""
    import transformers

    huggingface.register()
    sizes = {
        "vocab_size": peers.WORDS,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "index_topk": CHOSEN,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "max_position_embeddings": 64,
        "head_dim": 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if kind == "minimax_m3_vl_text":
        sizes |= {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "rotary_dim": 8,
            "index_block_size": CHOSEN // 2,
            "index_topk_blocks": 2,
            "index_local_blocks": 1,
            "num_hidden_layers": 2,
            "moe_layer_freq": [0, 1],
            "layer_types": ["full_attention", "minimax_m3_sparse"],
            "num_local_experts": 4,
            "dense_intermediate_size": 48,
            "shared_intermediate_size": 24,
        }
    config = transformers.AutoConfig.for_model(kind, **sizes)
    torch.manual_seed(3)
    if kind == "minimax_m3_vl_text":  # the text model of a model of pictures, in no table of its own
        from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as module

        return sharpened(module.MiniMaxM3VLTextModel(config).eval())
    return sharpened(transformers.AutoModel.from_config(config).eval())


def on(model: Any, name: str) -> Any:
    """The same model, by this attention from now on."""
    model.set_attn_implementation(name)
    return model


def first_output(found: Any) -> torch.Tensor:
    """Logits, or hidden states of a model without."""
    return found.logits if "logits" in found else found.last_hidden_state


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest number."""
    assert found.shape == expected.shape
    return float((found - expected).detach().abs().max() / expected.detach().abs().max())


def padding(batch: int, length: int, side: str) -> torch.Tensor:
    """A padding mask (b,k) whose second sequence has three positions of padding on one side."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[1, slice(0, 3) if side == "left" else slice(length - 3, length)] = 0
    return mask
