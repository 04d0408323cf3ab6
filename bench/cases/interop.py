"""The layers that take the place of other libraries', against the layers that they replace."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from bench.cases.memory import memory_ratio
from regard.interop.torch import MultiheadAttention
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import slowdown

B, N, DIM, HEADS = 2, 1024, 256, 8
LONG = 2048
SHAPE = f"b{B} dim {DIM} h{HEADS}, causal with padding, forward+backward"


def _training_step(kind: type[nn.MultiheadAttention], device: str, length: int) -> Callable[[], object]:
    torch.manual_seed(0)
    layer = kind(DIM, HEADS, batch_first=True, device=device)
    rows = torch.randn(B, length, DIM, device=device, requires_grad=True)
    later = nn.Transformer.generate_square_subsequent_mask(length, device=torch.device(device))
    padding = torch.zeros(B, length, device=device)
    padding[0, length // 2 :] = -torch.inf
    options = {"attn_mask": later, "is_causal": True, "key_padding_mask": padding, "need_weights": False}

    def step() -> object:
        output, _ = layer(rows, rows, rows, **options)
        return torch.autograd.grad(output.sum(), [rows, *layer.parameters()])

    return step


@case(
    "torch-layer-time",
    work=f"interop.torch.MultiheadAttention, n{N} {SHAPE}",
    peer="nn.MultiheadAttention",
    unit="× its time",
    at_most=1.25,
)
def torch_layer_time(setting: Setting) -> Measurement:
    """The same parameters, inputs and masks as torch's layer."""
    ours, theirs = (_training_step(kind, setting.device, N) for kind in (MultiheadAttention, nn.MultiheadAttention))
    return slowdown(ours, theirs, setting, "layer")


def our_layer(device: str, small: bool) -> Callable[[], object]:
    """The training step of our layer whose memory is measured."""
    return _training_step(MultiheadAttention, device, 256 if small else LONG)


def torch_layer(device: str, small: bool) -> Callable[[], object]:
    """The same step of torch's layer, which writes its masks out for each head of each batch entry."""
    return _training_step(nn.MultiheadAttention, device, 256 if small else LONG)


@case(
    "torch-layer-memory",
    work=f"interop.torch.MultiheadAttention, n{LONG} {SHAPE}",
    peer="nn.MultiheadAttention",
    unit="× its extra memory",
    at_most=0.5,
)
def torch_layer_memory(setting: Setting) -> Measurement:
    """Peak memory of a training step beyond inputs and parameters, divided by that of torch's layer."""
    return memory_ratio(our_layer, torch_layer, setting, "layer")
