"""The promised numbers, each measured against a peer; `regard bench` prints them.

One file per family of cases. A case registers itself with `@case`, so a new number is one more function.
"""

from __future__ import annotations

from importlib import import_module

from regard_workbench.bench.case import CASES, Case, Setting

# Loaded in the order in which the table shows them.
FAMILIES = (
    "dot",
    "window",
    "additive",
    "views",
    "overhead",
    "ntm",
    "layers",
    "interop",
    "graph",
    "training",
    "decoding",
)

for _family in FAMILIES:
    import_module(f"{__name__}.{_family}")
import_module(f"{__name__}.gpu")

__all__ = ["CASES", "FAMILIES", "Case", "Setting"]
