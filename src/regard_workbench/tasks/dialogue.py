"""Dialogue state tracking: what a user has asked for so far, as values of slots, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch

from regard.errors import BadValue
from regard.support.arguments import share
from regard_workbench.tasks.answers import Answer, HiddenTokens, Slot, SlotValues
from regard_workbench.tasks.answers.slots import TURNS, SlotsHead
from regard_workbench.tasks.formats.goals import Goals
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.formats.woz import REQUEST, Dialogue, Ontology, Turn, read_splits, spoken, typed_turns
from regard_workbench.tasks.generated import restaurants
from regard_workbench.tasks.measures.metrics import LOSS, SHARE, Answered, Mean, Metric
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Spelled
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text import spelling, vocabulary
from regard_workbench.tasks.text.hiding import HidesWords
from regard_workbench.tasks.text.spelling import ASKS, CONFIRMS, SYSTEM, USER
from regard_workbench.tasks.text.vocabulary import BLANK, START, UNKNOWN, Vocabulary

GENERATED = {"train": 1200, "validation": 150, "test": 300}
LONGEST = 160  # positions of a turn
GOLD = "gold"  # the note of a batch with the goals and requests of each turn


class Conversation(NamedTuple):
    """The turns of a dialogue; `swap`: how often a value is replaced by another; `first`: the turn that comes first."""

    turns: tuple[Turn, ...]
    swap: float = 0.0
    hide: float = 0.0
    first: int = 0


@task("dialogue")
class DialogueState(HidesWords):
    """Tracks what a user wants, slot by slot, through a dialogue; without files, generated ones about restaurants.

    Each turn is read alone: the user's words, the system's words before them and the system's acts. What is found in
    it replaces earlier values of the same slots, and `joint_goal` is the share of turns after which all slots are
    right, `request` the share of turns with exactly the right requests (Mrkšić et al. 2017; Zhong et al. 2018). Models
    that give a row for each position (encoder) guess hidden words instead: pre-training, to be carried over with
    --init-from. What it is worth, with an interval, on equal terms:

        regard train dialogue --data woz2 --steps 2000 --out runs/words \\
            --model "encoder(dim=128, layers=2, num_heads=4)"
        regard compare dialogue --data woz2 --steps 900 \\
            --init-from scratch,runs/words --differences

    Args:
        data: WOZ 2.0 JSON: a folder with train, validate and test files and their ontology, or files
        swap: share of training turns in which a value is replaced by another of its slot, in words and label
        hide: share of a training turn's words made unknown (their spelling stays), others each time
        min_count: how often a word must occur in training to be known
        encoding: how the files are encoded
        seed: which dialogues are kept for validation and test where there are no files for them
        whole: measure on all of a file, keep nothing of it for training; for a model trained on other data
    """

    metric: ClassVar[Metric] = Mean("joint_goal", unit=SHARE, over="turns")  # `metrics` says how it is measured
    tried = ("--text", "i want thai food | which part of town do you prefer ? | in the north please")
    recipe = Recipe(model="tracker", steps=400, batch_size=8, lr=1e-3, warmup=50, reaches={"joint_goal": 0.95})

    def __init__(
        self,
        data: Data | None = None,
        swap: float = 0.3,
        hide: float = 0.1,
        min_count: int = 1,
        encoding: str = "utf-8",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        super().__init__(data, min_count, encoding, seed, whole)
        self.swap, self.hide = share("swap", swap), share("hide", hide)
        self.goals: Goals | None = None

    @cached_property
    def _read(self) -> tuple[dict[str, list[Dialogue]], Ontology | None]:
        if self.data is None:
            parts = {split: list(restaurants.dialogues(split, count)) for split, count in GENERATED.items()}
            return parts, restaurants.ONTOLOGY
        return read_splits(self.data, self.encoding, self.seed, self.whole, self.typed(encoding="latin-1"))

    def prepare(self) -> None:
        """Slots and vocabulary, from the ontology and the training dialogues alone."""
        parts, ontology = self._read
        train = parts.get("train") or next(iter(parts.values()))
        self.goals = Goals.of(ontology, train)
        texts = [text for dialogue in train for text in dialogue.utterances()]
        known = [spoken(text) for slot, values in self.goals.values.items() for text in (slot, *values)]
        self.vocabulary = vocabulary.build("word", texts + known * self.min_count, None, self.min_count)

    def _known(self) -> tuple[Vocabulary, Goals]:
        words = self.known()
        assert self.goals is not None
        return words, self.goals

    def streams(self) -> dict[str, Spelled]:
        """The words of a turn."""
        return {INPUTS: self.spelled(LONGEST)}

    def answers(self) -> list[Answer]:
        """The values of the slots; hidden words for models that cannot track."""
        words, goals = self._known()
        slots = tuple(
            Slot(
                tuple(spelling.spelled(words, spoken(slot), USER)),
                tuple(tuple(spelling.spelled(words, spoken(value), USER)) for value in values),
                several=slot == REQUEST,
            )
            for slot, values in goals.values.items()
        )
        return [SlotValues(slots), HiddenTokens(len(words), BLANK)]

    def own_metrics(self) -> tuple[Metric, ...]:
        """Loss, joint goal, goals of single turns, requests."""
        looks = {"joint_goal": 0, "turn_goal": 1, "request": 2}
        return (
            LOSS,
            *(Mean(name, unit=SHARE, over="turns", look=_Judged(self, column)) for name, column in looks.items()),
        )

    def judged(self, answered: Answered) -> list[tuple[bool, bool, bool]]:
        """For each turn whether all goals so far, its own goals and its requests are right."""
        _, goals = self._known()
        head = SlotsHead(self.problem.answer)  # type: ignore[arg-type]
        chosen: list[list[int]] = head.choices(answered.outputs).tolist()
        turns = sorted(zip(answered.batch.notes[TURNS], chosen, answered.batch.notes[GOLD], strict=True))
        found = []
        state: dict[str, str] = {}
        for (_, number), choice, gold in turns:
            state = state if number else {}
            now, asked = goals.meaning(choice)
            state = {**state, **now}
            label = dict(pair for pair in gold[0] if pair[0] != REQUEST)
            requests = {value for slot, value in gold[0] if slot == REQUEST}
            found.append((state == dict(gold[1]), now == label, asked == requests))
        return found

    def examples(self, split: str) -> Sequence[Conversation]:
        """The dialogues of a split, in the order of the file."""
        _, goals = self._known()
        dialogues = self.part(self._read[0], split)
        for dialogue in dialogues:
            goals.check(dialogue)
        swap, hide = (self.swap, self.hide) if split == "train" else (0.0, 0.0)
        return [Conversation(dialogue.turns, swap, hide) for dialogue in dialogues]

    def length(self, example: Conversation) -> int:
        """Words of the longest turn."""
        return max(len(turn.system.split()) + len(turn.user.split()) for turn in example.turns)

    def collate(self, examples: Sequence[Conversation], generator: torch.Generator) -> Batch:
        """The turns of all dialogues, one row each; from a dialogue's `first` on, then those before it."""
        words, goals = self._known()
        rows, places, gold = [], [], []
        for number, example in enumerate(examples):
            count = len(example.turns)
            for turn in range(example.first - count, example.first):
                places.append((number, turn % count))
                one = example.turns[turn]
                rows.append(goals.swapped(one, example.swap, generator) if example.swap else one)
                gold.append((one.label, one.state))
        texts = [self._positions(words, turn) for turn in rows]
        if self.hides:
            return self.hidden(texts, generator)
        data, keep = spelling.padded_words(texts)
        if any(example.hide for example in examples):
            shares = torch.tensor([examples[number].hide for number, _ in places])
            gone = torch.rand(data.shape[:2], generator=generator) < shares[:, None]
            data[..., 0].masked_fill_(gone & (data[..., 0] >= len(vocabulary.SPECIAL)), UNKNOWN)
        targets = torch.tensor([goals.target(turn.label) for turn in rows])
        return Batch.of(data, keep, targets, turns=tuple(places), gold=tuple(gold))

    def _positions(self, words: Vocabulary, turn: Turn) -> list[tuple[int, ...]]:
        """What the user said, what the system had said, and the system's acts, each after a mark."""
        found = [spelling.mark(START, USER), *spelling.spelled(words, turn.user, USER)]
        found += [spelling.mark(START, SYSTEM), *spelling.spelled(words, turn.system, SYSTEM)]
        for act in turn.acts:
            kind = ASKS if len(act) == 1 else CONFIRMS
            found += [spelling.mark(START, kind), *spelling.spelled(words, spoken(" ".join(act)), kind)]
        return found[:LONGEST]

    def parse(self, given: Mapping[str, str]) -> Conversation:
        """A dialogue: turns separated by " | ", the user first and last: "thai food | which area ? | the north"."""
        if set(given) != {"text"}:
            return super().parse(given)  # type: ignore[no-any-return]
        said = typed_turns(given["text"])
        if len(said) % 2 == 0:
            raise BadValue(
                '--text: expected an odd number of turns, separated by "|", the user first and last, for instance '
                f'"thai food | which area ? | the north", got {len(said)}.'
            )
        turns = zip(["", *said[1::2]], said[0::2], strict=True)
        return Conversation(tuple(Turn(system, user) for system, user in turns), first=len(said) // 2)

    def show(self, example: Conversation, batch: Batch) -> Shown:
        """The words of the turn that comes first in the batch, and the slots and values that attend to them."""
        words, goals = self._known()
        turn = example.turns[example.first]
        ids = [row[0] for row in self._positions(words, turn)]
        names = {USER: "[user]", SYSTEM: "[system]", ASKS: "[asks]", CONFIRMS: "[confirms]"}
        pieces = [
            names[row[spelling.SPEAKER]] if row[0] == START else piece
            for row, piece in zip(self._positions(words, turn), self._texts(turn, words.pieces(ids)), strict=True)
        ]
        pieces += [""] * (batch.inputs.shape[1] - len(pieces))  # other turns of the dialogue may be longer
        slots = list(goals.values)
        values = [name for slot, some in goals.values.items() for value in some for name in _named(slot, value)]
        return Shown(f"“{turn.user}”", pieces, streams={"goals": slots, "values": values})

    def _texts(self, turn: Turn, pieces: list[str]) -> list[str]:
        """The words as they were said, also those the vocabulary does not hold."""
        said = ["", *turn.user.split(), "", *turn.system.split()]
        for act in turn.acts:
            said += ["", *spoken(" ".join(act)).split()]
        return [one or piece for one, piece in zip(said, pieces, strict=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        """The goals after the last turn and what is asked for in it; a single hidden word where words are guessed."""
        words, goals = self._known()
        if self.hides:
            return words.decode(tokens)
        state: dict[str, str] = {}
        asked: set[str] = set()
        for begin in range(0, len(tokens), goals.columns):
            now, asked = goals.meaning(tokens[begin : begin + goals.columns])
            state.update(now)
        parts = [f"{slot} = {value}" for slot, value in state.items()]
        return ", ".join([*parts, *(f"asks for {one}" for one in sorted(asked))]) or "nothing yet"

    def protocol(self) -> dict[str, Any]:
        """How goals are judged."""
        if self.hides:
            return {}
        found = {"joint_goal": "goals of all turns so far against belief_state, without requests; turns read alone"}
        if self.goals is not None and self.goals.outside:
            found["not in the ontology"] = f"{', '.join(sorted(self.goals.outside))}: these count as errors"
        return found

    def state(self) -> dict[str, Any]:
        """Vocabulary, slots and values."""
        _, goals = self._known()
        return {**super().state(), "slots": {slot: list(some) for slot, some in goals.values.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore vocabulary, slots and values."""
        self.vocabulary = vocabulary.restored(state["vocabulary"])
        self.goals = Goals.restored(state["slots"])


def _named(slot: str, value: str) -> list[str]:
    """A name for each word of a value, since each attends by itself: "food: [north] indian", "food: north [indian]"."""
    words = spoken(value).split()
    if len(words) == 1:
        return [f"{slot}: {value}"]
    return [
        f"{slot}: {' '.join(f'[{word}]' if at == place else word for at, word in enumerate(words))}"
        for place in range(len(words))
    ]


class _Judged:
    """A column of what `judged` says, as the sum and count of a mean. A class, so that tasks can be pickled."""

    def __init__(self, task: DialogueState, column: int) -> None:
        self.task, self.column = task, column

    def __call__(self, answered: Answered) -> tuple[float, float] | None:
        if GOLD not in answered.batch.notes or answered.batch.targets is None:
            return None
        found = answered.once(self.task.judged)
        return float(sum(row[self.column] for row in found)), float(len(found))
