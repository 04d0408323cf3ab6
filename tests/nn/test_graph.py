"""Attention over edges: against loops over nodes, a peer library, published weights, and dense attention."""

import math
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.dispatch.edge_attention import attend_edges, edge_weights
from regard.formula.edges import Edges
from regard.nn import GraphAttention
from regard_workbench import models, tasks

SHARED = Path(os.environ.get("REGARD_SHARED", Path(__file__).resolve().parents[3] / "shared"))
NODES, SOURCES, HEADS, ACROSS, WIDTH = 11, 7, 3, 5, 2
IMPLS = ["reference", "torch"]


def drawn(weighted, nodes=NODES, sources=SOURCES, edges=31, seed=0):
    """Inputs in float64 that need gradients, and edges, some of them given twice; the last node has none."""
    draw = torch.Generator().manual_seed(seed)
    across = ACROSS if weighted else 1
    shapes = [(nodes, HEADS, across), (sources, HEADS, across), (sources, HEADS, WIDTH)]
    shapes += [(HEADS, across)] if weighted else []
    tensors = [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]
    start = torch.randint(sources, (edges,), generator=draw)
    end = torch.randint(nodes - 1, (edges,), generator=draw)
    pairs = torch.stack([start, end])
    return tensors, torch.cat([pairs, pairs[:, :4]], 1)


@torch.no_grad()
def by_loops(left, right, value, weight, pairs, slope=0.2):
    """The definition, node by node, head by head."""
    found = torch.zeros(len(left), HEADS, WIDTH, dtype=torch.float64)
    edges = sorted(set(map(tuple, pairs.T.tolist())))
    for node in range(len(left)):
        near = [start for start, end in edges if end == node]
        for head in range(HEADS):
            scores = []
            for other in near:
                total = 0.0
                for a in range(left.shape[2]):
                    compared = float(left[node, head, a] + right[other, head, a])
                    compared = compared if compared > 0 else slope * compared
                    total += compared * (1.0 if weight is None else float(weight[head, a]))
                scores.append(total)
            total = sum(math.exp(score) for score in scores)
            for score, other in zip(scores, near, strict=True):
                found[node, head] += math.exp(score) / total * value[other, head]
    return found


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_output_is_the_definition_worked_node_by_node(weighted, impl):
    tensors, pairs = drawn(weighted)
    weight = tensors[3] if weighted else None
    found = attend_edges(*tensors[:3], Edges.of(pairs, NODES, SOURCES), weight=weight, impl=impl)
    torch.testing.assert_close(found.detach(), by_loops(*tensors[:3], weight, pairs))
    assert (found[-1] == 0).all()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("weighted", [False, True])
def test_first_and_second_derivatives_are_those_of_finite_differences(weighted, impl):
    tensors, pairs = drawn(weighted, nodes=5, sources=4, edges=7)
    edges = Edges.of(pairs, 5, 4)

    def run(left, right, value, weight=None):
        return attend_edges(left, right, value, edges, weight=weight, impl=impl)

    assert torch.autograd.gradcheck(run, tensors)
    assert torch.autograd.gradgradcheck(run, tensors)


