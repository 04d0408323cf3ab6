"""What tasks share that turn one text into another: pairs, their batches, and measures of what a model writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.core.arguments import whole_number
from regard.errors import BadValue
from regard.tasks.padding import padded
from regard.tasks.problem import Batch, Problem, Tokens
from regard.tasks.task import Answers, Sums, Task
from regard.tasks.vocabulary import END, PADDING, START, Vocabulary, restored


class Pair(NamedTuple):
    """A source, what is to be written for it, and that as text. Without a reference the model is not made to write."""

    source: Sequence[int]
    target: Sequence[int] | None = None
    reference: str | None = None


@dataclass(frozen=True)
class Written(Batch):
    """A batch with the texts that a model should write, for measures that compare texts."""

    references: tuple[str | None, ...] = ()

    def asking(self) -> tuple[Batch, list[str]]:
        """The questions that come with a reference, without their answers, and the references."""
        rows = [row for row, text in enumerate(self.references) if text is not None]
        index = torch.tensor(rows, device=self.inputs.device, dtype=torch.long)
        questions = Batch(
            inputs=self.inputs[index],
            keep=None if self.keep is None else self.keep[index],
            index=tuple(self.index[row] for row in rows) if self.index else (),
        )
        return questions, [text for text in self.references if text is not None]


class ParallelTask(Task):
    """The base of tasks of kind translate. A subclass sets the two vocabularies and the two greatest lengths."""

    metric = "exact_match"

    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    max_source: int
    max_target: int  # the end included

    def problems(self) -> list[Problem]:
        """One: write the target, given the source."""
        return [
            Problem(
                "translate",
                Tokens(len(self.source_vocabulary), PADDING),
                len(self.target_vocabulary),
                max_length=self.max_source,
                max_target=self.max_target,
                start=START,
                end=END,
            )
        ]

    def pair(self, source: Sequence[int], target: Sequence[int], reference: str | None) -> Pair:
        """An example, cut where it is longer than the longest."""
        return Pair(source[: self.max_source], [*target[: self.max_target - 1], END], reference)

    def length(self, example: Pair) -> int:
        """The longer of the two sides."""
        return max(len(example.source), len(example.target or ()))

    def collate(self, examples: Sequence[Pair], generator: torch.Generator) -> Written:
        """Both sides padded at their ends; without targets when an example has none."""
        inputs, keep = padded([example.source for example in examples], PADDING)
        given = [example.target for example in examples if example.target is not None]
        targets: Tensor | None = None
        target_keep: Tensor | None = None
        if given and len(given) == len(examples):
            targets, target_keep = padded(given, PADDING)
        references = tuple(example.reference for example in examples)
        return Written(inputs, keep, targets, target_keep, references=references)

    def measure(self, model: Answers, batch: Batch) -> Sums:
        """Loss and accuracy of the tokens, and how well the texts agree that the model writes by itself."""
        found = super().measure(model, batch)
        if isinstance(batch, Written) and any(text is not None for text in batch.references):
            questions, references = batch.asking()
            texts = [self.decode(best[0].tokens) if best else "" for best in model.generate(questions)]
            found.update(self.compare(texts, references))
        return found

    def compare(self, texts: list[str], references: list[str]) -> Sums:
        """What is added up from texts and those they should be."""
        right = sum(text == reference for text, reference in zip(texts, references, strict=True))
        return {"exact_match": (float(right), float(len(texts)))}

    def encode(self, text: str) -> Pair:
        """The source alone, for a text that was typed."""
        text = text.strip()
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
        """What each position of a source stands for, for pictures of alignments."""
        return self.source_vocabulary.pieces(example.source)

    def output_pieces(self, tokens: Sequence[int]) -> list[str]:
        """What each token that a model wrote stands for."""
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
        """Take over vocabularies and lengths."""
        self.source_vocabulary = restored(state["source_vocabulary"])
        theirs = state["target_vocabulary"]
        self.target_vocabulary = self.source_vocabulary if theirs is None else restored(theirs)
        self.max_source, self.max_target = (
            whole_number("max_source", state["max_source"], 1),
            whole_number("max_target", state["max_target"], 1),
        )
