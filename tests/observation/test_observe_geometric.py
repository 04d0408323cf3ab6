"""Graph attention of PyTorch Geometric: the weights of its edges, as a map of target nodes × source nodes."""

import warnings

import pytest
import torch
from torch import nn

import regard

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of compiled extensions that are not there
    from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

NODES, WIDTH, HEADS = 7, 5, 3
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 2, 2], [1, 2, 3, 4, 5, 6, 0, 3, 5, 0]])


def built(kind):
    return kind(WIDTH, 4, heads=HEADS).eval(), torch.randn(NODES, WIDTH)


def dense(edges, weight):
    """The weights that the layer itself returns, edge by edge, as (heads, targets, sources)."""
    found = torch.zeros(HEADS, NODES, NODES)
    for (source, target), each in zip(edges.T.tolist(), weight, strict=True):
        found[:, target, source] += each
    return found


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv, TransformerConv])
def test_weights_are_those_the_layer_returns(kind):
    layer, x = built(kind)
    plain, (edges, weight) = layer(x, EDGES, return_attention_weights=True)
    with torch.no_grad(), regard.observe(layer) as seen:
        assert torch.equal(layer(x, EDGES), plain)
    site = seen[kind.__name__]
    wanted = dense(edges, weight.detach())
    torch.testing.assert_close(site.weights()[0], wanted)
    torch.testing.assert_close(site.weights(rows=[5, 0, 5], heads=[2])[0], wanted[[2]][:, [5, 0, 5]])
    torch.testing.assert_close(site.columns_of([2])[0], wanted[:, :, [2]])
    seeing = (wanted.sum((0, 2)) > 0).sum()
    torch.testing.assert_close(site.summary().received[0], wanted.sum(1) / seeing)


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv])
def test_a_silenced_head_contributes_nothing(kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = kind(WIDTH, 4, heads=HEADS, bias=False)

        def forward(self, x):
            return self.layer(x, EDGES)

    net, x = Net().eval(), torch.randn(NODES, WIDTH)
    with torch.no_grad(), regard.observe(net) as seen:
        whole = net(x)
    found = seen.ablate({"layer": [1]}, loss=lambda output: output.sum())
    wanted = whole.unflatten(1, (HEADS, 4))[:, [0, 2]].sum().item()
    assert found.after == pytest.approx(wanted, abs=1e-5)
