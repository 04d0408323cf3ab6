"""What tasks share that read spelled words of dialogues: hidden words for models that cannot give their answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from regard_workbench.tasks.answers import HiddenTokens
from regard_workbench.tasks.formats.woz import typed_turns
from regard_workbench.tasks.measures.metrics import ACCURACY
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.data import Kept
from regard_workbench.tasks.parts.presenter import TypedText
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.rows_from_files import RowsFromFiles
from regard_workbench.tasks.parts.shown import Understood, unknown_notes
from regard_workbench.tasks.parts.streams import Spelled
from regard_workbench.tasks.text import spelling
from regard_workbench.tasks.text.split_words import split_words
from regard_workbench.tasks.text.text_task import KnownPieces
from regard_workbench.tasks.text.vocabulary import PADDING, UNKNOWN


class SpelledPresenter(TypedText["HidesWords"]):
    """Counts the words that a typed dialogue holds and the vocabulary does not."""

    def understood(self, task: HidesWords, given: Mapping[str, str], example: Any) -> Understood:
        words = [word for turn in typed_turns(given["text"]) for word in split_words(turn)]
        recognised = [UNKNOWN not in task.fitted.vocabulary.encode(word) for word in words]
        return Understood(words, recognised, unknown_notes(recognised))


class HidesWords(RowsFromFiles):
    """A task over spelled words of dialogues. Models that give a row for each position guess hidden words instead."""

    fitted = Kept(KnownPieces)

    def spelled(self, length: int) -> Spelled:
        """The stream of up to `length` words."""
        return Spelled(len(self.fitted.vocabulary), spelling.SPEAKERS, spelling.GRAMS, PADDING, length)

    @property
    def hides(self) -> bool:
        """Whether hidden words are asked for."""
        return isinstance(self.problem.answer, HiddenTokens)

    def pose(self, problem: Problem) -> None:
        """Where words are hidden, how often they are guessed decides."""
        super().pose(problem)
        vars(self).pop("metric", None)
        if self.hides:
            vars(self)["metric"] = ACCURACY

    def hidden(self, texts: Sequence[Sequence[tuple[int, ...]]], generator: torch.Generator) -> Batch:
        """Texts with some words hidden, which are the targets."""
        data, keep = spelling.padded_words(texts)
        shown, guessed = spelling.hide(data, generator)
        return Batch.of(shown, keep, data[..., 0].clone(), guessed)
