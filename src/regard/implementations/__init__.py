"""Implementations: how an attention is computed. Each says of a request whether it can run it, and runs it."""

from __future__ import annotations

import importlib.util

# Whether Triton is installed. torch for CUDA brings it along on Linux; elsewhere it may be missing.
HAS_TRITON = importlib.util.find_spec("triton") is not None
