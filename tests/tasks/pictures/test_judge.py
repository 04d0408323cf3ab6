"""The fixed classifier of pictures."""

import numpy as np
import pytest
import torch

from regard_workbench.tasks.pictures import judge
from regard_workbench.tasks.pictures.judge import PictureJudge
from regard_workbench.tasks.pictures.written_digits import figures


def digits(split):
    grey, shown = figures(split)
    return torch.from_numpy(grey[:, None]), torch.tensor(shown)


@pytest.fixture(scope="module")
def fixed():
    return PictureJudge(*digits("train"), 10)


def test_it_knows_real_digits_that_it_was_not_trained_on(fixed):
    for split in ("validation", "test"):
        pictures, shown = digits(split)
        assert (fixed(pictures).classes == shown.numpy()).mean() > 0.975


def test_bytes_and_numbers_from_0_to_1_are_the_same_picture(fixed):
    pictures = digits("test")[0][:31]
    one, other = fixed(pictures), fixed(pictures.double() / 255)
    assert np.allclose(one.features, other.features, atol=1e-12) and (one.classes == other.classes).all()
    assert one.features.shape == (31, 32) and np.abs(one.features).max() <= 1


def test_its_features_are_those_of_two_layers_of_tanh(fixed):
    pictures = digits("test")[0][:5]
    rows = pictures.numpy().reshape(5, 64) / 255 * 2 - 1
    first, second, last = (layer.numpy() for layer in fixed.layers)
    hidden = np.tanh(rows @ first[:-1] + first[-1])
    features = np.tanh(hidden @ second[:-1] + second[-1])
    found = fixed(pictures)
    assert np.allclose(found.features, features)
    assert found.classes.tolist() == (features @ last[:-1] + last[-1]).argmax(1).tolist()


def test_it_is_the_same_each_time_and_neither_reads_nor_changes_what_is_around_it(monkeypatch):
    monkeypatch.setattr(judge, "STEPS", 7)
    pictures, shown = digits("train")
    plain = PictureJudge(pictures, shown, 10)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        again = PictureJudge(pictures, shown, 10)
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(plain.layers, again.layers, strict=True):
        assert torch.equal(one, other) and one.dtype == torch.float64 and not one.requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert np.array_equal(plain(pictures[:9]).features, again(pictures[:9]).features)


def test_many_pictures_are_judged_in_parts(fixed, monkeypatch):
    pictures = digits("test")[0][:29]
    whole = fixed(pictures)
    monkeypatch.setattr(judge, "AT_ONCE", 7)
    parts = fixed(pictures)
    assert np.allclose(whole.features, parts.features) and (whole.classes == parts.classes).all()
