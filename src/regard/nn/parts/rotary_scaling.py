"""Slower rotations, so that a model reads texts longer than those it was trained on.

Each pair of columns rotates by position · frequency. A scaling divides frequencies by `factor`:

    linear   all of them (Chen et al. 2023)
    llama3   those whose wave is longer than length / low; the others up to length / high partly (Llama 3.1)
    yarn     those that turn fewer than `slow` times in `length` positions, those up to `fast` times partly; queries
             and keys grow by `gain` (Peng et al. 2024, equations 17 to 22)

`length` is the longest text of the first training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.support.arguments import finite_number, whole_number

SCALINGS = ("none", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RotaryScaling:
    """How the frequencies of rotary positions are scaled."""

    kind: str = "none"
    factor: float = 1.0
    length: int = 8192
    low: float = 1.0  # llama3
    high: float = 4.0
    fast: float = 32.0  # yarn
    slow: float = 1.0
    gain: float | None = None  # of queries and keys each; None: yarn's 1 + ln(factor) / 10, else 1
    whole: bool = True  # yarn: round the ends of the ramp to whole pairs

    def __post_init__(self) -> None:
        if self.kind not in SCALINGS:
            raise BadValue(f"scaling: expected one of {', '.join(SCALINGS)}, got {self.kind!r}.")
        for name in ("factor", "low", "high", "fast", "slow"):
            finite_number(name, getattr(self, name), above=0)
        whole_number("length", self.length, 1)
        if self.kind == "llama3" and self.high <= self.low:
            raise BadValue(f"high: expected more than low={self.low:g}, got {self.high:g}.")
        if self.gain is not None:
            finite_number("gain", self.gain, above=0)

    @property
    def growth(self) -> float:
        """The factor of queries and of keys."""
        if self.gain is not None:
            return self.gain
        return 1.0 + 0.1 * math.log(self.factor) if self.kind == "yarn" and self.factor > 1 else 1.0

    def scaled(self, frequencies: Tensor, base: float) -> Tensor:
        """The frequencies (d/2,) of columns that would rotate by base^(−2i/d)."""
        if self.kind == "none":
            return frequencies
        slower = frequencies / self.factor
        if self.kind == "linear":
            return slower
        kept = self._kept_llama3(frequencies) if self.kind == "llama3" else self._kept_yarn(frequencies, base)
        return slower * (1 - kept) + frequencies * kept

    def _kept_llama3(self, frequencies: Tensor) -> Tensor:
        """How much of each frequency stays: 0 below `low` turns in `length` positions, 1 above `high`."""
        turns = frequencies * (self.length / (2 * math.pi))
        return ((turns - self.low) / (self.high - self.low)).clamp(0, 1)

    def _kept_yarn(self, frequencies: Tensor, base: float) -> Tensor:
        """The same by the number of the pair, which falls linearly between those that turn `fast` and `slow` times."""
        dim = 2 * len(frequencies)
        first, last = (
            dim * math.log(self.length / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.fast, self.slow)
        )
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        last = first + 0.001 if first == last else last
        pairs = torch.arange(len(frequencies), device=frequencies.device, dtype=frequencies.dtype)
        return 1 - ((pairs - first) / (last - first)).clamp(0, 1)
