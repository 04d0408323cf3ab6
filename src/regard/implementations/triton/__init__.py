"""`triton`: our own fused kernels, which evaluate mask, bias and score inside.

They do not use `torch.compile`. One compiled kernel runs every length, window, offset and table of the same form, and
Triton caches compiled kernels on disk.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.biases import Bias, DenseBias, GaussianBias, SumBias
from regard.formula.call import Call, Repeated
from regard.formula.dropout import draw_seed
from regard.formula.request import Request
from regard.implementations import gpu
from regard.implementations.lowering import unknown_part
from regard.implementations.packing import pack
from regard.implementations.triton.dot import decode_calls, direct, op
from regard.implementations.triton.dot.decode_requests import few_queries
from regard.implementations.triton.launch.block_sizes import INTERPRETED, SMALL, padded
from regard.implementations.triton.launch.raw_launches import known_refusal
from regard.implementations.triton.normalized import attention as normalized_attention
from regard.implementations.triton.normalized.attention import only_by_name as only_by_name
from regard.normalizers import Softmax
from regard.scores.additive import AdditiveScore, ConcatScore
from regard.scores.dot import SoftcapScore
from regard.support.arguments import is_fake_or_meta
from regard.support.autocast import without_autocast
from regard.support.differentiate import transforming

name = "triton"

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WIDEST = 256
_LARGE = 140 << 10  # bytes of shared memory that kernels for wide rows take, however few stages they have


def refuse(request: Request) -> str | None:
    """Why the kernels cannot run this request and keep the promises, or None."""
    if request.query.device.type != "cuda" and not INTERPRETED:
        return "its kernels run on a GPU"
    if not (request.score.is_dot or isinstance(request.score, (SoftcapScore, AdditiveScore, ConcatScore))):
        return f"there is no kernel for the {request.score.name} score yet"
    if not isinstance(request.normalizer, Softmax):
        why = normalized_attention.refuse(request)
        if why is not None:
            return why
    if request.forward_mode:
        return "an operator has no forward-mode derivative"
    if transforming():
        return "its operators have no rules for the transforms of torch.func"
    if is_fake_or_meta(request.query) and not torch.compiler.is_compiling():
        return "its kernels read contents, and fake and meta tensors have none"
    if request.query.dtype not in _DTYPES:
        return "its kernels compute in float32, bfloat16 and float16"
    if 0 in (*request.sizes, request.value.shape[3]):
        return "there is nothing to compute"
    hidden = request.score.weight.shape[-1] if isinstance(request.score, ConcatScore) else 0
    if max(request.query.shape[3], request.value.shape[3], hidden) > _WIDEST:
        return f"its kernels hold rows of up to {_WIDEST} numbers"
    if request.dropout >= 1:
        return "with everything dropped there is nothing to compute"
    if (why := _too_large(request)) is not None:
        return why
    if _miscompiled(request):
        return (
            "its float32 backward kernels for keys and values of such different widths access memory outside of their "
            "tensors (as compiled by Triton 3.6)"
        )
    for value in (request.mask, request.bias):
        unknown = None if value is None else unknown_part(value)
        if unknown is not None:
            return f"{unknown} is a user-defined class, which its kernels cannot evaluate"
    return _refuse_bias(request)


def remark() -> str | None:
    """What `explain` adds: why launches take longer here than they could. None as long as no kernel was launched."""
    why = known_refusal()
    return None if why is None else f"launched through Triton's Python code, which takes longer: {why}"


def _too_large(request: Request) -> str | None:
    """Why a kernel does not fit on a GPU with little shared memory, or None. (`run_fitting` only saves on stages.)"""
    if request.query.device.type != "cuda" or isinstance(request.score, (AdditiveScore, ConcatScore)):
        return None
    width = padded(max(request.query.shape[3], request.value.shape[3]))
    in_parts = request.query.dtype == torch.float32 and not isinstance(request.normalizer, Softmax)
    if width <= (64 if in_parts else 128) or (room := gpu.shared_memory(request.query.device)) >= _LARGE:
        return None
    return f"a kernel for rows of {width} numbers does not fit into the {room >> 10} KiB of shared memory of this GPU"


def _miscompiled(request: Request) -> bool:
    """Whether the backward pass needs kernels that crashed on an H200.

    They compute float32 products as sums of bfloat16 products. With blocks of two widths (64 and 32) they read or wrote
    outside of their tensors; with one width, or in half precision, they never did.
    """
    additive = isinstance(request.score, (AdditiveScore, ConcatScore))  # these have other kernels
    in_float32 = request.query.dtype == torch.float32 or request.leaves_range
    if SMALL or additive or not (in_float32 and request.needs_grad):
        return False
    return padded(request.query.shape[3]) != padded(request.value.shape[3])


def _refuse_bias(request: Request) -> str | None:
    """Why the gradient of the bias cannot be computed; for additive scores the bias itself computes it."""
    if request.bias is None or isinstance(request.score, (AdditiveScore, ConcatScore)):
        return None
    wanted = [leaf for leaf in _leaves(request.bias) if any(tensor.requires_grad for tensor in leaf.tensors)]
    for kind in (GaussianBias, DenseBias):
        if sum(isinstance(leaf, kind) for leaf in wanted) > 1:
            return f"its backward pass sums the gradient of one {kind.name} bias, not of two"
    if torch.are_deterministic_algorithms_enabled():
        for leaf in wanted:
            if isinstance(leaf, DenseBias) and leaf.tensor.numel() != math.prod(request.sizes):
                return "the gradient of a dense bias that is broadcast is summed in no fixed order"
    return None


def _leaves(bias: Bias) -> list[Bias]:
    return [*_leaves(bias.left), *_leaves(bias.right)] if isinstance(bias, SumBias) else [bias]


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    """The output (b,h,q,v) and, if wanted, the log-sum-exp (b,h,q)."""
    dtype = request.query.dtype
    seed = draw_seed(request.query.device) if request.dropout > 0 else None
    with without_autocast(request.query.device):
        if isinstance(request.score, ConcatScore):  # rounding its projections before the tanh would lose precision
            request = request.widened()
        request = request.for_kernels()
        if not isinstance(request.normalizer, Softmax):
            return normalized_attention.attend(request).to(dtype), None
        decoded = few_queries(request) if not torch.compiler.is_compiling() else None
        if decoded is not None:
            return decoded[0].to(dtype), decoded[1] if request.want_logsumexp else None
        output, logsumexp = op.attend(request, seed)
    output = output if output.dtype == dtype else output.to(dtype)
    return output, logsumexp if request.want_logsumexp else None


def repeated(call: Call, request: Request) -> Repeated | None:
    """How to run calls of the same signature again; None where they need a request."""
    bound = decode_calls.bind(request) or direct.bind(call, request)
    return None if bound is None else bound.run


def share_backward(
    request: Request, grad: Tensor, grad_logsumexp: Tensor, output: Tensor, logsumexp: Tensor, needed: list[bool]
) -> list[Tensor]:
    """As `tiled.share_backward`: the kernels take the log-sum-exp and the output of a row as they are given."""
    seed = draw_seed(request.query.device) if request.dropout > 0 else None
    tensors, spec = pack(request)
    dtype = request.query.dtype
    gradients: list[Tensor] = torch.ops.regard.fused_backward.default(
        grad.to(dtype).contiguous(), grad_logsumexp.contiguous(), output.to(dtype).contiguous(),
        logsumexp.contiguous(), request.query, request.key, request.value, None, seed, tensors, spec, request.scale,
        request.dropout, needed,
    )
    return gradients
