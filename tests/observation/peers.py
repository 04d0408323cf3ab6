"""Models of other libraries, small or real, and their own eager attention: the oracle of these tests."""

from __future__ import annotations

import copy
import importlib.machinery
import os
import sys
import types
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

SHARED = Path(os.environ.get("REGARD_SHARED", Path(__file__).resolve().parents[3] / "shared"))
BAR = 1e-5  # float32, against the same model with plain attention
WORDS = 97  # of the small vocabularies

# Torch and transformers emit internal warnings when flex_attention runs on a CPU.
FLEX_WARNINGS = [
    "ignore:_compile flag on create_block_mask:DeprecationWarning",
    "ignore:flex_attention called without torch.compile:UserWarning",
    "ignore:.*torch.jit.*:DeprecationWarning",
]


def shared(*parts: str) -> Path:
    """A folder of the shared data; tests that need it are skipped where it is missing."""
    place = SHARED.joinpath("data", *parts)
    if not place.exists():
        pytest.skip(f"no {place} (set REGARD_SHARED to the folder that holds data/)")
    return place


@contextmanager
def stand_in_for_torchvision():
    """Lets timm be imported where torchvision is not.

    timm imports torchvision at its top for data transforms, frozen batch norms and feature graphs. None of them is used
    by the models here, and torchvision has no build beside a CPU torch on every index. So the names timm asks for are
    there, empty, while it is imported, and gone afterwards: transformers looks for torchvision, too, and would use it.
    """
    names = [
        "torchvision",
        "torchvision.ops",
        "torchvision.ops.misc",
        "torchvision.models",
        "torchvision.models.feature_extraction",
        "torchvision.transforms",
        "torchvision.transforms.functional",
        "torchvision.datasets",
    ]
    before = {name: sys.modules.get(name) for name in names}
    for name in names:
        module = _Empty(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class _Empty(types.ModuleType):
    """Every name is an empty class: enough for `import` and `isinstance`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"NEAREST": 0, "BILINEAR": 2, "BICUBIC": 3, "BOX": 4, "HAMMING": 5, "LANCZOS": 1})
        setattr(self, name, made)
        return made


def small(kind: str) -> Any:
    """A Hugging Face model of a small random configuration: several heads, prime sizes where they may be."""
    import transformers

    of_layers = {"hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 29}
    shared_sizes = {"vocab_size": WORDS, **of_layers}
    sides = {"layers": 2, "attention_heads": 3, "ffn_dim": 29}
    both = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sides.items()}
    both |= {"vocab_size": WORDS, "d_model": 24}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    grouped = {**shared_sizes, **ends, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4}
    makers = {
        "bert": lambda t: t.BertModel(t.BertConfig(**shared_sizes, num_attention_heads=3)),
        "albert": lambda t: t.AlbertModel(
            t.AlbertConfig(**{**shared_sizes, "num_hidden_layers": 3}, embedding_size=13, num_attention_heads=3)
        ),
        "gpt2": lambda t: t.GPT2LMHeadModel(
            t.GPT2Config(vocab_size=WORDS, n_embd=24, n_layer=2, n_head=3, n_positions=64, **ends)
        ),
        "llama": lambda t: t.LlamaForCausalLM(t.LlamaConfig(**grouped)),
        "mistral": lambda t: t.MistralForCausalLM(t.MistralConfig(**grouped, sliding_window=5)),
        "gemma2": lambda t: t.Gemma2ForCausalLM(
            t.Gemma2Config(**grouped, sliding_window=5, attn_logit_softcapping=0.005, query_pre_attn_scalar=1)
        ),
        "gemma3": lambda t: t.Gemma3ForCausalLM(
            t.Gemma3TextConfig(**grouped, sliding_window=5, layer_types=["sliding_attention", "full_attention"])
        ),
        "gpt_oss": lambda t: t.GptOssForCausalLM(
            t.GptOssConfig(**{**grouped, "intermediate_size": 32}, sliding_window=5, num_local_experts=4)
        ),
        "qwen2": lambda t: t.Qwen2ForCausalLM(
            t.Qwen2Config(**grouped, use_sliding_window=True, sliding_window=5, max_window_layers=1)
        ),
        "phi": lambda t: t.PhiForCausalLM(
            t.PhiConfig(**shared_sizes, **ends, num_attention_heads=3, partial_rotary_factor=0.5)
        ),
        "bart": lambda t: t.BartForConditionalGeneration(
            t.BartConfig(**both, max_position_embeddings=64, **ends, decoder_start_token_id=2, forced_eos_token_id=None)
        ),
        "whisper": lambda t: t.WhisperForConditionalGeneration(
            t.WhisperConfig(
                **both,
                **ends,
                num_mel_bins=13,
                max_source_positions=23,
                max_target_positions=64,
                decoder_start_token_id=1,
            )
        ),
        "t5": lambda t: t.T5ForConditionalGeneration(
            t.T5Config(
                **{"vocab_size": WORDS, "d_model": 24, "d_kv": 8, "d_ff": 29, "num_layers": 2, "num_heads": 3},
                **{"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
            )
        ),
        "vit": lambda t: t.ViTModel(t.ViTConfig(**of_layers, num_attention_heads=3, image_size=20, patch_size=5)),
    }
    torch.manual_seed(7)
    return makers[kind](transformers).eval()


def small_of_timm() -> Any:
    """A classifier of pictures of 20 × 20 pixels."""
    with stand_in_for_torchvision():
        timm = pytest.importorskip("timm")
    torch.manual_seed(2)
    return timm.models.vision_transformer.VisionTransformer(
        img_size=20, patch_size=5, embed_dim=24, depth=2, num_heads=3, num_classes=7
    ).eval()


def ids(length: int, batch: int = 2) -> torch.Tensor:
    """Token ids without special tokens."""
    return torch.randint(3, WORDS, (batch, length))


def inputs(kind: str) -> dict[str, torch.Tensor]:
    """The inputs of a small model."""
    if kind == "vit":
        return {"pixel_values": torch.randn(2, 3, 20, 20)}
    if kind == "whisper":
        return {"input_features": torch.randn(2, 13, 46), "decoder_input_ids": ids(7)}
    if kind in ("t5", "bart"):
        return {"input_ids": ids(11), "decoder_input_ids": ids(7)}
    return {"input_ids": ids(11)}


def with_attention(model: Any, name: str) -> Any:
    """The same model with another implementation of attention."""
    other = copy.deepcopy(model)
    other.set_attn_implementation(name)
    return other


@torch.no_grad()
def eager_maps(model: Any, **given: Any) -> list[torch.Tensor]:
    """The attentions that Hugging Face's eager implementation returns, in the order of the calls."""
    out = with_attention(model, "eager")(**given, output_attentions=True)
    if "encoder_attentions" not in out:
        return list(out.attentions)
    both = zip(out.decoder_attentions, out.cross_attentions, strict=True)
    return [*out.encoder_attentions, *(one for pair in both for one in pair)]


def largest(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference; shapes must agree."""
    assert a.shape == b.shape, (tuple(a.shape), tuple(b.shape))
    return (a.float() - b.float()).abs().max().item()


@contextmanager
def uncompiled():
    """Runs what is wrapped in torch.compile as it is written: the same calls without a minute of compiling."""
    with torch.compiler.set_stance("force_eager"):
        yield
