"""What `answerer` remembers of a story whose sentences and question attended to each other before the hops."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard.masks import Mask
from regard.nn.parts.blocks import EncoderLayer
from regard.support.arguments import whole_number
from regard_workbench.models.parts.embedding import padding_mask
from regard_workbench.models.parts.memories import Memory, MemoryOptions, SentenceMemory, ages_of, remembers
from regard_workbench.models.parts.token_rows import WeightedSum
from regard_workbench.tasks.parts.batch import Stream
from regard_workbench.tasks.parts.streams import TokenRows, Tokens

HEADS = 2  # by default; a divisor of the default width


class Rounds(nn.Module):
    """One encoder layer, used in several rounds; before each, all rows get the vector of the round.

        xᵗ⁺¹ = layer(xᵗ + rᵗ),   t = 1 … rounds

    Paper: Dehghani et al. 2019 (Universal Transformers), without halting. The same weights in every round: a chain of
    facts is followed by one rule, however long it is, and that rule is learned from every link.
    """

    def __init__(self, dim: int, rounds: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        # No dropout inside the feed-forward block: few thousand stories are enough for the one that rows have.
        self.layer = EncoderLayer(
            dim, "multihead", num_heads=num_heads, dropout=dropout, hidden_dropout=0.0, hidden=2 * dim
        )
        self.vectors = nn.Parameter(torch.empty(rounds, dim))
        nn.init.normal_(self.vectors, std=0.1)

    def forward(self, rows: Tensor, mask: Mask | None) -> Tensor:
        """(b,n,dim) → (b,n,dim)."""
        for vector in self.vectors:
            rows = self.layer(rows + vector, mask=mask)
        return rows


class RelatedSentences(Memory):
    """Sentences as sums of word vectors, which attend to each other and to the question in rounds of shared weights.

    Where one fact completes another (who carries a thing, where he went then; what lies north of what lies east), the
    hops find the completed fact in one row.
    """

    reads_question = True

    def __init__(self, spec: TokenRows, asked: Tokens, dim: int, hops: int, options: MemoryOptions) -> None:
        super().__init__()
        options.refuse_for_sentences("width", "norm")
        rounds = whole_number("layers", options.layers, 1)
        heads = whole_number("num_heads", HEADS if options.num_heads is None else options.num_heads, 1)
        if dim % heads:
            raise BadValue(f"num_heads: expected a divisor of dim={dim}, got {heads}.")
        assert spec.length is not None
        self.hops, self.options, self.asked = hops, options, spec.length
        self.words = WeightedSum(spec, dim, ordered=options.ordered)
        self.ages = nn.Embedding(spec.length + 1, dim)  # the last: of the question
        nn.init.normal_(self.ages.weight, std=0.1)
        self.dropout = nn.Dropout(options.dropout)
        self.rounds = Rounds(dim, rounds, heads, options.dropout)
        self.norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, options.sets(hops) * dim)
        nn.init.normal_(self.widen.weight, std=1 / dim)  # normalised rows then score about 1 in the first hop

    def forward(self, told: Stream, asked: Stream) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        question = self.words(asked.data) + self.ages.weight[self.asked]
        rows = torch.cat([question[:, None], self.words(told.data) + self.ages(ages_of(told))], 1)
        keep = None if told.keep is None else nn.functional.pad(told.keep, (1, 0), value=True)
        rows = self.norm(self.rounds(self.dropout(rows), padding_mask(keep)))
        return self.options.pairs(self.widen(rows[:, 1:]), self.hops), self.dropout(rows[:, 0])


@remembers(TokenRows)
def story_memory(spec: TokenRows, asked: Tokens, dim: int, hops: int, options: MemoryOptions) -> Memory:
    """Sentences one by one, or with `layers` after they attended to each other."""
    kind = RelatedSentences if options.layers else SentenceMemory
    return kind(spec, asked, dim, hops, options)
