"""Attention with additive scores, forward: the output from the scores of a strip."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.implementations.triton.additive.pairs import block_of
from regard.implementations.triton.additive.strips import BLOCK, OF_VALUES, AdditiveRows, AdditiveStrip, bounds
from regard.implementations.triton.dot.forward import finish_rows
from regard.implementations.triton.launch import block_sizes
from regard.implementations.triton.launch.block_schedule import key_blocks
from regard.implementations.triton.launch.device_functions import (
    dropout_keeps,
    final_scores,
    row_state,
    store_rows,
    tile,
    visible,
)
from regard.implementations.triton.launch.kernel_work import KernelWork, strides

LENGTHS = [
    "heads", "group", "q_len", "k_len", "first_head", "first_block", "row_blocks", "TABLE_STRIDES", "LIST_STRIDES",
    "SEEN_STRIDES", "threshold", "splits", "reach", "edges",
]


def run_forward(work: KernelWork) -> tuple[Tensor, Tensor, Tensor | None]:
    """The output (b,h,q,v), the log-sum-exp (b,h,q) without the sink, in float32; scores to keep, if there are any."""
    rows = AdditiveRows(work, backward=False)
    across, device = rows.value.shape[3], rows.query.device
    output = torch.empty(*rows.query.shape[:3], across, dtype=rows.query.dtype, device=device)
    logsumexp = torch.empty(rows.query.shape[:3], dtype=torch.float32, device=device)
    width = min(OF_VALUES.dims, block_sizes.padded(across))
    columns = -(-across // width)
    most = max(strip.heads * strip.blocks for strip in rows.strips)
    room = max(OF_VALUES.splits(s.heads * s.blocks * columns, rows.k_blocks)[0] for s in rows.strips)
    all_parts = rows.scratch.new_empty(room * most * BLOCK * across)
    all_stats = rows.scratch.new_empty(room * most * BLOCK * 2)
    sinks = {} if work.sink is None else {"SINK": work.sink}
    for strip in rows.strips:
        rows.score(strip)
        _weigh(rows, strip, columns, width, all_parts, all_stats)
        lines = strip.heads * strip.blocks
        splits = OF_VALUES.splits(lines * columns, rows.k_blocks)[0]
        rows.run(
            join_parts, lines * (BLOCK // 16), strip,
            {"PARTS": all_parts, "ROW_STATS": all_stats, "OUT": output, "LSE": logsumexp, **sinks},
            partial(_joining, work, rows, strip, output, splits),
        )
    return output, logsumexp, rows.keepable()


def _weigh(
    rows: AdditiveRows, strip: AdditiveStrip, columns: int, width: int, parts: Tensor, row_stats: Tensor
) -> None:
    """What some programs find of the rows of a strip, each over some keys."""
    lines = strip.heads * strip.blocks
    splits, reach = OF_VALUES.splits(lines * columns, rows.k_blocks)
    rows.run(
        weigh_values, lines * columns * splits, strip,
        {**rows.weights, "V": rows.value, "PARTS": parts, "ROW_STATS": row_stats},
        lambda: {
            **rows.weighing, **rows.by_query, **rows.hiding, **bounds(strip), "V_STRIDES": strides(rows.value),
            "splits": splits, "reach": reach, "BLOCK_V": width, "num_warps": OF_VALUES.warps, "num_stages": 1,
        },
    )


def _joining(work: KernelWork, rows: AdditiveRows, strip: AdditiveStrip, output: Tensor, splits: int) -> dict[str, Any]:
    """The arguments of `join_parts`, without those that change."""
    across = output.shape[3]
    return {
        "SINK": work.unused, "OUT_STRIDES": strides(output), "heads": rows.heads, "q_len": output.shape[2],
        **bounds(strip), "splits": splits, "SINKS": work.sink is not None, "WIDTH": across,
        "BLOCK_V": block_sizes.padded(across), "BLOCK_Q": BLOCK, "PART": 16, "num_warps": 4,
    }


@triton.jit(do_not_specialize=LENGTHS)
def weigh_values(
    STRIP, V, PARTS, ROW_STATS, SEED, SEEN, LIST, COUNTS, TABLES, TABLE_STRIDES, NUMBERS, V_STRIDES, SEEN_STRIDES,
    LIST_STRIDES, heads, group, q_len, k_len, first_head, first_block, row_blocks, splits, reach, threshold, keep,
    FORM: tl.constexpr, BIAS: tl.constexpr, DROPS: tl.constexpr, HIDES: tl.constexpr, PRECISION: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Over some keys: the largest score, Σ exp(score − largest), and the same sum with values, in some dimensions."""
    COLUMNS: tl.constexpr = (WIDTH + BLOCK_V - 1) // BLOCK_V
    k_blocks = tl.cdiv(k_len, BLOCK_K)
    split, rest = tl.program_id(0) // COLUMNS % splits, tl.program_id(0) // COLUMNS
    line = rest // splits
    block, both = first_block + line % row_blocks, first_head + line // row_blocks
    batch, head = both // heads, both % heads
    inner, inside = line * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
    rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    across = tl.program_id(0) % COLUMNS * BLOCK_V + tl.arange(0, BLOCK_V)
    STRIP += inner[:, None].to(tl.int64) * (k_blocks * BLOCK_K) + inside[None, :]
    V += batch.to(tl.int64) * V_STRIDES[0] + (head // group).to(tl.int64) * V_STRIDES[1]
    SEEN += batch * SEEN_STRIDES[0] + (head // group) * SEEN_STRIDES[1]
    safe_rows = tl.minimum(rows, q_len - 1)
    state = safe_rows[:, None]
    if DROPS:
        state = row_state(tl.load(SEED), batch, head, safe_rows)[:, None]
    entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += entry.to(tl.int64) * LIST_STRIDES[2]
    partial, full, first, before, full_first = key_blocks(
        FORM, TABLES, TABLE_STRIDES, COUNTS + entry * 2, batch, safe_rows, k_len, BLOCK_K
    )
    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    output = tl.zeros([BLOCK_Q, BLOCK_V], tl.float32)
    for step in tl.range(split * reach, tl.minimum((split + 1) * reach, partial + full)):
        start = block_of(FORM, LIST, step, first, before, full_first, full) * BLOCK_K
        columns = start + inside
        real = columns < k_len
        if HIDES:
            real &= tl.load(SEEN + columns, mask=real, other=0) != 0
        safe_columns = tl.minimum(columns, k_len - 1)
        scores, _ = final_scores(
            tl.load(STRIP + start), BIAS, False, False, TABLES, TABLE_STRIDES, NUMBERS, 1.0, 1.0, batch, head,
            safe_rows[:, None], safe_columns[None, :],
        )
        seen = visible(FORM, TABLES, TABLE_STRIDES, batch, head, safe_rows[:, None], safe_columns[None, :])
        scores = tl.where(seen & (columns < k_len)[None, :], scores, float("-inf"))
        highest = tl.maximum(largest, tl.max(scores, 1))
        steady = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - steady[:, None])
        fade = tl.exp2(largest - steady)
        total = total * fade + tl.sum(weights, 1)
        if DROPS:
            weights = tl.where(dropout_keeps(state, columns[None, :], threshold), weights * keep, 0.0)
        pointers = V + columns[:, None].to(tl.int64) * V_STRIDES[2] + across[None, :]
        value = tile(pointers, real[:, None], across[None, :], WIDTH, COLUMNS * BLOCK_V, False)
        output = tl.dot(weights.to(value.dtype), value, output * fade[:, None], input_precision=PRECISION)
        largest = highest
    pitch = tl.num_programs(0) // (COLUMNS * splits) * BLOCK_Q
    PARTS += (split * pitch + inner).to(tl.int64)[:, None] * WIDTH
    tl.store(PARTS + across[None, :], output, mask=across[None, :] < WIDTH)
    tl.store(ROW_STATS + split * 2 * pitch + inner, largest)  # every column of programs writes the same
    tl.store(ROW_STATS + (split * 2 + 1) * pitch + inner, total)


@triton.jit(do_not_specialize=LENGTHS)
def join_parts(
    PARTS, ROW_STATS, OUT, LSE, SINK, OUT_STRIDES, heads, q_len, first_head, first_block, row_blocks, splits,
    SINKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_Q: tl.constexpr, PART: tl.constexpr,
):
    """Join what the programs of `weigh_values` found of the same rows."""
    SUBS: tl.constexpr = BLOCK_Q // PART
    line, part = tl.program_id(0) // SUBS, tl.program_id(0) % SUBS * PART + tl.arange(0, PART)
    block, both = first_block + line % row_blocks, first_head + line // row_blocks
    rows, inner, across = block * BLOCK_Q + part, line * BLOCK_Q + part, tl.arange(0, BLOCK_V)
    pitch = tl.num_programs(0) // SUBS * BLOCK_Q
    largest = tl.full([PART], float("-inf"), tl.float32)
    total = tl.zeros([PART], tl.float32)
    output = tl.zeros([PART, BLOCK_V], tl.float32)
    for split in tl.range(0, splits):
        mine = tl.load(ROW_STATS + split * 2 * pitch + inner)
        highest = tl.maximum(largest, mine)
        steady = tl.where(highest == float("-inf"), 0.0, highest)
        fade, weight = tl.exp2(largest - steady), tl.exp2(mine - steady)
        total = total * fade + tl.load(ROW_STATS + (split * 2 + 1) * pitch + inner) * weight
        pointers = PARTS + (split * pitch + inner).to(tl.int64)[:, None] * WIDTH + across[None, :]
        found = tl.load(pointers, mask=across[None, :] < WIDTH, other=0.0)
        output = output * fade[:, None] + found * weight[:, None]
        largest = highest
    batch, head, sink = both // heads, both % heads, 0.0
    if SINKS:
        sink = tl.load(SINK + head).to(tl.float32)
    output, lse = finish_rows(largest, total, output, sink, SINKS, False)
    store_rows(OUT, OUT_STRIDES, batch, head, rows, across, output, q_len, WIDTH)
    tl.store(LSE + both.to(tl.int64) * q_len + rows, lse, mask=rows < q_len)