@pytest.mark.parametrize("weighted", [False, True])
def test_pieces_of_edges_give_what_all_edges_at_once_give(weighted, monkeypatch):
    from regard.implementations import edges as plain

    monkeypatch.setattr(plain, "_CELLS", 64)  # a few edges in a piece
    tensors, pairs = drawn(weighted, nodes=37, sources=29, edges=211)
    edges, weight = Edges.of(pairs, 37, 29), tensors[3] if weighted else None
    grad = torch.randn(37, HEADS, WIDTH, dtype=torch.float64)
    results = []
    for impl in IMPLS:
        torch.manual_seed(3)
        output = attend_edges(*tensors[:3], edges, weight=weight, dropout=0.3, impl=impl)
        results.append([output, *torch.autograd.grad(output, tensors, grad)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_weights_of_edges_are_a_softmax_over_the_edges_into_each_node():
    (left, right, _), pairs = drawn(False)
    edges = Edges.of(pairs, NODES, SOURCES)
    found = edge_weights(left, right, edges)
    totals = torch.zeros(NODES, HEADS, dtype=torch.float64).index_add(0, edges.targets, found.detach())
    assert set(totals[edges.targets].round(decimals=9).flatten().tolist()) == {1.0}
    assert len(edges) == len(set(map(tuple, pairs.T.tolist()))) == found.shape[0]


def test_the_memory_of_a_training_step_grows_with_edges_and_not_with_edges_times_width():
    saved = []

    def note(tensor):
        saved.append(tensor.numel())
        return tensor

    torch.manual_seed(0)
    nodes, count, heads, width = 101, 30011, 3, 64
    edges = Edges.of(torch.randint(nodes, (2, count)), nodes)
    left, right = (torch.randn(nodes, heads, 1, requires_grad=True) for _ in range(2))
    value = torch.randn(nodes, heads, width, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attend_edges(left, right, value, edges)
    assert sum(saved) <= len(edges) * heads + 2 * nodes * heads * (width + 1) < len(edges) * heads * width / 10


def test_dropout_drops_its_share_of_weights_and_repeats_with_the_seed():
    nodes = 211
    edges = Edges.of(
        torch.stack([torch.arange(nodes).repeat(nodes), torch.arange(nodes).repeat_interleave(nodes)]), nodes
    )
    same = torch.zeros(nodes, 1, 1)
    value = torch.ones(nodes, 1, 1)

    def run(seed):
        torch.manual_seed(seed)
        return attend_edges(same, same, value, edges, dropout=0.3)

    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))
    assert float(run(1).mean()) == pytest.approx(1, abs=0.02)  # 44,521 draws
    assert (attend_edges(same, same, value, edges, dropout=1.0) == 0).all()


@pytest.mark.parametrize("version", [1, 2])
def test_nan_in_a_node_reaches_the_nodes_that_see_it_and_no_gradient_of_a_loss_on_others(version):
    torch.manual_seed(0)
    pairs = torch.tensor([[0, 1, 2, 3], [1, 2, 1, 4]])  # node 3 is seen by 4 and by itself
    layer = GraphAttention(5, 2, width=3, version=version, score_bias=version == 1)
    nodes = torch.randn(1, 5, 5)
    clean = layer(nodes, pairs)
    clean[:, :3].sum().backward()
    wanted = {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}
    layer.zero_grad()
    nodes[0, 3, 2] = math.nan
    found = layer(nodes, pairs)
    assert found[0, 3:].isnan().all() and torch.equal(found[0, :3], clean[0, :3])
    found[:, :3].sum().backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name])


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("part", [0, 1, 2], ids=["left", "right", "value"])
@pytest.mark.parametrize("impl", IMPLS)
def test_a_node_that_is_not_finite_changes_no_gradient_of_a_loss_on_others(impl, part, weighted, recorded):
    tensors, pairs = drawn(weighted)
    edges = Edges.of(pairs, NODES, SOURCES)
    weight = tensors[3] if weighted else None
    bad = torch.zeros(NODES, dtype=torch.bool)
    if part == 0:
        bad[2] = True
    else:
        bad[edges.targets[edges.sources == 2]] = True
    assert 0 < bad.sum() < NODES - 2
    grad = torch.randn(NODES, HEADS, WIDTH, dtype=torch.float64).masked_fill(bad[:, None, None], 0)
    clean = attend_edges(*tensors[:3], edges, weight=weight, impl=impl)
    wanted = torch.autograd.grad(clean, tensors, grad)
    with torch.no_grad():
        tensors[part][2, 1, 0] = math.nan
    found = attend_edges(*tensors[:3], edges, weight=weight, impl=impl)
    assert found[bad, 1].isnan().any(-1).all() and found[~bad].isfinite().all()
    grads = torch.autograd.grad(found, tensors, grad, create_graph=recorded)
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(one, other)
    with_all = attend_edges(*tensors[:3], edges, weight=weight, impl=impl)
    every = torch.autograd.grad(with_all, tensors, torch.ones_like(grad))
    assert not all(bool(one.isfinite().all()) for one in every), "a loss on the node itself is not finite"


def test_the_backward_pass_without_a_weight_does_not_warn():
    """Warnings are errors in these tests; torch warned of a buffer that it resized."""
    draw = torch.Generator().manual_seed(1)
    left, right, value = (
        torch.randn(rows, HEADS, ACROSS, generator=draw, dtype=torch.float64).requires_grad_()
        for rows in (NODES, SOURCES, SOURCES)
    )
    edges = Edges.of(drawn(False)[1], NODES, SOURCES)
    grads = [
        torch.autograd.grad(attend_edges(left, right, value, edges, impl=impl).sin().sum(), (left, right, value))
        for impl in IMPLS
    ]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("join", ["concat", "mean"])
def test_the_layer_is_that_of_torch_geometric(version, join):
    pytest.importorskip("torch_geometric")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of compiled extensions that are not there
        from torch_geometric.nn import GATConv, GATv2Conv
    torch.manual_seed(0)
    kind = GATConv if version == 1 else GATv2Conv
    theirs = kind(13, 5, heads=3, concat=join == "concat").eval()
    ours = GraphAttention(13, 3, width=5, version=version, join=join).eval()
    with torch.no_grad():
        theirs.bias.normal_()
        ours.bias.copy_(theirs.bias)
        if version == 1:
            ours.source_map.weight.copy_(theirs.lin.weight)
            ours.target_weight.copy_(theirs.att_dst[0])
            ours.source_weight.copy_(theirs.att_src[0])
        else:
            for mine, other in ((ours.source_map, theirs.lin_l), (ours.target_map, theirs.lin_r)):
                mine.load_state_dict(other.state_dict())
            ours.target_weight.copy_(theirs.att[0])
    edges = Edges.of(torch.randint(53, (2, 211)), 53).pairs()  # each once: a mask has no multiple edges
    one, other = torch.randn(2, 53, 13).unbind()
    one.requires_grad_()
    other = one.detach().clone().requires_grad_()
    mine, peer = ours(one[None], edges)[0], theirs(other, edges)
    torch.testing.assert_close(mine, peer)
    grad = torch.randn_like(mine)
    torch.testing.assert_close(torch.autograd.grad(mine, one, grad), torch.autograd.grad(peer, other, grad))
    _, (theirs_edges, weights) = theirs(other, edges, return_attention_weights=True)
    dense = torch.zeros(3, 53, 53)
    dense[:, theirs_edges[1], theirs_edges[0]] = weights.detach().T
    torch.testing.assert_close(ours.weights(one[None], edges)[0].detach(), dense)


