"""Checkpoints of the Hugging Face Hub as regard's own models, and regard's models in the Hub's form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.registry import imported_when_used

if TYPE_CHECKING:
    from regard_workbench.models.pretrained import families
    from regard_workbench.models.pretrained.loading import Pretrained, from_pretrained
    from regard_workbench.models.pretrained.saving import push_to_hub, save_pretrained

__all__ = ["Pretrained", "families", "from_pretrained", "push_to_hub", "save_pretrained"]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = imported_when_used(globals())
