"""The rows of a stream in the kernels: those of vectors as two kernels, those of tokens in the kernels of a stack."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.nn.positions import NoPositions, Sinusoidal
from regard_fast import fused_rows
from regard_fast.fused_rows import vectors
from regard_fast.fused_rows.head import MOST_OUTPUTS
from regard_fast.fused_rows.layers import hooked
from regard_fast.fused_rows.tokens import EmbeddedTokens
from regard_workbench.models.parts.embedding import StreamEmbedding


def run(embedding: StreamEmbedding, data: Tensor, offset: int = 0) -> Tensor | None:
    """The rows (b,n,dim) of vectors (b,n,width)."""
    if offset or not isinstance(embedding.rows, nn.Linear):
        return None
    data = data.to(embedding.rows.weight.dtype)
    if refusal(embedding, data):
        return None
    return vectors.run(data, embedding.rows, embedding.positions, _rate(embedding))


def refusal(embedding: StreamEmbedding, data: Tensor) -> str:
    """Why the modules must make the rows of vectors; empty if the kernels can."""
    if type(embedding.norm) is not nn.Identity:
        return "the rows are normalised"
    if hooked(embedding.dropout):
        return "a module has hooks"
    return vectors.refusal(data, embedding.rows, embedding.positions, _rate(embedding))


def token_rows(embedding: StreamEmbedding, ids: Tensor) -> EmbeddedTokens | None:
    """Rows of tokens for the kernels to make; None: the module must be called."""
    if embedding.counted or embedding.segments is not None or type(embedding.norm) is not nn.Identity:
        return None
    if (embedding.training and embedding.word_dropout) or hooked(embedding) or hooked(embedding.dropout):
        return None
    table, positions, rate = embedding.rows, embedding.positions, _rate(embedding)
    if ids.dim() != 2 or ids.dtype != torch.int64 or not 0 <= rate < 1:
        return None
    if type(table) is not nn.Embedding or table.num_embeddings > MOST_OUTPUTS:
        return None
    if table.padding_idx is not None or table.max_norm is not None or table.scale_grad_by_freq:
        return None
    if table.sparse or type(positions) not in (Sinusoidal, NoPositions):
        return None
    if table.weight.dtype != torch.float32 and not fused_rows.on_cpu:
        return None
    if hooked(table) or hooked(positions):
        return None
    return EmbeddedTokens(ids, table.weight, embedding.scale, rate, type(positions) is Sinusoidal)


def _rate(embedding: StreamEmbedding) -> float:
    return embedding.dropout.p if embedding.training else 0.0
