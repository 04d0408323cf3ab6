"""The small trainings that are checked and timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    from regard_workbench.training.build import Parts, build_model, build_task
    from regard_workbench.training.config.recipe import complete
    from regard_workbench.training.hardware import prepare
    from regard_workbench.training.loop import Trainer
    from regard_workbench.training.run_folder.folder import RunFolder
    from regard_workbench.training.state import seed_everything

    never = dict.fromkeys(("steps", "eval_every", "save_every"), 10**9)
    settings = {"task": task, "model": model, "batch_size": 32, "device": device, "compile": compiled, **never, **more}
    if device == "cuda":
        settings["precision"] = "bf16-mixed"
    config = complete(settings)
    hardware = prepare(config)
    seed_everything(config.seed)
    made = build_task(config)
    return Trainer(
        config, RunFolder(Path(folder)), Parts(made, build_model(config, made)), hardware, signals, quiet=True
    )
