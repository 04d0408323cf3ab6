"""Scenes of coloured figures, and questions about them, in the form of Sort-of-CLEVR (Santoro et al. 2017).

Every figure has a colour of its own. Questions about one figure can be answered from it alone; relational ones need the
others: what is nearest, what is furthest, how many are alike.

>>> from regard_workbench.tasks.generated.figure_questions import Figure, answered
>>> scene = [Figure("red", "circle", 5, 5), Figure("blue", "square", 9, 5), Figure("green", "circle", 30, 30)]
>>> answered("nearest", scene[0], scene, 40), answered("count", scene[0], scene, 40)
('square', '2')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.generated.draws import Draws
from regard_workbench.tasks.generated.scenes import compose

COLOURS = {
    "red": (1.0, 0.1, 0.1),
    "green": (0.1, 0.8, 0.1),
    "blue": (0.2, 0.3, 1.0),
    "orange": (1.0, 0.6, 0.1),
    "grey": (0.6, 0.6, 0.6),
    "yellow": (1.0, 1.0, 0.2),
}
OTHER = {
    "what": "what is the {colour} one",
    "left": "is the {colour} one on the left",
    "top": "is the {colour} one at the top",
}
RELATIONAL = {
    "nearest": "what is nearest to the {colour} one",
    "furthest": "what is furthest from the {colour} one",
    "count": "how many are like the {colour} one",
}
CLEAR = 1.0  # pixels by which the nearest, the furthest and the side must be clear


class Figure(NamedTuple):
    """A figure of a scene: its colour, what it is, and its middle in pixels from the left and from the top."""

    colour: str
    what: str
    x: float
    y: float


class Scenery(NamedTuple):
    """A picture (3,size,size) from 0 to 1, and the figures on it."""

    picture: NDArray[np.float32]
    figures: list[Figure]


Drawn = Callable[[Draws], tuple[NDArray[np.float32], str]]  # a figure (h,w) from 0 to 1, and what it is


def shape(side: int) -> Drawn:
    """Circles and squares, `side` pixels wide."""
    steps = np.arange(side) - (side - 1) / 2
    circle = (steps[:, None] ** 2 + steps**2 <= (side / 2) ** 2).astype(np.float32)
    figures = [(circle, "circle"), (np.ones((side, side), np.float32), "square")]
    return lambda draws: draws.among(figures)


def scenery(size: int, count: int, drawn: Drawn, draws: Draws) -> Scenery:
    """So many figures in as many colours, none on another; drawn again until all have found a place."""
    names = sorted(list(COLOURS)[:count], key=lambda _: draws.below(1 << 30))
    while True:
        figures = [drawn(draws) for _ in names]
        colours = [COLOURS[name] for name in names]
        scene = compose([pixels for pixels, _ in figures], range(count), size, size, draws, colours=colours)
        if len(scene.labels) == count:
            placed = [
                Figure(name, noun, (box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
                for name, (_, noun), box in zip(names, figures, scene.boxes.tolist(), strict=True)
            ]
            return Scenery(scene.picture, placed)


def distance(one: Figure, other: Figure) -> float:
    """Between the middles of two figures, in pixels."""
    return math.hypot(one.x - other.x, one.y - other.y)


def answered(kind: str, asked: Figure, figures: Sequence[Figure], size: int) -> str | None:
    """The answer to a question of a kind about a figure; None where it is not clear by a pixel."""
    if kind == "what":
        return asked.what
    if kind in ("left", "top"):
        before = size / 2 - (asked.x if kind == "left" else asked.y)
        return None if abs(before) < CLEAR else "yes" if before > 0 else "no"
    if kind == "count":
        return str(sum(figure.what == asked.what for figure in figures))
    far = kind == "furthest"
    by_distance = sorted(
        (figure for figure in figures if figure is not asked), key=lambda one: distance(asked, one), reverse=far
    )
    first, second = by_distance[:2]
    clear = abs(distance(asked, first) - distance(asked, second)) >= CLEAR
    return first.what if clear or first.what == second.what else None


def question(scene: Scenery, kinds: Sequence[str], draws: Draws) -> tuple[str, str, str]:
    """A question of one of these kinds about a scene, whose answer is clear; its answer, and its kind."""
    wordings = OTHER | RELATIONAL
    while True:
        kind, subject = draws.among(list(kinds)), draws.among(scene.figures)
        answer = answered(kind, subject, scene.figures, scene.picture.shape[-1])
        if answer is not None:
            return wordings[kind].format(colour=subject.colour), answer, kind
