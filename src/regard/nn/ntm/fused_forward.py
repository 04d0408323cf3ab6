"""All steps of a machine in one kernel: a program computes one sequence of the batch from its first step to its last.

The memory stays in the program's registers. Everything else is exchanged between threads through the record, which is
written for the backward pass anyway, with a barrier between writing and reading. Names are as in `forward.Record`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.nn.ntm.fused_pieces import length_of, sigmoid, softmax, softplus, tanh, times_matrix


@triton.jit(do_not_specialize=["steps", "batch"])
def forward_kernel(
    drive, recurrent, heads, bias, keep, seen, cell, weights, memory, gates, bent_cell, parameters, kernel, key_length,
    inverse_length, logits, content, around, moved, last, steps, batch,
    READS: tl.constexpr, WRITES: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, REACH: tl.constexpr,
    HIDDEN: tl.constexpr, LSTM: tl.constexpr, SAVES: tl.constexpr, TINY: tl.constexpr, FLOOR: tl.constexpr,
    HEADS_UP: tl.constexpr, SLOTS_UP: tl.constexpr, WIDTH_UP: tl.constexpr, OFFSETS_UP: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr,
):
    """recurrent (fed_back, drive) and heads (hidden, P) are transposed. Sizes with UP are powers of two.

    Without SAVES only seen, cell and weights have an entry for each step; the others have one entry for all steps.
    """
    COUNT: tl.constexpr = READS + WRITES
    SEEN: tl.constexpr = READS * WIDTH + HIDDEN
    CELL: tl.constexpr = HIDDEN if LSTM else 0
    DRIVE: tl.constexpr = 4 * HIDDEN if LSTM else HIDDEN
    ERASE: tl.constexpr = (COUNT + WRITES) * WIDTH
    GATE: tl.constexpr = ERASE + WRITES * WIDTH
    PARAMETERS: tl.constexpr = GATE + 3 * COUNT + COUNT * (2 * REACH + 1)
    entry = tl.program_id(0).to(tl.int64)
    wide = tl.arange(0, WIDTH_UP)
    slot = tl.arange(0, SLOTS_UP)
    cells = wide[:, None] * SLOTS + slot[None, :]
    inside = (wide < WIDTH)[:, None] & (slot < SLOTS)[None, :]
    tile = tl.load(memory + entry * WIDTH * SLOTS + cells, mask=inside, other=0.0)
    for t in range(steps):
        old = t * batch + entry
        new = old + batch
        mine = old if SAVES else entry
        real = True
        if keep is not None:
            real = tl.load(keep + old) != 0
        if real:
            _controller(
                drive + old * DRIVE, recurrent, seen + old * SEEN, seen + new * SEEN + READS * WIDTH, cell + old * CELL,
                cell + new * CELL, gates + mine * DRIVE, bent_cell + mine * CELL, READS * WIDTH, HIDDEN, LSTM, SAVES,
                WIDE, BLOCK, INNER // 4,
            )
            tl.debug_barrier()
            own = parameters + mine * PARAMETERS
            _parameters(
                seen + new * SEEN + READS * WIDTH, heads, bias, own, HIDDEN, ERASE, GATE + COUNT, GATE + 3 * COUNT,
                PARAMETERS, BLOCK, INNER,
            )
            tl.debug_barrier()
            shares = kernel + mine * COUNT * (2 * REACH + 1)
            circle = around + mine * COUNT * (SLOTS + 2 * REACH)
            _look(
                tile, own, weights + old * COUNT * SLOTS, shares, key_length + mine * COUNT,
                inverse_length + mine * SLOTS, logits + mine * COUNT * SLOTS, content + mine * COUNT * SLOTS, circle,
                COUNT, SLOTS, WIDTH, REACH, GATE, SAVES, TINY, HEADS_UP, SLOTS_UP, WIDTH_UP, OFFSETS_UP,
            )
            tl.debug_barrier()
            places = weights + new * COUNT * SLOTS
            _move(
                circle, shares, own + GATE + 2 * COUNT, places, moved + mine * COUNT * SLOTS, COUNT, SLOTS, REACH,
                SAVES, FLOOR, HEADS_UP, SLOTS_UP,
            )
            tl.debug_barrier()
            tile = _write(tile, places, own, READS, WRITES, SLOTS, WIDTH, ERASE, WIDTH_UP, SLOTS_UP)
            _read(tile, places, seen + new * SEEN, READS, SLOTS, WIDTH, WIDTH_UP, SLOTS_UP)
        else:
            _stay(seen + old * SEEN, seen + new * SEEN, SEEN, BLOCK)
            _stay(cell + old * CELL, cell + new * CELL, CELL, BLOCK)
            _stay(weights + old * COUNT * SLOTS, weights + new * COUNT * SLOTS, COUNT * SLOTS, BLOCK)
        if SAVES:
            tl.store(memory + new * WIDTH * SLOTS + cells, tile, mask=inside)
        tl.debug_barrier()
    tl.store(last + entry * SLOTS * WIDTH + slot[None, :] * WIDTH + wide[:, None], tile, mask=inside)


@triton.jit
def _controller(
    drive, recurrent, fed, hidden, cell, next_cell, gates, bent_cell, FED_READS: tl.constexpr, HIDDEN: tl.constexpr,
    LSTM: tl.constexpr, SAVES: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr,
):
    """Compute the controller's hidden vector and cell from the fed-back vector."""
    FED: tl.constexpr = FED_READS + HIDDEN if LSTM else FED_READS
    DRIVE: tl.constexpr = 4 * HIDDEN if LSTM else HIDDEN
    for start in range(0, DRIVE, WIDE):
        column = start + tl.arange(0, WIDE)
        real = column < DRIVE
        value = tl.load(drive + column, mask=real, other=0.0)
        value += times_matrix(fed, recurrent, column, real, FED, DRIVE, INNER)
        if LSTM:
            value = tl.where(column < 3 * HIDDEN, sigmoid(value), tanh(value))
        else:
            value = tanh(value)
            tl.store(hidden + column, value, mask=real)
        tl.store(gates + column, value, mask=real)
    if LSTM:
        tl.debug_barrier()
        for start in range(0, HIDDEN, BLOCK):
            unit = start + tl.arange(0, BLOCK)
            real = unit < HIDDEN
            out = tl.load(gates + unit, mask=real, other=0.0)
            enter = tl.load(gates + HIDDEN + unit, mask=real, other=0.0)
            forget = tl.load(gates + 2 * HIDDEN + unit, mask=real, other=0.0)
            candidate = tl.load(gates + 3 * HIDDEN + unit, mask=real, other=0.0)
            state = forget * tl.load(cell + unit, mask=real, other=0.0) + enter * candidate
            bent = tanh(state)
            tl.store(next_cell + unit, state, mask=real)
            tl.store(hidden + unit, out * bent, mask=real)
            if SAVES:
                tl.store(bent_cell + unit, bent, mask=real)


