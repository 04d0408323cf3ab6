"""Spoken digits without files: each digit is a tune of gliding tones, each speaker has a pitch and a tempo.

Deterministic, of our own making: no recording is copied. A digit cannot be told by its pitch alone, since that is the
speaker's, nor by its set of tones, since several digits share one and differ in the order.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.generated.draws import Draws

RATE = 8000
# Tones of each digit, in steps of a sixth of an octave above the speaker's pitch.
TUNES = ((0, 4, 0), (4, 0, 4), (0, 4, 8), (8, 4, 0), (4, 8, 0), (0, 8, 4), (8, 0, 8), (0, 8, 0), (4, 0, 8), (8, 0, 4))
STEP = 1 / 6  # of an octave
SPEAKERS = {"alto": (330.0, 1.0), "bass": (150.0, 0.8), "child": (420.0, 1.2), "tenor": (220.0, 1.1)}  # pitch, tempo
TONE = 0.09  # seconds of one tone at tempo 1
OVERTONES = (1.0, 0.5, 0.3)
TAKES = 24  # recordings of each digit by each speaker; the first ones are for the test


@functools.lru_cache(maxsize=4096)
def spoken(digit: int, speaker: str, take: int) -> NDArray[np.float32]:
    """The samples of one recording; takes differ in pitch, tempo, loudness and noise."""
    draws = Draws("tone digits", digit, speaker, take)
    pitch, tempo = SPEAKERS[speaker]
    pitch *= 2 ** (_between(draws, -0.5, 0.5) * STEP)
    steps, lengths = [], []
    for tone in TUNES[digit]:
        steps.append(tone + _between(draws, -0.3, 0.3))
        lengths.append(TONE / tempo * _between(draws, 0.7, 1.3))
    count = round(sum(lengths) * RATE)
    times = np.arange(count) / RATE
    middles = np.cumsum(lengths) - np.array(lengths) / 2
    frequency = pitch * 2 ** (np.interp(times, middles, steps) * STEP)  # from tone to tone it glides
    phase = 2 * math.pi * np.cumsum(frequency) / RATE
    wave = sum(loud * np.sin((number + 1) * phase) for number, loud in enumerate(OVERTONES))
    rise = np.minimum(1.0, np.minimum(times, times[::-1]) / 0.01)
    noise = np.packbits(draws.bits(count * 8)).astype(np.float64) / 127.5 - 1
    wave = _between(draws, 0.1, 0.4) * (wave * rise + _between(draws, 0.02, 0.3) * noise)
    # Rounded as a file would be, so that the last bit of a machine's sine does not matter.
    return (np.round(wave * 32767).clip(-32768, 32767) / 32768).astype(np.float32)


def _between(draws: Draws, low: float, high: float) -> float:
    return low + (high - low) * draws.below(10_000) / 10_000
