"""Patching and direct logit attribution by TransformerLens, on a small GPT-2 whose weights a formula gives.

    python -m tests.observation.lens_oracle        writes transformer_lens.json beside this file

TransformerLens is not among the dependencies of the project; the numbers were recorded with it in an environment of
its own, and a test compares them with those of `seen.patch`. Where it is installed, another test asks it directly.
"""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

RECORDED = Path(__file__).with_name("transformer_lens.json")
WORDS, WIDTH, LAYERS, HEADS, LENGTH = 89, 30, 3, 5, 7
ANSWER, OTHER = 17, 43


def model() -> Any:
    """GPT-2 with weights that depend on no generator of random numbers."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=32, bos_token_id=1, eos_token_id=2
    )
    made = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for number, (name, parameter) in enumerate(made.named_parameters()):
            at = torch.arange(parameter.numel(), dtype=torch.float64)
            values = (torch.sin(1.3 * number + 12.9898 * at) * 43758.5453).frac() * 0.55
            values = values * 3 if "wte" in name else values
            values = 1 + values / 3 if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")) else values
            parameter.copy_(values.view_as(parameter))
    return made


def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """A clean and a corrupted text, which differ in one token."""
    clean = torch.tensor([[3, 31, 59, 71, 5, 47, 13]])
    corrupted = clean.clone()
    corrupted[0, 2] = 83
    return clean, corrupted


def difference(logits: torch.Tensor) -> torch.Tensor:
    """The measure."""
    return logits[0, -1, ANSWER] - logits[0, -1, OTHER]


@torch.no_grad()
def asked() -> dict[str, Any]:
    """The numbers of TransformerLens."""
    from transformer_lens import patching
    from transformer_lens.model_bridge import TransformerBridge

    plain = model()
    with tempfile.TemporaryDirectory() as folder:  # where it reads the configuration from
        plain.save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(folder, hf_model=plain, tokenizer=None)
    clean, corrupted = texts()
    assert torch.allclose(bridge(clean), plain(clean).logits, atol=1e-4)
    _, cache = bridge.run_with_cache(clean)
    given = (bridge, corrupted, cache, difference)
    heads = patching.get_act_patch_attn_head_out_all_pos(*given)
    positions = patching.get_act_patch_attn_head_out_by_pos(*given)
    layers = patching.get_act_patch_resid_pre(*given)
    direction = bridge.W_U[:, ANSWER] - bridge.W_U[:, OTHER]
    written = [
        [
            float(
                cache.apply_ln_to_stack(
                    (cache[f"blocks.{layer}.attn.hook_z"][0, -1:, head] @ bridge.W_O[layer, head])[None],
                    layer=-1,
                    pos_slice=-1,
                ).flatten()
                @ (bridge.ln_final.weight * direction)
            )
            for head in range(HEADS)
        ]
        for layer in range(LAYERS)
    ]
    return {
        "transformer_lens": version("transformer-lens"),
        "torch": torch.__version__,
        "clean": float(difference(bridge(clean))),
        "corrupted": float(difference(bridge(corrupted))),
        "heads": heads.tolist(),
        "heads_by_position": positions.permute(0, 2, 1).tolist(),
        "before_layers": layers.tolist(),
        "written": written,
    }


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(asked(), indent=1) + "\n")
