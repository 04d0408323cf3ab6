"""`flex`: torch's FlexAttention, compiled, with masks and biases turned into tables that its kernel reads.

It never runs uncompiled, which would need quadratic memory, and compiles once for all lengths, batch sizes and numbers
in masks and biases. If torch gives up on compiling it, it raises instead of falling back.
"""

from __future__ import annotations

import os
import shutil

import torch
from torch import Tensor

from regard.formula.request import Request
from regard.implementations.flex.call import attend
from regard.implementations.lowering import unknown_part
from regard.masks.positional import FullMask
from regard.normalizers import Softmax
from regard.scores.dot import SoftcapScore
from regard.support.arguments import is_fake_or_meta
from regard.support.autocast import without_autocast
from regard.support.differentiate import forbid_second_derivative, transforming

name = "flex"

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def refuse(request: Request) -> str | None:
    """Why FlexAttention cannot run this request and keep the promises, or None."""
    if not (request.score.is_dot or isinstance(request.score, SoftcapScore)):
        return f"FlexAttention computes dot products, not {request.score.name}"
    if not isinstance(request.normalizer, Softmax):
        return f"FlexAttention normalises by softmax, not by {request.normalizer.name}"
    if request.forward_mode:
        return "FlexAttention has no forward-mode derivative"
    if transforming():
        return "FlexAttention has no rules for the transforms of torch.func"
    if is_fake_or_meta(request.query) and not torch.compiler.is_compiling():
        return "FlexAttention compiles for tensors with contents, and fake and meta tensors have none"
    if request.sink is not None:
        return "FlexAttention has no sink"
    if request.dropout > 0:
        return "FlexAttention has no dropout"
    if request.want_logsumexp:
        return "its log-sum-exp is not supported here; tiled returns one"
    for value in (request.mask, request.bias):
        unknown = None if value is None else unknown_part(value)
        if unknown is not None:
            return f"{unknown} is a user-defined class, which cannot be turned into tables for FlexAttention"
    of_bias = () if request.bias is None else request.bias.tensors
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in of_bias):
        return "a bias that needs gradient; tiled computes it"
    if 0 in (*request.sizes, request.value.shape[3]):
        return "FlexAttention fails on empty tensors"
    if request.query.dtype not in _DTYPES:
        return "FlexAttention has kernels for float32, bfloat16 and float16 only"
    return _refuse_cpu(request) if request.query.device.type == "cpu" else None


def _refuse_cpu(request: Request) -> str | None:
    if request.needs_grad:
        return "FlexAttention has no backward pass on the CPU"
    if torch.compiler.is_compiling():  # the user's compiler has its own requirements
        return None
    if not torch.cpu._is_avx2_supported():
        return "FlexAttention on the CPU needs one with AVX2"
    if not has_compiler():
        return "FlexAttention on the CPU needs a C++ compiler, and none was found (install g++, or set CXX)"
    return None


def has_compiler() -> bool:
    """Whether the C++ compiler that torch would use is installed."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def run(request: Request) -> tuple[Tensor, None]:
    """The output (b,h,q,v)."""
    with without_autocast(request.query.device):
        dtype, request = request.query.dtype, request.for_kernels()
        mask = FullMask() if request.mask is None else request.mask
        cap = request.score.cap if isinstance(request.score, SoftcapScore) else None
        output = attend(request.query, request.key, request.value, mask, request.bias, request.scale, cap)
    forbid_second_derivative(output, "FlexAttention")
    return output.to(dtype), None
