"""The loop of `dynamic-memory` over few segments in few kernels: what lies between the maps of rows of fused rows.

`op.py` is the operator, `refusal.py` says when it cannot run, and `plain.py` is its readable twin.
"""

from __future__ import annotations

enabled = True  # whether `dynamic-memory` between fused rows uses the kernels where it can
