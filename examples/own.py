"""A mechanism, a model and a task of your own, in one file that `regard --use` loads. docs/adding.md explains it.

    regard --use examples/own.py show cosine
    regard --use examples/own.py train brackets --model conv-attention --attention "cosine(num_heads=4)" --out runs/own
    regard --use examples/own.py compare brackets --models conv-attention,encoder --attention global,cosine

Nothing else has to be changed: what a decorator registers here is a name like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard import masks, scores
from regard.nn.multihead import Multihead
from regard.nn.parts.attention import AttentionInputs
from regard_workbench import models, tasks
from regard_workbench.models.parts.embedding import StreamEmbedding, pooled
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.shown import Shown, texts


@regard.nn.mechanism("cosine", causal="option", time="n²·d", memory="n·d", num_heads=2)
class Cosine(Multihead):
    """Multi-head attention that compares directions only; each head learns how sharply it decides.

        a_ij = softmax_j(s · cos(q_i, k_j)),   o_i = Σ_j a_ij v_j,   s = exp(log_strength), one for each head

    Paper: Liu et al. 2022, section 3.3 (scaled cosine attention).
    Empty row: the heads give zeros, so the row is the bias of the last projection.
    When to use: if the lengths of vectors should not count, or if training with dot products is unstable.

    Args:
        dim: width of queries and outputs.
        num_heads: how many heads share that width.
        dropout: share of attention weights dropped in training.
        source_dim: width of the source, where it differs from dim.
    """

    def __init__(self, dim: int, *arguments: Any, **options: Any) -> None:
        super().__init__(dim, *arguments, **options)
        self.log_strength = nn.Parameter(torch.full((self.num_heads,), math.log(10.0)))

    def pieces(self, inputs: AttentionInputs) -> dict[str, Any]:
        """Score, mask, bias and normaliser of a call, as `regard.attend` takes them."""
        return {**super().pieces(inputs), "score": scores.cosine(self.log_strength.exp())}


@models.model("conv-attention", gives=("pooled", "rows"))
class ConvAttention(models.Model):
    """A convolution reads the neighbours of each position, one attention looks further.

    Args:
        dim: width of the rows
        width: positions that the convolution reads at once
        attention: the mechanism over the convolution's rows
        dropout: share of the numbers dropped in training
    """

    takes_attention: ClassVar[str] = "the attention over the convolution's rows"
    attention_default: ClassVar[str] = "multihead"

    def __init__(
        self,
        problem: tasks.Problem,
        *,
        dim: int = 64,
        width: int = 3,
        attention: str | None = None,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(problem)
        self.embedding = StreamEmbedding(problem.inputs, dim, dropout=dropout)
        self.convolution = nn.Conv1d(dim, dim, width, padding="same")
        self.attention = regard.nn.build(attention or self.attention_default, dim)
        self.head = problem.answer.head(dim)

    def forward(self, batch: tasks.Batch) -> Any:
        """The outputs of the head: for each example, or for each position."""
        rows: Tensor = self.embedding(batch.inputs)
        mask = None
        if batch.keep is not None:
            mask = masks.padding(batch.keep)
            rows = rows.masked_fill(~batch.keep[..., None], 0)  # or the convolution would read padding
        rows = rows + F.gelu(self.convolution(rows.mT).mT)
        rows = rows + self.attention(rows, mask=mask)
        return self.head(pooled(rows, batch.keep) if self.problem.answer.needs == "pooled" else rows, batch)


OPEN, CLOSE = "([{", ")]}"
SYMBOLS = OPEN + CLOSE
SIZES = {"train": 4000, "validation": 300, "test": 300}


class Brackets(NamedTuple):
    """A text of brackets, and for each whether it lacks its partner; None where a user typed it."""

    text: str
    lonely: list[int] | None


def lonely(text: str) -> list[int]:
    """1 for each bracket without a partner, 0 for the others."""
    found, waiting = [1] * len(text), list[int]()
    for place, symbol in enumerate(text):
        if symbol in OPEN:
            waiting.append(place)
        elif waiting and OPEN.index(text[waiting[-1]]) == CLOSE.index(symbol):
            found[place] = found[waiting.pop()] = 0
    return found


def _f1_counts(answered: tasks.Answered) -> dict[str, float]:
    said, right = answered.outputs.argmax(-1) == 1, answered.batch.targets == 1
    said, right = said & answered.counts, right & answered.counts
    return {"hits": float((said & right).sum()), "said": float(said.sum()), "right": float(right.sum())}


def _f1(counts: Mapping[str, float]) -> float:
    return 2 * counts["hits"] / max(1.0, counts["said"] + counts["right"])


@tasks.task("brackets")
class BracketsTask(tasks.Task):
    """Finds brackets without a partner. Generated: nested pairs, some symbols replaced.

    Args:
        pairs: how many pairs a text is made of
    """

    # A metric that is no mean: hits and misses add up over batches, and F1 is made of the sums.
    metric = tasks.Counts("f1", unit="share", look=_f1_counts, made=_f1, total="right")
    recipe = tasks.Recipe(model="conv-attention", steps=600, batch_size=32, lr=2e-3)
    takes = ("text",)

    def __init__(self, pairs: int = 8) -> None:
        self.pairs = pairs

    def streams(self) -> dict[str, tasks.Tokens]:
        """The symbols; 0 is padding."""
        return {"symbols": tasks.Tokens(len(SYMBOLS) + 1, padding=0, length=2 * self.pairs)}

    def answers(self) -> list[tasks.EachOf]:
        """One of two classes for each position."""
        return [tasks.EachOf(2)]

    def examples(self, split: str) -> Sequence[Brackets]:
        """The texts of a split; the same on every machine."""
        return Generated(SIZES[split], lambda number: self._example(Draws("brackets", split, number)))

    def _example(self, draws: Draws) -> Brackets:
        text = ""
        for _ in range(1 + draws.below(self.pairs)):
            kind, place = draws.below(3), draws.below(len(text) + 1)
            text = text[:place] + OPEN[kind] + CLOSE[kind] + text[place:]
        text = "".join(draws.among(SYMBOLS) if draws.happens(15) else symbol for symbol in text)
        return Brackets(text, lonely(text))

    def length(self, example: Brackets) -> int:
        """Symbols of a text, for batches of similar length."""
        return len(example.text)

    def collate(self, examples: Sequence[Brackets], generator: torch.Generator) -> tasks.Batch:
        """Texts side by side, padded."""
        ids, keep = padded([[SYMBOLS.index(symbol) + 1 for symbol in one.text] for one in examples], 0)
        answers = {}
        if all(one.lonely is not None for one in examples):
            answers["lonely"] = tasks.Stream(padded([one.lonely or [] for one in examples], 0)[0], keep)
        return tasks.Batch({"symbols": tasks.Stream(ids, keep)}, answers)

    def parse(self, given: Mapping[str, str]) -> Brackets:
        """What `regard predict --text` and `regard view --text` were given."""
        text = "".join(symbol for symbol in given.get("text", "") if symbol in SYMBOLS)
        return Brackets(text, None)

    def show(self, example: Brackets, batch: tasks.Batch) -> Shown:
        """The symbols, beside what the model attends to."""
        return texts(example.text)

    def output_pieces(self, tokens: Sequence[int]) -> list[str]:
        """What each class is called."""
        return ["lonely" if token else "ok" for token in tokens]
