"""`align`: translate, and be judged by the words that the attention aligns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.errors import BadValue
from regard.support.arguments import not_negative, whole_number
from regard.support.declared import at_least, one_of, option
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
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.parallel import KnownSides, Pair, ParallelTask
from regard_workbench.tasks.text.split_words import split_words, trimmed

GENERATED = {"train": 20_000, "validation": 200, "test": 500}
ROWS = ("written", "read")
SEPARATOR = "|||"
MOST = 1000  # pairs of a split that an evaluation examines
GOLD = "gold"  # the note of a batch that holds the gold links
AER = Counts("aer", higher_is_better=False, unit=SHARE, over="sentence pairs", total="pairs", made=error_rate)


class GoldPair(NamedTuple):
    """A source, its target and its gold links. Behaves as `parallel.Pair`."""

    source: Sequence[int]
    target: Sequence[int] | None = None
    reference: str | None = None
    gold: Gold | None = None
    training: bool = False  # whether a batch holds the links that guide its attention

    @property
    def words(self) -> tuple[Sequence[int], Sequence[int]]:
        """The words of both sides, without the end."""
        return self.source, (self.target or ())[:-1]


class AlignmentJudge(Judge):
    """Measures whether attention aligns the words that gold links align."""

    def examine(
        self, task: Align, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """The error rate of each layer, of the diagonal and of IBM model 1; how much is not aligned one to one."""
        states: dict[str, dict[str, float]] = {}

        def judge(name: str, links: Pairs, gold: Gold) -> None:
            states[name] = added(states.get(name), {**tally(links, gold), "pairs": 1.0})

        yardstick = IBM1(task.training_words())
        examples = evenly(task.examined_examples(split), MOST)
        shapes: dict[str, dict[str, float]] = {}
        for begin in range(0, len(examples), batch_size):
            group = examples[begin : begin + batch_size]
            batch = task.collate(group, torch.Generator()).to(device)
            for rows in ROWS:
                for maps, gold, place in judged_maps(model, batch, rows):
                    for layer, weights in maps.items():
                        judge(f"aer {layer} {rows}", attended_links(weights), gold)
                    if rows != task.rows:
                        continue
                    source, target = group[place].words
                    judge("aer_diagonal", diagonal_links(len(source), len(target)), gold)
                    judge("aer_ibm1", yardstick.links(source, target), gold)
                    if task.guide:
                        judge("aer_diagonal_model", task.word_model.links(source, target), gold)
                    for name, links in {"": attended_links(mean_map(maps)), "gold ": gold.sure}.items():
                        shapes[name] = added(shapes.get(name), not_one_to_one(links, len(target)))
        rates = [(Counts(**{**vars(AER), "name": name}), state) for name, state in sorted(states.items())]
        return [*rates, *shape_metrics(shapes)]

    def protocol(self, task: Align) -> dict[str, Any]:
        """Which attention the error rate is of, and what was learned from."""
        where = f"mean of all layers and heads, rows that have {task.rows} the word"
        words = {"aer": f"argmax of {where}; words between spaces; sink above the best word: null"}
        if task.data is not None:
            words["pairs"] = (
                "text of all pairs is for training; gold links only judge, a fifth for validation, the others the test"
            )
        return words


@task("align")
class Align(ParallelTask):
    """Learns to translate; judged by the alignment error rate of its attention (`regard evaluate`: layer by layer).

    Learned is translation alone: gold links only judge. So the text of every pair is for training; of the pairs with
    gold links a fifth is for validation and the rest for the test. Beside it stand the diagonal, and IBM model 1 on the
    same training pairs. From few pairs a network does not find out by itself which words translate each other: `guide`
    draws its attention to the links of a word model of the same pairs. Words are what stands between spaces or tabs.
    Without files: two made-up languages.
    """

    judge = AlignmentJudge.by(AER)
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

    data: Data | None = option(
        "NAME.src-tgt (lines `source ||| target`) with NAME.gold beside it (`i-j` sure, `ipj` possible, from 1); "
        "a folder of these; pairs without gold are for training alone",
        default=None,
    )
    rows: str = option(
        "written (the row that writes a word aligns it) or read (the row that has just read it)",
        one_of(ROWS),
        default="written",
    )
    guide: float = option(
        "weight of a loss that draws the attention to the links that IBM model 2 with a diagonal prior finds in the "
        "training pairs (`aer_diagonal_model`); 0: none",
        not_negative,
        default=0.0,
    )
    tension: float = option("how closely those links keep to the diagonal", not_negative, default=4.0)
    reverse: bool = option("translate the second side into the first", default=False)
    min_count: int = option("how often a word must occur to be known", at_least(1), default=1)
    max_length: int = option("longest side in words; longer training pairs are left out", at_least(2), default=100)
    seed: int = option("which gold pairs are for validation", whole_number, default=0)

    @cached_property
    def texts(self) -> dict[str, Sequence[AlignedTexts]]:
        """The pairs of each split as text."""
        if self.data is None:
            return {split: Generated(size, partial(sentence, split)) for split, size in GENERATED.items()}
        pairs = [pair for path in _files(self.data) for pair in _read(path, self.reverse)]
        judged = [pair for pair in pairs if pair.gold is not None]
        if len(judged) < 2:
            raise BadValue(
                f"data: {self.data} has gold links for {len(judged)} pairs. Give NAME.gold beside NAME.src-tgt."
            )
        where = shares([pair.source + SEPARATOR + pair.target for pair in judged], self.seed, [0.2])
        splits: dict[str, list[AlignedTexts]] = {"train": pairs, "validation": [], "test": []}
        for pair in judged:
            splits["test" if where[pair.source + SEPARATOR + pair.target] else "validation"].append(pair)
        return dict(splits)

    def fit(self) -> KnownSides:
        train = self.texts["train"][:2000] if self.data is None else self.texts["train"]
        every = train if self.data is None else [pair for pairs in self.texts.values() for pair in pairs]
        return KnownSides(
            vocabulary.build("word", [pair.source for pair in train], None, self.min_count),
            vocabulary.build("word", [pair.target for pair in train], None, self.min_count),
            min(self.max_length, max(len(split_words(pair.source)) for pair in every)),
            min(self.max_length, max(len(split_words(pair.target)) for pair in every)) + 1,
        )

    def answers(self) -> list[Writes]:
        """The translation."""
        return [replace(answer, guide=self.guide) for answer in super().answers()]

    def examples(self, split: str) -> Sequence[GoldPair]:
        """The pairs of a split."""
        _ = self.fitted
        texts = self.texts[checked_split(split)]
        if self.data is None:
            return Generated(len(texts), lambda index: self._encoded(texts[index], split))
        pairs = [self._encoded(pair, split) for pair in texts]
        return [pair for pair in pairs if self._fits(pair)] if split == "train" else pairs

    def _fits(self, pair: GoldPair) -> bool:
        sides = self.fitted
        return len(pair.source) <= sides.max_source and len(pair.target or ()) <= sides.max_target

    def _encoded(self, pair: AlignedTexts, split: str) -> GoldPair:
        sides = self.fitted
        source, target = sides.source_vocabulary.encode(pair.source), sides.target_vocabulary.encode(pair.target)
        return GoldPair(*self.pair(source, target, None)[:2], None, pair.gold, split == "train")

    def collate(self, examples: Sequence[Pair | GoldPair], generator: torch.Generator) -> Batch:
        """Both sides padded at their ends, and the gold links."""
        batch = super().collate([Pair(*example[:3]) for example in examples], generator)
        gold = tuple(getattr(example, "gold", None) for example in examples)
        answers = dict(batch.answers)
        trained = [example for example in examples if isinstance(example, GoldPair) and example.training]
        if self.guide and answers and len(trained) == len(examples):
            answers[GUIDE] = self._links(trained, answers[TARGETS].data.shape[1], batch.inputs.shape[1])
        return Batch(batch.streams, answers, batch.index, {**batch.notes, GOLD: gold})

    def training_words(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        """What word models learn from: the training pairs, at most as many as are read in a minute."""
        examples = self.examples("train")
        return [examples[index].words for index in range(min(len(examples), 5000))]

    @cached_property
    def word_model(self) -> DiagonalModel:
        """What draws the attention, learned from the training pairs."""
        return DiagonalModel(self.training_words(), tension=self.tension)

    def _links(self, examples: Sequence[GoldPair], targets: int, sources: int) -> Stream:
        """How much each row of a decoder should attend to each source word, (b,targets,sources), and which rows."""
        links = torch.zeros(len(examples), targets, sources)
        guided = torch.zeros(len(examples), targets, dtype=torch.bool)
        first = int(self.rows == "read")
        for place, pair in enumerate(examples):
            shares = torch.from_numpy(self.word_model.shares(*pair.words)).float()
            links[place, first : first + len(shares), : shares.shape[1]] = shares
            guided[place, first : first + len(shares)] = True
        return Stream(links, guided)

    def metrics(self) -> tuple[Metric, ...]:
        """Loss, accuracy and perplexity of the words; the error rate of the mean of all layers and heads."""
        look: Any = self._look
        return (LOSS, ACCURACY, PERPLEXITY, Counts(**{**vars(AER), "look": look}))

    def _look(self, answered: Answered) -> dict[str, float] | None:
        counts: dict[str, float] | None = None
        for maps, gold, _ in judged_maps(answered.model, answered.batch, self.rows):
            counts = added(counts, {**tally(attended_links(mean_map(maps)), gold), "pairs": 1.0})
        return counts


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


def _files(data: Data) -> list[Path]:
    """The files of pairs."""
    files: list[Path] = []
    for path in paths_of(data):
        files += listed(path, [".src-tgt"]) if path.is_dir() else [path] if path.suffix != ".gold" else []
    if not files:
        raise BadValue(f"data: {data} holds no file NAME.src-tgt with lines `source {SEPARATOR} target`.")
    return files


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
    pairs = []
    for number, line in enumerate(lines, 1):
        sides = [trimmed(side) for side in line.split(SEPARATOR)]
        if len(sides) != 2 or not all(sides):
            raise wrong(path, number, f"expected `source {SEPARATOR} target`, got {len(sides)} parts or an empty one.")
        links = None if gold is None else gold[number - 1]
        if links is not None:
            counts = [len(split_words(side)) for side in sides]
            for link in sorted(links.possible):
                if link[0] >= counts[0] or link[1] >= counts[1]:
                    raise wrong(
                        beside,
                        number,
                        f"links word {link[0] + 1} to word {link[1] + 1}, but the pair has {counts[0]} and {counts[1]} "
                        "words. Do the files belong together?",
                    )
        if reverse:
            sides.reverse()
            links = (
                None
                if links is None
                else Gold(*({(b, a) for a, b in index_pairs} for index_pairs in (links.sure, links.possible)))
            )
        pairs.append(AlignedTexts(sides[0], sides[1], links))
    return pairs
