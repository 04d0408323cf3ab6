"""Sentences in the pieces of a checkpoint, for tasks that ask something about each word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from regard.support.arguments import whole_number
from regard_workbench.tasks.parts.batch import ASKED, TARGETS, Batch, Stream
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.streams import StreamSpec, Tokens
from regard_workbench.tasks.text.pretrained_pieces import PretrainedPieces
from regard_workbench.tasks.text.vocabulary import PRETRAINED, restored
from regard_workbench.tasks.text.word_forms import WORDS


class WordPieces:
    """What a checkpoint reads of a sentence in words. A word's tag is asked for at its first piece.

    Paper: Devlin et al. 2019, section 5.3.

    Args:
        vocabulary: that of the checkpoint.
        longest: pieces of the longest text that it reads; of a longer one the end is left out, and has no tags.
    """

    def __init__(self, vocabulary: PretrainedPieces, longest: int | None) -> None:
        self.vocabulary = vocabulary
        self.longest = None if longest is None else whole_number("max_length", longest, 1)

    @classmethod
    def restored(cls, state: Any) -> WordPieces | None:
        """The pieces of a task's state; None if its vocabulary is not that of a checkpoint."""
        description = state.get("vocabulary")
        if not isinstance(description, dict) or description.get("level") != PRETRAINED:
            return None
        vocabulary = restored(description)
        assert isinstance(vocabulary, PretrainedPieces)
        return cls(vocabulary, state.get("max_length"))

    def state(self) -> dict[str, Any]:
        """The vocabulary and the longest text, as JSON data."""
        return {"vocabulary": self.vocabulary.state(), "max_length": self.longest}

    def streams(self) -> dict[str, StreamSpec]:
        """The pieces of a sentence."""
        return {WORDS: Tokens(len(self.vocabulary), self.vocabulary.padding, self.longest)}

    def batch(self, sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[int]] | None) -> Batch:
        """The pieces of sentences, padded at their ends; tags at the first piece of each word."""
        read = [self.vocabulary.encode_words(words, self.longest) for words in sentences]
        ids, keep = padded([some for some, _ in read], self.vocabulary.padding)
        batch = Batch({WORDS: Stream(ids, keep)}, notes={ASKED: tuple(tuple(places) for _, places in read)})
        if tags is None:
            return batch
        wanted, counts = torch.zeros_like(ids), torch.zeros(ids.shape, dtype=torch.bool)
        for row, (places, sentence_tags) in enumerate(zip(batch.notes[ASKED], tags, strict=True)):
            at = torch.tensor(places, dtype=torch.long)
            wanted[row, at], counts[row, at] = torch.tensor(sentence_tags[: len(places)], dtype=torch.long), True
        return Batch(batch.streams, {TARGETS: Stream(wanted, counts)}, notes=batch.notes)

    def ids(self, words: Sequence[str]) -> list[int]:
        """The ids of the pieces of a sentence."""
        return self.vocabulary.encode_words(words, self.longest)[0]

    def shown(self, words: Sequence[str]) -> list[str]:
        """The pieces of a sentence as text."""
        return self.vocabulary.pieces(self.ids(words))
