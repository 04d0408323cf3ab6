"""Attention with additive scores, backward.

Of each strip the scores are computed again, unless the forward pass kept them. They give the gradients of the values
and their own gradients, which replace them and are then read twice: by blocks of queries and by blocks of keys
(`additive_slopes`).
Programs split the other side among them and write partial sums, which are added in a fixed order: equal inputs give
equal bits, and long sums lose expm1 to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.biases import Bias
from regard.implementations.triton.additive import strips as cuts
from regard.implementations.triton.additive.forward import LENGTHS
from regard.implementations.triton.additive.pairs import block_of
from regard.implementations.triton.additive.slopes import of_additive_keys, of_additive_queries
from regard.implementations.triton.additive.strips import BLOCK, AdditiveRows, AdditiveStrip, bounds, plain
from regard.implementations.triton.dot.launches import Backward
from regard.implementations.triton.launch import block_sizes
from regard.implementations.triton.launch.block_schedule import key_blocks, query_blocks
from regard.implementations.triton.launch.device_functions import dropout_keeps, final_scores, row_state, tile, visible
from regard.implementations.triton.launch.kernel_work import strides
from regard.values.grid import full_grid


@dataclass
class AdditiveGradients:
    """Gradients in float32, the weight's and the bias's in the shapes of their tensors."""

    query: Tensor
    key: Tensor
    value: Tensor
    weight: Tensor
    bias: list[Tensor]


def run_backward(
    backward: Backward, bias: Bias | None = None, needed: Sequence[bool] = (True, True, True, True),
    kept: Tensor | None = None,
) -> AdditiveGradients:
    """Gradients of queries, keys, values and the weight, as `needed`; the others are not to be used.

    With a bias, also those of its tensors. `kept`: the scores, which are not changed, so that they serve again.
    """
    rows = AdditiveRows(backward.work, backward=True, kept=kept, others=(plain(backward.grad),))
    queries, width = rows.query.shape[2:]
    # With one strip, its gradients are the result; with several, they are written into full tensors part by part.
    of_query, of_key, of_value = (
        rows.scratch.new_empty(part.shape if len(rows.strips) > 1 else (1, 0)).flatten(0, 1)
        for part in (rows.query, rows.key, rows.value)
    )
    of_weight = rows.scratch.new_zeros(rows.batch * rows.heads, width)
    of_bias = [] if bias is None else [torch.zeros_like(tensor, dtype=torch.float32) for tensor in bias.tensors]
    for strip in rows.strips:
        if of_bias:
            rows.scratch.zero_()  # tiles that are not visited have no gradient
        rows.score(strip)
        here = slice(strip.first_head, strip.first_head + strip.heads)
        there = slice(here.start // rows.group, -(-here.stop // rows.group))
        some = slice(strip.first_block * BLOCK, min(queries, (strip.first_block + strip.blocks) * BLOCK))
        begun = strip.first_block > 0 or here.start % rows.group > 0  # an earlier strip used the same keys
        if needed[2]:
            found = _joined(_of_values(backward, rows, strip), rows.group, rows.value)
            of_value = _filled(of_value, (there,), found, begun)
        _of_scores(backward, rows, strip)
        if needed[0] or needed[3]:
            parts, to_weight = _of_queries(rows, strip)
            found = _joined(parts, 1, rows.query)[:, : some.stop - some.start]
            of_query = _filled(of_query, (here, some), found, False)
            of_weight[here] += to_weight[:, :width]
        if needed[1]:
            of_key = _filled(of_key, (there,), _joined(_of_keys(rows, strip), rows.group, rows.key), begun)
        if bias is not None and of_bias:
            _of_bias(bias, rows, strip, here, some, of_bias)
    of_weight = of_weight.view(rows.batch, rows.heads, width).sum(0)
    return AdditiveGradients(
        _shaped(of_query, rows.query),
        _shaped(of_key, rows.key),
        _shaped(of_value, rows.value),
        of_weight.sum(0) if backward.work.score.tensors[0].dim() == 1 else of_weight,
        of_bias,
    )


def _joined(parts: Tensor, group: int, rows: Tensor) -> Tensor:
    """From partial sums (splits, heads, padded rows, padded width) to (shared heads, rows, width)."""
    found = parts.sum(0) if parts.shape[0] > 1 else parts[0]
    if group > 1 and found.shape[0] > 1:
        found = found.unflatten(0, (-1, group)).sum(1)
    return found[:, : rows.shape[2], : rows.shape[3]]


def _filled(total: Tensor, where: tuple[slice, ...], found: Tensor, begun: bool) -> Tensor:
    """`total` with a part put in, or added where an earlier strip has `begun`; the part itself if there is no other."""
    if total.numel() == 0:
        return found
    if begun:
        total[where] += found
    else:
        total[where] = found
    return total


def _shaped(found: Tensor, rows: Tensor) -> Tensor:
    return found.reshape(rows.shape) if found.numel() else rows.new_zeros(rows.shape, dtype=torch.float32)


def _of_values(backward: Backward, rows: AdditiveRows, strip: AdditiveStrip) -> Tensor:
    """Partial gradients of values (splits, heads, keys, v), from the scores of a strip."""
    across, cut = rows.value.shape[3], cuts.OF_VALUES
    width = min(cut.dims, block_sizes.padded(across))
    programs = strip.heads * rows.k_blocks * -(-across // width)
    splits, reach = cut.splits(programs, strip.blocks)
    grad = rows.others[0]
    parts = rows.scratch.new_empty(splits, strip.heads, rows.key.shape[2], across)
    rows.run(
        of_values, splits * programs, strip,
        {**rows.weights, "GRAD": grad, "LSE": backward.total.contiguous(), "PARTS": parts},
        lambda: {
            **rows.weighing, **rows.by_key, **bounds(strip), "GRAD_STRIDES": strides(grad), "splits": splits,
            "reach": reach, "BLOCK_V": width, "num_warps": cut.warps, "num_stages": 1,
        },
    )
    return parts


def _of_scores(backward: Backward, rows: AdditiveRows, strip: AdditiveStrip) -> None:
    """Turn the scores of a strip into their gradients."""
    grad, width = rows.others[0], min(32, block_sizes.padded(rows.value.shape[3]))
    rows.run(
        score_gradients, strip.heads * strip.blocks * rows.k_blocks, strip,
        {
            **rows.weights, "SLOPES": rows.scratch, "V": rows.value, "GRAD": grad, "LSE": backward.total.contiguous(),
            "DELTA": backward.delta.contiguous(),
        },
        lambda: {
            **rows.weighing, **rows.by_query, **rows.hiding, **bounds(strip), "V_STRIDES": strides(rows.value),
            "GRAD_STRIDES": strides(grad), "BLOCK_V": width, "num_warps": 4, "num_stages": 1,
        },
    )


def _of_queries(rows: AdditiveRows, strip: AdditiveStrip) -> tuple[Tensor, Tensor]:
    """Partial gradients of the queries of a strip (splits, heads, rows, wide); of the weight (heads, wide)."""
    cut = cuts.OF_QUERIES
    programs = strip.heads * strip.blocks * -(-rows.wide // cut.dims)
    splits, reach = cut.splits(programs, rows.k_blocks)
    parts = rows.scratch.new_empty(splits, strip.heads, strip.blocks * BLOCK, rows.wide)
    of_weight = rows.scratch.new_empty(strip.heads, strip.blocks * splits, rows.wide)
    rows.run(
        of_additive_queries, splits * programs, strip,
        {**rows.pairs, "POWERS": rows.powers_k, "EXPM1": rows.expm1_k, "PARTS": parts, "OF_WEIGHT": of_weight},
        lambda: {
            **rows.pairwise, **rows.by_query, **bounds(strip), "splits": splits, "reach": reach,
            "BLOCK_D": min(cut.dims, rows.wide), **cut.options(),
        },
    )
    return parts, of_weight.sum(1)


def _of_keys(rows: AdditiveRows, strip: AdditiveStrip) -> Tensor:
    """Partial gradients of keys (splits, heads, padded keys, wide)."""
    cut = cuts.OF_KEYS
    programs = strip.heads * rows.k_blocks * -(-rows.wide // cut.dims)
    splits, reach = cut.splits(programs, strip.blocks)
    parts = rows.scratch.new_empty(splits, strip.heads, rows.pitch, rows.wide)
    rows.run(
        of_additive_keys, splits * programs, strip,
        {**rows.pairs, "POWERS_Q": rows.powers_q, "POWERS_K": rows.powers_k, "PARTS": parts},
        lambda: {
            **rows.pairwise, **rows.by_key, **bounds(strip), "splits": splits, "reach": reach,
            "BLOCK_D": min(cut.dims, rows.wide), **cut.options(),
        },
    )
    return parts


def _of_bias(
    bias: Bias, rows: AdditiveRows, strip: AdditiveStrip, here: slice, some: slice, into: list[Tensor]
) -> None:
    """Add what a strip contributes to the gradients of a bias, by the bias's own formula."""
    slopes = rows.scratch[: strip.heads * strip.blocks * BLOCK * rows.pitch].view(strip.heads, -1, rows.pitch)
    slopes = slopes[:, : some.stop - some.start, : rows.key.shape[2]]
    entries, first = -(-strip.heads // rows.heads), strip.first_head // rows.heads
    heads = slice(here.start % rows.heads, here.start % rows.heads + strip.heads // entries)
    grid = full_grid(rows.work.prepared.sizes, rows.scratch.device)
    grid = grid.part(batch=slice(first, first + entries), heads=heads, rows=some)
    bias.accumulate(grid, slopes.unflatten(0, (entries, -1)), into)


@triton.jit
def _weights(
    STRIP, LSE, BIAS: tl.constexpr, TABLES, TABLE_STRIDES, NUMBERS, batch, head, both, line, rows, columns,
    q_len, k_len, pitch, FORM: tl.constexpr,
):
    """Weights of a tile from its scores, what is visible of it, and where it lies in the strip."""
    inner = line * rows.shape[0] + tl.arange(0, rows.shape[0])
    offset = inner[:, None].to(tl.int64) * pitch + columns[None, :]
    lse = tl.load(LSE + both.to(tl.int64) * q_len + rows, mask=rows < q_len, other=float("-inf"))
    # AdditiveRows that see nothing weigh nothing.
    lse = tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634)
    safe_rows, safe_columns = tl.minimum(rows, q_len - 1)[:, None], tl.minimum(columns, k_len - 1)[None, :]
    scores, _ = final_scores(
        tl.load(STRIP + offset), BIAS, False, False, TABLES, TABLE_STRIDES, NUMBERS, 1.0, 1.0, batch, head, safe_rows,
        safe_columns,
    )
    seen = visible(FORM, TABLES, TABLE_STRIDES, batch, head, safe_rows, safe_columns)
    seen &= (rows < q_len)[:, None] & (columns < k_len)[None, :]
    return tl.where(seen, tl.exp2(scores - lse[:, None]), 0.0), seen, offset


@triton.jit(do_not_specialize=LENGTHS)
def score_gradients(
    STRIP, SLOPES, V, GRAD, LSE, DELTA, SEED, SEEN, LIST, COUNTS, TABLES, TABLE_STRIDES, NUMBERS, V_STRIDES,
    GRAD_STRIDES, SEEN_STRIDES, LIST_STRIDES, heads, group, q_len, k_len, first_head, first_block, row_blocks,
    threshold, keep,
    FORM: tl.constexpr, BIAS: tl.constexpr, DROPS: tl.constexpr, HIDES: tl.constexpr, PRECISION: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Gradients of the scores of one visible tile. SLOPES may be STRIP itself: a program reads its tile first."""
    k_blocks = tl.cdiv(k_len, BLOCK_K)
    step, line = tl.program_id(0) % k_blocks, tl.program_id(0) // k_blocks
    block, both = first_block + line % row_blocks, first_head + line // row_blocks
    batch, head = both // heads, both % heads
    rows, inside = block * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_V)
    entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += entry.to(tl.int64) * LIST_STRIDES[2]
    safe_rows = tl.minimum(rows, q_len - 1)
    partial, full, first, before, full_first = key_blocks(
        FORM, TABLES, TABLE_STRIDES, COUNTS + entry * 2, batch, safe_rows, k_len, BLOCK_K
    )
    if step < partial + full:
        chosen = block_of(FORM, LIST, step, first, before, full_first, full)
        columns = chosen * BLOCK_K + tl.arange(0, BLOCK_K)
        real = columns < k_len
        if HIDES:
            seen_keys = SEEN + batch * SEEN_STRIDES[0] + (head // group) * SEEN_STRIDES[1]
            real &= tl.load(seen_keys + columns, mask=real, other=0) != 0
        values = V + batch.to(tl.int64) * V_STRIDES[0] + (head // group).to(tl.int64) * V_STRIDES[1]
        values += columns[None, :].to(tl.int64) * V_STRIDES[2]
        grads = GRAD + batch.to(tl.int64) * GRAD_STRIDES[0] + head.to(tl.int64) * GRAD_STRIDES[1]
        grads += rows[:, None].to(tl.int64) * GRAD_STRIDES[2]
        from_values = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
        for start in tl.range(0, WIDTH, BLOCK_V):
            across = start + inside
            value = tile(values + across[:, None], real[None, :], across[:, None], WIDTH, 0, False)
            grad = tile(grads + across[None, :], (rows < q_len)[:, None], across[None, :], WIDTH, 0, False)
            from_values = tl.dot(grad, value, from_values, input_precision=PRECISION)
        if DROPS:
            state = row_state(tl.load(SEED), batch, head, safe_rows)
            from_values = tl.where(dropout_keeps(state[:, None], columns[None, :], threshold), from_values * keep, 0.0)
        delta = tl.load(DELTA + both.to(tl.int64) * q_len + rows, mask=rows < q_len, other=0.0)
        weights, seen, offset = _weights(
            STRIP, LSE, BIAS, TABLES, TABLE_STRIDES, NUMBERS, batch, head, both, line, rows, columns, q_len, k_len,
            k_blocks * BLOCK_K, FORM,
        )
        # Hidden entries stay zero also in a row of NaN.
        tl.store(SLOPES + offset, tl.where(seen, weights * (from_values - delta[:, None]), 0.0))


@triton.jit(do_not_specialize=LENGTHS)
def of_values(
    STRIP, GRAD, PARTS, LSE, SEED, LIST, COUNTS, EDGES, TABLES, TABLE_STRIDES, NUMBERS, GRAD_STRIDES, LIST_STRIDES,
    heads, group, q_len, k_len, first_head, first_block, row_blocks, edges, splits, reach, threshold, keep,
    FORM: tl.constexpr, BIAS: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Σ weights · gradient over some rows of a strip: the gradient of one block of values, in some dimensions."""
    COLUMNS: tl.constexpr = (WIDTH + BLOCK_V - 1) // BLOCK_V
    k_blocks = tl.cdiv(k_len, BLOCK_K)
    rest = tl.program_id(0) // COLUMNS
    across = tl.program_id(0) % COLUMNS * BLOCK_V + tl.arange(0, BLOCK_V)
    chosen, line = rest % k_blocks, rest // k_blocks
    split, inner = line % splits, line // splits
    both = first_head + inner
    batch, head = both // heads, both % heads
    columns = chosen * BLOCK_K + tl.arange(0, BLOCK_K)
    grads = GRAD + batch.to(tl.int64) * GRAD_STRIDES[0] + head.to(tl.int64) * GRAD_STRIDES[1]
    entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + chosen
    LIST += entry.to(tl.int64) * LIST_STRIDES[2]
    partial, full, first, before, full_first = query_blocks(
        FORM, TABLE_STRIDES, EDGES + batch * LIST_STRIDES[3], COUNTS + entry * 2, edges, q_len, chosen * BLOCK_K,
        k_len, BLOCK_Q, BLOCK_K,
    )
    low = first_block + split * reach
    high = tl.minimum(low + reach, first_block + row_blocks)
    grad_value = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    for step in tl.range(0, partial + full):
        block = block_of(FORM, LIST, step, first, before, full_first, full)
        if (block >= low) & (block < high):
            rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
            weights, _, _ = _weights(
                STRIP, LSE, BIAS, TABLES, TABLE_STRIDES, NUMBERS, batch, head, both,
                inner * row_blocks + block - first_block, rows, columns, q_len, k_len, k_blocks * BLOCK_K, FORM,
            )
            if DROPS:
                state = row_state(tl.load(SEED), batch, head, tl.minimum(rows, q_len - 1))
                weights = tl.where(dropout_keeps(state[:, None], columns[None, :], threshold), weights * keep, 0.0)
            pointers = grads + rows[:, None].to(tl.int64) * GRAD_STRIDES[2] + across[None, :]
            grad = tile(pointers, (rows < q_len)[:, None], across[None, :], WIDTH, 0, False)
            grad_value = tl.dot(tl.trans(weights.to(grad.dtype)), grad, grad_value, input_precision=PRECISION)
    lines = tl.num_programs(0) // (COLUMNS * splits * k_blocks)
    into = PARTS + ((split * lines + inner).to(tl.int64) * k_len + columns[:, None]) * WIDTH + across[None, :]
    tl.store(into, grad_value, mask=(columns < k_len)[:, None] & (across < WIDTH)[None, :])
