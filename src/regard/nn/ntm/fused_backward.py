"""The derivative of `fused_forward`, in one kernel: a program computes one sequence from its last step to its first.

The gradient of the memory stays in registers. The gradients that are passed to the previous step (`carry_…`) and those
between two parts of a step (`d_places`, `d_moved`) are exchanged through small buffers, with a barrier between writing
and reading. The gradients of the trained matrices are computed from d_drive and d_parameters outside the kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.nn.ntm.fused_pieces import softmax_slope, times_matrix


@triton.jit(do_not_specialize=["steps", "batch"])
def backward_kernel(
    recurrent, heads, keep, cell, weights, memory, gates, bent_cell, parameters, kernel, key_length, inverse_length,
    logits, content, around, moved, out_seen, out_cell, out_weights, out_memory, d_drive, d_parameters, carry_seen,
    carry_cell, carry_weights, d_memory, d_places, d_moved, along_keys, steps, batch,
    READS: tl.constexpr, WRITES: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, REACH: tl.constexpr,
    HIDDEN: tl.constexpr, LSTM: tl.constexpr, HEADS_UP: tl.constexpr, SLOTS_UP: tl.constexpr, WIDTH_UP: tl.constexpr,
    OFFSETS_UP: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr,
):
    """out_… are the gradients of the outputs, None for zero; the carry_… start as zeros."""
    COUNT: tl.constexpr = READS + WRITES
    SEEN: tl.constexpr = READS * WIDTH + HIDDEN
    CELL: tl.constexpr = HIDDEN if LSTM else 0
    FED: tl.constexpr = SEEN if LSTM else READS * WIDTH
    DRIVE: tl.constexpr = 4 * HIDDEN if LSTM else HIDDEN
    GATE: tl.constexpr = (COUNT + 2 * WRITES) * WIDTH
    PARAMETERS: tl.constexpr = GATE + 3 * COUNT + COUNT * (2 * REACH + 1)
    PLACES: tl.constexpr = COUNT * SLOTS
    entry = tl.program_id(0).to(tl.int64)
    carry_seen += entry * SEEN
    carry_cell += entry * CELL
    carry_weights += entry * PLACES
    d_places += entry * PLACES
    d_moved += entry * PLACES
    along_keys += entry * COUNT
    wide = tl.arange(0, WIDTH_UP)
    slot = tl.arange(0, SLOTS_UP)
    cells = wide[:, None] * SLOTS + slot[None, :]
    inside = (wide < WIDTH)[:, None] & (slot < SLOTS)[None, :]
    turned = entry * SLOTS * WIDTH + slot[None, :] * WIDTH + wide[:, None]
    d_tile = tl.zeros([WIDTH_UP, SLOTS_UP], memory.dtype.element_ty)
    if out_memory is not None:
        d_tile = tl.load(out_memory + turned, mask=inside, other=0.0)
    for back in range(steps):
        old = (steps - 1 - back) * batch + entry
        new = old + batch
        real = True
        if keep is not None:
            real = tl.load(keep + old) != 0
        if real:
            own, d_own = parameters + old * PARAMETERS, d_parameters + old * PARAMETERS
            before = tl.load(memory + old * WIDTH * SLOTS + cells, mask=inside, other=0.0)
            after = tl.load(memory + new * WIDTH * SLOTS + cells, mask=inside, other=0.0)
            d_tile = _read(
                after, d_tile, weights + new * PLACES, carry_seen, out_seen + new * SEEN, d_places, READS, SLOTS, WIDTH,
                WIDTH_UP, SLOTS_UP,
            )
            d_tile = _write(
                before, d_tile, weights + new * PLACES, own, d_own, d_places, READS, WRITES, SLOTS, WIDTH, WIDTH_UP,
                SLOTS_UP,
            )
            tl.debug_barrier()
            if out_weights is not None:
                outside = out_weights + new * PLACES
            else:
                outside = None
            _move(
                weights + new * PLACES, moved + old * PLACES, around + old * COUNT * (SLOTS + 2 * REACH),
                kernel + old * COUNT * (2 * REACH + 1), own, d_own, carry_weights, outside, d_places, d_moved,
                COUNT, SLOTS, REACH, GATE, HEADS_UP, SLOTS_UP, OFFSETS_UP,
            )
            tl.debug_barrier()
            inverse = tl.load(inverse_length + old * SLOTS + slot, mask=slot < SLOTS, other=0.0)
            along = _mix(
                weights + old * PLACES, content + old * PLACES, logits + old * PLACES,
                kernel + old * COUNT * (2 * REACH + 1), key_length + old * COUNT, own, d_own, inverse, carry_weights,
                d_places, d_moved, along_keys, COUNT, SLOTS, REACH, GATE, HEADS_UP, SLOTS_UP,
            )
            tl.debug_barrier()
            d_tile -= before * along[None, :]
            d_tile = _look(
                before, d_tile, own, d_own, key_length + old * COUNT, d_places, along_keys, COUNT, SLOTS, WIDTH, GATE,
                WIDTH_UP, SLOTS_UP,
            )
            tl.debug_barrier()
            if out_cell is not None:
                outside = out_cell + new * CELL
            else:
                outside = None
            _controller(
                heads, d_own, gates + old * DRIVE, bent_cell + old * CELL, cell + old * CELL,
                carry_seen + READS * WIDTH, out_seen + new * SEEN + READS * WIDTH, carry_cell, outside,
                d_drive + old * DRIVE, HIDDEN, LSTM, PARAMETERS, BLOCK, INNER,
            )
            tl.debug_barrier()
            for start in range(0, SEEN, BLOCK):
                column = start + tl.arange(0, BLOCK)
                fed = times_matrix(d_drive + old * DRIVE, recurrent, column, column < FED, DRIVE, FED, INNER)
                tl.store(carry_seen + column, fed, mask=column < SEEN)
        else:
            _collect(carry_seen, out_seen + new * SEEN, SEEN, BLOCK)
            if out_cell is not None:
                _collect(carry_cell, out_cell + new * CELL, CELL, BLOCK)
            if out_weights is not None:
                _collect(carry_weights, out_weights + new * PLACES, PLACES, BLOCK)
        tl.debug_barrier()
    _collect(carry_seen, out_seen + entry * SEEN, SEEN, BLOCK)
    if out_cell is not None:
        _collect(carry_cell, out_cell + entry * CELL, CELL, BLOCK)
    if out_weights is not None:
        _collect(carry_weights, out_weights + entry * PLACES, PLACES, BLOCK)
    tl.store(d_memory + turned, d_tile, mask=inside)


@triton.jit
def _collect(carry, outside, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Add the gradient of the outputs of a state."""
    for start in range(0, SIZE, BLOCK):
        place = start + tl.arange(0, BLOCK)
        total = tl.load(carry + place, mask=place < SIZE, other=0.0)
        total += tl.load(outside + place, mask=place < SIZE, other=0.0)
        tl.debug_barrier()  # several threads may hold the same element: all must read it before one writes
        tl.store(carry + place, total, mask=place < SIZE)


