"""`tracker`: slots and their values attend to the words of a turn and to the system's acts."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.nn.parts.building import build
from regard_workbench.models.parts.embedding import embeds, stream_mask
from regard_workbench.models.parts.model import model
from regard_workbench.models.parts.reader import Reader
from regard_workbench.tasks.answers import SlotValues
from regard_workbench.tasks.answers.slots import Words
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Spelled
from regard_workbench.tasks.text.spelling import FIRST_GRAM, SPEAKER


@embeds(Spelled)
class SpelledEmbedding(nn.Module):
    """The sum of a word's own vector, those of its character n-grams and that of its speaker."""

    def __init__(self, spec: Spelled, dim: int) -> None:
        super().__init__()
        self.word = nn.Embedding(spec.count, dim)
        self.gram = nn.Embedding(spec.grams, dim)
        self.speaker = nn.Embedding(spec.speakers, dim)
        for table in (self.word, self.gram, self.speaker):
            nn.init.normal_(table.weight)

    def lexical(self, data: Tensor) -> Tensor:
        """The embedding of a word and of its spelling, without speaker and position, (…,dim)."""
        grams = data[..., FIRST_GRAM:]
        real = (grams > 0)[..., None].to(self.gram.weight.dtype)
        spelling = (self.gram(grams) * real).sum(-2) / real.sum(-2).clamp(min=1).sqrt()
        vectors: Tensor = (self.word(data[..., 0]) + spelling) * 0.5**0.5
        return vectors

    def forward(self, data: Tensor) -> Tensor:
        vectors: Tensor = self.lexical(data) + self.speaker(data[..., SPEAKER])
        return vectors


@model("tracker", gives=("slots",), reads=(Spelled,))
class Tracker(Reader):
    """Each slot attends to the words of a turn, and so does each of its values; both together score the value.

        c_s  = attention(slot s → words)                what the turn says about the slot
        m_sv = attention(words of value v → words)      where the value is mentioned, and in what company
        score(s, v) = w · gelu(A c_s + m_sv + C v) + c_s · D v,   score(s, none) = u · c_s

    Words come from a Transformer encoder over the user's words, the system's and the system's acts. A value's queries
    and the keys of its attention are words as they are spelled, without context, so that a value which training hardly
    showed is found as any other.

    Paper: Mrkšić et al. 2017 (values as text, scored one by one); Zhong et al. 2018 (slots attend to turn and acts);
    here with the layers of Vaswani et al. 2017. Weights of an `encoder` that guessed hidden words of the same dialogues
    have the same names, so that `--init-from` carries them over.
    """

    takes_attention: ClassVar[str] = "each layer's attention among the words"
    shows: ClassVar[dict[str, str]] = {
        "about": "each slot's attention to the turn",
        "mention": "each value's attention to the turn",
        "stack.layers.-1.attention": "{name} of the last layer",
    }
    sides = MappingProxyType({"about": ("goals", "tokens"), "mention": ("values", "tokens")})

    names: Tensor  # (words,columns): the words of all slots' names
    name_shares: Tensor  # (slots,words): 1 / words of the name, for the mean
    values: Tensor  # the same for all values
    value_shares: Tensor
    slot_of: Tensor  # (values,): the slot of each value
    slot_of_word: Tensor  # (words,): the slot of each word of a value

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 128,
        layers: int = 2,
        num_heads: int = 4,
        dropout: float = 0.2,
        **options: Any,
    ) -> None:
        assert isinstance(problem.answer, SlotValues)
        super().__init__(problem, dim=dim, layers=layers, num_heads=num_heads, dropout=dropout, **options)
        answer = problem.answer
        self.about = build("multihead", dim, num_heads=num_heads)
        self.mention = build("multihead", dim, num_heads=num_heads, source_dim=2 * dim)
        self.slot_rows = nn.Parameter(torch.randn(len(answer.slots), dim))
        self.from_about, self.from_value = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.meaning = nn.Linear(dim, dim, bias=False)
        self.score = nn.Linear(dim, 1)
        self.none = nn.Linear(dim, 1)
        self.dropout = nn.Dropout(dropout)
        names, name_shares = _flat([slot.name for slot in answer.slots])
        values, value_shares = _flat([value for slot in answer.slots for value in slot.values])
        slot_of = [number for number, slot in enumerate(answer.slots) for _ in slot.values]
        words = [number for number, slot in enumerate(answer.slots) for value in slot.values for _ in value]
        self.register_buffer("names", names, persistent=False)
        self.register_buffer("name_shares", name_shares, persistent=False)
        self.register_buffer("values", values, persistent=False)
        self.register_buffer("value_shares", value_shares, persistent=False)
        self.register_buffer("slot_of", torch.tensor(slot_of), persistent=False)
        self.register_buffer("slot_of_word", torch.tensor(words), persistent=False)

    def forward(self, batch: Batch) -> Any:
        answer: Any = self.problem.answer
        rows = self.rows(batch)
        mask = stream_mask(batch.streams.values())
        spelled: SpelledEmbedding = self.embedding.rows  # type: ignore[assignment]
        size = len(rows)
        slots = self.slot_rows + self.name_shares @ spelled.lexical(self.names)
        about = self.norm(self.about(self.dropout(slots.expand(size, -1, -1)), rows, mask=mask))
        words = spelled.lexical(self.values)  # all words of all values
        values = self.value_shares @ words
        source = torch.cat([spelled.lexical(batch.inputs), rows], -1)
        queries = words + slots[self.slot_of_word]
        mentions = self.mention(queries.expand(size, -1, -1), source, mask=mask)
        mention = self.value_shares @ mentions
        hidden = self.from_about(about)[:, self.slot_of] + mention + self.from_value(values)
        scores = self.score(self.dropout(nn.functional.gelu(hidden)))[..., 0]
        meaning = about @ self.meaning(values).T * values.shape[-1] ** -0.5  # (b,slots,values)
        scores = scores + meaning[:, self.slot_of, torch.arange(len(values), device=rows.device)]
        none = self.none(about)[..., 0]
        score_columns, begin = [], 0
        for number, slot in enumerate(answer.slots):
            if not slot.several:
                score_columns.append(none[:, number : number + 1])
            score_columns.append(scores[:, begin : begin + len(slot.values)])
            begin += len(slot.values)
        return self.head(torch.cat(score_columns, 1), batch)


def _flat(texts: list[Words]) -> tuple[Tensor, Tensor]:
    """The words of all texts, (words,columns), and the shares (texts,words) that make the mean over a text's words."""
    owner = torch.tensor([number for number, text in enumerate(texts) for _ in text])
    belongs = (owner == torch.arange(len(texts))[:, None]).float()
    return torch.tensor([word for text in texts for word in text]), belongs / belongs.sum(1, keepdim=True)
