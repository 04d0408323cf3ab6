"""bfloat16 in Triton's interpreter, computed as on a GPU.

The interpreter keeps a bfloat16 as its 16 bits in a numpy array of whole numbers, and then adds, multiplies and
compares these numbers; its conversion from float32 cuts off bits instead of rounding. Here every operation widens its
operands to float32, which is exact, and rounds the result to the nearest, ties to even. float32 has more than twice the
bits of bfloat16, so rounding twice gives what rounding once does for sums, products, quotients and roots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, ReduceOps, ScanOps, TensorHandle


def widen(bits: Any) -> Any:
    """The float32 numbers of these bits."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(numbers: Any) -> Any:
    """The bits of the nearest bfloat16 numbers; a NaN stays one."""
    numbers = np.ascontiguousarray(numbers, np.float32).reshape(np.shape(numbers))
    bits = numbers.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    kept = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(numbers), kept, nearest).astype(np.uint16)


def is_narrow(handle: TensorHandle) -> bool:
    """Whether these are bits of bfloat16: the result of a comparison keeps the dtype of its operands."""
    return handle.dtype.scalar == tl.bfloat16 and handle.data.dtype == np.uint16


def _wide(handle: TensorHandle) -> TensorHandle:
    return TensorHandle(widen(handle.data), tl.float32) if is_narrow(handle) else handle


def _rounded(handle: TensorHandle) -> TensorHandle:
    """The result of an operation on bfloat16 numbers; that of a comparison is left alone."""
    if handle.data.dtype == np.bool_:
        return handle
    return TensorHandle(narrow(handle.data), tl.bfloat16)


def split_in_three(numbers: Any) -> list[Any]:
    """float32 numbers as sums of three of bfloat16, as the precision "bf16x6" multiplies them."""
    parts = []
    for _ in range(3):
        parts.append(widen(narrow(numbers)))
        numbers = numbers - parts[-1]
    return parts


def six_products(left: Any, right: Any) -> Any:
    """A product of float32 matrices on the matrix units for bfloat16.

    A number that is not finite leaves NaN in the rest of its split; what the small products make of it is dropped.
    """
    with np.errstate(all="ignore"):
        (a, b, c), (x, y, z) = split_in_three(left), split_in_three(right)
        small = np.matmul(c, x) + np.matmul(b, y) + np.matmul(a, z) + np.matmul(b, x) + np.matmul(a, y)
        return np.where(np.isnan(small), np.float32(0), small) + np.matmul(a, x)


