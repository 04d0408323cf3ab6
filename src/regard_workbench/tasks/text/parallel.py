"""What tasks share that turn one text into another: pairs, their batches, and measures of what a model writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.support.arguments import whole_number
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
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.shown import Shown, Understood, texts, understood
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.tasks.parts.task import Task
from regard_workbench.tasks.text.split_words import trimmed
from regard_workbench.tasks.text.vocabulary import END, PADDING, START, Vocabulary, restored


class Pair(NamedTuple):
    """A source, its target and the target as text; without a reference text, nothing is generated for it.

    `words`: both sides by the words of their vocabularies, where they are cut into pieces anew in each batch.
    """

    source: Sequence[int]
    target: Sequence[int] | None = None
    reference: str | None = None
    words: tuple[Sequence[int], Sequence[int]] | None = None


REFERENCES = "references"  # the note of a batch that holds the texts a model should write


class Written(NamedTuple):
    """The texts that a model wrote for the examples with a reference, and the references."""

    texts: list[str]
    references: list[str]

    @property
    def exact(self) -> int:
        """The number of exact matches."""
        return sum(text == reference for text, reference in zip(self.texts, self.references, strict=True))


class ParallelTask(Task):
    """The base of tasks that turn texts into texts. A subclass sets the two vocabularies and the greatest lengths."""

    metric: ClassVar[Metric] = Mean("exact_match", unit=SHARE, over=Writes.units)  # `metrics` says how it is measured
    takes = ("text",)

    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    max_source: int
    max_target: int  # the end included
    length_penalty: float = 1.0  # of beam search
    multiple: int = 1  # batches are padded to a multiple of this

    def streams(self) -> dict[str, Tokens]:
        """The source."""
        return {INPUTS: Tokens(len(self.source_vocabulary), PADDING, self.max_source)}

    def answers(self) -> list[Writes]:
        """The target."""
        return [Writes(len(self.target_vocabulary), self.max_target, START, END, self.length_penalty)]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss, accuracy and perplexity of tokens, and how often the text is right that the model writes by itself."""

        def exact(answered: Answered) -> tuple[float, float] | None:
            written = answered.once(self.written)
            return None if written is None else (float(written.exact), float(len(written.texts)))

        return (LOSS, ACCURACY, PERPLEXITY, Mean("exact_match", unit=SHARE, over=Writes.units, look=exact))

    def completed(
        self,
        model: Answering,
        split: str = "test",
        *,
        batch_size: int = 32,
        most: int = completion.MOST,
        device: torch.device | str = "cpu",
    ) -> list[tuple[Metric, State]]:
        """How well a model completes the texts of a split, given the source: see `measures.completion`."""
        chosen = completion.evenly(self.examples(split), most)
        groups = [chosen[begin : begin + batch_size] for begin in range(0, len(chosen), batch_size)]
        batches = [completion.second_halves(self.collate(group, torch.Generator())) for group in groups]
        return completion.examine(
            model, [batch for batch in batches if batch is not None], completion.REWRITTEN, device
        )

    def protocol(self) -> dict[str, Any]:
        """How completions are judged."""
        return {"completion": f"the source is given, too; {completion.PROTOCOL}"}

    def written(self, answered: Answered) -> Written | None:
        """What a model writes where there is a reference; None where a batch has none."""
        references = answered.batch.notes.get(REFERENCES, ())
        rows = [row for row, text in enumerate(references) if text is not None]
        if not rows:
            return None
        hypotheses = answered.model.generate(answered.batch.rows(rows))
        return Written(
            [self.decode(best[0].tokens) if best else "" for best in hypotheses], [references[row] for row in rows]
        )

    def pair(self, source: Sequence[int], target: Sequence[int], reference: str | None) -> Pair:
        """An example, truncated to the maximal lengths."""
        return Pair(source[: self.max_source], [*target[: self.max_target - 1], END], reference)

    def length(self, example: Pair) -> int:
        """The longer of the two sides."""
        return max(len(example.source), len(example.target or ()))

    def collate(self, examples: Sequence[Pair], generator: torch.Generator) -> Batch:
        """Both sides padded at their ends; without targets when an example has none."""
        sources = [example.source for example in examples]
        inputs, keep = padded(sources, PADDING, self.multiple, self.max_source)
        target_ids = [example.target for example in examples if example.target is not None]
        targets: Tensor | None = None
        target_keep: Tensor | None = None
        if target_ids and len(target_ids) == len(examples):
            targets, target_keep = padded(target_ids, PADDING, self.multiple, self.max_target)
        references = tuple(example.reference for example in examples)
        return Batch.of(inputs, keep, targets, target_keep, references=references)

    def parse(self, given: Mapping[str, str]) -> Pair:
        """The source alone."""
        return self.encode(given["text"]) if set(given) == {"text"} else super().parse(given)

    def understood(self, given: Mapping[str, str], example: Pair) -> Understood:
        """Which pieces of the source are unknown."""
        return understood(self.source_vocabulary, example.source, trimmed(given["text"]), "first")

    def show(self, example: Pair, batch: Batch) -> Shown:
        """Source and target in pieces."""
        target = [] if batch.targets is None else self.output_pieces(batch.targets[0].tolist())
        return texts(self.input_pieces(example), target)

    def encode(self, text: str) -> Pair:
        """The source alone, for a text that was typed."""
        text = trimmed(text)
        source = self.source_vocabulary.encode(text)
        if not source:
            raise BadValue("--text: expected some text, got none.")
        if len(source) > self.max_source:
            raise BadValue(
                f"--text: expected at most {self.max_source} {self.source_vocabulary.level} pieces, got {len(source)}. "
                "Shorten it."
            )
        return Pair(source)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text that a model wrote."""
        return self.target_vocabulary.decode(tokens)

    def input_pieces(self, example: Pair) -> list[str]:
        """The token text at each source position."""
        return self.source_vocabulary.pieces(example.source)

    def output_pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each output token."""
        return self.target_vocabulary.pieces(tokens)

    def state(self) -> dict[str, Any]:
        """Vocabularies and lengths; one vocabulary where both sides share it."""
        source = self.source_vocabulary.state()
        shared = self.source_vocabulary is self.target_vocabulary
        return {
            "source_vocabulary": source,
            "target_vocabulary": None if shared else self.target_vocabulary.state(),
            "max_source": self.max_source,
            "max_target": self.max_target,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore vocabularies and lengths."""
        self.source_vocabulary = restored(state["source_vocabulary"])
        theirs = state["target_vocabulary"]
        self.target_vocabulary = self.source_vocabulary if theirs is None else restored(theirs)
        self.max_source, self.max_target = (
            whole_number("max_source", state["max_source"], 1),
            whole_number("max_target", state["max_target"], 1),
        )
