"""A layer of an LSTM, in one direction or both, as two kernels forward and two backward.

    z_t = W_x x_t + b_x + W_h h_{t−1} + b_h        i, f, o = σ(z), g = tanh(z), in torch's order i, f, g, o
    c_t = f ∘ c_{t−1} + i ∘ g                      h_t = o ∘ tanh(c_t)

The share of the inputs in z is one product for all steps. Then a program takes a block of batch entries in one
direction through all steps and keeps the recurrent weight, in registers, from the first to the last. Backward walks the
other way and writes the gradients of z, from which those of all weights and of the inputs are products over all steps,
each summed in a fixed order. At padding a state stays as it is.

Rows are (b·n), batch entry by batch entry; tensors of both directions begin with an axis of directions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.device_functions import tanh
from regard_fast.fused_rows.kernels import _dropped


@triton.jit
def _of_direction(PAIR, side):
    """One of two addresses."""
    if side == 0:
        found = PAIR[0]
    else:
        found = PAIR[1]
    return found


@triton.jit
def _sigmoid(x, FAST: tl.constexpr):
    """σ. `FAST`: to 2⁻¹², by one GPU instruction: hidden rows are rounded to 2⁻⁹ in every step."""
    if FAST:
        return 0.5 + 0.5 * tanh(0.5 * x, True)
    else:
        return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x, FAST: tl.constexpr):
    if FAST:
        return tanh(x, True)
    else:
        return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def _real(KEEP, row, inside, PADDED: tl.constexpr):
    """Which rows exist and are not padding."""
    if PADDED:
        return inside & (tl.load(KEEP + row, mask=inside, other=0) != 0)
    else:
        return inside


@triton.jit
def _inputs(X, KEEP, SEED, salt, row, k, rows, INPUTS: tl.constexpr, PADDED: tl.constexpr, DROP: tl.constexpr,
            KEPT: tl.constexpr, DT: tl.constexpr):
    """A block of the inputs, with the dropout before the layer; zeros at padding."""
    real = _real(KEEP, row, row < rows, PADDED)[:, None] & (k < INPUTS)[None, :]
    found = tl.load(X + row[:, None] * INPUTS + k[None, :], mask=real, other=0.0)
    return _dropped(found, SEED, salt, 0, row, k, DROP, KEPT).to(DT)


@triton.jit
def lstm_inputs(
    X, KEEP, SEED, W_X, B_X, B_H, Z, salt, rows,
    INPUTS: tl.constexpr, H: tl.constexpr, PADDED: tl.constexpr, DROP: tl.constexpr, KEPT: tl.constexpr,
    DT: tl.constexpr, WIDE: tl.constexpr, R: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):
    """A tile (R,TILE) of the share of the inputs, and of both biases, in the gates of one direction."""
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * TILE + tl.arange(0, TILE)
    side, k = tl.program_id(2), tl.arange(0, BLOCK)
    weight = _of_direction(W_X, side)
    bias = tl.load(_of_direction(B_X, side) + column).to(WIDE) + tl.load(_of_direction(B_H, side) + column).to(WIDE)
    found = tl.zeros([R, TILE], WIDE) + bias[None, :]
    for start in tl.range(0, INPUTS, BLOCK):
        x = _inputs(X, KEEP, SEED, salt, row, start + k, rows, INPUTS, PADDED, DROP, KEPT, DT)
        across = (start + k)[None, :]
        w = tl.load(weight + column[:, None] * INPUTS + across, mask=across < INPUTS, other=0.0).to(DT)
        found += tl.dot(x, tl.trans(w))
    into = Z + (side * rows + row[:, None]) * (4 * H) + column[None, :]
    tl.store(into, found, mask=(row < rows)[:, None])


@triton.jit
def _gates(P, line, j, real, H: tl.constexpr):
    """The four gates of a block of rows."""
    at = P + line[:, None] * (4 * H) + j[None, :]
    return (
        tl.load(at, mask=real, other=0.0),
        tl.load(at + H, mask=real, other=0.0),
        tl.load(at + 2 * H, mask=real, other=0.0),
        tl.load(at + 3 * H, mask=real, other=0.0),
    )


@triton.jit
def _place(step, side, length):
    """The position of a step: the second direction begins at the end."""
    return tl.where(side == 0, step, length - 1 - step)


@triton.jit
def lstm_forward(
    Z, KEEP, W_H, Y, GATES, CELLS, H_LAST, C_LAST, batch, length,
    H: tl.constexpr, SIDES: tl.constexpr, PADDED: tl.constexpr, FAST: tl.constexpr, DT: tl.constexpr,
    WIDE: tl.constexpr, R: tl.constexpr,
):
    """Take a block of batch entries through all steps of one direction."""
    entry, j, side = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, H), tl.program_id(1)
    inside, rows = entry < batch, batch * length
    there = inside[:, None]
    weight = _of_direction(W_H, side) + j[:, None] * H + j[None, :]
    w_i, w_f = tl.trans(tl.load(weight).to(DT)), tl.trans(tl.load(weight + H * H).to(DT))
    w_g, w_o = tl.trans(tl.load(weight + 2 * H * H).to(DT)), tl.trans(tl.load(weight + 3 * H * H).to(DT))
    h, c = tl.zeros([R, H], WIDE), tl.zeros([R, H], WIDE)
    line = side * rows + entry * length
    z_i, z_f, z_g, z_o = _gates(Z, line + _place(0, side, length), j, there, H)
    for step in tl.range(0, length):
        at = _place(step, side, length)
        # What the next step reads is on its way while this one computes.
        n_i, n_f, n_g, n_o = _gates(Z, line + _place(tl.minimum(step + 1, length - 1), side, length), j, there, H)
        before = h.to(DT)
        i, f = _sigmoid(tl.dot(before, w_i) + z_i, FAST), _sigmoid(tl.dot(before, w_f) + z_f, FAST)
        g, o = _tanh(tl.dot(before, w_g) + z_g, FAST), _sigmoid(tl.dot(before, w_o) + z_o, FAST)
        new = f * c + i * g
        out = o * _tanh(new, FAST)
        row = entry * length + at
        if PADDED:
            real = _real(KEEP, row, inside, PADDED)[:, None]
            c, h = tl.where(real, new, c), tl.where(real, out, h)
            out = tl.where(real, out, 0.0)
        else:
            c, h = new, out
        tl.store(Y + row[:, None] * (SIDES * H) + side * H + j[None, :], out.to(DT), mask=there)
        into = GATES + (line + at)[:, None] * (4 * H) + j[None, :]
        tl.store(into, i.to(DT), mask=there)
        tl.store(into + H, f.to(DT), mask=there)
        tl.store(into + 2 * H, g.to(DT), mask=there)
        tl.store(into + 3 * H, o.to(DT), mask=there)
        tl.store(CELLS + (line + at)[:, None] * H + j[None, :], c, mask=there)
        z_i, z_f, z_g, z_o = n_i, n_f, n_g, n_o
    into = (side * batch + entry)[:, None] * H + j[None, :]
    tl.store(H_LAST + into, h.to(DT), mask=there)
    tl.store(C_LAST + into, c.to(DT), mask=there)


@triton.jit
def lstm_backward(
    D_Y, D_H, D_C, KEEP, W_H, GATES, CELLS, D_Z, batch, length,
    H: tl.constexpr, SIDES: tl.constexpr, PADDED: tl.constexpr, HAS_Y: tl.constexpr, HAS_H: tl.constexpr,
    HAS_C: tl.constexpr, FAST: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr, R: tl.constexpr,
):
    """The gradients of the gates before their functions, from the last step of one direction to the first.

    D_Y, D_H and D_C are the gradients of all hidden rows and of the last states.
    """
    entry, j, side = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, H), tl.program_id(1)
    inside, rows = entry < batch, batch * length
    there = inside[:, None]
    weight = _of_direction(W_H, side) + j[:, None] * H + j[None, :]
    w_i, w_f = tl.load(weight).to(DT), tl.load(weight + H * H).to(DT)
    w_g, w_o = tl.load(weight + 2 * H * H).to(DT), tl.load(weight + 3 * H * H).to(DT)
    line = side * rows + entry * length
    pulls = D_Y + entry[:, None] * (length * SIDES * H) + side * H + j[None, :]
    last = (side * batch + entry)[:, None] * H + j[None, :]
    dh, dc = tl.zeros([R, H], WIDE), tl.zeros([R, H], WIDE)
    if HAS_H:
        dh = tl.load(D_H + last, mask=there, other=0.0).to(WIDE)
    if HAS_C:
        dc = tl.load(D_C + last, mask=there, other=0.0).to(WIDE)
    at = _place(length - 1, side, length)
    n_i, n_f, n_g, n_o = _gates(GATES, line + at, j, there, H)
    c = tl.load(CELLS + (line + at)[:, None] * H + j[None, :], mask=there, other=0.0)
    pull = tl.zeros([R, H], WIDE)
    if HAS_Y:
        pull = tl.load(pulls + at * (SIDES * H), mask=there, other=0.0).to(WIDE)
    for turn in tl.range(0, length):
        step = length - 1 - turn
        at, earlier = _place(step, side, length), _place(tl.maximum(step - 1, 0), side, length)
        i, f, g, o = n_i.to(WIDE), n_f.to(WIDE), n_g.to(WIDE), n_o.to(WIDE)
        n_i, n_f, n_g, n_o = _gates(GATES, line + earlier, j, there, H)
        c_earlier = tl.load(CELLS + (line + earlier)[:, None] * H + j[None, :], mask=there, other=0.0)
        next_pull = tl.zeros([R, H], WIDE)
        if HAS_Y:
            next_pull = tl.load(pulls + earlier * (SIDES * H), mask=there, other=0.0).to(WIDE)
        before = tl.where(step > 0, c_earlier, 0.0)
        curve = _tanh(c, FAST)
        of_h = dh + pull
        of_c = dc + of_h * o * (1.0 - curve * curve)
        d_i, d_f = of_c * g * i * (1.0 - i), of_c * before * f * (1.0 - f)
        d_g, d_o = of_c * i * (1.0 - g * g), of_h * curve * o * (1.0 - o)
        if PADDED:
            real = _real(KEEP, entry * length + at, inside, PADDED)[:, None]
            d_i, d_f = tl.where(real, d_i, 0.0), tl.where(real, d_f, 0.0)
            d_g, d_o = tl.where(real, d_g, 0.0), tl.where(real, d_o, 0.0)
        d_i, d_f, d_g, d_o = d_i.to(DT), d_f.to(DT), d_g.to(DT), d_o.to(DT)
        into = D_Z + (line + at)[:, None] * (4 * H) + j[None, :]
        tl.store(into, d_i, mask=there)
        tl.store(into + H, d_f, mask=there)
        tl.store(into + 2 * H, d_g, mask=there)
        tl.store(into + 3 * H, d_o, mask=there)
        found = tl.dot(d_i, w_i) + tl.dot(d_f, w_f) + tl.dot(d_g, w_g) + tl.dot(d_o, w_o)
        if PADDED:
            dh, dc = tl.where(real, found, dh), tl.where(real, of_c * f, dc)
        else:
            dh, dc = found, of_c * f
        c, pull = c_earlier, next_pull


@triton.jit
def _weight_tile(
    number, hidden, D_Z, X, Y, KEEP, SEED, D_WX, D_WH, D_BX, D_BH, salt, rows, length,
    INPUTS: tl.constexpr, H: tl.constexpr, SIDES: tl.constexpr, PADDED: tl.constexpr, DROP: tl.constexpr,
    KEPT: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A tile (TALL,WIDTH) of the gradient of a weight, recurrent (`hidden`) or of inputs, over all rows in order.

    The first tile of each line of the inputs' weights also sums the biases.
    """
    tiles = tl.where(hidden, H // WIDTH, (INPUTS + WIDTH - 1) // WIDTH)
    side, i = number // tiles % SIDES, number // (tiles * SIDES) * TALL + tl.arange(0, TALL)
    column, k = number % tiles * WIDTH + tl.arange(0, WIDTH), tl.arange(0, BLOCK)
    found, total = tl.zeros([TALL, WIDTH], WIDE), tl.zeros([TALL], WIDE)
    for start in tl.range(0, rows, BLOCK):
        row = start + k
        at = D_Z + (side * rows + row[:, None]) * (4 * H) + i[None, :]
        d = tl.load(at, mask=(row < rows)[:, None], other=0.0)
        if hidden:
            place = row % length
            begun = (row < rows) & tl.where(side == 0, place > 0, place < length - 1)
            earlier = row + tl.where(side == 0, -1, 1)
            before = Y + earlier[:, None] * (SIDES * H) + side * H + column[None, :]
            one = tl.load(before, mask=begun[:, None], other=0.0).to(DT)
        else:
            one = _inputs(X, KEEP, SEED, salt, row, column, rows, INPUTS, PADDED, DROP, KEPT, DT)
        found += tl.dot(tl.trans(d), one)
        total += tl.sum(d.to(WIDE), 0)
    if hidden:
        tl.store(_of_direction(D_WH, side) + i[:, None] * H + column[None, :], found)
    else:
        real = (column < INPUTS)[None, :]
        tl.store(_of_direction(D_WX, side) + i[:, None] * INPUTS + column[None, :], found, mask=real)
        if number % tiles == 0:
            tl.store(_of_direction(D_BX, side) + i, total)
            tl.store(_of_direction(D_BH, side) + i, total)


@triton.jit
def _input_tile(
    number, D_Z, SEED, W_X, D_X, salt, rows, INPUTS: tl.constexpr, H: tl.constexpr, SIDES: tl.constexpr,
    DROP: tl.constexpr, KEPT: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr, R: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):
    """A tile (R,WIDTH) of the gradient of the inputs, over both directions."""
    ACROSS: tl.constexpr = (INPUTS + WIDTH - 1) // WIDTH
    row, column = number // ACROSS * R + tl.arange(0, R), number % ACROSS * WIDTH + tl.arange(0, WIDTH)
    inside, across, k = (row < rows)[:, None], (column < INPUTS)[None, :], tl.arange(0, BLOCK)
    found = tl.zeros([R, WIDTH], WIDE)
    for side in tl.static_range(SIDES):
        for start in tl.range(0, 4 * H, BLOCK):
            at = D_Z + (side * rows + row[:, None]) * (4 * H) + (start + k)[None, :]
            d = tl.load(at, mask=inside, other=0.0)
            w = tl.load(W_X[side] + (start + k)[:, None] * INPUTS + column[None, :], mask=across, other=0.0)
            found += tl.dot(d, w.to(DT))
    found = _dropped(found, SEED, salt, 0, row, column, DROP, KEPT)
    into = D_X + row[:, None] * INPUTS + column[None, :]
    tl.store(into, found.to(D_X.dtype.element_ty), mask=inside & across)


@triton.jit
def lstm_gradients(
    D_Z, X, Y, KEEP, SEED, W_X, D_WX, D_WH, D_BX, D_BH, D_X, salt, rows, length, of_inputs, of_hidden,
    INPUTS: tl.constexpr, H: tl.constexpr, SIDES: tl.constexpr, PADDED: tl.constexpr, DROP: tl.constexpr,
    KEPT: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr, R: tl.constexpr, TALL: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):
    """A tile of a gradient: `of_inputs` programs for weights of inputs, `of_hidden` for recurrent ones, then inputs."""
    job = tl.program_id(0)
    if job < of_inputs + of_hidden:
        hidden = job >= of_inputs
        _weight_tile(
            tl.where(hidden, job - of_inputs, job), hidden, D_Z, X, Y, KEEP, SEED, D_WX, D_WH, D_BX, D_BH, salt, rows,
            length, INPUTS, H, SIDES, PADDED, DROP, KEPT, DT, WIDE, TALL, WIDTH, BLOCK,
        )
    else:
        _input_tile(
            job - of_inputs - of_hidden, D_Z, SEED, W_X, D_X, salt, rows, INPUTS, H, SIDES, DROP, KEPT, DT, WIDE, R,
            WIDTH, BLOCK,
        )