def test_several_graphs_of_equal_edges_are_computed_side_by_side():
    torch.manual_seed(0)
    layer = GraphAttention(5, 2, width=3, version=2).eval()
    nodes, edges = torch.randn(3, 7, 5), torch.tensor([[0, 1, 5], [1, 2, 0]])
    together = layer(nodes, edges)
    for row in range(3):
        torch.testing.assert_close(together[row], layer(nodes[row : row + 1], edges)[0])


@pytest.mark.parametrize("version", [1, 2])
def test_observe_shows_with_what_weights_a_node_attends_to_its_neighbours(version):
    torch.manual_seed(0)
    layer = GraphAttention(5, 2, width=3, version=version).eval()
    nodes, pairs = torch.randn(1, 7, 5), torch.tensor([[1, 4, 2], [0, 0, 3]])
    with regard.observe(layer) as seen:
        layer(nodes, pairs)
    site = seen[seen.names()[0]]
    found = site.weights()
    assert found.shape == (1, 2, 7, 7) and site.how == "exact"
    assert (found[0, :, 0] > 0).nonzero()[:, 1].tolist() == [0, 1, 4] * 2  # itself and two neighbours
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 2, 7))
    torch.testing.assert_close(site.weights(rows=[3, 0, 3], heads=[1])[0, 0], found[0, 1, [3, 0, 3]])


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (torch.tensor([[0, 9], [1, 2]]), "edge 1 goes from node 9, but nodes are 0 to 4"),
        (torch.tensor([[0, 1], [-1, 2]]), "edge 0 goes to node -1"),
        (torch.zeros(7, 2, dtype=torch.long), "Transpose it"),
        (torch.zeros(2, 3), "whole numbers"),
    ],
)
def test_wrong_edges_are_named(pairs, words):
    with pytest.raises(regard.RegardError, match=words):
        GraphAttention(3)(torch.randn(1, 5, 3), pairs)


def test_wrong_options_and_shapes_are_named():
    for options, words in (
        ({"version": 3}, "version: expected 1 or 2"),
        ({"join": "sum"}, "join"),
        ({"num_heads": 2}, "give the width"),
        ({"version": 2, "score_bias": True}, "score_bias"),
    ):
        with pytest.raises(regard.RegardError, match=words):
            GraphAttention(3, **options)
    tensors, pairs = drawn(True)
    edges = Edges.of(pairs, NODES, SOURCES)
    left, right, value, weight = tensors
    for given, words in (
        ((left[:3], right, value, weight), "left: expected"),
        ((left, right[..., :2], value, weight), "right: expected"),
        ((left, right, value.float(), weight), "value: expected the dtype"),
        ((left, right, value, weight[:1]), "weight: expected"),
    ):
        with pytest.raises(regard.RegardError, match=words):
            attend_edges(*given[:3], edges, weight=given[3])
    with pytest.raises(regard.RegardError, match="impl"):
        attend_edges(left, right, value, edges, weight=weight, impl="cuda")


CORA = SHARED / "data" / "planetoid" / "cora.npz"
PUBLISHED = SHARED / "data" / "models" / "gat-cora" / "gat_cora.npz"


@pytest.mark.skipif(
    not (CORA.is_file() and PUBLISHED.is_file()), reason="no shared data; REGARD_SHARED names its folder"
)
def test_the_published_weights_of_gat_give_their_published_accuracy_on_cora():
    task = tasks.build("graph", data=str(CORA))
    model = models.build("graph(score_bias=true)", task.problem).eval()
    given = np.load(PUBLISHED)
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            for head in range(layer.num_heads):
                own = slice(head * layer.width, (head + 1) * layer.width)
                part = {
                    name: torch.from_numpy(given[f"layer{number}.head{head}.{name}"])
                    for name in ("weight", "att_dst", "att_dst_bias", "att_src", "att_src_bias", "bias")
                }
                layer.source_map.weight[own] = part["weight"].T
                layer.target_weight[head], layer.source_weight[head] = part["att_dst"], part["att_src"]
                layer.score_bias[head] = float(part["att_dst_bias"] + part["att_src_bias"])
                layer.bias[own] = part["bias"]
        batch = task.collate(task.examples("test"), torch.Generator())
        right = model(batch)[0].argmax(-1) == batch.targets[0]
    assert f"{100 * right[batch.target_keep[0]].float().mean():.1f}" == "84.4"
