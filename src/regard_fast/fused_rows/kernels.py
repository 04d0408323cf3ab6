"""The row-wise part of Transformer layers as one kernel forward and one backward, for widths that one program can hold.

Three stages, each of which may be missing; rows x of the residual stream, mixed values m of an attention:

    out    x ← x + drop(W_o m + b_o)
    feed   x ← x + drop(W₂ drop(f(W₁ norm(x) + b₁)) + b₂)
    maps   y_i = W_i norm(x) + b_i

So "maps" alone begins a stack, "out, feed, maps" lies between two attentions, and "out, feed" ends a stack. Where a
stack begins, the rows may be made from tokens: x = drop(scale · table[id] + position). A program takes a block of rows
through all stages; only weights are read in tiles. Backward recomputes what is between the stages from the rows before
and after the feed-forward part, and dropout from its hash.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.device_functions import dropout_keeps, row_state


@triton.jit
def _normalized(x, eps, D: tl.constexpr):
    """The rows with mean 0 and variance 1, and one over their standard deviation."""
    x = x - (tl.sum(x, 1) / D)[:, None]
    rate = 1.0 / tl.sqrt(tl.sum(x * x, 1) / D + eps)
    return x * rate[:, None], rate


@triton.jit
def _normalized_back(d, hat, rate, D: tl.constexpr):
    """The gradient of the rows from that of the normalised ones."""
    return rate[:, None] * (d - (tl.sum(d, 1) / D)[:, None] - hat * (tl.sum(d * hat, 1) / D)[:, None])


@triton.jit
def _activated(h, ACT: tl.constexpr):
    if ACT == "relu":
        return tl.maximum(h, 0.0)
    elif ACT == "silu":
        return h / (1.0 + tl.exp(-h))
    else:
        return h * 0.5 * (1.0 + tl.erf(h * 0.7071067811865476))


@triton.jit
def _slope(h, ACT: tl.constexpr):
    """The derivative of the activation."""
    if ACT == "relu":
        return tl.where(h > 0, 1.0, 0.0).to(h.dtype)
    elif ACT == "silu":
        gate = 1.0 / (1.0 + tl.exp(-h))
        return gate * (1.0 + h * (1.0 - gate))
    else:
        return 0.5 * (1.0 + tl.erf(h * 0.7071067811865476)) + h * tl.exp(-0.5 * h * h) * 0.3989422804014327


@triton.jit
def _dropped(x, SEED, salt, SITE: tl.constexpr, row, column, THRESHOLD: tl.constexpr, KEPT: tl.constexpr):
    """x with dropout of one site of one layer; a threshold of None: without."""
    if THRESHOLD is None:
        return x
    else:
        nothing = tl.full([], 0, tl.int32)  # Triton makes constants of some numbers
        state = row_state(tl.load(SEED), nothing + SITE, nothing + salt, row[:, None])
        return tl.where(dropout_keeps(state, column[None, :], THRESHOLD), x * KEPT, 0.0).to(x.dtype)


@triton.jit
def _heads(row, column, length, batches, heads, places, WIDTH: tl.constexpr):
    """The offsets of a block of (b,h,n,width) with these strides and 1, seen as rows (b·n, h·width)."""
    across = (column // WIDTH) * heads + column % WIDTH
    return ((row // length) * batches + (row % length) * places)[:, None] + across[None, :]


@triton.jit
def _block(P, row, column, LINE: tl.constexpr):
    return P + row[:, None] * LINE + column[None, :]


@triton.jit
def _chosen(POINTERS, number, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """One of several pointers to the same dtype, by a number that is known in the loop only."""
    found = POINTERS[FIRST]
    for i in tl.static_range(1, COUNT):
        found = tl.where(number == i, POINTERS[FIRST + i], found)
    return found


@triton.jit
def _embedded(TOKENS, SEED, row, d, rows, length, D: tl.constexpr, TABLE: tl.constexpr, SCALE: tl.constexpr,
              WAVES: tl.constexpr, SITE: tl.constexpr, DROP: tl.constexpr, KEEP: tl.constexpr,
              WIDE: tl.constexpr):
    """Rows of tokens: those of a table with TABLE lines, with their positions and dropout."""
    inside = row < rows
    token = tl.load(TOKENS[0] + row, mask=inside, other=0)
    known = ((token >= 0) & (token < TABLE))[:, None]
    x = tl.load(_block(TOKENS[1], token, d, D), mask=inside[:, None] & known, other=0.0).to(WIDE) * SCALE
    x = tl.where(known, x, float("nan")).to(WIDE)  # as with targets, a step refuses what is not a number
    if WAVES:
        x += tl.load(_block(TOKENS[2], row % length, d, D), mask=inside[:, None], other=0.0)
    return _dropped(x, SEED, 0, SITE, row, d, DROP, KEEP)


@triton.jit
def rows_forward(
    X, M, SEED, MIDDLE, LAST, YS, OUT, FEED, NORM, MAPS, TOKENS, salt, rows, length, m_b, m_h, m_n, eps_feed, eps_maps,
    D: tl.constexpr, F: tl.constexpr, HEAD: tl.constexpr, COUNT: tl.constexpr, HAS_OUT: tl.constexpr,
    HAS_FEED: tl.constexpr, ACT: tl.constexpr, DROP_OUT: tl.constexpr, KEEP_OUT: tl.constexpr,
    DROP_HIDDEN: tl.constexpr, KEEP_HIDDEN: tl.constexpr, DROP_FEED: tl.constexpr, KEEP_FEED: tl.constexpr,
    TABLE: tl.constexpr, SCALE: tl.constexpr, WAVES: tl.constexpr, SITE: tl.constexpr, DROP_ROWS: tl.constexpr,
    KEEP_ROWS: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr, R: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Take a block of rows through the stages.

    MIDDLE gets the rows after the stage "out" if "feed" follows, LAST those after all. OUT is (weight, bias), FEED
    (gain, shift, rise, bias, fall, bias), NORM (gain, shift), MAPS the weights, then the biases of the maps. If TABLE
    is not 0, the rows are made from TOKENS, which is (ids, table, positions), and LAST gets them.
    """
    row, d, t = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, D), tl.arange(0, TILE)
    real = (row < rows)[:, None]
    if TABLE > 0:
        x = _embedded(TOKENS, SEED, row, d, rows, length, D, TABLE, SCALE, WAVES, SITE, DROP_ROWS, KEEP_ROWS, WIDE)
    else:
        x = tl.load(_block(X, row, d, D), mask=real, other=0.0).to(WIDE)
    if HAS_OUT:
        found = tl.zeros([R, D], WIDE) + tl.load(OUT[1] + d).to(WIDE)[None, :]
        for c in tl.range(0, D, TILE, num_stages=STAGES):
            mixed = tl.load(M + _heads(row, c + t, length, m_b, m_h, m_n, HEAD), mask=real, other=0.0)
            found += tl.dot(mixed.to(DT), tl.trans(tl.load(_block(OUT[0], d, c + t, D)).to(DT)))
        x += _dropped(found, SEED, salt, 0, row, d, DROP_OUT, KEEP_OUT)
        if HAS_FEED:
            tl.store(_block(MIDDLE, row, d, D), x, mask=real)
    if HAS_FEED:
        hat, _ = _normalized(x, eps_feed, D)
        n = (hat * tl.load(FEED[0] + d).to(WIDE)[None, :] + tl.load(FEED[1] + d).to(WIDE)[None, :]).to(DT)
        found = tl.zeros([R, D], WIDE) + tl.load(FEED[5] + d).to(WIDE)[None, :]
        for c in tl.range(0, F, TILE, num_stages=STAGES):
            h = tl.dot(n, tl.trans(tl.load(_block(FEED[2], c + t, d, D)).to(DT)))
            h = _activated(h + tl.load(FEED[3] + c + t).to(WIDE)[None, :], ACT)
            h = _dropped(h, SEED, salt, 1, row, c + t, DROP_HIDDEN, KEEP_HIDDEN).to(DT)
            found += tl.dot(h, tl.trans(tl.load(_block(FEED[4], d, c + t, F)).to(DT)))
        x += _dropped(found, SEED, salt, 2, row, d, DROP_FEED, KEEP_FEED)
    if HAS_OUT or HAS_FEED or TABLE > 0:
        tl.store(_block(LAST, row, d, D), x, mask=real)
    if COUNT > 0:
        hat, _ = _normalized(x, eps_maps, D)
        n = (hat * tl.load(NORM[0] + d).to(WIDE)[None, :] + tl.load(NORM[1] + d).to(WIDE)[None, :]).to(DT)
        for step in tl.range(0, COUNT * (D // TILE), num_stages=STAGES):  # one loop: all weights are in flight
            i, c = step // (D // TILE), step % (D // TILE) * TILE
            y = tl.dot(n, tl.trans(tl.load(_block(_chosen(MAPS, i, 0, COUNT), c + t, d, D)).to(DT)))
            y += tl.load(_chosen(MAPS, i, COUNT, COUNT) + c + t).to(WIDE)[None, :]
            tl.store(_block(_chosen(YS, i, 0, COUNT), row, c + t, D), y.to(DT), mask=real)


@triton.jit
def rows_backward(
    DX, DYS, X, M, SEED, MIDDLE, LAST, D_ROWS, D_MIXED, KEPT, SUMS, OUT, FEED, NORM, MAPS, IDS, TABLE_KEPT, salt, rows,
    length, m_b, m_h, m_n, y_b, y_h, y_n, eps_feed, eps_maps, PITCH: tl.constexpr, VECTORS: tl.constexpr,
    D: tl.constexpr, F: tl.constexpr, HEAD: tl.constexpr, MAP_HEAD: tl.constexpr, COUNT: tl.constexpr,
    HAS_OUT: tl.constexpr, HAS_FEED: tl.constexpr, HAS_DX: tl.constexpr, ACT: tl.constexpr,
    DROP_OUT: tl.constexpr, KEEP_OUT: tl.constexpr, DROP_HIDDEN: tl.constexpr, KEEP_HIDDEN: tl.constexpr,
    DROP_FEED: tl.constexpr, KEEP_FEED: tl.constexpr,
    TABLE: tl.constexpr, SCALE: tl.constexpr, SITE: tl.constexpr, DROP_ROWS: tl.constexpr, KEEP_ROWS: tl.constexpr,
    DT: tl.constexpr, WIDE: tl.constexpr, R: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):
    """Take the gradient of a block of rows back through the stages.

    KEPT (rows,PITCH) gets the two factors of each weight's gradient, SUMS (blocks,VECTORS) the sums over the block of
    the gradients of vectors; `layout.py` says where. MAP_HEAD and y_… are the width and strides of heads in the
    gradients of the maps. If TABLE is not 0, the rows were made from tokens IDS, and instead of the gradient of the
    rows, TABLE_KEPT gets the factors of the table's: that of the table's rows, and ones at the columns of the ids.
    """
    row, d, t = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, D), tl.arange(0, TILE)
    real = (row < rows)[:, None]
    kept = KEPT + row[:, None] * PITCH  # columns of matrices, by stage: maps, feed, out
    sums = SUMS + tl.program_id(0) * VECTORS
    if HAS_DX:
        dx = tl.load(_block(DX, row, d, D), mask=real, other=0.0).to(WIDE)
    else:
        dx = tl.zeros([R, D], WIDE)
    if COUNT > 0:
        x = tl.load(_block(LAST, row, d, D), mask=real, other=0.0).to(WIDE)
        hat, rate = _normalized(x, eps_maps, D)
        gain = tl.load(NORM[0] + d).to(WIDE)[None, :]
        tl.store(kept + d[None, :], (hat * gain + tl.load(NORM[1] + d).to(WIDE)[None, :]).to(DT), mask=real)
        dn = tl.zeros([R, D], WIDE)
        for i in tl.static_range(COUNT):  # one loop, as forward, took longer here
            for c in tl.range(0, D, TILE, num_stages=STAGES):
                at = _heads(row, c + t, length, y_b, y_h, y_n, MAP_HEAD)
                dy = tl.load(DYS[i] + at, mask=real, other=0.0)
                tl.store(kept + (D + i * D) + (c + t)[None, :], dy.to(DT), mask=real)
                tl.store(sums + (2 * D + i * D) + c + t, tl.sum(dy.to(WIDE), 0))
                dn += tl.dot(dy.to(DT), tl.load(_block(MAPS[i], c + t, d, D)).to(DT))
        tl.store(sums + d, tl.sum(dn * hat, 0))
        tl.store(sums + D + d, tl.sum(dn, 0))
        dx += _normalized_back(dn * gain, hat, rate, D)
        kept += D + COUNT * D
        sums += 2 * D + COUNT * D
    if HAS_FEED:
        x = tl.load(_block(MIDDLE, row, d, D), mask=real, other=0.0).to(WIDE)
        hat, rate = _normalized(x, eps_feed, D)
        gain = tl.load(FEED[0] + d).to(WIDE)[None, :]
        n = (hat * gain + tl.load(FEED[1] + d).to(WIDE)[None, :]).to(DT)
        dy = _dropped(dx, SEED, salt, 2, row, d, DROP_FEED, KEEP_FEED)
        tl.store(sums + (2 * D + F) + d, tl.sum(dy, 0))
        dy = dy.to(DT)
        tl.store(kept + d[None, :], n, mask=real)
        tl.store(kept + D + d[None, :], dy, mask=real)
        dn = tl.zeros([R, D], WIDE)
        for c in tl.range(0, F, TILE, num_stages=STAGES):
            rise = tl.load(_block(FEED[2], c + t, d, D)).to(DT)
            fall = tl.load(_block(FEED[4], d, c + t, F)).to(DT)
            h = tl.dot(n, tl.trans(rise)) + tl.load(FEED[3] + c + t).to(WIDE)[None, :]
            dh = _dropped(tl.dot(dy, fall), SEED, salt, 1, row, c + t, DROP_HIDDEN, KEEP_HIDDEN) * _slope(h, ACT)
            h = _dropped(_activated(h, ACT), SEED, salt, 1, row, c + t, DROP_HIDDEN, KEEP_HIDDEN)
            tl.store(sums + 2 * D + c + t, tl.sum(dh, 0))
            dh = dh.to(DT)
            tl.store(kept + 2 * D + (c + t)[None, :], h.to(DT), mask=real)
            tl.store(kept + (2 * D + F) + (c + t)[None, :], dh, mask=real)
            dn += tl.dot(dh, rise)
        tl.store(sums + d, tl.sum(dn * hat, 0))
        tl.store(sums + D + d, tl.sum(dn, 0))
        dx += _normalized_back(dn * gain, hat, rate, D)
        kept += 2 * D + 2 * F
        sums += 3 * D + F
    if TABLE > 0:
        kept = TABLE_KEPT + row[:, None] * PITCH
        pull = _dropped(dx * SCALE, SEED, 0, SITE, row, d, DROP_ROWS, KEEP_ROWS)
        tl.store(kept + d[None, :], pull.to(DT), mask=real)
        token = tl.load(IDS + row, mask=row < rows, other=-1)[:, None]
        for c in range(0, TABLE, TILE):
            tl.store(kept + D + (c + t)[None, :], (token == (c + t)[None, :]).to(DT), mask=real)
    else:
        tl.store(_block(D_ROWS, row, d, D), dx, mask=real)
    if HAS_OUT:
        dy = _dropped(dx, SEED, salt, 0, row, d, DROP_OUT, KEEP_OUT)
        tl.store(sums + d, tl.sum(dy, 0))
        dy = dy.to(DT)
        tl.store(kept + D + d[None, :], dy, mask=real)
        for c in tl.range(0, D, TILE, num_stages=STAGES):
            across = _heads(row, c + t, length, m_b, m_h, m_n, HEAD)
            mixed = tl.load(M + across, mask=real, other=0.0)
            tl.store(kept + (c + t)[None, :], mixed.to(DT), mask=real)
            dm = tl.dot(dy, tl.load(_block(OUT[0], d, c + t, D)).to(DT))
            tl.store(_block(D_MIXED, row, c + t, D), dm.to(DT), mask=real)


@triton.jit
def _product(KEPT, left, right, rows, PITCH: tl.constexpr, TALL: tl.constexpr, WIDTH: tl.constexpr,
             BLOCK: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr):
    """The product of two stretches of columns of factors, over all rows in order.

    The caller says that `left` and `right` are multiples of 16: said here, of arguments, it would be lost.
    """
    k, i, j = tl.arange(0, BLOCK), tl.arange(0, TALL), tl.arange(0, WIDTH)
    found = tl.zeros([TALL, WIDTH], WIDE)
    for start in tl.range(0, rows, BLOCK, num_stages=STAGES):
        row = start + k
        line = row * PITCH
        # A load that is transposed afterwards is not made ahead of time; one that is transposed itself is.
        one = tl.load(KEPT + left + line[None, :] + i[:, None], mask=(row < rows)[None, :], other=0.0)
        other = tl.load(KEPT + right + line[:, None] + j[None, :], mask=(row < rows)[:, None], other=0.0)
        found += tl.dot(one, other)
    return found


@triton.jit
def _added(SUMS, left, blocks, VECTORS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """The sum of a stretch of vectors over all blocks of rows in order."""
    k, j = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], WIDE)
    for start in range(0, blocks, BLOCK):
        row = (start + k)[:, None]
        part = tl.load(SUMS + row * VECTORS + left + j[None, :], mask=row < blocks, other=0.0)
        total += tl.sum(part.to(WIDE), 0)
    return total


