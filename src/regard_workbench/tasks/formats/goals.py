"""Slots with their values: what a choice of values means, what a label is as a target, what an ontology lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from regard.errors import BadValue
from regard_workbench.tasks.answers.slots import OUTSIDE
from regard_workbench.tasks.formats.reading import excerpt, wrong
from regard_workbench.tasks.formats.woz import REQUEST, Dialogue, Ontology, Turn, spoken

ANY = "dontcare"  # every goal may be of no matter to a user


class Goals:
    """The values of each slot. Of a goal one value may hold; of the slot "request" any number."""

    def __init__(self, values: Mapping[str, Sequence[str]]) -> None:
        self.values = {slot: tuple(names) for slot, names in values.items()}
        self._places = {
            slot: {value: place for place, value in reversed(list(enumerate(names)))}
            for slot, names in self.values.items()
        }
        self.outside: set[str] = set()  # what data hold and the slots do not

    @classmethod
    def of(cls, ontology: Ontology | None, train: Sequence[Dialogue]) -> Goals:
        """Those of an ontology, and "dontcare" for each goal; without one, those of the training dialogues."""
        if ontology is None:
            named: dict[str, set[str]] = {}
            for slot, value in (pair for dialogue in train for turn in dialogue.turns for pair in turn.label):
                named.setdefault(slot, set()).add(value)
            ontology = {slot: sorted(named[slot]) for slot in sorted(named)}
            if not ontology:
                raise BadValue(f"{train[0].path}: no turn has a turn_label, and there is no ontology beside it.")
        goals = {slot: list(values) for slot, values in ontology.items() if slot != REQUEST}
        for values in goals.values():
            if ANY not in values:
                values.append(ANY)
        return cls({**goals, **({REQUEST: ontology[REQUEST]} if REQUEST in ontology else {})})

    @classmethod
    def restored(cls, state: Any) -> Goals:
        """Those of a task's state."""
        lists = isinstance(state, Mapping) and all(isinstance(values, list) for values in state.values())
        if not lists or not all(isinstance(value, str) for values in state.values() for value in values):
            raise BadValue("slots: expected an object of lists of values, as `state` makes it.")
        return cls(state)

    def state(self) -> dict[str, list[str]]:
        """The values of each slot, as a task keeps them."""
        return {slot: list(values) for slot, values in self.values.items()}

    @property
    def columns(self) -> int:
        """The width of a target: one for each goal, one for each request."""
        return sum(len(values) if slot == REQUEST else 1 for slot, values in self.values.items())

    def check(self, dialogue: Dialogue) -> None:
        """Refuse slots that are not known; note values that are not."""
        for number, turn in enumerate(dialogue.turns, 1):
            for slot, value in (*turn.label, *turn.state):
                if slot not in self.values:
                    raise wrong(
                        dialogue.path,
                        turn.line,
                        f"dialogue {dialogue.number}, turn {number}: there is no slot {excerpt(slot)}. "
                        f"Known: {', '.join(self.values)}. "
                        "Correct it, or add it to the ontology.",
                    )
                if value not in self._places[slot]:
                    self.outside.add(f"{slot} = {value}")

    def target(self, label: Sequence[tuple[str, str]]) -> list[int]:
        """The columns of a target for the slots and values of a turn."""
        target: list[int] = []
        labelled: dict[str, list[str]] = {}
        for slot, value in label:
            labelled.setdefault(slot, []).append(value)
        for slot, values in self.values.items():
            right = labelled.get(slot, [])
            if slot == REQUEST:
                target += [int(value in right) for value in values]
            elif right:
                place = self._places[slot].get(right[-1])
                target.append(OUTSIDE if place is None else place + 1)
            else:
                target.append(0)
        return target

    def meaning(self, choice: Sequence[int]) -> tuple[dict[str, str], set[str]]:
        """The goals of a choice, in columns of a target, and what it asks for."""
        goals: dict[str, str] = {}
        requests: set[str] = set()
        column = 0
        for slot, values in self.values.items():
            if slot == REQUEST:
                requests = {value for value, chosen in zip(values, choice[column:], strict=False) if chosen}
                column += len(values)
                continue
            if choice[column] > 0:
                goals[slot] = values[choice[column] - 1]
            column += 1
        return goals, requests

    def swapped(self, turn: Turn, often: float, generator: torch.Generator) -> Turn:
        """The turn with a value of its label replaced by another of the slot, wherever the words stand; or as it is.

        Many values are rare in training, and how a value is asked for does not depend on which one it is.
        """
        if float(torch.rand((), generator=generator)) >= often:
            return turn
        labelled = [(slot, value) for slot, value in turn.label if slot != REQUEST and value in self.values[slot]]
        replaceable = [
            (slot, value) for slot, value in labelled if f" {spoken(value)} " in f" {turn.user} {turn.system} "
        ]
        if not replaceable:
            return turn
        slot, value = replaceable[int(torch.randint(len(replaceable), (), generator=generator))]
        alternatives = [alternative for alternative in self.values[slot] if alternative not in (value, ANY)]
        if not alternatives:
            return turn
        replacement = alternatives[int(torch.randint(len(alternatives), (), generator=generator))]

        def replaced(text: str) -> str:
            return f" {text} ".replace(f" {spoken(value)} ", f" {spoken(replacement)} ").strip()

        return turn._replace(
            user=replaced(turn.user),
            system=replaced(turn.system),
            acts=tuple(tuple(replacement if words == value else words for words in act) for act in turn.acts),
            label=tuple((name, replacement if (name, label) == (slot, value) else label) for name, label in turn.label),
        )
