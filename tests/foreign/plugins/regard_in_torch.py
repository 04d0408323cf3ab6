"""pytest plugin: PyTorch's own tests with regard in torch's place.

PLACE=function: below `scaled_dot_product_attention`. PLACE=layers: regard's `MultiheadAttention` in every encoder and
decoder, too. Without PLACE the tests run as they are. CALLS: the file that gets the number of eager calls of regard.
"""

import functools
import os
from pathlib import Path

import torch
from torch import nn

PLACE = os.environ.get("PLACE")
EVERY = 24  # of the 3072 cases of one test with masks, each of which compares up to 16 shapes

if PLACE:
    import sdpa_by_regard

    nn.functional.scaled_dot_product_attention = sdpa_by_regard.scaled_dot_product_attention


def _with_our_layers(kind):
    """Let every new module of a kind have regard's attention."""
    from regard.interop.torch import replace

    construct = kind.__init__

    def construct_and_replace(self, *arguments, **options):
        construct(self, *arguments, **options)
        replace(self)

    kind.__init__ = construct_and_replace


def _count_calls(layer):
    """Let the calls of a class of layers count as calls of regard."""
    attend = layer._eager

    @functools.wraps(attend)  # TorchScript reads what it wraps
    def attend_and_count(*arguments, **options):
        if not torch.compiler.is_compiling():
            sdpa_by_regard.CALLS["eager"] += 1
        return attend(*arguments, **options)

    layer._eager = attend_and_count


if PLACE == "layers":
    from regard.interop.torch import MultiheadAttention

    _count_calls(MultiheadAttention)
    for container in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.TransformerEncoder):
        _with_our_layers(container)
    nn.MultiheadAttention = nn.modules.activation.MultiheadAttention = MultiheadAttention


def pytest_collection_modifyitems(config, items):
    """Keep a sample of the cases of the test with masks."""
    cases = [test for test in items if "fused_attention_mask_vs_math_cpu" in test.name]
    left_out = [case for number, case in enumerate(cases) if number % EVERY]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [test for test in items if test not in left_out]


def pytest_sessionfinish():
    """Write down how often regard was called."""
    if PLACE and "CALLS" in os.environ:
        Path(os.environ["CALLS"]).write_text(str(sdpa_by_regard.CALLS["eager"]))
