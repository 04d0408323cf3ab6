"""Row-wise parts of small Transformer layers in few kernels: everything between two attentions is one call.

`layers.py` decides whether a stack of layers can run so, and runs it; otherwise the modules are called, and
`layers.refusal` says why.
"""

from __future__ import annotations

on_cpu = False  # set by tests that run the kernels in Triton's interpreter
rehearsed = False  # set by those that multiply there as on a GPU, in bfloat16