@triton.jit
def _read(
    after, d_tile, weights, carry_seen, out_seen, d_places, READS: tl.constexpr, SLOTS: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_UP: tl.constexpr, SLOTS_UP: tl.constexpr,
):
    """Propagate gradients from the reads to the memory and the read weights."""
    wide = tl.arange(0, WIDTH_UP)
    slot = tl.arange(0, SLOTS_UP)
    for k in tl.static_range(READS):
        reading = tl.load(weights + k * SLOTS + slot, mask=slot < SLOTS, other=0.0)
        d_read = tl.load(carry_seen + k * WIDTH + wide, mask=wide < WIDTH, other=0.0)
        d_read += tl.load(out_seen + k * WIDTH + wide, mask=wide < WIDTH, other=0.0)
        tl.store(d_places + k * SLOTS + slot, tl.sum(after * d_read[:, None], 0), mask=slot < SLOTS)
        d_tile += d_read[:, None] * reading[None, :]
    return d_tile


@triton.jit
def _write(
    before, d_tile, weights, parameters, d_parameters, d_places, READS: tl.constexpr, WRITES: tl.constexpr,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_UP: tl.constexpr, SLOTS_UP: tl.constexpr,
):
    """Propagate gradients from the memory after writing to the memory before, to add, erase and the write weights."""
    ADD: tl.constexpr = (READS + WRITES) * WIDTH
    ERASE: tl.constexpr = ADD + WRITES * WIDTH
    wide = tl.arange(0, WIDTH_UP)
    slot = tl.arange(0, SLOTS_UP)
    writings, erases = weights + READS * SLOTS, parameters + ERASE
    d_after = d_tile
    for k in tl.static_range(WRITES - 1, -1, -1):
        found = before  # the memory before this head erased
        for j in tl.static_range(k):
            writing = tl.load(writings + j * SLOTS + slot, mask=slot < SLOTS, other=0.0)
            erase = tl.load(erases + j * WIDTH + wide, mask=wide < WIDTH, other=0.0)
            found -= found * (erase[:, None] * writing[None, :])
        writing = tl.load(writings + k * SLOTS + slot, mask=slot < SLOTS, other=0.0)
        erase = tl.load(erases + k * WIDTH + wide, mask=wide < WIDTH, other=0.0)
        add = tl.load(parameters + ADD + k * WIDTH + wide, mask=wide < WIDTH, other=0.0)
        # The result was found · (1 − erase ⊗ writing); product is the gradient of the second factor.
        product = d_tile * found
        d_writing = tl.sum(d_after * add[:, None] - product * erase[:, None], 0)
        tl.store(d_places + (READS + k) * SLOTS + slot, d_writing, mask=slot < SLOTS)
        d_add = tl.sum(d_after * writing[None, :], 1)
        d_kept = tl.sum(product * writing[None, :], 1)
        tl.store(d_parameters + ADD + k * WIDTH + wide, d_add, mask=wide < WIDTH)
        tl.store(d_parameters + ERASE + k * WIDTH + wide, -d_kept * erase * (1.0 - erase), mask=wide < WIDTH)
        d_tile -= d_tile * (erase[:, None] * writing[None, :])
    return d_tile


