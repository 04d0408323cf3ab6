"""How an example is shown to people: what its positions are called, and a picture where it is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.text.split_words import split_words
from regard_workbench.tasks.text.vocabulary import Vocabulary, words_of

LONGEST = 40  # positions of a text beside a figure: more cannot be read


@dataclass(frozen=True)
class Shown:
    """What a page, a figure or a printed answer puts beside the attention to one example."""

    words: str  # what the example is: “the text”, an image of a 3
    pieces: list[str]  # what each position of the first stream is called
    called: str = "tokens"  # what its positions are: tokens, patches, steps
    target: list[str] = field(default_factory=list)  # what each position of a written target is called
    picture: NDArray[np.float32] | None = None  # (height, width) or (height, width, 3), from 0 to 1
    grid: tuple[int, int] | None = None  # rows and columns of positions over the picture
    streams: dict[str, list[str]] = field(default_factory=dict)  # names of positions of further streams


@dataclass(frozen=True)
class Looked:
    """What a prediction was drawn from: weights of named columns, a list for each named row; one list without a row."""

    weights: list[list[float]]
    columns: list[str]
    rows: list[str] = field(default_factory=list)
    source: str = ""  # whose weights these are, in words


@dataclass(frozen=True)
class Understood:
    """How much of an input that a user typed the task understood."""

    pieces: list[str]  # what each position is called, as it was typed where that is clear
    known: list[bool]  # whether the vocabulary holds the piece
    notes: list[str] = field(default_factory=list)  # what was cut off or is unknown, in words


def understood(vocabulary: Vocabulary, ids: Sequence[int], text: str, kept: str) -> Understood:
    """How much of a typed text the ids hold; of a long one `kept` ("first" or "last") pieces were read."""
    notes = []
    piece_count = len(vocabulary.encode(text))
    if piece_count > len(ids):
        notes.append(f"only the {kept} {len(ids):,} of {piece_count:,} pieces were read")
    in_vocabulary = [number != vocabulary.unknown for number in ids]
    notes += unknown_notes(in_vocabulary, "pieces")
    split: dict[str, Callable[[str], list[str]]] = {"character": list, "word": words_of}
    pieces = split[vocabulary.level](text)[: len(ids)] if vocabulary.level in split else []
    return Understood(pieces if len(pieces) == len(ids) else vocabulary.pieces(ids), in_vocabulary, notes)


def unknown_notes(known: Sequence[bool], what: str = "words") -> list[str]:
    """A note on how much of an input is unknown; none where all of it is known."""
    return [] if all(known) else [f"{known.count(False):,} of {len(known):,} {what} are unknown to this run"]


def numbered(batch: Batch) -> Shown:
    """Positions by their number, for a task that has no names for them."""
    length = batch.inputs.shape[1] if batch.inputs.dim() > 1 else 1
    called = "steps" if batch.inputs.dim() == 3 else "tokens"
    name = "step " if called == "steps" else ""
    return Shown(f"{length} {called}", [f"{name}{number}" for number in range(length)], called)


def texts(inputs: Sequence[str], target: Sequence[str] = ()) -> Shown:
    """A text, and the one to be written for it."""
    letters = all(len(piece) <= 1 for piece in inputs)
    sentence = " ".join(split_words(("" if letters else " ").join(inputs)))
    return Shown(f"“{sentence}”", list(inputs), target=list(target))
