"""Sound files: every sort of wav is read as it was written, everything else is refused by its name."""

import io
import struct
import sys
import types
import wave

import numpy as np
import pytest
import scipy.io.wavfile
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import BadValue, RegardError
from regard_workbench.tasks.sound.wav import Sound, read_sound, resampled
from tests.tasks.sound.wav_bytes import chunk, wav, whole


def samples(raw):
    return read_sound(raw, "a.wav").samples.tolist()


def test_sixteen_bit_samples_are_shares_of_full_scale():
    assert samples(whole([0, 16384, -32768, 32767])) == [0, 0.5, -1.0, 32767 / 32768]


def test_twenty_four_bit_samples_built_by_hand_are_read_with_their_sign():
    data = b"\x00\x00\x40" + b"\x00\x00\x80" + b"\xff\xff\xff" + b"\x01\x00\x00"  # ½, −1, −2⁻²³, 2⁻²³
    assert samples(wav(data, bits=24)) == [0.5, -1.0, -(2.0**-23), 2.0**-23]


def test_eight_bit_samples_have_their_zero_at_128():
    assert samples(wav(bytes([128, 255, 0, 64]), bits=8)) == [0.0, 127 / 128, -1.0, -0.5]


def test_thirty_two_bit_integers_are_shares_of_full_scale():
    assert samples(wav(struct.pack("<3i", 2**30, -(2**31), 0), bits=32)) == [0.5, -1.0, 0.0]


@pytest.mark.parametrize(("bits", "letter"), [(32, "f"), (64, "d")])
@pytest.mark.parametrize("extensible", [False, True])
def test_floats_are_read_as_they_are_and_clipped_at_full_scale(bits, letter, extensible):
    data = struct.pack(f"<4{letter}", 0.25, -0.75, 1.5, -3.0)
    assert samples(wav(data, kind=3, bits=bits, extensible=extensible)) == [0.25, -0.75, 1.0, -1.0]


