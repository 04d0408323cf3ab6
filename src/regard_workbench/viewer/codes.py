"""Weights as single bytes on a logarithmic scale, precise enough for a screen.

weights      0 = exactly 0 or hidden; 1 … 255 = 10^(6·(code − 255)/254), from 1e-6 to 1
differences  128 = 0; 128 ± m = ± 10^(4·(m − 127)/126) for m ≥ 1, from 1e-4 to 1; smaller ones are 0
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
Weights = NDArray[np.float32]

SMALLEST, DECADES, STEPS = 1e-6, 6.0, 254
MIDDLE, DIFFERENCE_DECADES, DIFFERENCE_STEPS = 128, 4.0, 126


def encode(weights: Weights) -> Codes:
    """The nearest code of each weight. Weights above 1 (some mechanisms have them) count as 1, NaN as hidden."""
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.rint(255 + STEPS / DECADES * np.log10(weights))
    codes = np.clip(np.nan_to_num(codes, nan=0.0, posinf=255.0, neginf=0.0), 1, 255)
    return np.where(weights > 0, codes, 0).astype(np.uint8)


def decode(codes: Codes) -> Weights:
    """The weight of each code."""
    weights = 10.0 ** (DECADES * (codes.astype(np.float64) - 255) / STEPS)
    return np.where(codes > 0, weights, 0.0).astype(np.float32)


def encode_difference(differences: Weights) -> Codes:
    """The nearest code of each signed difference. NaN counts as no difference."""
    size = np.abs(np.nan_to_num(differences, nan=0.0))
    with np.errstate(divide="ignore"):
        steps = np.rint(127 + DIFFERENCE_STEPS / DIFFERENCE_DECADES * np.log10(size))
    steps = np.where(steps >= 1, np.minimum(steps, 127), 0)
    return (MIDDLE + np.where(differences < 0, -steps, steps)).astype(np.uint8)


def decode_difference(codes: Codes) -> Weights:
    """The difference of each code."""
    steps = codes.astype(np.float64) - MIDDLE
    size = 10.0 ** (DIFFERENCE_DECADES * (np.abs(steps) - 127) / DIFFERENCE_STEPS)
    return np.where(steps == 0, 0.0, np.sign(steps) * size).astype(np.float32)
