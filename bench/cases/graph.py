"""Graph attention on a large graph, beside PyTorch Geometric: time and memory of a training step of one layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.cases.memory import memory_ratio
from regard.errors import Unsupported
from regard.formula.edges import Edges
from regard.nn.graph import GraphAttention
from regard_workbench.bench.case import Measurement, Setting, Wrong, case
from regard_workbench.bench.timing import speedup

NODES, EDGES, DIM, HEADS, WIDTH = 100_000, 1_000_000, 64, 8, 8
SMALL = 100  # times smaller, for warming up
WORK = f"{NODES:,} nodes, {EDGES:,} edges, dim {DIM}, {HEADS} heads of {WIDTH}, forward+backward"
PEER = "PyTorch Geometric"


def _graph(device: str, small: bool) -> tuple[Tensor, Edges, Tensor]:
    """Nodes that receive gradient, edges with loops, and the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    count, pairs = (NODES // SMALL, EDGES // SMALL) if small else (NODES, EDGES)
    edges = Edges.of(torch.randint(count, (2, pairs), generator=generator), count, loops=True).to(device)
    rows = torch.randn(count, DIM, generator=generator).to(device).requires_grad_()
    return rows, edges, torch.randn(count, HEADS * WIDTH, generator=generator).to(device)


def _peer(version: int) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of compiled extensions that are not there
            from torch_geometric.nn import GATConv, GATv2Conv
    except ImportError:
        raise Unsupported("PyTorch Geometric is not installed; pip install torch-geometric brings it.") from None
    kind = GATConv if version == 1 else GATv2Conv
    return kind(DIM, WIDTH, heads=HEADS, add_self_loops=False)


def _copied(version: int) -> tuple[GraphAttention, Any]:
    """Both layers with the same weights."""
    torch.manual_seed(0)
    theirs, ours = _peer(version), GraphAttention(DIM, HEADS, width=WIDTH, version=version)
    with torch.no_grad():
        if ours.target_map is None:
            assert ours.source_weight is not None
            ours.source_map.weight.copy_(theirs.lin.weight)
            ours.target_weight.copy_(theirs.att_dst[0])
            ours.source_weight.copy_(theirs.att_src[0])
        else:
            ours.source_map.load_state_dict(theirs.lin_l.state_dict())
            ours.target_map.load_state_dict(theirs.lin_r.state_dict())
            ours.target_weight.copy_(theirs.att[0])
    return ours, theirs


def _steps(device: str, small: bool, version: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Our training step and the peer's on the same graph."""
    rows, edges, upstream = _graph(device, small)
    ours, theirs = (layer.to(device) for layer in _copied(version))
    pairs = edges.pairs()
    mine, other = [rows, *ours.parameters()], [rows, *theirs.parameters()]
    return (
        lambda: torch.autograd.grad(ours(rows[None], edges)[0], mine, upstream),
        lambda: torch.autograd.grad(theirs(rows, pairs), other, upstream),
    )


def _timed(setting: Setting, version: int) -> Measurement:
    ours, peer = _steps(setting.device, True, version)
    one, other = ours()[0], peer()[0]
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-4):
        raise Wrong(f"the gradients of the nodes differ by {float((one - other).abs().max()):.2g}.")
    return speedup(*_steps(setting.device, False, version), setting, _program(setting.device))


def _program(device: str) -> str:
    """The name of what computes it there."""
    return "triton" if device == "cuda" else "edges"


def our_step(device: str, small: bool) -> Callable[[], object]:
    """The call whose memory is measured."""
    return _steps(device, small, 1)[0]


def peer_step(device: str, small: bool) -> Callable[[], object]:
    """The peer's."""
    return _steps(device, small, 1)[1]


@case("graph-train", work=f"graph attention, {WORK}", peer=PEER, unit="× faster", at_least=1)
def graph_train(setting: Setting) -> Measurement:
    """Version 1 beside GATConv."""
    return _timed(setting, 1)


@case("graph-v2-train", work=f"graph attention, version 2, {WORK}", peer=PEER, unit="× faster", at_least=1)
def graph_v2_train(setting: Setting) -> Measurement:
    """Version 2 beside GATv2Conv."""
    return _timed(setting, 2)


@case("graph-memory", work=f"graph attention, {WORK}", peer=PEER, unit="× the memory", at_most=1)
def graph_memory(setting: Setting) -> Measurement:
    """Peak memory beyond the inputs, output and gradients included, divided by the peer's."""
    return memory_ratio(our_step, peer_step, setting, _program(setting.device))
