"""Graph attention: the nodes of a graph attend to their neighbours, versions 1 and 2."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.dispatch.attention import selection
from regard.dispatch.edge_attention import attend_edges, edge_weights
from regard.errors import BadType, BadValue, unknown_name
from regard.formula.edges import Edges
from regard.nn.parts.heads import glorot_linear
from regard.nn.parts.mechanism import dropout_rate
from regard.support.arguments import described, finite_number, readable, whole_number

JOINS = ("concat", "mean")


class NodeParts(NamedTuple):
    """What the nodes bring to attention over edges; b graphs of equal edges are b·h heads."""

    left: Tensor  # (n,b·h,a)
    right: Tensor  # (n,b·h,a)
    value: Tensor  # (n,b·h,width)
    weight: Tensor | None  # (b·h,a)


class GraphAttention(nn.Module):
    """Each node attends to the nodes from which an edge leads to it, in memory linear in nodes and edges.

        version 1:  s_ij = LeakyReLU(a·W x_i + b·W x_j),          o_i = Σ_j softmax_j(s_ij) W x_j
        version 2:  s_ij = a·LeakyReLU(W x_i + V x_j),            o_i = Σ_j softmax_j(s_ij) V x_j

    Version 1 ranks the neighbours of all nodes alike; version 2 can rank them differently for each node.

    Papers: Veličković et al. 2018, equations 3 to 6; Brody et al. 2022, equation 7.
    Empty row: a node without any edge into it gets the bias alone. With `loops` there is none.

    Args:
        dim: width of the nodes.
        num_heads: number of heads, each of which is `width` wide.
        dropout: probability of dropping the weight of an edge in training.
        value_dropout: probability of dropping an entry of a value (not of what is scored) in training.
        width: width of a head's output; None: dim / num_heads.
        version: 1 or 2.
        join: concat (the heads side by side) or mean (the mean over the heads).
        slope: of the LeakyReLU for negative numbers.
        loops: whether each node also attends to itself.
        bias: whether to add a learned bias to the output; in version 2 also in W and V.
        score_bias: version 1: whether to add a learned number for each head before the LeakyReLU.

    >>> import torch
    >>> from regard.nn import GraphAttention
    >>> layer, edges = GraphAttention(5, num_heads=2, width=3), torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> layer(torch.randn(1, 4, 5), edges).shape
    torch.Size([1, 4, 6])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        *,
        value_dropout: float = 0.0,
        width: int | None = None,
        version: int = 1,
        join: str = "concat",
        slope: float = 0.2,
        loops: bool = True,
        bias: bool = True,
        score_bias: bool = False,
    ) -> None:
        super().__init__()
        self.dim, self.num_heads = whole_number("dim", dim, 1), whole_number("num_heads", num_heads, 1)
        if width is None and self.dim % self.num_heads:
            raise BadValue(f"width: {num_heads} heads do not divide dim={dim}; give the width of a head.")
        self.width = self.dim // self.num_heads if width is None else whole_number("width", width, 1)
        if version not in (1, 2):
            raise BadValue(f"version: expected 1 or 2, got {version!r}.")
        if join not in JOINS:
            raise unknown_name("join", join, JOINS)
        if score_bias and version == 2:
            raise BadValue("score_bias: version 2 has biases in its maps (bias=True); leave score_bias out.")
        self.version, self.join, self.loops = version, join, bool(loops)
        self.dropout, self.slope = dropout_rate(dropout), finite_number("slope", slope)
        self.value_dropout = nn.Dropout(dropout_rate(value_dropout))
        joined_width = self.num_heads * self.width
        self.source_map = glorot_linear(self.dim, joined_width, bias=bias and version == 2)
        self.source_weight, self.target_map = None, None
        if version == 1:
            self.source_weight = self._vector()
        else:
            self.target_map = glorot_linear(self.dim, joined_width, bias=bias)
        self.target_weight = self._vector()  # version 2: the one weight of the score
        self.score_bias = nn.Parameter(torch.zeros(self.num_heads)) if score_bias else None
        self.bias = nn.Parameter(torch.zeros(self.output_width)) if bias else None

    @property
    def output_width(self) -> int:
        """The width of the rows that come out."""
        return self.width * (self.num_heads if self.join == "concat" else 1)

    def forward(self, nodes: Tensor, edges: Tensor | Edges) -> Tensor:
        """Nodes (b,n,dim) → (b,n,output_width). Edges (2,e), from and to, are those of each of the b examples."""
        graph = self.edges(nodes, edges)
        halves = self.parts(nodes)
        rate = self.dropout if self.training else 0.0
        value = self.value_dropout(halves.value)
        mixed = attend_edges(
            halves.left, halves.right, value, graph, weight=halves.weight, slope=self.slope, dropout=rate
        )
        heads = mixed.unflatten(1, (len(nodes), self.num_heads)).transpose(0, 1)  # (b,n,h,width)
        joined: Tensor = heads.flatten(2) if self.join == "concat" else heads.mean(2)
        return joined if self.bias is None else joined + self.bias

    def edges(self, nodes: Tensor, edges: Tensor | Edges) -> Edges:
        """The edges of a call, sorted. Those that are sorted already are taken as they are, loops or not."""
        if not isinstance(nodes, Tensor) or not nodes.is_floating_point():
            raise BadType(f"nodes: expected a floating-point tensor (b,n,dim), got {described(nodes)}.")
        if nodes.dim() != 3 or nodes.shape[2] != self.dim:
            raise BadValue(f"nodes: expected (b,n,dim) with dim={self.dim}, got shape {tuple(nodes.shape)}.")
        if not isinstance(edges, Edges):
            return Edges.of(edges, nodes.shape[1], loops=self.loops)
        if (edges.nodes, edges.source_nodes) != (nodes.shape[1], nodes.shape[1]):
            raise BadValue(f"edges: they are of {edges.nodes} nodes, but there are {nodes.shape[1]}.")
        return edges

    def parts(self, nodes: Tensor) -> NodeParts:
        """The two halves of the score and the values."""
        # NaN in a node must reach the nodes that see it, but not the weights of the maps through a gradient of zero.
        broken = _nonfinite(nodes.detach())
        nodes = nodes if broken is None else nodes.masked_fill(broken[..., None], 0)
        mapped = self.source_map(nodes)
        value = self._heads(mapped, broken)
        if self.target_map is not None:
            weight = self.target_weight.repeat(len(nodes), 1)
            return NodeParts(self._heads(self.target_map(nodes), broken), value, value, weight)
        assert self.source_weight is not None
        heads = mapped.unflatten(2, (self.num_heads, self.width))
        target, source = ((heads * weight).sum(-1) for weight in (self.target_weight, self.source_weight))
        if self.score_bias is not None:
            target = target + self.score_bias
        left, right = (self._heads(score, broken) for score in (target, source))
        return NodeParts(left, right, value, None)

    def weights(self, nodes: Tensor, edges: Tensor | Edges, *, rows: Any = None, heads: Any = None) -> Tensor:
        """The exact weights (b, heads, rows, n) with which the nodes `rows` attend to nodes; 0 where no edge leads."""
        graph, by_edge = self.edge_weights(nodes, edges)
        count, device = graph.nodes, nodes.device
        chosen = torch.arange(count, device=device)[_index(selection("rows", rows, count, device))]
        picked = _index(selection("heads", heads, self.num_heads, device))
        by_edge = by_edge[:, picked]  # (b,heads,e)
        place = torch.full((count,), -1, device=device)
        place[chosen] = torch.arange(len(chosen), device=device)
        at = place[graph.targets]
        dense: Tensor = by_edge.new_zeros(*by_edge.shape[:2], len(chosen) * count)
        cells = at[at >= 0] * count + graph.sources[at >= 0]
        dense = dense.index_add(2, cells, by_edge[..., at >= 0]).unflatten(2, (len(chosen), count))
        return dense[:, :, place[chosen]]  # a node that is asked for twice is there twice

    def edge_weights(self, nodes: Tensor, edges: Tensor | Edges) -> tuple[Edges, Tensor]:
        """The edges, sorted and with loops, and the weight of each before dropout, (b,h,e)."""
        graph = self.edges(nodes, edges)
        halves = self.parts(nodes)
        per_edge = edge_weights(halves.left, halves.right, graph, weight=halves.weight, slope=self.slope)
        return graph, per_edge.T.unflatten(0, (len(nodes), self.num_heads))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}, width={self.width}, version={self.version}"

    def _vector(self) -> nn.Parameter:
        """A weight (h,width), each head's by Glorot's rule for a map of `width` numbers to one."""
        bound = (6 / (self.width + 1)) ** 0.5
        return nn.Parameter(torch.empty(self.num_heads, self.width).uniform_(-bound, bound))

    def _heads(self, mapped: Tensor, broken: Tensor | None) -> Tensor:
        """Mapped rows (b,n,h·a) as (n,b·h,a), with NaN in rows that were not finite."""
        mapped = mapped if broken is None else mapped.masked_fill(broken[..., None], torch.nan)
        heads: Tensor = mapped.unflatten(2, (self.num_heads, -1))
        return heads.transpose(0, 1).flatten(1, 2)


def _nonfinite(nodes: Tensor) -> Tensor | None:
    """Which rows hold NaN or infinity, (b,n); None where that can be read and there is none."""
    if readable(nodes) and bool(nodes.sum(-1).isfinite().all()):  # one pass over wide rows, not four
        return None
    return ~nodes.isfinite().all(-1)


def _index(part: Any) -> Any:
    return slice(None) if part is None else part
