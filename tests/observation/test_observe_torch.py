"""torch's own layers under observation: multi-head attention and Transformers, also where a fast path hides calls."""

import pytest
import torch
from torch import nn

import regard
from tests.observation.peers import BAR, largest

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")


@torch.no_grad()
def by_hand(layer, query, key=None, value=None, **masks):
    """The weights that the layer itself returns: (b, h, q, k)."""
    key = query if key is None else key
    value = key if value is None else value
    return layer(query, key, value, need_weights=True, average_attn_weights=False, **masks)[1]


@torch.no_grad()
def seen_while(model, *given, **named):
    with regard.observe(model) as seen:
        out = model(*given, **named)
    return seen, out


def only(seen):
    assert len(seen) == 1, seen.names()
    return seen[seen.names()[0]]


class Holder(nn.Module):
    """A user's module around torch's layer."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 3, **options)

    def forward(self, query, key=None, value=None, **named):
        key = query if key is None else key
        return self.attention(query, key, key if value is None else value, **named)[0]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_multihead_layer_shows_its_weights(training, need_weights, batch_first):
    model = Holder(batch_first=batch_first).train(training)
    x = torch.randn(2, 7, 24) if batch_first else torch.randn(7, 2, 24)
    with torch.no_grad():
        before = model(x, need_weights=need_weights)
    seen, out = seen_while(model, x, need_weights=need_weights)
    assert torch.equal(out, before)
    assert seen.names() == ["attention"]
    assert only(seen).shape() == (2, 3, 7, 7)
    assert largest(only(seen).weights(), by_hand(model.attention, x)) <= BAR


MASKS = {
    "padding": {"key_padding_mask": torch.tensor([[False] * 7, [False] * 5 + [True] * 2])},
    "causal": {"attn_mask": torch.ones(7, 7, dtype=torch.bool).triu(1)},
    "float": {"attn_mask": torch.linspace(-2, 2, 49).reshape(7, 7)},
    "each head": {"attn_mask": torch.linspace(-3, 3, 6 * 49).reshape(6, 7, 7)},
    "both": {
        "attn_mask": torch.ones(7, 7, dtype=torch.bool).triu(2),
        "key_padding_mask": torch.tensor([[False] * 7, [False] * 5 + [True] * 2]),
    },
}


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS.keys())
def test_masks_are_part_of_the_weights(masks, need_weights):
    model, x = Holder(batch_first=True).eval(), torch.randn(2, 7, 24)
    with torch.no_grad():
        before = model(x, need_weights=need_weights, **masks)
    seen, out = seen_while(model, x, need_weights=need_weights, **masks)
    assert torch.equal(out, before)
    assert largest(only(seen).weights(), by_hand(model.attention, x, **masks)) <= BAR


@pytest.mark.parametrize("need_weights", [False, True])
def test_cross_attention_with_other_widths(need_weights):
    model = Holder(kdim=13, vdim=17, batch_first=True).eval()
    query, key, value = torch.randn(2, 5, 24), torch.randn(2, 11, 13), torch.randn(2, 11, 17)
    seen, _ = seen_while(model, query, key, value, need_weights=need_weights)
    assert only(seen).shape() == (2, 3, 5, 11)
    assert largest(only(seen).weights(), by_hand(model.attention, query, key, value)) <= BAR


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_an_added_key_is_a_column_of_its_own(option):
    model, x = Holder(batch_first=True, **{option: True}).eval(), torch.randn(2, 5, 24)
    seen, _ = seen_while(model, x, need_weights=False)
    assert only(seen).shape() == (2, 3, 5, 6)
    assert largest(only(seen).weights(), by_hand(model.attention, x)) <= BAR


def test_a_single_sequence_without_a_batch():
    model, x = Holder().eval(), torch.randn(7, 24)
    seen, _ = seen_while(model, x, need_weights=False)
    assert largest(only(seen).weights()[0], by_hand(model.attention, x)) <= BAR


def test_the_layer_itself_may_be_what_is_observed():
    layer, x = nn.MultiheadAttention(24, 3, batch_first=True).eval(), torch.randn(2, 7, 24)
    seen, _ = seen_while(layer, x, x, x, need_weights=False)
    assert largest(only(seen).weights(), by_hand(layer, x)) <= BAR


def encoder(**options):
    layer = nn.TransformerEncoderLayer(24, 4, 29, batch_first=True, **options)  # an odd number has no fast path
    return nn.TransformerEncoder(layer, 2).eval()


@torch.no_grad()
def layer_by_layer(model, x, **masks):
    """The weights of each self-attention of an encoder whose layers are run one after the other."""
    found = []
    for layer in model.layers:
        padding = masks.get("src_key_padding_mask")
        inside = layer.norm1(x) if layer.norm_first else x
        mixed, weights = layer.self_attn(
            inside,
            inside,
            inside,
            need_weights=True,
            average_attn_weights=False,
            key_padding_mask=padding,
            attn_mask=masks.get("mask"),
        )
        found.append(weights)
        forward = lambda y, l=layer: l.linear2(l.activation(l.linear1(y)))  # noqa: E731
        if layer.norm_first:
            x = x + mixed
            x = x + forward(layer.norm2(x))
        else:
            x = layer.norm1(x + mixed)
            x = layer.norm2(x + forward(x))
    return found


@pytest.mark.parametrize("options", [{}, {"activation": "gelu"}, {"norm_first": True}], ids=str)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_the_fast_path_of_an_encoder_is_seen_and_kept(options):
    model, x = encoder(**options), torch.randn(2, 7, 24)
    with torch.no_grad():
        before = model(x)
    seen, out = seen_while(model, x)
    assert torch.equal(out, before)  # the fast path rounds differently, so leaving it would be detected
    assert seen.names() == [f"layers.{number}.self_attn" for number in (0, 1)]
    for name, expected in zip(seen.names(), layer_by_layer(model, x), strict=True):
        assert largest(seen[name].weights(), expected) <= BAR


def test_a_padded_batch_that_turns_into_a_nested_tensor():
    """In eval mode torch packs a padded batch, so padding rows are not queries."""
    model, x = encoder(), torch.randn(3, 7, 24)
    padding = torch.arange(7) >= torch.tensor([[7], [5], [2]])
    with torch.no_grad():
        before = model(x, src_key_padding_mask=padding)
    seen, out = seen_while(model, x, src_key_padding_mask=padding)
    assert torch.equal(out, before)
    oracle = layer_by_layer(model, x, src_key_padding_mask=padding)
    for name, expected in zip(seen.names(), oracle, strict=True):
        shown = seen[name].weights()
        assert seen[name].shape() == (3, 4, 7, 7)
        for row, length in enumerate((7, 5, 2)):
            assert largest(shown[row, :, :length, :length], expected[row, :, :length, :length]) <= BAR
            assert not shown[row, :, :length, length:].any()


def test_an_encoder_in_training_and_with_gradients():
    model, x = encoder(dropout=0.0).train(), torch.randn(2, 7, 24)
    oracle = layer_by_layer(model, x)
    before = model(x)
    with regard.observe(model) as seen:
        out = model(x)
    assert torch.equal(out, before)
    out.sum().backward()
    assert model.layers[0].linear1.weight.grad is not None
    for name, expected in zip(seen.names(), oracle, strict=True):
        assert largest(seen[name].weights(), expected) <= BAR


def test_dropout_is_left_out_of_the_weights_and_draws_the_same_numbers():
    model, x = encoder(dropout=0.4).train(), torch.randn(2, 7, 24)
    torch.manual_seed(3)
    before = model(x)
    torch.manual_seed(3)
    with regard.observe(model) as seen:
        out = model(x)
    assert torch.equal(out, before)
    first = seen[seen.names()[0]].weights()
    assert torch.allclose(first.sum(-1), torch.ones(2, 4, 7), atol=1e-5)
    assert largest(first, by_hand(model.layers[0].self_attn.eval(), x)) <= BAR


def test_a_whole_transformer_with_a_causal_decoder():
    model = nn.Transformer(24, 4, 2, 2, 29, batch_first=True).eval()
    source, target = torch.randn(2, 11, 24), torch.randn(2, 5, 24)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    given = {"tgt_mask": causal, "tgt_is_causal": True}
    with torch.no_grad():
        before = model(source, target, **given)
    seen, out = seen_while(model, source, target, **given)
    assert torch.equal(out, before)
    shapes = [seen[name].shape()[2:] for name in seen.names()]
    assert shapes == [(11, 11), (11, 11), (5, 5), (5, 11), (5, 5), (5, 11)]
    assert seen.names()[3] == "decoder.layers.0.multihead_attn"
    own = seen[seen.names()[2]].weights()
    assert largest(own, by_hand(model.decoder.layers[0].self_attn, target, attn_mask=causal)) <= BAR
    with torch.no_grad():
        memory = model.encoder(source)
        layer = model.decoder.layers[0]
        query = layer.norm1(target + layer.self_attn(target, target, target, attn_mask=causal)[0])
    expected = by_hand(layer.multihead_attn, query, memory)
    assert largest(seen[seen.names()[3]].weights(), expected) <= BAR


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_number_formats(dtype):
    model, x = Holder(batch_first=True).to(dtype).eval(), torch.randn(2, 7, 24, dtype=dtype)
    with torch.no_grad():
        before = model(x, need_weights=False)
    seen, out = seen_while(model, x, need_weights=False)
    assert torch.equal(out, before)
    bar = {torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    assert largest(only(seen).weights(), by_hand(model.attention, x)) <= bar
