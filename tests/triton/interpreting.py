"""Triton's interpreter, made to prepare its language once for each kernel, not for each function a kernel calls.

Its preparation looks through all of `triton.language`, and took a third of the time of these tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


@contextmanager
def prepared_once() -> Iterator[None]:
    """While this lasts, a function of a kernel finds what the kernel, or an earlier function of it, has prepared."""
    prepare: Callable[[Any], Any] = interpreter._patch_lang
    execute: Callable[..., Any] = interpreter.GridExecutor.__call__
    done: set[bool] = set()  # whether it was `tl` or `tl.core`, the two modules that a function may know

    def prepare_once(fn: Any) -> Any:
        known = {module is tl for module in fn.__globals__.values() if module is tl or module is tl.core}
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

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = prepare_once, execute_anew
    try:
        yield
    finally:
        interpreter._patch_lang, interpreter.GridExecutor.__call__ = prepare, execute
