"""Attention over the edges of a graph: the layers of torch_geometric that attend, where it is installed."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from tests.architectures.building import Built, NotBuilt, attempt
from tests.architectures.huggingface import Check

NODES, WIDTH, HEADS = 7, 12, 3


def names() -> list[str]:
    """Layers of torch_geometric.nn that use its softmax over edges."""
    import torch_geometric.nn.conv as layers
    from torch_geometric.utils import softmax

    return [
        name
        for name, kind in vars(layers).items()
        if inspect.isclass(kind) and getattr(inspect.getmodule(kind), "softmax", None) is softmax
    ]


def build(name: str, attend: str | None, check: Check, reasons: list[str]) -> Built:
    """A layer and a small graph for it."""
    import torch_geometric.nn.conv as layers

    kind = getattr(layers, name)
    torch.manual_seed(0)
    nodes = torch.randn(NODES, WIDTH)
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 2, 4], [1, 2, 3, 4, 5, 6, 0, 3, 5, 1]])
    widths = {"in_channels": WIDTH, "out_channels": WIDTH}
    for options in ({**widths, "heads": HEADS}, widths, {}):
        layer: Any = attempt(lambda options=options: kind(**options).eval(), f"{name}{options}", reasons)
        given = {"*": (nodes, edges)}
        built = layer and attempt(lambda: Built(layer, given, name, 0, check(layer, given)), name, reasons)  # noqa: B023
        if built:
            return built
    raise NotBuilt(reasons)
