"""Vectors of words from plain text, by counting: words that stand beside the same words get similar vectors.

How often word w has context c (a frequent word at distance −2, −1, 1 or 2, each counted apart) is compared with chance,

    PPMI(w,c) = max(0, log (#(w,c) · N / (#(w) · #(c)^0.75 scaled to sum N)))

and the best approximation of that table by `width` columns, U √Σ of its singular value decomposition, is the vector of
w, of length 1. In a text of a few million words this is as good as networks that learn vectors word by word, and it
takes seconds on one core.

Paper: Levy, Goldberg and Dagan 2015.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from regard_workbench.tasks.parts.streams import Tokens

CONTEXTS = 8000  # words that count as contexts: the most frequent
DISTANCES = (-2, -1, 1, 2)
SMOOTHING = 0.75  # makes rare contexts less surprising


@dataclass(frozen=True)
class WordVectors(Tokens):
    """Positions that hold the id of a word whose vector, `width` numbers, is known and not learned."""

    width: int = 1
    vectors: Tensor | None = field(default=None, compare=False, repr=False)  # (count,width); None: with the weights
    embedder: ClassVar[str] = "regard_workbench.models.parts.word_vectors"


def counted_vectors(sentences: Iterable[Sequence[int]], count: int, width: int) -> Tensor:
    """Vectors (count,width) of the ids in sentences, where frequent words have the low ids and −1 is no word.

    Words without any neighbour have zeros, and so have columns beyond those that the table of counts can fill.
    """
    text = [number for sentence in sentences for number in (*sentence, *[-1] * max(DISTANCES))]
    table = _surprise(np.array([*[-1] * max(DISTANCES), *text], dtype=np.int64), count)
    vectors = torch.zeros(count, width)
    rank = min(width, *table.shape)
    if rank and table._nnz():
        with torch.random.fork_rng(devices=[]):  # the decomposition starts from random numbers: always the same ones
            torch.manual_seed(0)
            left, sizes, _ = torch.svd_lowrank(table, min(rank + 10, *table.shape), niter=4)
        vectors[:, :rank] = (left * sizes.sqrt())[:, :rank]
    lengths = vectors.norm(dim=1, keepdim=True)
    return torch.where(lengths > 1e-6, vectors / lengths.clamp(min=1e-6), 0.0)


def _surprise(text: np.ndarray, count: int) -> Tensor:
    """The table of PPMI, (count, distances · contexts), sparse."""
    contexts = min(CONTEXTS, count)
    pairs = []
    for place, distance in enumerate(DISTANCES):
        left = text[max(0, -distance) : len(text) - max(0, distance)]
        right = text[max(0, distance) : len(text) + min(0, distance)]
        real = (left >= 0) & (right >= 0) & (right < contexts)
        pairs.append(left[real] * (len(DISTANCES) * contexts) + right[real] + place * contexts)
    cells, frequencies = np.unique(np.concatenate(pairs), return_counts=True)
    rows, columns = np.divmod(cells, len(DISTANCES) * contexts)
    of_row = np.bincount(rows, frequencies, minlength=count)
    of_column = np.bincount(columns, frequencies, minlength=len(DISTANCES) * contexts) ** SMOOTHING
    of_column *= frequencies.sum() / max(of_column.sum(), 1e-9)
    value = np.log(frequencies * frequencies.sum() / (of_row[rows] * of_column[columns]))
    kept = value > 0
    where = torch.from_numpy(np.stack([rows[kept], columns[kept]]))
    values = torch.from_numpy(value[kept].astype(np.float32))
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # torch 2.11 warns where nothing is said
        return torch.sparse_coo_tensor(where, values, (count, len(DISTANCES) * contexts)).coalesce()
