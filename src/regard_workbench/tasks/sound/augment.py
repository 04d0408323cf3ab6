"""Changes that a recording survives, drawn anew for each batch of training, so that small data teach more."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SLOWEST, FASTEST = 0.85, 1.15  # speed; pitch goes along with it
LOUDEST_NOISE, FAINTEST_NOISE = 10.0, 40.0  # decibels below the sound
TIME_MASKS, BAND_MASKS = 2, 2
LONGEST_MASK, WIDEST_MASK = 0.1, 0.2  # share of the frames, of the bands
MOST_FRAMES = 25  # of one mask: a quarter of a second


def uniform(low: float, high: float, generator: torch.Generator) -> float:
    """A number between two."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def at_speed(samples: Tensor, factor: float) -> Tensor:
    """The sound played `factor` times as fast (Ko et al. 2015), by linear interpolation."""
    count = max(1, round(len(samples) / factor))
    resampled: Tensor = F.interpolate(samples[None, None], count, mode="linear", align_corners=False)[0, 0]
    return resampled


def with_noise(samples: Tensor, decibels: float, generator: torch.Generator) -> Tensor:
    """White noise added, so many decibels below the mean energy of the sound."""
    level = samples.square().mean().sqrt() * math.pow(10.0, -decibels / 20.0)
    return samples + level * torch.randn(samples.shape, generator=generator)


def masked(frames: Tensor, generator: torch.Generator) -> Tensor:
    """Some stretches of time and some bands set to 0, the mean (SpecAugment, Park et al. 2019)."""
    frames = frames.clone()
    count, bands = frames.shape
    for _ in range(TIME_MASKS):
        begin, end = _stretch(count, min(MOST_FRAMES, int(LONGEST_MASK * count)), generator)
        frames[begin:end] = 0
    for _ in range(BAND_MASKS):
        begin, end = _stretch(bands, int(WIDEST_MASK * bands), generator)
        frames[:, begin:end] = 0
    return frames


def _stretch(count: int, longest: int, generator: torch.Generator) -> tuple[int, int]:
    length = int(torch.randint(longest + 1, (), generator=generator))
    begin = int(torch.randint(count - length + 1, (), generator=generator))
    return begin, begin + length


def changed(samples: Tensor, generator: torch.Generator) -> Tensor:
    """Another speed, and noise every other time."""
    samples = at_speed(samples, uniform(SLOWEST, FASTEST, generator))
    if uniform(0.0, 1.0, generator) < 0.5:
        samples = with_noise(samples, uniform(LOUDEST_NOISE, FAINTEST_NOISE, generator), generator)
    return samples
