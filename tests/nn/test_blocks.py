"""Residuals, feed-forward blocks, encoder and decoder layers, against their formulas and torch's own layers."""

import copy
import pickle

import pytest
import torch

import regard
from regard import masks
from regard.nn import build, names
from regard.nn.parts.blocks import DecoderLayer, EncoderLayer, FeedForward, Residual
from regard.nn.parts.mechanism import MECHANISMS

B, N, DIM = 3, 7, 12


def test_residual_normalises_before_or_after():
    x = torch.randn(B, N, DIM)
    for norm in ("pre", "post"):
        around = Residual(DIM, norm)
        plain = torch.nn.functional.layer_norm
        expected = x + 3 * plain(x, (DIM,)) if norm == "pre" else plain(x + 3 * x, (DIM,))
        assert torch.allclose(around(x, lambda part: 3 * part), expected, atol=1e-6)
    with pytest.raises(regard.RegardError, match="'pre', 'post' or 'none'"):
        Residual(DIM, "before")
    with pytest.raises(regard.RegardError, match="rms"):
        Residual(DIM, norm_type="rsm")


def test_residual_and_normalisation_can_be_left_out():
    x = torch.randn(B, N, DIM)
    normed = torch.nn.functional.layer_norm
    expected = {
        ("none", True): x + 3 * x,
        ("none", False): 3 * x,
        ("pre", False): 3 * normed(x, (DIM,)),
        ("post", False): normed(3 * x, (DIM,)),
    }
    for (norm, residual), wanted in expected.items():
        around = Residual(DIM, norm, residual=residual)
        assert torch.allclose(around(x, lambda part: 3 * part), wanted, atol=1e-6), (norm, residual)
    assert not list(Residual(DIM, "none").parameters())


def test_hidden_dropout_acts_inside_the_feed_forward_block_only():
    layer = EncoderLayer(DIM, dropout=0.25, hidden_dropout=0.0)
    assert (layer.feed_forward.dropout.p, layer.around_feed_forward.dropout.p) == (0.0, 0.25)
    assert DecoderLayer(DIM, dropout=0.25).feed_forward.dropout.p == 0.25


def test_feed_forward_plain_and_gated():
    x = torch.randn(B, N, DIM)
    plain = FeedForward(DIM, 5, activation="relu")
    assert torch.allclose(plain(x), plain.fall(torch.relu(plain.rise(x))))
    gated = FeedForward(DIM, 5, gated=True, activation="silu")
    inner = gated.rise(x)
    assert torch.allclose(gated(x), gated.fall(inner * torch.sigmoid(inner) * gated.gate(x)), atol=1e-6)
    with pytest.raises(regard.RegardError, match="Did you mean 'gelu'"):
        FeedForward(DIM, activation="glu")


def test_gated_and_plain_have_about_as_many_parameters():
    count = {g: sum(p.numel() for p in FeedForward(96, gated=g).parameters()) for g in (False, True)}
    assert abs(count[True] / count[False] - 1) < 0.01


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_layer_equals_torch(norm):
    ours = EncoderLayer(DIM, "multihead", num_heads=2, norm=norm, hidden=17, activation="relu").double()
    theirs = torch.nn.TransformerEncoderLayer(
        DIM, 2, 17, dropout=0.0, batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_()
        maps = [ours.attention.query_map, ours.attention.key_map, ours.attention.value_map]
        theirs.self_attn.in_proj_weight.copy_(torch.cat([m.weight for m in maps]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([m.bias for m in maps]))
        for mine, other in [
            (ours.attention.output_map, theirs.self_attn.out_proj),
            (ours.feed_forward.rise, theirs.linear1),
            (ours.feed_forward.fall, theirs.linear2),
            (ours.around_attention.norm, theirs.norm1),
            (ours.around_feed_forward.norm, theirs.norm2),
        ]:
            other.load_state_dict(mine.state_dict())
    x = torch.randn(B, N, DIM, dtype=torch.float64)
    assert torch.allclose(ours(x), theirs(x), atol=1e-10)


@pytest.mark.parametrize("name", names())
def test_every_mechanism_builds_an_encoder_layer(name):
    entry = MECHANISMS[name]
    options = ", ".join(f"{key}={value!r}" for key, value in entry.needs.items())
    layer = EncoderLayer(DIM, f"{name}({options})" if options else name)
    keep = torch.ones(B, N, dtype=torch.bool)
    keep[1, 4:] = False
    x = torch.randn(B, N, DIM)
    out = layer(x, mask=masks.padding(keep))
    assert out.shape == x.shape and out.isfinite().all()
    assert torch.allclose(layer(x[1:2, :4])[0], out[1, :4], atol=1e-5) or name == "hard"  # hard samples in training


@pytest.mark.parametrize("name", [n for n in names() if MECHANISMS[n].causal != "no"])
def test_every_causal_mechanism_builds_a_decoder_layer_that_can_be_stepped(name):
    layer = DecoderLayer(DIM, name, "multihead", num_heads=2, source_dim=5).double().eval()
    x, source = torch.randn(B, N, DIM, dtype=torch.float64), torch.randn(B, 4, 5, dtype=torch.float64)
    source_mask = masks.lengths(torch.tensor([4, 2, 3]))
    whole = layer(x, source, source_mask=source_mask)
    state, rows = layer.initial_state(B, dtype=torch.float64), []
    for t in range(N):
        row, state = layer(x[:, t : t + 1], source, source_mask=source_mask, state=state)
        rows.append(row)
    assert torch.allclose(torch.cat(rows, 1), whole, atol=1e-9)
    later = x.clone()
    later[:, 4:] += 1
    assert torch.allclose(layer(later, source, source_mask=source_mask)[:, :4], whole[:, :4], atol=1e-12)


@pytest.mark.parametrize("name", [n for n in names() if MECHANISMS[n].causal == "no"])
def test_a_decoder_refuses_mechanisms_that_cannot_be_causal(name):
    with pytest.raises(regard.RegardError, match=r"cannot be causal.*causal"):
        DecoderLayer(DIM, name)


def test_attention_is_a_name_or_a_mechanism_and_nothing_else():
    mine = build("local", dim=DIM, window=3)
    assert EncoderLayer(DIM, mine).attention is mine
    with pytest.raises(regard.RegardError, match="attention: expected a mechanism"):
        EncoderLayer(DIM, 3)


def test_options_in_the_name_override_the_common_ones():
    assert EncoderLayer(DIM, "local(window=3, num_heads=3)", num_heads=2).attention.num_heads == 3


def test_layers_can_be_copied_and_pickled():
    layer = DecoderLayer(DIM, "causal", gated=True, norm_type="rms", activation="silu")
    x, source = torch.randn(B, N, DIM), torch.randn(B, 5, DIM)
    expected = layer(x, source)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x, source), expected)


def test_dropout_of_blocks_is_off_in_evaluation():
    layer = EncoderLayer(DIM, dropout=0.5, attention_dropout=0.5)
    x = torch.randn(B, N, DIM)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
