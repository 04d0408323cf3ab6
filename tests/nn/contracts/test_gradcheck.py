"""Gradients by autograd against finite differences, in float64: inputs and parameters; `hard` in evaluation."""

import pytest
import torch
from torch.func import functional_call

from regard import masks
from tests.nn.contracts.layers import USED, named


@pytest.mark.parametrize(("case", "cross"), USED, ids=named)
def test_gradients_equal_finite_differences(case, cross):
    """One entry is padded, one is empty."""
    layer, inputs = case.build(cross), case.inputs(cross, b=3, q=2, k=3)
    keep = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 0]], dtype=torch.bool)
    names = [name for name, _ in layer.named_parameters()]

    def call(*tensors):
        given, parameters = tensors[: len(inputs)], dict(zip(names, tensors[len(inputs) :], strict=True))
        return functional_call(layer, parameters, tuple(given), {"mask": masks.padding(keep)})

    leaves = [x.detach().clone().requires_grad_() for x in [*inputs, *layer.parameters()]]
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)
