"""x-transformers under observation, with its fused attention and with its own, against the maps it returns."""

import pytest
import torch

import regard
from tests.observation.peers import BAR, WORDS, ids, largest

pytest.importorskip("x_transformers", reason="needs x_transformers: pip install x-transformers", exc_type=ImportError)
from x_transformers import Decoder, Encoder, TransformerWrapper

OPTIONS = {
    "plain": {},
    "grouped heads": {"attn_kv_heads": 2},
    "one key head": {"attn_one_kv_head": True},
    "rotary": {"rotary_pos_emb": True, "attn_dim_head": 32},
    "alibi": {"alibi_pos_bias": True},
    "normed": {"attn_qk_norm": True},
}


def build(kind, flash, **options):
    torch.manual_seed(5)
    layers = kind(dim=24, depth=2, heads=6, attn_flash=flash, **{"attn_dim_head": 4, **options})
    model = TransformerWrapper(num_tokens=WORDS, max_seq_len=64, attn_layers=layers).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # away from maps that are nearly flat
    return model


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("kind", [Encoder, Decoder])
@torch.no_grad()
def test_weights_are_those_it_returns(kind, options, flash):
    tokens = ids(11)
    _, maps = build(kind, False, **options)(tokens, return_attn=True)
    model = build(kind, flash, **options)
    before = model(tokens)
    with regard.observe(model) as seen:
        out = model(tokens)
    assert torch.equal(out, before)
    assert len(seen) == 2
    assert all(name.startswith(f"attn_layers.layers.{2 * n}.1") for n, name in enumerate(seen.names()))
    for name, expected in zip(seen.names(), maps, strict=True):
        assert seen[name].shape() == (2, 6, 11, 11)
        assert largest(seen[name].weights(), expected) <= BAR, name


@torch.no_grad()
def test_padding_is_never_attended_to():
    tokens, keep = ids(11), torch.ones(2, 11, dtype=torch.bool)
    keep[1, 8:] = False
    _, maps = build(Encoder, False)(tokens, mask=keep, return_attn=True)
    model = build(Encoder, True)
    with regard.observe(model) as seen:
        model(tokens, mask=keep)
    for name, expected in zip(seen.names(), maps, strict=True):
        assert largest(seen[name].weights(), expected) <= BAR
        assert not seen[name].weights()[1, :, :, 8:].any()
