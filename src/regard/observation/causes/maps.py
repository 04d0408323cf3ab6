"""Maps of attention as scores of the inputs: the row of an answer, without class tokens, on a grid of patches."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from regard.observation.seen import Seen

MOST_PREFIX = 8  # class and register tokens before the patches


def row_weights(weights: Tensor, first: int, length: int, position: int | None) -> Tensor:
    """One row (length,) of weights (q,k), of the keys that are inputs: that of the answer, else the mean of all rows.

    Keys before the first input are tokens of the model's own, such as a class token; then its row is the answer's.
    """
    weights = weights.double().cpu()
    if position is not None and -len(weights) <= position < len(weights):
        row = weights[position]
    else:
        row = weights[0] if first and len(weights) > 1 else weights.mean(0)
    return row[first : first + length]


def grid_of(found: Seen, picture: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns of the patches that the sites attend over; None where their number fits no grid."""
    for name in reversed(found.names()):
        keys = found[name].shape()[3]
        for prefix in range(MOST_PREFIX + 1):
            for rows in range(1, math.isqrt(max(0, keys - prefix)) * 4 + 1):
                if (keys - prefix) % rows:
                    continue
                columns = (keys - prefix) // rows
                same = picture[0] * columns == picture[1] * rows
                if same and rows > 1 and picture[0] % rows == 0 and picture[1] % columns == 0:
                    return rows, columns
    return None


def on_grid(pixels: Tensor, grid: tuple[int, int]) -> Tensor:
    """The sum of each patch of (h,w), line by line."""
    size = (pixels.shape[0] // grid[0], pixels.shape[1] // grid[1])
    return (avg_pool2d(pixels[None, None], size) * (size[0] * size[1])).flatten()


def chosen_positions(scores: Tensor, count: int) -> Tensor:
    """The positions with the largest scores; among equal ones the first."""
    return torch.argsort(scores, descending=True, stable=True)[:count]
