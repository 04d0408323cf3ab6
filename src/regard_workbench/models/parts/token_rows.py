"""Rows of tokens as vectors: the words of a sentence, the letters of a word.

Every model that reads any stream reads `TokenRows` by the weighted sum below. `CharacterConvolution` and
`CharacterAttention` read the order of a row's tokens more closely, as names need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from regard import masks
from regard.nn.parts.blocks import EncoderLayer
from regard.nn.positions import Learned
from regard_workbench.models.parts.embedding import embeds
from regard_workbench.tasks.parts.streams import TokenRows, Tokens


class WeightedSum(nn.Module):
    """The vectors of a row's tokens, each column weighted by the token's place, and added up.

        m = Σ_j l_j ⊙ A x_j,   l_kj = (1 − j/J) − (k/d)(1 − 2j/J)

    for token j of J and column k of d, both counted from 1: the position encoding of Sukhbaatar et al. 2015, section
    4.1. With `ordered=False` all weights are 1: a bag of words; with "learned" they are parameters that begin with 1
    (Henaff et al. 2017; Dehghani et al. 2019). A row without tokens is zeros.

    `sets`: how many vectors each row gets, from as many tables.
    """

    def __init__(
        self, spec: TokenRows | Tokens, dim: int, *, sets: int = 1, ordered: bool | Literal["learned"] = True
    ) -> None:
        super().__init__()
        self.dim, self.sets, self.padding, self.ordered = dim, sets, spec.padding, ordered
        self.table = nn.Embedding(spec.count, sets * dim)  # one look-up for all tables
        nn.init.normal_(self.table.weight, std=0.1)
        self.places: nn.Parameter | None = None
        if ordered == "learned":
            width = spec.width if isinstance(spec, TokenRows) else spec.length
            assert width is not None
            self.places = nn.Parameter(torch.ones(width, sets * dim))

    def forward(self, ids: Tensor) -> Tensor:
        """(…,width) ids → (…,sets·dim)."""
        vectors: Tensor = self.table(ids)
        real = (ids != self.padding).to(vectors)
        if self.places is not None:
            return torch.einsum("...wd,wd->...d", vectors * real[..., None], self.places[: ids.shape[-1]])
        if not self.ordered:
            return (real[..., None, :] @ vectors)[..., 0, :]
        # The weights are a sum of two products of a number for the place and one for the column.
        count = real.sum(-1, keepdim=True).clamp(min=1)
        place = torch.arange(1, ids.shape[-1] + 1, device=ids.device) / count
        column = torch.arange(1, self.dim + 1, device=ids.device).to(vectors) / self.dim
        both = torch.stack([(1 - place) * real, (1 - 2 * place) * real], -2) @ vectors  # (b,n,2,sets·dim)
        return both[..., 0, :] - column.repeat(self.sets) * both[..., 1, :]


@embeds(TokenRows)
def _token_rows(spec: TokenRows, dim: int) -> nn.Module:
    return WeightedSum(spec, dim)


class _LetterVectors(nn.Module):
    """The vectors of the tokens of each row, (rows,width,dim), and which of them are real."""

    def __init__(self, spec: TokenRows, dim: int) -> None:
        super().__init__()
        self.padding = spec.padding
        self.table = nn.Embedding(spec.count, dim)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """(b,n,width) ids → (b·n,width,dim) vectors, and (b·n,width): True = a token."""
        real = (ids != self.padding).flatten(0, 1)
        return self.table(ids).flatten(0, 1).masked_fill(~real[..., None], 0), real


def _largest(vectors: Tensor, real: Tensor) -> Tensor:
    """The maximum over a row's tokens, (rows,width,dim) → (rows,dim); zeros for a row without any."""
    largest = vectors.masked_fill(~real[..., None], -torch.inf).amax(1)
    return largest.masked_fill(~real.any(1, keepdim=True), 0)


class CharacterConvolution(nn.Module):
    """Convolutions over the letters of each word and the maximum over their places (Ma and Hovy 2016; Kim 2014).

    Windows of 2, 3 and 4 letters share `dim`; what stands before the first and after the last letter is zeros.
    """

    def __init__(self, spec: TokenRows, dim: int, *, letter_dim: int = 32, widths: Sequence[int] = (2, 3, 4)) -> None:
        super().__init__()
        self.letters = _LetterVectors(spec, letter_dim)
        sizes = [dim // len(widths) + (number < dim % len(widths)) for number in range(len(widths))]
        self.windows = nn.ModuleList(
            nn.Conv1d(letter_dim, size, width, padding=width - 1)
            for size, width in zip(sizes, widths, strict=True)
            if size
        )

    def forward(self, ids: Tensor) -> Tensor:
        """(b,n,width) ids → (b,n,dim)."""
        vectors, real = self.letters(ids)
        columns = vectors.transpose(1, 2)
        maxima = []
        for window in self.windows:
            responses = window(columns).transpose(1, 2)  # one row for each window that touches a place
            more = responses.shape[1] - real.shape[1]
            touches = nn.functional.pad(real, (0, more))
            for shift in range(1, more + 1):
                touches = touches | nn.functional.pad(real, (shift, more - shift))
            maxima.append(_largest(responses, touches))
        rows: Tensor = torch.cat(maxima, -1).unflatten(0, ids.shape[:2])
        return rows


class CharacterAttention(nn.Module):
    """Letters of a word attend to each other, then the maximum over their places."""

    def __init__(
        self, spec: TokenRows, dim: int, *, letter_dim: int = 32, attention: str = "multihead(num_heads=4)"
    ) -> None:
        super().__init__()
        self.letters = _LetterVectors(spec, letter_dim)
        self.positions = Learned(letter_dim, spec.width)
        self.layer = EncoderLayer(letter_dim, attention)
        self.widen = nn.Linear(letter_dim, dim)

    def forward(self, ids: Tensor) -> Tensor:
        """(b,n,width) ids → (b,n,dim)."""
        vectors, real = self.letters(ids)
        rows = self.layer(self.positions(vectors), mask=masks.padding(real))
        word_rows: Tensor = _largest(self.widen(rows), real).unflatten(0, ids.shape[:2])
        return word_rows
