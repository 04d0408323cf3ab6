"""The embedding of words with parts: a vector of the word's own and those of its character n-grams."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard_workbench.models.parts.embedding import embeds
from regard_workbench.tasks.text.vocabulary import UNKNOWN
from regard_workbench.tasks.text.word_parts import WordsWithParts

_SMALL = 0.1


class WordPartsEmbedding(nn.Module):
    """A word's vector is its own plus the sum of those of its parts, divided by the root of their number.

        x_w = e_w + Σ_{g ∈ G_w} z_g / √|G_w|

    Unknown words have the vector of `<unk>` and their parts. All start small: a word seen a few times then says little,
    where a large random vector would have to be unlearned first.

    Paper: Bojanowski et al. 2017, equation 2 (there without the root).
    """

    def __init__(self, spec: WordsWithParts, dim: int) -> None:
        super().__init__()
        self.words = nn.Embedding(spec.count, dim)
        self.parts = nn.EmbeddingBag(spec.parts + 1, dim, mode="sum", padding_idx=0)
        nn.init.normal_(self.words.weight, std=_SMALL)
        nn.init.normal_(self.parts.weight, std=_SMALL)
        with torch.no_grad():
            self.words.weight[[spec.padding, UNKNOWN]] = 0
            self.parts.weight[0] = 0

    def forward(self, ids: Tensor) -> Tensor:
        """(b,n,1+p) ids of words and parts → (b,n,dim)."""
        words, subwords = self.words(ids[..., 0]), ids[..., 1:]
        count = (subwords != 0).sum(-1, keepdim=True).clamp(min=1).to(words.dtype)
        sums: Tensor = self.parts(subwords.flatten(0, 1)).view(words.shape)
        vectors: Tensor = words + sums / count.sqrt()
        return vectors


@embeds(WordsWithParts)
def _words_with_parts(spec: WordsWithParts, dim: int) -> nn.Module:
    return WordPartsEmbedding(spec, dim)
