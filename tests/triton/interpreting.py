"""Triton's interpreter without work that it repeats or throws away; what a kernel computes stays as it is.

An operation on a small block costs some microseconds in numpy and a hundred in the description of its types, so:
- the language is prepared once for each kernel, not for each function that a kernel calls (it looks through all of
  `triton.language`);
- the type of a block is made once for each element and shape, and what a tensor takes from its type once for each
  type;
- the type of the result of two operands is looked up, as is numpy's type for one of Triton's;
- the sums, differences and products of integers are not computed a second time to see whether they overflow: the
  interpreter does nothing with the answer unless it debugs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter


def leave_out_waste(patch: pytest.MonkeyPatch) -> None:
    """Interpret kernels so until the patch is undone."""
    _prepare_once(patch)
    _make_types_once(patch)
    _find_results_once(patch)
    _leave_overflow_out(patch)


def _prepare_once(patch: pytest.MonkeyPatch) -> None:
    """A function of a kernel finds what the kernel, or an earlier function of it, has prepared."""
    prepare: Callable[[Any], Any] = interpreter._patch_lang
    execute: Callable[..., Any] = interpreter.GridExecutor.__call__
    done: set[bool] = set()  # whether it was `tl` or `tl.core`, the two modules that a function may know
    knows: dict[Any, set[bool]] = {}

    def prepare_once(fn: Any) -> Any:
        known = knows.get(fn)
        if known is None:
            modules = [module for module in fn.__globals__.values() if module is tl or module is tl.core]
            known = knows[fn] = {module is tl for module in modules}
        if known and known <= done:
            return None
        done.update(known)
        return prepare(fn)

    def execute_anew(self: Any, *arguments: Any, **options: Any) -> Any:
        done.clear()  # a kernel takes back what it has prepared
        try:
            return execute(self, *arguments, **options)
        finally:
            done.clear()

    patch.setattr(interpreter, "_patch_lang", prepare_once)
    patch.setattr(interpreter.GridExecutor, "__call__", execute_anew)


def _make_types_once(patch: pytest.MonkeyPatch) -> None:
    """One description for each element and shape of a block, and for what a tensor takes from its type.

    A tensor then has the first of all equal types, so that most comparisons of types end with `is`.
    """
    block, constexpr, plain = tl.core.block_type, tl.core.constexpr, tl.core.dtype
    start_block, start_tensor, equal, unwrap = (
        block.__init__,
        tl.core.tensor.__init__,
        plain.__eq__,
        tl.core._unwrap_if_constexpr,
    )
    described: dict[Any, dict[str, Any]] = {}
    never_wrapped = {int, float, bool, str, type(None), plain, block, tl.core.pointer_type, tl.core.tensor}

    def init_block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = [size.value if type(size) is constexpr else size for size in shape]
        # Other elements (pointers) and sizes are left to Triton, which refuses some of them.
        if type(element_ty) is not plain or any(type(size) is not int for size in sizes):
            start_block(self, element_ty, shape)
            return
        key = (element_ty.name, *sizes)
        if key in described:
            vars(self).update(described[key])
        else:
            start_block(self, element_ty, shape)
            described[key] = vars(self) | {"_of_tensors": {}}

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        known = vars(type).setdefault("_of_tensors", {})
        if known:
            vars(self).update(known)
            self.handle = handle
        else:
            start_tensor(self, handle, type)
            known.update((name, value) for name, value in vars(self).items() if name != "handle")

    def unwrap_fast(value: Any) -> Any:
        kind = type(value)
        if kind in never_wrapped:
            return value
        return value.value if kind is constexpr else unwrap(value)

    patch.setattr(block, "__init__", init_block)
    patch.setattr(tl.core.tensor, "__init__", init_tensor)
    patch.setattr(plain, "__eq__", lambda one, other: one is other or equal(one, other))
    patch.setattr(tl.core, "_unwrap_if_constexpr", unwrap_fast)


def _find_results_once(patch: pytest.MonkeyPatch) -> None:
    """Look up numpy's types and the types of results; operands of one type need no broadcast."""
    semantic = interpreter.interpreter_semantic
    in_numpy, broadcast = interpreter._get_np_dtype, semantic.broadcast_impl_value
    result: Callable[..., Any] = semantic.computation_type_impl
    numpy_types: dict[str, Any] = {}
    results: dict[Any, Any] = {}

    def numpy_type(kind: Any) -> Any:
        if kind.name not in numpy_types:
            numpy_types[kind.name] = in_numpy(kind)
        return numpy_types[kind.name]

    def result_type(one: Any, one_is_scalar: bool, other: Any, other_is_scalar: bool, divided: bool) -> Any:
        key = one.name, one_is_scalar, other.name, other_is_scalar, divided
        if key not in results:
            results[key] = result(one, one_is_scalar, other, other_is_scalar, divided)
        return results[key]

    def broadcast_unequal(lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if lhs.type is rhs.type else broadcast(lhs, rhs)

    patch.setattr(interpreter, "_get_np_dtype", numpy_type)
    patch.setattr(semantic, "computation_type_impl", result_type)
    patch.setattr(semantic, "broadcast_impl_value", broadcast_unequal)


def _leave_overflow_out(patch: pytest.MonkeyPatch) -> None:
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        patch.setattr(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False))
