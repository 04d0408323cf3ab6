"""Architectures of transformers, built small: their configurations, inputs, and the processes of a walk."""

import os
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.architectures import huggingface, inputs, shrinking, walking
from bench.architectures.building import NotBuilt
from bench.architectures.repairs import mended
from tests.observation import peers  # noqa: F401  keeps Hugging Face offline

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries, about their own configurations


def test_what_cannot_be_built_says_why():
    def build(name, attend, check, reasons):
        reasons += ["small configuration 0: no", "forward(input_ids): too wide", "forward(input_ids): too wide"]
        raise NotBuilt(reasons)

    record = walking.examine("some", 100, SimpleNamespace(build=build))
    assert (record["status"], record["reason"]) == ("could not be built", "forward(input_ids): too wide")
    assert len(record["reasons"]) == 2


def test_a_configuration_without_a_model_is_no_failure():
    assert walking.examine("sam_mask_decoder", 100)["status"] == "no model of its own"


def test_every_architecture_of_the_registry_is_walked():
    from transformers import CONFIG_MAPPING

    assert set(huggingface.names()) == set(CONFIG_MAPPING.keys())


def test_a_small_configuration_keeps_heads_and_one_layer_of_each_kind():
    from transformers import Gemma3TextConfig

    full = Gemma3TextConfig()
    small = shrinking.small(full, shrinking.Rules())
    assert small.num_attention_heads == full.num_attention_heads
    assert small.head_dim == full.head_dim // 8 and small.hidden_size == full.hidden_size // 8
    assert sorted(set(small.layer_types)) == sorted(set(full.layer_types))
    assert len(small.layer_types) == small.num_hidden_layers <= 4


def test_inputs_that_an_error_names_are_added():
    class Model(nn.Module):
        main_input_name = "input_ids"
        config = type("Config", (), {"vocab_size": 31, "is_encoder_decoder": False})()

        def forward(self, input_ids, pixel_values=None):
            if pixel_values is None:
                raise ValueError("You have to specify pixel_values")
            return input_ids

    model, reasons = Model(), []
    given = next(huggingface._working(model, reasons))
    assert set(given) == {"input_ids", "pixel_values"} and given["input_ids"].max() < 31
    more = mended("pixel_values?", model, {"input_ids": given["input_ids"]}, inputs.Maker(model.config))
    assert set(more) == {"input_ids", "pixel_values"}


@pytest.mark.parametrize(
    ("message", "shape"),
    [
        ("mat1 and mat2 shapes cannot be multiplied (34x5 and 11x7)", (2, 3, 11)),
        ("The size of tensor a (3) must match the size of tensor b (13) at non-singleton dimension 1", (2, 13, 5)),
        ("expected input[2, 3, 5] to have 17 channels, but got 3 channels instead", (2, 17, 5)),
        ("`features` length 5 is not a multiple of 7. Pad it.", (2, 3, 14)),
    ],
)
def test_sizes_that_an_error_names_are_mended(message, shape):
    config = SimpleNamespace()
    model = SimpleNamespace(forward=lambda features: None, modules=list, config=config)
    more = mended(message, model, {"features": torch.randn(2, 3, 5)}, inputs.Maker(config))
    assert more["features"].shape == shape


def test_a_text_gets_as_many_placeholders_as_a_picture_has_features():
    config = SimpleNamespace(image_token_id=29, vocab_size=31)
    given = {"input_ids": torch.zeros(2, 17).long(), "attention_mask": torch.ones(2, 17).long()}
    message = "Image features and image tokens do not match, tokens: 0, features: 10"
    more = mended(message, None, given, inputs.Maker(config))
    assert (more["input_ids"] == 29).sum() == 10 and more["attention_mask"].shape == more["input_ids"].shape


def compare(name, seconds):
    """Stands for a comparison; at module level, where another process finds it."""
    if name == "bad":
        os._exit(3)
    time.sleep(600 if name in ("hangs", "slow") else 0)
    return {"name": name, "attend": "regard", "status": "equal"}


@pytest.mark.slow
def test_one_that_dies_or_hangs_is_recorded_and_the_others_go_on():
    told = []
    names = ["one", "bad", "hangs", "two"]
    records = walking.examine_all(names, 1, 4.0, 1.0, told.append, compare=compare)
    assert [one["status"] for one in records] == ["equal", "could not be built", "could not be built", "equal"]
    assert records[1]["reason"] == "the process died (3)" and "took too long" in records[2]["reason"]
    assert records[0]["with"].startswith("torch 2.") and [one["name"] for one in told] == names


@pytest.mark.slow
def test_a_walk_ends_in_time_and_leaves_the_others_for_the_next_one():
    begun = time.monotonic()
    records = walking.examine_all(["one", "slow", "two"], 1, 60.0, 1.0, lambda record: None, 30.0, compare)
    assert [one["name"] for one in records] == ["one"]
    assert 29.9 < time.monotonic() - begun < 60.0
