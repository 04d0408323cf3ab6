"""Distinct-n: how varied what a model writes is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from regard_workbench.tasks.measures.metrics import SHARE, Answered, Metric, State
from regard_workbench.tasks.text.split_words import split_words


@dataclass(frozen=True)
class Distinct(Metric):
    """The different n-grams of all texts that a model wrote, divided by the number of n-grams (Li et al. 2016)."""

    order: int = 1
    texts: Callable[[Answered], Sequence[str] | None] = field(default=lambda _: None, compare=False)

    def of(self, answered: Answered) -> State | None:
        texts = self.texts(answered)
        return None if texts is None else self.counted(texts)

    def counted(self, texts: Sequence[str]) -> State:
        """The state of some texts: the different n-grams and the number of all."""
        grams: set[str] = set()
        total = 0
        for text in texts:
            words = split_words(text)
            ngrams = [" ".join(words[at : at + self.order]) for at in range(len(words) - self.order + 1)]
            grams.update(ngrams)
            total += len(ngrams)
        return {"grams": sorted(grams), "total": total}

    def merge(self, states: Sequence[State]) -> State:
        grams = set().union(*(state["grams"] for state in states))
        return {"grams": sorted(grams), "total": sum(state["total"] for state in states)}

    def value(self, state: State) -> float:
        return len(state["grams"]) / state["total"] if state["total"] else math.nan

    def count(self, state: State) -> float:
        return float(state["total"])


def distinct(order: int, texts: Callable[[Answered], Sequence[str] | None]) -> Distinct:
    """The metric `distinct_1`, `distinct_2` … for what a function says a model wrote."""
    return Distinct(f"distinct_{order}", unit=SHARE, over=f"{order}-grams", order=order, texts=texts)
