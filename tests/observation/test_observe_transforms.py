"""Calls under torch.vmap have no weights that can be read, and say so; calls under torch.func.grad have."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard


class Mixes(nn.Module):
    def __init__(self, fused, vmapped):
        super().__init__()
        self.fused, self.vmapped = fused, vmapped

    def mix(self, rows):
        if self.fused:
            return F.scaled_dot_product_attention(rows, rows, rows, scale=1.0)
        return (rows @ rows.mT).softmax(-1) @ rows

    def forward(self, rows):
        return torch.vmap(self.mix)(rows) if self.vmapped else self.mix(rows)


@pytest.mark.parametrize("fused", [True, False])
def test_a_call_under_vmap_says_why_it_has_no_weights(fused):
    model, rows = Mixes(fused, vmapped=True), torch.randn(2, 3, 7, 5)
    plain = model(rows)
    with regard.observe(model) as seen:
        assert torch.equal(model(rows), plain)
    site = seen["Mixes"]
    assert site.how == "unverified"
    for ask in (site.weights, site.summary, lambda: site.columns_of([0])):
        with pytest.raises(regard.RegardError, match=r"ran under torch\.vmap"):
            ask()


@pytest.mark.parametrize("fused", [True, False])
def test_a_call_under_a_transform_of_gradients_is_read(fused):
    model, rows = Mixes(fused, vmapped=False), torch.randn(2, 3, 7, 5)
    with regard.observe(model) as seen:
        torch.func.grad(lambda rows: model(rows).sum())(rows)
    torch.testing.assert_close(seen["Mixes"].weights(), (rows @ rows.mT).softmax(-1))
