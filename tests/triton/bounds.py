"""Accesses outside of a kernel's tensors are errors in the interpreter, as they may be on a GPU.

The interpreter reads and writes whatever address a kernel computes; beyond the end of a tensor lies, as a rule,
memory of another, so that nothing happens. Here each access that is not masked must lie within the memory of an
argument. Kernels that read addresses from a table (`fused_update`) are exempt: their arguments do not tell what they
may touch.
"""

import contextlib
import traceback

import numpy as np
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

BY_ADDRESS = ("square_sums", "adamw", "rmsprop")


class OutOfBounds(AssertionError):
    """A kernel touched memory that belongs to none of its arguments."""


class Bounds:
    """The memory of the arguments of the kernel that is running."""

    def __init__(self):
        self.kernel, self.begins, self.ends = "", np.empty(0, np.uint64), np.empty(0, np.uint64)

    def enter(self, kernel, arguments):
        """Note the memory of the arguments of a launch."""
        spans = sorted(set(_spans(arguments))) if kernel not in BY_ADDRESS else []
        self.kernel = kernel
        self.begins, self.ends = (np.array([span[side] for span in spans], np.uint64) for side in (0, 1))

    def check(self, pointers, mask, size, what):
        """Raise if an access of `size` bytes through one of these pointers is outside."""
        if not len(self.begins):
            return
        pointers = np.asarray(pointers, np.uint64).ravel()
        pointers = pointers[np.asarray(mask, bool).ravel()]
        place = np.searchsorted(self.begins, pointers, side="right").astype(np.int64) - 1
        outside = (place < 0) | (pointers + np.uint64(size) > self.ends[np.maximum(place, 0)])
        if outside.any():
            first = int(pointers[outside][0]) - int(self.ends[max(0, place[outside][0])])
            raise OutOfBounds(
                f"{self.kernel} {what}s outside of its arguments at {_source()}: {outside.sum()} of {outside.size} "
                f"addresses, the first {first} bytes after a tensor"
            )


def _spans(value):
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _spans(part)
    elif isinstance(value, TensorDescriptor):
        yield from _spans(value.base)
    elif hasattr(value, "untyped_storage"):
        storage = value.untyped_storage()
        yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _source():
    frames = [frame for frame in traceback.extract_stack() if "/regard/" in frame.filename]
    return f"{frames[-1].filename.rsplit('/', 1)[1]}:{frames[-1].lineno}" if frames else "an unknown line"


@contextlib.contextmanager
def checked():
    """Check every load and store of every kernel."""
    executor, builder, bounds = interpreter.GridExecutor, interpreter.InterpreterBuilder, Bounds()
    prepare, load, store = executor._init_args_hst, builder.create_masked_load, builder.create_masked_store

    def prepare_and_note(self, given, options):
        arguments, named = prepare(self, given, options)
        bounds.enter(self.fn.__name__, [*arguments, *named.values()])
        return arguments, named

    def checked_load(self, pointers, mask, *rest, **named):
        bounds.check(pointers.data, mask.data, pointers.get_element_ty().primitive_bitwidth // 8, "load")
        return load(self, pointers, mask, *rest, **named)

    def checked_store(self, pointers, value, mask, *rest, **named):
        bounds.check(pointers.data, mask.data, value.data.dtype.itemsize, "store")
        return store(self, pointers, value, mask, *rest, **named)

    executor._init_args_hst = prepare_and_note
    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    try:
        yield
    finally:
        executor._init_args_hst = prepare
        builder.create_masked_load, builder.create_masked_store = load, store
