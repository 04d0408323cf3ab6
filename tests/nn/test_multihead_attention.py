"""`regard.nn.MultiheadAttention` against torch.nn.MultiheadAttention with the same weights, and what torch's lacks."""

import pytest
import torch
from torch import nn

import regard
from regard import masks
from regard.nn import Multihead, MultiheadAttention

B, Q, K, DIM, HEADS = 3, 5, 7, 12, 2
LENGTHS = torch.tensor([7, 3, 5])
KEEP = torch.arange(K) < LENGTHS[:, None]
LATER = torch.ones(Q, K, dtype=torch.bool).triu(K - Q + 1)  # torch: True = hidden; the last query sees every key


def torch_layer(kdim=None, vdim=None, bias=True):
    torch.manual_seed(2)
    layer = nn.MultiheadAttention(DIM, HEADS, bias=bias, kdim=kdim, vdim=vdim, batch_first=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return layer.double().eval()


def ours_like(theirs):
    """Our layer with torch's weights."""
    layer = MultiheadAttention(DIM, HEADS, bias=theirs.in_proj_bias is not None, kdim=theirs.kdim, vdim=theirs.vdim)
    if theirs.in_proj_weight is not None:
        weights = theirs.in_proj_weight.chunk(3)
    else:
        weights = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
    copied = {f"{part}_map.weight": x for part, x in zip(("query", "key", "value"), weights, strict=True)}
    copied["output_map.weight"] = theirs.out_proj.weight
    if theirs.in_proj_bias is not None:
        for part, x in zip(("query", "key", "value"), theirs.in_proj_bias.chunk(3), strict=True):
            copied[f"{part}_map.bias"] = x
        copied["output_map.bias"] = theirs.out_proj.bias
    layer.load_state_dict({name: x.detach().clone() for name, x in copied.items()})
    return layer.double().eval()


def inputs(kdim=DIM, vdim=DIM, k=K):
    generator = torch.Generator().manual_seed(4)
    return [
        torch.randn(B, length, width, generator=generator, dtype=torch.float64, requires_grad=True)
        for length, width in ((Q, DIM), (k, kdim), (k, vdim))
    ]


# ours, torch's
MASKS = {
    "none": (None, {}),
    "padding": (masks.padding(KEEP), {"key_padding_mask": ~KEEP}),
    "lengths": (masks.lengths(LENGTHS), {"key_padding_mask": ~KEEP}),
    "causal": (masks.causal(), {"attn_mask": LATER}),
    "a bool tensor": (~LATER, {"attn_mask": LATER}),
    "causal and padding": (masks.causal() & masks.padding(KEEP), {"attn_mask": LATER, "key_padding_mask": ~KEEP}),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("kdim", "vdim", "bias"), [(None, None, True), (10, 14, True), (10, None, False)])
def test_outputs_weights_and_gradients_equal_torch_with_the_same_weights(name, kdim, vdim, bias):
    mask, theirs_mask = MASKS[name]
    theirs = torch_layer(kdim, vdim, bias)
    ours = ours_like(theirs)
    given = inputs(kdim or DIM, vdim or DIM)
    expected, expected_weights = theirs(*given, **theirs_mask, average_attn_weights=False)
    found = ours(*given, mask=mask)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.weights(*given[:2], mask=mask), expected_weights, rtol=1e-10, atol=1e-12)
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for grad, of_torch in zip(
        torch.autograd.grad(found, given, upstream), torch.autograd.grad(expected, given, upstream), strict=True
    ):
        torch.testing.assert_close(grad, of_torch, rtol=1e-9, atol=1e-11)


def test_a_mask_of_each_head_equals_torch():
    theirs = torch_layer()
    allowed = torch.rand(B, HEADS, Q, K, generator=torch.Generator().manual_seed(6)) < 0.6
    allowed[..., 0] = True
    expected, _ = theirs(*inputs(), attn_mask=~allowed.flatten(0, 1))
    torch.testing.assert_close(ours_like(theirs)(*inputs(), mask=allowed), expected, rtol=1e-10, atol=1e-12)


def test_weights_and_parameters_are_those_of_the_mechanism_multihead():
    torch.manual_seed(3)
    separate = MultiheadAttention(DIM, HEADS, kdim=10, vdim=10, kv_heads=1, qk_norm=True)
    torch.manual_seed(3)
    joint = Multihead(DIM, HEADS, source_dim=10, kv_heads=1, qk_norm=True)
    assert list(separate.state_dict()) == list(joint.state_dict())
    for name, x in joint.state_dict().items():
        assert torch.equal(separate.state_dict()[name], x), name
    query, source = torch.randn(B, Q, DIM), torch.randn(B, K, 10)
    assert torch.equal(
        separate(query, source, mask=masks.padding(KEEP)), joint(query, source, mask=masks.padding(KEEP))
    )
    assert torch.equal(
        separate.weights(query, source, rows=[1], heads=[0]), joint.weights(query, source, rows=[1], heads=[0])
    )


def test_keys_default_to_queries_and_values_to_keys():
    layer, x = MultiheadAttention(DIM, HEADS), torch.randn(B, K, DIM)
    assert torch.equal(layer(x, mask=KEEP[:, None]), layer(x, x, x, mask=KEEP[:, None]))
    assert torch.equal(layer(x[:, :2], x), layer(x[:, :2], x, x))


