"""Graph attention on a large graph on a GPU, beside PyTorch Geometric: the cases of the CPU, judged there, too."""

from __future__ import annotations

from bench.cases import graph
from regard_workbench.bench.case import case

case(
    "graph-gpu-train",
    work=f"graph attention, {graph.WORK}",
    peer=graph.PEER,
    unit="× faster",
    at_least=1,
    device="cuda",
)(graph.graph_train)
case(
    "graph-gpu-v2-train",
    work=f"graph attention, version 2, {graph.WORK}",
    peer=graph.PEER,
    unit="× faster",
    at_least=1,
    device="cuda",
)(graph.graph_v2_train)
case(
    "graph-gpu-memory",
    work=f"graph attention, {graph.WORK}",
    peer=graph.PEER,
    unit="× the memory",
    at_most=1,
    device="cuda",
)(graph.graph_memory)
