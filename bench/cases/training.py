"""The overhead of the training loop: one of its steps against the shortest loop in plain torch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from regard_workbench import models
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import TimedCall, slowdown
from regard_workbench.tasks.answers import NextToken
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.tasks.parts.task import Task

LAYERS, DIM, LENGTH, BATCH, VOCABULARY, ROWS = 4, 128, 256, 16, 256, 64
WORK = f"training step of a decoder, {LAYERS} layers, {DIM} wide, {LENGTH} tokens, batch {BATCH}"


class Letters(Task):
    """Rows of random tokens, each guessed from those before it. Not registered: there is nothing to learn."""

    name = "letters"

    def __init__(self) -> None:
        self.rows = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(0))
        self.pose(self.problems()[0])

    def streams(self) -> dict[str, Tokens]:
        """Random tokens."""
        return {INPUTS: Tokens(VOCABULARY, length=LENGTH)}

    def answers(self) -> list[NextToken]:
        """The next one."""
        return [NextToken(VOCABULARY)]

    def examples(self, split: str) -> Sequence[Tensor]:
        """The same rows in every split; no validation."""
        return list(self.rows) if split == "train" else []

    def collate(self, examples: Sequence[Tensor], generator: torch.Generator) -> Batch:
        """Rows on top of each other."""
        rows = torch.stack(list(examples))
        return Batch.of(rows[:, :-1], targets=rows[:, 1:])


@case("loop-overhead", work=WORK, peer="bare torch loop", unit="× its time", at_most=1.05)
def loop(setting: Setting) -> Measurement:
    """Order, collation, loss, clipping, update, random states, log line and display, against a minimal loop."""
    from regard_workbench.training.build import Parts
    from regard_workbench.training.config import Config
    from regard_workbench.training.config.recipe import complete
    from regard_workbench.training.hardware import prepare
    from regard_workbench.training.loop import Trainer
    from regard_workbench.training.run_folder.folder import RunFolder
    from regard_workbench.training.signals import Signals

    steps = 1_000_000
    config = complete(
        Config(task="language", steps=steps, batch_size=BATCH, accumulate=1, device=setting.device, log_every=10)
    )
    hardware = prepare(config)
    task = Letters()
    ours, bare = _decoder(task), _decoder(task).to(setting.device)
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        run = RunFolder(Path(folder))
        trainer = Trainer(config, run, Parts(task, ours), hardware, Signals(), quiet=True)
        with trainer.open():
            return slowdown(
                trainer.advance, _bare_step(bare, task.rows.to(setting.device)), setting, "regard_workbench.training"
            )


def _decoder(task: Letters) -> models.Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return models.build("decoder", task.problem, layers=LAYERS, dim=DIM)


def _bare_step(model: models.Model, rows: Tensor) -> TimedCall:
    """What one would write by hand, with the optimiser we use: a faster one must not hide what the loop costs."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    position = 0

    def step() -> float:
        nonlocal position
        chosen = rows[position % ROWS : position % ROWS + BATCH]
        position += BATCH
        optimizer.zero_grad()
        logits = model(Batch.of(chosen[:, :-1]))
        loss = F.cross_entropy(logits.flatten(0, 1), chosen[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step
