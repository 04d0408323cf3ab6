"""Hidden words: guess words of a plain text from those around them, as pre-training before `tag`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from regard.errors import BadValue
from regard.tasks.answers import HiddenTokens
from regard.tasks.batch import TARGETS, Batch, Stream
from regard.tasks.formats.splits import checked_split
from regard.tasks.measures.metrics import ACCURACY, LOSS, PERPLEXITY, Answering, Metric, State
from regard.tasks.problem import Problem
from regard.tasks.tag import CHARACTERS, WORDS, Sentence, Tag
from regard.tasks.task import Recipe, task
from regard.tasks.text.vocabulary import BLANK, PADDING, SPECIAL, UNKNOWN

HELD_OUT = 50  # every 50th sentence of the text is for validation, the one after it for the test
HIDDEN = 0.15
HERE = SPECIAL[BLANK]  # what a user types for a hidden word


@task("hidden-words")
class HiddenWords(Tag):
    """Guesses hidden words of sentences without tags, so that `tag` can begin with what words and letters mean.

    A hidden word is a blank, and so are its characters. The words and characters known are those of `tag` with the
    same data and text, so that a run of it starts from this one's weights:

        regard train "hidden-words(text=wiki.txt)" --data wnut17 --model tagger --out runs/words
        regard train "tag(text=wiki.txt)" --data wnut17 --init-from runs/words

    Args:
        data: the tagged files that follow, in CoNLL columns; their training sentences are read, too
        text: files of plain text, words between spaces
        lower: words are looked up in lower case; capitals are seen by models that read characters
        min_count: how often a word must occur in the tagged training sentences to be known
        word_length: characters of a word that are read: of a longer one its beginning and its end
        encoding: how the files are encoded
        seed: as in `tag`
    """

    metric: ClassVar[Metric] = PERPLEXITY
    recipe = Recipe(model="tagger", steps=4000, batch_size=64, lr=2e-3, warmup=200)

    def __init__(
        self,
        data: str | None = None,
        text: str | None = None,
        lower: bool = True,
        min_count: int = 1,
        word_length: int = 20,
        encoding: str = "utf-8",
        seed: int = 0,
    ) -> None:
        super().__init__(
            data, text=text, lower=lower, min_count=min_count, hide_rare=0.0, word_length=word_length,
            encoding=encoding, seed=seed,
        )  # fmt: skip

    def answers(self) -> list[HiddenTokens]:  # type: ignore[override]
        """The hidden words."""
        self._known()
        return [HiddenTokens(len(self.vocabulary), BLANK)]

    def problems(self) -> list[Problem]:
        """From words and characters, or from words alone for models that read one stream."""
        streams = self.streams()
        return [Problem(some, self.answers()[0]) for some in (streams, {WORDS: streams[WORDS]})]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss, perplexity and accuracy of the hidden words."""
        return (LOSS, PERPLEXITY, ACCURACY)

    def examine(
        self, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """Nothing more."""
        return []

    def protocol(self) -> dict[str, str]:
        """What is hidden."""
        return {"hidden": f"{HIDDEN:.0%} of the words, with their characters"}

    def examples(self, split: str) -> Sequence[Sentence]:
        """Every 50th sentence is for validation, the one after it for the test; without a text, the tagged ones."""
        place = {"validation": 0, "test": 1}.get(checked_split(split))
        if not self.untagged:
            return [Sentence(row.words) for row in self._split(split)]
        found = self.untagged if place is None else self.untagged[place::HELD_OUT]
        if place is None:
            found = [one for number, one in enumerate(found) if number % HELD_OUT > 1]
            found += [row.words for row in self._split("train")]
        if not found:
            raise BadValue(f"text: {self.text} has too few lines to take {split} from them.")
        return [Sentence(words) for words in found]

    def parse(self, given: Mapping[str, str]) -> Sentence:
        """A sentence in which blanks stand for the words to guess."""
        found = super().parse(given)
        if HERE not in found.words:
            raise BadValue(f"--text: this run guesses hidden words. Write {HERE} where one is hidden.")
        return found

    def output_pieces(self, tokens: Sequence[int]) -> list[str]:
        """Words."""
        return self.vocabulary.pieces(tokens)

    def collate(self, examples: Sequence[Sentence], generator: torch.Generator) -> Batch:
        """Sentences with blanks, those that a user typed or, without any, some at random.

        The words behind them are the targets, unknown ones are not asked for.
        """
        batch = super().collate(examples, generator)
        words = batch.streams[WORDS]
        chosen = torch.rand(words.data.shape, generator=generator) < HIDDEN
        known = (words.data != UNKNOWN) & (words.data != PADDING)
        if not bool((chosen & known).any()):  # a loss needs something to count
            chosen = known
        hidden = chosen & known
        typed = [
            (row, at) for row, one in enumerate(examples) for at, word in enumerate(one.words) if word == HERE
        ]
        if typed:
            hidden = torch.zeros_like(hidden).index_put(tuple(torch.tensor(typed).T), torch.tensor(True))
        streams = {WORDS: Stream(words.data.masked_fill(hidden, BLANK), words.keep)}
        if CHARACTERS in batch.streams:
            letters = batch.streams[CHARACTERS]
            streams[CHARACTERS] = Stream(letters.data.masked_fill(hidden[..., None], PADDING), letters.keep)
        return Batch(streams, {TARGETS: Stream(words.data, hidden)})
