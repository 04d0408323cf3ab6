"""`graph`: layers of graph attention, for a class of each node or of a whole graph."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import BadValue, Unsupported
from regard.formula.edges import Edges
from regard.formula.formula import widened
from regard.nn.graph import GraphAttention
from regard.support.arguments import finite_number, readable, whole_number
from regard_workbench.models.parts.embedding import pooled
from regard_workbench.models.parts.model import Model, model
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Nodes


class EntryDropout(nn.Dropout):
    """Dropout that draws only for entries that are not zero where those are few, as in bags of words."""

    def forward(self, rows: Tensor) -> Tensor:
        if not self.training or not readable(rows) or rows.requires_grad:
            return super().forward(rows)
        flat = rows.flatten()
        at = flat.nonzero().flatten()
        if len(at) > len(flat) // 8:
            return super().forward(rows)
        return torch.zeros_like(flat).index_copy_(0, at, super().forward(flat[at])).view_as(rows)


@model("graph", gives=("rows", "pooled"), reads=(Nodes,))
class GraphNetwork(Model):
    """Layers of graph attention (GAT): each node attends to its neighbours and to itself.

    Papers: Veličković et al. 2018 (version 1); Brody et al. 2022 (version 2).
    The last layer gives the answer itself: the mean of its heads. Between layers: ELU and dropout. Memory grows with
    nodes and edges, never with nodes × nodes.

    Args:
        dim: width of a hidden layer, all heads together.
        num_heads: heads of a hidden layer.
        layers: number of layers.
        version: 1 or 2.
        output_heads: heads of the last layer.
        dropout: dropout of what goes into a layer.
        attention_dropout: dropout of the weights of edges.
        values: whether the values of a layer are dropped as well, as in the authors' program.
        residual: whether hidden layers are added to what goes into them.
        score_bias: whether scores of version 1 have a bias, as in the authors' program.
        decay: half of this times the sum of squares of all weights (biases left out) is added to the training loss.
    """

    attention_default: ClassVar[str] = "graph attention"
    shows: ClassVar[dict[str, str]] = {
        "layers.-1": "graph attention of the last layer",
        "layers.0": "graph attention of the first layer",
    }

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 64,
        num_heads: int = 8,
        layers: int = 2,
        version: int = 1,
        output_heads: int = 1,
        dropout: float = 0.6,
        attention_dropout: float = 0.6,
        values: bool = False,
        residual: bool = False,
        score_bias: bool = False,
        decay: float = 5e-4,
    ) -> None:
        super().__init__(problem)
        spec = problem.inputs
        assert isinstance(spec, Nodes)
        count = whole_number("layers", layers, 1)
        if dim % whole_number("num_heads", num_heads, 1):
            raise BadValue(f"num_heads: dim={dim} cannot be shared equally by {num_heads} heads.")
        common: dict[str, Any] = {
            "dropout": attention_dropout,
            "value_dropout": dropout if values else 0.0,
            "version": version,
            "score_bias": score_bias,
        }
        widths = [spec.width, *[dim] * (count - 1)]
        hidden = [GraphAttention(width, num_heads, width=dim // num_heads, **common) for width in widths[:-1]]
        last = GraphAttention(widths[-1], output_heads, width=problem.answer.outputs, join="mean", **common)
        self.layers = nn.ModuleList([*hidden, last])
        self.dropout = EntryDropout(dropout)
        self.residual, self.decay = residual, finite_number("decay", decay)
        self.head = problem.answer.head()

    def forward(self, batch: Batch) -> Any:
        rows = self.nodes(batch)
        if self.problem.answer.needs == "pooled":
            return self.head(pooled(rows, batch.keep), batch)
        return self.head(rows, batch)

    def nodes(self, batch: Batch) -> Tensor:
        """The rows (b,n,outputs) of the last layer."""
        if batch.keep is not None and not bool(batch.keep.all()):
            raise Unsupported("model: graph reads graphs of one size, and this batch has padding. Join its graphs.")
        first: Any = self.layers[0]
        rows = batch.inputs.to(first.source_map.weight.dtype)
        pairs = batch.first.edges
        if pairs is None:  # no node has a neighbour
            pairs = torch.zeros(2, 0, dtype=torch.long, device=rows.device)
        edges = Edges.of(pairs, rows.shape[1], loops=True)
        for number, layer in enumerate(self.layers):
            outputs = layer(self.dropout(rows), edges)
            if number + 1 < len(self.layers):
                outputs = F.elu(outputs)
                outputs = outputs + rows if self.residual and outputs.shape == rows.shape else outputs
            rows = outputs
        return rows

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The loss of the answer; in training with the sum of squares, as if it were added to the mean."""
        total, count = super().loss(outputs, batch, smoothing)
        if not self.training or not self.decay:
            return total, count
        named = [p for name, p in self.named_parameters() if not name.endswith("bias")]
        squares = torch.stack([widened(parameter).square().sum() for parameter in named]).sum()
        return total + 0.5 * self.decay * squares * count, count
