"""Samples to frames: the logarithm of the energy in bands of the mel scale (Davis and Mermelstein 1980)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.support.arguments import whole_number

WINDOW, HOP = 0.025, 0.010  # seconds
LOWEST = 60.0  # Hz: below lies hum
FLOOR = 0.1  # energy added before the logarithm, so that silence is finite; sounds have a mean square of 1
STACK = 4  # frames of one position


def to_mel(hertz: float) -> float:
    """The pitch of a frequency on the mel scale (O'Shaughnessy 1987)."""
    return 2595.0 * math.log10(1.0 + hertz / 700.0)


def to_hertz(mel: float) -> float:
    """The frequency of a pitch."""
    return 700.0 * (math.pow(10.0, mel / 2595.0) - 1.0)


@functools.lru_cache(maxsize=16)
def mel_filters(rate: int, size: int, bands: int) -> Tensor:
    """Triangles (size // 2 + 1, bands) over the bins of a Fourier transform; neighbours overlap by half."""
    low, high = to_mel(LOWEST), to_mel(rate / 2)
    edges = torch.tensor(
        [to_hertz(low + (high - low) * number / (bands + 1)) for number in range(bands + 2)], dtype=torch.float64
    )
    bins = torch.arange(size // 2 + 1, dtype=torch.float64)[:, None] * rate / size
    rise = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.minimum(rise, fall).clamp(min=0).float()


@dataclass(frozen=True)
class LogMel:
    """Log-mel frames at 100 a second: `bands` numbers each, `STACK` frames to a position."""

    rate: int = 8000
    bands: int = 40

    def __post_init__(self) -> None:
        if not 2000 <= whole_number("rate", self.rate) <= 48000:
            raise BadValue(f"rate: expected 2000 to 48000 samples per second, got {self.rate}.")
        if not 4 <= whole_number("bands", self.bands) <= 128:
            raise BadValue(f"bands: expected 4 to 128 mel bands, got {self.bands}.")

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return round(HOP * self.rate)

    @property
    def window(self) -> int:
        """Samples of a frame."""
        return round(WINDOW * self.rate)

    @property
    def size(self) -> int:
        """Samples of the Fourier transform: a power of two, so many that the narrowest band has a bin of its own."""
        low, high = to_mel(LOWEST), to_mel(self.rate / 2)
        narrowest = to_hertz(low + (high - low) / (self.bands + 1)) - LOWEST
        return int(2 ** math.ceil(math.log2(max(self.window, self.rate / narrowest))))

    def positions(self, samples: int) -> int:
        """How many positions so many samples take."""
        return max(1, -(-samples // (self.hop * STACK)))

    def energies(self, samples: Tensor) -> Tensor:
        """Log energies (frames, bands): frame i begins at sample i · hop; what follows the end counts as silence."""
        frames = self.positions(len(samples)) * STACK
        # torch centres a window that is shorter than the transform
        before = (self.size - self.window) // 2
        after = (frames - 1) * self.hop + self.size - before - len(samples)
        padded = torch.nn.functional.pad(samples.float(), (before, after))
        window = torch.hann_window(self.window)
        spectrum = torch.stft(
            padded, self.size, self.hop, self.window, window=window, center=False, return_complex=True
        )
        power = spectrum.real.square() + spectrum.imag.square()
        return (power.T @ mel_filters(self.rate, self.size, self.bands) + FLOOR).log()

    def normalised(self, samples: Tensor) -> Tensor:
        """Log energies with mean 0 in each band and variance 1 over all, so that level and microphone do not matter."""
        energies = self.energies(samples / samples.square().mean().sqrt().clamp(min=1e-8))
        energies = energies - energies.mean(0)
        return energies / energies.square().mean().sqrt().clamp(min=1e-3)

    def stacked(self, frames: Tensor) -> Tensor:
        """Frames (n · STACK, bands) as positions (n, STACK · bands)."""
        return frames.reshape(-1, STACK * self.bands)
