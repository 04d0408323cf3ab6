"""Decoding: attention of a few queries over a long cache, split along its keys.

One query alone does not occupy a GPU, so its keys are split. Each program takes one split of the keys of one key head,
with all the queries that share the head as the rows of one tile, so keys and values are read once. It writes a
normalised sum and its log-sum-exp; a second small kernel joins the splits. The time is that of reading the cache.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.implementations.triton.launch.block_sizes import SMALL, padded, precision
from regard.implementations.triton.launch.device_functions import nonfinite_rows, tanh
from regard.implementations.triton.launch.launching import launch, on_device, processors

FAR = 1 << 30  # larger than any position
_LOG2E = 1.4426950408889634
_JOIN = 16  # splits joined at a time


@triton.jit(
    do_not_specialize=[
        "query_b", "query_h", "query_q", "key_b", "key_g", "key_k", "value_b", "value_g", "value_k", "keep_b",
        "groups", "queries", "keys", "before", "after", "splits", "rows",
    ]
)
def _attend_split(
    QUERY, KEY, VALUE, LOW, HIGH, POSITION, KEEP, SINK, OUT, LSE, PARTS,
    query_b, query_h, query_q, key_b, key_g, key_k, value_b, value_g, value_k, keep_b,
    groups, queries, keys, before, after, splits, rows, scale, cap,
    STEP: tl.constexpr, D: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, SOFTCAP: tl.constexpr,
    WHOLE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Attention of one tile of rows over one split of the keys: a normalised sum and its log-sum-exp.

    Strides come in units of STEP, which tells the compiler how they are aligned without a kernel for each stride.
    """
    tiles = tl.cdiv(queries * SHARED, ROWS)
    program, split = tl.program_id(0), tl.program_id(1)
    tile, entry = program % tiles, program // tiles
    group, batch = (entry % groups).to(tl.int64), (entry // groups).to(tl.int64)

    # The rows of a tile: the heads that share a key head, and the queries of each.
    row = tile * ROWS + tl.arange(0, ROWS)
    is_row = row < queries * SHARED
    head, query = group * SHARED + row // queries, row % queries
    d, v = tl.arange(0, DIM), tl.arange(0, VALUES)
    at = QUERY + (batch * query_b + head * query_h + query * query_q) * STEP
    q = tl.load(at[:, None] + d[None, :], mask=is_row[:, None] & (d < D)[None, :], other=0.0)
    nonfinite = nonfinite_rows(q)

    low, high, first = 0, keys, keys - queries
    if LOW is not None:
        low = tl.maximum(tl.load(LOW + batch), 0)
    if HIGH is not None:
        high = tl.minimum(tl.load(HIGH + batch), keys).to(tl.int32)  # lengths may come in 64 bits
    if POSITION is not None:
        first = tl.load(POSITION + batch)
    position = first + query
    low, high = tl.maximum(low, first - before), tl.minimum(high, first + queries + after)
    length = tl.cdiv(tl.cdiv(tl.maximum(high - low, 0), splits), KEYS) * KEYS
    start = low + split * length
    stop = tl.minimum(start + length, high)

    column = tl.arange(0, KEYS)
    KEY += (batch * key_b + group * key_g + start.to(tl.int64) * key_k) * STEP
    VALUE += (batch * value_b + group * value_g + start.to(tl.int64) * value_k) * STEP
    key_at = KEY + column[None, :] * (key_k * STEP) + d[:, None]
    value_at = VALUE + column[:, None] * (value_k * STEP) + v[None, :]
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, VALUES], tl.float32)
    for begin in range(start, stop, KEYS):
        j = begin + column
        real = j < stop
        k = tl.load(key_at, mask=real[None, :] & (d < D)[:, None], other=0.0)
        scores = tl.dot(q, k, input_precision=PRECISION) * scale
        if SOFTCAP:  # `scale` is divided by the cap, and the scores are in powers of two
            scores = cap * tanh(scores, False)
        else:
            scores += nonfinite
        value = tl.load(value_at, mask=real[:, None] & (v < V)[None, :], other=0.0)
        if KEEP is not None:
            kept = tl.load(KEEP + batch * keep_b + j, mask=real, other=0) != 0
            real = real & kept
            value = tl.where(kept[:, None], value, 0.0)  # 0 · NaN would be NaN
        distance = j[None, :] - position[:, None]
        visible = real[None, :] & (distance >= -before) & (distance <= after)
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(top - shift)
        total = total * fade + tl.sum(weights, 1)
        sums = tl.dot(weights.to(value.dtype), value, sums * fade[:, None], input_precision=PRECISION)
        top = higher
        key_at += KEYS * key_k * STEP
        value_at += KEYS * value_k * STEP

    total = tl.where(total == 0.0, 1.0, total)  # a row that saw nothing: zeros and −inf
    sums = sums / total[:, None]
    lse = top + tl.log2(total)
    target = (batch * groups * SHARED + head) * queries + query
    mask = is_row[:, None] & (v < V)[None, :]
    if WHOLE:
        if SINK is not None:
            sums *= _share(lse, tl.load(SINK + head, mask=is_row, other=0.0))[:, None]
        tl.store(LSE + target, lse * 0.6931471805599453, mask=is_row)
        tl.store(OUT + target[:, None] * V + v[None, :], sums.to(OUT.dtype.element_ty), mask=mask)
    else:  # sums first, then every log-sum-exp, to base 2
        target = target * splits + split
        tl.store(PARTS + target[:, None] * V + v[None, :], sums, mask=mask)
        tl.store(PARTS + rows.to(tl.int64) * splits * V + target, lse, mask=is_row)


