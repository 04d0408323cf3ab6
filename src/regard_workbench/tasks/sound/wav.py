"""Sound files of strangers to samples: every size that a header states is checked before anything is allocated.

Wav files are read by the standard library's `wave`. It refuses float samples (and, before Python 3.12, the extensible
form of the header), although it walks over such files as over any other; so it is shown the format it knows, and the
samples are read here. Everything else (FLAC, Ogg, µ-law) is read by soundfile, where it is installed.
"""

from __future__ import annotations

import io
import struct
import wave
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue
from regard_workbench.tasks.formats.file_errors import file_errors

Samples = NDArray[np.float32]

MOST_BYTES = 200_000_000  # of a file
MOST_SECONDS = 3600
MOST_CHANNELS = 64
RATES = (1_000, 400_000)  # samples per second
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
KNOWN = "wav files with 8, 16, 24 or 32 bit integers or 32 or 64 bit floats"
# The filter between two rates is as long as their ratio is fine, so that of 16,000 and 399,989 would take seconds. The
# nearest ratio up to this denominator is off by less than 0.06 seconds in an hour; usual rates have far smaller ones.
FINEST = 65_536
CUT_OFF = "Was its download interrupted?"


class Sound(NamedTuple):
    """One channel of samples from −1 to 1, and how many of them are a second."""

    samples: Samples
    rate: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.samples) / self.rate


class _Damaged(Exception):
    """What is wrong with a file, without its name."""


def read_sound(raw: bytes, name: str, argument: str = "data") -> Sound:
    """The sound in the bytes of a file, mixed down to one channel. Errors name the argument and the file."""
    with file_errors(name, argument):
        try:
            if len(raw) > MOST_BYTES:
                raise _Damaged(f"holds more than {MOST_BYTES // 10**6} MB. Cut it into shorter files.")
            if not raw:
                raise _Damaged(f"is empty. {CUT_OFF}")
            place, kind = _format(raw)
            return _by_wave(raw, place, kind) if kind in (PCM, FLOAT) else _by_soundfile(raw, kind)
        except _Damaged as trouble:
            raise BadValue(f"{argument}: {name} {trouble}") from None


def _format(raw: bytes) -> tuple[int, int]:
    """Where in a wav file the number of its sample format stands, and which it is; 0 where it is no wav file."""
    if raw[:4] != b"RIFF" or raw[8:12] != b"WAVE":
        return 0, 0
    at = 12
    while at + 8 <= len(raw):
        (size,) = struct.unpack_from("<L", raw, at + 4)
        if raw[at : at + 4] == b"fmt ":
            chunk = raw[at + 8 : at + 8 + size]
            if len(chunk) < 16:
                raise _Damaged(f"has a damaged header: its format takes {len(chunk)} bytes, expected 16. {CUT_OFF}")
            (kind,) = struct.unpack_from("<H", chunk)
            if kind == EXTENSIBLE and len(chunk) >= 26:
                (kind,) = struct.unpack_from("<H", chunk, 24)  # the beginning of the sub-format's identifier
            return at + 8, kind
        at += 8 + size + size % 2
    raise _Damaged(f"has no format in its header. {CUT_OFF}")


def _by_wave(raw: bytes, place: int, kind: int) -> Sound:
    shown = raw if raw[place : place + 2] == b"\1\0" else raw[:place] + b"\1\0" + raw[place + 2 :]
    try:
        with wave.open(io.BytesIO(shown)) as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            stated = file.getnframes() * channels * width
            data = b""
            if stated <= len(raw):
                _check(file.getnframes(), channels, rate)
                data = file.readframes(file.getnframes())
    except (wave.Error, EOFError, RuntimeError, struct.error) as trouble:
        raise _Damaged(f"has a damaged header: {str(trouble) or 'it ends too early'}. {CUT_OFF}") from None
    if len(data) < stated:
        raise _Damaged(f"ends before the {stated:,} bytes of sound that its header states. {CUT_OFF}")
    return _mixed(_numbers(data, width, kind).reshape(-1, channels), rate)


def _numbers(data: bytes, width: int, kind: int) -> NDArray[np.float64]:
    """Samples from −1 to 1."""
    if kind == FLOAT:
        if width not in (4, 8):
            raise _Damaged(f"has floats of {8 * width} bits, expected 32 or 64.")
        return np.frombuffer(data, f"<f{width}").astype(np.float64)
    if width == 1:  # the only width without a sign
        return (np.frombuffer(data, np.uint8).astype(np.float64) - 128) / 128
    if width == 3:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return wide.view("<i4")[:, 0] / 2.0**31
    if width not in (2, 4):
        raise _Damaged(f"has integers of {8 * width} bits, expected 8, 16, 24 or 32.")
    return np.frombuffer(data, f"<i{width}") / 2.0 ** (8 * width - 1)


def _by_soundfile(raw: bytes, kind: int) -> Sound:
    description = f"is a wav file of format {kind}" if kind else "is no wav file"
    try:
        import soundfile
    except ImportError:
        raise _Damaged(
            f"{description}. Known: {KNOWN}; others need the package soundfile: pip install 'regard[sound]'."
        ) from None
    try:
        with soundfile.SoundFile(io.BytesIO(raw)) as file:
            _check(file.frames, file.channels, file.samplerate)
            data = file.read(dtype="float64", always_2d=True)
            rate = int(file.samplerate)
    except (soundfile.SoundFileError, TypeError, ValueError, OSError):
        raise _Damaged(f"{description}, and soundfile cannot read it either. Known: {KNOWN}.") from None
    return _mixed(data, rate)


def _check(frames: int, channels: int, rate: int) -> None:
    """Refuse what a header states before any of it is read."""
    least, most = RATES
    if not least <= rate <= most:
        raise _Damaged(f"states {rate:,} samples per second, expected {least:,} to {most:,}.")
    if not 1 <= channels <= MOST_CHANNELS:
        raise _Damaged(f"states {channels:,} channels, expected 1 to {MOST_CHANNELS}.")
    if frames == 0:
        raise _Damaged("holds no sound. Leave it out.")
    if frames > MOST_SECONDS * rate:
        raise _Damaged(
            f"states {frames / rate:,.0f} seconds, expected at most {MOST_SECONDS:,}. Cut it into shorter files."
        )


def _mixed(numbers: NDArray[np.float64], rate: int) -> Sound:
    """The mean of the channels; floats beyond full scale are clipped, as players do."""
    if not len(numbers):
        raise _Damaged("holds no sound. Leave it out.")
    if not np.isfinite(numbers).all():
        raise _Damaged("holds samples that are not numbers (NaN or infinite). Write it again.")
    return Sound(np.clip(numbers, -1, 1).mean(1).astype(np.float32), rate)


def resampled(sound: Sound, rate: int) -> Samples:
    """The samples at another rate, without what lies above half of it (a polyphase low-pass filter)."""
    if sound.rate == rate:
        return sound.samples
    from scipy.signal import resample_poly  # loaded late: it takes a while

    ratio = Fraction(rate, sound.rate).limit_denominator(FINEST)
    up, down = ratio.numerator, ratio.denominator
    samples: Samples = resample_poly(
        sound.samples.astype(np.float64), up, down, window=_low_pass(max(up, down))
    ).astype(np.float32)
    return samples


@lru_cache(maxsize=4)
def _low_pass(most: int) -> NDArray[np.float64]:
    """The filter that `resample_poly` makes anew for each sound, where up or down is `most`."""
    from scipy.signal import firwin

    coefficients: NDArray[np.float64] = firwin(2 * 10 * most + 1, 1.0 / most, window=("kaiser", 5.0))
    return coefficients
