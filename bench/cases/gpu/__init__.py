"""What regard promises on a GPU, each number beside the best peer there; `regard bench --device cuda` prints them.

Every case checks its numbers against a float64 reference first, and refuses to time what is wrong. Everything here also
runs on a CPU with small sizes, which is how it is tested.
"""

from __future__ import annotations

from importlib import import_module

# Loaded in the order in which the table shows them.
FAMILIES = (
    "dot",
    "structured",
    "lengths",
    "additive",
    "machine",
    "looking",
    "decoding",
    "host",
    "normalizers",
    "graph",
    "training",
)

for _family in FAMILIES:
    import_module(f"{__name__}.{_family}")