@triton.jit
def weight_gradients(
    KEPT, SUMS, HEAD_KEPT, HEAD_SUMS, PULL, COUNTED, GRADS, JOBS, rows, blocks, PITCH: tl.constexpr,
    VECTORS: tl.constexpr, HEAD_PITCH: tl.constexpr, HEAD_VECTORS: tl.constexpr, HAS_PULL: tl.constexpr,
    HAS_COUNT: tl.constexpr, TALL: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A tile (TALL,WIDTH) of the gradient of a weight, or the sum of a stretch of vectors, each over all rows in order.

    A job is (kind, column of the outputs' gradient, column of the inputs, offset in GRADS, line of the weight). Kinds:
    0 a tile, 1 a stretch; 2 and 3 the same from the factors and sums of a head, if HEAD_PITCH is not 0. PULL holds what
    all results are multiplied by, COUNTED what they are divided by, if it is more than 1.
    """
    JOBS += tl.program_id(0) * 5
    kind, into, line = tl.load(JOBS), tl.load(JOBS + 3), tl.load(JOBS + 4)
    # Said here, not where they are used: a function of a kernel loses it, and with it loads ahead of time.
    left, right = tl.multiple_of(tl.load(JOBS + 1), 16), tl.multiple_of(tl.load(JOBS + 2), 16)
    i, j = tl.arange(0, TALL), tl.arange(0, WIDTH)
    factor = tl.full([], 1.0, WIDE)
    if HAS_PULL:
        factor = tl.load(PULL).to(WIDE)
    if HAS_COUNT:
        factor = factor / tl.maximum(tl.load(COUNTED).to(WIDE), 1.0)
    tile, stretch = GRADS + into + i[:, None] * line + j[None, :], GRADS + into + j
    if kind == 0:
        tl.store(tile, factor * _product(KEPT, left, right, rows, PITCH, TALL, WIDTH, BLOCK, WIDE, STAGES))
    elif kind == 1:
        tl.store(stretch, factor * _added(SUMS, left, blocks, VECTORS, WIDTH, BLOCK, WIDE))
    if HEAD_PITCH > 0:
        if kind == 2:
            found = _product(HEAD_KEPT, left, right, rows, HEAD_PITCH, TALL, WIDTH, BLOCK, WIDE, STAGES)
            tl.store(tile, factor * found)
        elif kind == 3:
            tl.store(stretch, factor * _added(HEAD_SUMS, left, blocks, HEAD_VECTORS, WIDTH, BLOCK, WIDE))
