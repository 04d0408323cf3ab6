"""Translation between two parallel files, line by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.errors import BadValue
from regard.support.arguments import finite_number, share
from regard.support.declared import at_least, one_of, option
from regard_workbench.tasks.answers import Writes
from regard_workbench.tasks.dates import GENERATED, LONGEST, TRAIN, date_pair
from regard_workbench.tasks.formats import hub
from regard_workbench.tasks.formats.direction import Direction, of_files, of_folder, refuse_reversed
from regard_workbench.tasks.formats.reading import Data, paths_of, read_lines, wrong
from regard_workbench.tasks.formats.splits import NAMES, files_by_split, listed, plain_name
from regard_workbench.tasks.generated.draws import Generated
from regard_workbench.tasks.measures.alignments import measured_shapes
from regard_workbench.tasks.measures.bleu import Bleu
from regard_workbench.tasks.measures.metrics import Answered, Answering, Counts, Metric, State
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.rows_from_files import RowsFromFiles
from regard_workbench.tasks.parts.shared_options import VOCABULARY_SIZE
from regard_workbench.tasks.parts.task import Recipe, task, typed
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.pair_dropout import POOL, PairDropout
from regard_workbench.tasks.text.parallel import COMPLETION, CompletionJudge, KnownSides, Pair, ParallelTask
from regard_workbench.tasks.text.split_words import trimmed
from regard_workbench.tasks.text.vocabulary import LEVELS, BytePairs, Vocabulary

EMBEDDED = {"train": TRAIN, "validation": 500, "test": 1000}


class Texts(NamedTuple):
    """A text and its translation."""

    source: str
    target: str


def _two(name: str, languages: str | Sequence[str]) -> Sequence[str]:
    """The names of two languages."""
    both = languages.split(",") if isinstance(languages, str) else languages
    if len(both) != 2:
        example = typed("translate", {"languages": "en,de"})
        raise BadValue(f"{name}: expected two, source first, for instance {example}, got {languages!r}.")
    return both


class TranslationJudge(CompletionJudge):
    """Measures what a model writes by BLEU, and what its attention leaves without a partner."""

    def examine(
        self, task: Translate, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """The share of target pieces that attention leaves without a partner, shares or reorders."""
        return measured_shapes(task, model, split, batch_size=batch_size, device=device, most=task.bleu_examples)

    def protocol(self, task: Translate) -> dict[str, Any]:
        """How completions are judged, and the signature of BLEU."""
        return {**super().protocol(task), "bleu": task.signature()}


@task("translate")
class Translate(ParallelTask, RowsFromFiles):
    """Translates line by line, from two parallel files or a folder of them; generated dates where none are given."""

    judge = TranslationJudge.by(Counts("bleu", over=Writes.units, total="texts"), completion=COMPLETION)
    translates = True
    kept_in = "files"
    recipe = Recipe(model="transformer", steps=6000, batch_size=64, lr=1e-3, warmup=400, smoothing=0.1)
    left_out = 0  # training pairs that are longer than max_length

    data: Data | None = option(
        "SOURCE,TARGET (two files, plain or .gz), a folder with train.en, train.de, val.en … or hf:NAME", default=None
    )
    languages: str | Sequence[str] | None = option(
        'endings of a folder\'s files, source first: "en,de" reads en, writes de; of just two, en is the source',
        _two,
        default=None,
    )
    level: str | None = option(
        "bpe (sub-words), word or character; default bpe, or character for the generated dates",
        one_of(LEVELS),
        default=None,
    )
    vocabulary_size: int | None = VOCABULARY_SIZE
    joint: bool = option("one vocabulary for both languages", default=True)
    min_count: int = option("how often a word or character must occur to be known", at_least(1), default=1)
    max_length: int = option(
        "longest side in pieces; longer training pairs are left out, longer others are cut", at_least(2), default=128
    )
    bpe_dropout: float = option(
        "in training, the share of merges of byte pairs that are left out at random (Provilkov et al. 2020)",
        share,
        default=0.0,
    )
    pad_to_multiple_of: int = option(
        "both sides are padded to a multiple of this; 8 makes shapes repeat, so a GPU replays steps",
        at_least(1),
        default=1,
    )
    bleu_examples: int = option(
        "for how many validation sentences the model is made to write", at_least(1), default=100
    )
    bleu_tokenize: str = option("how sacrebleu splits words", default="13a")
    length_penalty: float = option(
        "with --beam, log-probabilities are divided by lengths to this power; above 1 prefers long texts",
        finite_number,
        default=1.0,
    )

    @property
    def pieces(self) -> str:
        """The level of new vocabularies."""
        return self.level or ("character" if self.data is None else "bpe")

    def check_options(self) -> None:
        if self.bpe_dropout and self.pieces != "bpe":
            raise BadValue(f"bpe_dropout: only level=bpe has merges to leave out, got level={self.pieces}.")
        self.read_direction: Direction | None = None  # of the data, once they are read
        self.learned_direction: Direction | None = None  # of the run whose vocabulary this is

    def read(self) -> Mapping[str, Sequence[Texts]]:
        if self.data is None:
            return {split: Generated(size, partial(_date, split)) for split, size in EMBEDDED.items()}
        return self._from_hub() if hub.is_hub(self.data) else self._from_files(paths_of(self.data))

    def key(self, row: Texts) -> str:
        return row.source

    def _direct(self, direction: Direction) -> None:
        """Note which side of the data is read; refuse data that reverse what a run learned."""
        refuse_reversed(self.learned_direction, direction)
        self.read_direction = direction

    def direction(self) -> Direction | None:
        """Which side is read and which is written: by the data, or as the run learned it where no data was read."""
        return GENERATED if self.data is None else self.read_direction or self.learned_direction

    def _from_hub(self) -> dict[str, list[Texts]]:
        splits = hub.load(str(self.data))
        rows = splits["train"]
        nested = [name for name, cell in rows[0].items() if isinstance(cell, Mapping)]
        flat = {
            split: [row[nested[0]] if nested else row for row in split_rows] for split, split_rows in splits.items()
        }
        columns = list(flat["train"][0])
        source, target = tuple(self.languages or (columns if len(columns) == 2 else ("", "")))
        if source not in columns or target not in columns:
            example = self.typed(languages=",".join(columns[:2]))
            raise BadValue(
                f"languages: expected two of {', '.join(columns)}, source first, for instance {example}, "
                f"got {self.languages!r}."
            )
        self._direct(Direction(source, target))
        return {
            split: [Texts(str(row[source]), str(row[target])) for row in split_rows]
            for split, split_rows in flat.items()
        }

    def _from_files(self, paths: list[Path]) -> dict[str, list[Texts]]:
        if len(paths) == 2:
            self._direct(of_files(*paths))
            return {"train": self._pairs(*paths)}
        if len(paths) != 1 or not paths[0].is_dir():
            raise BadValue(
                f"data: expected two parallel files SOURCE,TARGET or a folder, got {', '.join(map(str, paths))!r}."
            )
        files = listed(paths[0])
        example = self.typed(languages="en,de")
        endings = self.languages or of_folder(paths[0], files, self.learned_direction, example)
        self._direct(Direction(*endings))
        sides = [files_by_split([path for path in files if plain_name(path).endswith(f".{side}")]) for side in endings]
        for side, side_files, partner_files in zip(endings, sides, reversed(sides), strict=True):
            lonely = sorted(set(partner_files) - set(side_files))
            if lonely or not side_files:
                split = lonely[0] if lonely else "train"
                raise BadValue(f"data: {paths[0]} has no file {NAMES[split][0]}.{side} (or that and .gz).")
        return {split: self._pairs(sides[0][split], sides[1][split]) for split in sides[0]}

    def _pairs(self, source: Path, target: Path) -> list[Texts]:
        sides = [read_lines(path, self.encoding, self.typed(encoding="latin-1")) for path in (source, target)]
        if len(sides[0]) != len(sides[1]):
            raise BadValue(
                f"data: {source} has {len(sides[0])} lines, {target} has {len(sides[1])}. "
                "Parallel files have the same number: line by line one is the translation of the other."
            )
        pairs = []
        for number, lines in enumerate(zip(*sides, strict=True), 1):
            pair = Texts(*map(trimmed, lines))
            if bool(pair.source) != bool(pair.target):
                empty, full = (target, source) if pair.source else (source, target)
                raise wrong(empty, number, f"is empty, but {full} is not.")
            if pair.source:
                pairs.append(pair)
        return pairs

    def fit(self) -> KnownSides:
        # Of generated pairs as many as hold every character.
        rows = self.rows["train"][:5000] if self.data is None else self.training_rows
        every = rows if self.data is None else [row for split_rows in self.rows.values() for row in split_rows]
        sources, targets = [row.source for row in rows], [row.target for row in rows]

        def known(texts: list[str]) -> Vocabulary:
            return vocabulary.build(self.pieces, texts, self.vocabulary_size, self.min_count)

        source = known(sources + targets if self.joint else sources)
        target = source if self.joint else known(targets)
        longest_source = max(len(ids) for ids in source.encode_all([row.source for row in every]))
        longest_target = max(len(ids) for ids in target.encode_all([row.target for row in every]))
        if self.data is None:
            longest_source = max(longest_source, LONGEST)
        return KnownSides(
            source, target, min(self.max_length, longest_source), min(self.max_length, longest_target + 1)
        )

    def examples(self, split: str) -> Sequence[Pair]:
        """The pairs of a split."""
        _ = self.fitted
        rows = self.rows_of(split)
        if self.data is None:
            return Generated(len(rows), partial(self._generated, split))
        if split not in self._by_split:
            self._by_split[split] = self._encoded(split, rows)
        pairs: list[Pair] = self._by_split[split]
        return pairs

    def _generated(self, split: str, index: int) -> Pair:
        return self._encoded(split, self.rows[split][index : index + 1], index)[0]

    def _encoded(self, split: str, rows: Sequence[Texts], begin: int = 0) -> list[Pair]:
        """The pairs that rows become, the first of which has the number `begin` in its split."""
        sides = self.fitted
        sources = sides.source_vocabulary.encode_all([row.source for row in rows])
        targets = sides.target_vocabulary.encode_all([row.target for row in rows])
        every = max(1, len(self.rows[split]) // self.bleu_examples)
        pairs, left_out = [], 0
        for number, (source, target, row) in enumerate(zip(sources, targets, rows, strict=True), begin):
            if split == "train" and (len(source) > sides.max_source or len(target) >= sides.max_target):
                left_out += 1
                continue
            written = split == "test" or (number % every == 0 and number // every < self.bleu_examples)
            pair = self.pair(source, target, row.target if written and split != "train" else None)
            if self.bpe_dropout and split == "train":
                ours, theirs = self._dropouts
                pair = pair._replace(words=(ours.words(row.source), theirs.words(row.target)))
            pairs.append(pair)
        if split == "train" and self.data is not None:
            self.left_out = left_out
            if not pairs:
                longer = self.typed(max_length=2 * self.max_length)
                raise BadValue(
                    f"max_length: every training pair is longer than {self.max_length}. "
                    f"Raise it, for instance {longer}."
                )
        return pairs

    @cached_property
    def _dropouts(self) -> tuple[PairDropout, PairDropout]:
        """BPE-dropout of the source and of the target."""
        source, target = self.fitted.source_vocabulary, self.fitted.target_vocabulary
        assert isinstance(source, BytePairs) and isinstance(target, BytePairs)
        dropout = PairDropout(source, self.bpe_dropout, self.seed)
        return dropout, dropout if source is target else PairDropout(target, self.bpe_dropout, self.seed)

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
        pairs = []
        for example, source, target in zip(examples, *cut, strict=True):
            assert example.target is not None
            source = source if len(source) <= self.fitted.max_source else list(example.source)
            target = target if len(target) < self.fitted.max_target else list(example.target[:-1])
            pairs.append(self.pair(source, target, example.reference))
        return pairs

    def metrics(self) -> tuple[Metric, ...]:
        """Those of the tokens, and BLEU (0 to 100) of the whole corpus, as sacrebleu computes it."""
        bleu = Counts("bleu", over=Writes.units, total="texts", look=self._ngrams, made=self._bleu.score)
        return (*super().metrics(), bleu)

    def _ngrams(self, answered: Answered) -> dict[str, float] | None:
        """The counts of n-grams that make BLEU: they add up over batches, which BLEU does not."""
        written = answered.once(self.written)
        return None if written is None else self._bleu.counts(written.texts, written.references)

    def signature(self) -> str:
        """How BLEU is computed, in sacrebleu's own words, to be printed beside the number."""
        return self._bleu.signature()

    @property
    def _bleu(self) -> Bleu:
        return Bleu(self.bleu_tokenize)

    def state(self) -> dict[str, Any]:
        """Vocabularies, lengths, and which side is read."""
        sides = super().state()  # reads the data where nothing else did
        return {**sides, "direction": list(self.direction() or ()) or None}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore vocabularies, lengths and direction."""
        super().restore(state)
        if self.data is not None and state.get("direction"):
            self.learned_direction = Direction(*state["direction"])
        vars(self).pop("_dropouts", None)  # of the former vocabularies


def _date(split: str, index: int) -> Texts:
    return Texts(*date_pair(split, index))
