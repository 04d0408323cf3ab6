"""The small trainings that are checked and timed."""

from __future__ import annotations

from typing import Any

from bench.cases.gpu import training

SIZE = "layers=2,dim=128"
DECODER = ("language(context=64)", f"decoder({SIZE},num_heads=4)")
CONTESTANTS = (
    DECODER,
    ("digits", f"static-transformer({SIZE})"),
    ("digits", f"dynamic-transformer({SIZE})"),
    ("digits", f"lstm-attention({SIZE})"),
)
GROUP = 8  # steps in one graph, where they are grouped


def trainer_of(task: str, model: str, device: str, compiled: bool, folder: str, signals: Any, **more: Any) -> Any:
    """A training without end, validations and checkpoints."""
    if device == "cuda":
        more["precision"] = "bf16-mixed"
    return training.trainer_of(task, model, folder, signals, batch_size=32, device=device, compile=compiled, **more)
