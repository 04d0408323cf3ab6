"""Implementations: how an attention is computed. Each says of a request whether it can run it, and runs it."""

from __future__ import annotations

import importlib.util
from functools import lru_cache


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether Triton is installed. torch for CUDA brings it along on Linux; elsewhere it may be missing."""
    return importlib.util.find_spec("triton") is not None
