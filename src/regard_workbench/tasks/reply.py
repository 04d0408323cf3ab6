"""Dialogue: write the next turn, given those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.support.arguments import whole_number
from regard.support.declared import at_least, option
from regard_workbench.tasks.answers import Answer, NextToken, Writes
from regard_workbench.tasks.formats.exchanges import Exchange, read_exchanges
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.formats.woz import joined, typed_turns
from regard_workbench.tasks.measures.bleu import Bleu
from regard_workbench.tasks.measures.distinct import distinct
from regard_workbench.tasks.measures.metrics import LOSS, PERPLEXITY, Answered, Answering, Counts, Metric, State
from regard_workbench.tasks.measures.yardsticks import Nearest, most_frequent
from regard_workbench.tasks.parts.batch import INPUTS, MADE_FROM, Batch
from regard_workbench.tasks.parts.data import Kept
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.rows_from_files import RowsFromFiles
from regard_workbench.tasks.parts.shared_options import MIN_COUNT
from regard_workbench.tasks.parts.shown import Shown, Understood, unknown_notes
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.parallel import REFERENCES, KnownSides, Pair, PairPresenter, ParallelTask, Written
from regard_workbench.tasks.text.vocabulary import BLANK, END, PADDING, START, UNKNOWN, Vocabulary

USER, SYSTEM = START, BLANK  # the marks before turns; no word has these ids
NAMES = {USER: "[user]", SYSTEM: "[system]"}
PROMPTS = "prompts"  # the note of a batch with what a model that continues is given
BLEU = Bleu("none")  # texts are split into words already


@dataclass(frozen=True)
class KnownTurns(KnownSides):
    """One vocabulary for both sides, the most words of each, and how many of the last turns are read."""

    turns: int

    def ids(self, context: Sequence[str]) -> list[int]:
        """The last turns, cut at their beginning."""
        return _ids(self.source_vocabulary, context[-self.turns :])[-self.max_source :]

    def text(self, exchange: Exchange) -> str:
        """The last turns as one text."""
        return " ".join(exchange.context[-self.turns :])


class ReplyJudge(Judge):
    """Sets yardsticks beside a model. A reply is judged as a whole: nothing is completed."""

    def protocol(self, task: Reply) -> dict[str, Any]:
        """What is compared, and the signature of BLEU."""
        words = "lower case, words and punctuation apart; one reference"
        return {"bleu": f"{BLEU.signature()}; {words}", "perplexity": "of the words of the reply and its end"}

    def examine(
        self, task: Reply, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """BLEU of the yardsticks on the exchanges that a model writes for."""
        return [
            (Counts(f"{name}_bleu", over=Writes.units, total="texts", made=BLEU.score), counts)
            for name, counts in task.yardsticks(split).items()
        ]


class ReplyPresenter(PairPresenter):
    """Shows who says what, and answers by the reply alone."""

    def conversation(self, task: Any, turns: Sequence[str]) -> dict[str, str]:
        return {"text": joined(turns)}

    def understood(self, task: Any, given: Mapping[str, str], example: Pair) -> Understood:
        """Which words are unknown, and whether the beginning was cut off."""
        in_vocabulary = [number != UNKNOWN for number in example.source]
        return Understood(task.input_pieces(example), in_vocabulary, unknown_notes(in_vocabulary))

    def show(self, task: Any, example: Pair, batch: Batch) -> Shown:
        """The turns and the reply in words; as one text where the reply continues it."""
        if not task.continues:
            return super().show(task, example, batch)
        pieces = task.input_pieces(Pair(batch.inputs[0].tolist()))
        return Shown(f"“{' '.join(pieces)}”", pieces)

    def continued(self, task: Any, text: str, output: str) -> str:
        """The reply alone."""
        return output


@task("reply")
class Reply(ParallelTask, RowsFromFiles):
    """Writes the next turn of a dialogue; without files, generated dialogues about restaurants.

    Reads the last turns and writes what the system said next: models with a decoder (transformer, seq2seq) as a text of
    its own, models that continue (decoder) after the turns. Texts are lower case, words and punctuation apart. Beside a
    model's BLEU `regard evaluate` prints that of two yardsticks: the most frequent reply of the training data, and the
    reply to the training context that is most alike by TF-IDF. `regard chat RUN` talks with a run.
    """

    judge = ReplyJudge.by(Counts("bleu", over=Writes.units, total="texts"))  # `metrics` says how it is measured
    presenter = ReplyPresenter()
    fitted = Kept(KnownTurns)
    answers_compare = True  # BLEU and perplexity are of the same replies
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

    data: Data | None = option("lines `turn TAB … TAB reply` or WOZ 2.0 JSON; a file or a folder", default=None)
    turns: int = option("how many of the last turns are read", at_least(1), default=8)
    min_count: int = MIN_COUNT
    max_length: int = option(
        "longest context and longest reply in words; of longer contexts the end is read", at_least(2), default=100
    )
    bleu_examples: int = option("for how many validation contexts the model is made to write", at_least(1), default=100)
    seed: int = option(
        "which exchanges are kept for validation and test where there are no files for them", whole_number, default=0
    )

    def read(self) -> dict[str, list[Exchange]]:
        typed_encoding = self.typed(encoding="latin-1")
        return read_exchanges(self.data, self.encoding, self.seed, self.whole, labelled=False, other=typed_encoding)

    def fit(self) -> KnownTurns:
        """One vocabulary for both sides, from the training exchanges alone."""
        texts = [text for exchange in self.training_rows for text in (*exchange.context[-2:], exchange.reply)]
        word_vocabulary = vocabulary.build("word", texts, None, self.min_count)
        every = [exchange for exchanges in self.rows.values() for exchange in exchanges]
        context = max(len(_ids(word_vocabulary, exchange.context[-self.turns :])) for exchange in every)
        reply = max(len(exchange.reply.split()) for exchange in every)
        return KnownTurns(
            word_vocabulary, word_vocabulary, min(self.max_length, context), min(self.max_length, 1 + reply), self.turns
        )

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
            return None if written is None else BLEU.counts(written.texts, written.references)

        def texts(answered: Answered) -> list[str] | None:
            written = answered.once(self.written)
            return None if written is None else written.texts

        bleu = Counts("bleu", over=Writes.units, total="texts", look=ngrams, made=BLEU.score)
        return (LOSS, PERPLEXITY, bleu, distinct(1, texts), distinct(2, texts))

    def examples(self, split: str) -> Sequence[Pair]:
        """The exchanges of a split; of the validation set some are written for, of the test set all."""
        sides, exchanges = self.fitted, self.rows_of(split)
        every = max(1, len(exchanges) // self.bleu_examples)
        pairs = []
        for number, exchange in enumerate(exchanges):
            written = split == "test" or (split == "validation" and number % every == 0)
            target = sides.target_vocabulary.encode(exchange.reply)
            pairs.append(self.pair(sides.ids(exchange.context), target, exchange.reply if written else None))
        return pairs

    def collate(self, examples: Sequence[Pair], generator: torch.Generator) -> Batch:
        """Both sides padded at their ends; one after the other for a model that continues."""
        read = tuple((tuple(example.source), tuple(example.target or ())) for example in examples)
        if not self.continues:
            batch = super().collate(examples, generator)
            return replace(batch, notes={**batch.notes, MADE_FROM: read})
        prompts = tuple([*example.source, SYSTEM] for example in examples)
        rows = [[*prompt, *(example.target or ())] for prompt, example in zip(prompts, examples, strict=True)]
        if any(example.target is None for example in examples):
            return Batch.of(*padded(rows, PADDING))
        # No position sees a later one, so that padding at the end needs no mask.
        inputs, _ = padded([row[:-1] for row in rows], PADDING)
        targets, _ = padded([row[1:] for row in rows], PADDING)
        first = torch.tensor([len(prompt) - 1 for prompt in prompts])
        last = torch.tensor([len(row) - 1 for row in rows])
        place = torch.arange(inputs.shape[1])
        reply = (place >= first[:, None]) & (place < last[:, None])
        references = tuple(example.reference for example in examples)
        notes = {REFERENCES: references, PROMPTS: prompts, MADE_FROM: read}
        return Batch.of(inputs, None, targets, reply, **notes)

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

    def yardsticks(self, split: str) -> dict[str, dict[str, float]]:
        """The counts that make BLEU, for the most frequent reply and for that of the nearest context."""
        sides, train = self.fitted, self.training_rows
        nearest = Nearest([sides.text(exchange) for exchange in train])
        frequent = most_frequent(exchange.reply for exchange in train)
        written = [
            exchange
            for exchange, example in zip(self.rows_of(split), self.examined_examples(split), strict=False)
            if example.reference is not None
        ]
        replies = [train[nearest.to(sides.text(exchange))].reply for exchange in written]
        references = [exchange.reply for exchange in written]
        return {
            "frequent": BLEU.counts([frequent] * len(written), references),
            "nearest": BLEU.counts(replies, references),
        }

    def encode(self, text: str) -> Pair:
        """Turns separated by "|", the user last."""
        return Pair(self.fitted.ids(typed_turns(text)))

    def input_pieces(self, example: Pair) -> list[str]:
        """The words of the turns, and who speaks."""
        pieces = super().input_pieces(example)
        return [NAMES.get(number, piece) for number, piece in zip(example.source, pieces, strict=True)]

    def unanswered(self, example: Pair) -> Pair:
        """The turns alone."""
        return Pair(example.source)


def _ids(known: Vocabulary, turns: Sequence[str]) -> list[int]:
    """Turns, each after a mark that says who speaks; the user spoke last."""
    ids: list[int] = []
    for place, text in enumerate(turns):
        ids += [USER if (len(turns) - place) % 2 else SYSTEM, *known.encode(text)]
    return ids
