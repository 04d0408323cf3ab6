"""The cases of `regard bench`, one file per family. A case registers itself with `@case`: one function per number."""

from __future__ import annotations

from importlib import import_module

# Loaded in the order in which the table shows them.
FAMILIES = (
    "regard_workbench.bench.dot",
    "bench.cases.window",
    "bench.cases.additive",
    "bench.cases.views",
    "regard_workbench.bench.overhead",
    "bench.cases.ntm",
    "bench.cases.layers",
    "bench.cases.interop",
    "bench.cases.graph",
    "bench.cases.training",
    "bench.cases.decoding",
    "bench.cases.gpu",
)

for _family in FAMILIES:
    import_module(_family)

from bench.cases.gpu.warm import compile_ahead  # noqa: E402

__all__ = ["FAMILIES", "compile_ahead"]
