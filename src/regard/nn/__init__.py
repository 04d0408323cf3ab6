"""Attention mechanisms as layers, each by name: `regard.nn.build("local", dim=256, num_heads=8, window=65)`.

Every layer is called as `layer(query, source=None, *, mask=None, state=None)` and maps (b,q,dim) to (b,q,dim).
`names()` lists them; `regard show NAME` on the command line explains one.
"""

from __future__ import annotations

import importlib
import pkgutil

from regard.nn.cache import Cache
from regard.nn.gla import global_query
from regard.nn.mechanism import MECHANISMS, Entry, Mechanism, build, entry, mechanism, names
from regard.nn.state import State

# Every file of this package is loaded, so that a new mechanism needs no list to be written into.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "MECHANISMS", "Cache", "Entry", "Mechanism", "State", "build", "entry", "global_query", "mechanism", "names",
]  # fmt: skip
