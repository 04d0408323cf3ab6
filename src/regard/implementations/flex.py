"""`flex`: torch's FlexAttention, compiled, with block masks made from the structure of ours.

It is never run uncompiled (that needs quadratic memory) and compiles once for all lengths: the lengths reach the
compiled code as tensors, never as constants. If torch gives up on compiling it raises instead of falling back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from regard.biases import Bias
from regard.errors import Unsupported
from regard.grid import Grid
from regard.masks import FULL, PARTIAL, Mask
from regard.masks.algebra import cut
from regard.masks.hidden import visible_keys
from regard.masks.positional import Full
from regard.normalizers import Softmax
from regard.request import Request
from regard.scores.dot import Softcap

name = "flex"

_BLOCK = 128
_LEAST_WIDTH = 16  # the compiled kernels want at least this many columns


def refuse(request: Request) -> str | None:
    """Why FlexAttention cannot run this request as promised, or None."""
    if not (request.score.is_dot or isinstance(request.score, Softcap)):
        return f"FlexAttention computes dot products, not {request.score!r}"
    if not isinstance(request.normalizer, Softmax):
        return f"FlexAttention normalises by softmax, not by {request.normalizer.name}"
    if request.sink is not None:
        return "FlexAttention has no sink"
    if request.dropout > 0:
        return "FlexAttention has no dropout"
    if request.want_logsumexp:
        return "its log-sum-exp is not wired up; tiled returns one"
    if request.bias is not None and any(tensor.requires_grad for tensor in request.bias.tensors):
        return "a bias that needs gradient; tiled computes it"
    if 0 in (*request.sizes, request.value.shape[3]):
        return "FlexAttention fails on empty tensors"
    if request.query.dtype == torch.float64:
        return "FlexAttention has no float64 kernels"
    if request.query.device.type == "cpu":
        if request.needs_grad:
            return "FlexAttention has no backward pass on the CPU"
        if not has_compiler():
            return (
                "FlexAttention on the CPU needs a C++ compiler, and none was found (set CXX, or install g++)"
            )
    return None


@lru_cache(maxsize=1)
def has_compiler() -> bool:
    """Whether torch can compile for this CPU."""
    return any(shutil.which(command) for command in (os.environ.get("CXX", ""), "g++", "clang++") if command)


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


def run(request: Request) -> tuple[Tensor, None]:
    """The output (b,h,q,v)."""
    reduced = request.reduced()
    query, key, value = reduced.query, reduced.key, reduced.value
    mask = None if reduced.mask is None or isinstance(reduced.mask, Full) else reduced.mask
    sizes = _sizes(reduced)
    block_mask = None
    if mask is not None:
        key, value, query = _without_hidden(mask, reduced)
        block_mask = _block_mask(mask, reduced, sizes)
    width, out = query.shape[3], value.shape[3]
    query, key, value = _wide(query), _wide(key), _wide(value)
    cap = reduced.score.cap if isinstance(reduced.score, Softcap) else None
    arguments: dict[str, Any] = {
        "score_mod": _score_mod(reduced.bias, cap, sizes),
        "block_mask": block_mask,
        "scale": reduced.scale,
        "enable_gqa": query.shape[1] != key.shape[1],
    }
    call = flex_attention if torch.compiler.is_compiling() else _compiled()
    try:
        output = call(query, key, value, **arguments)
    except torch._dynamo.exc.FailOnRecompileLimitHit as problem:
        raise Unsupported(
            "impl='flex': torch has compiled too many variants of FlexAttention and would now run it unfused, in quadratic "
            "memory. Call torch.compiler.reset(), or use impl='tiled'."
        ) from problem
    del width
    if output.requires_grad and not torch.compiler.is_compiling():
        output.register_hook(_refuse_second_derivative)
    return (output if output.shape[3] == out else output[..., :out]), None


def _wide(rows: Tensor) -> Tensor:
    return rows if rows.shape[3] >= _LEAST_WIDTH else pad(rows, (0, _LEAST_WIDTH - rows.shape[3]))


def _sizes(request: Request) -> Tensor:
    """The sizes as one tensor (4,), which compiled code takes as data instead of compiling them in."""
    return torch.tensor(request.sizes, device=request.query.device)


def _grid(sizes: Any, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Grid:
    return Grid(sizes, batch, head, row, column, None)


def _block_mask(mask: Mask, request: Request, sizes: Tensor) -> BlockMask:
    """Our grades of blocks as a BlockMask: partial blocks ask `visible`, full ones do not, empty ones are skipped."""

    def visible(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return mask.visible(_grid(sizes, batch, head, row, column))

    grades = mask.grades(cut(request.sizes, _BLOCK, _BLOCK, request.query.device))
    partial, full = _ordered(grades == PARTIAL), _ordered(grades == FULL)
    lengths = (request.sizes[2], request.sizes[3])
    return BlockMask.from_kv_blocks(*partial, *full, BLOCK_SIZE=_BLOCK, mask_mod=visible, seq_lengths=lengths)


def _ordered(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row are chosen, and their columns, the chosen ones first."""
    columns = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), columns.to(torch.int32)


def _score_mod(bias: Bias | None, cap: float | None, sizes: Tensor) -> Callable[..., Tensor] | None:
    if bias is None and cap is None:
        return None

    def modify(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        if cap is not None:
            score = torch.tanh(score / cap) * cap
        if bias is not None:
            score = score + bias.values(_grid(sizes, batch, head, row, column))
        return score

    return modify


def _without_hidden(mask: Mask, request: Request) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values that nobody sees become zeros: a kernel multiplies what stands there by zero."""
    seen = visible_keys(mask, request.sizes, request.query.device)
    query, key, value = request.query, request.key, request.value
    if seen is None:
        return key, value, query
    if seen.shape[1] > 1:
        seen = seen.unflatten(1, (key.shape[1], -1)).any(2)
    hidden = ~seen[..., None]
    return key.masked_fill(hidden, 0), value.masked_fill(hidden, 0), query


def _refuse_second_derivative(grad: Tensor) -> None:
    if torch.is_grad_enabled():
        raise Unsupported(
            "attend: this backward pass is itself being recorded (create_graph=True), and FlexAttention has no second "
            'derivative. Pass impl="reference" (exact) or impl="tiled" to attend.'
        )
