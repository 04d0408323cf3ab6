"""Stream embeddings: the data of a stream as rows (b,n,dim).

`embeds` registers the embedding of a kind of stream; a task with a new kind registers one beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from regard import masks
from regard.errors import BadValue, Unsupported
from regard.masks import Mask
from regard.masks.from_tensors import PaddingMask
from regard.nn import fast_path
from regard.nn import positions as encodings
from regard.nn.parts.blocks import make_norm
from regard.support.arguments import share, whole_number
from regard_workbench.tasks.parts.batch import Stream
from regard_workbench.tasks.parts.streams import Nodes, Patches, StreamSpec, Tokens, Vectors

COUNTED = "counted"  # positions of real tokens only
_EMBEDDERS: dict[type[Any], Callable[[Any, int], nn.Module]] = {}


def embeds(spec: type[Any]) -> Callable[[Callable[[Any, int], nn.Module]], Callable[[Any, int], nn.Module]]:
    """Register the embedding of a stream specification: a function of the specification and the width."""

    def register(make: Callable[[Any, int], nn.Module]) -> Callable[[Any, int], nn.Module]:
        _EMBEDDERS[spec] = make
        return make

    return register


def embedder_of(spec: StreamSpec) -> Callable[[Any, int], nn.Module] | None:
    """What embeds a stream; None where nothing is known. A kind of stream may name the module that registers it."""
    kind = type(spec)
    if kind not in _EMBEDDERS and (home := getattr(kind, "embedder", None)):
        import_module(home)
    return _EMBEDDERS.get(kind)


@embeds(Tokens)
def _tokens(spec: Tokens, dim: int) -> nn.Module:
    rows = nn.Embedding(spec.count, dim)
    nn.init.normal_(rows.weight, std=dim**-0.5)
    return rows


@embeds(Vectors)
@embeds(Patches)
@embeds(Nodes)
def _vectors(spec: Vectors | Nodes, dim: int) -> nn.Module:
    return nn.Linear(spec.width, dim)


class StreamEmbedding(nn.Module):
    """The data of a stream as rows (b,n,dim), with their positions.

    `word_dropout`: in training, the share of the words of the vocabulary whose rows are zero wherever they stand in a
    batch (Gal & Ghahramani 2016; "embedding dropout" of Merity et al. 2018).
    `scaled`: whether rows of ids are multiplied by √dim, so that they are as large as sinusoids although a head shares
    their weights. `norm`: the normalisation of the sums, "none", "layer" or "rms". `segments`: how many parts of a text
    have a vector of their own (BERT's sentences A and B); data (b,n,2) then holds ids and segments, (b,n) is segment 0.
    positions="counted" are learned ones that count real tokens only, from the id of the padding + 1 (RoBERTa).
    """

    def __init__(
        self,
        spec: StreamSpec,
        dim: int,
        *,
        positions: str = "sinusoidal",
        dropout: float = 0.0,
        word_dropout: float = 0.0,
        scaled: bool = True,
        norm: str = "none",
        norm_eps: float | None = None,
        segments: int = 0,
    ) -> None:
        super().__init__()
        self.spec = spec
        embedder = embedder_of(spec)
        if embedder is None:
            raise BadValue(f"streams: no embedding is registered for {spec.words}; see `embeds`.")
        self.rows = embedder(spec, dim)
        self.scale = math.sqrt(dim) if scaled and isinstance(self.rows, nn.Embedding) else 1.0
        chosen = "none" if isinstance(spec, Nodes) else positions
        self.counted = chosen == COUNTED
        self.positions = self._counted(dim) if self.counted else encodings.build(chosen, dim, spec.length)
        self.segments: nn.Parameter | None = None
        if whole_number("segments", segments, 0):
            if not isinstance(self.rows, nn.Embedding):
                raise BadValue(f"segments: only tokens have segments, got a stream of {spec.words}.")
            self.segments = nn.Parameter(torch.randn(segments, dim) * 0.02)
        self.norm = nn.Identity() if norm == "none" else make_norm(norm, dim, norm_eps)
        self.dropout = nn.Dropout(dropout)
        self.word_dropout = share("word_dropout", word_dropout)

    def forward(self, data: Tensor, offset: int = 0) -> Tensor:
        """(b,n) ids or (b,n,width) numbers → (b,n,dim); `offset`: the position of the first of them."""
        fast: Tensor | None = fast_path.run(self, data, offset)
        if fast is not None:
            return fast
        if isinstance(self.rows, nn.Linear):
            data = data.to(self.rows.weight.dtype)
        segments = None
        if self.segments is not None:
            data, segments = (data[..., 0], data[..., 1]) if data.dim() == 3 else (data, torch.zeros_like(data))
        rows = self.rows(data) * self.scale
        if self.word_dropout and self.training and isinstance(self.rows, nn.Embedding):
            kept = torch.empty(self.rows.num_embeddings, dtype=rows.dtype, device=rows.device)
            kept = kept.bernoulli_(1 - self.word_dropout).div_(1 - self.word_dropout)
            rows = rows * kept[data][..., None]
        if self.segments is not None and segments is not None:
            rows = rows + self.segments[segments]
        embedded: Tensor = self.norm(self.positions(rows, self._places(data, offset)))
        return self.dropout(embedded)  # type: ignore[no-any-return]

    def _counted(self, dim: int) -> encodings.Learned:
        if not isinstance(self.spec, Tokens) or self.spec.length is None:
            raise BadValue(
                f"positions: {COUNTED!r} positions count tokens, up to a known number of them, got {self.spec}."
            )
        return encodings.Learned(dim, self.spec.length + self.spec.padding + 1)

    def _places(self, data: Tensor, offset: int) -> int | Tensor:
        """The position of the first row; where only real tokens count, that of each row."""
        if not self.counted:
            return offset
        assert isinstance(self.spec, Tokens)
        real = data != self.spec.padding
        return real.cumsum(1) * real + (self.spec.padding + offset * real)

    def shared(self, outputs: int) -> nn.Embedding | None:
        """The embedding, if a head with so many outputs can share its weights."""
        table = getattr(self.rows, "words", self.rows)  # words with parts have a table of their own
        if isinstance(table, nn.Embedding) and table.num_embeddings == outputs:
            return table
        return None


def pooled(rows: Tensor, keep: Tensor | None) -> Tensor:
    """The mean over real positions, (b,dim); zeros if there are none."""
    if keep is None:
        return rows.mean(1)
    kept = rows.masked_fill(~keep[..., None], 0)
    return kept.sum(1) / keep.sum(1, keepdim=True).clamp(min=1).to(rows.dtype)


def padding_mask(keep: Tensor | None) -> Mask | None:
    """A mask that hides padding."""
    return None if keep is None else PaddingMask(keep)


def joined_keep(streams: Iterable[Stream]) -> Tensor | None:
    """The padding mask of several concatenated streams; None if nothing is padded."""
    streams = list(streams)
    if len(streams) == 1 or all(stream.keep is None for stream in streams):
        return streams[0].keep
    return torch.cat([_all_kept(stream) if stream.keep is None else stream.keep for stream in streams], 1)


def _all_kept(stream: Stream) -> Tensor:
    return torch.ones(stream.data.shape[:2], dtype=torch.bool, device=stream.data.device)


def stream_mask(streams: Iterable[Stream]) -> Mask | None:
    """The mask of concatenated streams: real positions; in a graph, edges and the node itself."""
    streams = list(streams)
    mask = padding_mask(joined_keep(streams))
    if all(stream.edges is None for stream in streams):
        return mask
    edges = streams[0].edges
    if edges is None or len(streams) > 1:
        raise Unsupported(
            f"streams: a stream with edges must be the only one, got {len(streams)} streams. Nothing says how "
            "nodes and other positions see each other; write a model that reads them apart (docs/adding.md)."
        )
    count = streams[0].data.shape[1]
    visible = torch.eye(count, dtype=torch.bool, device=edges.device)
    visible = visible.index_put((edges[1], edges[0]), torch.ones_like(edges[0], dtype=torch.bool))
    return masks.dense(visible) if mask is None else masks.dense(visible) & mask