@triton.jit
def _move(
    weights, moved, around, kernel, parameters, d_parameters, carry_weights, outside, d_places, d_moved,
    COUNT: tl.constexpr, SLOTS: tl.constexpr, REACH: tl.constexpr, GATE: tl.constexpr, HEADS_UP: tl.constexpr,
    SLOTS_UP: tl.constexpr, OFFSETS_UP: tl.constexpr,
):
    """Propagate gradients from the final weights to the shifted ones, gamma and the shift kernel."""
    OFFSETS: tl.constexpr = 2 * REACH + 1
    GAMMA: tl.constexpr = GATE + 2 * COUNT
    head = tl.arange(0, HEADS_UP)
    slot = tl.arange(0, SLOTS_UP)
    offset = tl.arange(0, OFFSETS_UP)
    real = (head < COUNT)[:, None] & (slot < SLOTS)[None, :]
    places = head[:, None] * SLOTS + slot[None, :]
    d_weights = tl.load(carry_weights + places, mask=real, other=0.0) + tl.load(d_places + places, mask=real, other=0.0)
    if outside is not None:
        d_weights += tl.load(outside + places, mask=real, other=0.0)
    d_logs = softmax_slope(tl.load(weights + places, mask=real, other=0.0), d_weights)
    shifted = tl.load(moved + places, mask=real, other=1.0)
    gamma = tl.load(parameters + GAMMA + head, mask=head < COUNT, other=0.0)
    d_gamma = tl.sum(d_logs * tl.log(shifted), 1) * (1.0 - tl.exp(-gamma))
    tl.store(d_parameters + GAMMA + head, d_gamma, mask=head < COUNT)
    d_shifted = d_logs * ((1.0 + gamma)[:, None] / shifted)
    tl.store(d_moved + places, d_shifted, mask=real)

    d_shares = tl.zeros([HEADS_UP, OFFSETS_UP], shifted.dtype)
    for j in range(OFFSETS):
        origin = around + head[:, None] * (SLOTS + 2 * REACH) + slot[None, :] + (2 * REACH - j)
        d_share = tl.sum(d_shifted * tl.load(origin, mask=real, other=0.0), 1)
        d_shares = tl.where((offset == j)[None, :], d_share[:, None], d_shares)
    shifts = head[:, None] * OFFSETS + offset[None, :]
    allowed = (head < COUNT)[:, None] & (offset < OFFSETS)[None, :]
    d_shares = softmax_slope(tl.load(kernel + shifts, mask=allowed, other=0.0), d_shares)
    tl.store(d_parameters + GAMMA + COUNT + shifts, d_shares, mask=allowed)


@triton.jit
def _mix(
    previous, content, logits, kernel, key_length, parameters, d_parameters, inverse, carry_weights, d_places, d_moved,
    along_keys, COUNT: tl.constexpr, SLOTS: tl.constexpr, REACH: tl.constexpr, GATE: tl.constexpr,
    HEADS_UP: tl.constexpr, SLOTS_UP: tl.constexpr,
):
    """Propagate gradients from the shifted weights to the gate, the previous weights and the products key · slot.

    The products are scaled by strength / |key|, so that the gradient of a key has no component along the key
    (along_keys). Returns the component of the gradient of each slot along the slot, which has to be subtracted.
    """
    OFFSETS: tl.constexpr = 2 * REACH + 1
    head = tl.arange(0, HEADS_UP)
    slot = tl.arange(0, SLOTS_UP)
    real = (head < COUNT)[:, None] & (slot < SLOTS)[None, :]
    places = head[:, None] * SLOTS + slot[None, :]
    d_mixed = tl.zeros([HEADS_UP, SLOTS_UP], inverse.dtype)
    for j in range(OFFSETS):
        target = slot + (j - REACH)
        target = tl.where(target < 0, target + SLOTS, tl.where(target >= SLOTS, target - SLOTS, target))
        share = tl.load(kernel + head * OFFSETS + j, mask=head < COUNT, other=0.0)
        d_target = tl.load(d_moved + head[:, None] * SLOTS + target[None, :], mask=real, other=0.0)
        d_mixed += share[:, None] * d_target
    found = tl.load(content + places, mask=real, other=0.0)
    gate = tl.load(parameters + GATE + head, mask=head < COUNT, other=0.0)
    d_gate = tl.sum(d_mixed * (found - tl.load(previous + places, mask=real, other=0.0)), 1)
    tl.store(d_parameters + GATE + head, d_gate * gate * (1.0 - gate), mask=head < COUNT)
    tl.store(carry_weights + places, d_mixed * (1.0 - gate)[:, None], mask=real)
    d_logits = softmax_slope(found, d_mixed * gate[:, None])
    tl.store(d_places + places, d_logits * inverse[None, :], mask=real)
    changes = d_logits * tl.load(logits + places, mask=real, other=0.0)
    strength = tl.load(parameters + GATE + COUNT + head, mask=head < COUNT, other=0.0)
    length = tl.load(key_length + head, mask=head < COUNT, other=1.0)
    # With zero strength or a zero key the logit is zero, and so are both following factors.
    scale = strength / length
    by_scale = tl.where(scale == 0.0, 0.0, tl.sum(changes, 1) / tl.where(scale == 0.0, 1.0, scale)) / length
    d_strength = by_scale * (1.0 - tl.exp(-strength))
    tl.store(d_parameters + GATE + COUNT + head, d_strength, mask=head < COUNT)
    tl.store(along_keys + head, by_scale / length, mask=head < COUNT)
    return tl.sum(changes, 0) * inverse * inverse


