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

from torch import Tensor

from regard.errors import BadValue
from regard.tasks.problem import Batch
from regard.training import checkpoints, optim
from regard.training.assembly import Parts
from regard.training.budget import of, positions
from regard.training.checkpoints import Checkpoint
from regard.training.company import Company
from regard.training.config import Config
from regard.training.evaluation import evaluate
from regard.training.folder import RunFolder
from regard.training.hardware import Hardware, any_shape
from regard.training.learner import Learner
from regard.training.metrics import Metrics, Record, plain
from regard.training.order import Order, generator
from regard.training.position import Boundary, Position, seed_everything
from regard.training.progress import Display, TensorBoard
from regard.training.random_state import RandomState
from regard.training.signals import Interrupted, Signals
from regard.training.step import NonFinite, Taken

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
        assert config.batch_size is not None and config.accumulate is not None
        self.budget, self.company, self.accumulate = of(config), Company(hardware), config.accumulate
        self.position = Position() if checkpoint is None else Position.read(checkpoint.state["progress"])
        self.saved, self.saved_at = -1 if checkpoint is None else checkpoint.step, self.position.seconds
        self.tokens = 0  # of the step at hand
        self.examples = self.task.examples("train")
        self.order = Order(self.examples, config.batch_size, config.seed, self.task.length, config.bucket)
        self.validates = len(self.task.examples("validation")) > 0
        self.learner = Learner(config, hardware, self.company, parts, checkpoint, tell)
        if checkpoint is not None:  # the last thing, so that nothing draws after it
            self._draw_on(checkpoint)

    def _draw_on(self, checkpoint: Checkpoint) -> None:
        """Go on with the random generators of a checkpoint; other processes than those that made it begin anew."""
        states = RandomState.unpack_all(checkpoint.random, checkpoint.state["random"])
        if len(states) == self.company.size:
            states[self.company.place].restore()
            return
        self.tell(
            f"resume: the number of processes was {len(states)} and is {self.company.size} now. Batches and "
            "what is drawn at random (dropout) are from here on not those of a run that went on as it was."
        )
        anew = generator(self.config.seed, "process", self.company.place, self.position.step)
        seed_everything(anew.initial_seed())

    @contextmanager
    def open(self) -> Iterator[None]:
        """Everything a run writes to, open while it trains."""
        self.metrics = Metrics(self.run.metrics) if self.company.leads else None
        self.board = None
        if self.config.report_to == "tensorboard" and self.company.leads:
            self.board = TensorBoard(self.run.path / "tensorboard", self.position.step)
        self.display = Display(self.budget, self.position, quiet=self.quiet or not self.company.leads)
        self.stepping, self.began_at = 0.0, self.position.step
        self.raw.train()
        try:
            with any_shape():
                yield
        finally:
            self.display.close()
            if self.board is not None:
                self.board.close()
            if self.metrics is not None:
                self.metrics.close()

    def train(self) -> str:
        """Take steps until there is a reason to stop, and return it: as in `Result.stopped_by`."""
        with self.open():
            if self.position.pending is not None:  # the last process was stopped inside a validation
                self.saved = -1
                self._settle(marked=True)
            while not (reason := self._reason_to_stop()):
                self.advance()
            self.save()
            return reason

    def _reason_to_stop(self) -> str:
        if received := self.company.heard(self.signals.received):
            return signal.Signals(received).name
        if self.budget.ends(self.position):
            return "steps" if self.budget.kind == "steps" else "budget"
        patience = self.config.patience
        return "patience" if patience is not None and self.position.stale >= patience else ""

    def _hurried(self) -> bool:
        """Whether to stop in the middle of something; several processes only stop together."""
        return self.hardware.alone and bool(self.signals.received)

    def advance(self) -> None:
        """One step and what follows from it. A signal inside the step leaves everything as it was before."""
        started = time.perf_counter()
        boundary = self.learner.boundary()
        position = self.position
        self.tokens = 0
        rate = optim.rate(self.config.optim, position.step, self.budget.expected_steps(position))
        optim.set_rate(self.learner.optimizer, rate)
        try:
            taken = self.learner.step(self._batches())
        except Interrupted:
            self.save(boundary)
            return
        except NonFinite as trouble:
            self._stop_at(boundary, trouble)
        except Exception:  # out of memory, a mistake in a task: not a reason to lose what was learned
            self._rescue(boundary)
            raise
        marks = self.budget.marks(position)
        position.step += 1
        position.batches += self.accumulate * self.company.size
        passed = time.perf_counter() - started
        self.stepping += passed
        tokens, seconds = self.company.used(self.tokens, passed)
        position.tokens += tokens
        position.seconds += seconds
        self.display.step(taken.loss, self.speed)
        position.pending = self._record(taken, rate)
        try:
            self._settle(marked=self.budget.marks(position) > marks)
        except Exception:
            self._rescue(None)
            raise

    def _rescue(self, boundary: Boundary | None) -> None:
        """Save before an error ends the run; if that fails too, the first error is the one to hear of.

        Of several processes the others may be at work still: a save takes all of them, so nothing is saved.
        """
        if not self.company.alone:
            return
        with suppress(Exception):
            self.save(boundary)
            self.tell(f"Saved at step {self.position.step} in {self.run.path}.")

    def _batches(self) -> Iterator[Batch]:
        """The batches of the next step; stops between two of them when a signal came."""
        for number in range(self.accumulate):
            if number and self._hurried():
                raise Interrupted
            yield self.batch(self.position.batches + number * self.company.size + self.company.place)

    def batch(self, place: int) -> Batch:
        """The batch at a place in the data, a function of the seed and the place alone; its tokens are counted."""
        chosen = self.order[place]
        batch = self.task.collate(
            [self.examples[i] for i in chosen], generator(self.config.seed, "batch", place)
        )
        self.tokens += positions(batch, self.task.problem)  # here, where counting need not wait for a device
        return self.hardware.place(dataclasses.replace(batch, index=tuple(chosen)))

    def _record(self, taken: Taken, rate: float) -> Record:
        return {
            "step": self.position.step,
            "loss": taken.loss,
            "lr": rate,
            "grad_norm": taken.norm,
            "epoch": self.order.epoch(self.position.batches - 1),
            "tokens": self.position.tokens,
            "seconds": round(self.position.seconds, 3),
            "steps_per_second": round(self.speed, 3),
        }

    @property
    def speed(self) -> float:
        """Steps per second of this process, validations and checkpoints not counted."""
        return (self.position.step - self.began_at) / self.stepping if self.stepping else 0.0

    def _settle(self, marked: bool) -> None:
        """Finish what the last step leaves to do: validation, log line, checkpoint. A signal may cut it short.

        `marked`: validation and checkpoint are due whatever the number of the step.
        """
        record, step, config = self.position.pending, self.position.step, self.config
        assert record is not None and config.eval_every and config.save_every and config.log_every
        better, last = False, self.budget.ends(self.position)
        due = self.validates and (marked or last or step % config.eval_every == 0)
        if due:
            found = self._validate()
            if found is None:
                return
            better = self.position.validated(self._deciding(found), self.task.higher_is_better)
            self.position.metrics = plain(found)
            record["validation"] = plain(found)
            self.display.validated(self.task.metric, found[self.task.metric], better)
        self.position.pending = None
        if self.metrics is not None and (due or last or step == 1 or step % config.log_every == 0):
            self.metrics.append(record)
            if self.board is not None:
                self.board.write(record)
        late = self.position.seconds - self.saved_at > SECONDS_AT_RISK  # by the clock that all agree on
        if better or marked or late or step % config.save_every == 0:
            self.save()

    def _validate(self) -> dict[str, float] | None:
        with self.learner.usable() as model:
            return evaluate(
                self.task, model, batch_size=self.config.batch_size or 1, limit=self.config.eval_limit,
                seed=self.config.seed, place=self.hardware.place, stop=self._hurried,
                surrounding=self.hardware.accelerator.autocast, share=(self.company.place, self.company.size),
                gather=self.company.gather,
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
        """Write a checkpoint of the moment after the last whole step, unless it is there already.

        All processes call it, with their random states and their parts of the weights; the first one writes.
        """
        position = self.position
        if self.saved == position.step:
            return
        weights, memory = self.learner.tensors(boundary)
        random = self.company.gather(RandomState.now() if boundary is None else boundary.random)
        if self.metrics is not None:
            self._write(weights, memory, random)
        self.saved, self.saved_at = position.step, position.seconds

    def _write(
        self, weights: dict[str, Tensor], memory: dict[str, Tensor], random: list[RandomState]
    ) -> None:
        assert self.metrics is not None
        position = self.position
        tensors, numbers = RandomState.pack_all(random)
        scaler = self.hardware.accelerator.scaler
        state: dict[str, Any] = {
            "progress": dataclasses.asdict(position),
            "random": numbers,
            "scaler": None if scaler is None else scaler.state_dict(),
            "task": self.task.state(),
            "metric": self.task.metric,
        }
        self.metrics.sync()
        name = checkpoints.name_of(position.step)
        checkpoints.save(self.run.checkpoints, Checkpoint(name, weights, memory, tensors, state))
        best = None if position.best_step is None else checkpoints.name_of(position.best_step)
        checkpoints.keep(self.run.checkpoints, name, best)