@contextmanager
def bfloat16_computed() -> Iterator[None]:
    """While this lasts, the interpreter computes with bfloat16 as a GPU does, and knows the precision "bf16x6"."""
    cast, to_float = InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp
    binary, unary, ternary = (getattr(InterpreterBuilder, name) for name in ("binary_op", "unary_op", "ternary_op"))
    fused, dot, atomic = (
        getattr(InterpreterBuilder, name) for name in ("create_fma", "create_dot", "create_atomic_rmw")
    )

    def cast_impl(self: Any, src: TensorHandle, dst_type: Any) -> TensorHandle:
        if is_narrow(src):
            src = _wide(src)
        elif src.data.dtype == np.bool_:
            src = TensorHandle(src.data, tl.int1)
        if dst_type.scalar == tl.bfloat16:
            return TensorHandle(narrow(src.data.astype(np.float32)), tl.bfloat16)
        return src if src.dtype.scalar == dst_type.scalar else cast(self, src, dst_type)

    def create_fp_to_fp(self: Any, src: TensorHandle, dst_type: Any, rounding_mode: Any) -> TensorHandle:
        if tl.bfloat16 not in (src.dtype.scalar, dst_type.scalar):
            return to_float(self, src, dst_type, rounding_mode)
        if rounding_mode == ir.ROUNDING_MODE.RTZ:
            raise NotImplementedError("a conversion to bfloat16 that cuts off bits")
        return cast_impl(self, src, dst_type)

    def binary_op(self: Any, lhs: TensorHandle, rhs: TensorHandle, op: Any) -> TensorHandle:
        if is_narrow(lhs) or is_narrow(rhs):
            return _rounded(binary(self, _wide(lhs), _wide(rhs), op))
        return binary(self, lhs, rhs, op)

    def unary_op(self: Any, arg: TensorHandle, op: Any) -> TensorHandle:
        return _rounded(unary(self, _wide(arg), op)) if is_narrow(arg) else unary(self, arg, op)

    def ternary_op(self: Any, lhs: TensorHandle, rhs: TensorHandle, other: TensorHandle, op: Any) -> TensorHandle:
        if op is np.where or not is_narrow(other):  # bits can be chosen as they are
            return ternary(self, lhs, rhs, other, op)
        return _rounded(ternary(self, _wide(lhs), _wide(rhs), _wide(other), op))

    def create_fma(self: Any, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
        if not is_narrow(z):
            return fused(self, x, y, z)
        exact = [_wide(one).data.astype(np.float64) for one in (x, y, z)]
        return TensorHandle(narrow((exact[0] * exact[1] + exact[2]).astype(np.float32)), tl.bfloat16)

    def create_dot(
        self: Any, a: TensorHandle, b: TensorHandle, d: TensorHandle, input_precision: Any, *rest: Any
    ) -> Any:
        if is_narrow(d):
            raise NotImplementedError("sums of products in bfloat16")
        if input_precision == ir.INPUT_PRECISION.BF16x6 and a.data.dtype == np.float32:
            return TensorHandle(six_products(a.data, b.data) + d.data, d.dtype.scalar)
        return dot(self, _wide(a), _wide(b), d, input_precision, *rest)

    def create_atomic_rmw(self: Any, kind: Any, ptr: Any, val: TensorHandle, *rest: Any) -> TensorHandle:
        if is_narrow(val):
            raise NotImplementedError("an atomic operation on bfloat16")
        return atomic(self, kind, ptr, val, *rest)

    def get_bf16(self: Any, value: float) -> TensorHandle:
        return TensorHandle(narrow(np.array([value], np.float32)), tl.bfloat16)

    changed = {
        "cast_impl": cast_impl,
        "create_fp_to_fp": create_fp_to_fp,
        "binary_op": binary_op,
        "unary_op": unary_op,
        "ternary_op": ternary_op,
        "create_fma": create_fma,
        "create_dot": create_dot,
        "create_atomic_rmw": create_atomic_rmw,
        "get_bf16": get_bf16,
        # A maximum on a GPU takes the number beside a NaN; Triton 3.6's interpreter the NaN.
        "create_maxnumf": lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax),
        "create_minnumf": lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin),
    }
    precisions = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
    with (
        mock.patch.multiple(InterpreterBuilder, create=True, **changed),
        mock.patch.object(ReduceOps, "apply_impl", _reduced(ReduceOps.apply_impl)),
        mock.patch.object(ScanOps, "apply_impl", _scanned(ScanOps.apply_impl)),
        mock.patch.object(
            interpreter.interpreter_builder,
            "options",
            interpreter.InterpreterOptions(allowed_dot_input_precisions=precisions),
        ),
    ):
        yield


def _reduced(reduce: Any) -> Any:
    """A reduction of bfloat16 numbers: sums are rounded after each addition, in pairs, as lanes add them."""

    def apply_impl(self: Any, given: tuple[Any, ...]) -> Any:
        if not is_narrow(given[0].handle):
            return reduce(self, given)
        data = widen(given[0].handle.data)
        if self.combine_fn is not tl.standard._sum_combine:
            found = reduce(self, (self.to_tensor(data, tl.float32), *given[1:]))
            both = found if isinstance(found, (list, tuple)) else (found,)
            first = self.to_tensor(narrow(both[0].handle.data).reshape(both[0].shape), tl.bfloat16)
            return (first, *both[1:]) if isinstance(found, (list, tuple)) else first
        axis, shape = self.axis, data.shape
        rows = data.reshape(1, -1) if axis is None else np.moveaxis(data, axis, -1)
        while rows.shape[-1] > 1:
            half = rows.shape[-1] // 2
            rows = widen(narrow(rows[..., :half] + rows[..., half:]))
        bits = narrow(rows[..., 0])
        if axis is None:
            bits = bits.reshape([1] * len(shape)) if self.keep_dims else bits[0]
        elif self.keep_dims:
            bits = np.expand_dims(bits, axis)
        return self.to_tensor(bits, tl.bfloat16)

    return apply_impl


def _scanned(scan: Any) -> Any:
    def apply_impl(self: Any, given: tuple[Any, ...]) -> Any:
        if any(is_narrow(one.handle) for one in given):
            raise NotImplementedError("a scan of bfloat16")
        return scan(self, given)

    return apply_impl
