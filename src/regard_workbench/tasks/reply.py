"""Dialogue: write the next turn, given those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard_workbench.tasks.answers import Answer, NextToken, Writes
from regard_workbench.tasks.formats.exchanges import Exchange, read_exchanges
from regard_workbench.tasks.formats.reading import Data, checked_encoding
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.formats.woz import joined, typed_turns
from regard_workbench.tasks.measures.bleu import Bleu
from regard_workbench.tasks.measures.distinct import distinct
from regard_workbench.tasks.measures.metrics import LOSS, PERPLEXITY, Answered, Answering, Counts, Metric, State
from regard_workbench.tasks.measures.yardsticks import Nearest, most_frequent
from regard_workbench.tasks.parts.batch import INPUTS, MADE_FROM, Batch
from regard_workbench.tasks.parts.data import Kept
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shown import Shown, Understood, unknown_notes
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.parallel import REFERENCES, KnownSides, Pair, ParallelTask, Written
from regard_workbench.tasks.text.vocabulary import BLANK, END, PADDING, START, UNKNOWN, Vocabulary

USER, SYSTEM = START, BLANK  # the marks before turns; no word has these ids
NAMES = {USER: "[user]", SYSTEM: "[system]"}
PROMPTS = "prompts"  # the note of a batch with what a model that continues is given


@dataclass(frozen=True)
class KnownTurns(KnownSides):
    """One vocabulary for both sides, and how many of the last turns are read."""

    turns: int


@task("reply")
class Reply(ParallelTask):
    """Writes the next turn of a dialogue; without files, generated dialogues about restaurants.

    Reads the last turns and writes what the system said next: models with a decoder (transformer, seq2seq) as a text of
    its own, models that continue (decoder) after the turns. Texts are lower case, words and punctuation apart. Beside a
    model's BLEU `regard evaluate` prints that of two yardsticks: the most frequent reply of the training data, and the
    reply to the training context that is most alike by TF-IDF. `regard chat RUN` talks with a run.

    Args:
        data: lines `turn TAB … TAB reply` or WOZ 2.0 JSON; a file or a folder
        turns: how many of the last turns are read
        min_count: how often a word must occur in training to be known
        max_length: longest context and longest reply in words; of longer contexts the end is read
        bleu_examples: for how many validation contexts the model is made to write
        encoding: how the files are encoded
        seed: which exchanges are kept for validation and test where there are no files for them
        whole: measure on all of a file, keep nothing of it for training; for a model trained on other data
    """

    fitted = Kept(KnownTurns)
    answers_compare = True  # BLEU and perplexity are of the same replies
    metric: ClassVar[Metric] = Counts("bleu", over=Writes.units, total="texts")  # `metrics` says how it is measured
    tried = ("--text", "i want thai food in the north | what price range are you looking for ? | cheap please")
    recipe = Recipe(
        model="transformer",
        steps=500,
        batch_size=32,
        lr=2e-3,
        warmup=50,
        models={
            "transformer": "transformer(layers=2, dim=64)",
            "seq2seq": "seq2seq(dim=64)",
            "decoder": "decoder(layers=2, dim=64)",
        },
        compared=("transformer", "seq2seq"),
        reaches={"bleu": 65.0},
    )

    def __init__(
        self,
        data: Data | None = None,
        turns: int = 8,
        min_count: int = 1,
        max_length: int = 100,
        bleu_examples: int = 100,
        encoding: str = "utf-8",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        self.data, self.whole = data, whole
        self.turns = whole_number("turns", turns, 1)
        self.min_count = whole_number("min_count", min_count, 1)
        self.limit = whole_number("max_length", max_length, 2)
        self.bleu_examples = whole_number("bleu_examples", bleu_examples, 1)
        self.encoding, self.seed = checked_encoding(encoding), whole_number("seed", seed)
        self.bleu = Bleu("none")  # texts are split into words already

    @cached_property
    def exchanges(self) -> dict[str, list[Exchange]]:
        """The exchanges of each split."""
        return read_exchanges(
            self.data, self.encoding, self.seed, self.whole, labelled=False, other=self.typed(encoding="latin-1")
        )

    def _train(self) -> list[Exchange]:
        return self.exchanges.get("train") or next(iter(self.exchanges.values()))

    def fit(self) -> KnownTurns:
        """One vocabulary for both sides, from the training exchanges alone."""
        train = self._train()
        texts = [text for exchange in train for text in (*exchange.context[-2:], exchange.reply)]
        known = vocabulary.build("word", texts, None, self.min_count)
        every = [exchange for exchanges in self.exchanges.values() for exchange in exchanges]
        longest = max(len(_source(known, exchange.context, self.turns)) for exchange in every)
        longest_reply = max(len(exchange.reply.split()) for exchange in every)
        return KnownTurns(known, known, min(self.limit, longest), min(self.limit, 1 + longest_reply), self.turns)

    def problems(self) -> list[Problem]:
        """The reply as a text of its own, or as the continuation of the turns."""
        sides = self.fitted
        count, longest = len(sides.source_vocabulary), sides.max_source + 1 + sides.max_target
        continued: Answer = NextToken(count, END)
        return [*super().problems(), Problem({INPUTS: Tokens(count, PADDING, longest)}, continued)]

    @property
    def continues(self) -> bool:
        """Whether the reply continues the input, instead of being a text of its own."""
        return isinstance(self.problem.answer, NextToken)

    def metrics(self) -> tuple[Metric, ...]:
        """Loss and perplexity of the reply's words; BLEU and variety of what the model writes by itself."""

        def ngrams(answered: Answered) -> dict[str, float] | None:
            written = answered.once(self.written)
            return None if written is None else self.bleu.counts(written.texts, written.references)

        def texts(answered: Answered) -> list[str] | None:
            written = answered.once(self.written)
            return None if written is None else written.texts

        bleu = Counts("bleu", over=Writes.units, total="texts", look=ngrams, made=self.bleu.score)
        return (LOSS, PERPLEXITY, bleu, distinct(1, texts), distinct(2, texts))

    def examples(self, split: str) -> Sequence[Pair]:
        """The exchanges of a split; of the validation set some are written for, of the test set all."""
        sides = self.fitted
        if checked_split(split) not in self.exchanges:
            raise BadValue(f"data: {self.data} has no file for {split}. It has: {', '.join(self.exchanges)}.")
        some = self.exchanges[split]
        every = max(1, len(some) // self.bleu_examples)
        found = []
        for number, one in enumerate(some):
            written = split == "test" or (split == "validation" and number % every == 0)
            source = _source(sides.source_vocabulary, one.context, sides.turns)[-sides.max_source :]
            target = sides.target_vocabulary.encode(one.reply)
            found.append(self.pair(source, target, one.reply if written else None))
        return found

    def collate(self, examples: Sequence[Pair], generator: torch.Generator) -> Batch:
        """Both sides padded at their ends; one after the other for a model that continues."""
        read = tuple((tuple(one.source), tuple(one.target or ())) for one in examples)
        if not self.continues:
            batch = super().collate(examples, generator)
            return replace(batch, notes={**batch.notes, MADE_FROM: read})
        prompts = tuple([*example.source, SYSTEM] for example in examples)
        rows = [[*prompt, *(one.target or ())] for prompt, one in zip(prompts, examples, strict=True)]
        if any(example.target is None for example in examples):
            return Batch.of(*padded(rows, PADDING))
        # No position sees a later one, so that padding at the end needs no mask.
        inputs, _ = padded([row[:-1] for row in rows], PADDING)
        targets, _ = padded([row[1:] for row in rows], PADDING)
        first = torch.tensor([len(prompt) - 1 for prompt in prompts])
        last = torch.tensor([len(row) - 1 for row in rows])
        place = torch.arange(inputs.shape[1])
        asked = (place >= first[:, None]) & (place < last[:, None])
        references = tuple(example.reference for example in examples)
        notes = {REFERENCES: references, PROMPTS: prompts, MADE_FROM: read}
        return Batch.of(inputs, None, targets, asked, **notes)

    def written(self, answered: Answered) -> Written | None:
        """What a model writes where there is a reference; a model that continues is given the turns alone."""
        if not self.continues:
            return super().written(answered)
        references, prompts = (answered.batch.notes.get(name, ()) for name in (REFERENCES, PROMPTS))
        rows = [row for row, text in enumerate(references) if text is not None]
        if not rows:
            return None
        texts = dict.fromkeys(rows, "")
        for length in sorted({len(prompts[row]) for row in rows}):  # prompts of one length are continued together
            group = [row for row in rows if len(prompts[row]) == length]
            batch = Batch.of(torch.tensor([prompts[row] for row in group], device=answered.batch.device))
            for row, best in zip(group, answered.model.generate(batch, max_length=self.fitted.max_target), strict=True):
                texts[row] = self.decode(best[0].tokens) if best else ""
        return Written([texts[row] for row in rows], [references[row] for row in rows])

    def completed(self, *arguments: Any, **options: Any) -> list[tuple[Metric, State]]:
        """Nothing: a reply is judged as a whole."""
        return []

    @torch.no_grad()
    def examine(
        self,
        model: Answering,
        split: str = "test",
        *,
        batch_size: int = 32,
        most: int = 1000,
        device: torch.device | str = "cpu",
    ) -> list[tuple[Metric, State]]:
        """BLEU of the yardsticks on the exchanges that a model writes for."""
        found: list[tuple[Metric, State]] = []
        for name, counts in self.yardsticks(split).items():
            found.append((Counts(f"{name}_bleu", over=Writes.units, total="texts", made=self.bleu.score), counts))
        return found

    def yardsticks(self, split: str) -> dict[str, dict[str, float]]:
        """The counts that make BLEU, for the most frequent reply and for that of the nearest context."""
        train = self._train()
        turns = self.fitted.turns
        nearest = Nearest([" ".join(one.context[-turns:]) for one in train])
        frequent = most_frequent(one.reply for one in train)
        examples = self.examined_examples(split)
        asked = [
            one
            for one, example in zip(self.exchanges[split][: len(examples)], examples, strict=True)
            if example.reference is not None
        ]
        references = [one.reply for one in asked]
        found = [train[nearest.to(" ".join(one.context[-turns:]))].reply for one in asked]
        return {
            "frequent": self.bleu.counts([frequent] * len(asked), references),
            "nearest": self.bleu.counts(found, references),
        }

    def protocol(self) -> dict[str, Any]:
        """What is compared, and the signature of BLEU."""
        words = "lower case, words and punctuation apart; one reference"
        return {"bleu": f"{self.bleu.signature()}; {words}", "perplexity": "of the words of the reply and its end"}

    def conversation(self, turns: Sequence[str]) -> dict[str, str]:
        """The turns of a chat, as `parse` reads them."""
        return {"text": joined(turns)}

    def encode(self, text: str) -> Pair:
        """Turns separated by "|", the user last."""
        sides = self.fitted
        return Pair(_source(sides.source_vocabulary, typed_turns(text), sides.turns)[-sides.max_source :])

    def understood(self, given: Mapping[str, str], example: Pair) -> Understood:
        """Which words are unknown, and whether the beginning was cut off."""
        known = [number != UNKNOWN for number in example.source]
        return Understood(self.input_pieces(example), known, unknown_notes(known))

    def input_pieces(self, example: Pair) -> list[str]:
        """The words of the turns, and who speaks."""
        pieces = self.fitted.source_vocabulary.pieces(example.source)
        return [NAMES.get(number, piece) for number, piece in zip(example.source, pieces, strict=True)]

    def unanswered(self, example: Pair) -> Pair:
        """The turns alone."""
        return Pair(example.source)

    def show(self, example: Pair, batch: Batch) -> Shown:
        """The turns and the reply in words; as one text where the reply continues it."""
        if not self.continues:
            return super().show(example, batch)
        pieces = self.input_pieces(Pair(batch.inputs[0].tolist()))
        return Shown(f"“{' '.join(pieces)}”", pieces)

    def continued(self, text: str, output: str) -> str:
        """The reply alone."""
        return output


def _source(known: Vocabulary, context: Sequence[str], turns: int) -> list[int]:
    """The last turns, each after a mark that says who speaks; the user spoke last."""
    ids: list[int] = []
    last = context[-turns:]
    for place, text in enumerate(last):
        ids += [USER if (len(last) - place) % 2 else SYSTEM, *known.encode(text)]
    return ids
