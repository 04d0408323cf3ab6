"""`matcher`: turns and replies attend to themselves and to each other; all pairs of words are matched."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.masks import Mask
from regard.nn.parts.blocks import FeedForward
from regard.nn.parts.building import build
from regard.support.arguments import whole_number
from regard_workbench.models.parts.embedding import StreamEmbedding, padding_mask
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.stack import Stack
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import TextSets


class Attentive(nn.Module):
    """Rows that attend to others without projections, then a feed-forward block (Zhou et al. 2018, section 3.2)."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.attention = build("dot", dim)
        self.feed_forward = FeedForward(dim, dim, activation="relu")
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.dropout = nn.Dropout(dropout)
        self.scale = dim**-0.5

    def forward(self, rows: Tensor, source: Tensor, mask: Mask | None) -> Tensor:
        """(b,n,dim) attend to (b,m,dim)."""
        rows = self.norms[0](rows + self.dropout(self.attention(rows * self.scale, source, mask=mask)))
        outputs: Tensor = self.norms[1](rows + self.dropout(self.feed_forward(rows)))
        return outputs


class MutualAttention(nn.Module):
    """Two encoders look at each other's rows between their layers, each through a gate that is closed at first."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.interactive = build("interactive", dim, num_heads=num_heads)
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.gates = nn.Parameter(torch.zeros(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, one: Tensor, other: Tensor, one_keep: Tensor, other_keep: Tensor) -> tuple[Tensor, Tensor]:
        """Both streams of rows, (b,n,dim) and (b,m,dim)."""
        attended, shown = self.interactive.both(self.norms[0](one), self.norms[1](other), one_keep, other_keep)
        return one + self.gates[0] * self.dropout(attended), other + self.gates[1] * self.dropout(shown)


@model("matcher", gives=("candidates",), reads=(TextSets,), several_streams=True)
class Matcher(Model):
    """Scores a reply by the match of each of its words with each word of each turn, on several levels of attention.

        U^l_i, R^l      rows of turn i and of the reply after l layers of self-attention
        V^l_i, S^l_i    the same after attending to each other
        M_i = [U^l_i · R^l, V^l_i · S^l_i  for l = 0 … layers]        a tensor of turns × words × words

    Convolutions over the three axes of M and a maximum make the row that is scored. Turns are read by one encoder and
    replies by another, which share their embedding. With `exchange=True` the two encoders also attend to each other
    between their layers (co-attention of all turns and the reply), through gates that are closed at the beginning, so
    that pre-trained encoders first work as they learned.

    Paper: Zhou et al. 2018, Multi-turn response selection with Deep Attention Matching; the exchange as in Lu et al.
    2019, section 2.2. `--init-from` takes an `encoder` that guessed hidden words for both encoders.

    Args:
        exchange: let the two encoders attend to each other between their layers
        channels: width of the convolutions over the matching tensor
    """

    takes_attention: ClassVar[str] = "each layer's attention among the words of a text"
    attention_default: ClassVar[str] = "multihead"
    shows: ClassVar[dict[str, str]] = {
        "to_turn.-1.attention": "the first reply's attention to the newest turn",
        "to_reply.-1.attention": "the newest turn's attention to the first reply",
    }
    sides = MappingProxyType(
        {"to_reply.-1.attention": ("tokens", "reply"), "to_turn.-1.attention": ("reply", "tokens")}
    )

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 64,
        layers: int = 2,
        num_heads: int = 4,
        attention: str | None = None,
        positions: str = "sinusoidal",
        channels: int = 16,
        exchange: bool = False,
        dropout: float = 0.1,
        hidden: int | None = None,
    ) -> None:
        super().__init__(problem)
        spec: Any = problem.inputs
        self.embedding = StreamEmbedding(spec.of, dim, positions=positions, dropout=dropout)
        shared: dict[str, Any] = {"num_heads": num_heads, "dropout": dropout, "hidden": hidden}
        self.stack = Stack(dim, layers, attention or self.attention_default, **shared)
        self.reply_stack = Stack(dim, layers, attention or self.attention_default, **shared)
        levels = layers + 1
        self.to_reply = nn.ModuleList(Attentive(dim, dropout) for _ in range(levels))
        self.to_turn = nn.ModuleList(Attentive(dim, dropout) for _ in range(levels))
        mutual = layers if exchange else 0
        self.exchanges = nn.ModuleList(MutualAttention(dim, num_heads, dropout) for _ in range(mutual))
        channels = whole_number("channels", channels, 1)
        self.first = nn.Conv3d(2 * levels + 1, channels, 3, padding=1)
        self.second = nn.Conv3d(channels, channels, 3, padding=1)
        self.head = problem.answer.head(2 * channels)

    def adopted(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights of an encoder, for both of the encoders here."""
        twice = {f"reply_{name}": value for name, value in weights.items() if name.startswith("stack.")}
        return {**twice, **weights}

    def levels(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """The rows of each level: turns (b,c,t,n,dim), and replies (b,c,m,dim), for each pair of example and reply."""
        turns, replies = batch.streams.values()
        assert turns.keep is not None and replies.keep is not None
        (size, count, words), most = turns.keep.shape, replies.keep.shape[1]
        turn_rows = self.embedding(turns.data.flatten(0, 1))  # (b·t,n,dim)
        reply_rows = self.embedding(replies.data.flatten(0, 1))  # (b·c,m,dim)
        one_keep, other_keep = turns.keep.flatten(0, 1), replies.keep.flatten(0, 1)
        if self.exchanges:  # what a turn is now depends on the reply
            turn_rows = turn_rows.unflatten(0, (size, count))[:, None].expand(-1, most, -1, -1, -1).flatten(0, 2)
            one_keep = turns.keep[:, None].expand(-1, most, -1, -1).flatten(0, 2)

        def apart(rows: Tensor) -> Tensor:
            unflattened: Tensor = rows.unflatten(0, (size, most if self.exchanges else 1, count))
            return unflattened.expand(-1, most, -1, -1, -1)

        levels = [(apart(turn_rows), reply_rows.unflatten(0, (size, most)))]
        for number, (layer, reply_layer) in enumerate(zip(self.stack.layers, self.reply_stack.layers, strict=True)):
            turn_rows = layer(turn_rows, mask=padding_mask(one_keep))
            reply_rows = reply_layer(reply_rows, mask=padding_mask(other_keep))
            if self.exchanges:
                joined = turn_rows.unflatten(0, (size * most, count)).flatten(1, 2)
                kept = one_keep.unflatten(0, (size * most, count)).flatten(1, 2)
                joined, reply_rows = self.exchanges[number](joined, reply_rows, kept, other_keep)
                turn_rows = joined.unflatten(1, (count, words)).flatten(0, 1)
            levels.append(
                (apart(self.stack.norm(turn_rows)), self.reply_stack.norm(reply_rows).unflatten(0, (size, most)))
            )
        return levels

    def matching(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The matching tensor (b,c,channels,t,n,m), zero where a word is padding, and where none is, (b,c,1,t,n,m)."""
        turns, replies = batch.streams.values()
        assert turns.keep is not None and replies.keep is not None
        count, most = turns.keep.shape[1], replies.keep.shape[1]
        turn_keep = turns.keep[:, None].expand(-1, most, -1, -1)
        reply_keep = replies.keep[:, :, None].expand(-1, -1, count, -1)
        real = turn_keep[..., :, None] & reply_keep[..., None, :]
        to_reply, to_turn = padding_mask(reply_keep.flatten(0, 2)), padding_mask(turn_keep.flatten(0, 2))
        planes = []
        for level, (turn_rows, reply_rows) in enumerate(self.levels(batch)):
            a, b = turn_rows.flatten(0, 2), reply_rows[:, :, None].expand(-1, -1, count, -1, -1).flatten(0, 2)
            crossed = self.to_reply[level](a, b, to_reply), self.to_turn[level](b, a, to_turn)
            planes += [x @ y.transpose(-1, -2) * a.shape[-1] ** -0.5 for x, y in ((a, b), crossed)]
        age = torch.arange(count, device=real.device)
        newness = (1 / (1 + age.to(planes[0].dtype)))[:, None, None].expand(real.shape)
        stacked = torch.stack([*(plane.view(real.shape) for plane in planes), newness], 2)
        return stacked.masked_fill(~real[:, :, None], 0), real[:, :, None]

    def forward(self, batch: Batch) -> Any:
        matched, real = self.matching(batch)
        size, most = matched.shape[:2]
        rows, kept = F.elu(self.first(matched.flatten(0, 1))), real.flatten(0, 1)
        rows, kept = _largest(rows, kept)
        rows = F.elu(self.second(rows.masked_fill(~kept, 0)))
        flat, present = rows.flatten(2), kept.flatten(2)
        mean = flat.masked_fill(~present, 0).sum(-1) / present.sum(-1).clamp(min=1)
        top = flat.masked_fill(~present, -torch.inf).amax(-1).masked_fill(~present.any(-1), 0)
        return self.head(torch.cat([top, mean], -1).unflatten(0, (size, most)), batch)


def _largest(rows: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The largest real number in each block of 3 × 3 × 3, and which blocks hold any: padding beyond does not matter."""
    rows = F.max_pool3d(rows.masked_fill(~kept, -torch.inf), 3, ceil_mode=True)
    kept = F.max_pool3d(kept.to(rows.dtype), 3, ceil_mode=True) > 0
    return rows.masked_fill(~kept, 0), kept
