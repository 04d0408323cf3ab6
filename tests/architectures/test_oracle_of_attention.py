"""The sweep's own counter of attention, on modules written by hand: what attends, and what only looks alike."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.architectures.oracle import Oracle

BATCH, LENGTH, WIDTH, HEADS = 2, 7, 15, 3


class Projected(nn.Module):
    """Queries, keys and values of (batch, heads, length, size); what is done with them is a function."""

    def __init__(self, mix):
        super().__init__()
        self.qkv, self.out, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), mix
        self.over_heads = nn.Linear(HEADS, HEADS)
        self.latent = nn.Parameter(torch.randn(BATCH, 4, WIDTH))

    def forward(self, x):
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))  # (b, h, n, d)
        return self.out(self.mix(self, q, k, v).transpose(1, 2).flatten(2))


@torch.no_grad()
def counted(model, *given):
    torch.manual_seed(5)
    model.eval()
    with Oracle(model) as oracle:
        model(*(given or (torch.randn(BATCH, LENGTH, WIDTH),)))
    return oracle.calls


def softmax_of(q, k):
    return torch.softmax(q @ k.mT, -1)


def test_a_softmax_between_two_products_is_one_call():
    calls = counted(Projected(lambda self, q, k, v: softmax_of(q, k) @ v))
    (call,) = calls
    assert (call.kind, call.op, call.shape, call.scored_by, call.mixed_by) == (
        "written out",
        "_softmax",
        (BATCH, HEADS, LENGTH, LENGTH),
        "bmm",
        "bmm",
    )
    assert call.module == "Projected" and call.where.startswith("tests/")
    torch.testing.assert_close(call.weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH))


def test_scale_bias_mask_dropout_and_a_cast_stay_between():
    def mix(self, q, k, v):
        scores = q @ k.mT / 2 + torch.randn(LENGTH, LENGTH)
        scores = scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -1e9)
        return F.dropout(F.softmax(scores.double(), -1).float(), 0.1, self.training) @ v

    assert len(counted(Projected(mix))) == 1


def test_einsum_is_a_product():
    def mix(self, q, k, v):
        weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
        return torch.einsum("bhij,bhjd->bhid", weights, v)

    assert len(counted(Projected(mix))) == 1


def test_products_of_elements_and_sums_are_products():
    def mix(self, q, k, v):
        weights = (q[:, :, :, None] * k[:, :, None]).sum(-1).softmax(-1)
        return (weights[..., None] * v[:, :, None]).sum(-2)

    assert len(counted(Projected(mix))) == 1


def test_scores_written_into_a_buffer_are_followed():
    def mix(self, q, k, v):
        scores = torch.full((BATCH, HEADS, LENGTH, LENGTH + 2), -torch.inf)
        scores[..., 1:-1] = q @ k.mT
        weights = torch.zeros(BATCH, HEADS, LENGTH, LENGTH)
        weights[:, :] = scores.softmax(-1)[..., 1:-1]
        return weights @ v

    assert len(counted(Projected(mix))) == 1


def test_a_softmax_by_exp_and_logsumexp_is_one_call():
    def mix(self, q, k, v):
        scores = q @ k.mT
        return torch.exp(scores - scores.logsumexp(-1, keepdim=True)) @ v

    assert len(counted(Projected(mix))) == 1


def test_talking_heads_are_one_call():
    def mix(self, q, k, v):
        scores = self.over_heads((q @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = self.over_heads(scores.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return weights @ v

    assert len(counted(Projected(mix))) == 1


def test_learned_queries_attend_once_they_are_projected():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.queries, self.q, self.k = (
                nn.Parameter(torch.randn(4, WIDTH)),
                nn.Linear(WIDTH, 5),
                nn.Linear(WIDTH, 5),
            )

        def forward(self, x):
            return torch.softmax(self.q(self.queries) @ self.k(x).mT, -1) @ x

    assert len(counted(Pooled())) == 1


def test_fused_attention_is_one_call_and_its_weights_are_known():
    def mix(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    (call,) = counted(Projected(mix))
    assert call.kind == "fused"
    assert not call.weights.triu(1).any()
    torch.testing.assert_close(call.weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH).double())


def test_multi_head_attention_of_torch_is_one_call_on_every_path():
    x = torch.randn(BATCH, LENGTH, WIDTH)
    for weights in (True, False):
        layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        assert len(counted(_Called(layer, need_weights=weights), x)) == 1
    assert len(counted(nn.TransformerEncoderLayer(16, 2, 31, batch_first=True), torch.randn(2, 5, 16))) == 1
    assert len(counted(nn.TransformerDecoderLayer(16, 2, 31, batch_first=True), *torch.randn(2, 2, 5, 16))) == 2


class _Called(nn.Module):
    def __init__(self, layer, **options):
        super().__init__()
        self.layer, self.options = layer, options

    def forward(self, x):
        return self.layer(x, x, x, **self.options)


def test_a_router_is_no_attention():
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.experts = nn.Linear(WIDTH, 4), nn.Parameter(torch.randn(4, WIDTH, WIDTH))

        def forward(self, x):
            gates = self.router(x).softmax(-1)
            return torch.einsum("bne,bned->bnd", gates, torch.einsum("bnc,ecd->bned", x, self.experts))

    assert counted(Routed()) == []


def test_a_router_behind_attention_is_no_second_one():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Projected(lambda self, q, k, v: softmax_of(q, k) @ v)
            self.router = nn.Linear(WIDTH, 4)

        def forward(self, x):
            x = x + self.attention(x)
            return self.router(x).softmax(-1).mT @ x

    assert [call.path for call in counted(Both())] == ["attention"]


def test_linear_attention_and_gated_products_are_no_softmax_attention():
    def linear(self, q, k, v):
        return q.softmax(-1) @ (k.softmax(-2).mT @ v)

    def sigmoid(self, q, k, v):
        return (q @ k.mT).sigmoid() @ v

    assert counted(Projected(linear)) == [] == counted(Projected(sigmoid))


def test_scores_that_mix_nothing_are_no_attention():
    def mix(self, q, k, v):
        return v * (q @ k.mT).softmax(-1).amax(-1, keepdim=True)

    assert counted(Projected(mix)) == []


def test_scaled_and_normalised_weights_are_still_parameters():
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, 4))

        def forward(self, x):
            gates = (x @ (self.weight / self.weight.norm(dim=0))).softmax(-1)
            return gates.mT @ x

    assert counted(Normalised()) == []


def test_a_softmax_over_the_edges_of_each_node_is_one_call():
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.value, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

        def forward(self, nodes, source, target):
            values = self.value(nodes)[source]
            scores = F.leaky_relu(self.score(nodes)[source] + self.score(nodes)[target])
            parts = scores.exp()
            whole = torch.zeros(len(nodes), 1).index_add_(0, target, parts)
            return torch.zeros_like(nodes).index_add_(0, target, parts / whole[target] * values)

    source, target = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 1, 0, 2, 2, 2]])
    (call,) = counted(Graph(), torch.randn(6, WIDTH), source, target)
    assert (call.op, call.mixed_by, call.shape) == ("softmax over edges", "index_add_", (6, 1))
