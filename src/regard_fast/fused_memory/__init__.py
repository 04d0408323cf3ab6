"""Memories in few kernels: what lies between the maps of rows of fused rows.

`op.py` is the operator of a `dynamic-memory` over few segments, `refusal.py` says when it cannot run, and `plain.py` is
its readable twin; `static.py` has all of that for a `static-memory`. `stack_op.py`: a stack of either as one operator.
"""

from __future__ import annotations

enabled = True  # whether memories between fused rows use the kernels where they can
