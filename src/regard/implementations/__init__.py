"""Implementations: how attention is computed. Each one says whether it can run a request, and runs it."""

from __future__ import annotations

import importlib.util

# Whether Triton is installed. torch for CUDA depends on it on Linux; elsewhere it may be missing.
HAS_TRITON = importlib.util.find_spec("triton") is not None
