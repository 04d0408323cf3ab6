"""What `answerer` remembers of a picture: the features of its patches, after picture and question attended to each
other."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard.errors import BadValue
from regard.nn.parts.blocks import EncoderLayer
from regard.support.arguments import whole_number
from regard_workbench.models.co_attention import CoAttentionLayer
from regard_workbench.models.parts.embedding import StreamEmbedding, padding_mask, pooled
from regard_workbench.models.parts.memories import Memory, MemoryOptions, remembers
from regard_workbench.models.parts.modulated_view import ModulatedView
from regard_workbench.models.parts.picture_features import PictureFeatures
from regard_workbench.tasks.parts.batch import Stream
from regard_workbench.tasks.parts.streams import Patches, Tokens

LAYERS, HEADS, WIDTH, NORM = 2, 4, 16, "batch"  # by default


@remembers(Patches)
class PictureMemory(Memory):
    """Features of patches and words of the question, which attend to each other in layers.

    A patch's row is the sum of what is there, whatever is asked (`PictureFeatures`), and of whether the question means
    it (`ModulatedView`). In each layer patches attend to patches and words to words, then both streams to each other: a
    question about one figure and its relation to others takes the first to bring what the figure is, and where, to the
    other patches and to the words, and the second to compare.
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
        self.pointed = ModulatedView(spec, asked, dim, width=4 * width, norm=norm)
        positions = {True: "sinusoidal", False: "none", "learned": "learned"}[options.ordered]
        self.words = StreamEmbedding(asked, dim, positions=positions, dropout=options.dropout)
        shared: dict[str, Any] = {"num_heads": heads, "dropout": options.dropout, "hidden": 2 * dim}
        self.own = nn.ModuleList(
            nn.ModuleList(EncoderLayer(dim, "multihead", norm="pre", **shared) for _ in range(2)) for _ in range(layers)
        )
        self.layers = nn.ModuleList(CoAttentionLayer(2, dim, heads, options.dropout, True) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.widen = nn.Linear(dim, options.sets(hops) * dim)

    refusal = staticmethod(PictureFeatures.refusal)

    def forward(self, told: Stream, asked: Stream) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        picture = self.features(told.data)[0] + self.pointed(told.data, asked.data)
        words = self.words(asked.data)
        for self_attention, layer in zip(self.own, self.layers, strict=True):
            assert isinstance(self_attention, nn.ModuleList)
            picture, words = self_attention[0](picture), self_attention[1](words, mask=padding_mask(asked.keep))
            picture, words = layer([picture, words], [told.keep, asked.keep])
        picture, row = self.norms[0](picture), pooled(self.norms[1](words), asked.keep)
        return self.options.pairs(self.widen(picture), self.hops), row