@triton.jit
def _parameters(
    hidden, heads, bias, parameters, HIDDEN: tl.constexpr, BOUNDED: tl.constexpr, POSITIVE: tl.constexpr,
    FREE: tl.constexpr, PARAMETERS: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr,
):
    """Compute the head parameters after their non-linearities; the constants are the starts of the sections."""
    for start in range(0, PARAMETERS, BLOCK):
        number = start + tl.arange(0, BLOCK)
        real = number < PARAMETERS
        value = tl.load(bias + number, mask=real, other=0.0)
        value += times_matrix(hidden, heads, number, real, HIDDEN, PARAMETERS, INNER)
        bent = tl.where(number < POSITIVE, sigmoid(value), softplus(value))
        tl.store(parameters + number, tl.where((number < BOUNDED) | (number >= FREE), value, bent), mask=real)


@triton.jit
def _look(
    tile, parameters, previous, kernel, key_length, inverse_length, logits, content, around,
    COUNT: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, REACH: tl.constexpr, GATE: tl.constexpr,
    SAVES: tl.constexpr, TINY: tl.constexpr, HEADS_UP: tl.constexpr, SLOTS_UP: tl.constexpr, WIDTH_UP: tl.constexpr,
    OFFSETS_UP: tl.constexpr,
):
    """Address up to the interpolated weights, with circular padding, and compute the shift kernel."""
    OFFSETS: tl.constexpr = 2 * REACH + 1
    AROUND: tl.constexpr = SLOTS + 2 * REACH
    head = tl.arange(0, HEADS_UP)
    slot = tl.arange(0, SLOTS_UP)
    wide = tl.arange(0, WIDTH_UP)
    offset = tl.arange(0, OFFSETS_UP)
    real = (head < COUNT)[:, None] & (slot < SLOTS)[None, :]

    shifts = head[:, None] * OFFSETS + offset[None, :]
    allowed = (head < COUNT)[:, None] & (offset < OFFSETS)[None, :]
    shares = tl.load(parameters + GATE + 3 * COUNT + shifts, mask=allowed, other=0.0)
    shares = softmax(tl.where((offset < OFFSETS)[None, :], shares, float("-inf")))
    tl.store(kernel + shifts, shares, mask=allowed)

    inverse = 1.0 / length_of(tl.sum(tile * tile, 0), TINY)
    if SAVES:
        tl.store(inverse_length + slot, inverse, mask=slot < SLOTS)
    keys = (head < COUNT)[:, None] & (wide < WIDTH)[None, :]
    keys = tl.load(parameters + head[:, None] * WIDTH + wide[None, :], mask=keys, other=0.0)
    length = length_of(tl.sum(keys * keys, 1), TINY)
    if SAVES:
        tl.store(key_length + head, length, mask=head < COUNT)
    scale = tl.load(parameters + GATE + COUNT + head, mask=head < COUNT, other=0.0) / length
    scores = tl.zeros([HEADS_UP, SLOTS_UP], tile.dtype)
    for k in tl.static_range(COUNT):
        key = tl.load(parameters + k * WIDTH + wide, mask=wide < WIDTH, other=0.0)
        scores = tl.where((head == k)[:, None], tl.sum(tile * key[:, None], 0)[None, :], scores)
    scores *= scale[:, None] * inverse[None, :]
    found = softmax(tl.where((slot < SLOTS)[None, :], scores, float("-inf")))
    places = head[:, None] * SLOTS + slot[None, :]
    if SAVES:
        tl.store(logits + places, scores, mask=real)
        tl.store(content + places, found, mask=real)

    gate = tl.load(parameters + GATE + head, mask=head < COUNT, other=0.0)[:, None]
    mixed = (1.0 - gate) * tl.load(previous + places, mask=real, other=0.0) + gate * found
    here = around + head[:, None] * AROUND + REACH + slot[None, :]
    tl.store(here, mixed, mask=real)
    tl.store(here + SLOTS, mixed, mask=real & (slot < REACH)[None, :])
    tl.store(here - SLOTS, mixed, mask=real & (slot >= SLOTS - REACH)[None, :])


