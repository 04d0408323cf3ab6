"""Patching and direct logit attribution against TransformerLens, on the same weights."""

import json

import pytest
import torch

import regard
from tests.observation import lens_oracle

pytest.importorskip("transformers")


def compare(expected):
    clean, corrupted = lens_oracle.texts()
    model = lens_oracle.model()
    with regard.observe(model) as seen, torch.no_grad():
        model(clean)
    asked = {"answer": lens_oracle.ANSWER, "other": lens_oracle.OTHER}
    heads = seen.patch(clean, corrupted, **asked)
    positions = seen.patch(clean, corrupted, positions="each", **asked)
    layers = seen.patch(clean, corrupted, at="layers", **asked)
    written = seen.contributions(**asked)
    span = abs(expected["clean"] - expected["corrupted"])
    assert span > 0.2 and heads.values.std() > 0.05 * span  # patches differ far more than the bound below
    close = {"rtol": 0, "atol": 1e-3 * span}
    for found, name in ((heads.clean, "clean"), (heads.corrupted, "corrupted")):
        assert found == pytest.approx(expected[name], rel=1e-4)
    assert torch.allclose(heads.values, torch.tensor(expected["heads"]).double(), **close)
    assert torch.allclose(positions.values, torch.tensor(expected["heads_by_position"]).double(), **close)
    # It patches what enters a layer, which is what leaves the one before.
    assert torch.allclose(layers.values[:-1], torch.tensor(expected["before_layers"]).double()[1:], **close)
    assert torch.allclose(written.heads, torch.tensor(expected["written"]).double(), **close)


def test_numbers_recorded_with_transformer_lens_are_found_again():
    compare(json.loads(lens_oracle.RECORDED.read_text()))


def test_transformer_lens_itself_gives_the_same_numbers():
    pytest.importorskip(
        "transformer_lens", reason="TransformerLens is not installed; its recorded numbers are compared"
    )
    compare(lens_oracle.asked())