@triton.jit
def _share(lse, sink):
    """The fraction of a row's weight that the sink leaves to the keys; `lse` is to base 2."""
    sink = sink.to(tl.float32) * 1.4426950408889634
    top = tl.maximum(lse, sink)
    mine, other = tl.exp2(lse - top), tl.exp2(sink - top)
    return tl.where(lse == float("-inf"), 1.0, mine / (mine + other))


@triton.jit(do_not_specialize=["queries", "heads", "splits"])
def _join(
    PARTS, SINK, OUT, LSE, queries, heads, splits,
    V: tl.constexpr, VALUES: tl.constexpr, SPLITS: tl.constexpr,
):
    """Join the splits of one row."""
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    v, step = tl.arange(0, VALUES), tl.arange(0, SPLITS)
    top, total = float("-inf"), 0.0
    sums = tl.zeros([VALUES], tl.float32)
    for begin in range(0, splits, SPLITS):
        split = row * splits + begin + step
        lse = tl.load(PARTS + rows.to(tl.int64) * splits * V + split, mask=begin + step < splits, other=float("-inf"))
        # A split without a visible key wrote zeros; one beyond the last reads as zeros.
        mask = (begin + step < splits)[:, None] & (v < V)[None, :]
        parts = tl.load(PARTS + split[:, None] * V + v[None, :], mask=mask, other=0.0)
        higher = tl.maximum(top, tl.max(lse, 0))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(lse - shift)
        fade = tl.exp2(top - shift)
        total = total * fade + tl.sum(weights, 0)
        sums = sums * fade + tl.sum(parts * weights[:, None], 0)
        top = higher
    total = tl.where(total == 0.0, 1.0, total)  # a row that saw nothing: zeros and −inf
    sums = sums / total
    lse = top + tl.log2(total)
    if SINK is not None:
        sums *= _share(lse, tl.load(SINK + row // queries % heads))
    tl.store(LSE + row, lse * 0.6931471805599453)
    tl.store(OUT + row * V + v, sums.to(OUT.dtype.element_ty), mask=v < V)


@lru_cache(maxsize=1024)
def _shape(rows: int, d: int, v: int, size: int) -> tuple[int, int, int, int, int, int]:
    """Rows and keys of a tile, padded widths, warps and stages, for elements of `size` bytes."""
    tile = max(16, min(64, padded(rows)))
    dim, values = padded(d), padded(v)
    keys = 16 if SMALL else max(16, min(128, 32768 // (size * max(dim, values))) // (size // 2) // (tile // 16))
    return tile, keys, dim, values, 4, 2


def splits_for(programs: int, span: int, block: int, processors: int) -> int:
    """Into how many splits to cut the keys: enough to occupy the device several times.

    With few keys, or with enough programs, there is one split and no second kernel.
    """
    return 1 if span <= 8 * block else max(1, min(span // (2 * block), 4 * processors // programs, 1024))


def count_splits(query: Tensor, key: Tensor, value: Tensor, before: int = FAR, after: int = FAR) -> int:
    """Into how many splits the keys are cut for these tensors."""
    (batch, heads, queries, d), (_, groups, keys, v) = query.shape, value.shape
    rows = heads // max(1, groups) * queries
    tile, block, *_ = _shape(rows, d, v, query.element_size())
    programs = batch * groups * triton.cdiv(rows, tile)
    return splits_for(programs, min(keys, before + after + queries), block, processors(query.device))


def stride_numbers(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, tuple[int, ...]]:
    """STEP, and the strides in units of it, in the order of the kernel's arguments."""
    strides = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3])
    for stride in strides:
        if stride % 8:
            return 1, strides
    return 8, tuple([stride // 8 for stride in strides])


def wide_strides(strides: tuple[int, ...]) -> tuple[bool, ...]:
    """Which strides take 64 bits, by each of which the compiled code differs; () if none does."""
    return tuple([stride >> 31 > 0 for stride in strides]) if max(strides) >> 31 else ()


STRIDES = (
    "query_b", "query_h", "query_q", "key_b", "key_g", "key_k", "value_b", "value_g", "value_k",
)


def _run(
    query: Tensor, key: Tensor, value: Tensor, scale: float, low: Tensor | None, high: Tensor | None,
    position: Tensor | None, keep: Tensor | None, sink: Tensor | None, before: int, after: int, cap: float,
    splits: int,
) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _ = query.shape
    out = query.new_empty(batch, heads, queries, value.shape[3])
    lse = query.new_empty(batch, heads, queries, dtype=torch.float32)
    if batch * heads * queries == 0:
        return out, lse
    if SMALL:  # which cannot multiply bfloat16
        query, key, value = query.float(), key.float(), value.float()
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    low, high, position, sink = (
        x if x is None or x.is_contiguous() else x.contiguous() for x in (low, high, position, sink)
    )
    if keep is not None:
        keep = (keep if keep.stride(-1) == 1 else keep.contiguous()).view(torch.uint8)
    with on_device(query):
        for one in launches(
            query, key, value, out, lse, scale, low, high, position, keep, sink, before, after, cap, splits
        ):
            launch(one.kernel, one.grid, *one.values, key=one.key, **one.options)
    return out, lse


class DecodeLaunch(NamedTuple):
    """One launch as `launching.launch` takes it."""

    kernel: Any
    grid: tuple[int, int, int]
    values: tuple[Any, ...]
    key: tuple[Any, ...]
    options: dict[str, int]


def launches(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, scale: float, low: Tensor | None = None,
    high: Tensor | None = None, position: Tensor | None = None, keep: Tensor | None = None,
    sink: Tensor | None = None, before: int = FAR, after: int = FAR, cap: float = 0.0, splits: int = 0,
) -> list[DecodeLaunch]:
    """What has to be launched: one kernel, or where keys are split, a second one that joins the splits.

    Entries of rows are contiguous. The tensor of the parts, which the first kernel writes, is made here.
    """
    (batch, heads, queries, d), (_, groups, keys, v) = query.shape, value.shape
    rows, shared = batch * heads * queries, heads // max(1, groups)
    tile, block, dim, values, warps, stages = _shape(shared * queries, d, v, query.element_size())
    programs = batch * groups * triton.cdiv(shared * queries, tile)
    splits = splits or count_splits(query, key, value, before, after)
    whole = splits == 1
    parts = lse if whole else lse.new_empty(rows * splits * (v + 1))
    step, strides = stride_numbers(query, key, value)
    form = (step, d, v, shared, cap != 0, whole, precision(query.dtype), tile, block, dim, values)
    tensors = (query, key, value, low, high, position, keep, sink if whole else None)
    kinds: list[Any] = [None if x is None else (x.dtype, x.data_ptr() % 16) for x in tensors]
    kinds.append((torch.int64, wide_strides(strides)))
    numbers = (
        *strides, 0 if keep is None else keep.stride(0), groups, queries, keys, before, after, splits, rows,
        scale / cap if cap else scale * _LOG2E, cap * _LOG2E,
    )
    found = [
        DecodeLaunch(
            _attend_split, (programs, splits, 1), (*tensors, out, lse, parts, *numbers, *form),
            (out.dtype, *kinds, form), {"num_warps": warps, "num_stages": stages},
        )
    ]
    if not whole:
        kind = None if sink is None else (sink.dtype, sink.data_ptr() % 16)
        given = (parts, sink, out, lse, queries, heads, splits, v, values, _JOIN)
        found.append(DecodeLaunch(_join, (rows, 1, 1), given, (out.dtype, kind, v), {"num_warps": 2, "num_stages": 1}))
    return found


_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_LIBRARY.define(
    "decode(Tensor query, Tensor key, Tensor value, float scale, Tensor? low, Tensor? high, Tensor? position, "
    "Tensor? keep, Tensor? sink, int before, int after, float cap, int splits) -> (Tensor, Tensor)"
)


def _shapes(query: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    out = query.new_empty(*query.shape[:3], value.shape[3])
    return out, query.new_empty(query.shape[:3], dtype=torch.float32)


_LIBRARY.impl("decode", _run, "CompositeExplicitAutograd")
torch.library.register_fake("regard::decode", _shapes, lib=_LIBRARY)


def decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    low: Tensor | None = None,
    high: Tensor | None = None,
    *,
    position: Tensor | None = None,
    keep: Tensor | None = None,
    before: int | None = None,
    after: int | None = None,
    cap: float = 0.0,
    sink: Tensor | None = None,
    splits: int = 0,
) -> tuple[Tensor, Tensor]:
    """Softmax attention of a few queries (b,h,q,d) over keys (b,g,k,d) and values (b,g,k,v), without gradients.

    Returns (b,h,q,v) in the query's dtype and the log-sum-exp (b,h,q), float32, which leaves the sink out.

    Args:
        low, high: (b,) int32, `high` also int64; keys from `low` up to before `high` are visible; None: all of them.
        position: (b,) int32, the position of each entry's first query; None: the last query aligns with the last key.
        keep: (b,k) bool, which keys are real.
        before, after: how many keys besides its own a query sees on each side; None: all of them.
        cap: the scores are cap · tanh(scale · q·k / cap); 0: they are scale · q·k.
        sink: (h,), one more logit for each head.
        splits: into how many parts the keys are split; 0: as many as suit the device.
    """
    before, after = (FAR if side is None else min(side, FAR) for side in (before, after))
    inputs = (query, key, value, scale, low, high, position, keep, sink, before, after, cap, splits)
    if type(query) is Tensor and not torch.compiler.is_compiling():
        return _run(*inputs)  # for a short cache, an operator's dispatch costs as much as the kernel
    found: tuple[Tensor, Tensor] = torch.ops.regard.decode.default(*inputs)
    return found
