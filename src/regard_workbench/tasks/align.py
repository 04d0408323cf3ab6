"""`align`: translate, and be judged by the words that the attention aligns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from regard.errors import BadValue, unknown_name
from regard.support.arguments import finite_number, whole_number
from regard_workbench.tasks.answers import Writes
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.gold import Gold, Pairs, error_rate, read_gold, tally
from regard_workbench.tasks.formats.reading import Data, paths_of, read_lines, wrong
from regard_workbench.tasks.formats.splits import checked_split, listed
from regard_workbench.tasks.generated.draws import Generated, shares
from regard_workbench.tasks.generated.toy_language import AlignedTexts, sentence
from regard_workbench.tasks.measures.alignments import (
    added,
    attended_links,
    diagonal_links,
    map_of,
    mean_map,
    not_one_to_one,
    shape_metrics,
)
from regard_workbench.tasks.measures.completion import evenly
from regard_workbench.tasks.measures.metrics import (
    ACCURACY,
    LOSS,
    PERPLEXITY,
    SHARE,
    Answered,
    Answering,
    Counts,
    Metric,
    State,
)
from regard_workbench.tasks.measures.word_models import IBM1, DiagonalModel
from regard_workbench.tasks.parts.batch import GUIDE, TARGETS, Batch, Stream
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.parallel import Pair, ParallelTask
from regard_workbench.tasks.text.split_words import split_words, trimmed
from regard_workbench.tasks.text.vocabulary import Vocabulary

GENERATED = {"train": 20_000, "validation": 200, "test": 500}
ROWS = ("written", "read")
SEPARATOR = "|||"
GOLD = "gold"  # the note of a batch that holds the gold links
AER = Counts("aer", higher_is_better=False, unit=SHARE, over="sentence pairs", total="pairs", made=error_rate)


class GoldPair(NamedTuple):
    """A source, its target and its gold links. Behaves as `parallel.Pair`."""

    source: Sequence[int]
    target: Sequence[int] | None = None
    reference: str | None = None
    gold: Gold | None = None
    training: bool = False  # whether a batch holds the links that guide its attention


@task("align")
class Align(ParallelTask):
    """Learns to translate; judged by the alignment error rate of its attention (`regard evaluate`: layer by layer).

    Learned is translation alone: gold links only judge. So the text of every pair is for training; of the pairs with
    gold links a fifth is for validation and the rest for the test. Beside it stand the diagonal, and IBM model 1 on the
    same training pairs. From few pairs a network does not find out by itself which words translate each other: `guide`
    draws its attention to the links of a word model of the same pairs. Words are what stands between spaces or tabs.
    Without files: two made-up languages.

    Args:
        data: NAME.src-tgt (lines `source ||| target`) with NAME.gold beside it (`i-j` sure, `ipj` possible, from 1);
            a folder of these; pairs without gold are for training alone
        rows: written (the row that writes a word aligns it) or read (the row that has just read it)
        guide: weight of a loss that draws the attention to the links that IBM model 2 with a diagonal prior finds in
            the training pairs (`aer_diagonal_model`); 0: none
        tension: how closely those links keep to the diagonal
        reverse: translate the second side into the first
        min_count: how often a word must occur to be known
        max_length: longest side in words; longer training pairs are left out
        seed: which gold pairs are for validation
    """

    metric: ClassVar[Metric] = AER
    translates = True
    tried = ("--text", "young bird finds tree and dog")
    recipe = Recipe(
        # feeding=none: the decoder reads a target in one call, several times as fast as step by step.
        model="seq2seq",
        steps=400,
        batch_size=32,
        lr=3e-3,
        warmup=50,
        models={"seq2seq": "seq2seq(dim=64, feeding=none)", "transformer": "transformer(dim=64, layers=2)"},
        compared=("transformer", "seq2seq"),
        reaches={"aer": 0.25},
    )

    def __init__(
        self,
        data: Data | None = None,
        rows: str = "written",
        guide: float = 0.0,
        tension: float = 4.0,
        reverse: bool = False,
        min_count: int = 1,
        max_length: int = 100,
        seed: int = 0,
    ) -> None:
        if rows not in ROWS:
            raise unknown_name("rows", rows, ROWS)
        self.data, self.rows, self.reverse = data, rows, reverse
        self.guide = finite_number("guide", guide)
        self.tension = finite_number("tension", tension)
        for name, given in (("guide", guide), ("tension", tension)):
            if given < 0:
                raise BadValue(f"{name}: expected 0 or more, got {given}.")
        self.min_count = whole_number("min_count", min_count, 1)
        self.limit, self.seed = whole_number("max_length", max_length, 2), whole_number("seed", seed)

    @cached_property
    def texts(self) -> dict[str, Sequence[AlignedTexts]]:
        """The pairs of each split as text."""
        if self.data is None:
            return {split: Generated(size, partial(sentence, split)) for split, size in GENERATED.items()}
        pairs = [pair for path in self._files() for pair in _read(path, self.reverse)]
        judged = [pair for pair in pairs if pair.gold is not None]
        if len(judged) < 2:
            raise BadValue(
                f"data: {self.data} has gold links for {len(judged)} pairs. Give NAME.gold beside NAME.src-tgt."
            )
        where = shares([pair.source + SEPARATOR + pair.target for pair in judged], self.seed, [0.2])
        parts: dict[str, list[AlignedTexts]] = {"train": pairs, "validation": [], "test": []}
        for pair in judged:
            parts["test" if where[pair.source + SEPARATOR + pair.target] else "validation"].append(pair)
        return dict(parts)

    def _files(self) -> list[Path]:
        assert self.data is not None
        found: list[Path] = []
        for path in paths_of(self.data):
            found += listed(path, [".src-tgt"]) if path.is_dir() else [path] if path.suffix != ".gold" else []
        if not found:
            raise BadValue(f"data: {self.data} holds no file NAME.src-tgt with lines `source {SEPARATOR} target`.")
        return found

    def _ready(self) -> None:
        if hasattr(self, "source_vocabulary"):
            return
        train = self.texts["train"][:2000] if self.data is None else self.texts["train"]
        sides: list[list[str]] = [[pair.source for pair in train], [pair.target for pair in train]]
        made: list[Vocabulary] = [vocabulary.build("word", side, None, self.min_count) for side in sides]
        self.source_vocabulary, self.target_vocabulary = made
        every = train if self.data is None else [pair for split in self.texts.values() for pair in split]
        self.max_source = min(self.limit, max(len(split_words(pair.source)) for pair in every))
        self.max_target = min(self.limit, max(len(split_words(pair.target)) for pair in every)) + 1

    def streams(self) -> dict[str, Any]:
        """The source."""
        self._ready()
        return super().streams()

    def answers(self) -> list[Writes]:
        """The translation."""
        self._ready()
        return [replace(one, guide=self.guide) for one in super().answers()]

    def examples(self, split: str) -> Sequence[GoldPair]:
        """The pairs of a split."""
        self._ready()
        texts = self.texts[checked_split(split)]
        if self.data is None:
            return Generated(len(texts), lambda index: self._encoded(texts[index], split))
        found = [self._encoded(pair, split) for pair in texts]
        if split == "train":
            found = [pair for pair in found if self._fits(pair)]
        return found

    def _fits(self, pair: GoldPair) -> bool:
        return len(pair.source) <= self.max_source and len(pair.target or ()) <= self.max_target

    def _encoded(self, pair: AlignedTexts, split: str) -> GoldPair:
        ends = self.source_vocabulary.encode(pair.source), self.target_vocabulary.encode(pair.target)
        return GoldPair(*self.pair(*ends, None)[:2], None, pair.gold, split == "train")

    def collate(self, examples: Sequence[Pair | GoldPair], generator: torch.Generator) -> Batch:
        """Both sides padded at their ends, and the gold links."""
        batch = super().collate([Pair(*example[:3]) for example in examples], generator)
        gold = tuple(getattr(example, "gold", None) for example in examples)
        answers = dict(batch.answers)
        if self.guide and answers and all(getattr(example, "training", False) for example in examples):
            answers[GUIDE] = self._links(examples, answers[TARGETS].data.shape[1], batch.inputs.shape[1])
        return Batch(batch.streams, answers, batch.index, {**batch.notes, GOLD: gold})

    @cached_property
    def _word_model(self) -> DiagonalModel:
        """What draws the attention, learned from the training pairs."""
        trained = [(pair.source, (pair.target or ())[:-1]) for pair in self._training_pairs()]
        return DiagonalModel(trained, tension=self.tension)

    def _links(self, examples: Sequence[Pair | GoldPair], targets: int, sources: int) -> Stream:
        """How much each row of a decoder should attend to each source word, (b,targets,sources), and which rows."""
        found = torch.zeros(len(examples), targets, sources)
        guided = torch.zeros(len(examples), targets, dtype=torch.bool)
        first = int(self.rows == "read")
        for place, pair in enumerate(examples):
            shares = torch.from_numpy(self._word_model.shares(pair.source, (pair.target or ())[:-1])).float()
            found[place, first : first + len(shares), : shares.shape[1]] = shares
            guided[place, first : first + len(shares)] = True
        return Stream(found, guided)

    def metrics(self) -> tuple[Metric, ...]:
        """Loss, accuracy and perplexity of the words; the error rate of the mean of all layers and heads."""
        look: Any = self._look
        return (LOSS, ACCURACY, PERPLEXITY, Counts(**{**vars(AER), "look": look}))

    def _look(self, answered: Answered) -> dict[str, float] | None:
        counts: dict[str, float] | None = None
        for maps, gold, _ in judged_maps(answered.model, answered.batch, self.rows):
            counts = added(counts, {**tally(attended_links(mean_map(maps)), gold), "pairs": 1.0})
        return counts

    def completed(self, *arguments: Any, **options: Any) -> list[tuple[Metric, State]]:
        """Nothing: its translations are not judged, its attention is."""
        return []

    def examine(
        self,
        model: Answering,
        split: str = "test",
        *,
        batch_size: int = 32,
        most: int = 1000,
        device: torch.device | str = "cpu",
    ) -> list[tuple[Metric, State]]:
        """The error rate of each layer, of the diagonal and of IBM model 1; how much is not aligned one to one."""
        states: dict[str, dict[str, float]] = {}

        def judge(name: str, links: Pairs, gold: Gold) -> None:
            states[name] = added(states.get(name), {**tally(links, gold), "pairs": 1.0})

        trained = [(pair.source, (pair.target or ())[:-1]) for pair in self._training_pairs()]
        yardstick = IBM1(trained)
        examples = evenly(self.examined_examples(split), most)
        shapes: dict[str, dict[str, float]] = {}
        for begin in range(0, len(examples), batch_size):
            some = [examples[index] for index in range(begin, min(begin + batch_size, len(examples)))]
            batch = self.collate(some, torch.Generator()).to(device)
            for rows in ROWS:
                for maps, gold, example in judged_maps(model, batch, rows):
                    for layer, weights in maps.items():
                        judge(f"aer {layer} {rows}", attended_links(weights), gold)
                    if rows != self.rows:
                        continue
                    source, target = some[example].source, (some[example].target or ())[:-1]
                    judge("aer_diagonal", diagonal_links(len(source), len(target)), gold)
                    judge("aer_ibm1", yardstick.links(source, target), gold)
                    if self.guide:
                        judge("aer_diagonal_model", self._word_model.links(source, target), gold)
                    links = {"": attended_links(mean_map(maps)), "gold ": gold.sure}
                    for name, one in links.items():
                        shapes[name] = added(shapes.get(name), not_one_to_one(one, len(target)))
        found: list[tuple[Metric, State]] = [
            (Counts(**{**vars(AER), "name": name}), state) for name, state in sorted(states.items())
        ]
        return found + shape_metrics(shapes)

    def _training_pairs(self) -> Sequence[GoldPair]:
        """The pairs that the yardstick learns from: those of the training, at most as many as are read in a minute."""
        examples = self.examples("train")
        return [examples[index] for index in range(min(len(examples), 5000))]

    def protocol(self) -> dict[str, Any]:
        """Which attention the error rate is of, and what was learned from."""
        where = f"mean of all layers and heads, rows that have {self.rows} the word"
        found = {"aer": f"argmax of {where}; words between spaces; sink above the best word: null"}
        if self.data is not None:
            found["pairs"] = (
                "text of all pairs is for training; gold links only judge, a fifth for validation, the others the test"
            )
        return found

    def state(self) -> dict[str, Any]:
        """Vocabularies and lengths."""
        self._ready()
        return super().state()


def judged_maps(model: Answering, batch: Batch, rows: str) -> Iterator[tuple[dict[str, Any], Gold, int]]:
    """The weights (t,n) of each layer, the gold links and the place of each example of a batch that has gold links."""
    golds = batch.notes.get(GOLD, ())
    if all(gold is None for gold in golds):
        return
    weights = model.attention_to_source(batch)
    if not weights:
        raise BadValue("model: no layer of it attends to the source with weights that could be aligned.")
    for example, gold in enumerate(golds):
        if gold is not None:
            yield map_of(weights, batch, example, rows), gold, example


@reads_file
def _read(path: Path, reverse: bool) -> list[AlignedTexts]:
    """The pairs of a file, with gold links where there is a file of them beside it."""
    beside = path.with_suffix(".gold")
    lines = read_lines(path, other="")
    gold: list[Gold] | None = read_gold(beside) if beside.is_file() else None
    if gold is not None and len(gold) != len(lines):
        raise BadValue(
            f"data: {path} has {len(lines)} pairs, {beside} gold links for {len(gold)}. Line by line they match."
        )
    found = []
    for number, line in enumerate(lines, 1):
        sides = [trimmed(side) for side in line.split(SEPARATOR)]
        if len(sides) != 2 or not all(sides):
            raise wrong(path, number, f"expected `source {SEPARATOR} target`, got {len(sides)} parts or an empty one.")
        one = None if gold is None else gold[number - 1]
        if one is not None:
            counts = [len(split_words(side)) for side in sides]
            for link in sorted(one.possible):
                if link[0] >= counts[0] or link[1] >= counts[1]:
                    raise wrong(
                        beside,
                        number,
                        f"links word {link[0] + 1} to word {link[1] + 1}, but the pair has {counts[0]} and {counts[1]} "
                        "words. Do the files belong together?",
                    )
        if reverse:
            sides.reverse()
            one = None if one is None else Gold(*({(b, a) for a, b in part} for part in (one.sure, one.possible)))
        found.append(AlignedTexts(sides[0], sides[1], one))
    return found
