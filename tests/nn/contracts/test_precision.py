"""Half precision: autocast is finite and near, forward and backward, and layers can be cast to it."""

import pytest
import torch

from regard import masks
from tests.nn.contracts.layers import ALL, HOLES, PLAIN, USES, named

by_use = pytest.mark.parametrize("cross", USES, ids=named)
by_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)

CHOOSES = {"hard"}  # a rounded score may choose another key


@pytest.mark.parametrize("case", ALL, ids=str)
@by_dtype
def test_autocast_is_finite_forward_and_backward(case, dtype):
    keep = HOLES.clone()
    keep[1] = False  # an entry without visible keys
    for cross in USES:
        layer = case.build(cross, dtype=torch.float32)
        for size in (1, 30):
            inputs = [(size * x).requires_grad_() for x in case.inputs(cross, dtype=torch.float32)]
            with torch.autocast("cpu", dtype=dtype):
                out = layer(*inputs, mask=masks.padding(keep))
            assert out.shape == inputs[0].shape
            assert out.isfinite().all()
            if size == 1 and case.name not in CHOOSES:
                expected = layer(*inputs, mask=masks.padding(keep))
                torch.testing.assert_close(out.float(), expected, rtol=0.1, atol=0.1)
            out.float().square().mean().backward()
            for x in [*inputs, *layer.parameters()]:
                assert x.grad is None or x.grad.isfinite().all()


@pytest.mark.parametrize("case", PLAIN, ids=str)
@by_dtype
@by_use
def test_a_layer_in_half_precision_returns_half_precision(case, dtype, cross):
    layer = case.build(cross).to(dtype)
    inputs = case.inputs(cross, dtype=dtype)
    out = layer(*inputs, mask=masks.padding(HOLES))
    assert out.dtype == dtype
    assert out.isfinite().all()


@pytest.mark.parametrize("case", PLAIN, ids=str)
@by_use
def test_float32_is_close_to_float64(case, cross):
    inputs = case.inputs(cross)
    exact = case.build(cross)(*inputs, mask=masks.padding(HOLES))
    layer = case.build(cross).float()
    found = layer(*[x.float() for x in inputs], mask=masks.padding(HOLES))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [case for case in PLAIN if case.causal], ids=str)
@by_dtype
def test_steps_under_autocast_are_finite(case, dtype):
    layer, (rows,) = case.build(dtype=torch.float32), case.inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        state = layer.initial_state(3)
        for t in range(rows.shape[1]):
            out, state = layer(rows[:, t : t + 1], state=state)
            assert out.isfinite().all()
