"""`tagger`: words and their characters, an attention encoder, a conditional random field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.errors import unknown_name
from regard.support.arguments import finite_number, share, whole_number
from regard_workbench.models.parts.clue_scores import ClueScores
from regard_workbench.models.parts.embedding import StreamEmbedding, padding_mask
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.recurrent import Recurrent
from regard_workbench.models.parts.stack import Stack
from regard_workbench.models.parts.token_rows import CharacterAttention, CharacterConvolution
from regard_workbench.tasks.answers import Head
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import TokenRows, Tokens
from regard_workbench.tasks.text.word_clues import CluesSpec
from regard_workbench.tasks.text.word_vectors import WordVectors

CHARACTERS: dict[str, Callable[..., nn.Module]] = {"cnn": CharacterConvolution, "attention": CharacterAttention}
NONE = "none"


@model("tagger", gives=("rows",), reads=(Tokens, TokenRows), several_streams=True)
class Tagger(Model):
    """Tags each word from its vector, its characters and what it attends to; the tags are chosen together.

    Paper: characters Ma and Hovy 2016; attention over a sentence for names Yan et al. 2019; the conditional random
    field Lafferty et al. 2001. Each part can be left out: `characters=none`, `cell=none`, `layers=0`, `crf=false`,
    `clues=false`.

    Args:
        dim: width of the rows.
        layers: attention layers; 0: none.
        num_heads: heads of each layer.
        attention: the mechanism of each layer.
        cell: a recurrent layer below the attention, in both directions: lstm, gru or none.
        characters: how characters are read: cnn, attention or none.
        character_dim: width of what is read off the characters of a word.
        shape_dim: width of the vector of a word's shape, or of another id that is given for each word.
        crf: whether tags are chosen together; else each word's tag alone.
        positions: encoding of positions that is added to the rows.
        clues: whether clues that the task gives for each word score tags directly, beside what the layers say.
        clue_dropout: share of the clues that training leaves out.
        clue_decay: weight of the squares of the clues' weights in the loss of a sentence; about 1 / training sentences.
        dropout: of inputs, of the rows and in the layers.
    """

    takes_attention: ClassVar[str] = "each layer's attention among the words"
    attention_default: ClassVar[str] = "relative"

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 128,
        layers: int = 1,
        num_heads: int = 4,
        attention: str | None = None,
        cell: str = "lstm",
        characters: str = "cnn",
        character_dim: int = 64,
        shape_dim: int = 16,
        crf: bool = True,
        positions: str = NONE,
        clues: bool = True,
        clue_dropout: float = 0.1,
        clue_decay: float = 3e-4,
        dropout: float = 0.3,
    ) -> None:
        super().__init__(problem)
        self.embedding = StreamEmbedding(problem.inputs, dim, positions=positions, dropout=dropout)
        self.embedding.scale = 1.0  # vectors of words seen once or twice stay small beside what characters say
        spelled = [name for name, spec in problem.streams.items() if type(spec) is TokenRows]
        self.spelled = spelled[0] if spelled and characters != NONE else ""
        if characters not in (*CHARACTERS, NONE):
            raise unknown_name("characters", characters, [*CHARACTERS, NONE])
        wide = dim
        if self.spelled:
            spec = problem.streams[self.spelled]
            self.characters = CHARACTERS[characters](spec, whole_number("character_dim", character_dim, 1))
            wide += character_dim
        self.given = nn.ModuleDict()
        for name, stream_spec in list(problem.streams.items())[1:]:
            if isinstance(stream_spec, Tokens):
                size = dim if isinstance(stream_spec, WordVectors) else whole_number("shape_dim", shape_dim, 1)
                self.given[name] = StreamEmbedding(stream_spec, size, positions=NONE)
                wide += size
        self.join = nn.Linear(wide, dim) if wide > dim else nn.Identity()
        self.recurrent = None if cell == NONE else Recurrent(dim, 1, cell, both=True)
        self.stack: nn.Module | None = None
        if whole_number("layers", layers, 0):
            self.stack = Stack(dim, layers, attention or self.attention_default, num_heads=num_heads, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        outputs = problem.answer.outputs
        self.head = problem.answer.head(dim, self.embedding.shared(outputs)) if crf else Head(outputs, dim)
        clued = {name: spec for name, spec in problem.streams.items() if isinstance(spec, CluesSpec)}
        self.clued = next(iter(clued), "")
        self.clues: ClueScores | None = None
        if self.clued and clues:
            self.vectors = next(
                (n for n, stream_spec in problem.streams.items() if isinstance(stream_spec, WordVectors)), ""
            )
            word_vectors: Any = self.given[self.vectors].rows if self.vectors else None
            options = share("clue_dropout", clue_dropout), finite_number("clue_decay", clue_decay)
            self.clues = ClueScores(clued[self.clued], outputs, word_vectors, *options)

    def forward(self, batch: Batch) -> Any:
        rows: Tensor = self.embedding(batch.inputs)
        features = [rows]
        if self.spelled:
            features.append(self.dropout(self.characters(batch.streams[self.spelled].data)))
        features += [vectors(batch.streams[name].data) for name, vectors in self.given.items()]
        rows = self.join(torch.cat(features, -1))
        if self.recurrent is not None:
            rows = self.dropout(self.recurrent(rows, batch.keep)[0])
        if self.stack is not None:
            rows = self.dropout(self.stack(rows, mask=padding_mask(batch.keep)))
        scores = self.head(rows, batch)
        if self.clues is None:
            return scores
        word_vectors: Any = self.given[self.vectors].rows if self.vectors else None
        vectors = None if word_vectors is None else word_vectors.of(batch.streams[self.vectors].data)
        return scores + self.clues(batch.streams[self.clued].data, vectors)
