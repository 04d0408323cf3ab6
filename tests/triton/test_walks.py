"""By which word block sizes are chosen for a mask and a bias, and what a choice tells the compiler."""

import pytest
import torch

from regard import biases, masks
from regard.implementations.triton.launch import block_sizes
from regard.implementations.triton.launch.block_sizes import HALF, BlockSizes
from regard.implementations.triton.launch.blocks import prepare
from tests.triton.conftest import DEVICE

N, HEADS = 64, 2
IDS = (torch.arange(N) // 20).expand(1, -1)


@pytest.mark.parametrize(
    ("mask", "bias", "walk"),
    [
        (lambda: None, lambda: None, "any"),
        (masks.causal, lambda: None, "any"),
        (lambda: masks.causal() | masks.prefix(16), lambda: None, "any"),
        (lambda: masks.window(7, 0), lambda: None, "short"),
        (lambda: masks.window(40, 0), lambda: None, "any"),
        (masks.causal, lambda: biases.alibi(HEADS), "biased"),
        (lambda: masks.window(7, 0) | masks.global_tokens(range(2)), lambda: None, "listed"),
        (lambda: masks.causal() & masks.documents(IDS.to(DEVICE)), lambda: None, "hides, listed"),
        (lambda: masks.lengths(torch.tensor([50], device=DEVICE)), lambda: None, "hides"),
    ],
)
def test_walks(mask, bias, walk):
    assert prepare(mask(), bias(), (1, HEADS, N, N), torch.device(DEVICE)).walk == walk


def test_registers_are_limited_by_the_programs_at_a_time():
    assert BlockSizes(64, 64, 4, 2, 4).options()["maxnreg"] == 128
    assert BlockSizes(64, 64, 4, 2, 3).options()["maxnreg"] == 168
    assert "maxnreg" not in BlockSizes(64, 64, 4, 2, 4).options(limited=False)
    assert "maxnreg" not in BlockSizes(64, 64, 4, 2).options()


def test_a_walk_without_a_line_takes_that_of_any(monkeypatch):
    monkeypatch.setattr(block_sizes, "SMALL", False)
    found = block_sizes.keys_shape(torch.bfloat16, 128, "a walk of its own")
    assert found == HALF["keys", "any"][1]
    assert block_sizes.forward_shape(torch.float16, 128, "listed") == HALF["forward", "listed"][1]
    assert block_sizes.forward_shape(torch.float32, 64, "listed") == BlockSizes(64, 32, 4, 2)
