"""One file for each family of checkpoints: its configuration as options of a model, and its table of names."""

from __future__ import annotations

import importlib
import pkgutil

# Every file of this package is loaded, so that a new family needs no list to be written into.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
