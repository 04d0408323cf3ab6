"""Hidden words: guess words of a plain text from those around them, as pre-training before `tag`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch

from regard.errors import BadValue
from regard_workbench.tasks.answers import HiddenTokens
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS, PERPLEXITY, Answering, Metric, State
from regard_workbench.tasks.parts.batch import TARGETS, Batch, Stream
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.tag import Sentence, Tag
from regard_workbench.tasks.text.vocabulary import BLANK, PADDING, SPECIAL, UNKNOWN
from regard_workbench.tasks.text.word_forms import CHARACTERS, WORDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELD_OUT = 50  # every 50th sentence of the text is for validation, the one after it for the test
HIDDEN = 0.15
SPELLED = 0.3  # of the hidden words, the share whose characters are still read
HERE = SPECIAL[BLANK]  # what a user types for a hidden word


@task("hidden-words")
class HiddenWords(Tag):
    """Guesses hidden words of sentences without tags, so that `tag` can begin with what words and letters mean.

    A hidden word is read as an unknown one, mostly without its characters; its shape stays. So a model learns to tell
    from context, shape and spelling what sort of word an unknown one is, as `tag` needs it for new names. The words and
    characters known are those of `tag` with the same data and text, so that a run of it starts from this one's weights:

        regard train "hidden-words(text='wiki.txt')" --data wnut17 --model tagger --out runs/words
        regard train "tag(text='wiki.txt')" --data wnut17 --init-from runs/words

    Args:
        data: the tagged files that follow, in CoNLL columns; their training sentences are read, too
        text: files of plain text, words between spaces
        lower: words are looked up in lower case; capitals are seen by models that read characters
        min_count: how often a word must occur in the tagged training sentences to be known
        word_length: characters of a word that are read: of a longer one its beginning and its end
        shapes: whether the shape of a word (capitals, small letters, digits) is given, too
        parts: number of vectors for hashed character n-grams, added to those of words; 0 for none
        encoding: how the files are encoded
        seed: as in `tag`
    """

    metric: ClassVar[Metric] = PERPLEXITY
    pretrained_vocabulary: ClassVar[bool] = False
    pictured = False
    tried = ("--text", "minister <mask> said that the vote was fair .")
    recipe = Recipe(model="tagger", steps=4000, batch_size=64, lr=2e-3, warmup=200)

    def __init__(
        self,
        data: str | None = None,
        text: str | None = None,
        lower: bool = True,
        min_count: int = 1,
        word_length: int = 20,
        shapes: bool = True,
        parts: int = 0,
        encoding: str = "utf-8",
        seed: int = 0,
    ) -> None:
        super().__init__(
            data,
            text=text,
            lower=lower,
            min_count=min_count,
            hide_rare=0.0,
            word_length=word_length,
            shapes=shapes,
            parts=parts,
            encoding=encoding,
            seed=seed,
        )

    def answers(self) -> list[HiddenTokens]:  # type: ignore[override]
        """The hidden words."""
        self._known()
        return [HiddenTokens(len(self.forms.words), UNKNOWN)]

    def problems(self) -> list[Problem]:
        """From all that is known of words, or from words alone for models that read one stream."""
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
        return {"hidden": f"{HIDDEN:.0%} of the words; of these, {1 - SPELLED:.0%} with their characters"}

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
        return self.forms.words.pieces(tokens)

    def draw(self, predicted: object, example: Sentence, looked: Looked | None) -> Figure | None:
        """Nothing: guesses are words, not entities."""
        return None

    def collate(self, examples: Sequence[Sentence], generator: torch.Generator) -> Batch:
        """Sentences with hidden words: those for which a user typed a blank or, without any, some at random.

        The hidden words are the targets; words unknown to the vocabulary are not asked for.
        """
        batch = super().collate(examples, generator)
        given, parts = batch.streams[WORDS], self.forms.parts > 0
        words = given.data[..., 0] if parts else given.data
        chosen = torch.rand(words.shape, generator=generator) < HIDDEN
        known = (words != UNKNOWN) & (words != PADDING)
        if not bool((chosen & known).any()):  # a loss needs something to count
            chosen = known
        hidden = chosen & known
        blank = hidden & (torch.rand(hidden.shape, generator=generator) >= SPELLED)
        typed = [(row, at) for row, one in enumerate(examples) for at, word in enumerate(one.words) if word == HERE]
        if typed:
            hidden = torch.zeros_like(hidden).index_put(tuple(torch.tensor(typed).T), torch.tensor(True))
            blank = hidden
        read = words.masked_fill(hidden, UNKNOWN)
        if parts:
            read = torch.cat([read[..., None], given.data[..., 1:].masked_fill(blank[..., None], 0)], -1)
        streams = {**batch.streams, WORDS: Stream(read, given.keep)}
        if CHARACTERS in batch.streams:
            letters = batch.streams[CHARACTERS]
            streams[CHARACTERS] = Stream(letters.data.masked_fill(blank[..., None], PADDING), letters.keep)
        return Batch(streams, {TARGETS: Stream(words, hidden)})
