"""Dialogue state tracking: what a user has asked for so far, as values of slots, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import torch

from regard.errors import BadValue
from regard.support.arguments import share, whole_number
from regard.support.declared import option
from regard_workbench.tasks.answers import Answer, HiddenTokens, Slot, SlotValues
from regard_workbench.tasks.answers.slots import TURNS, SlotsHead
from regard_workbench.tasks.formats.goals import Goals
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.formats.woz import REQUEST, Dialogue, Ontology, Turn, read_splits, spoken, typed_turns
from regard_workbench.tasks.generated import restaurants
from regard_workbench.tasks.measures.metrics import LOSS, SHARE, Answered, Mean, Metric
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.data import Kept
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.shared_options import MIN_COUNT
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Spelled
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text import spelling, vocabulary
from regard_workbench.tasks.text.hiding import HidesWords, SpelledPresenter
from regard_workbench.tasks.text.spelling import ASKS, CONFIRMS, SYSTEM, USER
from regard_workbench.tasks.text.text_task import KnownPieces
from regard_workbench.tasks.text.vocabulary import BLANK, START, UNKNOWN

GENERATED = {"train": 1200, "validation": 150, "test": 300}
LONGEST = 160  # positions of a turn
GOLD = "gold"  # the note of a batch with the goals and requests of each turn
SPEAKER_NAMES = {USER: "[user]", SYSTEM: "[system]", ASKS: "[asks]", CONFIRMS: "[confirms]"}


class Conversation(NamedTuple):
    """The turns of a dialogue; `swap`: how often a value is replaced by another; `first`: the turn that comes first."""

    turns: tuple[Turn, ...]
    swap: float = 0.0
    hide: float = 0.0
    first: int = 0


@dataclass(frozen=True)
class KnownGoals(KnownPieces):
    """The vocabulary, and the slots with their values."""

    slots: Goals

    @classmethod
    def restored(cls, state: Mapping[str, Any], task: Any) -> Self:
        return cls(vocabulary.restored(state["vocabulary"]), Goals.restored(state["slots"]))


class GoalJudge(Judge):
    """Names what counts as an error whatever a model says."""

    def protocol(self, task: DialogueState) -> dict[str, Any]:
        """How goals are judged."""
        if task.hides:
            return {}
        about = {"joint_goal": "goals of all turns so far against belief_state, without requests; turns read alone"}
        if outside := task.fitted.slots.outside:
            about["not in the ontology"] = f"{', '.join(sorted(outside))}: these count as errors"
        return about


class DialoguePresenter(SpelledPresenter):
    """Shows a turn beside slots and values, and answers by the goals after the last turn."""

    def show(self, task: Any, example: Conversation, batch: Batch) -> Shown:
        """The words of the turn that comes first in the batch, and the slots and values that attend to them."""
        fitted: KnownGoals = task.fitted
        turn = example.turns[example.first]
        positions = task.positions(turn)
        texts = _texts(turn, fitted.vocabulary.pieces([position[0] for position in positions]))
        pieces = [
            SPEAKER_NAMES[position[spelling.SPEAKER]] if position[0] == START else text
            for position, text in zip(positions, texts, strict=True)
        ]
        pieces += [""] * (batch.inputs.shape[1] - len(pieces))  # other turns of the dialogue may be longer
        slots = fitted.slots.values
        values = [name for slot, some in slots.items() for value in some for name in _named(slot, value)]
        return Shown(f"“{turn.user}”", pieces, streams={"goals": list(slots), "values": values})

    def decode(self, task: Any, tokens: Sequence[int]) -> str:
        """The goals after the last turn and what is asked for in it; a single hidden word where words are guessed."""
        fitted: KnownGoals = task.fitted
        if task.hides:
            return fitted.vocabulary.decode(tokens)
        goals = fitted.slots
        state: dict[str, str] = {}
        requests: set[str] = set()
        for begin in range(0, len(tokens), goals.columns):
            turn_goals, requests = goals.meaning(tokens[begin : begin + goals.columns])
            state.update(turn_goals)
        answers = [f"{slot} = {value}" for slot, value in state.items()]
        return ", ".join([*answers, *(f"asks for {request}" for request in sorted(requests))]) or "nothing yet"


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
    """

    judge = GoalJudge.by(Mean("joint_goal", unit=SHARE, over="turns"))  # `metrics` says how it is measured
    presenter = DialoguePresenter()
    fitted = Kept(KnownGoals)
    tried = ("--text", "i want thai food | which part of town do you prefer ? | in the north please")
    recipe = Recipe(model="tracker", steps=400, batch_size=8, lr=1e-3, warmup=50, reaches={"joint_goal": 0.95})

    data: Data | None = option(
        "WOZ 2.0 JSON: a folder with train, validate and test files and their ontology, or files", default=None
    )
    swap: float = option(
        "share of training turns in which a value is replaced by another of its slot, in words and label",
        share,
        default=0.3,
    )
    hide: float = option(
        "share of a training turn's words made unknown (their spelling stays), others each time", share, default=0.1
    )
    min_count: int = MIN_COUNT
    seed: int = option(
        "which dialogues are kept for validation and test where there are no files for them", whole_number, default=0
    )

    @cached_property
    def _files(self) -> tuple[dict[str, list[Dialogue]], Ontology | None]:
        if self.data is None:
            dialogues = {split: list(restaurants.dialogues(split, count)) for split, count in GENERATED.items()}
            return dialogues, restaurants.ONTOLOGY
        return read_splits(self.data, self.encoding, self.seed, self.whole, self.typed(encoding="latin-1"))

    def read(self) -> dict[str, list[Dialogue]]:
        return self._files[0]

    def fit(self) -> KnownGoals:
        train = self.training_rows
        goals = Goals.of(self._files[1], train)
        texts = [text for dialogue in train for text in dialogue.utterances()]
        named = [spoken(text) for slot, values in goals.values.items() for text in (slot, *values)]
        return KnownGoals(vocabulary.build("word", texts + named * self.min_count, None, self.min_count), goals)

    def streams(self) -> dict[str, Spelled]:
        """The words of a turn."""
        return {INPUTS: self.spelled(LONGEST)}

    def answers(self) -> list[Answer]:
        """The values of the slots; hidden words for models that cannot track."""
        words, goals = self.fitted.vocabulary, self.fitted.slots
        slots = tuple(
            Slot(
                tuple(spelling.spelled(words, spoken(slot), USER)),
                tuple(tuple(spelling.spelled(words, spoken(value), USER)) for value in values),
                several=slot == REQUEST,
            )
            for slot, values in goals.values.items()
        )
        return [SlotValues(slots), HiddenTokens(len(words), BLANK)]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss, joint goal, goals of single turns, requests."""
        if self.hides:
            return super().metrics()
        names = ("joint_goal", "turn_goal", "request")
        looks = [
            Mean(name, unit=SHARE, over="turns", look=partial(self._share, column)) for column, name in enumerate(names)
        ]
        return (LOSS, *looks)

    def _share(self, column: int, answered: Answered) -> tuple[float, float] | None:
        if GOLD not in answered.batch.notes or answered.batch.targets is None:
            return None
        verdicts = answered.once(self.judged)
        return float(sum(turn[column] for turn in verdicts)), float(len(verdicts))

    def judged(self, answered: Answered) -> list[tuple[bool, bool, bool]]:
        """For each turn whether all goals so far, its own goals and its requests are right."""
        goals = self.fitted.slots
        head = SlotsHead(self.problem.answer)  # type: ignore[arg-type]
        chosen: list[list[int]] = head.choices(answered.outputs).tolist()
        turns = sorted(zip(answered.batch.notes[TURNS], chosen, answered.batch.notes[GOLD], strict=True))
        verdicts = []
        state: dict[str, str] = {}
        for (_, number), choice, gold in turns:
            state = state if number else {}
            turn_goals, requests = goals.meaning(choice)
            state = {**state, **turn_goals}
            right_goals = dict(pair for pair in gold[0] if pair[0] != REQUEST)
            right_requests = {value for slot, value in gold[0] if slot == REQUEST}
            verdicts.append((state == dict(gold[1]), turn_goals == right_goals, requests == right_requests))
        return verdicts

    def encoded(self, rows: Sequence[Dialogue], *, training: bool) -> list[Conversation]:
        for dialogue in rows:
            self.fitted.slots.check(dialogue)
        swap, hide = (self.swap, self.hide) if training else (0.0, 0.0)
        return [Conversation(dialogue.turns, swap, hide) for dialogue in rows]

    def length(self, example: Conversation) -> int:
        """Words of the longest turn."""
        return max(len(turn.system.split()) + len(turn.user.split()) for turn in example.turns)

    def collate(self, examples: Sequence[Conversation], generator: torch.Generator) -> Batch:
        """The turns of all dialogues, one row each; from a dialogue's `first` on, then those before it."""
        goals = self.fitted.slots
        rows, places, gold = [], [], []
        for number, example in enumerate(examples):
            count = len(example.turns)
            for place in range(example.first - count, example.first):
                places.append((number, place % count))
                turn = example.turns[place]
                rows.append(goals.swapped(turn, example.swap, generator) if example.swap else turn)
                gold.append((turn.label, turn.state))
        texts = [self.positions(turn) for turn in rows]
        if self.hides:
            return self.hidden(texts, generator)
        data, keep = spelling.padded_words(texts)
        if any(example.hide for example in examples):
            shares = torch.tensor([examples[number].hide for number, _ in places])
            gone = torch.rand(data.shape[:2], generator=generator) < shares[:, None]
            data[..., 0].masked_fill_(gone & (data[..., 0] >= len(vocabulary.SPECIAL)), UNKNOWN)
        targets = torch.tensor([goals.target(turn.label) for turn in rows])
        return Batch.of(data, keep, targets, turns=tuple(places), gold=tuple(gold))

    def positions(self, turn: Turn) -> list[tuple[int, ...]]:
        """What the user said, what the system had said, and the system's acts, each after a mark."""
        return [
            position
            for speaker, text in _said(turn)
            for position in (spelling.mark(START, speaker), *spelling.spelled(self.fitted.vocabulary, text, speaker))
        ][:LONGEST]

    def encode(self, text: str) -> Conversation:
        """A dialogue: turns separated by " | ", the user first and last: "thai food | which area ? | the north"."""
        utterances = typed_turns(text)
        if len(utterances) % 2 == 0:
            raise BadValue(
                '--text: expected an odd number of turns, separated by "|", the user first and last, for instance '
                f'"thai food | which area ? | the north", got {len(utterances)}.'
            )
        turns = zip(["", *utterances[1::2]], utterances[0::2], strict=True)
        return Conversation(tuple(Turn(system, user) for system, user in turns), first=len(utterances) // 2)


def _said(turn: Turn) -> list[tuple[int, str]]:
    """What the user said, what the system had said, and its acts in words, each with its kind."""
    acts = [(ASKS if len(act) == 1 else CONFIRMS, spoken(" ".join(act))) for act in turn.acts]
    return [(USER, turn.user), (SYSTEM, turn.system), *acts]


def _texts(turn: Turn, pieces: list[str]) -> list[str]:
    """The words as they were said, also those the vocabulary does not hold; pieces in place of marks."""
    words = [word for _, text in _said(turn) for word in ("", *text.split())]
    return [word or piece for word, piece in zip(words, pieces, strict=False)]


def _named(slot: str, value: str) -> list[str]:
    """A name for each word of a value, since each attends by itself: "food: [north] indian", "food: north [indian]"."""
    words = spoken(value).split()
    if len(words) == 1:
        return [f"{slot}: {value}"]
    return [
        f"{slot}: {' '.join(f'[{word}]' if at == place else word for at, word in enumerate(words))}"
        for place in range(len(words))
    ]
