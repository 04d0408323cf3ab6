"""The picture of an attack: an example before and after it, with what the model attended to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.errors import BadValue
from regard.observation import panels
from regard.observation.colours import diverging, norm, ramp
from regard.observation.figure_text import readable
from regard.support.paper_figure import PaperFigure
from regard_workbench.attacks.specimen import Array, Specimen, Version

PANEL, TITLE = 1.35, 0.55  # inches: the side of a picture, and the space above it
LINE = 0.17  # inches: the height of a word
OVER, LIGHT = 0.8, "#ffb000"  # the largest weight over a picture: opacity and colour
LONGEST = 60  # characters of a model's name
MARK = "#c4502a"  # a word that was changed


def attack_figure(names: Sequence[str], specimens: Sequence[Specimen]) -> Figure:
    """A row of pictures for each run, before and after, with change and attention; texts as words side by side."""
    if not specimens:
        raise BadValue("figure: there is no example to draw.")
    with panels.looks():
        draw = _pictures if specimens[0].before.picture is not None else _texts
        return draw(names, specimens)


def _pictures(names: Sequence[str], specimens: Sequence[Specimen]) -> Figure:
    figure = PaperFigure(figsize=(5 * PANEL, len(specimens) * (PANEL + TITLE)), layout="constrained")
    subfigures = figure.subfigures(len(specimens), 1, squeeze=False)[:, 0]
    for subfigure, name, specimen in zip(subfigures, names, specimens, strict=True):
        row = subfigure.subplots(1, 5)
        before, after = specimen.before.picture, specimen.after.picture
        assert before is not None and after is not None
        change = (after - before).mean(-1) if before.ndim == 3 else after - before
        most = float(np.abs(change).max())
        _image(row[0], before, f"before: says {readable(specimen.before.predicted)}")
        _image(row[3], after, f"after: says {readable(specimen.after.predicted)}")
        row[2].imshow(change, cmap=diverging(), vmin=-most or -1, vmax=most or 1, interpolation="none")
        wrong = specimen.before.predicted != specimen.label
        row[2].set_title("not attacked: wrong" if wrong else f"change, up to ±{most:.2g}")
        largest = _largest(specimen)
        for frame, version in ((row[1], specimen.before), (row[4], specimen.after)):
            _attention(frame, version, specimen.grid, largest)
        for frame in row:
            frame.set(xticks=[], yticks=[])
        subfigure.suptitle(_titled(name, specimen), fontsize=7.5)
    return figure


def _titled(name: str, one: Specimen) -> str:
    return f"{readable(name, LONGEST)}: example {one.number}, {readable(one.label)}"


def _image(frame: Axes, picture: Array, title: str) -> None:
    frame.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="none")
    frame.set_title(title)


def _attention(frame: Axes, version: Version, grid: tuple[int, int] | None, largest: float) -> None:
    """The attention over the picture, in its grid of positions: the more, the more opaque."""
    picture, weights = version.picture, version.attended
    assert picture is not None
    _image(frame, picture, "no attention seen" if weights is None else f"attention, up to {weights.max():.2g}")
    if weights is None:
        return
    high, wide = picture.shape[:2]
    rows, columns = grid if grid is not None and grid[0] * grid[1] == len(weights) else (len(weights), 1)
    over = np.empty((rows, columns, 4))
    over[..., :3] = to_rgb(LIGHT)
    over[..., 3] = OVER * (weights / largest).clip(0, 1).reshape(rows, columns)
    frame.imshow(over, interpolation="none", extent=(-0.5, wide - 0.5, high - 0.5, -0.5))


def _texts(names: Sequence[str], specimens: Sequence[Specimen]) -> Figure:
    """Words below each other, before on the left and after on the right of their weights."""
    longest = max(len(specimen.before.pieces) for specimen in specimens)
    figure = PaperFigure(figsize=(3.2 * len(specimens), longest * LINE + 0.9), layout="constrained")
    frames = figure.subplots(1, len(specimens), squeeze=False)[0]
    for frame, name, specimen in zip(frames, names, specimens, strict=True):
        count = len(specimen.before.pieces)
        shades = norm("linear", _largest(specimen))
        for column, version in enumerate((specimen.before, specimen.after)):
            weights = version.attended if version.attended is not None else np.zeros(count, np.float32)
            for place, word in enumerate(version.pieces):
                colour = ramp()(shades(float(weights[place]))) if place < len(weights) else "none"
                corner = (column - 0.5, place - 0.5)
                frame.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", linewidth=0.6))
                changed = specimen.before.pieces[place] != specimen.after.pieces[place]
                look: dict[str, Any] = {"color": MARK, "weight": "bold"} if changed else {}
                side = {"ha": "right"} if column == 0 else {"ha": "left"}
                at = -0.6 if column == 0 else 1.6
                frame.text(at, place, readable(word), va="center", fontsize=7, **side, **look)
        frame.set(xlim=(-3.2, 4.2), ylim=(count - 0.4, -0.6), xticks=[], yticks=[])
        answers = f"says {readable(specimen.before.predicted)}, then {readable(specimen.after.predicted)}"
        frame.set_title(f"{_titled(name, specimen)}\n{answers}")
        frame.spines[:].set_visible(False)
    return figure


def _largest(one: Specimen) -> float:
    """The largest weight of both maps, which share one scale."""
    weights = (version.attended for version in (one.before, one.after) if version.attended is not None)
    return max((float(attended.max()) for attended in weights), default=1.0) or 1.0
