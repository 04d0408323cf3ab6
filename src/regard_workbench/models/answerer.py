"""`answerer`: a question goes over a memory in several hops, and the last row is the answer."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

import regard.dispatch.attention as dispatch
import regard_workbench.models.parts.related_sentences  # noqa: F401 (registers the memory of a story)
from regard.masks import Mask
from regard.normalizers import Normalizer, Softmax
from regard.normalizers import named as named_normalizer
from regard.support.arguments import readable, whole_number
from regard_workbench.models.parts.embedding import padding_mask
from regard_workbench.models.parts.memories import MemoryOptions, memory_of, remembered
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.picture_memory import PictureMemory
from regard_workbench.models.parts.token_rows import WeightedSum
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Patches, TokenRows, Tokens


class LinearStart(Normalizer):
    """The scores themselves as weights, or their softmax: `linear` · scores + (1 − linear) · softmax(scores).

    A tensor, not a number, so that a step that was captured as a CUDA graph follows it.
    """

    linear: Tensor

    def __call__(self, scores: Tensor, visible: Tensor) -> Tensor:
        soft = Softmax()(scores, visible)
        return torch.lerp(soft, scores.masked_fill(~visible, 0), self.linear.to(scores))


class Hop(nn.Module):
    """One reading of a memory: o = Σ_i p_i c_i with p = softmax_i(u·m_i)."""

    def forward(self, row: Tensor, keys: Tensor, values: Tensor, mask: Mask | None, normalize: Any) -> Tensor:
        """Row u (b,dim), keys m and values c (b,n,dim) → o (b,dim)."""
        attended: Tensor = dispatch.attend(row[:, None], keys, values, score="dot", mask=mask, normalize=normalize)
        return attended[:, 0]


class WordScores(nn.Module):
    """Scores words by the products of a row with their vectors: (b,dim) and (words,dim) → (b,words)."""

    def forward(self, row: Tensor, vectors: Tensor) -> Tensor:
        """One score for each word."""
        return row @ vectors.T


@model("answerer", gives=("pooled",), reads=(TokenRows, Patches, Tokens), several_streams=True)
class Answerer(Model):
    """Answers a question from a memory, which it reads in several hops: end-to-end memory networks.

        u⁰ = B q,   p_i = softmax_i(uᵏ·mᵏ_i),   uᵏ⁺¹ = uᵏ + Σ_i p_i cᵏ_i,   answer = softmax(W u)

    Paper: Sukhbaatar et al. 2015. Sentences are sums of word vectors weighted by the words' places, plus a vector for
    their age. With `linear_start` the first batches of training have no softmax in the hops (section 4.2), which keeps
    it out of poor local minima. The first stream is the memory, the second the question.

    With `layers`, the sentences of a story and the question first attend to each other, in as many rounds of the same
    weights (Dehghani et al. 2019), so that a fact that takes several sentences stands in one row when the hops come.

    Of a picture the memory holds the features of its patches, and beside them a coarse view whose channels the question
    scales and shifts (Perez et al. 2018), so that a patch knows whether it is meant. Before the hops, in each of
    `layers`, patches attend to each other and then picture and question attend to each other (`interactive`; Lu et al.
    2016, Lu et al. 2019).

    Args:
        dim: width of the vectors.
        hops: how often the memory is read.
        tying: adjacent (the values of a hop are the keys of the next; those of the last are W where any word may be the
            answer) or layer (all hops share theirs, and the row goes through a linear map between hops).
        ordered: whether a word counts by its place in the sentence, with the weights of the paper or with learned ones
            (learned); else a sentence is a bag of words.
        linear_start: training batches before the softmax is put in.
        normalize: what makes weights of scores: softmax, sparsemax, entmax15 …
        dropout: of memories and question.
        layers: how often memory and question attend to each other before the hops: of a picture in layers, 2 by
            default; of a story in rounds of one layer, 0 by default.
        num_heads: heads of these attentions; of a picture 4 by default, of a story 2.
        width: of a picture, channels of the first convolution; 16 by default. Each stage has twice as many.
        norm: of a picture, what normalises the channels of a convolution: batch (over the pictures of a training batch;
            the default) or group (of one picture).
    """

    attention_default: ClassVar[str] = "hops over the memory"  # no mechanism that `--attention` could replace
    shows: ClassVar[dict[str, str]] = {"hops": "hops over the memory"}
    batches: Tensor

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 50,
        hops: int = 3,
        tying: str = "adjacent",
        ordered: bool | Literal["learned"] = True,
        linear_start: int = 0,
        normalize: str = "softmax",
        dropout: float = 0.0,
        layers: int | None = None,
        num_heads: int | None = None,
        width: int | None = None,
        norm: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.memory_name, self.question_name = list(problem.streams)[:2]
        memory_spec, question_spec = (problem.streams[name] for name in (self.memory_name, self.question_name))
        assert isinstance(question_spec, Tokens)
        whole_number("dim", dim, 1)
        options = MemoryOptions(tying, ordered, dropout, layers, num_heads, width, norm)
        self.memory = memory_of(memory_spec, question_spec, dim, whole_number("hops", hops, 1), options)
        self.hops = nn.ModuleList(Hop() for _ in range(hops))
        self.question = None if self.memory.reads_question else WeightedSum(question_spec, dim, ordered=ordered)
        self.between = nn.Identity() if options.adjacent else nn.Linear(dim, dim)
        self.linear_start = whole_number("linear_start", linear_start, 0)
        self.normalize = named_normalizer(normalize)
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        self.outputs = problem.answer.outputs
        self.scores = WordScores()
        self.head = problem.answer.head(dim if self.memory.answers(self.outputs) is None else None)

    @classmethod
    def refuses(cls, problem: Problem) -> str:
        """A memory and a question are needed."""
        kinds = [type(spec) for spec in problem.streams.values()]
        if len(kinds) != 2 or kinds[0] not in remembered() or kinds[1] is not Tokens:
            return "reads a memory (sentences or a picture) and a question"
        first = next(iter(problem.streams.values()))
        return PictureMemory.refusal(first) if isinstance(first, Patches) else ""

    def forward(self, batch: Batch) -> Any:
        memory, question = batch.streams[self.memory_name], batch.streams[self.question_name]
        normalize = self._normalizer()
        mask = padding_mask(memory.keep)
        remembered_rows, row = self.memory(memory, question)
        if row is None:
            assert self.question is not None
            row = self.question(question.data)
        for hop, (keys, values) in zip(self.hops, remembered_rows, strict=True):
            row = self.between(row) + hop(row, keys, values, mask, normalize)
        vectors = self.memory.answers(self.outputs)
        return self.head(row if vectors is None else self.scores(row, vectors), batch)

    def _normalizer(self) -> Normalizer:
        """The normaliser of this batch; in training, count it."""
        if not self.linear_start:
            return self.normalize
        linear = self.batches < self.linear_start
        if self.training:
            self.batches += 1
        elif not bool(linear):
            return self.normalize
        if readable(linear) and not bool(linear):
            return self.normalize
        return LinearStart(linear.float())
