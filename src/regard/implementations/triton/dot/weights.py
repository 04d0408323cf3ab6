"""`weights` by kernels: the exact weights of chosen rows and heads.

The keys are shared out, so that a single row keeps the whole device busy. One kernel finds each stretch's largest score
and sum; a second puts those together, scores again and writes the weights. Scores are never kept.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.formula.request import Request
from regard.implementations.lowering import unknown_part
from regard.implementations.packing import pack, unpack_values
from regard.implementations.triton.launch.block_sizes import SMALL, padded, precision
from regard.implementations.triton.launch.blocks import prepare
from regard.implementations.triton.launch.device_functions import final_scores, visible
from regard.implementations.triton.launch.launching import launch, processors
from regard.normalizers import Softmax
from regard.scores.dot import DotScore, SoftcapScore
from regard.values.grid import Part

_LENGTHS = ["first_row", "first_head", "rows", "chosen", "heads", "group", "k_len", "length", "TABLE_STRIDES"]
_SPLITS = 32  # the most splits of the keys


@triton.jit
def _place(ROWS, HEADS, first_row, first_head, rows, chosen, BLOCK: tl.constexpr):
    """The batch entry, head and rows of a program, and whether each of its rows exists."""
    batch, head = tl.program_id(2) // chosen, first_head + tl.program_id(2) % chosen
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = index < rows
    row = first_row + tl.minimum(index, rows - 1)
    if HEADS is not None:
        head = tl.load(HEADS + tl.program_id(2) % chosen).to(tl.int32)
    if ROWS is not None:
        row = tl.load(ROWS + index, mask=real, other=0).to(tl.int32)
    return batch, head, row, index, real


@triton.jit
def _scores(
    query, K, K_STRIDES, start, TABLES, TABLE_STRIDES, NUMBERS, batch, head, row, k_len, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Scores, to base 2, of a program's rows and the keys from `start` on; and which keys they see."""
    column, wide = start + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D)
    key = tl.load(
        K + column[None, :].to(tl.int64) * K_STRIDES[2] + wide[:, None],
        mask=(column < k_len)[None, :] & (wide < D)[:, None], other=0.0,
    )
    safe = tl.minimum(column, k_len - 1)
    scores, _ = final_scores(
        tl.dot(query, key, input_precision=PRECISION), BIAS, CAP, False, TABLES, TABLE_STRIDES, NUMBERS, scale, cap,
        batch, head, row[:, None], safe[None, :],
    )
    seen = visible(FORM, TABLES, TABLE_STRIDES, batch, head, row[:, None], safe[None, :])
    seen &= (column < k_len)[None, :]
    return tl.where(seen, scores, float("-inf")), seen, column


