"""Hidden words: guess words of a plain text from those around them, as pre-training before `tag`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard.support.declared import at_least, option
from regard_workbench.tasks.answers import HiddenTokens
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.measures.metrics import ACCURACY, PERPLEXITY
from regard_workbench.tasks.parts.batch import TARGETS, Batch, Stream
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.tag import Sentence, SentencePresenter, Tag
from regard_workbench.tasks.text.vocabulary import BLANK, PADDING, SPECIAL, UNKNOWN
from regard_workbench.tasks.text.word_forms import CHARACTERS, WORDS

HELD_OUT = 50  # every 50th sentence of the text is for validation, the one after it for the test
HIDDEN = 0.15
SPELLED = 0.3  # of the hidden words, the share whose characters are still read
HERE = SPECIAL[BLANK]  # what a user types for a hidden word


class GuessPresenter(SentencePresenter):
    """Shows guesses as words, of which no figure is drawn."""

    def output_pieces(self, task: Tag, tokens: Sequence[int]) -> list[str]:
        """Words."""
        return task.forms.words.pieces(tokens)

    def draw(self, task: Tag, predicted: object, example: Sentence, looked: Looked | None) -> None:
        """Nothing: guesses are words, not entities."""


@task("hidden-words")
class HiddenWords(Tag):
    """Guesses hidden words of sentences without tags, so that `tag` can begin with what words and letters mean.

    A hidden word is read as an unknown one, mostly without its characters; its shape stays. So a model learns to tell
    from context, shape and spelling what sort of word an unknown one is, as `tag` needs it for new names. The words and
    characters known are those of `tag` with the same data and text, so that a run of it starts from this one's weights:

        regard train "hidden-words(text='wiki.txt')" --data wnut17 --model tagger --out runs/words
        regard train "tag(text='wiki.txt')" --data wnut17 --init-from runs/words
    """

    judge = Judge.by(
        PERPLEXITY, ACCURACY, hidden=f"{HIDDEN:.0%} of the words; of these, {1 - SPELLED:.0%} with their characters"
    )
    presenter = GuessPresenter()
    pretrained_vocabulary = False
    pictured = False
    tried = ("--text", "minister <mask> said that the vote was fair .")
    recipe = Recipe(model="tagger", steps=4000, batch_size=64, lr=2e-3, warmup=200)

    data: str | None = option(
        "the tagged files that follow, in CoNLL columns; their training sentences are read, too", default=None
    )
    text: str | None = option("files of plain text, words between spaces", default=None)
    min_count: int = option(
        "how often a word must occur in the tagged training sentences to be known", at_least(1), default=1
    )
    seed: int = option("as in `tag`", whole_number, default=0)
    # Not asked for: tags are not learned, nor what only their words are read by.
    scheme, hide_rare, exchange, vectors, clues, outside, whole = None, 0.0, 0.0, 0, 0, 0.0, False

    def answers(self) -> list[HiddenTokens]:
        """The hidden words."""
        return [HiddenTokens(len(self.forms.words), UNKNOWN)]

    def examples(self, split: str) -> Sequence[Sentence]:
        """Every 50th sentence is for validation, the one after it for the test; without a text, the tagged ones."""
        place = {"validation": 0, "test": 1}.get(checked_split(split))
        if not self.untagged:
            return [Sentence(row.words) for row in self.rows_of(split)]
        if place is None:
            sentences = [words for number, words in enumerate(self.untagged) if number % HELD_OUT > 1]
            sentences += [row.words for row in self.rows_of("train")]
        else:
            sentences = self.untagged[place::HELD_OUT]
        if not sentences:
            raise BadValue(f"text: {self.text} has too few lines to take {split} from them.")
        return [Sentence(words) for words in sentences]

    def encode(self, text: str) -> Sentence:
        """A sentence in which blanks stand for the words to guess."""
        sentence = super().encode(text)
        if HERE not in sentence.words:
            raise BadValue(f"--text: this run guesses hidden words. Write {HERE} where one is hidden.")
        return sentence

    def collate(self, examples: Sequence[Sentence], generator: torch.Generator) -> Batch:
        """Sentences with hidden words: those for which a user typed a blank or, without any, some at random.

        The hidden words are the targets; words unknown to the vocabulary are not asked for.
        """
        batch = super().collate(examples, generator)
        stream, has_parts = batch.streams[WORDS], self.forms.parts > 0
        words = stream.data[..., 0] if has_parts else stream.data
        chosen = torch.rand(words.shape, generator=generator) < HIDDEN
        in_vocabulary = (words != UNKNOWN) & (words != PADDING)
        if not bool((chosen & in_vocabulary).any()):  # a loss needs something to count
            chosen = in_vocabulary
        hidden = chosen & in_vocabulary
        blank = hidden & (torch.rand(hidden.shape, generator=generator) >= SPELLED)
        typed = [
            (row, at) for row, example in enumerate(examples) for at, word in enumerate(example.words) if word == HERE
        ]
        if typed:
            hidden = torch.zeros_like(hidden).index_put(tuple(torch.tensor(typed).T), torch.tensor(True))
            blank = hidden
        read = words.masked_fill(hidden, UNKNOWN)
        if has_parts:
            read = torch.cat([read[..., None], stream.data[..., 1:].masked_fill(blank[..., None], 0)], -1)
        streams = {**batch.streams, WORDS: Stream(read, stream.keep)}
        if CHARACTERS in batch.streams:
            letters = batch.streams[CHARACTERS]
            streams[CHARACTERS] = Stream(letters.data.masked_fill(blank[..., None], PADDING), letters.keep)
        return Batch(streams, {TARGETS: Stream(words, hidden)})
