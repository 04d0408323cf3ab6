"""Two layers with the same parameters, torch's and ours, and ways to compare what they do."""

import torch
from torch import nn

from regard.interop.torch import MultiheadAttention


def pair(embed_dim=15, num_heads=3, **options):
    """torch's layer and ours, made from the same seed, with biases that are not zero."""
    made = []
    for kind in (nn.MultiheadAttention, MultiheadAttention):
        torch.manual_seed(11)
        layer = kind(embed_dim, num_heads, **options)
        with torch.no_grad():
            for name in ("in_proj_bias", "out_proj.bias"):
                found = dict(layer.named_parameters()).get(name)
                if found is not None:
                    found.copy_(torch.linspace(-0.5, 0.7, len(found)))
        made.append(layer)
    return made


def rows(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def call_and_differentiate(layer, inputs, **options):
    """Output, weights, and the gradients of inputs and parameters of one call."""
    leaves = {id(given): given.clone().requires_grad_() for given in inputs}
    query, key, value = (leaves[id(given)] for given in inputs)
    output, weights = layer(query, key, value, **options)
    loss = (output * rows(*output.shape, seed=5, dtype=output.dtype)).sum()
    if weights is not None:
        loss = loss + (weights * rows(*weights.shape, seed=6, dtype=weights.dtype)).sum()
    targets = [*leaves.values(), *layer.parameters()]
    grads = torch.autograd.grad(loss, targets, allow_unused=True)
    return [output, *([] if weights is None else [weights]), *(grad for grad in grads if grad is not None)]


def assert_same(ours, theirs, tolerance=1e-10):
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape and mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


def uniform_layers(**options):
    """torch's layer and ours, two wide with one head, whose scores are all 0 and whose values are its inputs.

    The output projection is the identity with a bias of (10, 20).
    """
    made = []
    for kind in (nn.MultiheadAttention, MultiheadAttention):
        layer = kind(2, 1, **options)
        with torch.no_grad():
            layer.in_proj_weight.zero_()
            layer.in_proj_weight[4:] = torch.eye(2)
            layer.out_proj.weight.copy_(torch.eye(2))
            layer.out_proj.bias.copy_(torch.tensor([10.0, 20.0]))
        made.append(layer)
    return made
