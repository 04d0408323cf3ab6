"""Derivatives by autograd against differences, in float64: inputs and parameters, `hard` in evaluation."""

import pytest
import torch
from torch.func import functional_call

from regard import masks
from tests.nn.contracts.layers import (
    PLAIN,
    USES,
    WIDE,
    Case,
    named,
)

# Variants and causal forms differ from the plain ones in self use as in cross use: one of the two is enough.
BOTH = [(case, cross) for case in PLAIN for cross in USES] + [(case, False) for case in WIDE if case.options]


@pytest.mark.parametrize(("case", "cross"), BOTH, ids=lambda x: str(x) if isinstance(x, Case) else named(x))
def test_gradients_are_those_of_differences(case, cross):
    """One entry is padded, one is empty."""
    layer, inputs = case.build(cross), case.inputs(cross, b=3, q=2, k=3)
    keep = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 0]], dtype=torch.bool)
    names = [name for name, _ in layer.named_parameters()]

    def call(*tensors):
        given, parameters = tensors[: len(inputs)], dict(zip(names, tensors[len(inputs) :], strict=True))
        return functional_call(layer, parameters, tuple(given), {"mask": masks.padding(keep)})

    leaves = [x.detach().clone().requires_grad_() for x in [*inputs, *layer.parameters()]]
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)
