"""What runs on an H200, run by Triton's interpreter: its block sizes, bfloat16, instructions and branches.

`REGARD_REHEARSE=1 TRITON_INTERPRET=1` chooses the kernels (`block_sizes.SMALL`); the contexts here make the interpreter
compute as a GPU does. Programs of a launch run in an order that is drawn: a GPU promises none.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any
from unittest import mock

REHEARSED = os.environ.get("REGARD_REHEARSE") == "1" and os.environ.get("TRITON_INTERPRET") == "1"


@contextmanager
def drawn_order() -> Iterator[None]:
    """While this lasts, the programs of a launch run in an order that its size decides."""
    from triton.runtime.interpreter import InterpreterBuilder

    place, size = InterpreterBuilder.set_grid_idx, InterpreterBuilder.set_grid_dim

    def set_grid_dim(self: Any, *counts: int) -> None:
        size(self, *counts)
        draw = random.Random(hash(counts))
        self.orders = [draw.sample(range(count), count) for count in counts]

    def set_grid_idx(self: Any, *at: int) -> None:
        place(self, *[order[one] for order, one in zip(self.orders, at, strict=True)])

    with (
        mock.patch.object(InterpreterBuilder, "set_grid_dim", set_grid_dim),
        mock.patch.object(InterpreterBuilder, "set_grid_idx", set_grid_idx),
    ):
        yield


@contextmanager
def rehearsed() -> Iterator[None]:
    """While this lasts, the interpreter computes as an H200 does."""
    from regard.implementations.triton.launch import block_sizes
    from tests.triton.bfloat16 import bfloat16_computed
    from tests.triton.instructions import instructions_known

    assert REHEARSED and block_sizes.INTERPRETED and not block_sizes.SMALL
    with ExitStack() as stack:
        for one in (bfloat16_computed(), instructions_known(), drawn_order()):
            stack.enter_context(one)
        if find_spec("regard_fast") is not None:
            stack.enter_context(mock.patch("regard_fast.fused_rows.rehearsed", True))
        yield
