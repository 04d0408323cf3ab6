"""Two streams that attend to each other, against loops written from the definition."""

import pytest
import torch

import regard
from regard import masks
from regard.nn import build
from tests.nn.test_memory_layers import DIM, EXACT, HOLES, B, K, Q, attended, made, rows

OTHER = 10
KEEP = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [0, 1, 1, 1, 1]], dtype=torch.bool)


def test_each_stream_attends_to_the_positions_of_the_other_that_are_not_padding():
    layer, a, b = made("interactive", source_dim=OTHER), rows(B, Q, DIM), rows(B, K, OTHER)
    a_out, b_out = layer.both(a, b, a_mask=masks.padding(KEEP), b_mask=masks.padding(HOLES))
    for e in range(B):
        expected = attended(layer.to_source, a[e], b[e], lambda i, j, e=e: HOLES[e, j])
        torch.testing.assert_close(a_out[e], expected, **EXACT)
        expected = attended(layer.to_query, b[e], a[e], lambda i, j, e=e: KEEP[e, j])
        torch.testing.assert_close(b_out[e], expected, **EXACT)
    torch.testing.assert_close(layer(a, b, mask=masks.padding(HOLES)), a_out, **EXACT)


def test_a_mask_of_a_stream_may_be_lengths_or_a_tensor():
    layer, a, b = made("interactive", source_dim=OTHER), rows(B, Q, DIM), rows(B, K, OTHER)
    lengths = torch.tensor([5, 2, 3])
    keep = torch.arange(Q) < lengths[:, None]
    expected = layer.both(a, b, masks.padding(keep))
    for mask in (masks.lengths(lengths), keep):
        for mine, other in zip(layer.both(a, b, mask), expected, strict=True):
            torch.testing.assert_close(mine, other, **EXACT)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_padding_of_a_stream_reaches_neither_outputs_nor_gradients(poison):
    layer, a, b = made("interactive", source_dim=OTHER), rows(B, Q, DIM), rows(B, K, OTHER)
    found = []
    nonfinite = a.masked_fill(~KEEP[..., None], poison), b.masked_fill(~HOLES[..., None], poison)
    for given in ((a, b), nonfinite):
        outs = layer.both(*given, KEEP, HOLES)
        assert all(x.isfinite().all() for x in outs)
        real = outs[0][KEEP], outs[1][HOLES]
        loss = (real[0] * rows(*real[0].shape, seed=4)).sum() + (real[1] * rows(*real[1].shape, seed=5)).sum()
        found.append([*real, *torch.autograd.grad(loss, list(layer.parameters()))])
    for clean, dirty in zip(*found, strict=True):
        torch.testing.assert_close(dirty, clean, **EXACT)


def test_a_stream_that_is_all_padding_gives_the_other_the_output_bias():
    layer, a, b = made("interactive", source_dim=OTHER), rows(B, Q, DIM), rows(B, K, OTHER)
    a_out, b_out = layer.both(a, b, torch.zeros(B, Q, dtype=torch.bool))
    torch.testing.assert_close(b_out, layer.to_query.output_map.bias.expand_as(b_out), **EXACT)
    torch.testing.assert_close(a_out, layer(a, b), **EXACT)


@pytest.mark.parametrize(
    ("first", "second", "heads"),
    [
        ((2, 13, 256), (2, 49, 512), 8),
        ((2, 13, 64), (2, 1000, 80), 4),
        ((3, 0, 8), (3, 4, 12), 2),
        ((0, 2, 8), (0, 3, 8), 1),
    ],
)
def test_streams_may_have_the_widths_of_text_images_and_sound(first, second, heads):
    layer = build("interactive", dim=first[2], num_heads=heads, source_dim=second[2])
    a, b = torch.randn(first), torch.randn(second)
    a_out, b_out = layer.both(a, b)
    assert (a_out.shape, b_out.shape, layer(a, b).shape) == (a.shape, b.shape, a.shape)


def test_without_a_source_a_stream_attends_to_itself():
    layer, a = made("interactive"), rows(B, K, DIM)
    torch.testing.assert_close(layer(a), layer(a, a), **EXACT)
    with pytest.raises(ValueError, match="source: this layer was built with dim=6 and source_dim=10"):
        made("interactive", source_dim=OTHER)(a)


def test_steps_over_a_source_equal_one_call():
    layer, a, b = made("interactive", source_dim=OTHER), rows(B, Q, DIM), rows(B, K, OTHER)
    mask = masks.padding(HOLES)
    first, state = layer(a[:, :2], b, mask=mask, state=layer.initial_state(B))
    second, _ = layer(a[:, 2:], state=state)
    torch.testing.assert_close(torch.cat([first, second], 1), layer(a, b, mask=mask), **EXACT)
    assert layer.weights(a, b, mask=mask).shape == (B, 2, Q, K)


def test_errors_name_the_stream_or_the_mask():
    with pytest.raises(ValueError, match=r"num_heads: both dim=6 and source_dim=9 .* got 2. Try one of \[1, 3\]"):
        build("interactive", dim=6, num_heads=2, source_dim=9)
    layer, a, b = made("interactive", source_dim=OTHER), rows(B, Q, DIM), rows(B, K, OTHER)
    with pytest.raises(ValueError, match="source"):
        layer.both(a, a)
    with pytest.raises(ValueError, match=r"a_mask: expected \(b,length\) = \(3, 5\)"):
        layer.both(a, b, HOLES)
    with pytest.raises(TypeError, match="b_mask"):
        layer.both(a, b, None, HOLES.float())
    with pytest.raises(regard.RegardError, match="depends on the query"):
        layer.both(a, b, masks.causal())


def test_numeric_gradients_agree_in_both_directions():
    layer, a, b = made("interactive", source_dim=4), rows(2, 2, DIM), rows(2, 3, 4)
    call = lambda a, b, *_: layer.both(a, b, None, masks.lengths(torch.tensor([2, 0])))  # noqa: E731
    inputs = [a.requires_grad_(), b.requires_grad_(), *layer.parameters()]
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
