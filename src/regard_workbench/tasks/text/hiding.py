"""What tasks about dialogues share: their files, and hidden words for models that cannot give their answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard_workbench.tasks.answers import HiddenTokens
from regard_workbench.tasks.formats.reading import Data, checked_encoding
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.formats.woz import typed_turns
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS, Metric
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shown import Understood, unknown_notes
from regard_workbench.tasks.parts.streams import Spelled
from regard_workbench.tasks.parts.task import Task
from regard_workbench.tasks.text import spelling
from regard_workbench.tasks.text.split_words import split_words
from regard_workbench.tasks.text.vocabulary import PADDING, UNKNOWN, Vocabulary

Part = TypeVar("Part")


class HidesWords(Task):
    """A task over spelled words of dialogues. Models that give a row for each position guess hidden words instead."""

    takes = ("text",)

    def __init__(self, data: Data | None, min_count: int, encoding: str, seed: int, whole: bool) -> None:
        self.data, self.whole = data, whole
        self.min_count = whole_number("min_count", min_count, 1)
        self.encoding, self.seed = checked_encoding(encoding), whole_number("seed", seed)
        self.vocabulary: Vocabulary | None = None

    def prepare(self) -> None:
        """Set the vocabulary, and what else is learned from the training part alone."""
        raise NotImplementedError(f"{type(self).__name__} does not define prepare")

    def known(self) -> Vocabulary:
        """The vocabulary; from the data where no state was restored."""
        if self.vocabulary is None:
            self.prepare()
        assert self.vocabulary is not None
        return self.vocabulary

    def spelled(self, length: int) -> Spelled:
        """The stream of up to `length` words."""
        return Spelled(len(self.known()), spelling.SPEAKERS, spelling.GRAMS, PADDING, length)

    @property
    def hides(self) -> bool:
        """Whether hidden words are asked for."""
        return isinstance(self.problem.answer, HiddenTokens)

    def pose(self, problem: Problem) -> None:
        """Where words are hidden, how often they are guessed decides."""
        super().pose(problem)
        self.__dict__.pop("metric", None)
        if self.hides:
            self.metric = ACCURACY  # type: ignore[misc]

    def metrics(self) -> tuple[Metric, ...]:
        """Where words are hidden: loss and how often they are guessed."""
        return (LOSS, ACCURACY) if self.hides else self.own_metrics()

    def own_metrics(self) -> tuple[Metric, ...]:
        """How the task's own answers are judged."""
        raise NotImplementedError(f"{type(self).__name__} does not define own_metrics")

    def part(self, parts: Mapping[str, Part], split: str) -> Part:
        """The part of the data that is a split."""
        if checked_split(split) not in parts:
            raise BadValue(f"data: {self.data} has no file for {split}. It has: {', '.join(parts)}.")
        return parts[split]

    def understood(self, given: Mapping[str, str], example: Any) -> Understood:
        """Which of the words that were said are unknown."""
        words = [word for turn in typed_turns(given["text"]) for word in split_words(turn)]
        recognised = [UNKNOWN not in self.known().encode(word) for word in words]
        return Understood(words, recognised, unknown_notes(recognised))

    def hidden(self, texts: Sequence[Sequence[tuple[int, ...]]], generator: torch.Generator) -> Batch:
        """Texts with some words hidden, which are the targets."""
        data, keep = spelling.padded_words(texts)
        shown, target_keep = spelling.hide(data, generator)
        return Batch.of(shown, keep, data[..., 0].clone(), target_keep)

    def state(self) -> dict[str, Any]:
        """The vocabulary."""
        return {"vocabulary": self.known().state()}
