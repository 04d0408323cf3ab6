"""Checks of every load and store of every kernel in the interpreter: of addresses here, of order in `races.py`.

The interpreter reads and writes whatever address a kernel computes; beyond the end of a tensor lies, as a rule,
memory of another, so that nothing happens. Here each access that is not masked must lie within the memory of an
argument. Kernels that read addresses from a table (`fused_update`) are exempt: their arguments do not tell what they
may touch.
"""

import contextlib
import traceback
from dataclasses import dataclass

import numpy as np
from triton._C.libtriton import interpreter as _interpreter
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.triton.races import Race, Races

BY_ADDRESS = ("square_sums", "adamw", "rmsprop")


class OutOfBounds(AssertionError):
    """A kernel touched memory that belongs to none of its arguments."""


@dataclass(frozen=True)
class Piece:
    """The memory of arguments of a launch: its ends, and the bytes of the smallest number in it."""

    begin: int
    end: int
    grain: int

    @property
    def count(self):
        return (self.end - self.begin) // self.grain


class Accesses:
    """The launch that is running: what memory it may touch, and what it has touched."""

    def __init__(self):
        self.kernel, self.pieces, self.races = "", [], Races()
        self.begins, self.ends = np.empty(0, np.uint64), np.empty(0, np.uint64)

    def enter(self, kernel, arguments):
        """Note the memory of the arguments of a launch."""
        grains = {}
        for begin, end, grain in _memory(arguments) if kernel not in BY_ADDRESS else ():
            grains[begin, end] = min(grain, grains.get((begin, end), grain))
        self.kernel, self.pieces = kernel, [Piece(*ends, grain) for ends, grain in sorted(grains.items())]
        self.begins = np.array([piece.begin for piece in self.pieces], np.uint64)
        self.ends = np.array([piece.end for piece in self.pieces], np.uint64)
        self.races.enter()

    def check(self, pointers, mask, size, program, values=None):
        """Raise if an access of `size` bytes through one of these pointers, a store of values or a load, is wrong."""
        if not self.pieces:
            return
        mask = np.asarray(mask, bool).ravel()
        pointers = np.asarray(pointers, np.uint64).ravel()[mask]
        what = "load" if values is None else "store"
        place = np.searchsorted(self.begins, pointers, side="right").astype(np.int64) - 1
        outside = (place < 0) | (pointers + np.uint64(size) > self.ends[np.maximum(place, 0)])
        if outside.any():
            first = int(pointers[outside][0]) - int(self.ends[max(0, place[outside][0])])
            raise OutOfBounds(
                f"{self.kernel} {what}s outside of its arguments at {_source()}: {outside.sum()} of {outside.size} "
                f"addresses, the first {first} bytes after a tensor"
            )
        self.races.begin(program)
        changes = None if values is None else self._changes(pointers, values.ravel()[mask])
        for number in np.unique(place):
            own, piece = place == number, self.pieces[number]
            at = ((pointers[own] - self.begins[number]) // np.uint64(piece.grain)).astype(np.int64)
            store = None if values is None else changes[own]
            wrong = self.races.load(piece, at) if store is None else self.races.store(piece, at, store)
            if wrong:
                raise Race(f"{self.kernel} {wrong}, at {_source()}")

    def _changes(self, pointers, values):
        """Where a store changes what is in memory. Raise if it gives one number several values."""
        bits = np.dtype(f"u{values.dtype.itemsize}")
        values = np.ascontiguousarray(values).view(bits)
        _, first, again = np.unique(pointers, return_index=True, return_inverse=True)
        if (values[first][again] != values).any():
            raise Race(f"{self.kernel} stores several values to one number, at {_source()}")
        return values != _interpreter.load(pointers, np.ones(values.shape, bool), np.zeros_like(values), bits)


def _memory(value):
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _memory(part)
    elif isinstance(value, TensorDescriptor):
        yield from _memory(value.base)
    elif hasattr(value, "untyped_storage"):
        storage = value.untyped_storage()
        yield storage.data_ptr(), storage.data_ptr() + storage.nbytes(), value.element_size()


def _source():
    frames = [frame for frame in traceback.extract_stack() if "/regard/" in frame.filename]
    return f"{frames[-1].filename.rsplit('/', 1)[1]}:{frames[-1].lineno}" if frames else "an unknown line"


@contextlib.contextmanager
def checked():
    """Check every load and store of every kernel."""
    executor, builder, accesses = interpreter.GridExecutor, interpreter.InterpreterBuilder, Accesses()
    prepare, barrier = executor._init_args_hst, builder.create_barrier
    load, store = builder.create_masked_load, builder.create_masked_store

    def prepare_and_note(self, given, options):
        arguments, named = prepare(self, given, options)
        accesses.enter(self.fn.__name__, [*arguments, *named.values()])
        return arguments, named

    def checked_load(self, pointers, mask, *rest, **named):
        size = pointers.get_element_ty().primitive_bitwidth // 8
        accesses.check(pointers.data, mask.data, size, self.grid_idx)
        return load(self, pointers, mask, *rest, **named)

    def checked_store(self, pointers, value, mask, *rest, **named):
        accesses.check(pointers.data, mask.data, value.data.dtype.itemsize, self.grid_idx, value.data)
        return store(self, pointers, value, mask, *rest, **named)

    def noted_barrier(self):
        accesses.races.barrier()
        return barrier(self)

    executor._init_args_hst, builder.create_barrier = prepare_and_note, noted_barrier
    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    try:
        yield
    finally:
        executor._init_args_hst, builder.create_barrier = prepare, barrier
        builder.create_masked_load, builder.create_masked_store = load, store
