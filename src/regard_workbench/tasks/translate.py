"""Translation between two parallel files, line by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from regard.errors import BadValue
from regard.support.arguments import finite_number, share, whole_number
from regard_workbench.tasks.answers import Writes
from regard_workbench.tasks.dates import GENERATED, LONGEST, TRAIN, date_pair
from regard_workbench.tasks.formats import direction, hub
from regard_workbench.tasks.formats.direction import Direction
from regard_workbench.tasks.formats.reading import Data, checked_encoding, paths_of, read_lines, wrong
from regard_workbench.tasks.formats.splits import NAMES, checked_split, divided, files_by_split, listed, plain_name
from regard_workbench.tasks.generated.draws import Generated
from regard_workbench.tasks.measures.alignments import measured_shapes
from regard_workbench.tasks.measures.bleu import Bleu
from regard_workbench.tasks.measures.metrics import Answered, Answering, Counts, Metric, State
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.pair_dropout import POOL, PairDropout
from regard_workbench.tasks.text.parallel import Pair, ParallelTask
from regard_workbench.tasks.text.split_words import trimmed
from regard_workbench.tasks.text.vocabulary import BytePairs, Vocabulary

EMBEDDED = {"train": TRAIN, "validation": 500, "test": 1000}


class Texts(NamedTuple):
    """A text and its translation."""

    source: str
    target: str


@task("translate")
class Translate(ParallelTask):
    """Translates line by line, from two parallel files or a folder of them; generated dates where none are given.

    Args:
        data: SOURCE,TARGET (two files, plain or .gz), a folder with train.en, train.de, val.en … or hf:NAME
        languages: endings of a folder's files, source first: "en,de" reads en, writes de; of just two, en is the source
        level: bpe (sub-words), word or character; default bpe, or character for the generated dates
        vocabulary_size: how many different pieces (bpe: 4096 by default)
        joint: one vocabulary for both languages
        min_count: how often a word or character must occur to be known
        max_length: longest side in pieces; longer training pairs are left out, longer others are cut
        bpe_dropout: in training, the share of merges of byte pairs that are left out at random (Provilkov et al. 2020)
        pad_to_multiple_of: both sides are padded to a multiple of this; 8 makes shapes repeat, so a GPU replays steps
        bleu_examples: for how many validation sentences the model is made to write
        bleu_tokenize: how sacrebleu splits words
        length_penalty: with --beam, log-probabilities are divided by lengths to this power; above 1 prefers long texts
        encoding: how the files are encoded
        seed: which lines are kept for validation and test where there are no files for them
        whole: measure on all of a file, keep nothing of it for training; for a model trained on other data
    """

    metric: ClassVar[Metric] = Counts("bleu", over=Writes.units, total="texts")  # `metrics` says how it is measured
    translates = True
    recipe = Recipe(model="transformer", steps=6000, batch_size=64, lr=1e-3, warmup=400, smoothing=0.1)

    def __init__(
        self,
        data: Data | None = None,
        languages: str | Sequence[str] | None = None,
        level: str | None = None,
        vocabulary_size: int | None = None,
        joint: bool = True,
        min_count: int = 1,
        max_length: int = 128,
        bpe_dropout: float = 0.0,
        pad_to_multiple_of: int = 1,
        bleu_examples: int = 100,
        bleu_tokenize: str = "13a",
        length_penalty: float = 1.0,
        encoding: str = "utf-8",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        self.data = data
        self.languages = languages.split(",") if isinstance(languages, str) else languages
        if self.languages is not None and len(self.languages) != 2:
            example = self.typed(languages="en,de")
            raise BadValue(f"languages: expected two, source first, for instance {example}, got {languages!r}.")
        self.level = vocabulary.checked_level(level or ("character" if data is None else "bpe"))
        self.vocabulary_size, self.joint = vocabulary_size, joint
        self.bpe_dropout = share("bpe_dropout", bpe_dropout)
        if self.bpe_dropout and self.level != "bpe":
            raise BadValue(f"bpe_dropout: only level=bpe has merges to leave out, got level={self.level}.")
        self.multiple = whole_number("pad_to_multiple_of", pad_to_multiple_of, 1)
        self.seed = whole_number("seed", seed)
        self.min_count = whole_number("min_count", min_count, 1)
        self.limit = whole_number("max_length", max_length, 2)
        self.bleu_examples = whole_number("bleu_examples", bleu_examples, 1)
        self.bleu_tokenize = bleu_tokenize
        self.length_penalty = finite_number("length_penalty", length_penalty)
        self.encoding = checked_encoding(encoding)
        self.left_out = 0  # training pairs that are longer than max_length
        self._encoded: dict[str, list[Pair]] = {}
        self.whole = whole
        self._direction: Direction | None = None  # of the data, once they are read
        self._learned: Direction | None = None  # of the run whose vocabulary this is

    @cached_property
    def texts(self) -> dict[str, Sequence[Texts]]:
        """The pairs of each split as text."""
        if self.data is None:
            return {split: Generated(size, partial(_date, split)) for split, size in EMBEDDED.items()}
        parts = self._from_hub() if hub.is_hub(self.data) else self._from_files(paths_of(self.data))
        return {**divided(parts, lambda pair: pair.source, self.seed, self.data, self.whole)}

    def _direct(self, found: Direction) -> None:
        """Note which side of the data is read; refuse data that reverse what a run learned."""
        direction.refuse_reversed(self._learned, found)
        self._direction = found

    def direction(self) -> Direction | None:
        """Which side is read and which is written: by the data, or as the run learned it where no data was read."""
        if self.data is None:
            return GENERATED
        return self._direction or self._learned

    def _from_hub(self) -> dict[str, list[Texts]]:
        splits = hub.load(str(self.data))
        rows = splits["train"]
        nested = [name for name, cell in rows[0].items() if isinstance(cell, Mapping)]
        flat = {split: [row[nested[0]] if nested else row for row in part] for split, part in splits.items()}
        there = list(flat["train"][0])
        source, target = self.languages or (there if len(there) == 2 else ("", ""))
        if source not in there or target not in there:
            example = self.typed(languages=",".join(there[:2]))
            raise BadValue(
                f"languages: expected two of {', '.join(there)}, source first, for instance {example}, "
                f"got {self.languages!r}."
            )
        self._direct(Direction(source, target))
        return {split: [Texts(str(row[source]), str(row[target])) for row in part] for split, part in flat.items()}

    def _from_files(self, paths: list[Path]) -> dict[str, list[Texts]]:
        if len(paths) == 2:
            self._direct(direction.of_files(*paths))
            return {"train": self._read(*paths)}
        if len(paths) != 1 or not paths[0].is_dir():
            raise BadValue(
                f"data: expected two parallel files SOURCE,TARGET or a folder, got {', '.join(map(str, paths))!r}."
            )
        files = listed(paths[0])
        source, target = self.languages or direction.of_folder(
            paths[0], files, self._learned, self.typed(languages="en,de")
        )
        self._direct(Direction(source, target))
        sides = [
            files_by_split([path for path in files if plain_name(path).endswith(f".{side}")])
            for side in (source, target)
        ]
        for side, found, other in ((source, *sides), (target, *reversed(sides))):
            lonely = sorted(set(other) - set(found))
            if lonely or not found:
                split = lonely[0] if lonely else "train"
                raise BadValue(f"data: {paths[0]} has no file {NAMES[split][0]}.{side} (or that and .gz).")
        return {split: self._read(sides[0][split], sides[1][split]) for split in sides[0]}

    def _read(self, source: Path, target: Path) -> list[Texts]:
        other = self.typed(encoding="latin-1")
        sides = [read_lines(path, self.encoding, other) for path in (source, target)]
        if len(sides[0]) != len(sides[1]):
            raise BadValue(
                f"data: {source} has {len(sides[0])} lines, {target} has {len(sides[1])}. "
                "Parallel files have the same number: line by line one is the translation of the other."
            )
        found = []
        for line, (one, other) in enumerate(zip(*sides, strict=True), 1):
            one, other = trimmed(one), trimmed(other)
            if bool(one) != bool(other):
                raise wrong(target if one else source, line, f"is empty, but {source if one else target} is not.")
            if one:
                found.append(Texts(one, other))
        return found

    def _prepare(self) -> None:
        """Vocabularies, from the training pairs alone, and lengths."""
        if self.data is None:
            train: Sequence[Texts] = self.texts["train"][:5000]  # every character is among them
        else:
            train = self._split("train" if "train" in self.texts else next(iter(self.texts)))
        sides = [[pair.source for pair in train], [pair.target for pair in train]]

        def made(texts: list[str]) -> Vocabulary:
            return vocabulary.build(self.level, texts, self.vocabulary_size, self.min_count)

        if self.joint:
            self.source_vocabulary = self.target_vocabulary = made(sides[0] + sides[1])
        else:
            self.source_vocabulary, self.target_vocabulary = made(sides[0]), made(sides[1])
        every = train if self.data is None else [pair for split in self.texts.values() for pair in split]
        longest = [
            max(len(ids) for ids in self.source_vocabulary.encode_all([pair.source for pair in every])),
            max(len(ids) for ids in self.target_vocabulary.encode_all([pair.target for pair in every])),
        ]
        if self.data is None:
            longest[0] = max(longest[0], LONGEST)
        self.max_source, self.max_target = min(self.limit, longest[0]), min(self.limit, longest[1] + 1)

    def _ready(self) -> None:
        if not hasattr(self, "source_vocabulary"):
            self._prepare()

    def streams(self) -> dict[str, Tokens]:
        """The source."""
        self._ready()
        return super().streams()

    def answers(self) -> list[Writes]:
        """The translation."""
        self._ready()
        return super().answers()

    def _split(self, split: str) -> Sequence[Texts]:
        if checked_split(split) not in self.texts:
            raise BadValue(f"data: {self.data} has no files for {split}. It has: {', '.join(self.texts)}.")
        return self.texts[split]

    def examples(self, split: str) -> Sequence[Pair]:
        """The pairs of a split."""
        self._ready()
        texts = self._split(split)
        if self.data is None:
            return Generated(len(texts), partial(self._one, split))
        if split not in self._encoded:
            self._encoded[split] = self._encode_split(split, texts)
        return self._encoded[split]

    def _one(self, split: str, index: int) -> Pair:
        return self._encode_split(split, self.texts[split][index : index + 1], index)[0]

    def _encode_split(self, split: str, texts: Sequence[Texts], begin: int = 0) -> list[Pair]:
        sources = self.source_vocabulary.encode_all([pair.source for pair in texts])
        targets = self.target_vocabulary.encode_all([pair.target for pair in texts])
        every = max(1, len(self.texts[split]) // self.bleu_examples)
        found, left_out = [], 0
        for number, (source, target, pair) in enumerate(zip(sources, targets, texts, strict=True), begin):
            if split == "train" and (len(source) > self.max_source or len(target) >= self.max_target):
                left_out += 1
                continue
            written = split == "test" or (number % every == 0 and number // every < self.bleu_examples)
            one = self.pair(source, target, pair.target if written and split != "train" else None)
            if self.bpe_dropout and split == "train":
                ours, theirs = self._dropouts
                one = one._replace(words=(ours.words(pair.source), theirs.words(pair.target)))
            found.append(one)
        if split == "train" and self.data is not None:
            self.left_out = left_out
            if not found:
                longer = self.typed(max_length=2 * self.limit)
                raise BadValue(
                    f"max_length: every training pair is longer than {self.limit}. Raise it, for instance {longer}."
                )
        return found

    @cached_property
    def _dropouts(self) -> tuple[PairDropout, PairDropout]:
        """BPE-dropout of the source and of the target."""
        sides = self.source_vocabulary, self.target_vocabulary
        assert all(isinstance(one, BytePairs) for one in sides)
        source, target = (PairDropout(one, self.bpe_dropout, self.seed) for one in sides)  # type: ignore[arg-type]
        return source, source if sides[0] is sides[1] else target

    def collate(self, examples: Sequence[Pair], generator: torch.Generator) -> Batch:
        """Both sides padded at their ends; with `bpe_dropout`, training pairs are cut into other pieces each time."""
        if examples and all(example.words is not None for example in examples):
            examples = self._cut(examples, generator)
        return super().collate(examples, generator)

    def _cut(self, examples: Sequence[Pair], generator: torch.Generator) -> list[Pair]:
        """Cut both sides of all pairs anew; a side that gets too long stays as it is."""
        texts = [words for example in examples for words in example.words or ()]  # sources and targets in turn
        counts = np.array([len(words) for words in texts])
        chosen = torch.randint(POOL, (int(counts.sum()),), generator=generator).numpy()
        cut: list[list[list[int]]] = []
        for number, side in enumerate(self._dropouts):
            ours = np.repeat(np.arange(len(texts)) % 2 == number, counts)
            words = np.fromiter(chain.from_iterable(texts[number::2]), dtype=np.int64)
            ids, sizes = side.pieces(words, chosen[ours])
            flat = ids.tolist()
            ends = np.append(0, sizes.cumsum())[np.append(0, counts[number::2].cumsum())].tolist()
            cut.append([flat[begin:end] for begin, end in pairwise(ends)])
        found = []
        for example, source, target in zip(examples, *cut, strict=True):
            assert example.target is not None
            source = source if len(source) <= self.max_source else list(example.source)
            target = target if len(target) < self.max_target else list(example.target[:-1])
            found.append(self.pair(source, target, example.reference))
        return found

    def metrics(self) -> tuple[Metric, ...]:
        """Those of the tokens, and BLEU (0 to 100) of the whole corpus, as sacrebleu computes it."""
        bleu = Counts("bleu", over=Writes.units, total="texts", look=self._ngrams, made=self._bleu.score)
        return (*super().metrics(), bleu)

    def _ngrams(self, answered: Answered) -> dict[str, float] | None:
        """The counts of n-grams that make BLEU: they add up over batches, which BLEU does not."""
        written = answered.once(self.written)
        return None if written is None else self._bleu.counts(written.texts, written.references)

    def examine(
        self, model: Answering, split: str = "test", *, batch_size: int = 32, device: torch.device | str = "cpu"
    ) -> list[tuple[Metric, State]]:
        """The share of target pieces that attention leaves without a partner, shares or reorders."""
        return measured_shapes(self, model, split, batch_size=batch_size, device=device, most=self.bleu_examples)

    def protocol(self) -> dict[str, Any]:
        """How completions are judged, and the signature of BLEU."""
        return {**super().protocol(), "bleu": self.signature()}

    def signature(self) -> str:
        """How BLEU is computed, in sacrebleu's own words, to be printed beside the number."""
        return self._bleu.signature()

    @property
    def _bleu(self) -> Bleu:
        return Bleu(self.bleu_tokenize)

    def state(self) -> dict[str, Any]:
        """Vocabularies, lengths, and which side is read."""
        self._ready()
        found = self.direction()
        return {**super().state(), "direction": None if found is None else list(found)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore vocabularies, lengths and direction."""
        super().restore(state)
        if self.data is not None and state.get("direction"):
            self._learned = Direction(*state["direction"])
        self.level = self.source_vocabulary.level
        self._encoded = {}
        self.__dict__.pop("_dropouts", None)  # of the former vocabularies


def _date(split: str, index: int) -> Texts:
    return Texts(*date_pair(split, index))
