"""The loop: steps, log lines, validations, checkpoints, until the steps are done or someone says stop.

Between two steps nothing is in flight, and that is the only moment a checkpoint speaks of. A run that is stopped inside
a step is saved as of the moment before it, and the step's batches come again.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import torch

from regard.errors import BadValue
from regard.tasks.problem import Batch
from regard.tasks.task import Sums
from regard.training import checkpoints, optim
from regard.training.assembly import Parts, own_tensors, take_weights
from regard.training.checkpoints import Checkpoint
from regard.training.config import Config
from regard.training.evaluation import evaluate
from regard.training.folder import RunFolder
from regard.training.graph import GraphedStep, refusal
from regard.training.hardware import Hardware
from regard.training.metrics import Metrics, Record, plain
from regard.training.order import Order, generator
from regard.training.position import Boundary, Buffers, Position
from regard.training.progress import Display, TensorBoard
from regard.training.random_state import RandomState
from regard.training.signals import Interrupted, Signals
from regard.training.step import NonFinite, Step, Taken

SECONDS_AT_RISK = 300.0  # slow steps: save at least so often, whatever --save-every says


class Trainer:
    """One run in one process."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        parts: Parts,
        hardware: Hardware,
        signals: Signals,
        checkpoint: Checkpoint | None = None,
        tell: Callable[[str], None] = lambda text: None,
        quiet: bool = False,
    ) -> None:
        self.config, self.run, self.task, self.raw = config, run, parts.task, parts.model
        self.hardware, self.signals, self.tell, self.quiet = hardware, signals, tell, quiet
        assert config.steps is not None and config.batch_size is not None and config.accumulate is not None
        self.steps, self.accumulate = config.steps, config.accumulate
        self.position = Position() if checkpoint is None else Position.read(checkpoint.state["progress"])
        self.saved, self.saved_at = -1 if checkpoint is None else checkpoint.step, time.monotonic()
        self.raw.to(hardware.dtype)
        if checkpoint is not None:
            with torch.no_grad():
                take_weights(self.raw, checkpoint.weights, "resume")
        self.examples = self.task.examples("train")
        self.order = Order(self.examples, config.batch_size, config.seed, self.task.length, config.bucket)
        self.validates = len(self.task.examples("validation")) > 0
        self.step = self._prepare(checkpoint)
        self.buffers = Buffers(self.raw)
        if checkpoint is not None:  # the last thing, so that nothing draws after it
            RandomState.unpack(checkpoint.random, checkpoint.state["random"]).restore()

    def _prepare(self, checkpoint: Checkpoint | None) -> Callable[[Iterator[Batch]], Taken]:
        accelerator = self.hardware.accelerator
        model = accelerator.prepare(self.raw)
        captured = not refusal(self.config, self.hardware)
        self.optimizer = optim.build(self.raw, self.config.optim, captured=captured)
        # Accelerate's wrapper is for loss scaling and sharing; each of its steps looks for a TPU, which takes time.
        wrapped = accelerator.scaler is not None or not self.hardware.alone
        prepared = accelerator.prepare(self.optimizer) if wrapped else self.optimizer
        if checkpoint is not None:
            optim.remember(self.optimizer, self.raw, checkpoint.optimizer)
            if accelerator.scaler is not None and checkpoint.state.get("scaler"):
                accelerator.scaler.load_state_dict(checkpoint.state["scaler"])
        if self.config.compile:
            model = torch.compile(model)
        step = Step(
            accelerator, model, prepared, self.task, accumulate=self.accumulate, clip=self.config.optim.clip or 0.0,
            smoothing=self.config.optim.smoothing or 0.0,
        )  # fmt: skip
        return GraphedStep(step, self.optimizer, self.tell) if captured else step

    @property
    def leads(self) -> bool:
        """Whether this process writes for all."""
        return bool(self.hardware.accelerator.is_main_process)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Everything a run writes to, open while it trains."""
        self.metrics = Metrics(self.run.metrics) if self.leads else None
        self.board = None
        if self.config.report_to == "tensorboard" and self.leads:
            self.board = TensorBoard(self.run.path / "tensorboard", self.position.step)
        self.display = Display(self.steps, self.position.step, quiet=self.quiet or not self.leads)
        self.stepping, self.began_at = 0.0, self.position.step
        self.raw.train()
        try:
            yield
        finally:
            self.display.close()
            if self.board is not None:
                self.board.close()
            if self.metrics is not None:
                self.metrics.close()

    def train(self) -> str:
        """Take steps until there is a reason to stop, and return it: "steps", "patience", or a signal's name."""
        with self.open():
            if self.position.pending is not None:  # the last process was stopped inside a validation
                self.saved = -1
                self._settle()
            while not (reason := self._reason_to_stop()):
                self.advance()
            self.save()
            return reason

    def _reason_to_stop(self) -> str:
        if received := self._heard():
            return signal.Signals(received).name
        if self.position.step >= self.steps:
            return "steps"
        patience = self.config.patience
        return "patience" if patience is not None and self.position.stale >= patience else ""

    def _heard(self) -> int:
        """The signal that came, to any of the processes: all stop after the same step."""
        if self.hardware.alone:
            return self.signals.received
        mine = torch.zeros(signal.NSIG, device=self.hardware.device)
        mine[self.signals.received] = 1
        mine[0] = 0
        everyone = self.hardware.accelerator.reduce(mine, "sum")
        return int(everyone.argmax()) if bool(everyone.any()) else 0

    def _hurried(self) -> bool:
        """Whether to stop in the middle of something; several processes only stop together."""
        return self.hardware.alone and bool(self.signals.received)

    def advance(self) -> None:
        """One step and what follows from it. A signal inside the step leaves everything as it was before."""
        started = time.perf_counter()
        boundary = Boundary(RandomState.now(), self.buffers.now())
        rate = optim.rate(self.config.optim, self.position.step, self.steps)
        optim.set_rate(self.optimizer, rate)
        try:
            taken = self.step(self._batches())
        except Interrupted:
            self.save(boundary)
            return
        except NonFinite as trouble:
            self._stop_at(boundary, trouble)
        except Exception:  # out of memory, a mistake in a task: not a reason to lose what was learned
            self._rescue(boundary)
            raise
        self.position.step += 1
        self.position.batches += self.accumulate * self.hardware.accelerator.num_processes
        passed = time.perf_counter() - started
        self.stepping += passed
        self.position.seconds += passed
        self.display.step(self.position.step, taken.loss, self.speed)
        self.position.pending = self._record(taken, rate)
        try:
            self._settle()
        except Exception:
            self._rescue(None)
            raise

    def _rescue(self, boundary: Boundary | None) -> None:
        """Save before an error ends the run; if that fails too, the first error is the one to hear of."""
        with suppress(Exception):
            self.save(boundary)
            self.tell(f"Saved at step {self.position.step} in {self.run.path}.")

    def _batches(self) -> Iterator[Batch]:
        """The batches of the next step; stops between two of them when a signal came."""
        accelerator = self.hardware.accelerator
        for number in range(self.accumulate):
            if number and self._hurried():
                raise Interrupted
            place = self.position.batches + number * accelerator.num_processes + accelerator.process_index
            yield self.batch(place)

    def batch(self, place: int) -> Batch:
        """The batch at a place in the data, a function of the seed and the place alone."""
        chosen = self.order[place]
        batch = self.task.collate(
            [self.examples[i] for i in chosen], generator(self.config.seed, "batch", place)
        )
        return self.hardware.place(dataclasses.replace(batch, index=tuple(chosen)))

    def _record(self, taken: Taken, rate: float) -> Record:
        return {
            "step": self.position.step,
            "loss": taken.loss,
            "lr": rate,
            "grad_norm": taken.norm,
            "epoch": self.order.epoch(self.position.batches - 1),
            "seconds": round(self.position.seconds, 3),
            "steps_per_second": round(self.speed, 3),
        }

    @property
    def speed(self) -> float:
        """Steps per second of this process, validations and checkpoints not counted."""
        return (self.position.step - self.began_at) / self.stepping if self.stepping else 0.0

    def _settle(self) -> None:
        """Finish what the last step leaves to do: validation, log line, checkpoint. A signal may cut it short."""
        record, step, config = self.position.pending, self.position.step, self.config
        assert record is not None and config.eval_every and config.save_every and config.log_every
        better = False
        due = self.validates and (step % config.eval_every == 0 or step == self.steps)
        if due:
            found = self._validate()
            if found is None:
                return
            better = self.position.validated(self._deciding(found), self.task.higher_is_better)
            self.position.metrics = plain(found)
            record["validation"] = plain(found)
            self.display.validated(step, self.task.metric, found[self.task.metric], better)
        self.position.pending = None
        if self.metrics is not None and (due or step % config.log_every == 0 or step in (1, self.steps)):
            self.metrics.append(record)
            if self.board is not None:
                self.board.write(record)
        late = time.monotonic() - self.saved_at > SECONDS_AT_RISK
        if better or late or step % config.save_every == 0:
            self.save()

    def _validate(self) -> dict[str, float] | None:
        accelerator = self.hardware.accelerator
        gather: Callable[[Sums], list[Sums]] | None = None
        if not self.hardware.alone:
            from accelerate.utils import gather_object  # type: ignore[import-untyped]

            def everyone(sums: Sums) -> list[Sums]:
                return list(gather_object([sums]))

            gather = everyone
        return evaluate(
            self.task, self.raw, batch_size=self.config.batch_size or 1, limit=self.config.eval_limit,
            seed=self.config.seed, place=self.hardware.place, stop=self._hurried,
            surrounding=accelerator.autocast, share=(accelerator.process_index, accelerator.num_processes),
            gather=gather,
        )  # fmt: skip

    def _deciding(self, found: dict[str, float]) -> float:
        if self.task.metric not in found:
            raise BadValue(
                f"task: {self.task.name} is decided by {self.task.metric!r}, but its validation measured only "
                f"{', '.join(found) or 'nothing'}."
            )
        return found[self.task.metric]

    def _stop_at(self, boundary: Boundary, trouble: NonFinite) -> NoReturn:
        number = self.position.step + 1
        self.save(boundary)
        raise NonFinite(
            f"step {number}: {trouble}. Stopped before the update: the weights are those of step {number - 1}, saved "
            f"in {self.run.checkpoints / checkpoints.name_of(number - 1)}. Look at these examples, or try a lower "
            f"--optim.lr or a longer --optim.warmup."
        ) from None

    def save(self, boundary: Boundary | None = None) -> None:
        """Write a checkpoint of the moment after the last whole step, unless it is there already."""
        position = self.position
        if self.saved == position.step or not self.leads:
            return
        weights = dict(own_tensors(self.raw))
        random = RandomState.now()
        if boundary is not None:
            random = boundary.random
            weights.update({name: copy for name, copy in boundary.buffers.items() if name in weights})
        tensors, numbers = random.pack()
        scaler = self.hardware.accelerator.scaler
        state: dict[str, Any] = {
            "progress": dataclasses.asdict(position),
            "random": numbers,
            "scaler": None if scaler is None else scaler.state_dict(),
            "task": self.task.state(),
            "metric": self.task.metric,
        }
        if self.metrics is not None:
            self.metrics.sync()
        name = checkpoints.name_of(position.step)
        memory = optim.memory(self.optimizer, self.raw)
        checkpoints.save(self.run.checkpoints, Checkpoint(name, weights, memory, tensors, state))
        self.saved, self.saved_at = position.step, time.monotonic()
        best = None if position.best_step is None else checkpoints.name_of(position.best_step)
        checkpoints.keep(self.run.checkpoints, name, best)
