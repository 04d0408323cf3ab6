"""Language modelling: the next token of a text, or hidden ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.support.arguments import share
from regard.support.declared import at_least, one_of, option
from regard_workbench.tasks.answers import Answer, HiddenTokens, NextToken
from regard_workbench.tasks.formats import hub
from regard_workbench.tasks.formats.reading import Data, paths_of, read_lines, wrong
from regard_workbench.tasks.formats.splits import checked_split, chosen_files
from regard_workbench.tasks.generated.story import story_text
from regard_workbench.tasks.measures import completion, neural_cache
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS, PERPLEXITY, Answering, Mean, Metric, State
from regard_workbench.tasks.measures.neural_cache import CACHE_PERPLEXITY, NeuralCache
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.data import Kept
from regard_workbench.tasks.parts.gathering import cut_apart
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.presenter import TypedText
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shared_options import ENCODING, MIN_PIECE_COUNT, VOCABULARY_SIZE, WHOLE
from regard_workbench.tasks.parts.shown import Shown, Understood, texts, understood
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.text import vocabulary, windows
from regard_workbench.tasks.text.text_task import KnownPieces
from regard_workbench.tasks.text.vocabulary import BLANK, LEVELS, PADDING, SPECIAL
from regard_workbench.tasks.text.windows import Window

ENDINGS = (".txt", ".text", ".md", ".tokens")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # with its end
HIDDEN = 0.15  # of the positions; of these 80 % become blank, 10 % another token, 10 % stay (Devlin et al. 2019)


OBJECTIVES = ("next", "hidden")
BITS_PER_CHARACTER = Mean(
    "bits_per_character",
    higher_is_better=False,
    look=lambda answered: answered.loss,
    made=lambda loss: loss / math.log(2),
)
GUESSED = "the first half of a sentence is given, the second half is hidden at once and guessed"


@dataclass(frozen=True)
class KnownText(KnownPieces):
    """The vocabulary of the training text, read in windows of `max_length` tokens."""

    max_length: int


class WindowPresenter(TypedText["Language"]):
    """Shows windows of a text in pieces."""

    def understood(self, task: Language, given: Mapping[str, str], example: Window) -> Understood | None:
        """Of a long prompt the end was read."""
        if task.hides:  # a hidden token is typed in letters of its own
            return None
        return understood(task.fitted.vocabulary, example.tokens.tolist(), given["text"], "last")

    def continued(self, task: Language, text: str, output: str) -> str:
        """Prompt and completion; words are set apart."""
        words = task.fitted.vocabulary.level == "word"
        apart = words and not text[-1:].isspace() and not output.startswith("\n")
        return text + (" " if apart else "") + output

    def show(self, task: Language, example: Window, batch: Batch) -> Shown:
        """The window in pieces, as the model reads it."""
        return texts(task.output_pieces(batch.inputs[0].tolist()))

    def decode(self, task: Language, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return task.fitted.vocabulary.decode(tokens)

    def output_pieces(self, task: Language, tokens: Sequence[int]) -> list[str]:
        """What each token stands for."""
        return task.fitted.vocabulary.pieces(tokens)


@task("language")
class Language(Task):
    """Predicts the next token of a text (or hidden ones); generated stories where no file is given."""

    metric = PERPLEXITY
    presenter = WindowPresenter()
    fitted = Kept(KnownText)
    pictured = False
    tried = ("--text", "the ")
    recipe = Recipe(model="decoder", steps=2000, batch_size=16, lr=1e-3, warmup=100)

    data: Data | None = option(
        "a text file, plain or .gz, a folder (with train, valid, test files, or any), or hf:NAME", default=None
    )
    level: str = option(
        "character, word (what stands between spaces or tabs, and line ends) or bpe (sub-words)",
        one_of(LEVELS),
        default="character",
    )
    vocabulary_size: int | None = VOCABULARY_SIZE
    min_count: int = MIN_PIECE_COUNT
    context: int = option("tokens of a window", at_least(2), default=256)
    shift: bool = option(
        "in training, a window begins up to half its length earlier or later, at random each time", default=True
    )
    overlap: float = option(
        "share of a window that validation and test only read, so that what they ask for has tokens before it",
        share,
        default=0.0,
    )
    objective: str = option(
        "next (token) or hidden (tokens); a model that can only do one of them does that",
        one_of(OBJECTIVES),
        default="next",
    )
    cache: int = option(
        "`regard evaluate` also measures a neural cache, in which a row attends to so many rows before it", default=0
    )
    cache_weight: float | None = option(
        "share of the cache in the prediction (default: the best on the validation text)", default=None
    )
    cache_sharpness: float | None = option(
        "factor of the cache's dot products (default: the best on the validation text)", default=None
    )
    encoding: str = ENCODING
    whole: bool = WHOLE

    def check_options(self) -> None:
        self.neural_cache = self._measured = _cache(self.cache, self.cache_weight, self.cache_sharpness)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The text of each split. Without files for them, the last tenth is half validation, half test."""
        if self.data is None:
            split_texts = {"train": story_text()}
        elif hub.is_hub(self.data):
            splits = hub.load(str(self.data))
            name = hub.column(splits["train"], str(self.data), "data", None, ("text", "content", "sentence"))
            split_texts = {
                split: "\n".join(str(row[name]).rstrip("\n") for row in rows) for split, rows in splits.items()
            }
        else:
            split_texts = self._from_files(paths_of(self.data))
        if self.whole and "test" not in split_texts:
            return dict.fromkeys(("validation", "test"), next(iter(split_texts.values())))
        if "train" not in split_texts:
            return split_texts
        missing = [split for split in ("validation", "test") if split not in split_texts]
        text = split_texts["train"]
        cuts = [_line_end(text, round(len(text) * (1 - 0.05 * n))) for n in range(len(missing), 0, -1)]
        cuts.append(len(text))
        for split, begin, end in zip(missing, cuts, cuts[1:], strict=False):
            split_texts[split] = text[begin:end]
        split_texts["train"] = text[: cuts[0]]
        return split_texts

    def _from_files(self, paths: list[Path]) -> dict[str, str]:
        files = chosen_files(paths, ENDINGS)
        if not files:
            raise BadValue(f"data: the folder {paths[0]} has no text file (one that ends in {', '.join(ENDINGS)}).")
        return {split: "".join(map(self._read, paths)) for split, paths in files.items()}

    def _read(self, path: Path) -> str:
        text = "\n".join(read_lines(path, self.encoding, self.typed(encoding="latin-1"))) + "\n"
        if len(text) < 3:
            raise wrong(path, None, "is too short to learn from: one character.")
        return text

    def _text(self, split: str) -> str:
        if checked_split(split) not in self.texts:
            raise BadValue(f"data: {self.data} has no text for {split}. It has: {', '.join(self.texts)}.")
        return self.texts[split]

    def fit(self) -> KnownText:
        lines = _LINE.findall(self._text("train" if "train" in self.texts else next(iter(self.texts))))
        text_vocabulary = vocabulary.build(self.level, lines, self.vocabulary_size, self.min_count)
        return KnownText(text_vocabulary, self.context)

    def streams(self) -> dict[str, Tokens]:
        """A window of the text."""
        return {INPUTS: Tokens(len(self.fitted.vocabulary), PADDING, self.fitted.max_length)}

    def answers(self) -> list[Answer]:
        """The next token and hidden tokens, the objective first."""
        count = len(self.fitted.vocabulary)
        answers: list[Answer] = [NextToken(count), HiddenTokens(count, BLANK)]
        return answers if self.objective == "next" else answers[::-1]

    def pose(self, problem: Problem) -> None:
        """Select the problem; a cache needs next tokens."""
        if self.neural_cache is not None and not isinstance(problem.answer, NextToken):
            raise BadValue(
                "cache: the words after a row are its values, so the model must predict next tokens, not hidden ones. "
                "Leave it out, or take a model that reads in one direction, for instance decoder."
            )
        super().pose(problem)

    @property
    def hides(self) -> bool:
        """Whether hidden tokens are asked for, and not the next ones."""
        return isinstance(self.problem.answer, HiddenTokens)

    def metrics(self) -> tuple[Metric, ...]:
        """Loss, accuracy, perplexity, and bits per character where a token is one."""
        characters = self.fitted.vocabulary.level == "character" and not self.hides
        return (LOSS, ACCURACY, PERPLEXITY, *((BITS_PER_CHARACTER,) if characters else ()))

    def tokens(self, split: str) -> Tensor:
        """All ids of a split in a row."""
        if split not in self._by_split:
            lines = self.fitted.vocabulary.encode_all(_LINE.findall(self._text(split)))
            ids = torch.tensor([number for line in lines for number in line])
            if len(ids) < 2:
                raise BadValue(
                    f"data: {self.data} is too short: its text for {split} has {len(ids)} tokens, expected at least 2. "
                    "Give a longer text, or a file for each split."
                )
            self._by_split[split] = ids
        encoded: Tensor = self._by_split[split]
        return encoded

    def examples(self, split: str) -> Sequence[Window]:
        """Windows one after the other: every token but the first is asked for once.

        The last one begins early enough to be as long as the others, so that no batch is padded.
        """
        ids, context = self.tokens(checked_split(split)), self.fitted.max_length
        if split == "train":
            return windows.training(ids, context, self.shift)
        return windows.asking(ids, context, self.overlap)

    def collate(self, examples: Sequence[Window], generator: torch.Generator) -> Batch:
        """Windows padded at their ends; prompts come without targets."""
        rows = [example.drawn(generator) for example in examples]
        if any(example.prompt for example in examples):
            return Batch.of(*padded(rows, PADDING))
        if self.hides:
            return self._hidden([row[: self.fitted.max_length] for row in rows], generator)
        inputs, keep = padded([row[:-1] for row in rows], PADDING)
        targets, target_keep = padded([row[1:] for row in rows], PADDING)
        if any(example.repeated for example in examples):
            repeated = torch.tensor([example.repeated for example in examples])
            unrepeated = torch.arange(targets.shape[1]) >= repeated[:, None]
            target_keep = unrepeated if target_keep is None else target_keep & unrepeated
        return Batch.of(inputs, keep, targets, target_keep)

    def batches(
        self, examples: Sequence[Any], chosen: Sequence[Sequence[int]], generators: Iterable[torch.Generator]
    ) -> list[Batch] | None:
        """Windows that begin at random, cut out of the text for several batches at once."""
        if not isinstance(examples, windows.Loose) or self.hides:
            return None
        return cut_apart(chosen, *examples.rows(chosen, generators))

    def _hidden(self, rows: list[Tensor], generator: torch.Generator) -> Batch:
        targets, keep = padded(rows, PADDING)
        inputs, hidden = targets.clone(), torch.zeros_like(targets, dtype=torch.bool)
        for number, row in enumerate(rows):
            count = max(1, round(HIDDEN * len(row)))
            chosen = torch.rand(len(row), generator=generator).topk(count).indices
            fate = torch.rand(count, generator=generator)
            random_tokens = torch.randint(len(SPECIAL), len(self.fitted.vocabulary), (count,), generator=generator)
            shown = torch.where(fate < 0.9, random_tokens, row[chosen])
            inputs[number, chosen] = torch.where(fate < 0.8, torch.full_like(random_tokens, BLANK), shown)
            hidden[number, chosen] = True
        return Batch.of(inputs, keep, targets, hidden)

    def completion_batches(self, split: str = "test", batch_size: int = 32, most: int = completion.MOST) -> list[Batch]:
        """Sentences of a split in which the second halves are judged, `most` of them at most, evenly spaced."""
        chosen = completion.evenly(completion.sentences_of(self._text(split)), most)
        return list(
            completion.batches(chosen, self.fitted.vocabulary, self.fitted.max_length, batch_size, hidden=self.hides)
        )

    def completed(
        self,
        model: Answering,
        split: str = "test",
        *,
        batch_size: int = 32,
        most: int = completion.MOST,
        device: torch.device | str = "cpu",
    ) -> list[tuple[Metric, State]]:
        """How well a model completes sentences: see `regard_workbench.tasks.measures.completion`."""
        metrics = completion.GUESSED if self.hides else completion.CONTINUED
        return completion.examine(model, self.completion_batches(split, batch_size, most), metrics, device)

    def examine(
        self, model: Answering, split: str = "test", *, batch_size: int = 32, device: torch.device | str = "cpu"
    ) -> list[tuple[Metric, State]]:
        """The perplexity with the cache, where there is one."""
        self._measured = self.neural_cache
        if self.neural_cache is not None and not self.neural_cache.chosen:
            # Where a file is measured as a whole, there is no other text to choose on.
            tuning = None if self.whole else list(self._in_order(model, "validation", batch_size, device))
            self._measured = None if tuning is None else self.neural_cache.choose(tuning)
        if self._measured is None:
            return []
        state = self._measured.measure(self._in_order(model, split, batch_size, device, self.examined))
        return [(CACHE_PERPLEXITY, state)]

    def _in_order(
        self, model: Answering, split: str, batch_size: int, device: torch.device | str, most: int | None = None
    ) -> Iterator[neural_cache.Read]:
        """The words of a split or its first `most` windows in order, with the rows that a model predicts them from."""
        examples = windows.asking(self.tokens(checked_split(split)), self.fitted.max_length, self.overlap)
        count = len(examples) if most is None else min(most, len(examples))
        chosen = (range(start, min(start + batch_size, count)) for start in range(0, count, batch_size))
        batches = (self.batch(examples, window_numbers, torch.Generator()).to(device) for window_numbers in chosen)
        return neural_cache.read(model, batches)

    def protocol(self) -> dict[str, Any]:
        """How completions are judged, and the cache."""
        words = {"completion": GUESSED if self.hides else completion.PROTOCOL}
        if self.neural_cache is not None:
            measured = self._measured
            words["cache"] = "not measured: no text to choose it on" if measured is None else measured.words()
        return words

    def encode(self, text: str) -> Window:
        """A prompt; of a long one the end. Where hidden tokens are asked for, "<mask>" stands for one."""
        text_vocabulary = self.fitted.vocabulary
        if self.hides:
            segments = [text_vocabulary.encode(segment) for segment in re.split(re.escape(SPECIAL[BLANK]), text)]
            ids = [number for segment in segments for number in (BLANK, *segment)][1:]
        else:
            ids = text_vocabulary.encode(text)
        if not ids:
            raise BadValue("--text: expected some text, got none.")
        return Window(torch.tensor(ids[-self.fitted.max_length :]), prompt=True)

    def input_pieces(self, example: Window) -> list[str]:
        """What each position stands for, for pictures."""
        return self.output_pieces(example.tokens.tolist())


def _cache(size: int, weight: float | None, sharpness: float | None) -> NeuralCache | None:
    """The neural cache of these options; None without one."""
    if size:
        return NeuralCache(size, weight, sharpness)
    for name, number in (("cache_weight", weight), ("cache_sharpness", sharpness)):
        if number is not None:
            raise BadValue(f"{name}: it belongs to a cache, and there is none. Add one, for instance cache=2000.")
    return None


def _line_end(text: str, place: int) -> int:
    """The end of a line near a place, so that no word is cut; the place itself where lines are long."""
    end = text.find("\n", place, place + len(text) // 100)
    return place if end < 0 else end + 1
