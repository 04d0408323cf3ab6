"""Shapes in self- and cross-attention, sizes of zero, and inputs with unusual strides."""

import pytest
import torch

from regard import masks
from tests.nn.contracts.layers import (
    ALL,
    HOLES,
    PLAIN,
    USES,
    B,
    Case,
    K,
    Q,
    answer,
    assert_same,
    everything,
    gradients,
    named,
)

by_case = pytest.mark.parametrize("case", PLAIN, ids=str)
by_use = pytest.mark.parametrize("cross", USES, ids=named)


@by_case
@by_use
def test_the_output_has_the_shape_and_dtype_of_the_query(case, cross):
    layer = case.build(cross)
    inputs = case.inputs(cross)
    for mask in (None, masks.padding(HOLES), masks.full()):
        out = layer(*inputs, mask=mask)
        assert out.shape == inputs[0].shape
        assert out.dtype == torch.float64
        assert out.isfinite().all()


@by_case
def test_more_queries_than_source_positions_are_fine(case):
    layer = case.build(cross=True)
    query, source = case.inputs(cross=True, q=7, k=2)
    out = layer(query, source)
    assert out.shape == (B, 7, case.dim)
    assert out.isfinite().all()


# With a source these have another formula (see their docstrings), so they are left out.
OTHERWISE = {"key-value-memory", "global-layer", "local-layer", "dynamic-memory", "global-query"}


@pytest.mark.parametrize("case", [case for case in ALL if case.name not in OTHERWISE], ids=str)
def test_a_source_equal_to_the_query_is_self_attention(case):
    layer, (rows,) = case.build(), case.inputs()
    torch.testing.assert_close(layer(rows, rows.clone()), layer(rows), rtol=1e-9, atol=1e-9)


@by_case
def test_no_mask_equals_a_full_mask(case):
    for cross in USES:
        layer, inputs = case.build(cross), case.inputs(cross)
        assert_same(answer(layer, inputs, masks.full()), answer(layer, inputs))


@pytest.mark.parametrize("case", PLAIN, ids=str)
@by_use
@pytest.mark.parametrize("empty", ["b", "q", "k"])
def test_sizes_of_zero_give_the_right_shapes(case, cross, empty):
    sizes = {"b": B, "q": Q, "k": K, empty: 0}
    for mask in (None, masks.padding(torch.ones(sizes["b"], sizes["k"], dtype=torch.bool))):
        layer = case.build(cross)
        inputs = [x.requires_grad_() for x in case.inputs(cross, **sizes)]
        out = layer(*inputs, mask=mask)
        assert out.shape == (sizes["b"], sizes["q"] if cross else sizes["k"], case.dim)
        assert out.isfinite().all()
        for name, grad in gradients(layer, out, everything(out.shape), inputs).items():
            assert grad.isfinite().all(), name


@pytest.mark.parametrize("case", PLAIN, ids=str)
@by_use
def test_strides_do_not_change_results(case, cross):
    layer, inputs = case.build(cross), case.inputs(cross)
    expected = answer(layer, inputs, masks.padding(HOLES))
    layouts = {
        "lengths before batch": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        "columns apart": lambda x: torch.stack([x, x], -1)[..., 0],
        "rows from the end": lambda x: torch.cat([x.flip(1), x], 1)[:, x.shape[1] :],
    }
    for name, lay in layouts.items():
        laid = [lay(x) for x in inputs]
        assert name == "rows from the end" or not laid[0].is_contiguous()
        leaves = [x.detach().requires_grad_() for x in laid]
        out = layer(*leaves, mask=masks.padding(HOLES))
        found = {"output": out.detach().flatten(0, 1), **gradients(layer, out, everything(out.shape), leaves)}
        assert_same(found, expected | {"output": expected["output"]})


@pytest.mark.parametrize("case", PLAIN, ids=str)
@by_use
def test_one_row_expanded_to_a_batch_is_the_same_row(case, cross):
    layer, inputs = case.build(cross), case.inputs(cross, b=1)
    expected = layer(*inputs).expand(B, -1, -1)
    torch.testing.assert_close(layer(*[x.expand(B, -1, -1) for x in inputs]), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", PLAIN, ids=str)
@by_use
def test_a_gradient_of_stride_zero_is_fine(case, cross):
    layer, inputs = case.build(cross), [x.requires_grad_() for x in case.inputs(cross)]
    found = torch.autograd.grad(layer(*inputs).sum(), inputs)
    out = layer(*inputs)
    for x, y in zip(found, torch.autograd.grad(out, inputs, torch.ones_like(out)), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


def test_both_streams_of_interactive_keep_their_own_shape_and_mask():
    case = Case("interactive")
    layer, (a, b) = case.build(cross=True), case.inputs(cross=True)
    keep_a = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [0, 1, 1, 1, 1]], dtype=torch.bool)
    a_mask, b_mask = masks.padding(keep_a), masks.padding(HOLES)
    a_out, b_out = layer.both(a, b, a_mask=a_mask, b_mask=b_mask)
    assert (a_out.shape, b_out.shape) == (a.shape, b.shape)
    torch.testing.assert_close(layer(a, b, mask=b_mask), a_out, rtol=1e-9, atol=1e-9)
    for number in (5.0, torch.nan, torch.inf):
        other_a, other_b = a.masked_fill(~keep_a[..., None], number), b.masked_fill(~HOLES[..., None], number)
        a_new, b_new = layer.both(other_a, other_b, a_mask=a_mask, b_mask=b_mask)
        torch.testing.assert_close(a_new[keep_a], a_out[keep_a], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(b_new[HOLES], b_out[HOLES], rtol=1e-9, atol=1e-9)
