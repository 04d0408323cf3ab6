"""Utterances: single recordings, or long sounds made by joining recordings of one speaker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.sound.augment import changed, masked
from regard_workbench.tasks.sound.log_mel import LogMel
from regard_workbench.tasks.sound.recordings import SoundRecording

SHORTEST_GAP, LONGEST_GAP = 0.04, 0.2  # seconds of silence between joined recordings


class Utterance(NamedTuple):
    """Recordings one after the other, each followed by so many samples of silence."""

    parts: tuple[SoundRecording, ...]
    gaps: tuple[int, ...] = (0,)
    training: bool = False  # whether it is changed anew for each batch

    @property
    def transcript(self) -> str:
        """What is said."""
        return " ".join(recording.transcript for recording in self.parts)

    @property
    def speaker(self) -> str:
        """Who speaks."""
        return self.parts[0].speaker

    def __len__(self) -> int:
        return sum(len(recording.samples) for recording in self.parts) + sum(self.gaps)

    def samples(self) -> Tensor:
        """The whole sound."""
        waveform = np.zeros(len(self), np.float32)
        at = 0
        for recording, gap in zip(self.parts, self.gaps, strict=True):
            waveform[at : at + len(recording.samples)] = recording.samples
            at += len(recording.samples) + gap
        return torch.from_numpy(waveform)

    def frames(self, mel: LogMel, generator: torch.Generator) -> Tensor:
        """Positions (n, width) of its spectrogram; those of a training utterance are changed at random."""
        if not self.training:
            return mel.stacked(mel.normalised(self.samples()))
        return mel.stacked(masked(mel.normalised(changed(self.samples(), generator)), generator))


def joined(
    recordings: Sequence[SoundRecording], count: int, most: int, rate: int, training: bool, *key: object
) -> Sequence[Utterance]:
    """`count` strings of 1 to `most` recordings, each by one speaker, drawn by a key and always the same."""
    by_speaker: dict[str, list[SoundRecording]] = {}
    for recording in recordings:
        by_speaker.setdefault(recording.speaker, []).append(recording)
    return Generated(count, partial(_string, by_speaker, most, rate, training, key))


def _string(
    by_speaker: Mapping[str, Sequence[SoundRecording]],
    most: int,
    rate: int,
    training: bool,
    key: tuple[object, ...],
    index: int,
) -> Utterance:
    draws = Draws("string", *key, index)
    speakers = sorted(by_speaker)
    theirs = by_speaker[speakers[index % len(speakers)]]  # each as often
    recordings = tuple(draws.among(theirs) for _ in range(1 + draws.below(most)))
    low, high = round(SHORTEST_GAP * rate), round(LONGEST_GAP * rate)
    gaps = tuple(low + draws.below(high - low + 1) for _ in recordings)
    return Utterance(recordings, gaps, training)


def padded_frames(frames: Sequence[Tensor], width: int) -> tuple[Tensor, Tensor | None]:
    """Positions (b,n,width) padded with zeros, and where they are real (b,n); None if nothing is padded."""
    longest = max((len(sequence) for sequence in frames), default=0)
    padded = torch.zeros(len(frames), longest, width)
    keep = torch.zeros(len(frames), longest, dtype=torch.bool)
    for row, sequence in enumerate(frames):
        padded[row, : len(sequence)], keep[row, : len(sequence)] = sequence, True
    return padded, None if bool(keep.all()) else keep


def spectrogram(positions: Tensor, bands: int) -> NDArray[np.float32]:
    """A picture (bands, frames) from 0 to 1, low bands at the bottom."""
    frames = positions.reshape(-1, bands).T.flip(0).float().cpu()
    low, high = float(frames.min()), float(frames.max())
    picture: NDArray[np.float32] = ((frames - low) / max(high - low, 1e-6)).numpy()
    return picture
