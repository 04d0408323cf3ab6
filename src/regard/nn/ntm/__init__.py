"""The Neural Turing Machine: its six functions, the whole machine as a module, and the mechanism `ntm`."""

from __future__ import annotations

from regard.nn.ntm.addressing import content_address, interpolate, read, sharpen, shift, write
from regard.nn.ntm.machine import Machine, MachineCore, MachineState, Trace
from regard.nn.ntm.mechanism import NTM

__all__ = [
    "NTM",
    "Machine",
    "MachineCore",
    "MachineState",
    "Trace",
    "content_address",
    "interpolate",
    "read",
    "sharpen",
    "shift",
    "write",
]
