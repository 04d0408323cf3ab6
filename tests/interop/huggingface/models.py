"""Small Hugging Face models whose attention matters, on eager attention and on regard."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.interop import huggingface
from tests.observation import peers

KINDS = [
    "llama", "mistral", "gemma2", "gemma3", "gpt_oss", "t5", "bert", "gpt2", "qwen2", "phi", "vit", "whisper", "bart",
]  # fmt: skip
CAUSAL = ["llama", "mistral", "gemma2", "gemma3", "gpt_oss", "gpt2", "qwen2", "phi"]
CLOSE = 1e-5  # relative to the largest number of an output


def built(kind: str) -> Any:
    """A small model with weights so large that its attention is far from uniform."""
    huggingface.register()
    model = peers.small(kind)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":  # that of GPT-2
                size = module.weight.shape[1 if isinstance(module, nn.Linear) else 0]
                module.weight.normal_(0.0, 1.5 * size**-0.5, generator=generator)
    return model


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