@triton.jit(do_not_specialize=_LENGTHS)
def measure(
    Q, K, ROWS, HEADS, PEAK, TOTAL, TABLES, TABLE_STRIDES, NUMBERS, Q_STRIDES, K_STRIDES,
    first_row, first_head, rows, chosen, group, k_len, length, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
):
    """The largest score of each row in one split of the keys, and Σ 2^(score − largest)."""
    batch, head, row, index, real = _place(ROWS, HEADS, first_row, first_head, rows, chosen, BLOCK_R)
    wide = tl.arange(0, BLOCK_D)
    Q += batch.to(tl.int64) * Q_STRIDES[0] + head.to(tl.int64) * Q_STRIDES[1]
    K += batch.to(tl.int64) * K_STRIDES[0] + (head // group).to(tl.int64) * K_STRIDES[1]
    at = Q + row[:, None].to(tl.int64) * Q_STRIDES[2] + wide[None, :]
    query = tl.load(at, mask=real[:, None] & (wide < D)[None, :], other=0.0)
    peak, total = tl.full([BLOCK_R], float("-inf"), tl.float32), tl.zeros([BLOCK_R], tl.float32)
    begin = tl.program_id(1) * length
    for start in range(begin, tl.minimum(begin + length, k_len), BLOCK_K):
        scores, _, _ = _scores(
            query, K, K_STRIDES, start, TABLES, TABLE_STRIDES, NUMBERS, batch, head, row, k_len, scale, cap,
            FORM, BIAS, CAP, PRECISION, D, BLOCK_D, BLOCK_K,
        )
        higher = tl.maximum(peak, tl.max(scores, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp2(peak - shift) + tl.sum(tl.exp2(scores - shift[:, None]), 1)
        peak = higher
    at = (tl.program_id(2).to(tl.int64) * rows + index) * SPLITS + tl.program_id(1)
    tl.store(PEAK + at, peak, mask=real)
    tl.store(TOTAL + at, total, mask=real)


@triton.jit(do_not_specialize=_LENGTHS)
def write(
    Q, K, ROWS, HEADS, PEAK, TOTAL, SINK, OUT, TABLES, TABLE_STRIDES, NUMBERS, Q_STRIDES, K_STRIDES,
    first_row, first_head, rows, chosen, group, k_len, length, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
):
    """The weights of one split of the keys."""
    batch, head, row, index, real = _place(ROWS, HEADS, first_row, first_head, rows, chosen, BLOCK_R)
    split, wide = tl.arange(0, SPLITS)[None, :], tl.arange(0, BLOCK_D)
    at = (tl.program_id(2).to(tl.int64) * rows + index)[:, None] * SPLITS + split
    there = real[:, None] & (split < tl.num_programs(1))
    peaks = tl.load(PEAK + at, mask=there, other=float("-inf"))
    totals = tl.load(TOTAL + at, mask=there, other=0.0)
    peak = tl.max(peaks, 1)
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(totals * tl.exp2(peaks - shift[:, None]), 1)
    empty = total == 0.0
    if SINK is not None:
        total += tl.exp2(tl.load(SINK + head).to(tl.float32) * 1.4426950408889634 - shift)
    share = tl.where(empty, 0.0, 1.0 / tl.where(empty, 1.0, total))
    Q += batch.to(tl.int64) * Q_STRIDES[0] + head.to(tl.int64) * Q_STRIDES[1]
    K += batch.to(tl.int64) * K_STRIDES[0] + (head // group).to(tl.int64) * K_STRIDES[1]
    at = Q + row[:, None].to(tl.int64) * Q_STRIDES[2] + wide[None, :]
    query = tl.load(at, mask=real[:, None] & (wide < D)[None, :], other=0.0)
    OUT += (tl.program_id(2).to(tl.int64) * rows + index)[:, None] * k_len
    begin = tl.program_id(1) * length
    for start in range(begin, tl.minimum(begin + length, k_len), BLOCK_K):
        scores, seen, column = _scores(
            query, K, K_STRIDES, start, TABLES, TABLE_STRIDES, NUMBERS, batch, head, row, k_len, scale, cap,
            FORM, BIAS, CAP, PRECISION, D, BLOCK_D, BLOCK_K,
        )
        weights = tl.where(seen, tl.exp2(scores - shift[:, None]) * share[:, None], 0.0)
        mask = real[:, None] & (column < k_len)[None, :]
        tl.store(OUT + column[None, :], weights.to(OUT.dtype.element_ty), mask=mask)


def runs(request: Request) -> bool:
    """Whether the kernels can give weights of this request, whose score is one of pairs already."""
    return (
        0 not in request.sizes
        and type(request.normalizer) is Softmax
        and type(request.score) in (DotScore, SoftcapScore)
        and request.query.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and request.query.shape[3] <= 256
        and request.sizes[0] * request.sizes[1] < 1 << 16
        and (request.mask is None or unknown_part(request.mask) is None)
        and (request.bias is None or unknown_part(request.bias) is None)
    )


def run(request: Request, rows: Part | None, heads: Part | None, dtype: torch.dtype) -> Tensor:
    """The weights (b, heads, rows, k) of a request that `runs` accepted."""
    tensors, spec = pack(request)
    found: Tensor = torch.ops.regard.rows.default(
        request.query, request.key, request.sink, *_chosen(rows, request.sizes[2]), *_chosen(heads, request.sizes[1]),
        tensors, spec, request.scale, dtype,
    )
    return found


def _chosen(part: Part | None, length: int) -> tuple[Tensor | None, int, int]:
    """Indices, or the first index and the length of a range."""
    if isinstance(part, Tensor):
        return part, 0, part.shape[0]
    return (None, 0, length) if part is None else (None, part.start, part.stop - part.start)


def _run(
    query: Tensor, key: Tensor, sink: Tensor | None, rows: Tensor | None, first_row: int, row_count: int,
    heads: Tensor | None, first_head: int, head_count: int, tensors: list[Tensor], spec: str, scale: float,
    dtype: torch.dtype,
) -> Tensor:
    (batch, all_heads, queries, d), (_, groups, keys, _) = query.shape, key.shape
    out = query.new_empty(batch, head_count, row_count, keys, dtype=dtype)
    if out.numel() == 0:
        return out
    if SMALL:  # which cannot multiply bfloat16
        query, key = query.float(), key.float()
    query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key))
    score, mask, bias, _ = unpack_values(spec, tensors)
    prepared = prepare(mask, bias, (batch, all_heads, queries, keys), query.device)
    exact = query.dtype == torch.float32
    block_r = 16 if row_count <= 16 or exact else 64
    block_k = 32 if SMALL or exact else 128 if d <= 128 else 64
    grid_rows, grid_heads = triton.cdiv(row_count, block_r), batch * head_count
    splits = max(1, min(_SPLITS, keys // (2 * block_k), 4 * processors(query.device) // (grid_rows * grid_heads)))
    length = triton.cdiv(triton.cdiv(keys, splits), block_k) * block_k
    splits = triton.cdiv(keys, length)
    peak, total = query.new_empty(2, batch * head_count * row_count, _SPLITS, dtype=torch.float32)
    cap = score.cap if isinstance(score, SoftcapScore) else 0.0
    grid = (grid_rows, splits, grid_heads)
    tables = (prepared.tables, prepared.strides, prepared.numbers, query.stride()[:3], key.stride()[:3])
    numbers = (first_row, first_head, row_count, head_count, all_heads // groups, keys, length, scale, cap)
    form: dict[str, Any] = {
        "FORM": prepared.form, "BIAS": prepared.bias_form, "CAP": cap != 0, "D": d, "BLOCK_D": padded(d),
        "PRECISION": precision(query.dtype), "BLOCK_R": block_r, "BLOCK_K": block_k,
        "SPLITS": _SPLITS, "num_warps": 4, "num_stages": 2,
    }
    with torch.cuda.device_of(query):
        launch(measure, grid, query, key, rows, heads, peak, total, *tables, *numbers, **form)
        launch(write, grid, query, key, rows, heads, peak, total, sink, out, *tables, *numbers, **form)
    return out


def _shapes(
    query: Tensor, key: Tensor, sink: Tensor | None, rows: Tensor | None, first_row: int, row_count: int,
    heads: Tensor | None, first_head: int, head_count: int, tensors: list[Tensor], spec: str, scale: float,
    dtype: torch.dtype,
) -> Tensor:
    return query.new_empty(query.shape[0], head_count, row_count, key.shape[2], dtype=dtype)


_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_LIBRARY.define(
    "rows(Tensor query, Tensor key, Tensor? sink, Tensor? rows, int first_row, int row_count, Tensor? heads, "
    "int first_head, int head_count, Tensor[] tensors, str spec, float scale, ScalarType dtype) -> Tensor"
)
_LIBRARY.impl("rows", _run, "CompositeExplicitAutograd")
torch.library.register_fake("regard::rows", _shapes, lib=_LIBRARY)
