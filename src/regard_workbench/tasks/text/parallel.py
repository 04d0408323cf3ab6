"""What tasks share that turn one text into another: pairs, their batches, and measures of what a model writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from regard.errors import BadValue
from regard_workbench.tasks.answers import Writes
from regard_workbench.tasks.measures import completion
from regard_workbench.tasks.measures.metrics import (
    ACCURACY,
    LOSS,
    PERPLEXITY,
    SHARE,
    Answered,
    Answering,
    Mean,
    Metric,
    State,
)
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.data import Fitted, Kept
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.presenter import TypedText
from regard_workbench.tasks.parts.shown import Shown, Understood, texts, understood
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.tasks.parts.task import Task
from regard_workbench.tasks.text.split_words import trimmed
from regard_workbench.tasks.text.vocabulary import END, PADDING, START, Vocabulary

COMPLETION = f"the source is given, too; {completion.PROTOCOL}"
REFERENCES = "references"  # the note of a batch that holds the texts a model should write


class Pair(NamedTuple):
    """A source, its target and the target as text; without a reference text, nothing is generated for it.

    `words`: both sides by the words of their vocabularies, where they are cut into pieces anew in each batch.
    """

    source: Sequence[int]
    target: Sequence[int] | None = None
    reference: str | None = None
    words: tuple[Sequence[int], Sequence[int]] | None = None


class Written(NamedTuple):
    """The texts that a model wrote for the examples with a reference, and the references."""

    texts: list[str]
    references: list[str]

    @property
    def exact(self) -> int:
        """The number of exact matches."""
        return sum(text == reference for text, reference in zip(self.texts, self.references, strict=True))


@dataclass(frozen=True)
class KnownSides(Fitted):
    """The vocabularies of source and target, which may be one, and the most pieces of each."""

    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    max_source: int
    max_target: int  # the end included

    def state(self) -> dict[str, Any]:
        shared = self.source_vocabulary is self.target_vocabulary
        return super().state() | ({"target_vocabulary": None} if shared else {})

    @classmethod
    def restored(cls, state: Mapping[str, Any], task: Any) -> Self:
        if state["target_vocabulary"] is not None:
            return super().restored(state, task)
        sides = super().restored({**state, "target_vocabulary": state["source_vocabulary"]}, task)
        return replace(sides, target_vocabulary=sides.source_vocabulary)


class CompletionJudge(Judge):
    """Measures how well a model completes the texts of a split, given the source: see `measures.completion`."""

    def completed(
        self,
        task: ParallelTask,
        model: Answering,
        split: str,
        *,
        batch_size: int,
        most: int,
        device: torch.device | str,
    ) -> list[tuple[Metric, State]]:
        chosen = completion.evenly(task.examples(split), most)
        groups = [chosen[begin : begin + batch_size] for begin in range(0, len(chosen), batch_size)]
        batches = [completion.second_halves(task.collate(group, torch.Generator())) for group in groups]
        return completion.examine(
            model, [batch for batch in batches if batch is not None], completion.REWRITTEN, device
        )


class PairPresenter(TypedText["ParallelTask"]):
    """Shows source and target in pieces."""

    def understood(self, task: ParallelTask, given: Mapping[str, str], example: Pair) -> Understood:
        """Which pieces of the source are unknown."""
        return understood(task.fitted.source_vocabulary, example.source, trimmed(given["text"]), "first")

    def show(self, task: ParallelTask, example: Pair, batch: Batch) -> Shown:
        """Source and target in pieces."""
        target = [] if batch.targets is None else task.output_pieces(batch.targets[0].tolist())
        return texts(task.input_pieces(example), target)

    def decode(self, task: ParallelTask, tokens: Sequence[int]) -> str:
        """The text that a model wrote."""
        return task.fitted.target_vocabulary.decode(tokens)

    def output_pieces(self, task: ParallelTask, tokens: Sequence[int]) -> list[str]:
        """The text of each output token."""
        return task.fitted.target_vocabulary.pieces(tokens)


class ParallelTask(Task):
    """The base of tasks that turn texts into texts. A subclass defines `examples`, and `fit` for both sides."""

    judge = CompletionJudge.by(Mean("exact_match", unit=SHARE, over=Writes.units), completion=COMPLETION)
    presenter = PairPresenter()
    fitted = Kept(KnownSides)
    length_penalty = 1.0  # of beam search
    pad_to_multiple_of = 1

    def streams(self) -> dict[str, Tokens]:
        """The source."""
        return {INPUTS: Tokens(len(self.fitted.source_vocabulary), PADDING, self.fitted.max_source)}

    @property
    def target_vocabulary(self) -> Vocabulary:
        """How a target that somebody types is read."""
        return self.fitted.target_vocabulary

    def answers(self) -> list[Writes]:
        """The target."""
        sides = self.fitted
        return [Writes(len(sides.target_vocabulary), sides.max_target, START, END, self.length_penalty)]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss, accuracy and perplexity of tokens, and how often the text is right that the model writes by itself."""

        def exact(answered: Answered) -> tuple[float, float] | None:
            written = answered.once(self.written)
            return None if written is None else (float(written.exact), float(len(written.texts)))

        return (LOSS, ACCURACY, PERPLEXITY, Mean("exact_match", unit=SHARE, over=Writes.units, look=exact))

    def written(self, answered: Answered) -> Written | None:
        """What a model writes where there is a reference; None where a batch has none."""
        references = answered.batch.notes.get(REFERENCES, ())
        rows = [row for row, text in enumerate(references) if text is not None]
        if not rows:
            return None
        hypotheses = answered.model.generate(answered.batch.rows(rows))
        texts = [self.decode(best[0].tokens) if best else "" for best in hypotheses]
        return Written(texts, [references[row] for row in rows])

    def pair(self, source: Sequence[int], target: Sequence[int], reference: str | None) -> Pair:
        """An example, truncated to the maximal lengths."""
        return Pair(source[: self.fitted.max_source], [*target[: self.fitted.max_target - 1], END], reference)

    def length(self, example: Pair) -> int:
        """The longer of the two sides."""
        return max(len(example.source), len(example.target or ()))

    def collate(self, examples: Sequence[Pair], generator: torch.Generator) -> Batch:
        """Both sides padded at their ends; without targets when an example has none."""
        multiple, sides = self.pad_to_multiple_of, self.fitted
        inputs, keep = padded([example.source for example in examples], PADDING, multiple, sides.max_source)
        target_ids = [example.target for example in examples if example.target is not None]
        targets: Tensor | None = None
        target_keep: Tensor | None = None
        if target_ids and len(target_ids) == len(examples):
            targets, target_keep = padded(target_ids, PADDING, multiple, sides.max_target)
        references = tuple(example.reference for example in examples)
        return Batch.of(inputs, keep, targets, target_keep, references=references)

    def encode(self, text: str) -> Pair:
        """The source alone, for a text that was typed."""
        source_vocabulary, most = self.fitted.source_vocabulary, self.fitted.max_source
        source = source_vocabulary.encode(trimmed(text))
        if not source:
            raise BadValue("--text: expected some text, got none.")
        if len(source) > most:
            raise BadValue(
                f"--text: expected at most {most} {source_vocabulary.level} pieces, got {len(source)}. Shorten it."
            )
        return Pair(source)

    def input_pieces(self, example: Pair) -> list[str]:
        """The token text at each source position."""
        return self.fitted.source_vocabulary.pieces(example.source)