@pytest.mark.parametrize("place", ["keys", "values", "both", "self"])
def test_nan_in_padding_changes_neither_outputs_nor_gradients(place):
    mask = masks.padding(KEEP)

    def answer(hole):
        torch.manual_seed(5)
        layer = MultiheadAttention(DIM, HEADS).double()
        query, key, value = (x.detach().clone() for x in inputs())
        if place == "self":
            key[~KEEP] = hole
            query = key = value = key.requires_grad_()
        else:
            for name, x in (("keys", key), ("values", value)):
                if place in (name, "both"):
                    x[~KEEP] = hole
        out = layer(query, key, value, mask=mask)
        rows = KEEP if place == "self" else torch.ones(B, Q, dtype=torch.bool)
        assert out.isfinite().all()
        return [out[rows], *torch.autograd.grad(out[rows].square().sum(), list(layer.parameters()))]

    for found, expected in zip(answer(torch.nan), answer(0.0), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_nan_in_a_visible_row_shows():
    layer, (query, key, value) = MultiheadAttention(DIM, HEADS).double(), (x.detach() for x in inputs())
    value[1, 0] = torch.nan
    out = layer(query, key, value, mask=masks.padding(KEEP))
    assert out[1].isnan().all() and out[[0, 2]].isfinite().all()


def test_a_query_that_sees_nothing_gets_the_bias_of_the_last_projection():
    layer = MultiheadAttention(DIM, HEADS).double()
    nn.init.normal_(layer.output_map.bias)
    allowed = torch.ones(Q, K, dtype=torch.bool)
    allowed[2] = False
    torch.testing.assert_close(layer(*inputs(), mask=allowed)[:, 2], layer.output_map.bias.expand(B, -1))


def test_dropout_acts_in_training_only_and_not_on_the_weights():
    layer, given = MultiheadAttention(DIM, HEADS, dropout=0.5).double(), inputs()
    still = layer.eval()(*given)
    weights = layer.weights(*given[:2])
    assert torch.equal(layer(*given), still)
    assert not torch.allclose(layer.train()(*given), still)
    assert torch.equal(layer.weights(*given[:2]), weights)


def test_the_implementation_is_the_one_that_was_asked_for():
    given = inputs()
    found = [MultiheadAttention(DIM, HEADS, impl=impl).double() for impl in ("reference", "tiled")]
    found[1].load_state_dict(found[0].state_dict())
    torch.testing.assert_close(found[0](*given), found[1](*given), rtol=1e-10, atol=1e-12)
    with pytest.raises(regard.RegardError, match="impl: there is no 'fastest'"):
        MultiheadAttention(DIM, HEADS, impl="fastest").double()(*given)


def test_it_is_seen_by_observe():
    layer, given = MultiheadAttention(DIM, HEADS).double(), inputs()
    model = nn.ModuleDict({"attention": layer})
    with regard.observe(model) as seen:
        layer(*given, mask=masks.causal())
    torch.testing.assert_close(seen["attention"].weights(), layer.weights(*given[:2], mask=masks.causal()))


def test_it_is_no_mechanism_of_the_registry():
    assert "multihead-attention" not in regard.nn.names()
    assert all(regard.nn.entry(name).layer is not MultiheadAttention for name in regard.nn.names())


WRONG = {
    "num_heads: dim=12 cannot be shared equally by 5 heads": lambda: MultiheadAttention(DIM, 5),
    "kv_heads: expected a divisor": lambda: MultiheadAttention(DIM, 4, kv_heads=3),
    "dropout: expected a probability": lambda: MultiheadAttention(DIM, HEADS, dropout=1.5),
    "keys: expected .* kdim=10": lambda: MultiheadAttention(DIM, HEADS, kdim=10)(*inputs()),
    "queries: expected a floating-point tensor": lambda: MultiheadAttention(DIM, HEADS)([1.0]),
    "values: expected one value for each key": lambda: MultiheadAttention(DIM, HEADS)(*inputs()[:2], inputs(k=11)[2]),
    "keys: queries, keys and values must have one batch size": lambda: MultiheadAttention(DIM, HEADS)(
        inputs()[0][:2], *inputs()[1:]
    ),
    r"It looks like a padding mask \(b,k\).* masks.padding": lambda: MultiheadAttention(DIM, HEADS).double()(
        *inputs(), mask=KEEP
    ),
    "mask: expected a Mask or a bool tensor": lambda: MultiheadAttention(DIM, HEADS).double()(
        *inputs(), mask=KEEP.double()
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_argument_is_named(message):
    with pytest.raises(regard.RegardError, match=message):
        WRONG[message]()


def test_it_compiles_to_one_graph():
    layer, given = MultiheadAttention(DIM, HEADS).double().eval(), inputs()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*given, mask=masks.causal()), layer(*given, mask=masks.causal()))


def test_values_of_a_head_may_be_wider_than_its_keys():
    layer = MultiheadAttention(DIM, HEADS, kdim=10, vdim=9, value_dim=7).double()
    twin = Multihead(DIM, HEADS, value_dim=7, source_dim=10).double()
    queries, keys = torch.randn(B, Q, DIM).double(), torch.randn(B, K, 10).double()
    values = torch.randn(B, K, 9).double()
    assert layer(queries, keys, values).shape == (B, Q, DIM)
    weights = layer.weights(queries, keys)  # (b,h,q,k)
    mapped = layer.value_map(values).unflatten(-1, (HEADS, 7))
    mixed = torch.einsum("bhqk,bkhv->bqhv", weights, mapped).flatten(2)
    assert torch.allclose(layer(queries, keys, values), layer.output_map(mixed), atol=1e-12)
    same = MultiheadAttention(DIM, HEADS, kdim=10, vdim=10, value_dim=7).double()
    same.load_state_dict({name: x for name, x in twin.state_dict().items() if "_map" in name})
    assert torch.allclose(same(queries, keys, keys), twin(queries, keys), atol=1e-12)