@triton.jit
def _move(
    around, kernel, gammas, weights, moved, COUNT: tl.constexpr, SLOTS: tl.constexpr, REACH: tl.constexpr,
    SAVES: tl.constexpr, FLOOR: tl.constexpr, HEADS_UP: tl.constexpr, SLOTS_UP: tl.constexpr,
):
    """Shift and sharpen the weights."""
    OFFSETS: tl.constexpr = 2 * REACH + 1
    head = tl.arange(0, HEADS_UP)
    slot = tl.arange(0, SLOTS_UP)
    real = (head < COUNT)[:, None] & (slot < SLOTS)[None, :]
    shifted = tl.zeros([HEADS_UP, SLOTS_UP], around.dtype.element_ty)
    for j in range(OFFSETS):
        # Offset j − r comes from the slot j − r before, which is at index 2r − j of the padded weights.
        origin = around + head[:, None] * (SLOTS + 2 * REACH) + slot[None, :] + (2 * REACH - j)
        share = tl.load(kernel + head * OFFSETS + j, mask=head < COUNT, other=0.0)
        shifted += share[:, None] * tl.load(origin, mask=real, other=0.0)
    shifted = tl.where(shifted < FLOOR, FLOOR, shifted)
    places = head[:, None] * SLOTS + slot[None, :]
    gamma = 1.0 + tl.load(gammas + head, mask=head < COUNT, other=0.0)
    logs = tl.where((slot < SLOTS)[None, :], tl.log(shifted) * gamma[:, None], float("-inf"))
    tl.store(weights + places, softmax(logs), mask=real)
    if SAVES:
        tl.store(moved + places, shifted, mask=real)


@triton.jit
def _write(
    tile, weights, parameters, READS: tl.constexpr, WRITES: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
    ERASE: tl.constexpr, WIDTH_UP: tl.constexpr, SLOTS_UP: tl.constexpr,
):
    """Erase with all heads, then add with all heads."""
    slot = tl.arange(0, SLOTS_UP)
    wide = tl.arange(0, WIDTH_UP)
    added = tl.zeros([WIDTH_UP, SLOTS_UP], tile.dtype)
    for k in tl.static_range(WRITES):
        writing = tl.load(weights + (READS + k) * SLOTS + slot, mask=slot < SLOTS, other=0.0)[None, :]
        row = k * WIDTH + wide
        erase = tl.load(parameters + ERASE + row, mask=wide < WIDTH, other=0.0)
        add = tl.load(parameters + (READS + WRITES) * WIDTH + row, mask=wide < WIDTH, other=0.0)
        tile -= tile * (erase[:, None] * writing)
        added += add[:, None] * writing
    return tile + added


@triton.jit
def _read(
    tile, weights, seen, READS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_UP: tl.constexpr,
    SLOTS_UP: tl.constexpr,
):
    slot = tl.arange(0, SLOTS_UP)
    wide = tl.arange(0, WIDTH_UP)
    for k in tl.static_range(READS):
        reading = tl.load(weights + k * SLOTS + slot, mask=slot < SLOTS, other=0.0)
        tl.store(seen + k * WIDTH + wide, tl.sum(tile * reading[None, :], 1), mask=wide < WIDTH)


@triton.jit
def _stay(before, after, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Keep the previous state of a padded step."""
    for start in range(0, SIZE, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(after + place, tl.load(before + place, mask=place < SIZE, other=0.0), mask=place < SIZE)