@pytest.mark.parametrize("bits", [16, 24])
def test_the_extensible_header_of_integers_is_read(bits):
    data = b"\0" * (bits // 8 - 2) + b"\x00\x40"
    assert samples(wav(data, bits=bits, extensible=True)) == [0.5]


def test_channels_are_mixed_down_to_their_mean():
    stereo = struct.pack("<6h", 16384, 0, -16384, -16384, 8192, -8192)
    assert samples(wav(stereo, channels=2)) == [0.25, -0.5, 0.0]


def test_chunks_before_the_sound_are_passed_over_even_of_odd_length():
    raw = wav(struct.pack("<h", 16384), before=chunk(b"LIST", b"odd"))
    assert samples(raw) == [0.5]


@pytest.mark.parametrize("kind", ["<i2", "<i4", "<f4", "u1"])
def test_files_written_by_scipy_are_read_alike(kind):
    draw = np.random.default_rng(3)
    numbers = draw.uniform(-0.9, 0.9, (101, 3))
    written = {
        "<i2": (numbers * 32768).astype("<i2"),
        "<i4": (numbers * 2.0**31).astype("<i4"),
        "<f4": numbers.astype("<f4"),
        "u1": (numbers * 128 + 128).astype("u1"),
    }[kind]
    file = io.BytesIO()
    scipy.io.wavfile.write(file, 11025, written)
    found = read_sound(file.getvalue(), "a.wav")
    assert found.rate == 11025 and found.seconds == pytest.approx(101 / 11025)
    assert found.samples == pytest.approx(numbers.mean(1), abs={"u1": 0.01, "<i2": 1e-4}.get(kind, 1e-6))


def test_files_written_by_the_standard_library_are_read_alike():
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((2, 2, 44100, 0, "NONE", ""))
        writer.writeframes(struct.pack("<4h", 8192, 16384, 0, -8192))
    found = read_sound(file.getvalue(), "a.wav")
    assert found.samples.tolist() == [0.375, -0.125] and found.rate == 44100


REFUSED = {
    "is empty": b"",
    "is no wav file": b"ID3\x03 some music",
    "holds no sound": wav(b""),
    "has no format in its header": wav(b"")[:12],
    "ends before the 1,000 bytes of sound that its header states": wav(bytes(1000))[:-400],
    "ends before the 4,294,967,294 bytes of sound": wav(bytes(100)).replace(
        b"data" + struct.pack("<L", 100), b"data\xff\xff\xff\xff"
    ),
    "its format takes 3 bytes": b"RIFF\xff\0\0\0WAVEfmt \x10\0\0\0abc",
    "states 0 samples per second": wav(bytes(4), rate=0),
    "states 3,000,000,000 samples per second": wav(bytes(4), rate=3_000_000_000),
    "states 60,000 channels": wav(bytes(120_000), channels=60_000),
    "has integers of 40 bits": wav(bytes(10), bits=40),
    "has floats of 16 bits": wav(bytes(4), kind=3, bits=16),
    "is a wav file of format 7": wav(bytes(4), kind=7, bits=8),
    "samples that are not numbers": wav(struct.pack("<2f", 0.5, float("nan")), kind=3, bits=32),
    "states 3,601 seconds, expected at most 3,600": wav(bytes(3_601_000), rate=1000, bits=8),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_read_is_refused_with_its_name_and_the_reason(words, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(BadValue) as refusal:
        read_sound(REFUSED[words], "folder/b.wav", "--sound")
    assert str(refusal.value).startswith("--sound: folder/b.wav ") and words in str(refusal.value)


def test_a_header_that_lies_about_its_size_allocates_nothing():
    import tracemalloc

    raw = wav(bytes(64)).replace(b"data" + struct.pack("<L", 64), b"data\x00\x00\x00\xf0")
    tracemalloc.start()
    with pytest.raises(BadValue):
        read_sound(raw, "a.wav")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_without_soundfile_other_formats_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(BadValue, match=r"a\.flac is no wav file.*pip install 'regard\[sound\]'"):
        read_sound(b"fLaC....", "a.flac")


class Opened:
    """In place of soundfile's class."""

    frames, channels, samplerate = 2, 2, 16000

    def __init__(self, file):
        if file.getvalue() != b"fLaC good":
            raise RuntimeError("no")

    def __enter__(self):
        return self

    def __exit__(self, *trouble):
        pass

    def read(self, dtype, always_2d):
        return np.array([[0.5, 0.25], [-1.0, 0.0]])


def test_with_soundfile_other_formats_are_read_and_its_errors_are_ours(monkeypatch):
    library = types.SimpleNamespace(SoundFile=Opened, SoundFileError=RuntimeError)
    monkeypatch.setitem(sys.modules, "soundfile", library)
    found = read_sound(b"fLaC good", "a.flac")
    assert found.samples.tolist() == [0.375, -0.5] and found.rate == 16000
    with pytest.raises(BadValue, match=r"a\.flac is no wav file, and soundfile cannot read it either"):
        read_sound(b"fLaC bad", "a.flac")
    Opened.frames = 10**12
    with pytest.raises(BadValue, match="seconds, expected at most"):
        read_sound(b"fLaC good", "a.flac")


@pytest.mark.parametrize(("rate", "other"), [(48000, 8000), (44100, 8000), (11025, 8000), (8000, 16000)])
def test_a_resampled_tone_is_the_tone_at_the_other_rate(rate, other):
    """The closed form is the oracle; the ends, where the filter sees silence, are left out."""
    tone = np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32)
    found = resampled(Sound(tone, rate), other)
    assert len(found) == other
    expected = np.sin(2 * np.pi * 440 * np.arange(other) / other)
    middle = slice(other // 10, -other // 10)
    assert np.abs(found[middle] - expected[middle]).max() < 2e-3


def test_resampling_agrees_with_the_fourier_method_and_drops_what_the_rate_cannot_hold():
    draw, rate = np.random.default_rng(5), 48000
    times = np.arange(rate) / rate
    low = sum(draw.normal() * np.sin(2 * np.pi * f * times + draw.uniform(0, 6)) for f in (113, 709, 1523))
    high = np.sin(2 * np.pi * 9001 * times)  # above half of 8000
    found = resampled(Sound((low + high).astype(np.float32), rate), 8000)
    expected = scipy.signal.resample(low, 8000)
    assert np.abs(found - expected)[800:-800].max() < 5e-3 * np.abs(low).max()


@pytest.mark.parametrize("rate", [44100, 22050, 11025, 48000, 12000, 11127, 1009])
def test_rates_that_are_recorded_give_the_bits_of_scipys_own_filter(rate):
    samples = np.random.default_rng(7).uniform(-1, 1, 2003).astype(np.float32)
    expected = scipy.signal.resample_poly(samples.astype(np.float64), 16000, rate).astype(np.float32)
    assert np.array_equal(resampled(Sound(samples, rate), 16000), expected)


def test_a_rate_without_a_common_divisor_takes_no_long_filter_and_none_is_made_twice(monkeypatch):
    made, real = [], scipy.signal.firwin
    monkeypatch.setattr(
        scipy.signal, "firwin", lambda taps, *given, **named: made.append(taps) or real(taps, *given, **named)
    )
    rate = 399_989  # a prime
    tone = np.sin(2 * np.pi * 440 * np.arange(rate // 4) / rate).astype(np.float32)
    for _ in range(3):
        found = resampled(Sound(tone, rate), 16000)
    assert len(made) == 1 and made[0] <= 2 * 10 * 65_536 + 1
    assert len(found) == 4000
    expected = np.sin(2 * np.pi * 440 * np.arange(4000) / 16000)
    assert np.abs(found - expected)[400:-400].max() < 2e-3


def test_the_same_rate_changes_nothing():
    sound = Sound(np.ones(5, np.float32), 8000)
    assert resampled(sound, 8000) is sound.samples


GOOD = [
    whole([100, -200, 300] * 7),
    wav(bytes(60), channels=2, bits=24),
    wav(bytes(64), kind=3, bits=32),
    wav(bytes(64), kind=3, bits=64, extensible=True),
    wav(bytes(50), bits=8, before=chunk(b"LIST", b"abc")),
]
DAMAGED = st.tuples(
    st.sampled_from(GOOD),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=6),
    st.integers(0, 200),
)


def read_or_refused(raw):
    try:
        found = read_sound(raw, "a.wav")
    except RegardError as refusal:
        assert str(refusal).startswith("data: a.wav ") and str(refusal).isprintable()
        return
    assert len(found.samples) and np.isfinite(found.samples).all() and np.abs(found.samples).max() <= 1


def damaged(raw, changes, length):
    raw = bytearray(raw)
    for place, value in changes:
        if place < len(raw):
            raw[place] = value
    return bytes(raw[: length or None])


@settings(max_examples=300, deadline=None)
@given(damage=DAMAGED)
def test_damaged_files_are_sound_or_refused(damage):
    read_or_refused(damaged(*damage))


@settings(max_examples=150, deadline=None)
@given(raw=st.binary(max_size=90) | st.binary(max_size=90).map(lambda rest: b"RIFF\xff\0\0\0WAVEfmt " + rest))
def test_any_bytes_are_sound_or_refused(raw):
    read_or_refused(raw)


@pytest.mark.nightly
@settings(max_examples=5000, deadline=None)
@given(damage=DAMAGED)
def test_many_damaged_files_are_sound_or_refused(damage):
    read_or_refused(damaged(*damage))
