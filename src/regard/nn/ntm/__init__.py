"""The Neural Turing Machine: six functions, the whole machine, and the mechanism `ntm`."""

from __future__ import annotations

from regard.nn.ntm.addressing import content_address, interpolate, read, sharpen, shift, write
from regard.nn.ntm.machine import Machine, MachineState, Tape, Trace
from regard.nn.ntm.mechanism import NTM

__all__ = [
    "NTM",
    "Machine",
    "MachineState",
    "Tape",
    "Trace",
    "content_address",
    "interpolate",
    "read",
    "sharpen",
    "shift",
    "write",
]  # fmt: skip
