"""Log-mel frames against a plain computation frame by frame, and the changes of augmentation."""

import math

import numpy as np
import pytest
import torch

from regard.errors import BadValue
from regard_workbench.tasks.sound import augment
from regard_workbench.tasks.sound.log_mel import FLOOR, LOWEST, STACK, LogMel, mel_filters


def written_out(samples, rate, bands, window, hop, size):
    """Windowed frame, discrete Fourier transform, triangles on the mel scale, logarithm: numpy in float64."""
    mel = lambda f: 2595 * math.log10(1 + f / 700)  # noqa: E731
    edges = np.linspace(mel(LOWEST), mel(rate / 2), bands + 2)
    centres = 700 * (10 ** (edges / 2595) - 1)
    frequencies = np.arange(size // 2 + 1) * rate / size
    count = -(-len(samples) // (hop * STACK)) * STACK
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    padded = np.concatenate([samples, np.zeros(count * hop + window)])
    found = np.zeros((count, bands))
    for frame in range(count):
        power = np.abs(np.fft.rfft(padded[frame * hop :][:window] * hann, size)) ** 2
        for band in range(bands):
            triangle = np.interp(frequencies, centres[band : band + 3], [0, 1, 0], left=0, right=0)
            found[frame, band] = math.log((power * triangle).sum() + FLOOR)
    return found


@pytest.mark.parametrize(("rate", "bands", "count"), [(8000, 40, 1733), (16000, 23, 811), (11025, 31, 97)])
def test_energies_are_those_of_a_plain_computation(rate, bands, count):
    samples = np.random.default_rng(2).normal(0, 1, count).astype(np.float32)
    mel = LogMel(rate, bands)
    expected = written_out(samples.astype(np.float64), rate, bands, mel.window, mel.hop, mel.size)
    found = mel.energies(torch.from_numpy(samples))
    assert found.shape == expected.shape == (mel.positions(count) * STACK, bands)
    assert np.abs(found.numpy() - expected).max() < 1e-3


@pytest.mark.parametrize(("rate", "bands"), [(8000, 40), (8000, 128), (48000, 80), (2000, 4)])
def test_every_band_has_a_bin_of_its_own(rate, bands):
    mel = LogMel(rate, bands)
    assert (mel_filters(rate, mel.size, bands).sum(0) > 0).all()


def test_a_tone_lies_in_its_band():
    mel, rate = LogMel(8000, 40), 8000
    tone = torch.sin(2 * math.pi * 1000 * torch.arange(rate) / rate)
    band = int(mel.energies(tone)[20].argmax())
    edges = np.linspace(2595 * math.log10(1 + LOWEST / 700), 2595 * math.log10(1 + 4000 / 700), 42)
    below, above = (700 * (10 ** (edges[band + side] / 2595) - 1) for side in (0, 2))
    assert below < 1000 < above


def test_loudness_does_not_matter_once_normalised_and_silence_is_finite():
    samples, mel = torch.randn(1500, generator=torch.Generator().manual_seed(1)), LogMel()
    assert torch.allclose(mel.normalised(samples), mel.normalised(7 * samples), atol=1e-3)
    assert torch.allclose(mel.normalised(torch.zeros(900)), torch.zeros(12, 40), atol=1e-3)
    assert mel.stacked(mel.normalised(samples)).shape == (5, 160)


def test_rates_and_bands_out_of_range_are_refused():
    with pytest.raises(BadValue, match="rate: expected 2000 to 48000"):
        LogMel(rate=500)
    with pytest.raises(BadValue, match="bands: expected 4 to 128"):
        LogMel(bands=1000)


def seeded():
    return torch.Generator().manual_seed(4)


def test_a_faster_sound_is_shorter_and_higher():
    tone = torch.sin(2 * math.pi * 500 * torch.arange(8000) / 8000)
    fast = augment.at_speed(tone, 1.25)
    assert len(fast) == 6400
    strongest = int(torch.fft.rfft(fast).abs().argmax()) * 8000 / len(fast)
    assert strongest == pytest.approx(625, abs=2)


def test_noise_lies_so_many_decibels_below_the_sound():
    tone = torch.sin(torch.arange(80_000) * 0.3)
    noise = augment.with_noise(tone, 20.0, seeded()) - tone
    assert 10 * math.log10(float(tone.square().mean() / noise.square().mean())) == pytest.approx(20.0, abs=0.1)


def test_masks_hide_whole_frames_and_whole_bands_and_leave_the_original():
    frames = torch.ones(60, 40)
    found = torch.stack([augment.masked(frames, torch.Generator().manual_seed(n)) for n in range(50)])
    assert frames.min() == 1
    hidden = found == 0
    rows, columns = hidden.all(2), hidden.all(1)
    assert torch.equal(hidden, rows[:, :, None] | columns[:, None]), "nothing but stretches of time and bands"
    assert rows.sum(1).max() <= 2 * 6 and columns.sum(1).max() <= 2 * 8 and hidden.any((1, 2)).float().mean() > 0.9


def test_changes_are_drawn_from_the_generator_alone():
    samples = torch.randn(900, generator=seeded())
    torch.manual_seed(1)
    one = augment.changed(samples, seeded())
    torch.manual_seed(2)
    assert torch.equal(one, augment.changed(samples, seeded()))