@triton.jit
def _look(
    before, d_tile, parameters, d_parameters, key_length, d_products, along_keys, COUNT: tl.constexpr,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, GATE: tl.constexpr, WIDTH_UP: tl.constexpr, SLOTS_UP: tl.constexpr,
):
    """Propagate gradients from the products key · slot to the memory and the keys."""
    wide = tl.arange(0, WIDTH_UP)
    slot = tl.arange(0, SLOTS_UP)
    for k in tl.static_range(COUNT):
        d_product = tl.load(d_products + k * SLOTS + slot, mask=slot < SLOTS, other=0.0)
        key = tl.load(parameters + k * WIDTH + wide, mask=wide < WIDTH, other=0.0)
        scale = tl.load(parameters + GATE + COUNT + k) / tl.load(key_length + k)
        d_tile += (key * scale)[:, None] * d_product[None, :]
        d_key = (tl.sum(before * d_product[None, :], 1) - key * tl.load(along_keys + k)) * scale
        tl.store(d_parameters + k * WIDTH + wide, d_key, mask=wide < WIDTH)
    return d_tile


@triton.jit
def _controller(
    heads, d_parameters, gates, bent_cell, cell, carry_hidden, out_hidden, carry_cell, outside, d_drive,
    HIDDEN: tl.constexpr, LSTM: tl.constexpr, PARAMETERS: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr,
):
    """Propagate gradients from the head parameters and the hidden vector to the drive of the controller."""
    for start in range(0, HIDDEN, BLOCK):
        unit = start + tl.arange(0, BLOCK)
        real = unit < HIDDEN
        d_hidden = tl.load(carry_hidden + unit, mask=real, other=0.0)
        d_hidden += tl.load(out_hidden + unit, mask=real, other=0.0)
        d_hidden += times_matrix(d_parameters, heads, unit, real, PARAMETERS, HIDDEN, INNER)
        out = tl.load(gates + unit, mask=real, other=0.0)
        if LSTM:
            enter = tl.load(gates + HIDDEN + unit, mask=real, other=0.0)
            forget = tl.load(gates + 2 * HIDDEN + unit, mask=real, other=0.0)
            candidate = tl.load(gates + 3 * HIDDEN + unit, mask=real, other=0.0)
            bent = tl.load(bent_cell + unit, mask=real, other=0.0)
            d_cell = tl.load(carry_cell + unit, mask=real, other=0.0)
            if outside is not None:
                d_cell += tl.load(outside + unit, mask=real, other=0.0)
            d_cell += d_hidden * out * (1.0 - bent * bent)
            d_forget = d_cell * tl.load(cell + unit, mask=real, other=0.0) * forget * (1.0 - forget)
            tl.store(d_drive + unit, d_hidden * bent * out * (1.0 - out), mask=real)
            tl.store(d_drive + HIDDEN + unit, d_cell * candidate * enter * (1.0 - enter), mask=real)
            tl.store(d_drive + 2 * HIDDEN + unit, d_forget, mask=real)
            tl.store(d_drive + 3 * HIDDEN + unit, d_cell * enter * (1.0 - candidate * candidate), mask=real)
            tl.debug_barrier()  # several threads may hold the same element: all must read it before one writes
            tl.store(carry_cell + unit, d_cell * forget, mask=real)
        else:
            tl.store(d_drive + unit, d_hidden * (1.0 - out * out), mask=real)
