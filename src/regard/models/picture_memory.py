"""What `answerer` remembers of a picture: the features of its patches, after picture and question attended to each
other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.core.arguments import whole_number
from regard.errors import BadValue
from regard.models.co_attention import CoAttentionLayer
from regard.models.embedding import StreamEmbedding, padding_mask, pooled
from regard.models.memories import Memory, MemoryOptions, remembers
from regard.models.picture_features import PictureFeatures
from regard.nn.blocks import EncoderLayer, FeedForward
from regard.tasks.batch import Stream
from regard.tasks.streams import Patches, Tokens

LAYERS, HEADS, WIDTH, NORM = 2, 4, 16, "group"  # by default


class Modulation(nn.Module):
    """The question scales and shifts every channel of the patches, before a feed-forward block: x + F(γ(q) ⊙ x + β(q)).

    Weights begin so large that another word changes the scales at once. From small ones, which figure a question names
    is a saddle point of the loss: neither the scales nor the features have a gradient before the other differ.

    Paper: Perez et al. 2018.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.scales = nn.Linear(dim, 2 * dim)
        nn.init.normal_(self.scales.weight, std=1.5 * dim**-0.5)
        nn.init.zeros_(self.scales.bias)
        self.feed_forward = FeedForward(dim, 2 * dim)

    def forward(self, picture: Tensor, question: Tensor) -> Tensor:
        """Patches (b,n,dim) and the mean of a question's words (b,dim) → patches (b,n,dim)."""
        scale, shift = self.scales(self.norms[1](question))[:, None].chunk(2, -1)
        found: Tensor = picture + self.feed_forward((1 + scale) * self.norms[0](picture) + shift)
        return found


@remembers(Patches)
class PictureMemory(Memory):
    """Features of patches and words of the question, which attend to each other in layers.

    In each layer patches attend to patches and words to words, then both streams to each other. A question about one
    figure and its relation to others takes two: the first finds the figure, the second what stands where beside it.
    """

    def __init__(self, spec: Patches, asked: Tokens, dim: int, hops: int, options: MemoryOptions) -> None:
        super().__init__()
        self.hops, self.options, self.reads_question = hops, options, True
        layers = whole_number("layers", LAYERS if options.layers is None else options.layers, 1)
        heads = whole_number("num_heads", HEADS if options.num_heads is None else options.num_heads, 1)
        if dim % heads:
            raise BadValue(f"num_heads: expected a divisor of dim={dim}, got {heads}.")
        width = WIDTH if options.width is None else options.width
        norm = NORM if options.norm is None else options.norm
        self.features = PictureFeatures(spec, dim, width=width, dropout=options.dropout, norm=norm)
        self.modulation, self.join = None, None
        if options.modulated:
            self.modulation = Modulation(dim)
            self.join = nn.Sequential(
                nn.LayerNorm(2 * dim), nn.Linear(2 * dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)
            )
        positions = "sinusoidal" if options.ordered else "none"
        self.words = StreamEmbedding(asked, dim, positions=positions, dropout=options.dropout)
        shared: dict[str, Any] = {"num_heads": heads, "dropout": options.dropout, "hidden": 2 * dim}
        self.own = nn.ModuleList(
            nn.ModuleList(EncoderLayer(dim, "multihead", norm="pre", **shared) for _ in range(2))
            for _ in range(layers)
        )
        self.layers = nn.ModuleList(
            CoAttentionLayer(2, dim, heads, options.dropout, True) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.widen = nn.Linear(dim, options.sets(hops) * dim)

    refusal = staticmethod(PictureFeatures.refusal)

    def forward(self, told: Stream, asked: Stream) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        picture, words = self.features(told.data)[0], self.words(asked.data)
        if self.modulation is not None:
            picture = self.modulation(picture, pooled(words, asked.keep))
        for own, layer in zip(self.own, self.layers, strict=True):
            assert isinstance(own, nn.ModuleList)
            picture, words = own[0](picture), own[1](words, mask=padding_mask(asked.keep))
            picture, words = layer([picture, words], [told.keep, asked.keep])
        picture, row = self.norms[0](picture), pooled(self.norms[1](words), asked.keep)
        if self.join is not None:
            row = row + self.join(torch.cat([picture.mean(1), row], -1))
        return self.options.pairs(self.widen(picture), self.hops), row
