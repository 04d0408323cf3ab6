"""Models: whole networks, each by name. `names()` lists them; `build("decoder", problem)` makes one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.registry import imported_when_used

if TYPE_CHECKING:
    from regard_workbench.models.parts.model import (
        MODELS,
        Model,
        build,
        fits,
        model,
        names,
        preset_settings,
        problem_for,
    )
    from regard_workbench.models.pretrained import from_pretrained, push_to_hub, save_pretrained

__all__ = [
    "MODELS",
    "Model",
    "build",
    "fits",
    "from_pretrained",
    "model",
    "names",
    "preset_settings",
    "problem_for",
    "push_to_hub",
    "save_pretrained",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = imported_when_used(globals())
