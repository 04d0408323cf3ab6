"""One example before and after an attack, with what the model attended to: what the figure of a report shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard_workbench.attacks import places
from regard_workbench.attacks.lexicon import Lexicon
from regard_workbench.attacks.target import Target
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.parts.task import Task
from regard_workbench.tasks.pictures.patches import fold

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Version:
    """An example as the model read it, and what it made of it."""

    pieces: list[str]
    picture: Array | None  # (height, width) or (height, width, 3)
    attended: Array | None  # the weight of each position, (n,)
    predicted: str


@dataclass(frozen=True)
class Specimen:
    """One example before and after."""

    number: int  # in the split
    label: str
    fooled: bool
    grid: tuple[int, int] | None  # rows and columns of positions over the picture
    before: Version
    after: Version


def specimen(
    task: Task, target: Target, example: Any, number: int, row: int, after: Tensor, lexicon: Lexicon | None
) -> Specimen:
    """The example in a row of the target's batch, with the inputs that an attack made of all rows."""
    alone = replace(target.batch.rows([row]), answers={})
    shown = task.show(example, alone.to("cpu"))
    spec, keep = task.problem.inputs, target.batch.keep
    length = int(keep[row].sum()) if keep is not None else target.inputs.shape[1]
    sides = []
    for inputs in (target.inputs, after):
        batch = Target.of(target.model, alone).reading(inputs[row : row + 1])
        weights = places.attended(places.observed(target.model, batch), batch, spec)
        pieces = (
            shown.pieces if lexicon is None else pieces_after(shown.pieces, lexicon, target.inputs[row], inputs[row])
        )
        sides.append(
            Version(
                pieces,
                _picture(inputs[row].detach().cpu(), shown, spec) if lexicon is None else None,
                None if weights is None else weights[0, :length].float().numpy(),
                task.decode([int(target.predicted(inputs)[row])]),
            )
        )
    assert target.batch.targets is not None
    label = task.decode([int(target.batch.targets[row])])
    grid = (spec.rows, spec.columns) if isinstance(spec, Patches) else shown.grid
    was_right = sides[0].predicted == label
    return Specimen(number, label, was_right and sides[1].predicted != label, grid, *sides)


def pieces_after(pieces: list[str], lexicon: Lexicon, before: Tensor, after: Tensor) -> list[str]:
    """The words of a text, with those that differ in the ids (n,) or (n,columns) after the attack replaced."""
    differs = before != after
    differs = differs if differs.dim() == 1 else differs.any(-1)
    words = lexicon.find(after[None])[0].tolist()
    replaced = list(pieces)
    for place in differs.nonzero().flatten().tolist():
        replaced[place] = lexicon.words[words[place]]
    return replaced


def _picture(pixels: Tensor, shown: Shown, spec: object) -> Array:
    """The picture of one example's rows (n,width); rows that are no picture are drawn as they are."""
    if isinstance(spec, Patches):
        picture = fold(pixels[None], spec)[0]
        picture = picture[0] if picture.dim() == 4 else picture  # of a video the first frame
        picture = picture[0] if len(picture) == 1 else torch.movedim(picture[:3], 0, -1)
        return np.asarray(picture.numpy(), np.float32)
    shape = pixels.shape if shown.picture is None or shown.picture.size != pixels.numel() else shown.picture.shape
    return np.asarray(pixels.reshape(shape).numpy(), np.float32)
