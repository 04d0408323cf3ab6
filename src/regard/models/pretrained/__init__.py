"""Checkpoints of the Hugging Face Hub as regard's own models, and regard's models in the Hub's form."""

from __future__ import annotations

from regard.models.pretrained import families  # each registers itself
from regard.models.pretrained.loading import Pretrained, from_pretrained
from regard.models.pretrained.saving import push_to_hub, save_pretrained

__all__ = ["Pretrained", "families", "from_pretrained", "push_to_hub", "save_pretrained"]
