"""Models: whole networks, each by name. `names()` lists them; `build("decoder", problem)` makes one."""

from __future__ import annotations

import importlib
import pkgutil

from regard.models.model import MODELS, Model, build, fits, model, names, preset_settings, problem_for
from regard.models.pretrained import from_pretrained, push_to_hub, save_pretrained

# Every file of this package is loaded, so that a new model needs no list to be written into.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "MODELS", "Model", "build", "fits", "from_pretrained", "model", "names", "preset_settings", "problem_for",
    "push_to_hub", "save_pretrained",
]  # fmt: skip
