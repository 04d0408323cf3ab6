"""The neural cache: attention of a language model's row over its last rows, whose values are the words after them.

Paper: Grave, Joulin & Usunier 2017, "Improving neural language models with a continuous cache", equations 2, 3 and 5.

    p_cache(w | h_1 … h_t, x_1 … x_t)  ∝  Σ_{i = t−size … t−1} 1[w = x_{i+1}] exp(sharpness h_tᵀ h_i)
    p(w)  =  (1 − weight) p_model(w) + weight p_cache(w)

h are the rows that the model's head makes its logits from. A text is read in order, so every word is predicted from
words before it alone, as without a cache. At its first word the cache is empty, and the model alone predicts.

Memory is linear: rows are taken in strips, and of the text before a strip the last `size` rows are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import BadValue
from regard.support.arguments import finite_number, whole_number
from regard_workbench.tasks.measures.metrics import Answering, Mean, State, exponential
from regard_workbench.tasks.parts.batch import Batch

STRIP = 512  # rows that are compared with the cache at once
# Where weight or sharpness are not given, the best of these on the validation text is taken. A sharpness is a number of
# this list divided by the mean of hᵀh, so that it does not depend on the size of the rows.
WEIGHTS = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
SHARPNESSES = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 18.0, 27.0, 40.0)
CACHE_PERPLEXITY = Mean("cache_perplexity", higher_is_better=False, made=exponential)


class Read(NamedTuple):
    """Consecutive words of a text, as a model predicts them."""

    rows: Tensor  # (n,dim): those that the words are predicted from
    words: Tensor  # (n,)
    scores: Tensor  # (n,): log-probability of each word by the model alone


@dataclass(frozen=True)
class NeuralCache:
    """The number of rows that are kept, the weight of the cache and how sharply it compares."""

    size: int
    weight: float | None = None  # None: chosen on the validation text
    sharpness: float | None = None  # the same

    def __post_init__(self) -> None:
        whole_number("cache", self.size, 1)
        if self.weight is not None and not 0.0 < finite_number("cache_weight", self.weight) < 1.0:
            raise BadValue(f"cache_weight: expected a share above 0 and below 1, got {self.weight}.")
        if self.sharpness is not None:
            finite_number("cache_sharpness", self.sharpness, above=0.0)

    @property
    def chosen(self) -> bool:
        """Whether both numbers are known."""
        return self.weight is not None and self.sharpness is not None

    def choose(self, text: Sequence[Read]) -> NeuralCache:
        """The cache with the numbers that predict a text best: the validation text, never the one that is measured."""
        mean = sum(float(passage.rows.double().square().sum()) for passage in text) / sum(
            len(passage.rows) for passage in text
        )
        sharp = (
            [sharpness / max(mean, 1e-30) for sharpness in SHARPNESSES] if self.sharpness is None else [self.sharpness]
        )
        weights = WEIGHTS if self.weight is None else (self.weight,)
        costs = torch.zeros(len(sharp), len(weights), dtype=torch.float64)
        for model, cache in _scored(text, self.size, sharp):
            for column, weight in enumerate(weights):
                costs[:, column] -= _mixed(model, cache, weight).sum(1).cpu()
        row, column = divmod(int(costs.argmin()), len(weights))
        return NeuralCache(self.size, weights[column], sharp[row])

    def measure(self, text: Iterable[Read]) -> State:
        """The state of `CACHE_PERPLEXITY` over a text: the sum of −log p and the number of words."""
        assert self.weight is not None and self.sharpness is not None
        cost, count = 0.0, 0
        for model, cache in _scored(text, self.size, [self.sharpness]):
            cost -= float(_mixed(model, cache, self.weight).sum())
            count += len(model)
        return [cost, float(count)]

    def words(self) -> str:
        """How it is measured."""
        weight = "the best on the validation text" if self.weight is None else f"{self.weight:g}"
        sharpness = "the best on the validation text" if self.sharpness is None else f"{self.sharpness:.4g}"
        return f"the last {self.size:,} rows; weight: {weight}; sharpness: {sharpness}"


@torch.no_grad()
def read(model: Answering, batches: Iterable[Batch]) -> Iterator[Read]:
    """The words of batches in order, where they are asked for, with the rows that a model predicts them from."""
    for batch in batches:
        outputs, rows = model.with_rows(batch)
        targets, keep = batch.targets, batch.target_keep
        assert targets is not None
        counted = torch.ones_like(targets, dtype=torch.bool) if keep is None else keep
        words = targets[counted]
        scores = -F.cross_entropy(outputs[counted].float(), words, reduction="none")
        yield Read(rows[counted].float(), words, scores)


def _scored(text: Iterable[Read], size: int, sharpnesses: Sequence[float]) -> Iterator[tuple[Tensor, Tensor]]:
    """For strips of words: log-probabilities by the model (n,), and by the cache with each sharpness (s,n).

    An empty cache has a probability of NaN for every word.
    """
    rows: Tensor | None = None  # the last rows before a strip, and the words after them
    after: Tensor | None = None
    for passage in text:
        for strip in zip(*(tensor.split(STRIP) for tensor in passage), strict=True):
            current = Read(*strip)
            keys = current.rows if rows is None else torch.cat([rows, current.rows])
            values = current.words if after is None else torch.cat([after, current.words])
            before = len(keys) - len(current.rows)
            query = torch.arange(len(current.rows), device=keys.device)[:, None] + before
            key = torch.arange(len(keys), device=keys.device)
            visible = (key < query) & (key >= query - size)
            same = visible & (values == current.words[:, None])
            product = current.rows @ keys.T
            yield (
                current.scores.double(),
                torch.stack([_share(product * sharpness, visible, same) for sharpness in sharpnesses]),
            )
            rows, after = keys[-size:], values[-size:]


def _share(scores: Tensor, seen: Tensor, same: Tensor) -> Tensor:
    """The logarithm of the share of exp(scores) that the entries `same` have among those that are seen."""
    total = scores.masked_fill(~seen, -math.inf).logsumexp(1)
    return (scores.masked_fill(~same, -math.inf).logsumexp(1) - total).double()


def _mixed(model: Tensor, cache: Tensor, weight: float) -> Tensor:
    """Log-probabilities of the mixture; of the model alone where the cache is empty."""
    mixed = torch.logaddexp(model + math.log1p(-weight), cache + math.log(weight))
    return torch.where(cache.isnan(), model, mixed)
