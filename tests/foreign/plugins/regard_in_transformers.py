"""pytest plugin: Hugging Face's own model tests, of which a copy says "regard" where they say "sdpa".

PLACE=function: regard's attention is registered, and the default of every model whose default is sdpa. Without PLACE
the tests run as they are. CALLS: the file that gets the number of eager calls of regard.

The tests draw weights with a deviation of 0.02 and set the eps of every norm to 1, so that scores are nearly 0, and a
scale that is wrong by a tenth passes. SHARP=12: weights 12 times as large, norms as they are.
WRONG_SCALE=1.1: the scale of regard's attention times that, which sharp tests must notice.
"""

import os
import sys
import types
from pathlib import Path

import torch
from transformers import PreTrainedModel, initialization, testing_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

CALLS = {"eager": 0}


def leave_pipelines_out():
    """The tests of pipelines download models."""
    module = types.ModuleType("tests.test_pipeline_mixin")
    module.PipelineTesterMixin = type("PipelineTesterMixin", (), {})
    module.is_pipeline_test_to_skip = lambda *arguments, **options: True
    sys.modules[module.__name__] = module


def sharpen(times):
    """Draw larger weights, and leave norms as they are."""
    draw = initialization.normal_

    def draw_larger(tensor, mean=0.0, std=1.0, generator=None):
        return draw(tensor, mean=mean, std=std * times, generator=generator)

    initialization.normal_ = draw_larger
    testing_utils.set_config_for_less_flaky_test = lambda config: None
    testing_utils.set_model_for_less_flaky_test = lambda model: None


def take_the_place_of_sdpa():
    """Make regard the default where sdpa is, and refuse it by name where sdpa is refused."""
    from regard.interop import huggingface

    huggingface.register()
    choose = PreTrainedModel.get_correct_attn_implementation

    def choose_regard(self, requested_attention, *arguments, **options):
        if requested_attention not in (None, "regard"):
            return choose(self, requested_attention, *arguments, **options)
        chosen = choose(self, requested_attention and "sdpa", *arguments, **options)
        return "regard" if chosen == "sdpa" and type(self)._can_set_attn_implementation() else chosen

    PreTrainedModel.get_correct_attn_implementation = choose_regard
    ALL_ATTENTION_FUNCTIONS["regard"] = counted(ALL_ATTENTION_FUNCTIONS["regard"])


def counted(attend, times=float(os.environ.get("WRONG_SCALE", 1))):
    """The attention function, its eager calls counted, its scale times a number."""

    def attend_and_count(module, query, key, value, attention_mask, scaling=None, **options):
        if not torch.compiler.is_compiling():  # a guard on the number would compile again at every call
            CALLS["eager"] += 1
        if times != 1:
            scaling = times * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        return attend(module, query, key, value, attention_mask, scaling=scaling, **options)

    return attend_and_count


def pytest_sessionfinish():
    """Write down how often regard was called."""
    if "CALLS" in os.environ:
        Path(os.environ["CALLS"]).write_text(str(CALLS["eager"]))


leave_pipelines_out()
if "SHARP" in os.environ:
    sharpen(float(os.environ["SHARP"]))
if "PLACE" in os.environ:
    take_the_place_of_sdpa()
