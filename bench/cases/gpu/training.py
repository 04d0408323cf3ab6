"""Training steps a second of a small Transformer through our loop: data, update, log lines and all."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from regard_workbench.bench.case import Measurement, Setting, Wrong, case
from regard_workbench.models import Model
from regard_workbench.tasks.parts.batch import Batch

if TYPE_CHECKING:  # the loop's libraries take time to load, and the other cases do without
    from regard_workbench.training.loop import Trainer
    from regard_workbench.training.signals import Signals

LAYERS, DIM, HEADS, BATCH, LENGTH = 2, 128, 4, 32, 64
STEPS, WINDOWS, WARM = 400, 5, 12
MODEL = f"decoder(layers={LAYERS}, dim={DIM}, num_heads={HEADS})"
PEER = "plain torch, eager"


def trainer_of(task: str, model: str, folder: str, signals: Signals, **settings: object) -> Trainer:
    """A training that never validates, saves or ends."""
    from regard_workbench.training.build import Parts, build_model, build_task
    from regard_workbench.training.config.recipe import complete
    from regard_workbench.training.hardware import prepare
    from regard_workbench.training.loop import Trainer
    from regard_workbench.training.run_folder.folder import RunFolder
    from regard_workbench.training.state import seed_everything

    never = dict.fromkeys(("steps", "eval_every", "save_every"), 10**9)
    config = complete({"task": task, "model": model, **never, **settings})
    hardware = prepare(config)
    seed_everything(config.seed)
    data = build_task(config)
    parts = Parts(data, build_model(config, data))
    return Trainer(config, RunFolder(Path(folder)), parts, hardware, signals, quiet=True)


def measured(
    setting: Setting,
    compile: bool = True,
    precision: str = "bf16-mixed",
    batch: int = BATCH,
    length: int = LENGTH,
    steps: int = STEPS,
) -> Measurement:
    """Steps a second. The loop must have lowered the loss, or its speed does not count."""
    from regard_workbench.training.build import build_model
    from regard_workbench.training.signals import Signals
    from regard_workbench.training.state import seed_everything

    steps = steps // 4 if setting.quick else steps
    options = {"device": setting.device, "compile": compile, "precision": precision, "batch_size": batch}
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        trainer = trainer_of(f"language(context={length})", MODEL, folder, Signals(), log_every=100, **options)
        with trainer.open():
            _rate(trainer.advance, min(WARM, steps), lambda: _done(trainer))
            first = _loss(trainer)
            rates = [_rate(trainer.advance, steps, lambda: _done(trainer)) for _ in range(WINDOWS)]
            last = _loss(trainer)
        batches = [trainer.batch(position) for position in range(20)]
    if not last < first:
        raise Wrong(f"not timed, because it does not learn: the loss went from {first:.3f} to {last:.3f}.")
    seed_everything(0)
    model = build_model(trainer.config, trainer.task).to(setting.device)
    plain = _plain(model, batches, setting.device, precision)
    _rate(plain, 3, lambda: None)
    peer = 1 / _rate(plain, 20 if setting.device == "cuda" else 3, lambda: None)
    details = {"compile": compile, "precision": precision, "loss_first": first, "loss_last": last}
    ours = 1 / statistics.median(rates)
    return Measurement.of(
        rates, ours=ours, peer=peer, impl="regard_workbench.training", best=PEER, peers={PEER: peer}, details=details
    )


def compiled(setting: Setting) -> None:
    """Have the model compiled by a run of a few steps."""
    measured(setting, steps=WARM)


def _rate(step: Callable[[], object], count: int, finish: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(count):
        step()
    finish()
    return count / (time.perf_counter() - start)


def _done(trainer: Trainer) -> None:
    """Wait until all pending steps are finished."""
    trainer.synchronize()
    if trainer.hardware.device.type == "cuda":
        torch.cuda.synchronize()


def _loss(trainer: Trainer) -> float:
    """The loss on the first batches, with the weights as they are."""
    with torch.no_grad():
        sums = [trainer.model.loss(trainer.model(batch), batch) for batch in map(trainer.batch, range(5))]
    return float(sum(float(total) for total, _ in sums) / sum(float(count) for _, count in sums))


def _plain(model: Model, batches: list[Batch], device: str, precision: str) -> Callable[[], object]:
    """The step as one writes it by hand; batches lie on the device already."""
    rule = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    position = 0

    def step() -> float:
        nonlocal position
        batch = batches[position % len(batches)]
        position += 1
        rule.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16-mixed"):
            logits: Tensor = model(batch)
        assert batch.targets is not None
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch.targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rule.step()
        return loss.item()

    return step


case(
    "step-transformer",
    device="cuda",
    peer=PEER,
    unit="steps/s",
    at_least=2000,
    ahead=compiled,
    work=f"training steps, {LAYERS} layers d{DIM} h{HEADS}, b{BATCH} n{LENGTH}, AdamW, through the loop, "
    "bf16-mixed, compiled, graph",
)(measured)
