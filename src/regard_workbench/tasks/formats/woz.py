"""WOZ 2.0 JSON: dialogues with the user's goals, and the ontology of slots and values.

A file is a list of objects `{"dialogue_idx": …, "dialogue": [turn, …]}`. A turn holds what the system said and then the
user (`system_transcript`, `transcript`), the system's acts (`"area"`: asks for it; `["food", "thai"]`: confirms it),
what the user said about slots in this turn (`turn_label`) and in all turns so far (`belief_state`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import BadValue
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.json_values import JsonWalk, read_json
from regard_workbench.tasks.formats.reading import Data, excerpt, paths_of, read_text, wrong
from regard_workbench.tasks.formats.splits import divided, files_by_split, listed

REQUEST = "request"  # the slot whose values are the slots that a user asks for
_PIECES = re.compile(r"\d+|[^\W\d_]+|[^\w\s]|_")
# British and American spelling of one value; the corpus has both, its ontology one.
_SAME = {"center": "centre"}


class Turn(NamedTuple):
    """What the system said, what the user said then, and what that means."""

    system: str
    user: str
    acts: tuple[tuple[str, ...], ...] = ()  # ("area",) asks for a slot; ("food", "thai") confirms a value
    label: tuple[tuple[str, str], ...] = ()  # slot and value, of this turn
    state: tuple[tuple[str, str], ...] = ()  # slot and value, of the goals so far
    line: int | None = None


class Dialogue(NamedTuple):
    """The turns of a dialogue, and where it was read."""

    turns: tuple[Turn, ...]
    path: Path
    line: int | None = None
    number: int = 0  # counted from 1 in its file

    @property
    def text(self) -> str:
        """All that was said, by which dialogues are told apart."""
        return "\n".join(utterance for turn in self.turns for utterance in (turn.system, turn.user))

    def utterances(self) -> list[str]:
        """What was said, one speaker after the other, without the empty opening of the system."""
        return [utterance for turn in self.turns for utterance in (turn.system, turn.user) if utterance]


Ontology = dict[str, list[str]]  # the values of each slot; those of "request" are the slots one can ask for


def spoken(text: str) -> str:
    """A text in lower case, words, numbers and punctuation separated by one space."""
    return " ".join(_PIECES.findall(text.lower()))


def joined(turns: Sequence[str]) -> str:
    """The turns of a dialogue as one line that can be typed."""
    return " | ".join(turn.replace("|", " ") for turn in turns)


def typed_turns(text: str) -> list[str]:
    """The turns of a line, separated by "|"."""
    turns = [spoken(turn) for turn in text.split("|")]
    if not all(turns):
        raise BadValue(f'--text: expected turns separated by "|", none of them empty, got {excerpt(text)}.')
    return turns


@reads_file
def read_splits(
    data: Data, encoding: str, seed: int, whole: bool, other: str = "latin-1"
) -> tuple[dict[str, list[Dialogue]], Ontology | None]:
    """The dialogues of each split and the ontology, if there is a file of it beside them."""
    paths = paths_of(data)
    files = [file for path in paths for file in (listed(path, (".json",)) if path.is_dir() else [path])]
    ontologies = [file for file in files if "ontology" in file.name.lower()]
    dialogue_files = [file for file in files if file not in ontologies]
    if not dialogue_files:
        raise BadValue(f"data: expected a .json file of dialogues, found none in {', '.join(map(str, paths))}.")
    folders = any(path.is_dir() for path in paths)
    chosen = files_by_split(dialogue_files)
    if not chosen or (len(dialogue_files) == 1 and not folders):
        named = {"train": dialogue_files}
    else:
        named = {split: [path] for split, path in chosen.items()}
    splits = {
        split: [dialogue for path in some for dialogue in read_dialogues(path, encoding, other)]
        for split, some in named.items()
    }
    ontology = read_ontology(ontologies[0], encoding, other) if ontologies else None
    return divided(splits, lambda dialogue: dialogue.text, seed, data, whole), ontology


@reads_file
def read_dialogues(path: Path, encoding: str = "utf-8", other: str = "latin-1") -> list[Dialogue]:
    """The dialogues of a file."""
    walk = JsonWalk(path, read_text(path, encoding, other))
    dialogues: list[Dialogue] = []
    for _ in walk.elements("dialogues"):
        number, line = len(dialogues) + 1, walk.line
        turns: list[tuple[int, Any]] | None = None
        for key in walk.members(f"dialogue {number}"):  # of equal keys the last counts, as in every reader of JSON
            if key == "dialogue":
                turns = [(walk.line, walk.value()) for _ in walk.elements("turns")] if walk.at_list else None
        if turns is None:
            raise wrong(path, line, f'dialogue {number}: expected an object with a list "dialogue" of turns.')
        if not turns:
            raise wrong(path, line, f"dialogue {number} has no turns. Remove it, or add what was said.")
        turned = (
            _turn(path, where, f"dialogue {number}, turn {count}", turn) for count, (where, turn) in enumerate(turns, 1)
        )
        dialogues.append(Dialogue(tuple(turned), path, line, number))
    if not dialogues:
        raise wrong(path, None, "holds no dialogue. Expected a list of them.")
    return dialogues


@reads_file
def read_ontology(path: Path, encoding: str = "utf-8", other: str = "latin-1") -> Ontology:
    """The values of each slot, from `{"informable": {slot: [value, …]}}` or that object alone."""
    value = read_json(path, encoding, other)
    slots = value.get("informable", value) if isinstance(value, dict) else None
    if not isinstance(slots, dict) or not slots:
        raise wrong(path, None, 'expected an object of slots, or {"informable": {slot: [value, …]}}.')
    for slot, values in slots.items():
        if not isinstance(values, list) or not all(isinstance(name, str) and name.strip() for name in values):
            raise wrong(path, None, f"slot {excerpt(slot)}: expected a list of values, all of them text.")
    return {slot: list(dict.fromkeys(known_value(name) for name in values)) for slot, values in slots.items()}


def known_value(value: str) -> str:
    """A value in the spelling of the ontology."""
    plain = " ".join(value.lower().split())
    return _SAME.get(plain, plain)


def _turn(path: Path, line: int, where: str, value: Any) -> Turn:
    if not isinstance(value, Mapping):
        raise wrong(path, line, f"{where}: expected an object, got {excerpt(json.dumps(value))}.")
    utterances = []
    for name in ("system_transcript", "transcript"):
        text = value.get(name, "" if name == "system_transcript" else None)
        if not isinstance(text, str):
            raise wrong(path, line, f"{where}: expected a text {name!r}, got {excerpt(json.dumps(text))}.")
        utterances.append(spoken(text))
    if not utterances[1]:
        raise wrong(path, line, f"{where}: the user says nothing ('transcript' is empty). Remove the turn.")
    label = _pairs(path, line, f"{where}: turn_label", value.get("turn_label", []))
    state: list[tuple[str, str]] = []
    goals = value.get("belief_state", [])
    for goal in goals if isinstance(goals, list) else [goals]:
        if not isinstance(goal, Mapping) or not isinstance(goal.get("slots"), list):
            raise wrong(path, line, f"{where}: belief_state: expected objects with act and slots.")
        if goal.get("act") != REQUEST:
            state += _pairs(path, line, f"{where}: belief_state", goal["slots"])
    return Turn(
        utterances[0], utterances[1], _acts(path, line, where, value.get("system_acts", [])), label, tuple(state), line
    )


def _pairs(path: Path, line: int, where: str, value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or not all(_texts(pair, (2,)) for pair in value):
        raise wrong(path, line, f"{where}: expected pairs [slot, value], got {excerpt(json.dumps(value))}.")
    return tuple((slot.strip(), known_value(slot_value)) for slot, slot_value in value)


def _acts(path: Path, line: int, where: str, value: Any) -> tuple[tuple[str, ...], ...]:
    acts: list[Any] = [[act] if isinstance(act, str) else act for act in value] if isinstance(value, list) else [None]
    if not all(_texts(act, (1, 2)) for act in acts):
        raise wrong(
            path, line, f"{where}: system_acts: expected slots or [slot, value], got {excerpt(json.dumps(value))}."
        )
    return tuple((act[0].strip(), *map(known_value, act[1:])) for act in acts)


def _texts(value: Any, lengths: Sequence[int]) -> bool:
    return isinstance(value, list) and len(value) in lengths and all(isinstance(text, str) for text in value)
