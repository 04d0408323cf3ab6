"""Gradient × attention: how much each weight contributes to a number that the model has computed.

    G_ij = A_ij · ∂y/∂A_ij,     ∂y/∂A_ij = ∂y/∂o_i · v_j

Given the gradient of the output, rows are computed one by one like weights, and no map is stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

import regard.dispatch.attention as dispatch
from regard.dispatch.attention import Rows
from regard.errors import BadValue
from regard.observation.capture.reading import GradientInputs, Reading, Steps
from regard.observation.seen import Seen
from regard.scores.base import spread_heads


def follow(seen: Seen, number: Tensor) -> None:
    """Take the gradient of a number with respect to the output of every captured call."""
    if not isinstance(number, Tensor) or number.numel() != 1 or not number.requires_grad:
        raise BadValue(
            "number: expected a tensor of one number that the observed model computed with gradients on, such as a "
            "loss or a logit."
        )
    readings = [reading for site in seen.sites.values() for reading in site.readings]
    calls = [call for reading in readings for call in (reading.steps if isinstance(reading, Steps) else [reading])]
    graphs = [graph for call in calls if (graph := graph_of(call))]
    if not graphs:
        raise BadValue(
            "number: nothing was stored for gradients. Observe with regard.observe(model, gradients=True), outside of "
            "no_grad."
        )
    outputs = [graph.output for graph in graphs]
    slopes = torch.autograd.grad(
        number.reshape(()), outputs, retain_graph=True, allow_unused=True, materialize_grads=True
    )  # zeros for calls that the number does not depend on
    for graph, slope in zip(graphs, slopes, strict=True):
        graph.slope = slope.transpose(1, graph.heads_at).detach()


def graph_of(reading: Reading) -> GradientInputs | None:
    """What a call has stored for gradients."""
    graph = getattr(reading, "graph", None)
    return graph if isinstance(graph, GradientInputs) else None


@torch.no_grad()
def times_gradient(reading: Reading, rows: Rows = None, heads: Rows = None) -> Tensor:
    """A_ij · ∂y/∂A_ij of chosen rows and heads, (b, heads, rows, k)."""
    if isinstance(reading, Steps) and (steps := reading.chosen(rows)):
        return torch.cat([times_gradient(step, None, heads) for step in steps], 2)
    graph = graph_of(reading.steps[0] if isinstance(reading, Steps) else reading)
    if graph is None or graph.slope is None:
        raise BadValue(
            "gradient: call seen.gradient(number) first, on what regard.observe(model, gradients=True) captured."
        )
    slope, value = graph.slope, spread_heads(graph.value, graph.slope.shape[1])
    for axis, name, selection in ((1, "heads", heads), (2, "rows", rows)):
        indices = dispatch.selection(name, selection, graph.slope.shape[axis], slope.device)
        if indices is not None:
            index = torch.arange(graph.slope.shape[axis], device=slope.device)[indices]
            slope = slope.index_select(axis, index)
            value = value.index_select(axis, index) if axis == 1 else value
    weights = reading.weights(rows, heads)
    return weights * (slope @ value.mT).to(weights)
